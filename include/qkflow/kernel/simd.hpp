// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

/// The one header that knows how SIMD is spelled. With xsimd installed a `Pack` is a register of the instruction set
/// the program is compiled for (SSE2 to AVX-512 on x86, NEON on Arm); without it, or with QKFLOW_SCALAR_KERNELS
/// defined, it is a single number, and every kernel still compiles and gives the same results to rounding.
///
/// As with Eigen, all translation units of a program have to be compiled for the same instruction set.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "qkflow/version.hpp"

#if !defined(QKFLOW_SCALAR_KERNELS) && __has_include(<xsimd/xsimd.hpp>)
#include <xsimd/xsimd.hpp>
#if !defined(XSIMD_NO_SUPPORTED_ARCHITECTURE) && XSIMD_VERSION_MAJOR >= 8  // 7 had another interface
#define QKFLOW_HAS_XSIMD 1
#endif
#endif

// Loops over registers must be unrolled, or the accumulators live in memory; -O2 alone does not do it.
#if defined(__clang__)
#define QKFLOW_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define QKFLOW_UNROLL _Pragma("GCC unroll 32")
#else
#define QKFLOW_UNROLL
#endif

namespace qkflow::simd {

/// The scalars that have kernels.
template <class T>
concept KernelScalar = std::is_same_v<T, float> || std::is_same_v<T, double>;

#if defined(QKFLOW_HAS_XSIMD)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined registers inside its own AVX-512 shuffles for a mistake of the caller.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

template <KernelScalar T>
using Pack = xsimd::batch<T>;

/// Numbers in a register.
template <KernelScalar T>
inline constexpr int lanes = static_cast<int>(Pack<T>::size);

/// Name of the instruction set in use, for reports.
inline const char* instruction_set() { return xsimd::default_arch::name(); }

/// Reads or writes `lanes<T>` numbers; no alignment is asked for.
template <KernelScalar T>
Pack<T> load(const T* from) {
  return Pack<T>::load_unaligned(from);
}
template <KernelScalar T>
void store(T* to, const Pack<T>& x) {
  x.store_unaligned(to);
}
template <KernelScalar T>
Pack<T> broadcast(T x) {
  return Pack<T>(x);
}
/// a b + c, fused where the instruction set has it.
template <KernelScalar T>
Pack<T> multiply_add(const Pack<T>& a, const Pack<T>& b, const Pack<T>& c) {
  return xsimd::fma(a, b, c);
}
/// Larger of two; `b` where either is NaN (as x86 does, and as the scalar version below).
template <KernelScalar T>
Pack<T> maximum(const Pack<T>& a, const Pack<T>& b) {
  return xsimd::max(a, b);
}
/// a < b ? x : y, lane by lane; NaN compares false.
template <KernelScalar T>
Pack<T> if_less(const Pack<T>& a, const Pack<T>& b, const Pack<T>& x, const Pack<T>& y) {
  return xsimd::select(a < b, x, y);
}
/// x where x is NaN, else y.
template <KernelScalar T>
Pack<T> keep_nan(const Pack<T>& x, const Pack<T>& y) {
  return xsimd::select(x == x, y, x);
}
/// Reads the low bits of x as an integer and moves them up into the exponent field: 2^(integer - bias).
template <KernelScalar T>
Pack<T> low_bits_to_exponent(const Pack<T>& x) {
  using Int = xsimd::batch<std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>>;
  constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  return xsimd::bitwise_cast<Pack<T>>(xsimd::bitwise_cast<Int>(x) << mantissa);
}
/// x 2^n, n being the integer in the low bits of `shifted`: right while x and the result are normal numbers.
template <KernelScalar T>
Pack<T> add_to_exponent(const Pack<T>& x, const Pack<T>& shifted) {
  using Int = xsimd::batch<std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>>;
  constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  return xsimd::bitwise_cast<Pack<T>>(xsimd::bitwise_cast<Int>(x) + (xsimd::bitwise_cast<Int>(shifted) << mantissa));
}
template <KernelScalar T>
T sum(const Pack<T>& x) {
  return xsimd::hadd(x);
}
/// Lane i of the result is the sum of all lanes of rows[i]; `rows` holds `lanes<T>` packs.
template <KernelScalar T>
Pack<T> sum_each(const Pack<T>* rows) {
#if defined(__AVX512F__)
  // xsimd 8.1 returns these sums in a wrong order, so here is the tree by hand: sum pairs of columns within each
  // quarter of the register while interleaving rows, then sum the quarters.
  if constexpr (std::is_same_v<T, float> && lanes<T> == 16) {
    __m512 quarter[4];
    QKFLOW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512 a = rows[4 * i], b = rows[4 * i + 1], c = rows[4 * i + 2], d = rows[4 * i + 3];
      const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
      const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
      quarter[i] =
          _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    const auto fold = [](__m512 x, __m512 y) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    };
    return fold(fold(quarter[0], quarter[1]), fold(quarter[2], quarter[3]));
  } else if constexpr (std::is_same_v<T, double> && lanes<T> == 8) {
    __m512d quarter[4];
    QKFLOW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512d a = rows[2 * i], b = rows[2 * i + 1];
      quarter[i] = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
    }
    const auto fold = [](__m512d x, __m512d y) {
      return _mm512_add_pd(_mm512_shuffle_f64x2(x, y, 0x88), _mm512_shuffle_f64x2(x, y, 0xdd));
    };
    return fold(fold(quarter[0], quarter[1]), fold(quarter[2], quarter[3]));
  } else
