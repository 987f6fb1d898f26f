// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/roots.hpp"

namespace qkflow {

/// Late-time laws of the reduced flow. As t -> infinity attention goes to 1 and the loss to 0, slowly:
///
///     e^{mu_OV} / rho_OV(mu_OV)  ~  eta_OV t / b                            (the clock is dominated by its end)
///     loss                       ~  (M-1) b / (eta_OV rho_OV(mu_OV) t)      (collapsed: exactly like 1/t)
///     (m/n) e^{mu_QK} / (s^2 rho_QK(mu_QK))  ~  r c0 S(mu_OV),   1 - alpha ~ (n/m) e^{-mu_QK}
///
/// with S(o) = o^2/2 (collapsed), o / (2 sqrt(b)) (balanced), and so on. Relative errors fall like 1 / log t; the loss
/// law is the leading one of these. Collapsed-collapsed: mu_OV ~ log(eta t / b), mu_QK ~ log(r c0 n / (2 m)) + 2 log
/// mu_OV, 1 - alpha ~ 2 / (r c0 mu_OV^2).
template <class Scalar>
struct LateTime {
  Scalar mu_ov, mu_qk, noise_mass, loss;
};

/// The late-time laws evaluated at time t. Requires mu_OV of the law above 1 (eta_OV t >> b): an earlier t is refused.
/// `ClosedForm::at_time` is the exact state.
template <class Scalar, class QkRate, class OvRate>
LateTime<Scalar> late_time(const ReducedFlow<Scalar, QkRate, OvRate>& flow, const Scalar& t) {
  using std::exp;
  using std::log;
  constexpr const char* name = "late_time";
  flow.validate(name);
  require_positive(name, "t", t);
  const Scalar size = log(flow.rates.ov) + log(t) - log(flow.task.block);
  // o - log rho(o) grows for o > 2, since rho grows no faster than o^2.
  const Scalar low(1);
  const auto excess = [&](const Scalar& o) -> Scalar { return o - log(flow.output_rate_factor(o)) - size; };
  const Scalar from = flow.ov.saddle_at_zero() ? Scalar(2) : low;
  if (!(excess(from) < Scalar(0))) throw_invalid(name, "t", t, "be late: eta_OV t must exceed the block size by far");
  Scalar to = size + Scalar(2);
  while (excess(to) < Scalar(0)) to *= Scalar(2);
  const Scalar mu_ov = bracketed_root(excess, from, to);
  const Scalar rate = flow.output_rate_factor(mu_ov);

  // S(o) with S(0) = 0, as the gain from a start that does not count any more.
  const Scalar tiny = mu_ov * std::numeric_limits<Scalar>::epsilon();
  const OutputSide<Scalar, OvRate> side(flow.ov, flow.task.output_value_singular_value(), tiny);
  const Scalar progress = flow.rates.ratio() * flow.task.coupling() * side.gain(mu_ov);
  const Scalar target = log(progress * flow.task.noise / flow.task.informative);
  const auto shortfall = [&](const Scalar& q) -> Scalar { return q - log(flow.attention_rate_factor(q)) - target; };
  const Scalar first = flow.qk.saddle_at_zero() ? Scalar(2) : Scalar(target - Scalar(1000));
  if (!(shortfall(first) < Scalar(0))) throw_invalid(name, "t", t, "be late enough for attention to have sharpened");
  Scalar last = target > Scalar(0) ? Scalar(target + Scalar(2)) : Scalar(2);
  while (shortfall(last) < Scalar(0)) last *= Scalar(2);
  const Scalar mu_qk = bracketed_root(shortfall, first, last);
  return {mu_ov, mu_qk, flow.task.noise / flow.task.informative * exp(-mu_qk),
          (flow.task.classes - Scalar(1)) * flow.task.block / (flow.rates.ov * rate * t)};
}

}  // namespace qkflow
