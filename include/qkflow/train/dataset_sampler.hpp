// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "qkflow/kernel/onehot_batch.hpp"
#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/random.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// Which sequences of a dataset a step sees.
enum class BatchOrder {
  full,         ///< all, every step: gradient descent
  epochs,       ///< `batch` of them; every sequence once an epoch, in a new order each time (the last batch of an epoch
                ///< may be smaller)
  replacement,  ///< `batch` of them, each drawn from all: fresh samples of the distribution the dataset stands for
  one_by_one    ///< `batch` of them, in the dataset's order, over and over
};

struct DatasetSamplerOptions {
  BatchOrder order = BatchOrder::full;
  std::size_t batch = 32;  ///< sequences a step, unless `order` is full
  std::uint64_t seed = 0;
};

/// Lays the sequences `indices` of a dataset out for the kernel: sorted by query, those of a query in one group where
/// their tokens overlap enough for a dense table of counts, else each in a group of its own. Weights of the dataset are
/// kept unless all are 1.
template <simd::KernelScalar T>
class BatchAssembler {
 public:
  template <class Scalar>
  void operator()(const Dataset<Scalar>& dataset, std::span<const std::size_t> indices, OneHotBatch<T>& batch) {
    batch.clear();
    order_.assign(indices.begin(), indices.end());
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return dataset[a].query < dataset[b].query; });
    slot_.resize(2 * static_cast<std::size_t>(dataset.shape().tokens), -1);
    bool null_tokens = false, weighted = false;
    for (const std::size_t i : order_) {
      null_tokens = null_tokens || dataset[i].null_count > Scalar(0);
      weighted = weighted || dataset[i].weight != Scalar(1);
    }
    for (std::size_t from = 0; from < order_.size();) {
      std::size_t to = from;
      while (to < order_.size() && dataset[order_[to]].query == dataset[order_[from]].query) ++to;
      // A group costs (tokens) x (sequences); it pays while a quarter of its counts is there.
      for (std::size_t first = from; first < to;) {
        const std::size_t last = std::min(to, first + 64);
        std::size_t entries = 0;
        for (std::size_t i = first; i < last; ++i) entries += dataset[order_[i]].tokens.size();
        const std::size_t different = collect(dataset, first, last);
        if (different * (last - first) <= 4 * entries) {
          add_group(dataset, first, last, batch);
        } else {
          for (std::size_t i = first; i < last; ++i) {
            collect(dataset, i, i + 1);
            add_group(dataset, i, i + 1, batch);
          }
        }
        first = last;
      }
      from = to;
    }
    for (const std::size_t i : order_) {
      if (null_tokens) batch.null_counts.push_back(static_cast<T>(dataset[i].null_count));
      if (weighted) batch.weights.push_back(static_cast<T>(dataset[i].weight));
    }
  }

 private:
  static std::size_t key(std::int32_t token, std::uint8_t relevant) {
    return 2 * static_cast<std::size_t>(token) + relevant;
  }

  /// The different (token, relevant) pairs of some sequences, into `tokens_`; returns how many.
  template <class Scalar>
  std::size_t collect(const Dataset<Scalar>& dataset, std::size_t first, std::size_t last) {
    for (const std::size_t each : tokens_) slot_[each] = -1;
    tokens_.clear();
    for (std::size_t i = first; i < last; ++i) {
      const auto sequence = dataset[order_[i]];
      for (std::size_t e = 0; e < sequence.tokens.size(); ++e) {
        const std::size_t pair = key(sequence.tokens[e], sequence.relevant[e]);
        if (slot_[pair] >= 0) continue;
        slot_[pair] = static_cast<std::int32_t>(tokens_.size());
        tokens_.push_back(pair);
      }
    }
    return tokens_.size();
  }

  template <class Scalar>
  void add_group(const Dataset<Scalar>& dataset, std::size_t first, std::size_t last, OneHotBatch<T>& batch) {
    const OneHotGroup group = batch.open_group(dataset[order_[first]].query, static_cast<std::int32_t>(last - first),
                                               static_cast<std::int32_t>(tokens_.size()));
    for (const std::size_t pair : tokens_) {
      batch.tokens.push_back(static_cast<std::int32_t>(pair / 2));
      batch.relevant.push_back(static_cast<std::uint8_t>(pair % 2));
    }
    for (std::size_t i = first; i < last; ++i) {
      const auto sequence = dataset[order_[i]];
      batch.labels.push_back(sequence.label);
      for (std::size_t e = 0; e < sequence.tokens.size(); ++e) {
        const auto t = static_cast<std::size_t>(slot_[key(sequence.tokens[e], sequence.relevant[e])]);
        batch.counts[group.first_count + t * static_cast<std::size_t>(group.pitch) + (i - first)] +=
            static_cast<T>(sequence.counts[e]);
      }
    }
  }

  std::vector<std::size_t> order_;
  std::vector<std::int32_t> slot_;   // where a (token, relevant) pair stands in the open group
  std::vector<std::size_t> tokens_;  // the pairs of the open group
};