#endif
  {
    return xsimd::haddp(rows);
  }
}
/// Lane i is base[index[i]].
template <KernelScalar T>
Pack<T> gather(const T* base, const std::int32_t* index) {
  // Element loads rather than the gather instruction: as fast or faster on the processors tried, and on all of them
  // safe with any index type.
  alignas(sizeof(Pack<T>)) T values[lanes<T>];
  for (int i = 0; i < lanes<T>; ++i) values[i] = base[index[i]];
  return Pack<T>::load_aligned(values);
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#else

template <KernelScalar T>
struct Pack {
  T value;
  Pack() = default;
  explicit Pack(T x) : value(x) {}
  friend Pack operator+(Pack a, Pack b) { return Pack(a.value + b.value); }
  friend Pack operator-(Pack a, Pack b) { return Pack(a.value - b.value); }
  friend Pack operator*(Pack a, Pack b) { return Pack(a.value * b.value); }
  friend Pack operator/(Pack a, Pack b) { return Pack(a.value / b.value); }
};

template <KernelScalar T>
inline constexpr int lanes = 1;

inline const char* instruction_set() { return "scalar"; }

template <KernelScalar T>
Pack<T> load(const T* from) {
  return Pack<T>(*from);
}
template <KernelScalar T>
void store(T* to, const Pack<T>& x) {
  *to = x.value;
}
template <KernelScalar T>
Pack<T> broadcast(T x) {
  return Pack<T>(x);
}
template <KernelScalar T>
Pack<T> multiply_add(const Pack<T>& a, const Pack<T>& b, const Pack<T>& c) {
  return Pack<T>(a.value * b.value + c.value);
}
template <KernelScalar T>
Pack<T> maximum(const Pack<T>& a, const Pack<T>& b) {
  return a.value > b.value ? a : b;
}
template <KernelScalar T>
Pack<T> if_less(const Pack<T>& a, const Pack<T>& b, const Pack<T>& x, const Pack<T>& y) {
  return a.value < b.value ? x : y;
}
template <KernelScalar T>
Pack<T> keep_nan(const Pack<T>& x, const Pack<T>& y) {
  return x.value == x.value ? y : x;
}
template <KernelScalar T>
Pack<T> low_bits_to_exponent(const Pack<T>& x) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return Pack<T>(std::bit_cast<T>(std::bit_cast<Bits>(x.value) << (std::numeric_limits<T>::digits - 1)));
}
template <KernelScalar T>
Pack<T> add_to_exponent(const Pack<T>& x, const Pack<T>& shifted) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  return Pack<T>(std::bit_cast<T>(std::bit_cast<Bits>(x.value) + (std::bit_cast<Bits>(shifted.value) << mantissa)));
}
template <KernelScalar T>
T sum(const Pack<T>& x) {
  return x.value;
}
template <KernelScalar T>
Pack<T> sum_each(const Pack<T>* rows) {
  return rows[0];
}
template <KernelScalar T>
Pack<T> gather(const T* base, const std::int32_t* index) {
  return Pack<T>(base[index[0]]);
}

