// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/math/constants/constants.hpp>
#include <cmath>
#include <limits>

#include "qkflow/flow/objectives.hpp"
#include "qkflow/math/dilogarithm.hpp"
#include "qkflow/math/exp_remainder.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/quadrature.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/roots.hpp"
#include "qkflow/math/wright_omega.hpp"

namespace qkflow {

// The trajectory without the clock. In all three objectives d nu / d mu = r (1 - alpha) F'(mu), and
// 1 / (1 - alpha) = g'(nu) with g(nu) = e^nu / (m-1) + nu, so that
//
//     g(nu) - g(nu0) = r (F(mu) - F(mu0)),    r = eta_QK / eta_OV,  c = C - 1,
//
//     soft   F = (c/C) mu^2 / 2
//     hard   F = (1/C) int_0^mu (e^x + c) log(C beta(x)) dx
//              = (1/C) [e^mu (mu - S) - c S + c mu^2 / 2 + c mu log(C/c) + c (Li_2(-e^mu / c) - Li_2(-1/c))],
//              S = log((e^mu + c) / C)
//     LVML   F = (c/C^2) [e^mu - 1 + (C-2) mu + c (e^{-mu} - 1)]
//
// [Vashisht23] gives the equations; the integrals are ours. F falls up to mu = 0 and rises from there.

namespace detail {

/// value * e^exponent: F grows like e^mu and would overflow.
template <class Scalar>
struct ScaledRise {
  Scalar value, exponent;
};

/// F(mu0 + d) - F(mu0), d >= 0: in terms of the displacement, so that no digits are lost however short it is.
template <class Scalar>
ScaledRise<Scalar> objective_rise(SoftAttention, const Scalar& classes, const Scalar& mu0, const Scalar& d) {
  return {(classes - Scalar(1)) / classes * d * (mu0 + d / Scalar(2)), Scalar(0)};
}

/// The bracket is e^mu0 (e^d - 1 - d) + c e^-mu0 (e^-d - 1 + d) + d (e^mu0 - 1)(1 + c e^-mu0): three
/// terms of one sign from mu0 >= 0.
template <class Scalar>
ScaledRise<Scalar> objective_rise(LatentMarginal, const Scalar& classes, const Scalar& mu0, const Scalar& d) {
  using std::exp;
  using std::expm1;
  const Scalar c = classes - Scalar(1), mu = mu0 + d;
  const Scalar out = mu > plain_exponent_limit<Scalar>() ? mu : Scalar(0);
  const Scalar down = exp(-out);
  // e^{mu0 - out} (e^d - 1 - d), also where e^d overflows
  const Scalar grown = out > Scalar(0) && d > Scalar(1) ? Scalar(Scalar(1) - (Scalar(1) + d) * exp(-d))
                                                        : Scalar(exp(mu0 - out) * exp_remainder(d));
  const Scalar bracket =
      grown + c * exp(-mu0) * down * exp_remainder(Scalar(-d)) + d * down * expm1(mu0) * (Scalar(1) + c * exp(-mu0));
  return {c / classes / classes * bracket, out};
}

/// e^{-out} C F(mu) of hard attention, from 0. Two forms of one function: where the dilogarithm of a large argument
/// would cancel it is turned over (Li_2(-x) + Li_2(-1/x) = -pi^2/6 - log^2(x) / 2).
template <class Scalar>
Scalar hard_antiderivative(const Scalar& classes, const Scalar& mu, const Scalar& out) {
  using std::exp;
  using std::expm1;
  using std::log;
  using std::log1p;
  const Scalar c = classes - Scalar(1), log_c = log(c), gain = log_probability_gain(classes, mu);
  const Scalar down = exp(-out), other = dilogarithm(Scalar(Scalar(-1) / c));
  if (mu > log_c) {
    const Scalar rest = gain + mu * (log(classes) - Scalar(1)) - log_c * log_c / Scalar(2) -
                        boost::math::constants::pi_sqr_div_six<Scalar>() - dilogarithm(Scalar(-c * exp(-mu))) - other;
    return exp(mu - out) * gain + c * down * rest;
  }
  const Scalar s = log1p(expm1(mu) / classes);
  const Scalar rest = mu * mu / Scalar(2) - s + mu * log1p(Scalar(1) / c) + dilogarithm(Scalar(-exp(mu) / c)) - other;
  return exp(mu) * gain + c * rest;
}

template <class Scalar>
ScaledRise<Scalar> objective_rise(HardAttention, const Scalar& classes, const Scalar& mu0, const Scalar& d) {
  using std::exp;
  const Scalar c = classes - Scalar(1), mu = mu0 + d;
  const Scalar out = mu > plain_exponent_limit<Scalar>() ? mu : Scalar(0);
  // Over a short way the difference of two antiderivatives would lose what one panel of quadrature keeps: the integrand
  // has no zero but 0 and its nearest singularity is pi away from the real line.
  if (d <= Scalar(1)) {
    const auto integrand = [&](const Scalar& s) -> Scalar {
      const Scalar x = mu0 + s;
      return (exp(x - out) + c * exp(-out)) * log_probability_gain(classes, x);
    };
    return {integrate_panel(integrand, Scalar(0), d) / classes, out};
  }
  return {(hard_antiderivative(classes, mu, out) - exp(-out) * hard_antiderivative(classes, mu0, Scalar(0))) / classes,
          out};
}

}  // namespace detail

/// The trajectory of a ForegroundFlow from a start: state at a given mu (explicit), at a given loss (one bracketed
/// root) and at a given time, and the time of a state (one quadrature: the clock has no closed form in any of the
/// three). mu increases along every trajectory and serves as its coordinate; the loss decreases to 0.
///
/// In double, for C and m from 2 to 1e6 and ratios from 1e-6 to 1e6: states at a given mu are right to 1e-13, states at
/// a given loss (1e-300 to chance) and times to 1e-12 (tests/flow/objective_closed_form_test.cpp, against 50 digits).
/// From a start at mu0 < 0 attention sinks until mu = 0; where it has come back, mu must hold it: nu is then as good as
/// r F'(mu) times the last bit of mu. Times are infinite where they exceed the range of Scalar. Nothing allocates.
///
/// Errors: InvalidArgument for a task, rates or start that are not admissible (|mu0| or |nu0| above a third of the
/// exponent range, 236 in double), for a mu before the start, and for a loss not below that of the start.
template <class Scalar, class Objective>
class ObjectiveClosedForm {
 public:
  using Flow = ForegroundFlow<Scalar, Objective>;
  using Point = ForegroundPoint<Scalar>;

