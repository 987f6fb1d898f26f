// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkflow/kernel/simd.hpp"

namespace qkflow {

/// Sequences that share a query, laid out together: `counts[t * pitch + s]` is how often the group's token t stands in
/// its sequence s. The pitch is a whole number of registers; the counts of sequences that are not there are zero.
///
/// Grouping is what makes one-hot training cheap. The scores of a query are one row of W_QK whatever the sequence, and
/// the gradient of that row needs the values only against sums over the group:
///     sum_s a_ts e_s . v_t = (sum_s a_ts e_s) . v_t.
struct OneHotGroup {
  std::int32_t query = 0;
  std::int32_t slot = 0;       ///< which of the batch's `queries` that is
  std::int32_t first = 0;      ///< its first sequence
  std::int32_t sequences = 0;  ///< how many it has
  std::int32_t tokens = 0;     ///< how many it has
  std::int32_t pitch = 0;
  std::size_t first_token = 0;  ///< where its tokens begin in the batch's
  std::size_t first_count = 0;  ///< where its counts begin
};

/// A batch of one-hot sequences in whole-batch layout: what samplers fill and the kernel reads. Reused from step to
/// step, so that nothing is allocated once it has grown.
template <simd::KernelScalar T>
struct OneHotBatch {
  std::vector<OneHotGroup> groups;
  std::vector<std::int32_t> queries;   ///< the different queries
  std::vector<std::int32_t> labels;    ///< by sequence
  std::vector<T> null_counts;          ///< by sequence: tokens without score and value; or empty
  std::vector<T> weights;              ///< by sequence; or empty: all weigh the same
  std::vector<std::int32_t> tokens;    ///< of all groups
  std::vector<std::uint8_t> relevant;  ///< by token of a group
  std::vector<T> counts;               ///< of all groups

  std::size_t size() const { return labels.size(); }

  static std::int32_t pitch_of(std::int64_t sequences) {
    constexpr int lanes = simd::lanes<T>;
    return static_cast<std::int32_t>((sequences + lanes - 1) / lanes * lanes);
  }

  void clear() {
    groups.clear();
    queries.clear();
    labels.clear();
    null_counts.clear();
    weights.clear();
    tokens.clear();
    relevant.clear();
    counts.clear();
  }

  /// Opens a group of these many sequences and tokens, its counts zero; labels and tokens are the caller's to append.
  /// Groups of one query must follow each other.
  OneHotGroup& open_group(std::int32_t query, std::int32_t sequences, std::int32_t token_count) {
    if (queries.empty() || queries.back() != query) queries.push_back(query);
    OneHotGroup group{query,
                      static_cast<std::int32_t>(queries.size() - 1),
                      static_cast<std::int32_t>(labels.size()),
                      sequences,
                      token_count,
                      pitch_of(sequences),
                      tokens.size(),
                      counts.size()};
    counts.resize(counts.size() + static_cast<std::size_t>(group.pitch) * static_cast<std::size_t>(token_count));
    groups.push_back(group);
    return groups.back();
  }
};

}  // namespace qkflow
