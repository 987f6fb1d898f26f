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

/// The root of an increasing differentiable function inside [low, high], by Newton's method kept inside the bracket
/// (bisection, of the exponents where they differ, where a Newton step would leave it, or where the value is not
/// finite: +infinity counts as above the root). `function(x)` returns ValueAndSlope; `start` is the first guess. The
/// bracket is taken on trust, so that neither end is evaluated: f(low) <= 0 <= f(high). Relative accuracy is that of
/// the function itself; a start that is a bound is fine. Converges quadratically and stops once a step is below
/// epsilon^0.55 of x, which leaves an error below epsilon.
template <class Scalar, class Function>
Scalar increasing_root(const Function& function, Scalar low, Scalar high, Scalar start) {
  using std::abs;
  using std::isfinite;
  using std::pow;
  using std::sqrt;
  static const Scalar small_step = pow(std::numeric_limits<Scalar>::epsilon(), Scalar(0.55));
  Scalar x = start;
  const auto middle = [&]() -> Scalar {
    if (low > Scalar(0) && high > Scalar(16) * low && isfinite(high)) return sqrt(low) * sqrt(high);
    if (isfinite(high)) return low + (high - low) / Scalar(2);
    return Scalar(2) * (low > Scalar(1) ? low : Scalar(1));
  };
  if (!(x >= low && x <= high)) x = middle();
  // Newton converges in a handful of steps and bisection halves in between; 50-digit types need a few more.
  const int limit = 4 * std::numeric_limits<Scalar>::digits + 64;
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
    const bool newton = isfinite(next) && next >= low && next <= high && abs(next - x) <= last_step;
    if (!newton) next = middle();
    const Scalar step = abs(next - x);
    last_step = newton ? step : high - low;
    x = next;
    if (step <= small_step * abs(x)) {
      if (newton) return x;
      if (step <= std::numeric_limits<Scalar>::epsilon() * abs(x)) return x;
    }
    if (low == high || step == Scalar(0)) return x;
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
