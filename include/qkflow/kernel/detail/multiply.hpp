// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <type_traits>

#include "qkflow/kernel/simd.hpp"

/// The one matrix product behind every attention kernel: c += a b on small tiles, c and b row-major with rows a whole
/// number of registers wide, a read one number at a time and broadcast. Its operands lie in the first two cache levels,
/// so blocking for registers is all it does.

namespace qkflow::detail {

using Eigen::Index;

/// How many rows and registers of c are held in registers at once.
template <class T>
struct RegisterTile {
  static constexpr bool wide = sizeof(simd::Pack<T>) == 64;  // 32 registers come with AVX-512
  static constexpr int most_vectors = wide ? 4 : 2;
  static constexpr int rows(int vectors) {
    if (!wide) return vectors == 1 ? 8 : 6;
    return vectors == 1 ? 12 : vectors == 2 ? 12 : vectors == 3 ? 8 : 6;
  }
};

/// What c holds before the product is added: nothing yet, itself, or itself with row i multiplied by factor[i].
enum class Start { zero, keep, scale };

/// How a is stored: a(i, k) = data[i * stride + k] or data[k * stride + i].
enum class Storage { by_row, by_column };

template <class T>
struct Product {
  const T* a;
  Index a_stride;
  const T* b;
  Index b_stride;
  T* c;
  Index c_stride;
  Index depth;
  Start start = Start::zero;
  const T* factor = nullptr;
};

/// Part [begin, end) of the sum over k.
struct Range {
  Index begin, end;
};

template <class T, int Rows, int Vectors, Storage A>
void multiply_tile(const Product<T>& p, Index row, Index column, Range range) {
  constexpr int lanes = simd::lanes<T>;
  simd::Pack<T> sum[Rows][Vectors];
  T* const c = p.c + row * p.c_stride + column;
  if (p.start == Start::zero) {
    QKFLOW_UNROLL
    for (int i = 0; i < Rows; ++i) {
      QKFLOW_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = simd::broadcast(T(0));
    }
  } else {
    QKFLOW_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const simd::Pack<T> factor = simd::broadcast(p.start == Start::scale ? p.factor[row + i] : T(1));
      QKFLOW_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = simd::load(c + i * p.c_stride + j * lanes) * factor;
    }
  }
  const Index a_row = A == Storage::by_row ? p.a_stride : 1, a_column = A == Storage::by_row ? 1 : p.a_stride;
  const T* a = p.a + row * a_row + range.begin * a_column;
  const T* b = p.b + column + range.begin * p.b_stride;
  for (Index k = range.end - range.begin; k > 0; --k, a += a_column, b += p.b_stride) {
    simd::Pack<T> right[Vectors];
    QKFLOW_UNROLL
    for (int j = 0; j < Vectors; ++j) right[j] = simd::load(b + j * lanes);
    QKFLOW_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const simd::Pack<T> left = simd::broadcast(a[i * a_row]);
      QKFLOW_UNROLL
      for (int j = 0; j < Vectors; ++j) sum[i][j] = simd::multiply_add<T>(left, right[j], sum[i][j]);
    }
  }
  QKFLOW_UNROLL
  for (int i = 0; i < Rows; ++i) {
    QKFLOW_UNROLL
    for (int j = 0; j < Vectors; ++j) simd::store<T>(c + i * p.c_stride + j * lanes, sum[i][j]);
  }
}

/// Rows [first, last) of a strip of `Vectors` registers. `range_of(first row, end row)` says how much of p.depth a
/// group of rows needs: causal tiles need less for their upper rows.
template <class T, int Vectors, Storage A, class RangeOf>
void multiply_strip(const Product<T>& p, Index first, Index last, Index column, const RangeOf& range_of) {
  constexpr int rows = RegisterTile<T>::rows(Vectors);
  Index i = first;
  const auto group = [&](auto size) {
    constexpr int count = decltype(size)::value;
    for (; i + count <= last; i += count) {
      multiply_tile<T, count, Vectors, A>(p, i, column, range_of(i, i + count));
    }
  };
  group(std::integral_constant<int, rows>{});
  if constexpr (rows > 4) group(std::integral_constant<int, 4>{});
  group(std::integral_constant<int, 2>{});
  group(std::integral_constant<int, 1>{});
}

/// c(i, :) for rows [first, last) and the first `vectors` registers of every row.
template <class T, Storage A, class RangeOf>
void multiply(const Product<T>& p, Index first, Index last, Index vectors, const RangeOf& range_of) {
  constexpr int most = RegisterTile<T>::most_vectors, lanes = simd::lanes<T>;
  Index j = 0;
  for (; j + most <= vectors; j += most) multiply_strip<T, most, A>(p, first, last, j * lanes, range_of);
  switch (vectors - j) {
    case 3:
      if constexpr (most > 3) multiply_strip<T, 3, A>(p, first, last, j * lanes, range_of);
      break;
    case 2:
      if constexpr (most > 2) multiply_strip<T, 2, A>(p, first, last, j * lanes, range_of);
      break;
    case 1:
      multiply_strip<T, 1, A>(p, first, last, j * lanes, range_of);
      break;
    default:
      break;
  }
}

template <class T, Storage A>
void multiply(const Product<T>& p, Index first, Index last, Index vectors) {
  multiply<T, A>(p, first, last, vectors, [&](Index, Index) { return Range{0, p.depth}; });
}

}  // namespace qkflow::detail
