// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkflow/kernel/onehot_batch.hpp"
#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/kernel/onehot_sampling.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// The topic task of the published experiments [Vashisht26] as a stream of batches. The defaults are the published
/// numbers: 50 tokens, of which 10 are common and 4 times 10 distinct.
struct TopicSamplerOptions {
  int classes = 4;        ///< topics; topic k has the query token classes + 1 + k and the label k + 1
  int common = 10;        ///< tokens 0 .. common - 1, every topic's, weight 1 each
  int distinct = 10;      ///< tokens of one topic alone: common + k distinct + j with weight (j + 1) / distinct
  int length = 64;        ///< L: L - 2 context tokens, the query, the label (which the model does not see)
  int batch = 32;         ///< sequences a step
  bool balanced = false;  ///< as many sequences of each topic (batch must be a multiple of classes), not drawn ones
  std::uint64_t seed = 0;

  int vocabulary() const { return common + classes * distinct; }
  /// The head's shape: every token may be query, attended to, and predicted.
  OneHotShape shape(std::int64_t inner_qk = 0, std::int64_t inner_ov = 0, bool bias = false) const {
    return {vocabulary(), vocabulary(), vocabulary(), inner_qk, inner_ov, bias};
  }

  void validate(const char* function) const {
    const auto check = [function](const char* what, int value, int least, int most) {
      if (value < least || value > most) {
        throw_invalid(function, what, value, "be from " + to_text(least) + " to " + to_text(most));
      }
    };
    check("classes", classes, 1, 10000);
    check("common", common, 1, 10000);
    check("distinct", distinct, 1, 300);
    check("length", length, 3, 60000);
    check("batch", batch, 1, 1 << 20);
    check("classes + distinct tokens", 2 * classes + 1, 1, vocabulary());
    check("units of weight, distinct (common + (distinct + 1) / 2),", units(), 1, 65535);
    if (balanced && batch % classes != 0) {
      throw_invalid(function, "batch", batch, "be a multiple of the number of classes where it is balanced");
    }
  }
  /// All weights of a topic in units of 1 / distinct.
  int units() const { return distinct * common + distinct * (distinct + 1) / 2; }
};

/// Fresh sequences of the topic task for every step: batch `step` depends on seed and step alone, so that a run can be
/// resumed anywhere and gives the same batches on every machine. Sequence s reads the stream RandomStream(seed, step,
/// s): word 0 draws a topic, each further word two context tokens.
///
/// Within a batch the order of sequences has no meaning, and contexts are drawn independently of topics up to the names
/// of the distinct tokens. So the drawn topics are sorted first, and sequences of a topic lie together from the start.
template <simd::KernelScalar T>
class TopicSampler {
 public:
  explicit TopicSampler(const TopicSamplerOptions& options) : options_(options) {
    options.validate("TopicSampler");
    int sum = 0;
    for (int slot = 0; slot + 1 < slots(); ++slot) {
      sum += slot < options.common ? options.distinct : slot - options.common + 1;
      thresholds_.push_back(static_cast<std::uint16_t>(sum));
      small_thresholds_.push_back(static_cast<std::uint8_t>(sum));
    }
  }

  const TopicSamplerOptions& options() const { return options_; }

  void operator()(std::uint64_t step, OneHotBatch<T>& batch) {
    batch.clear();
    draw(step);
    int first = 0;
    for (int topic = 0; topic < options_.classes; ++topic) {
      const int sequences = of_topic_[static_cast<std::size_t>(topic)];
      if (sequences > 0) add_group(topic, first, sequences, batch);
      first += sequences;
    }
  }

 private:
  static constexpr int lanes = detail::sampling_lanes;
  int slots() const { return options_.common + options_.distinct; }

  void draw(std::uint64_t step) {
    const int strips = (options_.batch + lanes - 1) / lanes;
    const auto per_strip = static_cast<std::size_t>((slots() - 1) * lanes);
    counts_.resize(static_cast<std::size_t>(strips) * per_strip);
    of_topic_.assign(static_cast<std::size_t>(options_.classes),
                     options_.balanced ? options_.batch / options_.classes : 0);
    for (int strip = 0; strip < strips; ++strip) {
      std::uint16_t* to = counts_.data() + static_cast<std::size_t>(strip) * per_strip;
      if (options_.units() <= 256) {
        draw_strip<std::uint8_t>(step, strip, small_draws_, small_thresholds_, to);
      } else {
        draw_strip<std::uint16_t>(step, strip, draws_, thresholds_, to);
      }
    }
  }