  explicit ObjectiveClosedForm(const Flow& flow, const Scalar& mu0 = Scalar(0), const Scalar& nu0 = Scalar(0))
      : flow_((check(flow, mu0, nu0), flow)), mu0_(mu0), nu0_(nu0), ratio_(flow.rates.ratio()) {
    using std::exp;
    using std::log;
    log_weight_ = nu0 - log(flow.task.positions - Scalar(1));
    weight_ = exp(nu0) / (flow.task.positions - Scalar(1));
  }

  const Flow& flow() const { return flow_; }
  Point start() const { return flow_.point(mu0_, nu0_); }

  /// The state at mu >= mu0: nu = nu0 + e, (e^nu0 / (m-1)) (e^e - 1) + e = r (F(mu) - F(mu0)).
  Point at_mu(const Scalar& mu) const {
    require_at_least("ObjectiveClosedForm::at_mu", "mu", mu, mu0_);
    return flow_.point(mu, nu(Scalar(mu - mu0_)));
  }

  /// The state at which the loss falls to `loss`.
  Point at_loss(const Scalar& loss) const {
    using std::log;
    constexpr const char* name = "ObjectiveClosedForm::at_loss";
    require_positive(name, "loss", loss);
    const Scalar first = start().loss;
    if (!(loss <= first)) throw_invalid(name, "loss", loss, "be at most the loss at the start, " + to_text(first));
    // Near chance the gain log C - loss keeps its digits, near 0 the loss does.
    const bool near_chance = loss > log(flow_.task.classes) / Scalar(2);
    const Scalar wanted = near_chance ? log_difference(flow_.task.classes, loss) : Scalar(log(loss));
    const auto short_of = [&](const Scalar& d) -> Scalar {
      const Scalar mu = mu0_ + d;
      if (near_chance) return wanted - flow_.gain(mu, nu(d));
      const Scalar at = flow_.loss(mu, nu(d));
      return at > Scalar(0) ? Scalar(log(at) - wanted) : Scalar(-1);
    };
    if (!(short_of(Scalar(0)) > Scalar(0))) return start();
    Scalar step(1);
    while (short_of(step) > Scalar(0)) step *= Scalar(2);
    return at_displacement(bracketed_root(short_of, step > Scalar(1) ? Scalar(step / Scalar(2)) : Scalar(0), step));
  }

