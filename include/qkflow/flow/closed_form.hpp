// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "qkflow/flow/first_integral.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/quadrature.hpp"
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
      : flow_((check(flow, start), flow)),
        start_(start),
        ratio_(flow.rates.ratio() * flow.task.coupling()),
        output_(flow.ov, flow.task.output_value_singular_value()),
        attention_(flow.task, flow.qk, start.mu_qk) {}

  const Flow& flow() const { return flow_; }
  Point start() const { return flow_.point(start_.mu_ov, start_.mu_qk); }

  /// mu_QK at a given mu_OV >= the start's.
  Scalar score_at_output(const Scalar& mu_ov) const {
    using std::abs;
    const Scalar rise = ratio_ * output_.gain(abs(start_.mu_ov), abs(mu_ov));
    return attention_.at(attention_.displacement(rise)).score;
  }

  /// The state at which mu_OV has the given value. It must lie on the trajectory: at or above the start, and below 0
  /// where a balanced output circuit started below 0.
  Point at_output(const Scalar& mu_ov) const {
    require_on_trajectory("ClosedForm::at_output", mu_ov);
    return flow_.point(mu_ov, score_at_output(mu_ov));
  }

  /// The state at which the loss falls to `loss`: alpha(q) o = log((M-1)/(e^loss - 1)), one root.
  Point at_loss(const Scalar& loss) const {
    constexpr const char* name = "ClosedForm::at_loss";
    require_positive(name, "loss", loss);
    const Scalar gap = logit_gap_at_loss(flow_.task.classes, loss);
    const Scalar start_gap = flow_.logit_gap(start_.mu_ov, start_.mu_qk);
    const Scalar slack = Scalar(8) * std::numeric_limits<Scalar>::epsilon() * (start_gap < 0 ? -start_gap : start_gap);
    if (gap <= start_gap) {
      if (gap >= start_gap - slack) return start();
      throw_invalid(name, "loss", loss, "be at most the loss at the start, " + to_text(start().loss));
    }
    if (gap >= Scalar(0) && stays_below_zero()) {
      throw_invalid(name, "loss", loss,
                    "exceed log(classes): a factorized output circuit started at mu_ov < 0 never crosses 0");
    }
    if (gap < Scalar(0)) return falling_to_gap(gap);
    if (start_.mu_ov >= Scalar(0)) return rising_to_gap(attention_, start_.mu_ov, gap);
    // Past the turning point the path is the one that starts there.
    const Scalar turn = score_at_output(Scalar(0));
    if (gap == Scalar(0)) return flow_.point(Scalar(0), turn);
    return rising_to_gap(AttentionSide<Scalar, QkRate>(flow_.task, flow_.qk, turn), Scalar(0), gap);
  }

  /// The first state at which attention puts mass `alpha` on the informative tokens.
  Point at_attention(const Scalar& alpha) const {
    using std::abs;
    using std::log;
    using std::log1p;
    constexpr const char* name = "ClosedForm::at_attention";
    if (!(alpha > Scalar(0)) || !(alpha < Scalar(1))) throw_invalid(name, "alpha", alpha, "lie between 0 and 1");
    const Scalar score = log(alpha) - log1p(-alpha) + log(flow_.task.noise / flow_.task.informative);
    const char* unreachable = "be reached by the trajectory: mu_qk never takes the score it needs";
    if (flow_.qk.saddle_at_zero() && !(score * start_.mu_qk > Scalar(0))) {
      throw_invalid(name, "alpha", alpha, unreachable);
    }
    const Scalar v = attention_.displacement_of_score(score);
    const Scalar gain = attention_.at(v).rise / ratio_;
    const Scalar x0 = abs(start_.mu_ov);
    const bool falling = start_.mu_ov < Scalar(0);
    const bool beyond =
        falling ? gain < output_.gain(x0, Scalar(0)) || (gain > Scalar(0) && stays_below_zero()) : gain < Scalar(0);
    if (beyond) throw_invalid(name, "alpha", alpha, unreachable);
    const Scalar x = output_.after(x0, gain);
    return flow_.point(falling && gain <= Scalar(0) ? Scalar(-x) : x, score);
  }

  /// The state at time t >= 0: the clock inverted by Newton's method, whose slope is the velocity itself.
  Point at_time(const Scalar& t) const {
    require_non_negative("ClosedForm::at_time", "t", t);
    Clock clock = start_clock();
    return advance(clock, t);
  }

  /// The time at which mu_OV takes the given value. +infinity where it exceeds the range of Scalar:
  /// `log_time_at_output` stays finite.
  Scalar time_at_output(const Scalar& mu_ov) const {
    using std::exp;
    require_on_trajectory("ClosedForm::time_at_output", mu_ov);
    const ScaledTime time = integrate_to(mu_ov);
    if (time.exponent < Scalar(0.6) * Scalar(std::numeric_limits<Scalar>::max_exponent)) {
      return time.value * exp(time.exponent);
    }
    using std::log;
    return exp(Scalar(log(time.value) + time.exponent));
  }
  Scalar log_time_at_output(const Scalar& mu_ov) const {
    using std::log;
    require_on_trajectory("ClosedForm::log_time_at_output", mu_ov);
    const ScaledTime time = integrate_to(mu_ov);
    return log(time.value) + time.exponent;
  }
  /// The time of a state returned by this object.
  Scalar time(const Point& point) const { return time_at_output(point.mu_ov); }

  /// The states at the given times (ascending, from 0), in one pass of the clock.
  std::vector<TimedPoint<Scalar>> trajectory(const std::vector<Scalar>& times) const {
    constexpr const char* name = "ClosedForm::trajectory";
    std::vector<TimedPoint<Scalar>> points;
    points.reserve(times.size());
    Clock clock = start_clock();
    Scalar last(0);
    for (const Scalar& t : times) {
      require_at_least(name, "times", t, last);
      last = t;
      const Point p = advance(clock, t);
      points.push_back({t, p.mu_ov, p.mu_qk, p.alpha, p.loss});
    }
    return points;
  }

  /// T(q) - T(q0) - r c0 (S(o) - S(o0)), zero along the exact trajectory: how far a state (from a solver, say) is off.
  Scalar first_integral_residual(const Scalar& mu_ov, const Scalar& mu_qk) const {
    using std::abs;
    return attention_.at(attention_.displacement_of_score(mu_qk)).rise -
           ratio_ * output_.gain(abs(start_.mu_ov), abs(mu_ov));
  }

 private:
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

  /// True where mu_OV rises towards 0 and never gets there.
  bool stays_below_zero() const { return flow_.ov.saddle_at_zero() && start_.mu_ov < Scalar(0); }

  void require_on_trajectory(const char* name, const Scalar& mu_ov) const {
    require_at_least(name, "mu_ov", mu_ov, start_.mu_ov);
    if (stays_below_zero() && !(mu_ov < Scalar(0))) {
      throw_invalid(name, "mu_ov", mu_ov, "be below 0: the factorized output circuit never crosses it");
    }
  }

  /// gap < 0: mu_OV < 0 rises towards 0 while mu_QK falls. The unknown is |mu_OV|, in logarithms.
  Point falling_to_gap(const Scalar& gap) const {
    using std::exp;
    using std::log;
    const Scalar target = log(-gap);
    const Scalar high = -start_.mu_ov;
    const Scalar low = -gap / flow_.alpha(start_.mu_qk);  // attention only falls on the way
    const auto excess = [&](const Scalar& x) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = attention_.at(attention_.displacement(ratio_ * output_.gain(high, x)));
      const Scalar alpha = step.odds / (Scalar(1) + step.odds);
      const Scalar score_by_output = ratio_ * step.score_slope / step.rise_slope * x / flow_.output_rate_factor(x);
      return {Scalar(log(alpha * x) - target), Scalar(Scalar(1) / x + score_by_output / (Scalar(1) + step.odds))};
    };
    const Scalar x = increasing_root(excess, low < high ? low : high, high, low);
    return flow_.point(Scalar(-x), score_at_output(Scalar(-x)));
  }

  /// gap > 0, on a path that starts at x0 >= 0: the unknown is the displacement v of the attention circuit, in which
  /// both circuits are explicit; log z(v) is increasing (and concave from x0 = 0, so that Newton cannot overshoot).
  Point rising_to_gap(const AttentionSide<Scalar, QkRate>& attention, const Scalar& x0, const Scalar& gap) const {
    using std::log;
    const Scalar alpha0 = attention.at(Scalar(0)).odds / (Scalar(1) + attention.at(Scalar(0)).odds);
    const Scalar nearest = gap > x0 ? gap : x0;  // attention is at most 1 ...
    const Scalar farthest = gap / alpha0;        // ... and at least what it was
    const Scalar low = attention.displacement(bounded_rise(x0, nearest));
    const Scalar high = attention.displacement(bounded_rise(x0, farthest));
    const Scalar target = log(gap);
    Scalar alpha, output;
    const auto evaluate = [&](const Scalar& v) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = attention.at(v);
      const Scalar miss = Scalar(1) / (Scalar(1) + step.odds);
      alpha = step.odds * miss;
      output = output_.after(x0, step.rise / ratio_);
      const Scalar output_slope =
          step.rise_slope / ratio_ * flow_.output_rate_factor(output) / (output * output);  // d log o / dv
      return {Scalar(log(alpha * output) - target), Scalar(miss * step.score_slope + output_slope)};
    };
    const Scalar v = increasing_root(evaluate, low, high, low);
    const AttentionStep<Scalar> step = attention.at(v);
    output = output_.after(x0, step.rise / ratio_);
    return flow_.point(output, step.score);
  }

  /// r c0 (S(x) - S(x0)), kept within the range of Scalar.
  Scalar bounded_rise(const Scalar& x0, const Scalar& x) const {
    const Scalar rise = ratio_ * output_.gain(x0, x);
    const Scalar bound = std::numeric_limits<Scalar>::max() / Scalar(16);
    return rise < bound ? rise : bound;
  }

  // The clock: panels over mu_OV, each short enough that no factor of the integrand changes by more than a few
  // e-foldings, with Gauss-Legendre quadrature inside.

  struct Clock {
    Scalar output;    ///< mu_OV at the left end of the panel
    Scalar t;         ///< time there
    Scalar next;      ///< right end
    Scalar duration;  ///< time across the panel
    bool open;        ///< a panel is loaded
  };
  struct ScaledTime {
    Scalar value, exponent;  ///< t = value e^exponent
  };
  struct Local {
    Scalar score, gap, log_rate;  ///< what varies along the path
    Scalar slope;                 ///< its total rate of variation in mu_OV
  };

  Local local(const Scalar& o, bool with_slope) const {
    using std::abs;
    using std::log;
    const AttentionStep<Scalar> step =
        attention_.at(attention_.displacement(ratio_ * output_.gain(abs(start_.mu_ov), abs(o))));
    const Scalar alpha = step.odds / (Scalar(1) + step.odds);
    const Scalar rate = flow_.output_rate_factor(o);
    Local here{step.score, alpha * o, log(rate), Scalar(0)};
    if (with_slope) {
      const Scalar score_slope = ratio_ * step.score_slope / step.rise_slope * o / rate;
      const Scalar rate_slope = flow_.ov.saddle_at_zero() ? Scalar(Scalar(2) / abs(o)) : Scalar(0);
      here.slope = alpha + abs(score_slope) * (Scalar(1) + abs(here.gap) / (Scalar(1) + step.odds)) + rate_slope;
    }
    return here;
  }

  static Scalar variation(const Local& a, const Local& b) {
    using std::abs;
    return abs(a.score - b.score) + abs(a.gap - b.gap) + Scalar(2) * abs(a.log_rate - b.log_rate);
  }

  /// dt/do e^{-reference}
  Scalar slowness(const Scalar& o, const Scalar& reference) const {
    using std::abs;
    using std::exp;
    const AttentionStep<Scalar> step =
        attention_.at(attention_.displacement(ratio_ * output_.gain(abs(start_.mu_ov), abs(o))));
    const Scalar inverse_alpha = (Scalar(1) + step.odds) / step.odds;
    const Scalar gap = o / inverse_alpha;
    return flow_.task.block / (flow_.rates.ov * flow_.output_rate_factor(o)) * inverse_alpha *
           (exp(Scalar(gap - reference)) + (flow_.task.classes - Scalar(1)) * exp(Scalar(-reference)));
  }

  /// The right end of a panel that starts at o, not beyond `end`.
  Scalar panel_end(const Scalar& o, Local& here, const Scalar& end) const {
    using std::sqrt;
    const Scalar allowed(panel_variation<Scalar>());
    Scalar width = end - o;
    if (here.slope > Scalar(0) && allowed / here.slope < width) width = allowed / here.slope;
    for (int trial = 0; trial < 4000; ++trial) {
      const Scalar next = width < end - o ? Scalar(o + width) : end;
      if (!(next > o)) return end;
      const Local there = local(next, true);
      const Scalar change = variation(here, there);
      if (change <= Scalar(1.25) * allowed) {
        here = there;
        return next;
      }
      // The score grows like the square of mu_OV where it is slow: hence the square root.
      Scalar shrink = sqrt(allowed / change);
      if (!(shrink > Scalar(0.001))) shrink = Scalar(0.001);
      width *= shrink < Scalar(0.8) ? shrink : Scalar(0.8);
    }
    return end;
  }

  ScaledTime integrate_to(const Scalar& end) const {
    Scalar o = start_.mu_ov;
    const Local last = local(end, false);
    const Scalar reference = last.gap > Scalar(0) ? last.gap : Scalar(0);
    Scalar sum(0);
    Local here = local(o, true);
    while (o < end) {
      const Scalar next = panel_end(o, here, end);
      sum += integrate_panel([&](const Scalar& s) { return slowness(s, reference); }, o, next);
      o = next;
    }
    return {sum, reference};
  }

  Clock start_clock() const { return {start_.mu_ov, Scalar(0), start_.mu_ov, Scalar(0), false}; }

  /// Moves the clock forward to time t and returns the state there.
  Point advance(Clock& clock, const Scalar& t) const {
    using std::sqrt;
    const auto speed = [this](const Scalar& o) { return slowness(o, Scalar(0)); };
    const Scalar far = sqrt(sqrt(std::numeric_limits<Scalar>::max()));
    while (true) {
      if (!clock.open) {
        const Scalar end = stays_below_zero() ? Scalar(0) : Scalar(clock.output + far);
        Local here = local(clock.output, true);
        clock.next = panel_end(clock.output, here, end);
        if (!(clock.next < end)) return flow_.point(end, score_at_output(end));  // arrived as near to 0 as Scalar gets
        clock.duration = integrate_panel(speed, clock.output, clock.next);
        clock.open = true;
      }
      if (t <= clock.t + clock.duration) break;
      clock.t += clock.duration;
      clock.output = clock.next;
      clock.open = false;
    }
    const Scalar wanted = t - clock.t;
    if (!(wanted > Scalar(0))) return flow_.point(clock.output, score_at_output(clock.output));
    const Scalar guess = clock.output + wanted / speed(clock.output);
    const auto lateness = [&](const Scalar& o) -> ValueAndSlope<Scalar> {
      return {Scalar(integrate_panel(speed, clock.output, o) - wanted), speed(o)};
    };
    const Scalar o = increasing_root(lateness, clock.output, clock.next, guess);
    return flow_.point(o, score_at_output(o));
  }

  Flow flow_;
  ReducedState<Scalar> start_;
  Scalar ratio_;  ///< r c0
  OutputSide<Scalar, OvRate> output_;
  AttentionSide<Scalar, QkRate> attention_;
};

template <class Scalar, class QkRate, class OvRate>
ClosedForm(const ReducedFlow<Scalar, QkRate, OvRate>&, const ReducedState<Scalar>&)
    -> ClosedForm<Scalar, QkRate, OvRate>;

}  // namespace qkflow