/// Batches of a finite dataset. Batch `step` depends on seed and step alone.
template <simd::KernelScalar T>
class DatasetSampler {
 public:
  /// Throws InvalidArgument for an empty batch, or one larger than the dataset where it is an epoch's.
  DatasetSampler(Dataset<T> dataset, const DatasetSamplerOptions& options)
      : dataset_(std::move(dataset)), options_(options) {
    if (options.order == BatchOrder::full) options_.batch = dataset_.size();
    const std::size_t most = options.order == BatchOrder::replacement ? std::size_t{1} << 24 : dataset_.size();
    if (options_.batch < 1 || options_.batch > most) {
      throw_invalid("DatasetSampler", "batch", options.batch, "be from 1 to " + to_text(most));
    }
  }

  const Dataset<T>& dataset() const { return dataset_; }
  std::size_t steps_per_epoch() const { return (dataset_.size() + options_.batch - 1) / options_.batch; }
  OneHotShape shape(std::int64_t inner_qk = 0, std::int64_t inner_ov = 0, bool bias = false) const {
    return {dataset_.shape().queries, dataset_.shape().tokens, dataset_.shape().classes, inner_qk, inner_ov, bias};
  }

  void operator()(std::uint64_t step, OneHotBatch<T>& batch) {
    if (options_.order == BatchOrder::full && laid_out_ == &batch && !indices_.empty()) return;
    choose(step);
    assemble_(dataset_, indices_, batch);
    laid_out_ = &batch;
  }

  /// The sequences of a step.
  const std::vector<std::size_t>& choose(std::uint64_t step) {
    const std::size_t size = dataset_.size(), per_epoch = steps_per_epoch();
    if (options_.order == BatchOrder::replacement) {
      RandomStream random(options_.seed, step);
      indices_.clear();
      for (std::size_t i = 0; i < options_.batch; ++i)
        indices_.push_back(random.below(static_cast<std::uint32_t>(size)));
      return indices_;
    }
    const std::uint64_t epoch = step / per_epoch;
    if (permutation_.size() != size || (options_.order == BatchOrder::epochs && epoch != epoch_)) {
      permutation_.resize(size);
      std::iota(permutation_.begin(), permutation_.end(), std::size_t{0});
      if (options_.order == BatchOrder::epochs) {
        RandomStream random(options_.seed, epoch, std::numeric_limits<std::uint32_t>::max());
        for (std::size_t i = size; i > 1; --i) {
          std::swap(permutation_[i - 1], permutation_[random.below(static_cast<std::uint32_t>(i))]);
        }
      }
      epoch_ = epoch;
    }
    const std::size_t from = static_cast<std::size_t>(step % per_epoch) * options_.batch;
    const std::size_t to = std::min(size, from + options_.batch);
    indices_.assign(permutation_.begin() + static_cast<std::ptrdiff_t>(from),
                    permutation_.begin() + static_cast<std::ptrdiff_t>(to));
    return indices_;
  }

 private:
  Dataset<T> dataset_;
  DatasetSamplerOptions options_;
  BatchAssembler<T> assemble_;
  std::vector<std::size_t> permutation_, indices_;
  std::uint64_t epoch_ = 0;
  const void* laid_out_ = nullptr;  // the batch that holds the full dataset already
};

}  // namespace qkflow
