// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/flow/rate_factor.hpp"
#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/task/block_task.hpp"

namespace qkflow {

namespace detail {
/// 1 / (1 + c e^x), also where e^x alone leaves the range of Scalar.
template <class Scalar>
Scalar logistic(const Scalar& c, const Scalar& x) {
  using std::exp;
  const Scalar half = exp(Scalar(x / Scalar(2)));
  return Scalar(1) / (Scalar(1) + c * half * half);
}
}  // namespace detail

/// Learning rates of the two circuits; r = qk / ov is the control parameter.
template <class Scalar>
struct LearningRates {
  Scalar ov = 1;  ///< eta_OV, above 0
  Scalar qk = 1;  ///< eta_QK, above 0

  Scalar ratio() const { return qk / ov; }
  void validate(const char* function) const {
    require_positive(function, "learning rate ov", ov);
    require_positive(function, "learning rate qk", qk);
    require_positive(function, "ratio qk / ov", ratio());
  }
};

/// A point on the line: W_OV = mu_ov D_OV, and mu_qk the score of an informative token.
template <class Scalar>
struct ReducedState {
  Scalar mu_ov = 0;
  Scalar mu_qk = 0;
};

/// A state with what is read off it.
template <class Scalar>
struct ReducedPoint {
  Scalar mu_ov, mu_qk, alpha, loss;
};

/// The Jacobian of the reduced field: `ov_qk` is d(mu_OV')/d mu_QK, and so on.
template <class Scalar>
struct ReducedJacobian {
  Scalar ov_ov = 0, ov_qk = 0, qk_ov = 0, qk_qk = 0;
};

/// The gradient flow of both circuits on the block task, as two scalars [Vashisht26]:
///
///     alpha = m e^{mu_QK} / (m e^{mu_QK} + n),   z = alpha mu_OV,   E = e^z,   loss = log(1 + (M-1)/E)
///     d mu_OV/dt = eta_OV rho_OV         alpha / (b (E + M - 1))
///     d mu_QK/dt = eta_QK rho_QK s^2 (M-1) alpha (1-alpha) mu_OV / (M b sigma_QK (E + M - 1))
///
/// with the rate factors rho_OV = OvRate::rate(mu_OV, sqrt(b)) and rho_QK = QkRate::rate(mu_QK / s, sigma_QK).
/// Exact for null noise, and for collapsed attention with any noise vocabulary. With factorized attention and a finite
/// noise vocabulary N the line is left slowly (its mean direction has singular value sigma_QK sqrt(1 + M b / N)): there
/// the equations are an approximation; `is_exact` says so.
template <class Scalar, class QkRate = Collapsed, class OvRate = Collapsed>
struct ReducedFlow {
  using scalar_type = Scalar;

  BlockTask<Scalar> task{};
  LearningRates<Scalar> rates{};
  QkRate qk{};
  OvRate ov{};

  Scalar alpha(const Scalar& mu_qk) const {
    return detail::logistic(Scalar(task.noise / task.informative), Scalar(-mu_qk));
  }
  /// 1 - alpha, without cancellation.
  Scalar noise_mass(const Scalar& mu_qk) const {
    return detail::logistic(Scalar(task.informative / task.noise), mu_qk);
  }
  /// The logit gap z = alpha mu_OV between the label and every other class.
  Scalar logit_gap(const Scalar& mu_ov, const Scalar& mu_qk) const { return alpha(mu_qk) * mu_ov; }
  /// Cross entropy, accurate for every z: log(1 + e^{log(M-1) - z}).
  Scalar loss_at_gap(const Scalar& z) const {
    using std::log;
    return softplus(Scalar(log(task.classes - Scalar(1)) - z));
  }
  Scalar loss(const Scalar& mu_ov, const Scalar& mu_qk) const { return loss_at_gap(logit_gap(mu_ov, mu_qk)); }
  /// 1 - p(label) = (M - 1) / (E + M - 1), without overflow.
  Scalar miss_probability(const Scalar& z) const {
    return detail::logistic(Scalar(Scalar(1) / (task.classes - Scalar(1))), z);
  }
  ReducedPoint<Scalar> point(const Scalar& mu_ov, const Scalar& mu_qk) const {
    return {mu_ov, mu_qk, alpha(mu_qk), loss(mu_ov, mu_qk)};
  }

