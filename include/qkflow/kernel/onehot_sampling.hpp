// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "qkflow/kernel/simd.hpp"

namespace qkflow::detail {

/// Sequences that the sampling kernels treat side by side.
inline constexpr int sampling_lanes = 32;

/// Philox 4x32 of `sampling_lanes` streams at once: words[4 w + i][l] is word 4 block + i of the stream of sequence
/// first_sequence + l, exactly that of `RandomStream`.
inline void philox_lanes(std::uint32_t block, std::uint32_t first_sequence, std::uint64_t step, std::uint64_t seed,
                         std::uint32_t (&words)[4][sampling_lanes]) {
  const auto step_low = static_cast<std::uint32_t>(step), step_high = static_cast<std::uint32_t>(step >> 32);
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
}

/// Two whole numbers below `bound` (at most 2^16) out of each word: the integer part of word / 2^32 * bound, and that
/// of what is left, times bound again. Each value's probability is right to bound^2 / 2^32 relative (155: 6e-6).
template <class Draw>
void draws_from_words(const std::uint32_t (&words)[sampling_lanes], std::uint32_t bound, Draw* first, Draw* second) {
  for (int l = 0; l < sampling_lanes; ++l) {
    const std::uint64_t product = std::uint64_t{words[l]} * bound;
    const std::uint64_t rest = (product & 0xFFFFFFFFU) * bound;
    first[l] = static_cast<Draw>(product >> 32);
    second[l] = static_cast<Draw>(rest >> 32);
  }
}

/// totals[j * sampling_lanes + l] = how many of the draws of lane l are below thresholds[j]; draws[d * sampling_lanes +
/// l]. Counting by comparison beats looking tokens up: no draw waits for the count of the one before.
template <class Draw>
void count_below(const Draw* draws, int count, std::span<const Draw> thresholds, std::uint16_t* totals) {
  // GCC's and clang's vector types: a comparison gives 0 or -1 in every lane, whatever the instruction set.
  // NOLINTNEXTLINE(modernize-use-using)
  typedef Draw Lanes __attribute__((vector_size(sampling_lanes * sizeof(Draw))));
  constexpr int together = 4;
  constexpr int most = std::numeric_limits<Draw>::max() < 65535 ? std::numeric_limits<Draw>::max() : 65535;
  const auto sums = [&]<int N>(std::size_t j) {
    std::uint16_t* to = totals + j * sampling_lanes;
    std::fill(to, to + N * sampling_lanes, std::uint16_t{0});
    for (int from = 0; from < count; from += most) {
      Lanes found[N] = {};
      Lanes limit[N];
      for (int n = 0; n < N; ++n) limit[n] = Lanes{} + thresholds[j + static_cast<std::size_t>(n)];
      const int last = std::min(count, from + most);
      for (int d = from; d < last; ++d) {
        Lanes row;
        std::memcpy(&row, draws + d * sampling_lanes, sizeof row);
        QKFLOW_UNROLL
        for (int n = 0; n < N; ++n) found[n] -= static_cast<Lanes>(row < limit[n]);
      }
      for (int n = 0; n < N; ++n) {
        for (int l = 0; l < sampling_lanes; ++l) {
          to[n * sampling_lanes + l] = static_cast<std::uint16_t>(to[n * sampling_lanes + l] + found[n][l]);
        }
      }
    }
  };
  std::size_t j = 0;
  for (; j + together <= thresholds.size(); j += together) sums.template operator()<together>(j);
  for (; j < thresholds.size(); ++j) sums.template operator()<1>(j);
}

}  // namespace qkflow::detail