#endif

/// to[k * to_stride + i] = factor * from[i * from_stride + k] for i, k < 4.
template <KernelScalar T>
void transpose_four(const T* from, std::ptrdiff_t from_stride, T factor, T* to, std::ptrdiff_t to_stride) {
#if defined(QKFLOW_HAS_XSIMD) && defined(__SSE2__)
  if constexpr (std::is_same_v<T, float>) {
    const __m128 f = _mm_set1_ps(factor);
    __m128 a = _mm_mul_ps(f, _mm_loadu_ps(from)), b = _mm_mul_ps(f, _mm_loadu_ps(from + from_stride));
    __m128 c = _mm_mul_ps(f, _mm_loadu_ps(from + 2 * from_stride)),
           d = _mm_mul_ps(f, _mm_loadu_ps(from + 3 * from_stride));
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + to_stride, b);
    _mm_storeu_ps(to + 2 * to_stride, c);
    _mm_storeu_ps(to + 3 * to_stride, d);
  } else {
    const __m128d f = _mm_set1_pd(factor);
    for (int i = 0; i < 4; i += 2) {
      for (int k = 0; k < 4; k += 2) {
        const __m128d a = _mm_mul_pd(f, _mm_loadu_pd(from + i * from_stride + k));
        const __m128d b = _mm_mul_pd(f, _mm_loadu_pd(from + (i + 1) * from_stride + k));
        _mm_storeu_pd(to + k * to_stride + i, _mm_unpacklo_pd(a, b));
        _mm_storeu_pd(to + (k + 1) * to_stride + i, _mm_unpackhi_pd(a, b));
      }
    }
  }
#else
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 4; ++k) to[k * to_stride + i] = factor * from[i * from_stride + k];
  }
#endif
}

/// The first `count` numbers, the remaining lanes `fill`; reads nothing past them.
template <KernelScalar T>
Pack<T> load_first(const T* from, int count, T fill) {
  T values[lanes<T>];
  for (int i = 0; i < lanes<T>; ++i) values[i] = i < count ? from[i] : fill;
  return load(values);
}
/// Writes the first `count` lanes only.
template <KernelScalar T>
void store_first(T* to, int count, const Pack<T>& x) {
  T values[lanes<T>];
  store(values, x);
  for (int i = 0; i < count; ++i) to[i] = values[i];
}
/// first, first + 1, first + 2, ...
template <KernelScalar T>
Pack<T> count_from(T first) {
  T values[lanes<T>];
  for (int i = 0; i < lanes<T>; ++i) values[i] = first + static_cast<T>(i);
  return load(values);
}
/// Largest lane; anything if one is NaN.
template <KernelScalar T>
T largest(const Pack<T>& x) {
  T values[lanes<T>];
  store(values, x);
  QKFLOW_UNROLL
  for (int half = lanes<T> / 2; half > 0; half /= 2) {
    QKFLOW_UNROLL
    for (int i = 0; i < half; ++i) values[i] = values[i] > values[i + half] ? values[i] : values[i + half];
  }
  return values[0];
}

}  // namespace qkflow::simd
