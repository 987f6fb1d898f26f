// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "qkflow/flow/detail/path_clock.hpp"
#include "qkflow/flow/detail/reduced_path.hpp"
#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/roots.hpp"

namespace qkflow {

/// A point of a trajectory with its time.
template <class Scalar>
struct TimedPoint {
  Scalar t, mu_ov, mu_qk, alpha, loss;
};

/// The trajectory of a ReducedFlow from a start, as explicit formulas [Vashisht26]: the first integral gives mu_QK as a
/// function of mu_OV (first_integral.hpp), a stop is one bracketed root, and the clock is one quadrature
///
///     t(o) = int_{o0}^{o} b (E(s) + M - 1) / (eta_OV rho_OV(s) alpha(s)) ds.
///
/// mu_OV increases along every trajectory, so it serves as the coordinate of the path; the loss decreases. Starts with
/// mu_OV < 0 first pass the turning point mu_OV = 0 (collapsed and unbalanced output) or end there (balanced).
/// States are right to a few hundred epsilon for every admissible parameter, times to a few thousand; the stated
/// ranges are those of tests/flow/extreme_parameters_test.cpp. Nothing allocates except `trajectory`.
///
/// Errors: InvalidArgument for a flow or start that is not admissible (a circuit with a saddle at 0 started there,
/// scores whose (m/n) e^q leaves the range of Scalar), and for stops that the trajectory never reaches.
template <class Scalar, class QkRate = Collapsed, class OvRate = Collapsed>
class ClosedForm {
 public:
  using Flow = ReducedFlow<Scalar, QkRate, OvRate>;
  using Point = ReducedPoint<Scalar>;

  ClosedForm(const Flow& flow, const ReducedState<Scalar>& start)
      : path_((check(flow, start), flow), start), start_gap_(flow.logit_gap(start.mu_ov, start.mu_qk)) {}

  const Flow& flow() const { return path_.flow; }
  Point start() const { return path_.flow.point(path_.start.mu_ov, path_.start.mu_qk); }

  /// The state at which mu_OV has the given value. It must lie on the trajectory: at or above the start, and below 0
  /// where a balanced output circuit started below 0.
  Point at_output(const Scalar& mu_ov) const {
    require_on_trajectory("ClosedForm::at_output", mu_ov);
    return path_.flow.point(mu_ov, path_.step_after(Scalar(mu_ov - path_.start.mu_ov)).score);
  }

  /// The state at which the loss falls to `loss`: alpha(q) o = log((M-1)/(e^loss - 1)), one root.
  Point at_loss(const Scalar& loss) const {
    Scalar passed(0);
    return at_loss(loss, passed);
  }

  /// The states at the given losses, falling ones fastest: each search starts where the last one ended.
  std::vector<Point> at_losses(const std::vector<Scalar>& losses) const {
    std::vector<Point> points;
    points.reserve(losses.size());
    Scalar last = std::numeric_limits<Scalar>::infinity(), passed(0);
    for (const Scalar& loss : losses) {
      if (!(loss <= last)) passed = Scalar(0);
      points.push_back(at_loss(loss, passed));
      last = loss;
    }
    return points;
  }

  /// The first state at which attention puts mass `alpha` on the informative tokens.
  Point at_attention(const Scalar& alpha) const {
    using std::log;
    using std::log1p;
    constexpr const char* name = "ClosedForm::at_attention";
    if (!(alpha > Scalar(0)) || !(alpha < Scalar(1))) throw_invalid(name, "alpha", alpha, "lie between 0 and 1");
    const char* reached = "be reached by the trajectory: mu_qk never takes the score it needs";
    const Scalar score = log(alpha) - log1p(-alpha) + log(path_.flow.task.noise / path_.flow.task.informative);
    if (path_.flow.qk.saddle_at_zero() && !(score * path_.start.mu_qk > Scalar(0)))
      throw_invalid(name, "alpha", alpha, reached);
    const Scalar gain = path_.attention.at(path_.attention.displacement_of_score(score)).rise / path_.ratio;
    const bool falling = path_.start.mu_ov < Scalar(0);
    const bool beyond =
        falling ? gain < path_.output.gain(-path_.start.mu_ov) || (gain > Scalar(0) && path_.stays_below_zero())
                : gain < Scalar(0);
    if (beyond) throw_invalid(name, "alpha", alpha, reached);
    const Scalar delta = falling && gain > Scalar(0) ? path_.output.advance_across(gain) : path_.output.advance(gain);
    return path_.flow.point(Scalar(path_.start.mu_ov + delta), score);
  }

  /// The state at time t >= 0: the clock inverted by Newton's method, whose slope is the velocity itself.
  Point at_time(const Scalar& t) const {
    require_non_negative("ClosedForm::at_time", "t", t);
    typename Clock::Hand hand;
    return Clock(path_).advance(hand, t);
  }

