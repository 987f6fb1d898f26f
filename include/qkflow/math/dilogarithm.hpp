// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <boost/math/constants/constants.hpp>
#include <boost/math/special_functions/bernoulli.hpp>
#include <cmath>
#include <cstddef>
#include <limits>

#include "qkflow/math/require.hpp"

namespace qkflow {
namespace detail {

/// B_{2k} / (2k+1)!, k = 1, 2, ...: the series of the dilogarithm in u = -log(1 - x) [Lewin81].
template <class Scalar>
const auto& dilogarithm_coefficients() {
  // |u| <= log 2: a term is (u / 2 pi)^2 = 0.0122 of the one before.
  constexpr std::size_t count = std::numeric_limits<Scalar>::digits * 16 / 100 + 3;
  static const std::array<Scalar, count> coefficients = [] {
    std::array<Scalar, count> c{};
    Scalar factorial(1);
    for (std::size_t k = 1; k <= count; ++k) {
      factorial *= Scalar(2 * k) * Scalar(2 * k + 1);
      c[k - 1] = boost::math::bernoulli_b2n<Scalar>(static_cast<int>(k)) / factorial;
    }
    return c;
  }();
  return coefficients;
}

/// -1 <= x <= 1/2
template <class Scalar>
Scalar dilogarithm_series(const Scalar& x) {
  using std::log1p;
  const auto& coefficients = dilogarithm_coefficients<Scalar>();
  const Scalar u = -log1p(-x);
  const Scalar square = u * u;
  Scalar sum(0);
  for (std::size_t k = coefficients.size(); k-- > 0;) sum = sum * square + coefficients[k];
  return u * (Scalar(1) - u / Scalar(4) + square * sum);
}

}  // namespace detail

/// The dilogarithm of a real x <= 1 [Lewin81]:
///
///     Li_2(x) = -int_0^x log(1 - t) / t dt = sum_k x^k / k^2  (|x| <= 1)
///
/// Relative error below 8 epsilon (tests/math/dilogarithm_test.cpp, against 50 digits) for every finite x up to 1;
/// Li_2(-infinity) = -infinity, NaN stays NaN. Beyond 1 it is complex: InvalidArgument. Does not allocate.
template <class Scalar>
Scalar dilogarithm(const Scalar& x) {
  using std::log;
  using std::log1p;
  if (x > Scalar(1)) throw_invalid("dilogarithm", "x", x, "be at most 1: beyond, the dilogarithm is complex");
  const Scalar sixth = boost::math::constants::pi_sqr_div_six<Scalar>();
  if (x < Scalar(-1)) {
    const Scalar l = log(-x);
    return -sixth - l * l / Scalar(2) - detail::dilogarithm_series(Scalar(Scalar(1) / x));
  }
  if (x <= Scalar(0.5)) return detail::dilogarithm_series(x);
  if (x == Scalar(1)) return sixth;
  return sixth - log(x) * log1p(-x) - detail::dilogarithm_series(Scalar(Scalar(1) - x));
}

}  // namespace qkflow
