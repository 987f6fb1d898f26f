// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "qkflow/model/detail/lanes.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow::detail {

/// A run of sequences that one thread works through, and what it owns while doing so.
///
/// Sequences are sorted by query. A chunk is either some whole groups of equal query, and then writes their rows of
/// G_QK straight into the result, or a piece of one large group, and then adds to a row of its own. To G_OV it always
/// adds in a buffer of its own, over the tokens it meets and no others. The cut depends on the dataset alone, never on
/// the number of threads, and partial sums are added in the order of chunks: hence the same bits for any number of
/// threads.
struct GradientChunk {
  std::size_t first = 0, last = 0;   ///< sequences
  std::vector<std::int32_t> tokens;  ///< the tokens met here, ascending; a local id is an index into it
  bool is_piece = false;             ///< of one query's group
};

/// What the pass needs of one sequence; its entries are [first_entry, first_entry + entries) of the plan's arrays.
template <class Scalar>
struct PlannedSequence {
  std::int32_t query, label;
  std::size_t first_entry, entries;
  Scalar null_count, weight;
};

/// A dataset laid out for the gradient pass: sorted by query, cut into chunks, tokens renumbered chunk by chunk.
template <class Scalar>
struct GradientPlan {
  explicit GradientPlan(const Dataset<Scalar>& dataset) : shape(dataset.shape()), total_weight(dataset.total_weight()) {
    copy(dataset);
    cut(target_cost(64));
    // Buffers for G_OV cost tokens met x classes each: fewer chunks where vocabularies are large.
    const double limit =
        std::max(3.3e7, 2.0 * static_cast<double>(shape.tokens) * static_cast<double>(padded<Scalar>(shape.classes)));
    for (std::size_t most = 32; partial_size() > limit && most > 0; most /= 2) cut(target_cost(most));
    index_rows();
    index_columns();
  }

  struct Partial {
    std::uint32_t chunk, local;
  };

  DatasetShape shape;
  Scalar total_weight;
  std::vector<PlannedSequence<Scalar>> sequences;  ///< sorted by query
  std::vector<std::int32_t> tokens;                ///< of every entry
  std::vector<Scalar> counts;
  std::vector<std::uint8_t> relevant;
  std::vector<GradientChunk> chunks;
  std::vector<std::int32_t> local;  ///< local token id of every entry
  /// Rows of G_QK that no chunk writes: without sequences, or the sum of pieces [first, last).
  struct LooseRow {
    std::int32_t query;
    std::size_t first_chunk, last_chunk;
  };
  std::vector<LooseRow> loose_rows;
  /// For each token the partial columns of G_OV, in chunk order: partials[column_offsets[t] .. column_offsets[t + 1]).
  std::vector<std::size_t> column_offsets;
  std::vector<Partial> partials;

