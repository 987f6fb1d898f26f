// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

#include "qkflow/flow/rate_factor.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// The reduced flow in the coordinates that training steps: x = (x_OV, x_QK), for a collapsed circuit its mu, for a
/// product of N balanced factors the singular value w each factor has on the line, sigma |mu| = w^N (mu the weight, the
/// score over s, for QK; the sign of mu is that of the start):
///
///     d mu/dt = v                        collapsed
///     d w/dt  = +- sigma v w^(N-1)       N factors         v: the collapsed circuit's velocity of the weight
///
/// In continuous time it is ReducedFlow over again. But gradient descent of the matrices, from an aligned start on the
/// block task, is Euler's method *here*, to the last digit (compare/descend.hpp), while Euler's method on ReducedFlow
/// differs from it by O(h): a square stepped is not the step of a square. So this is training at any M and b for the
/// price of two numbers. Exact where ReducedFlow is.
///
/// For Collapsed, Balanced and FactorProduct circuits; unbalanced factors conserve their imbalance only in the flow.
template <class Scalar>
class FactorFlow {
 public:
  using scalar_type = Scalar;
  using State = Eigen::Matrix<Scalar, 2, 1>;

  /// Throws InvalidArgument for a flow that is not admissible or a start that is not finite.
  template <class QkRate, class OvRate>
  FactorFlow(const ReducedFlow<Scalar, QkRate, OvRate>& flow, const ReducedState<Scalar>& start)
      : collapsed_{flow.task, flow.rates, {}, {}}, qk_factors_(factors(flow.qk)), ov_factors_(factors(flow.ov)) {
    flow.validate("FactorFlow");
    require_finite("FactorFlow", "mu_ov", start.mu_ov);
    require_finite("FactorFlow", "mu_qk", start.mu_qk);
    qk_sign_ = start.mu_qk < Scalar(0) ? Scalar(-1) : Scalar(1);
    ov_sign_ = start.mu_ov < Scalar(0) ? Scalar(-1) : Scalar(1);
    start_[0] = root(start.mu_ov, sigma_ov(), ov_factors_);
    start_[1] = root(Scalar(start.mu_qk / scale()), sigma_qk(), qk_factors_);
    if (qk_factors_ == 1) start_[1] = start.mu_qk;
  }

  const State& start() const { return start_; }
  /// The place on the line of a state.
  ReducedState<Scalar> reduced(const State& x) const {
    return {weight(x[0], sigma_ov(), ov_factors_, ov_sign_),
            qk_factors_ == 1 ? Scalar(x[1]) : Scalar(scale() * weight(x[1], sigma_qk(), qk_factors_, qk_sign_))};
  }
  ReducedPoint<Scalar> point(const State& x) const {
    const auto mu = reduced(x);
    return collapsed_.point(mu.mu_ov, mu.mu_qk);
  }
  Scalar loss(const State& x) const {
    const auto mu = reduced(x);
    return collapsed_.loss(mu.mu_ov, mu.mu_qk);
  }

  void operator()(const State& x, State& dxdt, const Scalar& /*t*/) const {
    const auto mu = reduced(x);
    dxdt[0] = collapsed_.output_velocity(mu.mu_ov, mu.mu_qk) * pull(x[0], sigma_ov(), ov_factors_, ov_sign_);
    dxdt[1] = collapsed_.attention_velocity(mu.mu_ov, mu.mu_qk) * pull_qk(x[1]);
  }