  template <class Draw>
  void draw_strip(std::uint64_t step, int strip, std::vector<Draw>& draws, const std::vector<Draw>& thresholds,
                  std::uint16_t* to) {
    const int context = options_.length - 2;
    const auto bound = static_cast<std::uint32_t>(options_.units());
    draws.resize(static_cast<std::size_t>((context + 1) * lanes));
    std::uint32_t words[4][lanes];
    // Words 1, 2, ...: draws 2 (word - 1) and the next. The last may fall behind the context, where there is room.
    for (int word = 0; 2 * (word - 1) < context; ++word) {
      if (word % 4 == 0) {
        detail::philox_lanes(static_cast<std::uint32_t>(word / 4), static_cast<std::uint32_t>(strip * lanes), step,
                             options_.seed, words);
      }
      if (word == 0) {
        if (options_.balanced) continue;
        for (int l = 0; l < lanes && strip * lanes + l < options_.batch; ++l) {
          const std::uint64_t topic = std::uint64_t{words[0][l]} * static_cast<std::uint64_t>(options_.classes) >> 32;
          ++of_topic_[topic];
        }
        continue;
      }
      Draw* at = draws.data() + 2 * (word - 1) * lanes;
      detail::draws_from_words(words[word % 4], bound, at, at + lanes);
    }
    detail::count_below<Draw>(draws.data(), context, thresholds, to);
  }

  void add_group(int topic, int first, int sequences, OneHotBatch<T>& batch) {
    const int query = options_.classes + 1 + topic;
    const int own = options_.common + topic * options_.distinct;  // the topic's first distinct token
    // The query stands in the sequence, too; it is one of the context's tokens, or one more.
    int query_slot = query < options_.common ? query : query - own + options_.common;
    const bool apart = query_slot < 0 || query_slot >= slots() || (query >= options_.common && query < own);
    if (apart) query_slot = slots();
    const int tokens = slots() + (apart ? 1 : 0);
    const OneHotGroup group = batch.open_group(query, sequences, tokens);
    for (int s = 0; s < sequences; ++s) batch.labels.push_back(topic + 1);
    T* counts = batch.counts.data() + group.first_count;
    const auto per_strip = static_cast<std::size_t>((slots() - 1) * lanes);
    const auto context = static_cast<T>(options_.length - 2);
    for (int slot = 0; slot < slots(); ++slot) {
      batch.tokens.push_back(slot < options_.common ? slot : own + slot - options_.common);
      batch.relevant.push_back(slot < options_.common ? 0 : 1);
      T* row = counts + static_cast<std::ptrdiff_t>(slot) * group.pitch;
      // Strips of the drawn sequences that this group overlaps.
      for (int s = 0; s < sequences;) {
        const int at = first + s, lane = at % lanes, run = std::min(lanes - lane, sequences - s);
        const std::uint16_t* below = counts_.data() + static_cast<std::size_t>(at / lanes) * per_strip +
                                     static_cast<std::size_t>(slot * lanes + lane);
        for (int i = 0; i < run; ++i) {
          const T up_to = slot + 1 < slots() ? static_cast<T>(below[i]) : context;
          row[s + i] = slot > 0 ? up_to - static_cast<T>(below[i - lanes]) : up_to;
        }
        s += run;
      }
    }
    if (apart) {
      batch.tokens.push_back(query);
      batch.relevant.push_back(query >= options_.common ? 1 : 0);
    }
    T* query_row = counts + static_cast<std::ptrdiff_t>(query_slot) * group.pitch;
    for (int s = 0; s < sequences; ++s) query_row[s] += T(1);
  }

  TopicSamplerOptions options_;
  std::vector<std::uint16_t> thresholds_, draws_;
  std::vector<std::uint8_t> small_thresholds_, small_draws_;
  std::vector<std::uint16_t> counts_;  // draws below each threshold: strips x thresholds x lanes
  std::vector<int> of_topic_;          // sequences of each topic
};

}  // namespace qkflow
