// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// log(1 + e^x) for every x: never overflows, keeps relative accuracy as x -> -infinity (within a few ulp, plus |x| ulp
/// from the exponential itself).
template <class Scalar>
Scalar softplus(const Scalar& x) {
  using std::exp;
  using std::log1p;
  return x > Scalar(0) ? x + log1p(exp(-x)) : log1p(exp(x));
}

/// log(e^a + e^b); -infinity stands for a zero term, and two of them give -infinity. NaN stays NaN.
template <class Scalar>
Scalar log_add_exp(const Scalar& a, const Scalar& b) {
  const Scalar high = a < b ? b : a;
  const Scalar low = a < b ? a : b;
  if (high == low) {  // also where both are infinite
    using std::log;
    return high + log(Scalar(2));
  }
  return high + softplus(Scalar(low - high));
}

/// log(sum_i e^{x_i}) of a vector. Empty or all -infinity: -infinity. Any +infinity: +infinity. Any NaN: NaN.
/// Does not allocate.
template <class Derived>
typename Derived::Scalar log_sum_exp(const Eigen::DenseBase<Derived>& x) {
  using Scalar = typename Derived::Scalar;
  using std::exp;
  using std::isnan;
  using std::log;
  Scalar high = -std::numeric_limits<Scalar>::infinity();
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    const Scalar value = x.derived().coeff(i);
    if (isnan(value)) return value;
    if (value > high) high = value;
  }
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  if (high == infinity || high == -infinity) return high;
  Scalar sum(0);
  for (Eigen::Index i = 0; i < x.size(); ++i) sum += exp(Scalar(x.derived().coeff(i) - high));
  return high + log(sum);
}

/// softmax(x)_i = e^{x_i} / sum_j e^{x_j}, written to `p` (same length). Survives any finite input; entries of
/// -infinity are masked: exactly 0. An all-masked vector gives all zeros. +infinity and NaN are refused
/// (InvalidArgument). Does not allocate.
template <class In, class Out>
void softmax(const Eigen::DenseBase<In>& x, Eigen::DenseBase<Out>& p) {
  using Scalar = typename In::Scalar;
  using std::exp;
  if (p.size() != x.size()) throw_invalid("softmax", "size of p", p.size(), "equal the size of x");
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  Scalar high = -infinity;
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    const Scalar value = x.derived().coeff(i);
    if (!(value < infinity)) throw_invalid("softmax", "x", value, "be finite, or -infinity for a masked entry");
    if (value > high) high = value;
  }
  Scalar sum(0);
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    const Scalar value = x.derived().coeff(i);
    // Masked entries are written as an exact zero: a vectorized exp(-infinity) may be a denormal instead.
    const Scalar weight = value == -infinity ? Scalar(0) : Scalar(exp(Scalar(value - high)));
    p.derived().coeffRef(i) = weight;
    sum += weight;
  }
  if (sum > Scalar(0)) p.derived() /= sum;
}

}  // namespace qkflow
