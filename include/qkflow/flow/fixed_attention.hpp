// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/flow/first_integral.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// Attention held at mass alpha, only the output circuit learns [Vashisht26]:
///
///     d mu/dt = eta rho(mu) alpha / (b (E + M - 1)),  E = e^z,  z = alpha mu,  loss = log(1 + (M-1) e^{-z})
///
/// The clock is the integral of the first integral's attention side, read with other names (odds -> E / (M-1), score
/// scale -> alpha, singular value -> sqrt(b)), so that time is explicit and its inverse one function call:
///
///     collapsed   e^z + (M-1) z            grows by eta alpha^2 t / b           (inverse: Wright omega)
///     balanced    Ei(z) + (M-1) log|mu|    grows by 2 eta alpha t / sqrt(b)     (inverse: a bracketed root)
///
/// and so for the other rate factors. Right to a few hundred epsilon. Does not allocate.
template <class Scalar, class OvRate = Collapsed>
class FixedAttention {
 public:
  struct Options {
    Scalar classes = 20;       ///< M, at least 2
    Scalar block = 50;         ///< b, above 0
    Scalar alpha = 0.5;        ///< attention mass on informative tokens, in (0, 1]
    Scalar learning_rate = 1;  ///< eta_OV, above 0
    Scalar mu_ov0 = 0;         ///< start; not 0 for a balanced circuit
    OvRate rate{};
  };

  explicit FixedAttention(const Options& options)
      : options_((check(options), options)),
        pace_(options.learning_rate / (options.block * (options.classes - Scalar(1)))),
        clock_(equivalent_task(options), options.rate, Scalar(options.alpha * options.mu_ov0)) {}

  /// z at time t >= 0.
  Scalar logit_gap(const Scalar& t) const {
    require_non_negative("FixedAttention::logit_gap", "t", t);
    return clock_.at(clock_.displacement(Scalar(pace_ * t))).score;
  }
  /// mu_OV at time t >= 0.
  Scalar output(const Scalar& t) const { return logit_gap(t) / options_.alpha; }
  /// Cross entropy at time t >= 0.
  Scalar loss(const Scalar& t) const { return loss_at_gap(logit_gap(t)); }
  /// The time at which the loss falls to `loss`.
  Scalar time_at_loss(const Scalar& loss) const {
    constexpr const char* name = "FixedAttention::time_at_loss";
    require_positive(name, "loss", loss);
    const Scalar start = options_.alpha * options_.mu_ov0;
    const Scalar gap = logit_gap_at_loss(options_.classes, loss);
    if (gap < start) {
      throw_invalid(name, "loss", loss, "be at most the loss at the start, " + to_text(loss_at_gap(start)));
    }
    if (options_.rate.saddle_at_zero() && !(gap * start > Scalar(0))) {
      throw_invalid(name, "loss", loss, "exceed log(classes): a factorized circuit never crosses 0");
    }
    return clock_.at(clock_.displacement_of_score(gap)).rise / pace_;
  }
  /// -dL/dalpha at fixed weights, the marginal benefit of attention: mu (M-1) / (E + M - 1).
  Scalar marginal_benefit(const Scalar& t) const {
    using std::exp;
    const Scalar z = logit_gap(t);
    return z / options_.alpha / (Scalar(1) + exp(z) / (options_.classes - Scalar(1)));
  }
  /// (L(alpha) - L(alpha + delta)) / delta at fixed weights, the finite difference the published figure shows.
  Scalar marginal_benefit(const Scalar& t, const Scalar& delta) const {
    require_positive("FixedAttention::marginal_benefit", "delta", delta);
    const Scalar z = logit_gap(t);
    return (loss_at_gap(z) - loss_at_gap(Scalar(z + delta * z / options_.alpha))) / delta;
  }

 private:
  static void check(const Options& o) {
    using std::exp;
    constexpr const char* name = "FixedAttention";
    require_at_least(name, "classes", o.classes, Scalar(2));
    require_positive(name, "block", o.block);
    if (!(o.alpha > Scalar(0)) || !(o.alpha <= Scalar(1))) {
      throw_invalid(name, "alpha", o.alpha, "lie above 0 and be at most 1");
    }
    require_positive(name, "learning_rate", o.learning_rate);
    require_finite(name, "mu_ov0", o.mu_ov0);
    o.rate.validate(name);
    if (o.rate.saddle_at_zero() && o.mu_ov0 == Scalar(0)) {
      throw_invalid(name, "mu_ov0", o.mu_ov0, "not be 0: a factorized circuit started at 0 stays there (a saddle)");
    }
    const Scalar odds = exp(Scalar(o.alpha * o.mu_ov0)) / (o.classes - Scalar(1));
    if (!(odds >= std::numeric_limits<Scalar>::min()) || !(odds <= std::numeric_limits<Scalar>::max())) {
      throw_invalid(name, "mu_ov0", o.mu_ov0, "keep e^(alpha mu_ov) within the range of the scalar type");
    }
  }
  /// The block task whose attention side is this clock: odds = e^z / (M - 1), s = alpha, sigma = sqrt(b).
  static BlockTask<Scalar> equivalent_task(const Options& o) {
    using std::sqrt;
    BlockTask<Scalar> task;
    task.informative = Scalar(1);
    task.noise = o.classes - Scalar(1);
    task.score_scale = o.alpha;
    task.block = sqrt(o.block);
    return task;
  }
  Scalar loss_at_gap(const Scalar& z) const {
    using std::log;
    return softplus(Scalar(log(options_.classes - Scalar(1)) - z));
  }

  Options options_;
  Scalar pace_;
  AttentionSide<Scalar, OvRate> clock_;
};

}  // namespace qkflow