  /// The state at time t >= 0.
  Point at_time(const Scalar& t) const {
    require_non_negative("ObjectiveClosedForm::at_time", "t", t);
    Scalar d(0), left = t, width(1);
    while (left > Scalar(0)) {
      const Scalar end = panel_end(d, width, std::numeric_limits<Scalar>::infinity());
      const Scalar spent = panel_time(d, end);
      if (spent >= left) {
        const auto clock = [&](const Scalar& x) -> ValueAndSlope<Scalar> {
          return {panel_time(d, x) - left, slowness(x)};
        };
        return at_displacement(increasing_root(clock, d, end, Scalar(d + (end - d) * (left / spent))));
      }
      left -= spent;
      d = end;
    }
    return at_displacement(d);
  }

  /// t = int_{mu0}^{mu} dx / mu'(x, nu(x)).
  Scalar time_at_mu(const Scalar& mu) const {
    require_at_least("ObjectiveClosedForm::time_at_mu", "mu", mu, mu0_);
    const Scalar last = mu - mu0_;
    Scalar d(0), width(1), sum(0);
    while (d < last && sum <= std::numeric_limits<Scalar>::max()) {
      const Scalar end = panel_end(d, width, last);
      sum += panel_time(d, end);
      d = end;
    }
    return sum;
  }
  /// The time of a state returned by this object.
  Scalar time(const Point& point) const { return time_at_mu(point.mu); }

  /// g(nu) - g(nu0) - r (F(mu) - F(mu0)) at mu >= mu0, zero along the exact trajectory: how far a state (from a solver,
  /// say) is off.
  Scalar first_integral_residual(const Scalar& mu, const Scalar& nu) const {
    using std::exp;
    using std::expm1;
    require_at_least("ObjectiveClosedForm::first_integral_residual", "mu", mu, mu0_);
    const auto rise = rise_at(Scalar(mu - mu0_));
    return weight_ * expm1(nu - nu0_) + (nu - nu0_) - ratio_ * rise.value * exp(rise.exponent);
  }

 private:
  static void check(const Flow& flow, const Scalar& mu0, const Scalar& nu0) {
    using std::abs;
    constexpr const char* name = "ObjectiveClosedForm";
    flow.validate(name);
    const Scalar limit = detail::plain_exponent_limit<Scalar>();
    if (!(abs(mu0) <= limit)) throw_invalid(name, "mu0", mu0, "be at most " + to_text(limit) + " in size");
    if (!(abs(nu0) <= limit)) throw_invalid(name, "nu0", nu0, "be at most " + to_text(limit) + " in size");
  }

  // Everything below is a function of the displacement d = mu - mu0.

  Point at_displacement(const Scalar& d) const { return flow_.point(Scalar(mu0_ + d), nu(d)); }

  detail::ScaledRise<Scalar> rise_at(const Scalar& d) const {
    return detail::objective_rise(Objective{}, flow_.task.classes, mu0_, d);
  }

  Scalar nu(const Scalar& d) const {
    using std::log;
    const auto rise = rise_at(d);
    if (rise.exponent == Scalar(0)) {
      return nu0_ + exponential_displacement(weight_, Scalar(ratio_ * rise.value), log_weight_);
    }
    // So far out that nu is nothing beside its exponential: A e^e = A + K, in logarithms.
    const Scalar log_rise = log(ratio_ * rise.value) + rise.exponent;
    return nu0_ + log_add_exp(log_weight_, log_rise) - log_weight_;
  }

  Scalar slowness(const Scalar& d) const { return Scalar(1) / flow_.mu_velocity(Scalar(mu0_ + d), nu(d)); }

  /// A panel over which neither mu nor nu moves by more than 1: nothing in the integrand varies faster than e^mu, e^nu.
  /// Panels end at mu = 0, where nu turns.
  Scalar panel_end(const Scalar& from, Scalar& width, const Scalar& last) const {
    using std::abs;
    const Scalar at = nu(from);
    width = width < Scalar(0.5) ? Scalar(Scalar(2) * width) : Scalar(1);
    for (;;) {
      Scalar end = from + width;
      if (from < -mu0_ && end > -mu0_) end = -mu0_;
      if (end > last) end = last;
      const Scalar moved = abs(nu(end) - at);
      if (moved <= Scalar(1) || !(from + width / Scalar(2) > from)) return end;
      width = (end - from) / (moved < Scalar(4) ? Scalar(2) : Scalar(4));
    }
  }
  Scalar panel_time(const Scalar& from, const Scalar& to) const {
    return integrate_panel([&](const Scalar& d) { return slowness(d); }, from, to);
  }

  Flow flow_;
  Scalar mu0_, nu0_, ratio_, weight_, log_weight_;
};

}  // namespace qkflow