  /// The time at which mu_OV takes the given value. +infinity where it exceeds the range of Scalar:
  /// `log_time_at_output` stays finite.
  Scalar time_at_output(const Scalar& mu_ov) const {
    using std::exp;
    using std::log;
    require_on_trajectory("ClosedForm::time_at_output", mu_ov);
    const typename Clock::ScaledTime time = Clock(path_).integrate_to(Scalar(mu_ov - path_.start.mu_ov));
    if (time.exponent < Scalar(0.9 * detail::log_range<Scalar>())) return time.value * exp(time.exponent);
    return exp(Scalar(log(time.value) + time.exponent));
  }
  Scalar log_time_at_output(const Scalar& mu_ov) const {
    using std::log;
    require_on_trajectory("ClosedForm::log_time_at_output", mu_ov);
    const typename Clock::ScaledTime time = Clock(path_).integrate_to(Scalar(mu_ov - path_.start.mu_ov));
    return log(time.value) + time.exponent;
  }
  /// The time of a state returned by this object.
  Scalar time(const Point& point) const { return time_at_output(point.mu_ov); }

  /// The states at the given times (ascending, from 0), in one pass of the clock.
  std::vector<TimedPoint<Scalar>> trajectory(const std::vector<Scalar>& times) const {
    std::vector<TimedPoint<Scalar>> points;
    points.reserve(times.size());
    const Clock clock(path_);
    typename Clock::Hand hand;
    Scalar last(0);
    for (const Scalar& t : times) {
      require_at_least("ClosedForm::trajectory", "times", t, last);
      last = t;
      const Point p = clock.advance(hand, t);
      points.push_back({t, p.mu_ov, p.mu_qk, p.alpha, p.loss});
    }
    return points;
  }

  /// T(q) - T(q0) - r c0 (S(o) - S(o0)), zero along the exact trajectory: how far a state (from a solver, say) is off.
  Scalar first_integral_residual(const Scalar& mu_ov, const Scalar& mu_qk) const {
    return path_.attention.at(path_.attention.displacement_of_score(mu_qk)).rise -
           path_.ratio * path_.output.gain(Scalar(mu_ov - path_.start.mu_ov));
  }

 private:
  using Path = detail::ReducedPath<Scalar, QkRate, OvRate>;
  using Clock = detail::PathClock<Scalar, QkRate, OvRate>;

  static void check(const Flow& flow, const ReducedState<Scalar>& start) {
    using std::exp;
    constexpr const char* name = "ClosedForm";
    flow.validate(name);
    require_finite(name, "mu_ov0", start.mu_ov);
    require_finite(name, "mu_qk0", start.mu_qk);
    const char* saddle = "not be 0: a factorized circuit started at 0 stays there (a saddle)";
    if (flow.ov.saddle_at_zero() && start.mu_ov == Scalar(0)) throw_invalid(name, "mu_ov0", start.mu_ov, saddle);
    if (flow.qk.saddle_at_zero() && start.mu_qk == Scalar(0)) throw_invalid(name, "mu_qk0", start.mu_qk, saddle);
    const Scalar weight = flow.task.informative / flow.task.noise * exp(start.mu_qk);
    if (!(weight >= std::numeric_limits<Scalar>::min()) || !(weight <= std::numeric_limits<Scalar>::max())) {
      throw_invalid(name, "mu_qk0", start.mu_qk, "keep (m/n) e^mu_qk within the range of the scalar type");
    }
    if constexpr (std::is_same_v<QkRate, FactorProduct>) {
      if (flow.qk.factors > 2 && start.mu_qk < Scalar(0) && start.mu_ov < Scalar(0)) {
        throw_invalid(name, "mu_qk0", start.mu_qk,
                      "be above 0 where mu_ov0 is below 0 and attention has more than two factors");
      }
    }
  }

  void require_on_trajectory(const char* name, const Scalar& mu_ov) const {
    require_at_least(name, "mu_ov", mu_ov, path_.start.mu_ov);
    if (path_.stays_below_zero() && !(mu_ov < Scalar(0))) {
      throw_invalid(name, "mu_ov", mu_ov, "be below 0: the factorized output circuit never crosses it");
    }
  }

  /// at_loss, knowing that the attention circuit has passed the displacement `passed` before (0 if nothing is known);
  /// `passed` moves on to where it is then.
  Point at_loss(const Scalar& loss, Scalar& passed) const {
    constexpr const char* name = "ClosedForm::at_loss";
    using std::abs;
    require_positive(name, "loss", loss);
    const Scalar gap = logit_gap_at_loss(path_.flow.task.classes, loss);
    if (gap <= start_gap_) {
      if (start_gap_ - gap <= Scalar(8) * std::numeric_limits<Scalar>::epsilon() * abs(start_gap_)) return start();
      throw_invalid(name, "loss", loss, "be at most the loss at the start, " + to_text(start().loss));
    }
    if (gap >= Scalar(0) && path_.stays_below_zero()) {
      throw_invalid(name, "loss", loss,
                    "exceed log(classes): a factorized output circuit started at mu_ov < 0 never crosses 0");
    }
    // A path that starts below 0 comes back on its own trace: at mu_OV = -o0 the score is that of the start again.
    const bool inside = abs(gap) < abs(start_gap_) && path_.start.mu_ov < Scalar(0);
    return inside ? between_signs(gap, loss) : rising(gap, loss, passed);
  }

