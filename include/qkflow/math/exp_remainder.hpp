// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/version.hpp"

namespace qkflow {

/// e^x - 1 - x, never negative, without the cancellation around 0 (where it is x^2 / 2). Relative error below
/// 8 epsilon for every x (tests/math/exp_remainder_test.cpp); infinite where e^x is. Does not allocate.
template <class Scalar>
Scalar exp_remainder(const Scalar& x) {
  using std::abs;
  using std::expm1;
  if (!(abs(x) < Scalar(1))) {
    const Scalar grown = expm1(x);
    return grown > std::numeric_limits<Scalar>::max() ? grown : Scalar(grown - x);
  }
  // The Taylor series from its far end: x^2/2 (1 + x/3 (1 + x/4 (1 + ...))). Enough terms for |x| < 1: n! > 2^digits.
  constexpr int digits = std::numeric_limits<Scalar>::digits;
  constexpr int terms = digits <= 24 ? 12 : digits <= 64 ? 22 : 12 + digits / 4;
  Scalar sum(1);
  for (int k = terms; k >= 3; --k) sum = Scalar(1) + x / Scalar(k) * sum;
  return x * x / Scalar(2) * sum;
}

}  // namespace qkflow