  Scalar output_rate_factor(const Scalar& mu_ov) const { return ov.rate(mu_ov, task.output_value_singular_value()); }
  Scalar attention_rate_factor(const Scalar& mu_qk) const {
    const Scalar s = task.score_scale;
    return s * s * qk.rate(Scalar(mu_qk / s), task.query_key_singular_value());
  }
  Scalar output_velocity(const Scalar& mu_ov, const Scalar& mu_qk) const {
    const Scalar a = alpha(mu_qk);
    return rates.ov * output_rate_factor(mu_ov) * a * miss_probability(a * mu_ov) /
           (task.block * (task.classes - Scalar(1)));
  }
  Scalar attention_velocity(const Scalar& mu_ov, const Scalar& mu_qk) const {
    const Scalar a = alpha(mu_qk);
    return rates.qk * attention_rate_factor(mu_qk) * a * noise_mass(mu_qk) * mu_ov * miss_probability(a * mu_ov) /
           (task.classes * task.block * task.query_key_singular_value());
  }
  /// The velocity field as `solve` takes it: x = (mu_OV, mu_QK), autonomous.
  template <class State>
  void operator()(const State& x, State& dxdt, const Scalar& /*t*/) const {
    dxdt[0] = output_velocity(x[0], x[1]);
    dxdt[1] = attention_velocity(x[0], x[1]);
  }

  /// The partial derivatives of the field at a state: of which velocity, along which coordinate. With p = E/(E + M - 1)
  /// the label's probability and z the logit gap,
  ///
  ///     d mu_OV' / d mu_OV = u (rho_OV'/rho_OV - p alpha)         u = mu_OV', w = mu_QK'
  ///     d mu_OV' / d mu_QK = u (1-alpha)(1 - p z)                 (written without the divisions)
  ///     d mu_QK' / d mu_OV = w (1 - p z) / mu_OV
  ///     d mu_QK' / d mu_QK = w (rho_QK'/rho_QK + (1-alpha)(1 - p z) - alpha)
  ReducedJacobian<Scalar> jacobian(const Scalar& mu_ov, const Scalar& mu_qk) const requires
      DifferentiableRate<QkRate, Scalar> && DifferentiableRate<OvRate, Scalar> {
    const Scalar a = alpha(mu_qk), noise = noise_mass(mu_qk), z = a * mu_ov, miss = miss_probability(z);
    const Scalar label = detail::logistic(Scalar(task.classes - Scalar(1)), Scalar(-z));
    const Scalar turn = Scalar(1) - label * z;
    const Scalar s = task.score_scale;
    const Scalar output = rates.ov * a * miss / (task.block * (task.classes - Scalar(1)));
    const Scalar output_rate = output_rate_factor(mu_ov);
    const Scalar output_slope = ov.slope(mu_ov, task.output_value_singular_value());
    const Scalar attention =
        rates.qk * a * noise * miss / (task.classes * task.block * task.query_key_singular_value());
    const Scalar attention_rate = attention_rate_factor(mu_qk);
    const Scalar attention_slope = s * qk.slope(Scalar(mu_qk / s), task.query_key_singular_value());
    return {output * (output_slope - output_rate * label * a), output * output_rate * noise * turn,
            attention * attention_rate * turn,
            attention * mu_ov * (attention_slope + attention_rate * (noise * turn - a))};
  }
  /// Writes F'(x) v, the exact derivative of the field along v.
  template <class State>
  void derivative(const State& x, const State& v, State& result) const requires DifferentiableRate<QkRate, Scalar> &&
      DifferentiableRate<OvRate, Scalar> {
    const ReducedJacobian<Scalar> j = jacobian(x[0], x[1]);
    const Scalar v_ov = v[0], v_qk = v[1];  // result may be v
    result[0] = j.ov_ov * v_ov + j.ov_qk * v_qk;
    result[1] = j.qk_ov * v_ov + j.qk_qk * v_qk;
  }

  /// False where the two scalars only approximate the matrix flow: factorized attention with finite noise vocabulary.
  bool is_exact() const {
    using std::isinf;
    return isinf(task.noise_vocabulary) || attention_is_collapsed();
  }
  void validate(const char* function) const {
    task.validate(function);
    rates.validate(function);
    qk.validate(function);
    ov.validate(function);
  }

 private:
  bool attention_is_collapsed() const {
    if constexpr (std::is_same_v<QkRate, FactorProduct>) return qk.factors == 1;
    return std::is_same_v<QkRate, Collapsed>;
  }
};

/// The four parameterizations by name (C collapsed, F factorized; A attention, O output) [Vashisht26].
template <class Scalar>
using Caco = ReducedFlow<Scalar, Collapsed, Collapsed>;
template <class Scalar>
using Cafo = ReducedFlow<Scalar, Collapsed, Balanced>;
template <class Scalar>
using Faco = ReducedFlow<Scalar, Balanced, Collapsed>;
template <class Scalar>
using Fafo = ReducedFlow<Scalar, Balanced, Balanced>;

}  // namespace qkflow
