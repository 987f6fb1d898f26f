// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// Philox 4x32 with ten rounds [Salmon11]: four random words for every (counter, key), in any order, without state.
inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0], b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

namespace detail {
/// log(x) for normal x > 0, to about 1e-15 relative, the same bits everywhere: only correctly rounded operations, and
/// every product that meets a sum is an explicit fma, so that no compiler has a choice.
inline double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  // log m = 2 artanh(f) with |f| < 0.1716; the series stops where its next term is below rounding.
  const double f = (m - 1) / (m + 1), f2 = f * f;
  double sum = 1.0 / 21;
  for (int k = 19; k >= 3; k -= 2) sum = std::fma(sum, f2, 1.0 / k);
  const double tail = f2 * sum;
  return std::fma(exponent, 0.69314718055994531, std::fma(2 * f, tail, 2 * f));
}
}  // namespace detail

/// A stream of random numbers named by (seed, step, sequence): whoever asks for sequence s of step t gets the same
/// numbers, on any machine, in any order, from any thread. Distributions are our own for the same reason: those of the
/// standard library differ between implementations.
///
/// Word i of a stream is philox4x32({i / 4, sequence, step low, step high}, {seed low, seed high})[i % 4].
class RandomStream {
 public:
  explicit RandomStream(std::uint64_t seed, std::uint64_t step = 0, std::uint32_t sequence = 0)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{0, sequence, static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)} {}

  std::uint32_t next32() {
    if (used_ == 4) {
      block_ = philox4x32(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }
  std::uint64_t next64() {
    const std::uint64_t low = next32();
    return std::uint64_t{next32()} << 32 | low;
  }

  /// Uniform on [0, 1): a multiple of 2^-53.
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  /// Uniform on [low, high).
  double uniform(double low, double high) { return std::fma(uniform(), high - low, low); }

  /// Uniform on 0 .. bound - 1, exactly (a draw that would favour small numbers is rejected). Needs bound > 0.
  std::uint32_t below(std::uint32_t bound) {
    if (bound == 0) throw_invalid("RandomStream::below", "bound", bound, "be above 0");
    std::uint64_t product = std::uint64_t{next32()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t unfair = (0U - bound) % bound;
      while (static_cast<std::uint32_t>(product) < unfair) product = std::uint64_t{next32()} * bound;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }

  /// Standard normal, by Marsaglia's polar method.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    for (;;) {
      const double x = uniform(-1, 1), y = uniform(-1, 1);
      const double s = std::fma(x, x, y * y);
      if (s >= 1 || s < 0x1p-100) continue;
      const double scale = std::sqrt(-2 * detail::portable_log(s) / s);
      spare_ = y * scale;
      has_spare_ = true;
      return x * scale;
    }
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_, block_{};
  unsigned used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// Draws i with probability weights[i] / sum in constant time (Walker's alias method, built and drawn from in whole
/// numbers; probabilities are kept to 2^-32).
class DiscreteDistribution {
 public:
  /// Throws InvalidArgument when there are no weights, one is negative or not finite, or all vanish.
  explicit DiscreteDistribution(std::span<const double> weights) {
    constexpr const char* function = "DiscreteDistribution";
    if (weights.empty() || weights.size() > (1U << 31)) {
      throw_invalid(function, "number of weights", weights.size(), "be from 1 to 2^31");
    }
    double largest = 0;
    for (const double weight : weights) {
      require_non_negative(function, "weight", weight);
      largest = std::max(largest, weight);
    }
    require_positive(function, "largest weight", largest);
    const std::uint64_t columns = weights.size();
    std::vector<std::uint64_t> left(columns);  // what of `columns` times each weight is not yet placed
    for (std::size_t i = 0; i < columns; ++i) {
      left[i] = static_cast<std::uint64_t>(std::llround(weights[i] / largest * 0x1p31));
      height_ += left[i];
    }
    // n columns of height sum w have room for n w_i each; every column ends up with a share of its own and one alias.
    // Below 2^31 * 2^31, so nothing overflows, and whole numbers leave no rounding for the last column to absorb.
    for (auto& weight : left) weight *= columns;
    own_.assign(columns, height_);
    alias_.resize(columns);
    std::vector<std::uint32_t> small, large;
    for (std::uint32_t i = 0; i < columns; ++i) {
      alias_[i] = i;
      (left[i] < height_ ? small : large).push_back(i);
    }
    while (!small.empty()) {
      const std::uint32_t low = small.back(), high = large.back();
      small.pop_back();
      own_[low] = left[low];
      alias_[low] = high;
      left[high] -= height_ - left[low];
      if (left[high] < height_) {
        large.pop_back();
        small.push_back(high);
      }
    }
  }

  std::uint32_t operator()(RandomStream& random) const {
    const auto column = random.below(static_cast<std::uint32_t>(own_.size()));
    // A 64-bit draw scaled down to the column's height.
    const std::uint64_t level = scale(random.next64(), height_);
    return level < own_[column] ? column : alias_[column];
  }

  std::size_t size() const { return own_.size(); }

 private:
  /// floor(x * height / 2^64), in 32-bit halves.
  static std::uint64_t scale(std::uint64_t x, std::uint64_t height) {
    const std::uint64_t x0 = x & 0xFFFFFFFFU, x1 = x >> 32, h0 = height & 0xFFFFFFFFU, h1 = height >> 32;
    const std::uint64_t middle = x1 * h0 + (x0 * h0 >> 32), carry = (x0 * h1 + (middle & 0xFFFFFFFFU)) >> 32;
    return x1 * h1 + (middle >> 32) + carry;
  }

  std::uint64_t height_ = 0;          // sum of the whole-number weights
  std::vector<std::uint64_t> own_;    // how much of each column is its own
  std::vector<std::uint32_t> alias_;  // what the rest of the column is
};

}  // namespace qkflow
