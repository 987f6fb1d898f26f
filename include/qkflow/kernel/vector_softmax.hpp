// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/kernel/vector_exp.hpp"

namespace qkflow {

namespace detail {

/// Calls body(first element, number of elements) for every register of an array, the last perhaps not full.
template <class T, class Body>
void for_each_pack(Eigen::Index count, const Body& body) {
  constexpr int lanes = simd::lanes<T>;
  Eigen::Index i = 0;
  for (; i + lanes <= count; i += lanes) body(i, lanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

template <class T>
simd::Pack<T> load_filled(const T* from, int filled, T fill) {
  return filled == simd::lanes<T> ? simd::load(from) : simd::load_first(from, filled, fill);
}

template <class T>
void store_filled(T* to, int filled, const simd::Pack<T>& x) {
  filled == simd::lanes<T> ? simd::store(to, x) : simd::store_first(to, filled, x);
}

template <class T>
T largest_of(const T* x, Eigen::Index count) {
  simd::Pack<T> high = simd::broadcast(-std::numeric_limits<T>::infinity());
  for_each_pack<T>(count, [&](Eigen::Index i, int filled) {
    high = simd::maximum<T>(high, load_filled(x + i, filled, -std::numeric_limits<T>::infinity()));
  });
  return simd::largest(high);
}

/// Writes e^{x_i - high} to `weights` (may be null: then they are only summed) and returns their sum.
template <class T>
T exp_and_sum(const T* x, T* weights, Eigen::Index count, T high) {
  constexpr int lanes = simd::lanes<T>;
  const simd::Pack<T> shift = simd::broadcast(high);
  simd::Pack<T> even = simd::broadcast(T(0)), odd = even;  // two chains: an addition has to wait for the one before
  for_each_pack<T>(count, [&](Eigen::Index i, int filled) {
    const auto weight = simd::exp<T>(load_filled(x + i, filled, -std::numeric_limits<T>::infinity()) - shift);
    if (weights != nullptr) store_filled(weights + i, filled, weight);
    (i / lanes % 2 == 0 ? even : odd) = (i / lanes % 2 == 0 ? even : odd) + weight;
  });
  return simd::sum<T>(even + odd);
}

}  // namespace detail

/// log(sum_i e^{x_i}), i < count, for any x. Absolute error at most epsilon (|result| + 4 + count / lanes). Empty or
/// all -infinity: -infinity. +infinity among finite numbers: +infinity. Any NaN: NaN. Does not allocate.
template <simd::KernelScalar T>
T vector_log_sum_exp(const T* x, Eigen::Index count) {
  const T high = detail::largest_of(x, count);
  const T sum = detail::exp_and_sum<T>(x, nullptr, count, std::isinf(high) ? T(0) : high);
  if (high == -std::numeric_limits<T>::infinity()) return sum == T(0) ? high : sum;  // a NaN is in the sum alone
  return std::isinf(high) ? sum : high + std::log(sum);
}

/// p_i = e^{x_i} / sum_j e^{x_j}, i < count; `p` may be `x`. Relative error at most epsilon (4 + |x_i - max x| / 2 +
/// count / lanes), and p_i is exactly 0 below the smallest normal number: entries of -infinity are masked. All masked,
/// or empty: all zeros. NaN or +infinity anywhere: every p_i is NaN. Returns log(sum_j e^{x_j}), the number the
/// backward pass can rebuild p from. Does not allocate.
template <simd::KernelScalar T>
T vector_softmax(const T* x, T* p, Eigen::Index count) {
  const T high = detail::largest_of(x, count);
  const T sum = detail::exp_and_sum<T>(x, p, count, high == -std::numeric_limits<T>::infinity() ? T(0) : high);
  if (sum == T(0)) return -std::numeric_limits<T>::infinity();
  const simd::Pack<T> scale = simd::broadcast(T(1) / sum);
  detail::for_each_pack<T>(count, [&](Eigen::Index i, int filled) {
    detail::store_filled<T>(p + i, filled, detail::load_filled(p + i, filled, T(0)) * scale);
  });
  return high + std::log(sum);
}

/// Softmax backward: ds_i = p_i (dp_i - sum_j p_j dp_j), i < count; `ds` may be `p` or `dp`. Absolute error at most
/// epsilon p_i (2 |dp_i| + (3 + count / lanes) sum_j p_j |dp_j|). Does not allocate.
template <simd::KernelScalar T>
void vector_softmax_backward(const T* p, const T* dp, T* ds, Eigen::Index count) {
  simd::Pack<T> products = simd::broadcast(T(0));
  detail::for_each_pack<T>(count, [&](Eigen::Index i, int filled) {
    products = simd::multiply_add<T>(detail::load_filled(p + i, filled, T(0)),
                                     detail::load_filled(dp + i, filled, T(0)), products);
  });
  const simd::Pack<T> mean = simd::broadcast(simd::sum(products));
  detail::for_each_pack<T>(count, [&](Eigen::Index i, int filled) {
    const auto weight = detail::load_filled(p + i, filled, T(0));
    detail::store_filled<T>(ds + i, filled, weight * (detail::load_filled(dp + i, filled, T(0)) - mean));
  });
}

}  // namespace qkflow
