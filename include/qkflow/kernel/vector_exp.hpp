// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

#include "qkflow/kernel/simd.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

namespace detail {

// e^r on |r| <= ln(2)/2 and 2^f on |f| <= 1/2, both as 1 + x q(x), so that 0 gives exactly 1. Coefficients of q, lowest
// first, from interpolation at Chebyshev nodes in 60 digits; relative error 1.1e-8 (float), 2e-17 (double).
template <class T>
struct ExpCoefficients;

template <>
struct ExpCoefficients<float> {
  static constexpr int count = 6;
  static constexpr float exp[count] = {1.0f, 0.5f, 0.16666505f, 0.041666467f, 0.008369155f, 0.001393365f};
  static constexpr float exp2[count] = {0.69314718f,  0.24022651f,   0.05550357f,
                                        0.009618083f, 0.0013390863f, 0.00015453163f};
  static constexpr float ln2_high = 0.693145751953125f;  // 15 bits: n ln2_high is exact for every exponent n
  static constexpr float ln2_low = 1.42860682e-6f;
  static constexpr float lowest = -87.3365402f;  // log of the smallest normal number, rounded up
  static constexpr float highest = 88.7228317f;  // log of the largest number, rounded down
  // Adding it rounds to an integer and leaves that integer, plus the exponent bias, in the low bits.
  static constexpr float shifter = 12582912.0f + 127.0f;
  static constexpr float exponent_bias = 127.0f;
};

template <>
struct ExpCoefficients<double> {
  static constexpr int count = 11;
  static constexpr double exp[count] = {1.0,
                                        0.5000000000000006,
                                        0.1666666666666667,
                                        0.041666666666573066,
                                        0.008333333333326136,
                                        0.001388888893251478,
                                        0.00019841269874820627,
                                        2.480150431378554e-05,
                                        2.7557255400206422e-06,
                                        2.7626371065696354e-07,
                                        2.5105217004720745e-08};
  static constexpr double exp2[count] = {0.6931471805599453,    0.24022650695910097,   0.0555041086648216,
                                         0.009618129107606888,  0.0013333558146416936, 0.0001540353044173605,
                                         1.525273382983612e-05, 1.321544258792169e-06, 1.0178062445845774e-07,
                                         7.072585949269223e-09, 4.4549605981865186e-10};
  static constexpr double ln2_high = 0.6931471805582987;  // 39 bits
  static constexpr double ln2_low = 1.646594958289708e-12;
  static constexpr double lowest = -708.3964185322641;
  static constexpr double highest = 709.782712893384;
  static constexpr double shifter = 6755399441055744.0 + 1023.0;
  static constexpr double exponent_bias = 1023.0;
};

template <class T>
simd::Pack<T> one_plus_polynomial(const T (&coefficients)[ExpCoefficients<T>::count], const simd::Pack<T>& x) {
  simd::Pack<T> q = simd::broadcast(coefficients[ExpCoefficients<T>::count - 1]);
  QKFLOW_UNROLL
  for (int i = ExpCoefficients<T>::count - 2; i >= 0; --i)
    q = simd::multiply_add<T>(q, x, simd::broadcast(coefficients[i]));
  return simd::multiply_add<T>(q, x, simd::broadcast(T(1)));
}

}  // namespace detail

namespace simd {

/// 2^x lane by lane for x <= 0, the form softmax needs: a dozen instructions. Relative error at most 1.5 epsilon for
/// x in [log2 of the smallest normal, 0]; exactly 1 at 0; exactly 0 at and below -127 (float) or -1023 (double) and at
/// -infinity; between the two the result is subnormal or 0. Also right, with the same error, for 0 < x < 127 (float) or
/// 1023 (double). NaN is not kept.
template <KernelScalar T>
Pack<T> exp2_nonpositive(Pack<T> x) {
  using C = detail::ExpCoefficients<T>;
  x = maximum<T>(x, broadcast(-C::exponent_bias));
  const Pack<T> shifted = x + broadcast(C::shifter);
  const Pack<T> fraction = x - (shifted - broadcast(C::shifter));
  // At the floor the exponent field is empty, and the factor an exact zero.
  return detail::one_plus_polynomial<T>(C::exp2, fraction) * low_bits_to_exponent<T>(shifted);
}

/// e^x lane by lane: see `vector_exp`.
template <KernelScalar T>
Pack<T> exp(const Pack<T>& x) {
  using C = detail::ExpCoefficients<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const Pack<T> bounded =
      if_less<T>(x, broadcast(C::highest), maximum<T>(x, broadcast(C::lowest)), broadcast(C::highest));
  const Pack<T> shifter = broadcast(C::shifter - C::exponent_bias);
  const Pack<T> shifted = multiply_add<T>(bounded, broadcast(T(1.44269504088896340736L)), shifter);
  const Pack<T> n = shifted - shifter;
  Pack<T> r = multiply_add<T>(n, broadcast(-C::ln2_high), bounded);
  r = multiply_add<T>(n, broadcast(-C::ln2_low), r);
  // Added to the exponent rather than multiplied by 2^n: 2^128, needed just below the overflow, has no float.
  Pack<T> result = add_to_exponent<T>(detail::one_plus_polynomial<T>(C::exp, r), shifted);
  result = if_less<T>(x, broadcast(C::lowest), broadcast(T(0)), result);
  result = if_less<T>(broadcast(C::highest), x, broadcast(infinity), result);
  return keep_nan<T>(x, result);
}

}  // namespace simd

/// y_i = e^{x_i}, i < count. Relative error at most 2 epsilon (1 ulp is between 0.5 and 1 epsilon) from log of the
/// smallest normal number to log of the largest: float [-87.336, 88.722], double [-708.396, 709.782]. Below that range
/// exactly 0 (nothing subnormal is ever written, and -infinity, a masked score, gives an exact 0), above it +infinity;
/// NaN stays NaN. `x` and `y` may be the same array. Every element is treated alike: the result does not depend on
/// position or length. Does not allocate.
template <simd::KernelScalar T>
void vector_exp(const T* x, T* y, Eigen::Index count) {
  constexpr int lanes = simd::lanes<T>;
  Eigen::Index i = 0;
  for (; i + lanes <= count; i += lanes) simd::store<T>(y + i, simd::exp<T>(simd::load(x + i)));
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    simd::store_first<T>(y + i, rest, simd::exp<T>(simd::load_first(x + i, rest, T(0))));
  }
}

/// The same on dense Eigen vectors and matrices (anything that has data() without gaps); `y` must have the size of `x`.
template <class In, class Out>
void vector_exp(const Eigen::PlainObjectBase<In>& x, Eigen::PlainObjectBase<Out>& y) {
  if (x.size() != y.size()) throw_invalid("vector_exp", "size of y", y.size(), "equal the size of x");
  vector_exp(x.data(), y.data(), x.size());
}

}  // namespace qkflow
