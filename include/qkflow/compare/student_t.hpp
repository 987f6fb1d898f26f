// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// P(|T| <= t) for Student's t with a whole number of degrees of freedom, a finite sum of cosines [Abramowitz64,
/// 26.7.3-4]. With theta = arctan(t / sqrt(nu)):
///
///     nu even  sin theta (1 + cos^2/2 + 1 3/(2 4) cos^4 + ... up to cos^(nu - 2))
///     nu odd   (2/pi) (theta + sin theta (cos + 2/3 cos^3 + ... up to cos^(nu - 2)))
///
/// nu terms at most: meant for up to some ten thousand. Throws InvalidArgument for nu = 0 or t below 0.
inline double student_t_probability(double t, std::size_t degrees) {
  if (degrees < 1) throw_invalid("student_t_probability", "degrees", degrees, "be at least 1");
  if (!(t >= 0)) throw_invalid("student_t_probability", "t", t, "be at least 0");
  const double nu = static_cast<double>(degrees), theta = std::atan(t / std::sqrt(nu));
  const double sine = std::sin(theta), square = nu / (nu + t * t);  // cos^2
  const bool odd = degrees % 2 == 1;
  double term = odd ? std::cos(theta) : 1, sum = degrees == 1 ? 0 : term;
  for (std::size_t power = odd ? 3 : 2; power + 2 <= degrees; power += 2) {
    const double k = static_cast<double>(power);
    term *= square * (k - 1) / k;
    sum += term;
  }
  return odd ? 2 / std::numbers::pi * (theta + sine * sum) : sine * sum;
}

/// The t for which P(|T| <= t) is `confidence`: the factor of a two-sided confidence interval, 1.96 for 95 % and many
/// degrees of freedom. By bisection. Throws InvalidArgument for nu = 0 or a confidence that is not between 0 and 1.
inline double student_t_factor(double confidence, std::size_t degrees) {
  constexpr const char* function = "student_t_factor";
  if (degrees < 1) throw_invalid(function, "degrees", degrees, "be at least 1");
  if (!(confidence > 0 && confidence < 1)) throw_invalid(function, "confidence", confidence, "be between 0 and 1");
  double low = 0, high = 1;
  while (student_t_probability(high, degrees) < confidence && high < 1e300) high *= 2;
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (student_t_probability(middle, degrees) < confidence ? low : high) = middle;
  }
}

}  // namespace qkflow
