// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/topic_sampler.hpp"

#include <cmath>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "qkflow/math/random.hpp"
#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("Topic batches are well-formed: lengths, labels, queries, distinct tokens of one topic", "[topic_sampler]") {
  // Other sizes than the published, too: strips of 32 overlapped, the query outside the common tokens, wide draws.
  const std::vector<TopicSamplerOptions> all{
      {},
      {.length = 128, .batch = 1},
      {.length = 3, .batch = 33},
      {.length = 4, .batch = 70},
      {.classes = 8, .common = 3, .distinct = 5, .length = 31, .batch = 100},
      {.classes = 1, .common = 1, .distinct = 2, .length = 9, .batch = 5},
      {.classes = 3, .common = 20, .distinct = 30, .length = 300, .batch = 40},
      {.batch = 128, .balanced = true},
  };
  for (const TopicSamplerOptions& options : all) {
    TopicSampler<float> sampler(options);
    OneHotBatch<float> batch;
    for (std::uint64_t step = 0; step < 20; ++step) {
      sampler(step, batch);
      REQUIRE(batch.size() == static_cast<std::size_t>(options.batch));
      int sequences = 0, wrong = 0;
      for (const OneHotGroup& group : batch.groups) {
        const int topic = group.query - options.classes - 1;
        if (options.balanced) wrong += group.sequences != options.batch / options.classes;
        sequences += group.sequences;
        for (int s = 0; s < group.pitch; ++s) {
          float sum = 0;
          for (int t = 0; t < group.tokens; ++t) {
            const float count = batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch + s)];
            const int token = batch.tokens[group.first_token + static_cast<std::size_t>(t)];
            const bool distinct = batch.relevant[group.first_token + static_cast<std::size_t>(t)] != 0;
            wrong += count < 0;
            wrong += distinct != (token >= options.common);
            if (distinct && count > 0 && token != group.query)
              wrong += (token - options.common) / options.distinct != topic;
            if (token == group.query && s < group.sequences) wrong += count < 1;
            sum += count;
          }
          wrong += sum != (s < group.sequences ? static_cast<float>(options.length - 1) : 0.0F);
          if (s < group.sequences) wrong += batch.labels[static_cast<std::size_t>(group.first + s)] != topic + 1;
        }
      }
      CHECK(wrong == 0);
      CHECK(sequences == options.batch);
    }
  }
}

TEST_CASE("Token frequencies are those of the task, by chi-square", "[topic_sampler]") {
  TopicSamplerOptions options{.length = 102, .batch = 64, .seed = 5};
  for (const int distinct : {10, 30}) {  // narrow draws and wide ones
    options.distinct = distinct;
    TopicSampler<double> sampler(options);
    OneHotBatch<double> batch;
    std::vector<double> found(static_cast<std::size_t>(options.common + distinct)), topics(4);
    double tokens = 0, sequences = 0;
    // Draws of one sequence at two places of a word must not hang together: pairs of (token 0, token 0) by variance.
    double zero_sum = 0, zero_square = 0;
    for (std::uint64_t step = 0; step < 300; ++step) {
      sampler(step, batch);
      for (const OneHotGroup& group : batch.groups) {
        topics[static_cast<std::size_t>(group.query - 5)] += group.sequences;
        for (int s = 0; s < group.sequences; ++s) {
          sequences += 1;
          for (int t = 0; t < options.common + distinct; ++t) {
            double count = batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch + s)];
            if (batch.tokens[group.first_token + static_cast<std::size_t>(t)] == group.query) count -= 1;
            found[static_cast<std::size_t>(t)] += count;
            tokens += count;
            if (t == 0) {
              zero_sum += count;
              zero_square += count * count;
            }
          }
        }
      }
    }
    CHECK(tokens == 100 * sequences);
    double chi_square = 0, weights = 0;
    const auto weight = [&](int t) { return t < options.common ? 1.0 : (t - options.common + 1.0) / distinct; };
    for (int t = 0; t < options.common + distinct; ++t) weights += weight(t);
    for (int t = 0; t < options.common + distinct; ++t) {
      const double expected = tokens * weight(t) / weights;
      chi_square += std::pow(found[static_cast<std::size_t>(t)] - expected, 2) / expected;
    }
    const double freedom = options.common + distinct - 1;
    CHECK(std::abs(chi_square - freedom) < 5 * std::sqrt(2 * freedom));
    double topic_square = 0;
    for (const double count : topics) topic_square += std::pow(count - sequences / 4, 2) / (sequences / 4);
    CHECK(topic_square < 22);  // 3 degrees of freedom, 1 in 15,000
    // Binomial variance n p (1 - p); its estimate from 19,200 sequences is good to about 1 %.
    const double mean = zero_sum / sequences, variance = zero_square / sequences - mean * mean;
    const double p = 1 / weights;
    CHECK(std::abs(variance / (100 * p * (1 - p)) - 1) < 0.05);
  }
}

TEST_CASE("A batch depends on seed and step alone", "[topic_sampler]") {
  const auto counts = [](TopicSampler<double>& sampler, std::uint64_t step) {
    OneHotBatch<double> batch;
    sampler(step, batch);
    return std::pair(batch.counts, batch.tokens);
  };
  TopicSampler<double> a({.seed = 1}), b({.seed = 1}), c({.seed = 2});
  const auto seventh = counts(a, 7);
  counts(b, 100);
  CHECK(counts(b, 7) == seventh);
  CHECK(counts(a, 8) != seventh);
  CHECK(counts(c, 7) != seventh);
}

TEST_CASE("A topic sampler refuses what is no task", "[topic_sampler]") {
  CHECK_THROWS_WITH(TopicSampler<float>({.length = 2}), Contains("length = 2"));
  CHECK_THROWS_WITH(TopicSampler<float>({.batch = 0}), Contains("batch = 0"));
  CHECK_THROWS_WITH(TopicSampler<float>({.batch = 30, .balanced = true}), Contains("batch = 30"));
  CHECK_THROWS_WITH(TopicSampler<float>({.common = 9000, .distinct = 300}), Contains("units of weight"));
  CHECK_THROWS_WITH(TopicSampler<float>({.classes = 3, .common = 1, .distinct = 1}), Contains("distinct tokens"));
}
