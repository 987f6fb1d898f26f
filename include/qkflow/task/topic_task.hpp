// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "qkflow/math/random.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// How a sequence's topic is chosen.
enum class TopicChoice {
  random,  ///< uniformly
  by_turn  ///< sequence s has topic s mod 4: as many of each in every four
};

/// The topic task of the published experiments [Vashisht26, code]. Vocabulary 50, topics k = 0 .. 3. A sequence of
/// topic k is L - 2 context tokens, drawn independently, then the query token 5 + k; the label is 1 + k. The head sees
/// all L - 1 tokens, the query among them. Context tokens are common ones (0 .. 9, weight 1 each) or the topic's
/// distinct ones (10 (k+1) + j with weight (j+1)/10, j = 0 .. 9): 35.5 % distinct. Distinct tokens are what attention
/// ought to find: they are marked relevant.
///
/// Draws come from the RandomStream of (seed, step, sequence): word 0 gives the topic by its two highest bits, word
/// 1 + i the i-th context token as entry floor(155 word / 2^32) of the topic's table. 155 weights of a tenth each:
/// every probability is right to 2^-32.
struct TopicTask {
  std::int32_t length = 64;  ///< L, with query and label; at least 3
  TopicChoice topic = TopicChoice::random;
  /// Label and query change places (query 1 + k, label 5 + k), as in the published fixed-attention runs; the task is
  /// the same by symmetry.
  bool swapped = false;

  static constexpr std::int32_t vocabulary = 50;
  static constexpr std::int32_t topics = 4;
  static constexpr std::int32_t first_distinct = 10;  ///< tokens from here on are distinct ones
  static constexpr std::int32_t weight_units = 155;   ///< the sum of a topic's weights, in tenths

  /// Tokens the head sees: L - 1, the query last.
  std::size_t tokens() const { return static_cast<std::size_t>(length) - 1; }
  std::int32_t query(std::int32_t k) const { return (swapped ? 1 : 5) + k; }
  std::int32_t label(std::int32_t k) const { return (swapped ? 5 : 1) + k; }
  static constexpr bool is_relevant(std::int32_t token) { return token >= first_distinct; }
  static constexpr DatasetShape shape() { return {vocabulary, vocabulary, vocabulary}; }
  /// 1/sqrt(50), the published scale of scores.
  static double score_scale() { return 1.0 / std::sqrt(static_cast<double>(vocabulary)); }

  /// The token of each tenth of weight, for topic k.
  static constexpr std::array<std::int32_t, weight_units> token_table(std::int32_t k) {
    std::array<std::int32_t, weight_units> table{};
    std::size_t next = 0;
    for (std::int32_t token = 0; token < first_distinct; ++token) {
      for (int tenth = 0; tenth < 10; ++tenth) table[next++] = token;
    }
    for (std::int32_t j = 0; j < 10; ++j) {
      for (std::int32_t tenth = 0; tenth <= j; ++tenth) table[next++] = first_distinct * (k + 1) + j;
    }
    return table;
  }

  /// Throws InvalidArgument for a length below 3.
  void validate(const char* function) const {
    if (length < 3) throw_invalid(function, "length", length, "be at least 3");
  }

  /// Draws a sequence: writes its tokens (as many as `tokens()`, the query last) and returns its topic.
  std::int32_t sample(std::uint64_t seed, std::uint64_t step, std::uint32_t sequence,
                      std::span<std::int32_t> to) const {
    static constexpr std::array<std::array<std::int32_t, weight_units>, topics> tables{token_table(0), token_table(1),
                                                                                       token_table(2), token_table(3)};
    validate("TopicTask::sample");
    if (to.size() != tokens()) throw_invalid("TopicTask::sample", "room for tokens", to.size(), "be length - 1");
    RandomStream random(seed, step, sequence);
    const std::uint32_t first = random.next32();
    const auto k = static_cast<std::int32_t>(topic == TopicChoice::random ? first >> 30 : sequence % topics);
    const auto& table = tables[static_cast<std::size_t>(k)];
    for (std::size_t i = 0; i + 1 < to.size(); ++i) {
      to[i] = table[static_cast<std::size_t>(std::uint64_t{random.next32()} * weight_units >> 32)];
    }
    to.back() = query(k);
    return k;
  }

  /// `size` sequences of one step as a finite dataset: shape 50 x 50 x 50, all of weight 1. Throws InvalidArgument for
  /// size 0.
  template <class Scalar>
  Dataset<Scalar> dataset(std::uint64_t seed, std::uint32_t size, std::uint64_t step = 0) const {
    validate("TopicTask::dataset");
    DatasetBuilder<Scalar> builder(shape());
    std::vector<std::int32_t> drawn(tokens());
    Sequence<Scalar> one;
    for (std::uint32_t s = 0; s < size; ++s) {
      const std::int32_t k = sample(seed, step, s, drawn);
      one.query = query(k);
      one.label = label(k);
      one.entries.clear();
      for (const std::int32_t token : drawn) one.entries.push_back({token, Scalar(1), is_relevant(token)});
      builder.add(one);
    }
    return std::move(builder).build();
  }
};

}  // namespace qkflow
