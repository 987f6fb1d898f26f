// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

namespace {

/// Chi-squared statistic of counts against expected counts, as standard deviations from its mean.
double chi_squared_deviation(const std::vector<double>& counts, const std::vector<double>& expected) {
  double statistic = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double difference = counts[i] - expected[i];
    statistic += difference * difference / expected[i];
  }
  const double freedom = static_cast<double>(counts.size() - 1);
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("Philox gives the published known answers") {
  // The three vectors its authors publish for philox4x32-10 [Salmon11].
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const std::uint32_t ones = 0xffffffff;
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a stream is the documented words of Philox") {
  RandomStream random(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3);
  for (std::uint32_t i = 0; i < 10; ++i) {
    const auto block = philox4x32({i / 4, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
    CHECK(random.next32() == block[i % 4]);
  }
  // Neighbouring seeds, steps and sequences are different streams.
  CHECK(RandomStream(1, 0, 0).next64() != RandomStream(2, 0, 0).next64());
  CHECK(RandomStream(1, 0, 0).next64() != RandomStream(1, 1, 0).next64());
  CHECK(RandomStream(1, 0, 0).next64() != RandomStream(1, 0, 1).next64());
}

TEST_CASE("whole numbers below a bound are uniform") {
  for (const std::uint32_t bound : {1U, 2U, 7U, 155U}) {
    RandomStream random(17, bound);
    const int draws = 100000;
    std::vector<double> counts(bound, 0.0);
    for (int i = 0; i < draws; ++i) ++counts.at(random.below(bound));
    if (bound > 1) {
      CHECK(chi_squared_deviation(counts, std::vector<double>(bound, draws / double(bound))) < 4);
    }
  }
  // A bound that does not divide 2^32 by far: two thirds of the words would be unfair.
  RandomStream random(3);
  double low = 0;
  for (int i = 0; i < 30000; ++i) low += random.below(0xC0000000U) < 0x60000000U ? 1 : 0;
  CHECK(std::abs(low - 15000) < 4 * std::sqrt(7500.0));
  CHECK_THROWS_AS(random.below(0), InvalidArgument);
}

TEST_CASE("uniform numbers stay in their interval and have the right moments") {
  RandomStream random(5);
  double sum = 0, square = 0, least = 1, most = 0;
  const int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    const double x = random.uniform();
    sum += x;
    square += x * x;
    least = std::min(least, x);
    most = std::max(most, x);
  }
  CHECK(least >= 0);
  CHECK(most < 1);
  CHECK(std::abs(sum / draws - 0.5) < 4 * std::sqrt(1.0 / 12 / draws));
  CHECK(std::abs(square / draws - 1.0 / 3) < 4 * std::sqrt(4.0 / 45 / draws));
}

TEST_CASE("normal numbers follow the normal distribution") {
  // Kolmogorov-Smirnov against erfc; 1.95 / sqrt(n) is the 0.1 % level.
  RandomStream random(11, 4);
  std::vector<double> draws(50000);
  for (double& x : draws) x = random.normal();
  std::sort(draws.begin(), draws.end());
  double distance = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const double cumulative = 0.5 * std::erfc(-draws[i] / std::sqrt(2.0));
    distance =
        std::max(distance, std::abs(cumulative - (static_cast<double>(i) + 0.5) / static_cast<double>(draws.size())));
  }
  CHECK(distance < 1.95 / std::sqrt(static_cast<double>(draws.size())));
  CHECK(draws.back() > 3.5);
}

TEST_CASE("draws have the same bits everywhere") {
  // Written down once; a compiler that contracts or a libm that rounds its own way would change them.
  RandomStream random(2026, 1, 7);
  CHECK(std::bit_cast<std::uint64_t>(random.uniform()) == 0x3fd0b693b9bcca44ULL);
  CHECK(std::bit_cast<std::uint64_t>(random.uniform(-0.3, 0.7)) == 0x3fe0099afef2af8aULL);
  CHECK(std::bit_cast<std::uint64_t>(random.normal()) == 0xbfe4460c19437abfULL);
  CHECK(std::bit_cast<std::uint64_t>(random.normal()) == 0x4005c859b677725fULL);
  CHECK(random.below(155) == 83);
}

TEST_CASE("the portable logarithm is a logarithm") {
  RandomStream random(8);
  double worst = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = std::ldexp(random.uniform(0.5, 1.0), static_cast<int>(random.below(120)) - 110);
    const double exact = std::log(x);
    if (exact != 0) worst = std::max(worst, std::abs(detail::portable_log(x) / exact - 1));
  }
  CHECK(worst < 2e-15);
  CHECK(detail::portable_log(1.0) == 0);
}

TEST_CASE("a discrete distribution draws by weight") {
  const std::vector<std::vector<double>> cases{
      {1}, {3, 1}, {0, 5, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1}, {1e-300, 1e300}};
  for (const auto& weights : cases) {
    const DiscreteDistribution distribution(weights);
    CHECK(distribution.size() == weights.size());
    RandomStream random(1, weights.size());
    const int draws = 100000;
    std::vector<double> counts(weights.size(), 0.0);
    for (int i = 0; i < draws; ++i) ++counts.at(distribution(random));
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<double> seen, expected;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] / total < 1e-9) {
        CHECK(counts[i] == 0);
      } else {
        seen.push_back(counts[i]);
        expected.push_back(draws * weights[i] / total);
      }
    }
    if (seen.size() > 1) CHECK(chi_squared_deviation(seen, expected) < 4);
  }
  const auto refuses = [](const std::vector<double>& weights, const char* text) {
    CHECK_THROWS_WITH(DiscreteDistribution(weights), Catch::Contains(text));
  };
  refuses({}, "number of weights = 0");
  refuses({0, 0}, "largest weight = 0");
  refuses({1, -1}, "weight = -1");
  refuses({1, std::numeric_limits<double>::quiet_NaN()}, "weight = nan");
}
