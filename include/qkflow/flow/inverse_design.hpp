// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// "How much faster must QK learn?": the ratio r = eta_QK / eta_OV whose trajectory passes through attention mass
/// `alpha` at loss `loss`, explicit in every parameterization:
///
///     z = log((M-1)/(e^loss - 1)),  o = z / alpha,  q = log(alpha n / (m (1 - alpha))),
///     r = (T(q) - T(q0)) / (c0 (S(o) - S(o0)))            (collapsed from zero: 2 (g(q) - g(0)) / (c0 o^2))
///
/// The learning rates of `flow` do not enter. Unique where it exists: a larger r gives more attention at the same loss.
/// Errors: InvalidArgument for alpha outside (0, 1), a loss that is not below the start's, and targets that no ratio
/// reaches: attention not above the start's (from mu_OV >= 0), or beyond a saddle.
template <class Scalar, class QkRate, class OvRate>
Scalar ratio_for_attention(const ReducedFlow<Scalar, QkRate, OvRate>& flow, const ReducedState<Scalar>& start,
                           const Scalar& alpha, const Scalar& loss) {
  using std::isfinite;
  using std::log;
  using std::log1p;
  constexpr const char* name = "ratio_for_attention";
  flow.task.validate(name);
  flow.qk.validate(name);
  flow.ov.validate(name);
  require_finite(name, "mu_ov0", start.mu_ov);
  require_finite(name, "mu_qk0", start.mu_qk);
  if (!(alpha > Scalar(0)) || !(alpha < Scalar(1))) throw_invalid(name, "alpha", alpha, "lie between 0 and 1");
  require_positive(name, "loss", loss);
  const Scalar gap = logit_gap_at_loss(flow.task.classes, loss);
  if (!(gap > flow.logit_gap(start.mu_ov, start.mu_qk))) {
    throw_invalid(name, "loss", loss,
                  "be below the loss at the start, " + to_text(flow.loss(start.mu_ov, start.mu_qk)));
  }
  const Scalar output = gap / alpha;
  const Scalar score = log(alpha) - log1p(-alpha) + log(flow.task.noise / flow.task.informative);
  if (flow.ov.saddle_at_zero() && !(output * start.mu_ov > Scalar(0))) {
    throw_invalid(
        name, "mu_ov0", start.mu_ov,
        "have the sign of the target mu_ov = " + to_text(output) + ": a factorized output circuit never crosses 0");
  }
  if (flow.qk.saddle_at_zero() && !(score * start.mu_qk > Scalar(0))) {
    throw_invalid(
        name, "mu_qk0", start.mu_qk,
        "have the sign of the target score = " + to_text(score) + ": a factorized attention circuit never crosses 0");
  }
  const AttentionSide<Scalar, QkRate> attention(flow.task, flow.qk, start.mu_qk);
  const OutputSide<Scalar, OvRate> side(flow.ov, flow.task.output_value_singular_value(), start.mu_ov);
  const Scalar rise = attention.at(attention.displacement_of_score(score)).rise;
  const Scalar gain = side.gain(Scalar(output - start.mu_ov));
  const Scalar ratio = rise / (flow.task.coupling() * gain);
  if (!(output > start.mu_ov) || !(ratio > Scalar(0)) || !isfinite(ratio)) {
    throw_invalid(
        name, "alpha", alpha,
        "be attention that some ratio reaches at this loss; the start has " + to_text(flow.alpha(start.mu_qk)));
  }
  return ratio;
}

}  // namespace qkflow