 private:
  void copy(const Dataset<Scalar>& dataset) {
    std::vector<std::size_t> order(dataset.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return dataset[a].query < dataset[b].query; });
    sequences.reserve(dataset.size());
    tokens.reserve(dataset.entry_count());
    counts.reserve(dataset.entry_count());
    relevant.reserve(dataset.entry_count());
    for (const std::size_t s : order) {
      const auto sequence = dataset[s];
      sequences.push_back({sequence.query, sequence.label, tokens.size(), sequence.tokens.size(), sequence.null_count,
                           sequence.weight});
      tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      counts.insert(counts.end(), sequence.counts.begin(), sequence.counts.end());
      relevant.insert(relevant.end(), sequence.relevant.begin(), sequence.relevant.end());
    }
  }

  double cost(std::size_t s) const { return 8.0 + static_cast<double>(sequences[s].entries); }

  double target_cost(std::size_t most_chunks) const {
    const double total = 8.0 * static_cast<double>(sequences.size()) + static_cast<double>(tokens.size());
    // Below a few thousand entries a chunk is not worth waking a thread for.
    return std::max(total / static_cast<double>(most_chunks), 4096.0);
  }

  double partial_size() const {
    double columns = 0;
    for (const auto& chunk : chunks) columns += static_cast<double>(chunk.tokens.size());
    return columns * static_cast<double>(padded<Scalar>(shape.classes));
  }

  void cut(double target) {
    chunks.clear();
    double open_cost = 0;  // of the whole groups not yet closed into a chunk
    std::size_t open_first = 0;
    for (std::size_t first = 0; first < sequences.size();) {
      std::size_t last = first;
      double group_cost = 0;
      for (; last < sequences.size() && sequences[last].query == sequences[first].query; ++last)
        group_cost += cost(last);
      if (open_first < first && open_cost + group_cost > 1.5 * target) {
        chunks.push_back({open_first, first, {}, false});
        open_first = first;
        open_cost = 0;
      }
      if (group_cost > 1.5 * target) {
        const auto pieces = static_cast<std::size_t>(std::llround(group_cost / target));
        double seen = 0;
        std::size_t begin = first, piece = 1;
        for (std::size_t s = first; s < last; ++s) {
          seen += cost(s);
          if (s + 1 == last || seen >= group_cost * static_cast<double>(piece) / static_cast<double>(pieces)) {
            chunks.push_back({begin, s + 1, {}, true});
            begin = s + 1;
            while (seen >= group_cost * static_cast<double>(piece) / static_cast<double>(pieces)) ++piece;
          }
        }
        open_first = last;
      } else {
        open_cost += group_cost;
      }
      first = last;
    }
    if (open_first < sequences.size()) chunks.push_back({open_first, sequences.size(), {}, false});
    renumber();
  }

  std::span<const std::int32_t> tokens_of(std::size_t s) const {
    return std::span(tokens).subspan(sequences[s].first_entry, sequences[s].entries);
  }

  void renumber() {
    local.clear();
    local.reserve(tokens.size());
    std::vector<std::int32_t> id(static_cast<std::size_t>(shape.tokens), -1);
    for (auto& chunk : chunks) {
      for (std::size_t s = chunk.first; s < chunk.last; ++s) {
        for (const auto token : tokens_of(s)) {
          auto& seen = id[static_cast<std::size_t>(token)];
          if (seen < 0) {
            seen = 0;
            chunk.tokens.push_back(token);
          }
        }
      }
      std::sort(chunk.tokens.begin(), chunk.tokens.end());
      for (std::size_t l = 0; l < chunk.tokens.size(); ++l) {
        id[static_cast<std::size_t>(chunk.tokens[l])] = static_cast<std::int32_t>(l);
      }
      for (std::size_t s = chunk.first; s < chunk.last; ++s) {
        for (const auto token : tokens_of(s)) local.push_back(id[static_cast<std::size_t>(token)]);
      }
      for (const auto token : chunk.tokens) id[static_cast<std::size_t>(token)] = -1;
    }
  }

  void index_rows() {
    std::int32_t next = 0;  // the first query not yet accounted for
    const auto skip_to = [&](std::int32_t query) {
      for (; next < query; ++next) loose_rows.push_back({next, 0, 0});
    };
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      const std::int32_t query = sequences[chunks[c].first].query;
      if (!chunks[c].is_piece) {
        for (std::size_t s = chunks[c].first; s < chunks[c].last; ++s) {
          skip_to(sequences[s].query);
          next = sequences[s].query + 1;
        }
      } else if (!loose_rows.empty() && loose_rows.back().last_chunk == c && loose_rows.back().query == query) {
        loose_rows.back().last_chunk = c + 1;
      } else {
        skip_to(query);
        loose_rows.push_back({query, c, c + 1});
        next = query + 1;
      }
    }
    skip_to(static_cast<std::int32_t>(shape.queries));
  }

  void index_columns() {
    column_offsets.assign(static_cast<std::size_t>(shape.tokens) + 1, 0);
    for (const auto& chunk : chunks) {
      for (const auto token : chunk.tokens) ++column_offsets[static_cast<std::size_t>(token) + 1];
    }
    for (std::size_t t = 1; t < column_offsets.size(); ++t) column_offsets[t] += column_offsets[t - 1];
    partials.resize(column_offsets.back());
    std::vector<std::size_t> fill(column_offsets.begin(), column_offsets.end() - 1);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (std::size_t l = 0; l < chunks[c].tokens.size(); ++l) {
        partials[fill[static_cast<std::size_t>(chunks[c].tokens[l])]++] = {static_cast<std::uint32_t>(c),
                                                                           static_cast<std::uint32_t>(l)};
      }
    }
  }
};

}  // namespace qkflow::detail
