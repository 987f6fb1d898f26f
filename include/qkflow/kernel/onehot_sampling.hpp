// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "qkflow/kernel/simd.hpp"

#if defined(__AVX2__) && !defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace qkflow::detail {

/// Sequences that the sampling kernels treat side by side.
inline constexpr int sampling_lanes = 32;

#if defined(__AVX2__) && !defined(__AVX512F__)
/// All 64 bits of the products of eight words and a constant: compilers take twice as many multiplications.
inline void multiply_words(__m256i x, std::uint32_t factor, __m256i& high, __m256i& low) {
  const __m256i constant = _mm256_set1_epi32(static_cast<int>(factor));
  const __m256i even = _mm256_mul_epu32(x, constant), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), constant);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  low = _mm256_mullo_epi32(x, constant);
}
#endif

/// Philox 4x32 of `sampling_lanes` streams at once: words[4 w + i][l] is word 4 block + i of the stream of sequence
/// first_sequence + l, exactly that of `RandomStream`.
inline void philox_lanes(std::uint32_t block, std::uint32_t first_sequence, std::uint64_t step, std::uint64_t seed,
                         std::uint32_t (&words)[4][sampling_lanes]) {
  const auto step_low = static_cast<std::uint32_t>(step), step_high = static_cast<std::uint32_t>(step >> 32);
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto all = [](std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); };
  for (int l = 0; l < sampling_lanes; l += 8) {
    __m256i c0 = all(block), c2 = all(step_low), c3 = all(step_high);
    __m256i c1 = _mm256_add_epi32(all(first_sequence + static_cast<std::uint32_t>(l)),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    QKFLOW_UNROLL
    for (int round = 0; round < 10; ++round) {
      __m256i a_high, a_low, b_high, b_low;
      multiply_words(c0, 0xD2511F53, a_high, a_low);
      multiply_words(c2, 0xCD9E8D57, b_high, b_low);
      c0 = _mm256_xor_si256(_mm256_xor_si256(b_high, c1), all(k0));
      c1 = b_low;
      c2 = _mm256_xor_si256(_mm256_xor_si256(a_high, c3), all(k1));
      c3 = a_low;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const __m256i results[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(words[i] + l), results[i]);
  }
#else
  for (int l = 0; l < sampling_lanes; ++l) {
    std::uint32_t c0 = block, c1 = first_sequence + static_cast<std::uint32_t>(l), c2 = step_low, c3 = step_high;
    auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    QKFLOW_UNROLL
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c0, b = std::uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    words[0][l] = c0;
    words[1][l] = c1;
    words[2][l] = c2;
    words[3][l] = c3;
  }
#endif
}

/// Two whole numbers below `bound` (at most 2^16) out of each word: the integer part of word / 2^32 * bound, and that
/// of what is left, times bound again. Each value's probability is right to bound^2 / 2^32 relative (155: 6e-6).
template <class Draw>
void draws_from_words(const std::uint32_t (&words)[sampling_lanes], std::uint32_t bound, Draw* first, Draw* second) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  alignas(32) std::uint32_t digits[2][sampling_lanes];
  for (int l = 0; l < sampling_lanes; l += 8) {
    __m256i digit, rest, next, ignored;
    multiply_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + l)), bound, digit, rest);
    multiply_words(rest, bound, next, ignored);
    _mm256_store_si256(reinterpret_cast<__m256i*>(digits[0] + l), digit);
    _mm256_store_si256(reinterpret_cast<__m256i*>(digits[1] + l), next);
  }
  for (int l = 0; l < sampling_lanes; ++l) first[l] = static_cast<Draw>(digits[0][l]);
  for (int l = 0; l < sampling_lanes; ++l) second[l] = static_cast<Draw>(digits[1][l]);
#else
  for (int l = 0; l < sampling_lanes; ++l) {
    const std::uint64_t product = std::uint64_t{words[l]} * bound;
    const std::uint64_t rest = (product & 0xFFFFFFFFU) * bound;
    first[l] = static_cast<Draw>(product >> 32);
    second[l] = static_cast<Draw>(rest >> 32);
  }
#endif
}

/// Bytes of an integer register.
#if defined(__AVX512BW__)
inline constexpr int sampling_register = 64;
#elif defined(__AVX2__)
inline constexpr int sampling_register = 32;
#else
inline constexpr int sampling_register = 16;
#endif

/// totals[j * sampling_lanes + l] = how many of the draws of lane l are below thresholds[j]; draws[d * sampling_lanes +
/// l]. Counting by comparison beats looking tokens up: no draw waits for the count of the one before.
template <class Draw>
void count_below(const Draw* draws, int count, std::span<const Draw> thresholds, std::uint16_t* totals) {
  // GCC's and clang's vector types: a comparison gives 0 or -1 in every lane, whatever the instruction set. No wider
  // than a register: what compilers make of wider comparisons can be fifty times slower. Signed, with the top bit
  // flipped, because that comparison is one instruction everywhere.
  using Signed = std::make_signed_t<Draw>;
  constexpr int bytes = std::min<int>(sampling_register, sampling_lanes * sizeof(Draw));
  constexpr int lanes = bytes / static_cast<int>(sizeof(Draw));
  // NOLINTNEXTLINE(modernize-use-using)
  typedef Signed Lanes __attribute__((vector_size(bytes)));
  // NOLINTNEXTLINE(modernize-use-using)
  typedef Draw Counts __attribute__((vector_size(bytes)));
  constexpr auto top = static_cast<Signed>(std::numeric_limits<Signed>::min());
  constexpr int together = 4;
  constexpr int most = std::numeric_limits<Draw>::max() < 65535 ? std::numeric_limits<Draw>::max() : 65535;
  const auto sums = [&]<int N>(std::size_t j, int lane) {
    std::uint16_t* to = totals + j * sampling_lanes + lane;
    for (int n = 0; n < N; ++n) std::fill_n(to + n * sampling_lanes, lanes, std::uint16_t{0});
    for (int from = 0; from < count; from += most) {
      Counts found[N] = {};
      Lanes limit[N];
      for (int n = 0; n < N; ++n) {
        limit[n] = (Lanes{} + static_cast<Signed>(thresholds[j + static_cast<std::size_t>(n)])) ^ top;
      }
      const int last = std::min(count, from + most);
      for (int d = from; d < last; ++d) {
        Lanes row;
        std::memcpy(&row, draws + d * sampling_lanes + lane, sizeof row);
        row ^= top;
        QKFLOW_UNROLL
        for (int n = 0; n < N; ++n) found[n] -= reinterpret_cast<Counts>(row < limit[n]);
      }
      for (int n = 0; n < N; ++n) {
        for (int l = 0; l < lanes; ++l) {
          std::uint16_t& total = to[n * sampling_lanes + l];
          total = static_cast<std::uint16_t>(total + found[n][l]);
        }
      }
    }
  };
  for (int lane = 0; lane < sampling_lanes; lane += lanes) {
    std::size_t j = 0;
    for (; j + together <= thresholds.size(); j += together) sums.template operator()<together>(j, lane);
    switch (thresholds.size() - j) {
      case 3:
        sums.template operator()<3>(j, lane);
        break;
      case 2:
        sums.template operator()<2>(j, lane);
        break;
      case 1:
        sums.template operator()<1>(j, lane);
        break;
      default:
        break;
    }
  }
}

}  // namespace qkflow::detail