  Point assemble(const Scalar& mu_ov, const AttentionStep<Scalar>& step, const Scalar& loss) const {
    return {mu_ov, step.score, step.odds / (Scalar(1) + step.odds), loss};
  }

  /// |gap| below the start's, start below 0: mu_OV lies between o0 and -o0. The unknown is |mu_OV|; close to o0, where
  /// that loses the digits of the advance, the displacement of the attention circuit.
  Point between_signs(const Scalar& gap, const Scalar& loss) const {
    using std::abs;
    using std::log;
    const Scalar size = -path_.start.mu_ov;
    const Scalar sign = gap < Scalar(0) ? Scalar(-1) : Scalar(1);
    if (gap == Scalar(0)) return assemble(Scalar(0), path_.step_after(size), loss);
    const Scalar target = log(abs(gap));
    const auto excess = [&](const Scalar& x) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = path_.step_after(Scalar(size - x));
      return {Scalar(log(x * step.odds / (Scalar(1) + step.odds)) - target),
              Scalar(Scalar(1) / x + path_.direction(step, x) / (Scalar(1) + step.odds))};
    };
    const Scalar low = abs(gap) / path_.flow.alpha(path_.start.mu_qk);  // attention only falls on the way to 0
    const Scalar x = low < size ? increasing_root(excess, low, size, low) : size;
    if (x < size / Scalar(2)) return assemble(Scalar(sign * x), path_.step_after(Scalar(size - x)), loss);
    const auto shortfall = [&](const Scalar& fall) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = path_.attention.at(Scalar(-fall));
      const Scalar here = size - path_.output.advance(Scalar(step.rise * path_.inverse_ratio));
      const Scalar slope = step.score_slope / (Scalar(1) + step.odds) + path_.output_slope(step, here);
      return {Scalar(target - log(here * step.odds / (Scalar(1) + step.odds))), slope};
    };
    const Scalar guess = -path_.attention.displacement(Scalar(path_.ratio * path_.output.gain(Scalar(size - x))));
    const Scalar bottom =
        -path_.attention.displacement(Scalar(path_.ratio * path_.output.gain(Scalar(size - size / Scalar(4)))));
    const AttentionStep<Scalar> step =
        path_.attention.at(Scalar(-increasing_root(shortfall, Scalar(0), bottom, guess)));
    return assemble(Scalar(sign * (size - path_.output.advance(Scalar(step.rise * path_.inverse_ratio)))), step, loss);
  }

  /// gap > 0 beyond |o0|: the unknown is the displacement v of the attention circuit, in which both circuits are
  /// explicit; log z(v) is increasing (and concave from o0 = 0, so that Newton cannot overshoot).
  Point rising(const Scalar& gap, const Scalar& loss, Scalar& passed) const {
    using std::abs;
    using std::exp;
    using std::log;
    const Scalar size = abs(path_.start.mu_ov);
    const auto output = [&](const AttentionStep<Scalar>& step) -> Scalar {
      return path_.start.mu_ov + path_.output.advance_across(Scalar(step.rise * path_.inverse_ratio));
    };
    const Scalar inverse_gap = Scalar(1) / gap;
    const auto excess = [&](const Scalar& v) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = path_.attention.at(v);
      const Scalar o = output(step);
      const Scalar miss = Scalar(1) / (Scalar(1) + step.odds);
      return {Scalar(log(step.odds * miss * o * inverse_gap)),
              Scalar(miss * step.score_slope + path_.output_slope(step, o))};
    };
    Scalar low = passed;
    if (!(low > Scalar(0))) {
      const Scalar nearest = gap > size ? gap : size;  // attention is at most 1
      const Scalar rise = path_.ratio * path_.output.gain(Scalar(nearest - path_.start.mu_ov));
      const Scalar bound = std::numeric_limits<Scalar>::max() / Scalar(16);
      low = path_.attention.least_displacement(rise < bound ? rise : bound);
    }
    const Scalar highest = path_.attention.highest();
    Scalar guess = low;
    if (low > Scalar(0)) {
      // Where log z grows slower than v (the circuit has hardly moved) it is nearly straight in log v.
      const ValueAndSlope<Scalar> f = excess(low);
      const Scalar order = low * f.slope;
      const Scalar step = f.value < Scalar(0) ? Scalar(-f.value / order) : Scalar(0);
      guess = order < Scalar(1) ? Scalar(low * exp(step < Scalar(40) ? step : Scalar(40))) : Scalar(low + step * low);
      if (!(guess < highest)) guess = low;
    }
    const Scalar v = increasing_root(excess, low, highest, guess);
    passed = v * (Scalar(1) - Scalar(64) * std::numeric_limits<Scalar>::epsilon());
    const AttentionStep<Scalar> step = path_.attention.at(v);
    return assemble(output(step), step, loss);
  }

  Path path_;
  Scalar start_gap_;
};

template <class Scalar, class QkRate, class OvRate>
ClosedForm(const ReducedFlow<Scalar, QkRate, OvRate>&, const ReducedState<Scalar>&)
    -> ClosedForm<Scalar, QkRate, OvRate>;

}  // namespace qkflow
