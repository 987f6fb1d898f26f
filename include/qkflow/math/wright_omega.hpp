// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/math/require.hpp"

namespace qkflow {
namespace detail {

/// A start for omega(x), relative error below 3 % everywhere.
template <class Scalar>
Scalar wright_omega_start(const Scalar& x, const Scalar& exp_x) {
  using std::log;
  if (x < Scalar(-2)) return exp_x * (Scalar(1) - exp_x * (Scalar(1) - Scalar(1.5) * exp_x));
  if (x < Scalar(4)) {  // Taylor series at omega(1) = 1
    const Scalar h = x - Scalar(1);
    return Scalar(1) + h * (Scalar(0.5) + h * (Scalar(1) / Scalar(16) -
                                               h * (Scalar(1) / Scalar(192) + h * (Scalar(1) / Scalar(3072)))));
  }
  const Scalar l = log(x);  // asymptotic series in log(x) / x
  return x - l + l / x * (Scalar(1) + (l - Scalar(2)) / (Scalar(2) * x));
}

}  // namespace detail

/// The Wright omega function of a real argument: the solution w > 0 of
///
///     w + log(w) = x,    that is  omega(x) = W_0(e^x)    [Corless02]
///
/// Finite for every finite x, also where e^x overflows. Measured error below 4 ulp over the whole real line where the
/// result is a normal number (tests/math/wright_omega_test.cpp against 50 digits). omega(-inf) = 0, omega(inf) = inf,
/// NaN stays NaN. Fourth-order iteration of [Fritsch73]. Does not allocate.
template <class Scalar>
Scalar wright_omega(const Scalar& x) {
  using std::abs;
  using std::exp;
  using std::isfinite;
  using std::log;
  const Scalar epsilon = std::numeric_limits<Scalar>::epsilon();
  if (!isfinite(x)) return x < Scalar(0) ? Scalar(0) : x;
  // Below x = 1 the residual is formed from e^x, which is accurate to an ulp, and not from x itself: there
  // x - log(w) would lose |x| ulp.
  const bool small = x < Scalar(1);
  const Scalar exp_x = small ? Scalar(exp(x)) : Scalar(0);
  if (small && exp_x < epsilon / Scalar(4)) return exp_x;
  Scalar w = detail::wright_omega_start(x, exp_x);
  if (w == x) return w;  // log(w) is below the last bit of x
  for (int iteration = 0; iteration < 8; ++iteration) {
    const Scalar residual = small ? Scalar(log(exp_x / w) - w) : Scalar((x - w) - log(w));
    const Scalar w1 = w + Scalar(1);
    const Scalar c = Scalar(2) * w1 * (w1 + residual * (Scalar(2) / Scalar(3)));
    const Scalar step = residual / w1 * (c - residual) / (c - Scalar(2) * residual);
    w += w * step;
    // Fourth order: a step below epsilon^(1/4) leaves an error below epsilon.
    if (step * step * step * step < epsilon / Scalar(16)) break;
  }
  return w;
}

/// The displacement d that solves
///
///     A (e^d - 1) + d = K,    A >= 0 and K finite,
///
/// which is how far a score (or a logit gap) moves along a collapsed circuit. Equal to K + A - omega(K + A + log A),
/// evaluated without its cancellation: relative error below 6 ulp for every sign and size of d that is a normal number.
/// Unique, increasing in K.
/// `log_weight` = log A may be passed where it is known.
template <class Scalar>
Scalar exponential_displacement(const Scalar& weight, const Scalar& rise, const Scalar& log_weight) {
  using std::abs;
  using std::exp;
  using std::expm1;
  using std::log;
  if (rise == Scalar(0) || weight == Scalar(0)) return rise;
  const Scalar linear = rise / (Scalar(1) + weight);
  Scalar d = linear;
  if (abs(linear) > Scalar(1) / Scalar(1024)) {
    const Scalar x = rise + weight + log_weight;
    const Scalar w = wright_omega(x);
    // d = log(w / A) = K + A - w: the first form where w dominates, the second where it vanishes.
    d = w > Scalar(1) ? Scalar(log(w) - log_weight) : Scalar(rise + weight - w);
    // Where all digits of d were lost (A far above K) the linear solution is the better start.
    if (!(d * linear > Scalar(0))) d = linear;
  }
  // Halley's iteration on F(d) = A expm1(d) + d - K, whose two terms have one sign: the residual keeps its digits.
  const Scalar epsilon = std::numeric_limits<Scalar>::epsilon();
  const Scalar far = Scalar(0.3 * std::numeric_limits<Scalar>::max_exponent);  // e^d alone could overflow beyond
  for (int iteration = 0; iteration < 12; ++iteration) {
    const Scalar grown = d < Scalar(0.7) ? Scalar(weight * expm1(d))
                         : d < far       ? Scalar(weight * (exp(d) - Scalar(1)))
                                         : Scalar(exp(Scalar(d + log_weight)) - weight);
    const Scalar residual = grown + d - rise;
    const Scalar second = grown + weight;
    const Scalar slope = second + Scalar(1);
    const Scalar newton = residual / slope;
    const Scalar step = newton / (Scalar(1) - newton * second / (Scalar(2) * slope));
    d -= step;
    // Third order: a relative step below epsilon^(1/3) leaves an error below epsilon.
    const Scalar relative = step / d;
    if (abs(relative * relative * relative) < epsilon / Scalar(4)) break;
  }
  return d;
}

template <class Scalar>
Scalar exponential_displacement(const Scalar& weight, const Scalar& rise) {
  using std::log;
  require_non_negative("exponential_displacement", "weight", weight);
  require_finite("exponential_displacement", "rise", rise);
  return exponential_displacement(weight, rise, weight == Scalar(0) ? Scalar(0) : Scalar(log(weight)));
}

}  // namespace qkflow
