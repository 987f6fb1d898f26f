// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/onehot_sampling.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkflow/math/random.hpp"
#include "support/catch.hpp"

using namespace qkflow;
using detail::sampling_lanes;

TEST_CASE("Side by side, random words are those of the streams one by one", "[onehot_sampling]") {
  for (const std::uint64_t step : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x123456789abcdefULL}}) {
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0xfedcba9876543210ULL}}) {
      const std::uint32_t first = 64;
      for (std::uint32_t block = 0; block < 3; ++block) {
        std::uint32_t words[4][sampling_lanes];
        detail::philox_lanes(block, first, step, seed, words);
        int wrong = 0;
        for (int l = 0; l < sampling_lanes; ++l) {
          RandomStream stream(seed, step, first + static_cast<std::uint32_t>(l));
          for (std::uint32_t skip = 0; skip < 4 * block; ++skip) stream.next32();
          for (int w = 0; w < 4; ++w) wrong += words[w][l] == stream.next32() ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("Two draws out of a word are below the bound and what the digits say", "[onehot_sampling]") {
  std::uint32_t words[sampling_lanes];
  RandomStream random(9);
  for (auto& word : words) word = random.next32();
  words[0] = 0;
  words[1] = 0xFFFFFFFFU;
  for (const std::uint32_t bound : {1U, 2U, 155U, 256U, 65535U}) {
    std::uint16_t first[sampling_lanes], second[sampling_lanes];
    detail::draws_from_words(words, bound, first, second);
    for (int l = 0; l < sampling_lanes; ++l) {
      // word / 2^32 written in base `bound`: its first two digits after the point. Exact in long double's 64 bits.
      const long double x = static_cast<long double>(words[l]) / 4294967296.0L * bound;
      const auto digit = static_cast<std::uint32_t>(x);
      CHECK(first[l] == digit);
      CHECK(second[l] == static_cast<std::uint32_t>((x - digit) * bound));
      CHECK(second[l] < bound);
    }
  }
}

TEMPLATE_TEST_CASE("Counts below thresholds are those of plain loops, past the range of a narrow counter, too",
                   "[onehot_sampling]", std::uint8_t, std::uint16_t) {
  using Draw = TestType;
  RandomStream random(11);
  const std::uint32_t range = sizeof(Draw) == 1 ? 256 : 1000;
  for (const int count : {0, 1, 2, 62, 255, 256, 600}) {
    for (const std::size_t thresholds : {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{19}}) {
      std::vector<Draw> draws(static_cast<std::size_t>(count * sampling_lanes) + 1), limits;
      for (Draw& draw : draws) draw = static_cast<Draw>(random.below(range));
      for (std::size_t j = 0; j < thresholds; ++j) limits.push_back(static_cast<Draw>(random.below(range)));
      if (thresholds > 1) limits[1] = static_cast<Draw>(range - 1);
      std::vector<std::uint16_t> totals(thresholds * sampling_lanes + 1, 9);
      detail::count_below<Draw>(draws.data(), count, limits, totals.data());
      int wrong = 0;
      for (std::size_t j = 0; j < thresholds; ++j) {
        for (int l = 0; l < sampling_lanes; ++l) {
          int below = 0;
          for (int d = 0; d < count; ++d) below += draws[static_cast<std::size_t>(d * sampling_lanes + l)] < limits[j];
          wrong += totals[j * sampling_lanes + static_cast<std::size_t>(l)] == below ? 0 : 1;
        }
      }
      CHECK(wrong == 0);
      CHECK(totals.back() == 9);
    }
  }
}