  /// The partial derivatives of this field.
  ReducedJacobian<Scalar> jacobian(const State& x) const {
    const auto mu = reduced(x);
    const ReducedJacobian<Scalar> j = collapsed_.jacobian(mu.mu_ov, mu.mu_qk);
    const Scalar pull_ov = pull(x[0], sigma_ov(), ov_factors_, ov_sign_), pull_attention = pull_qk(x[1]);
    const Scalar ov_slope = slope(x[0], sigma_ov(), ov_factors_, ov_sign_);
    const Scalar qk_slope =
        qk_factors_ == 1 ? Scalar(1) : Scalar(scale() * slope(x[1], sigma_qk(), qk_factors_, qk_sign_));
    const Scalar u = collapsed_.output_velocity(mu.mu_ov, mu.mu_qk);
    const Scalar w = collapsed_.attention_velocity(mu.mu_ov, mu.mu_qk);
    Scalar qk_turn = pull_turn(x[1], sigma_qk(), qk_factors_, qk_sign_);
    if (qk_factors_ > 1) qk_turn /= scale();
    return {j.ov_ov * ov_slope * pull_ov + u * pull_turn(x[0], sigma_ov(), ov_factors_, ov_sign_),
            j.ov_qk * qk_slope * pull_ov, j.qk_ov * ov_slope * pull_attention,
            j.qk_qk * qk_slope * pull_attention + w * qk_turn};
  }
  /// Writes F'(x) v.
  void derivative(const State& x, const State& v, State& result) const {
    const ReducedJacobian<Scalar> j = jacobian(x);
    result = State(j.ov_ov * v[0] + j.ov_qk * v[1], j.qk_ov * v[0] + j.qk_qk * v[1]);
  }

  /// The squared length, over all entries of all matrices, of a unit step of each coordinate: a distance of states is
  /// sqrt(sum_i metric_i dx_i^2) as a distance of parameters.
  State metric() const {
    const Scalar& classes = collapsed_.task.classes;
    const Scalar ov = ov_factors_ == 1 ? Scalar((classes - Scalar(1)) * collapsed_.task.block)
                                       : Scalar(Scalar(ov_factors_) * (classes - Scalar(1)));
    // |D_QK|^2 = M sigma b: with null noise M b^2.
    const Scalar qk = qk_factors_ == 1 ? Scalar(classes * sigma_qk() * collapsed_.task.block / (scale() * scale()))
                                       : Scalar(Scalar(qk_factors_) * classes);
    return {ov, qk};
  }

 private:
  static int factors(const Collapsed& /*rate*/) { return 1; }
  static int factors(const Balanced& /*rate*/) { return 2; }
  static int factors(const FactorProduct& rate) { return rate.factors; }

  const Scalar& scale() const { return collapsed_.task.score_scale; }
  Scalar sigma_ov() const { return collapsed_.task.output_value_singular_value(); }
  Scalar sigma_qk() const { return collapsed_.task.query_key_singular_value(); }

  static Scalar root(const Scalar& mu, const Scalar& sigma, int n) {
    using std::abs;
    using std::pow;
    if (n == 1) return mu;
    return mu == Scalar(0) ? Scalar(0) : Scalar(pow(Scalar(sigma * abs(mu)), Scalar(Scalar(1) / Scalar(n))));
  }
  static Scalar power(const Scalar& x, int n) {
    Scalar result(1);
    for (int i = 0; i < n; ++i) result *= x;
    return result;
  }
  static Scalar weight(const Scalar& x, const Scalar& sigma, int n, const Scalar& sign) {
    return n == 1 ? x : Scalar(sign * power(x, n) / sigma);
  }
  /// d weight / dx
  static Scalar slope(const Scalar& x, const Scalar& sigma, int n, const Scalar& sign) {
    return n == 1 ? Scalar(1) : Scalar(sign * Scalar(n) * power(x, n - 1) / sigma);
  }
  /// dx/dt over the collapsed velocity of the weight, and its derivative.
  static Scalar pull(const Scalar& x, const Scalar& sigma, int n, const Scalar& sign) {
    return n == 1 ? Scalar(1) : Scalar(sign * sigma * power(x, n - 1));
  }
  static Scalar pull_turn(const Scalar& x, const Scalar& sigma, int n, const Scalar& sign) {
    return n == 1 ? Scalar(0) : Scalar(sign * sigma * Scalar(n - 1) * power(x, n - 2));
  }
  /// A collapsed QK circuit has the score as its coordinate, factors have the weight, score / s.
  Scalar pull_qk(const Scalar& x) const {
    return qk_factors_ == 1 ? Scalar(1) : Scalar(pull(x, sigma_qk(), qk_factors_, qk_sign_) / scale());
  }

  ReducedFlow<Scalar> collapsed_;
  int qk_factors_, ov_factors_;
  Scalar qk_sign_, ov_sign_;
  State start_;
};

template <class Scalar, class QkRate, class OvRate>
FactorFlow(const ReducedFlow<Scalar, QkRate, OvRate>&, const ReducedState<Scalar>&) -> FactorFlow<Scalar>;

}  // namespace qkflow
