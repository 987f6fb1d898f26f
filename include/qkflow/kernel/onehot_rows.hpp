// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "qkflow/kernel/simd.hpp"

namespace qkflow::detail {

/// Coefficients of sums of rows, any two strides: of(o, k) = data[o * out + k * sum].
template <class T>
struct RowCoefficients {
  const T* data;
  std::ptrdiff_t out, sum;
};

/// Rows of one width, a whole number of registers; row k is number index[k] where there is an index.
template <class T>
struct RowTable {
  const T* data;
  std::ptrdiff_t stride;
  const std::int32_t* index = nullptr;
};

/// O rows of P registers each: they, and nothing else, live in registers over the whole sum.
template <simd::KernelScalar T, int O, int P, bool Indexed>
inline void sum_rows_tile(T* out, std::ptrdiff_t out_stride, const RowCoefficients<T>& coefficients,
                          const RowTable<T>& rows, std::ptrdiff_t count) {
  using Pack = simd::Pack<T>;
  constexpr int lanes = simd::lanes<T>;
  Pack sums[O][P];
  QKFLOW_UNROLL
  for (int o = 0; o < O; ++o) {
    QKFLOW_UNROLL
    for (int p = 0; p < P; ++p) sums[o][p] = simd::broadcast(T(0));
  }
  const T* coefficient = coefficients.data;
  for (std::ptrdiff_t k = 0; k < count; ++k, coefficient += coefficients.sum) {
    const T* row = rows.data + (Indexed ? std::ptrdiff_t{rows.index[k]} : k) * rows.stride;
    Pack values[P];
    QKFLOW_UNROLL
    for (int p = 0; p < P; ++p) values[p] = simd::load(row + p * lanes);
    QKFLOW_UNROLL
    for (int o = 0; o < O; ++o) {
      const Pack factor = simd::broadcast(coefficient[o * coefficients.out]);
      QKFLOW_UNROLL
      for (int p = 0; p < P; ++p) sums[o][p] = simd::multiply_add<T>(factor, values[p], sums[o][p]);
    }
  }
  QKFLOW_UNROLL
  for (int o = 0; o < O; ++o) {
    QKFLOW_UNROLL
    for (int p = 0; p < P; ++p) simd::store(out + o * out_stride + p * lanes, sums[o][p]);
  }
}

template <simd::KernelScalar T, int P, bool Indexed>
void sum_rows_strip(T* out, std::ptrdiff_t out_stride, std::ptrdiff_t out_count, RowCoefficients<T> coefficients,
                    const RowTable<T>& rows, std::ptrdiff_t count) {
  // As many sums as the registers hold beside a row: 32 registers with AVX-512, 16 before.
  constexpr int most = sizeof(simd::Pack<T>) >= 64 ? 4 : 2;
  std::ptrdiff_t o = 0;
  for (; o + most <= out_count; o += most) {
    sum_rows_tile<T, most, P, Indexed>(out, out_stride, coefficients, rows, count);
    out += most * out_stride;
    coefficients.data += most * coefficients.out;
  }
  if constexpr (most > 2) {
    if (o + 2 <= out_count) {
      sum_rows_tile<T, 2, P, Indexed>(out, out_stride, coefficients, rows, count);
      out += 2 * out_stride;
      coefficients.data += 2 * coefficients.out;
      o += 2;
    }
  }
  if (o < out_count) sum_rows_tile<T, 1, P, Indexed>(out, out_stride, coefficients, rows, count);
}

/// out[o] = sum_k coefficients(o, k) rows[k] for o < out_count, k < count: the one product the one-hot head is made of.
/// `width`, the length of a row, is a whole number of registers; out must overlap neither coefficients nor rows.
template <simd::KernelScalar T>
void sum_rows(T* out, std::ptrdiff_t out_stride, std::ptrdiff_t out_count, const RowCoefficients<T>& coefficients,
              const RowTable<T>& rows, std::ptrdiff_t count, std::ptrdiff_t width) {
  constexpr int lanes = simd::lanes<T>;
  for (std::ptrdiff_t from = 0; from < width; from += 4 * lanes) {
    const std::ptrdiff_t packs = (width - from) / lanes;
    const RowTable<T> strip{rows.data + from, rows.stride, rows.index};
    const auto run = [&]<int P>() {
      if (rows.index == nullptr) {
        sum_rows_strip<T, P, false>(out + from, out_stride, out_count, coefficients, strip, count);
      } else {
        sum_rows_strip<T, P, true>(out + from, out_stride, out_count, coefficients, strip, count);
      }
    };
    if (packs >= 4) {
      run.template operator()<4>();
    } else if (packs == 3) {
      run.template operator()<3>();
    } else if (packs == 2) {
      run.template operator()<2>();
    } else {
      run.template operator()<1>();
    }
  }
}

/// Dot product of two vectors of a whole number of registers.
template <simd::KernelScalar T>
T dot_padded(const T* a, const T* b, std::ptrdiff_t width) {
  constexpr int lanes = simd::lanes<T>;
  simd::Pack<T> sum = simd::broadcast(T(0));
  for (std::ptrdiff_t i = 0; i < width; i += lanes)
    sum = simd::multiply_add<T>(simd::load(a + i), simd::load(b + i), sum);
  return simd::sum<T>(sum);
}

}  // namespace qkflow::detail
