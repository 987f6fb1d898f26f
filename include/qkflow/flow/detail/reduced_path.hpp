// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/reduced_flow.hpp"

namespace qkflow::detail {

/// The trajectory as a curve: the flow, its start, and both sides of the first integral, with mu_OV = o0 + delta as the
/// coordinate. ClosedForm asks it where, PathClock when.
template <class Scalar, class QkRate, class OvRate>
struct ReducedPath {
  using Flow = ReducedFlow<Scalar, QkRate, OvRate>;

  ReducedPath(const Flow& given, const ReducedState<Scalar>& from)
      : flow(given),
        start(from),
        ratio(given.rates.ratio() * given.task.coupling()),
        inverse_ratio(Scalar(1) / ratio),
        output(given.ov, given.task.output_value_singular_value(), from.mu_ov),
        attention(given.task, given.qk, from.mu_qk) {}

  /// The attention circuit where mu_OV = o0 + delta.
  AttentionStep<Scalar> step_after(const Scalar& delta) const {
    return attention.at(attention.displacement(Scalar(ratio * output.gain(delta))));
  }
  /// d mu_QK / d mu_OV
  Scalar direction(const AttentionStep<Scalar>& step, const Scalar& o) const {
    return ratio * step.score_slope / step.rise_slope * o / flow.output_rate_factor(o);
  }
  /// d log|o| / dv
  Scalar output_slope(const AttentionStep<Scalar>& step, const Scalar& o) const {
    return step.rise_slope * inverse_ratio * flow.output_rate_factor(o) / (o * o);
  }
  /// True where mu_OV rises towards 0 and never gets there.
  bool stays_below_zero() const { return flow.ov.saddle_at_zero() && start.mu_ov < Scalar(0); }

  Flow flow;
  ReducedState<Scalar> start;
  Scalar ratio;          ///< r c0
  Scalar inverse_ratio;  ///< 1 / (r c0)
  OutputSide<Scalar, OvRate> output;
  AttentionSide<Scalar, QkRate> attention;
};

}  // namespace qkflow::detail
