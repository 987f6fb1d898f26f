// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// The value and the derivative of a function at a point.
template <class Scalar>
struct ValueAndSlope {
  Scalar value, slope;
};

namespace detail {

/// Where to bisect a bracket: at 0 if its ends differ in sign, halfway between the exponents of its ends if those are
/// apart, and in the middle if not. An end that is 0 or infinite has no exponent: it is approached by 1, 2, 4, 8, ...
/// binary orders of magnitude at a time, counted in `reach`.
template <class Scalar>
Scalar bisect_scales(const Scalar& low, const Scalar& high, int& reach) {
  using std::abs;
  using std::isfinite;
  using std::ldexp;
  using std::sqrt;
  if (low < Scalar(0) && high > Scalar(0)) return Scalar(0);
  const bool positive = high > Scalar(0);
  const Scalar near = positive ? low : Scalar(-high);
  const Scalar far = positive ? high : Scalar(-low);
  const int orders = reach;
  if ((near == Scalar(0) || !isfinite(far)) && reach < std::numeric_limits<Scalar>::max_exponent / 2) reach *= 2;
  Scalar size = near + (far - near) / Scalar(2);
  if (!isfinite(far)) {
    const Scalar base = near > Scalar(1) ? near : Scalar(1);
    size = ldexp(base, orders);
    if (!isfinite(size)) size = sqrt(base) * sqrt(std::numeric_limits<Scalar>::max());
  } else if (near == Scalar(0)) {
    size = ldexp(far, -orders);
  } else if (far > Scalar(16) * near) {
    size = sqrt(near) * sqrt(far);
  }
  return positive ? size : Scalar(-size);
}

}  // namespace detail

/// The root of an increasing differentiable function inside [low, high], by Newton's method kept inside the bracket
/// (bisection, of the exponents where they differ, where a Newton step would leave it or the steps shrink too slowly,
/// or where the value is not finite: +infinity counts as above the root). `function(x)` returns ValueAndSlope; `start`
/// is the first guess. The bracket is taken on trust, so that neither end is evaluated: f(low) <= 0 <= f(high); `high`
/// may be infinite. Relative accuracy is that of the function itself; a start that is a bound is fine. Converges
/// quadratically and stops once what the next step would change is below epsilon of x.
template <class Scalar, class Function>
Scalar increasing_root(const Function& function, Scalar low, Scalar high, Scalar start) {
  using std::abs;
  using std::isfinite;
  using std::pow;
  const Scalar epsilon = std::numeric_limits<Scalar>::epsilon();
  static const Scalar small_step = pow(std::numeric_limits<Scalar>::epsilon(), Scalar(0.55));
  int reach = 1;
  Scalar x = start;
  if (!(x >= low && x <= high)) x = detail::bisect_scales(low, high, reach);
  // Newton converges in a handful of steps and bisection halves in between; 50-digit types need a few more.
  const int limit = 4 * std::numeric_limits<Scalar>::digits + 64;
  int slow_steps = 0;
  bool after_newton = false;
  Scalar last_step = high - low;
  for (int iteration = 0; iteration < limit; ++iteration) {
    const ValueAndSlope<Scalar> f = function(x);
    if (f.value == Scalar(0)) return x;
    if (f.value < Scalar(0)) {
      low = x;
    } else {
      high = x;
    }
    Scalar next = x - f.value / f.slope;
    Scalar step = abs(next - x);
    const bool small = step <= small_step * abs(next);
    bool newton = isfinite(next) && isfinite(f.slope) && next >= low && next <= high && (step <= last_step || small);
    // Far out on an exponential Newton's steps are all alike: a few of these, and from then on they must halve.
    if (newton && after_newton && !small && step > last_step / Scalar(2)) newton = ++slow_steps <= 8;
    if (!newton) {
      next = detail::bisect_scales(low, high, reach);
      step = abs(next - x);
    }
    x = next;
    if (newton && small) {
      // Quadratic convergence: the next step would be about step (step / last_step)^2. Steps of a few ulp are rounding.
      const Scalar ratio = step / last_step;
      const bool settled = after_newton && ratio * ratio * step <= epsilon / Scalar(4) * abs(x);
      if (settled || step <= Scalar(16) * epsilon * abs(x)) return x;
    }
    if (step == Scalar(0) || (!newton && step <= epsilon * abs(x))) return x;
    last_step = newton ? step : Scalar(high - low);
    after_newton = newton;
  }
  return x;
}

/// The root of a continuous function with a sign change in [low, high], without derivatives: TOMS 748 [Alefeld95]
/// through Boost.Math, to the last bits of Scalar. Refuses (InvalidArgument) ends whose values have one sign.
template <class Scalar, class Function>
Scalar bracketed_root(const Function& function, const Scalar& low, const Scalar& high) {
  const Scalar at_low = function(low);
  const Scalar at_high = function(high);
  if (at_low == Scalar(0)) return low;
  if (at_high == Scalar(0)) return high;
  if (!(at_low < Scalar(0) && at_high > Scalar(0)) && !(at_low > Scalar(0) && at_high < Scalar(0))) {
    throw_invalid("bracketed_root", "f(high)", at_high, "have the other sign than f(low) = " + to_text(at_low));
  }
  std::uintmax_t iterations = 500;
  const boost::math::tools::eps_tolerance<Scalar> tolerance(std::numeric_limits<Scalar>::digits - 2);
  const std::pair<Scalar, Scalar> bracket =
      boost::math::tools::toms748_solve(function, low, high, at_low, at_high, tolerance, iterations);
  return bracket.first + (bracket.second - bracket.first) / Scalar(2);
}

}  // namespace qkflow
