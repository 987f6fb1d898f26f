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
        inverse_ratio_(Scalar(1) / ratio_),
        output_(flow.ov, flow.task.output_value_singular_value(), start.mu_ov),
        attention_(flow.task, flow.qk, start.mu_qk),
        start_gap_(flow.logit_gap(start.mu_ov, start.mu_qk)) {}

  const Flow& flow() const { return flow_; }
  Point start() const { return flow_.point(start_.mu_ov, start_.mu_qk); }

  /// The state at which mu_OV has the given value. It must lie on the trajectory: at or above the start, and below 0
  /// where a balanced output circuit started below 0.
  Point at_output(const Scalar& mu_ov) const {
    require_on_trajectory("ClosedForm::at_output", mu_ov);
    return flow_.point(mu_ov, step_after(Scalar(mu_ov - start_.mu_ov)).score);
  }

  /// The state at which the loss falls to `loss`: alpha(q) o = log((M-1)/(e^loss - 1)), one root.
  Point at_loss(const Scalar& loss) const { return at_loss(loss, Scalar(0)); }

  /// The states at the given losses, falling ones fastest: each search starts where the last one ended.
  std::vector<Point> at_losses(const std::vector<Scalar>& losses) const {
    std::vector<Point> points;
    points.reserve(losses.size());
    Scalar last = std::numeric_limits<Scalar>::infinity();
    for (const Scalar& loss : losses) {
      const bool onwards = loss <= last && !points.empty();
      points.push_back(at_loss(loss, onwards ? attention_.displacement_of_score(points.back().mu_qk) : Scalar(0)));
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
    const Scalar score = log(alpha) - log1p(-alpha) + log(flow_.task.noise / flow_.task.informative);
    if (flow_.qk.saddle_at_zero() && !(score * start_.mu_qk > Scalar(0))) throw_invalid(name, "alpha", alpha, reached);
    const Scalar gain = attention_.at(attention_.displacement_of_score(score)).rise / ratio_;
    const bool falling = start_.mu_ov < Scalar(0);
    const bool beyond =
        falling ? gain < output_.gain(-start_.mu_ov) || (gain > Scalar(0) && stays_below_zero()) : gain < Scalar(0);
    if (beyond) throw_invalid(name, "alpha", alpha, reached);
    const Scalar delta = falling && gain > Scalar(0) ? output_.advance_across(gain) : output_.advance(gain);
    return flow_.point(Scalar(start_.mu_ov + delta), score);
  }

  /// The state at time t >= 0: the clock inverted by Newton's method, whose slope is the velocity itself.
  Point at_time(const Scalar& t) const {
    require_non_negative("ClosedForm::at_time", "t", t);
    Clock clock;
    return advance(clock, t);
  }

  /// The time at which mu_OV takes the given value. +infinity where it exceeds the range of Scalar:
  /// `log_time_at_output` stays finite.
  Scalar time_at_output(const Scalar& mu_ov) const {
    using std::exp;
    using std::log;
    require_on_trajectory("ClosedForm::time_at_output", mu_ov);
    const ScaledTime time = integrate_to(Scalar(mu_ov - start_.mu_ov));
    if (time.exponent < Scalar(0.9 * detail::log_range<Scalar>())) return time.value * exp(time.exponent);
    return exp(Scalar(log(time.value) + time.exponent));
  }
  Scalar log_time_at_output(const Scalar& mu_ov) const {
    using std::log;
    require_on_trajectory("ClosedForm::log_time_at_output", mu_ov);
    const ScaledTime time = integrate_to(Scalar(mu_ov - start_.mu_ov));
    return log(time.value) + time.exponent;
  }
  /// The time of a state returned by this object.
  Scalar time(const Point& point) const { return time_at_output(point.mu_ov); }

  /// The states at the given times (ascending, from 0), in one pass of the clock.
  std::vector<TimedPoint<Scalar>> trajectory(const std::vector<Scalar>& times) const {
    std::vector<TimedPoint<Scalar>> points;
    points.reserve(times.size());
    Clock clock;
    Scalar last(0);
    for (const Scalar& t : times) {
      require_at_least("ClosedForm::trajectory", "times", t, last);
      last = t;
      const Point p = advance(clock, t);
      points.push_back({t, p.mu_ov, p.mu_qk, p.alpha, p.loss});
    }
    return points;
  }

  /// T(q) - T(q0) - r c0 (S(o) - S(o0)), zero along the exact trajectory: how far a state (from a solver, say) is off.
  Scalar first_integral_residual(const Scalar& mu_ov, const Scalar& mu_qk) const {
    return attention_.at(attention_.displacement_of_score(mu_qk)).rise -
           ratio_ * output_.gain(Scalar(mu_ov - start_.mu_ov));
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

  /// at_loss, knowing that the attention circuit has passed the displacement `passed` before (0 if nothing is known).
  Point at_loss(const Scalar& loss, const Scalar& passed) const {
    constexpr const char* name = "ClosedForm::at_loss";
    using std::abs;
    require_positive(name, "loss", loss);
    const Scalar gap = logit_gap_at_loss(flow_.task.classes, loss);
    if (gap <= start_gap_) {
      if (start_gap_ - gap <= Scalar(8) * std::numeric_limits<Scalar>::epsilon() * abs(start_gap_)) return start();
      throw_invalid(name, "loss", loss, "be at most the loss at the start, " + to_text(start().loss));
    }
    if (gap >= Scalar(0) && stays_below_zero()) {
      throw_invalid(name, "loss", loss,
                    "exceed log(classes): a factorized output circuit started at mu_ov < 0 never crosses 0");
    }
    // A path that starts below 0 comes back on its own trace: at mu_OV = -o0 the score is that of the start again.
    const bool inside = abs(gap) < abs(start_gap_) && start_.mu_ov < Scalar(0);
    return inside ? between_signs(gap, loss) : rising(gap, loss, passed);
  }

  /// The attention circuit where mu_OV = o0 + delta.
  AttentionStep<Scalar> step_after(const Scalar& delta) const {
    return attention_.at(attention_.displacement(Scalar(ratio_ * output_.gain(delta))));
  }
  /// d mu_QK / d mu_OV
  Scalar direction(const AttentionStep<Scalar>& step, const Scalar& o) const {
    return ratio_ * step.score_slope / step.rise_slope * o / flow_.output_rate_factor(o);
  }
  Point assemble(const Scalar& mu_ov, const AttentionStep<Scalar>& step, const Scalar& loss) const {
    return {mu_ov, step.score, step.odds / (Scalar(1) + step.odds), loss};
  }

  /// |gap| below the start's, start below 0: mu_OV lies between o0 and -o0. The unknown is |mu_OV|; close to o0, where
  /// that loses the digits of the advance, the displacement of the attention circuit.
  Point between_signs(const Scalar& gap, const Scalar& loss) const {
    using std::abs;
    using std::log;
    const Scalar size = -start_.mu_ov;
    const Scalar sign = gap < Scalar(0) ? Scalar(-1) : Scalar(1);
    if (gap == Scalar(0)) return assemble(Scalar(0), step_after(size), loss);
    const Scalar target = log(abs(gap));
    const auto excess = [&](const Scalar& x) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = step_after(Scalar(size - x));
      return {Scalar(log(x * step.odds / (Scalar(1) + step.odds)) - target),
              Scalar(Scalar(1) / x + direction(step, x) / (Scalar(1) + step.odds))};
    };
    const Scalar low = abs(gap) / flow_.alpha(start_.mu_qk);  // attention only falls on the way to 0
    const Scalar x = low < size ? increasing_root(excess, low, size, low) : size;
    if (x < size / Scalar(2)) return assemble(Scalar(sign * x), step_after(Scalar(size - x)), loss);
    const auto shortfall = [&](const Scalar& fall) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = attention_.at(Scalar(-fall));
      const Scalar here = size - output_.advance(Scalar(step.rise * inverse_ratio_));
      const Scalar slope = step.score_slope / (Scalar(1) + step.odds) + output_slope(step, here);
      return {Scalar(target - log(here * step.odds / (Scalar(1) + step.odds))), slope};
    };
    const Scalar guess = -attention_.displacement(Scalar(ratio_ * output_.gain(Scalar(size - x))));
    const Scalar bottom = -attention_.displacement(Scalar(ratio_ * output_.gain(Scalar(size - size / Scalar(4)))));
    const AttentionStep<Scalar> step = attention_.at(Scalar(-increasing_root(shortfall, Scalar(0), bottom, guess)));
    return assemble(Scalar(sign * (size - output_.advance(Scalar(step.rise * inverse_ratio_)))), step, loss);
  }

  /// d log|o| / dv
  Scalar output_slope(const AttentionStep<Scalar>& step, const Scalar& o) const {
    return step.rise_slope * inverse_ratio_ * flow_.output_rate_factor(o) / (o * o);
  }

  /// gap > 0 beyond |o0|: the unknown is the displacement v of the attention circuit, in which both circuits are
  /// explicit; log z(v) is increasing (and concave from o0 = 0, so that Newton cannot overshoot).
  Point rising(const Scalar& gap, const Scalar& loss, const Scalar& passed) const {
    using std::abs;
    using std::exp;
    using std::log;
    const Scalar size = abs(start_.mu_ov);
    const auto output = [&](const AttentionStep<Scalar>& step) -> Scalar {
      return start_.mu_ov + output_.advance_across(Scalar(step.rise * inverse_ratio_));
    };
    const Scalar inverse_gap = Scalar(1) / gap;
    const auto excess = [&](const Scalar& v) -> ValueAndSlope<Scalar> {
      const AttentionStep<Scalar> step = attention_.at(v);
      const Scalar o = output(step);
      const Scalar miss = Scalar(1) / (Scalar(1) + step.odds);
      return {Scalar(log(step.odds * miss * o * inverse_gap)), Scalar(miss * step.score_slope + output_slope(step, o))};
    };
    Scalar low = passed;
    if (!(low > Scalar(0))) {
      const Scalar nearest = gap > size ? gap : size;  // attention is at most 1
      const Scalar rise = ratio_ * output_.gain(Scalar(nearest - start_.mu_ov));
      const Scalar bound = std::numeric_limits<Scalar>::max() / Scalar(16);
      low = attention_.least_displacement(rise < bound ? rise : bound);
    }
    const Scalar highest = attention_.highest();
    Scalar guess = low;
    if (low > Scalar(0)) {
      // Where log z grows slower than v (the circuit has hardly moved) it is nearly straight in log v.
      const ValueAndSlope<Scalar> f = excess(low);
      const Scalar order = low * f.slope;
      const Scalar step = f.value < Scalar(0) ? Scalar(-f.value / order) : Scalar(0);
      guess = order < Scalar(1) ? Scalar(low * exp(step < Scalar(40) ? step : Scalar(40))) : Scalar(low + step * low);
      if (!(guess < highest)) guess = low;
    }
    const AttentionStep<Scalar> step = attention_.at(increasing_root(excess, low, highest, guess));
    return assemble(output(step), step, loss);
  }

  // The clock: panels over the advance delta, each short enough that no factor of the integrand changes by more than a
  // few e-foldings, with Gauss-Legendre quadrature inside.

  struct Clock {
    Scalar delta{0};     ///< left end of the panel
    Scalar t{0};         ///< time there
    Scalar next{0};      ///< right end
    Scalar duration{0};  ///< time across the panel
    bool open = false;   ///< a panel is loaded
  };
  /// t = value e^exponent
  struct ScaledTime {
    Scalar value, exponent;
  };
  /// What varies along the path, the total rate of its variation, and how fast the score's part of that grows.
  struct Local {
    Scalar output, displacement, score, gap, attention_fold, output_fold, log_rate, slope, bend;
  };

  Local local(const Scalar& delta) const {
    using std::abs;
    using std::log;
    const Scalar v = attention_.displacement(Scalar(ratio_ * output_.gain(delta)));
    const AttentionStep<Scalar> step = attention_.at(v);
    const Scalar o = start_.mu_ov + delta;
    const Scalar miss = Scalar(1) / (Scalar(1) + step.odds);
    const Scalar gap = step.odds * miss * o;
    const Scalar attention_fold = attention_.fold(v);
    const Scalar rate = flow_.output_rate_factor(o);
    const Scalar bend = ratio_ * step.score_slope / (step.rise_slope * rate);  // (d mu_QK / d mu_OV) / mu_OV
    const Scalar weight =
        Scalar(1) + abs(gap) * miss + (attention_fold == Scalar(0) ? Scalar(0) : Scalar(Scalar(1) / step.score_slope));
    const Fold<Scalar> fold = output_.fold(o);
    return {o,
            v,
            step.score,
            gap,
            attention_fold,
            fold.value,
            log(rate),
            step.odds * miss + abs(o) * bend * weight + Scalar(2) * fold.slope,
            bend * weight};
  }
  static Scalar variation(const Local& a, const Local& b) {
    using std::abs;
    return abs(a.score - b.score) + abs(a.gap - b.gap) + abs(a.attention_fold - b.attention_fold) +
           Scalar(2) * abs(a.output_fold - b.output_fold);
  }
  /// log(dt/do) up to a constant and to about log M: enough to tell what counts.
  Scalar log_slowness(const Local& here) const {
    const Scalar low_attention = here.score < Scalar(0) ? Scalar(-here.score) : Scalar(0);
    return low_attention + (here.gap > Scalar(0) ? here.gap : Scalar(0)) - here.log_rate;
  }

  /// dt/do = b (E + M - 1) / (eta_OV rho_OV alpha), as a multiple of e^{unit.value + unit.exponent}, of which the first
  /// exponent is taken from E and the second from 1 / alpha.
  Scalar slowness(const AttentionStep<Scalar>& step, const Scalar& o, const ScaledTime& unit) const {
    using std::exp;
    const Scalar gap = step.odds / (Scalar(1) + step.odds) * o;
    const Scalar inverse_alpha =
        unit.exponent == Scalar(0) ? Scalar((Scalar(1) + step.odds) / step.odds)
                                   : Scalar(exp(Scalar(-unit.exponent)) + flow_.task.noise / flow_.task.informative *
                                                                              exp(Scalar(-unit.exponent - step.score)));
    const Scalar others = flow_.task.classes - Scalar(1);
    return flow_.task.block / (flow_.rates.ov * flow_.output_rate_factor(o)) * inverse_alpha *
           (exp(Scalar(gap - unit.value)) + (unit.value == Scalar(0) ? others : Scalar(others * exp(-unit.value))));
  }
  Scalar slowness_after(const Scalar& delta, const ScaledTime& unit) const {
    return slowness(step_after(delta), Scalar(start_.mu_ov + delta), unit);
  }

  /// The time across a panel. Where mu_OV does not change by much the displacement v serves as the coordinate: both
  /// circuits are explicit in it, and only its square root singularity at mu_OV = 0 forbids it elsewhere.
  Scalar panel_time(const Scalar& from, const Local& left, const Scalar& to, const Local& right,
                    const ScaledTime& unit) const {
    const Scalar smallest = std::numeric_limits<Scalar>::min() / std::numeric_limits<Scalar>::epsilon();
    const bool explicit_in_v = left.output > Scalar(0) && right.output < Scalar(2) * left.output &&
                               right.displacement - left.displacement > smallest;
    if (!explicit_in_v) {
      return integrate_panel([&](const Scalar& delta) { return slowness_after(delta, unit); }, from, to);
    }
    const auto integrand = [&](const Scalar& v) -> Scalar {
      const AttentionStep<Scalar> step = attention_.at(v);
      const Scalar o = start_.mu_ov + output_.advance_across(Scalar(step.rise * inverse_ratio_));
      return slowness(step, o, unit) * (step.rise_slope * inverse_ratio_ * flow_.output_rate_factor(o) / o);
    };
    return integrate_panel(integrand, left.displacement, right.displacement);
  }

  /// The other end of a panel, on one side of mu_OV = 0, that starts at `delta` and goes towards `end` (either way);
  /// `here` moves with it.
  Scalar panel_end(const Scalar& delta, Local& here, const Scalar& end) const {
    using std::abs;
    using std::sqrt;
    const Scalar allowed = static_cast<Scalar>(panel_variation<Scalar>());
    Scalar width = end - delta;
    // slope w + bend w^2 / 2 = allowed
    const Scalar suggested =
        Scalar(2) * allowed / (here.slope + sqrt(here.slope * here.slope + Scalar(2) * here.bend * allowed));
    if (abs(width) > suggested) width = width > Scalar(0) ? suggested : Scalar(-suggested);
    while (true) {
      const Scalar next = abs(width) < abs(end - delta) ? Scalar(delta + width) : end;
      if (next == delta) return end;
      const Local there = local(next);
      const Scalar change = variation(here, there);
      if (change <= Scalar(1.1) * allowed) {
        here = there;
        return next;
      }
      const Scalar shrink = sqrt(allowed / change);
      width *= shrink < Scalar(0.8) ? (shrink > Scalar(0.001) ? shrink : Scalar(0.001)) : Scalar(0.8);
    }
  }

  ScaledTime integrate_to(const Scalar& end) const {
    // The integrand is largest at mu_OV = 0 (attention is lowest there) or at the end (the loss is), and falls towards
    // the start; between them lies a valley. Exponents are taken out so that nothing overflows.
    const bool starts_below = Scalar(0) > start_.mu_ov;
    const Scalar zero = starts_below && end > -start_.mu_ov ? Scalar(-start_.mu_ov) : Scalar(0);
    const Scalar gap = local(end).gap;
    const Scalar lowest = local(starts_below && zero == Scalar(0) ? end : zero).score;
    const ScaledTime unit{gap > Scalar(0) ? gap : Scalar(0), lowest < Scalar(-300) ? Scalar(-lowest) : Scalar(0)};
    Scalar sum(0);
    if (zero > Scalar(0)) sum = integrate_valley(Scalar(0), zero, unit);
    if (end > zero) sum += integrate_valley(zero, end, unit);
    return {sum, unit.value + unit.exponent};
  }

  /// The integral from both ends inwards, leaving out a middle that is too low to change a digit.
  Scalar integrate_valley(const Scalar& from, const Scalar& to, const ScaledTime& unit) const {
    using std::log;
    Local left = local(from), right = local(to);
    const Scalar at_left = log_slowness(left), at_right = log_slowness(right);
    const Scalar depth = Scalar(60) - log(std::numeric_limits<Scalar>::epsilon()) + log(flow_.task.classes);
    const Scalar cut = (at_left < at_right ? at_right : at_left) - depth;
    Scalar sum(0), a = from, b = to;
    while (a < b && log_slowness(left) >= cut) {
      const Local begin = left;
      const Scalar next = panel_end(a, left, b);
      sum += panel_time(a, begin, next, left, unit);
      a = next;
    }
    while (a < b && log_slowness(right) >= cut) {
      const Local end = right;
      const Scalar next = panel_end(b, right, a);
      sum += panel_time(next, right, b, end, unit);
      b = next;
    }
    return sum;
  }

  /// Moves the clock forward to time t and returns the state there.
  Point advance(Clock& clock, const Scalar& t) const {
    using std::sqrt;
    const ScaledTime plain{Scalar(0), Scalar(0)};
    const auto speed = [&](const Scalar& delta) { return slowness_after(delta, plain); };
    const auto state = [this](const Scalar& delta) {
      return flow_.point(Scalar(start_.mu_ov + delta), step_after(delta).score);
    };
    const Scalar far = sqrt(sqrt(std::numeric_limits<Scalar>::max()));
    while (true) {
      if (!clock.open) {
        const bool below = start_.mu_ov + clock.delta < Scalar(0);
        const Scalar end = below ? Scalar(-start_.mu_ov) : Scalar(clock.delta + far);
        Local here = local(clock.delta);
        const Local begin = here;
        clock.next = panel_end(clock.delta, here, end);
        if (stays_below_zero() && !(clock.next < end)) return state(end);  // as near to 0 as Scalar gets
        clock.duration = panel_time(clock.delta, begin, clock.next, here, plain);
        clock.open = true;
      }
      if (t <= clock.t + clock.duration) break;
      clock.t += clock.duration;
      clock.delta = clock.next;
      clock.open = false;
    }
    const Scalar wanted = t - clock.t;
    if (!(wanted > Scalar(0))) return state(clock.delta);
    // Newton in the part of the panel that is covered, so that a short way keeps its digits.
    const auto lateness = [&](const Scalar& covered) -> ValueAndSlope<Scalar> {
      const Scalar delta = clock.delta + covered;
      return {Scalar(integrate_panel(speed, clock.delta, delta) - wanted), speed(delta)};
    };
    const Scalar guess = wanted / speed(clock.delta);
    return state(Scalar(clock.delta + increasing_root(lateness, Scalar(0), Scalar(clock.next - clock.delta), guess)));
  }

  Flow flow_;
  ReducedState<Scalar> start_;
  Scalar ratio_;          ///< r c0
  Scalar inverse_ratio_;  ///< 1 / (r c0)
  OutputSide<Scalar, OvRate> output_;
  AttentionSide<Scalar, QkRate> attention_;
  Scalar start_gap_;
};

template <class Scalar, class QkRate, class OvRate>
ClosedForm(const ReducedFlow<Scalar, QkRate, OvRate>&, const ReducedState<Scalar>&)
    -> ClosedForm<Scalar, QkRate, OvRate>;

}  // namespace qkflow
