// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/flow/detail/reduced_path.hpp"
#include "qkflow/math/quadrature.hpp"
#include "qkflow/math/roots.hpp"

namespace qkflow::detail {

/// The clock of a ReducedPath, t(o) = int b (E + M - 1) / (eta_OV rho_OV alpha) do, and its inverse: panels over the
/// advance delta, each short enough that no factor of the integrand changes by more than a few e-foldings, with
/// Gauss-Legendre quadrature inside. Refers to the path, which must outlive it.
template <class Scalar, class QkRate, class OvRate>
class PathClock {
 public:
  using Path = ReducedPath<Scalar, QkRate, OvRate>;
  using Point = ReducedPoint<Scalar>;

  /// t = value e^exponent
  struct ScaledTime {
    Scalar value, exponent;
  };
  /// How far the clock has come: the panel it stands in.
  struct Hand {
    Scalar delta{0};     ///< left end of the panel
    Scalar t{0};         ///< time there
    Scalar next{0};      ///< right end
    Scalar duration{0};  ///< time across the panel
    bool open = false;   ///< a panel is loaded
  };

  explicit PathClock(const Path& path) : path_(path) {}

  /// The time from the start to delta = `end`.
  ScaledTime integrate_to(const Scalar& end) const {
    // The integrand is largest at mu_OV = 0 (attention is lowest there) or at the end (the loss is), and falls towards
    // the start; between them lies a valley. Exponents are taken out so that nothing overflows.
    const bool starts_below = Scalar(0) > path_.start.mu_ov;
    const Scalar zero = starts_below && end > -path_.start.mu_ov ? Scalar(-path_.start.mu_ov) : Scalar(0);
    const Scalar gap = local(end).gap;
    const Scalar lowest = local(starts_below && zero == Scalar(0) ? end : zero).score;
    const ScaledTime unit{gap > Scalar(0) ? gap : Scalar(0), lowest < Scalar(-300) ? Scalar(-lowest) : Scalar(0)};
    Scalar sum(0);
    if (zero > Scalar(0)) sum = integrate_valley(Scalar(0), zero, unit);
    if (end > zero) sum += integrate_valley(zero, end, unit);
    return {sum, unit.value + unit.exponent};
  }

  /// Moves the clock forward to time t and returns the state there.
  Point advance(Hand& hand, const Scalar& t) const {
    using std::sqrt;
    const ScaledTime plain{Scalar(0), Scalar(0)};
    const auto speed = [&](const Scalar& delta) { return slowness_after(delta, plain); };
    const auto state = [this](const Scalar& delta) {
      return path_.flow.point(Scalar(path_.start.mu_ov + delta), path_.step_after(delta).score);
    };
    const Scalar far = sqrt(sqrt(std::numeric_limits<Scalar>::max()));
    while (true) {
      if (!hand.open) {
        const bool below = path_.start.mu_ov + hand.delta < Scalar(0);
        const Scalar end = below ? Scalar(-path_.start.mu_ov) : Scalar(hand.delta + far);
        Local here = local(hand.delta);
        const Local begin = here;
        hand.next = panel_end(hand.delta, here, end);
        if (path_.stays_below_zero() && !(hand.next < end)) return state(end);  // as near to 0 as Scalar gets
        hand.duration = panel_time(hand.delta, begin, hand.next, here, plain);
        hand.open = true;
      }
      if (t <= hand.t + hand.duration) break;
      hand.t += hand.duration;
      hand.delta = hand.next;
      hand.open = false;
    }
    const Scalar wanted = t - hand.t;
    if (!(wanted > Scalar(0))) return state(hand.delta);
    // Newton in the part of the panel that is covered, so that a short way keeps its digits.
    const auto lateness = [&](const Scalar& covered) -> ValueAndSlope<Scalar> {
      const Scalar delta = hand.delta + covered;
      return {Scalar(integrate_panel(speed, hand.delta, delta) - wanted), speed(delta)};
    };
    const Scalar guess = wanted / speed(hand.delta);
    return state(Scalar(hand.delta + increasing_root(lateness, Scalar(0), Scalar(hand.next - hand.delta), guess)));
  }

 private:
  /// What varies along the path, the total rate of its variation, and how fast the score's part of that grows.
  struct Local {
    Scalar output, displacement, score, gap, attention_fold, output_fold, log_rate, slope, bend;
  };

  Local local(const Scalar& delta) const {
    using std::abs;
    using std::log;
    const Scalar v = path_.attention.displacement(Scalar(path_.ratio * path_.output.gain(delta)));
    const AttentionStep<Scalar> step = path_.attention.at(v);
    const Scalar o = path_.start.mu_ov + delta;
    const Scalar miss = Scalar(1) / (Scalar(1) + step.odds);
    const Scalar gap = step.odds * miss * o;
    const Scalar attention_fold = path_.attention.fold(v);
    const Scalar rate = path_.flow.output_rate_factor(o);
    const Scalar bend = path_.ratio * step.score_slope / (step.rise_slope * rate);  // (d mu_QK / d mu_OV) / mu_OV
    const Scalar weight =
        Scalar(1) + abs(gap) * miss + (attention_fold == Scalar(0) ? Scalar(0) : Scalar(Scalar(1) / step.score_slope));
    const Fold<Scalar> fold = path_.output.fold(o);
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
        unit.exponent == Scalar(0)
            ? Scalar((Scalar(1) + step.odds) / step.odds)
            : Scalar(exp(Scalar(-unit.exponent)) +
                     path_.flow.task.noise / path_.flow.task.informative * exp(Scalar(-unit.exponent - step.score)));
    const Scalar others = path_.flow.task.classes - Scalar(1);
    return path_.flow.task.block / (path_.flow.rates.ov * path_.flow.output_rate_factor(o)) * inverse_alpha *
           (exp(Scalar(gap - unit.value)) + (unit.value == Scalar(0) ? others : Scalar(others * exp(-unit.value))));
  }
  Scalar slowness_after(const Scalar& delta, const ScaledTime& unit) const {
    return slowness(path_.step_after(delta), Scalar(path_.start.mu_ov + delta), unit);
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
      const AttentionStep<Scalar> step = path_.attention.at(v);
      const Scalar o = path_.start.mu_ov + path_.output.advance_across(Scalar(step.rise * path_.inverse_ratio));
      return slowness(step, o, unit) * (step.rise_slope * path_.inverse_ratio * path_.flow.output_rate_factor(o) / o);
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

  /// The integral from both ends inwards, leaving out a middle that is too low to change a digit.
  Scalar integrate_valley(const Scalar& from, const Scalar& to, const ScaledTime& unit) const {
    using std::log;
    Local left = local(from), right = local(to);
    const Scalar at_left = log_slowness(left), at_right = log_slowness(right);
    const Scalar depth = Scalar(60) - log(std::numeric_limits<Scalar>::epsilon()) + log(path_.flow.task.classes);
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

  const Path& path_;
};

}  // namespace qkflow::detail
