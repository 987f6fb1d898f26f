// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// How many different query tokens, attended tokens and labels there are: W_QK is queries x tokens, W_OV classes x
/// tokens.
struct DatasetShape {
  std::int64_t queries = 0;
  std::int64_t tokens = 0;
  std::int64_t classes = 0;

  friend bool operator==(const DatasetShape&, const DatasetShape&) = default;
};

/// What the ids mean. Each list is empty or as long as the shape says.
struct DatasetNames {
  std::vector<std::string> queries{}, tokens{}, classes{};
};

/// One token of a sequence: how often it stands there, and whether those positions are relevant to the task (what
/// attention ought to find: `AttentionMode::fixed` and the observables ask for it).
template <class Scalar>
struct TokenCount {
  std::int32_t token = 0;
  Scalar count = 1;
  bool relevant = false;
};

/// A sequence as it is handed in. One-hot tokens mean that the order of positions is of no account: a sequence is a
/// query token, a label and counts. Null tokens (score 0, value 0) have no id, only a number.
template <class Scalar>
struct Sequence {
  std::int32_t query = 0;
  std::int32_t label = 0;
  std::vector<TokenCount<Scalar>> entries{};
  Scalar null_count = 0;
  Scalar weight = 1;
};

/// A sequence as it is stored: spans into the dataset, valid as long as the dataset is.
template <class Scalar>
struct SequenceView {
  std::int32_t query, label;
  Scalar null_count, weight;
  std::span<const std::int32_t> tokens;
  std::span<const Scalar> counts;
  std::span<const std::uint8_t> relevant;
  std::size_t first_entry;  ///< where its entries begin among those of the whole dataset
};

template <class Scalar>
class DatasetBuilder;

/// A finite dataset: sequences in compressed rows, made by DatasetBuilder and immutable since. Its loss is the weighted
/// mean over sequences, sum_s w_s loss_s / sum_s w_s. An entry costs 5 bytes and a Scalar, a sequence 16 and two.
template <class Scalar>
class Dataset {
 public:
  using scalar_type = Scalar;

  const DatasetShape& shape() const { return shape_; }
  const DatasetNames& names() const { return names_; }
  std::size_t size() const { return queries_.size(); }
  /// Entries of all sequences: different (token, relevant) pairs.
  std::size_t entry_count() const { return tokens_.size(); }
  Scalar total_weight() const { return total_weight_; }
  /// Where the entries of sequence i begin among all entries; i = size() gives the end.
  std::size_t first_entry(std::size_t i) const { return static_cast<std::size_t>(offsets_[i]); }

  SequenceView<Scalar> operator[](std::size_t i) const {
    const auto first = static_cast<std::size_t>(offsets_[i]);
    const auto count = static_cast<std::size_t>(offsets_[i + 1]) - first;
    return {queries_[i],
            labels_[i],
            null_counts_[i],
            weights_[i],
            std::span(tokens_).subspan(first, count),
            std::span(counts_).subspan(first, count),
            std::span(relevant_).subspan(first, count),
            first};
  }

  /// The sequences with these indices, in this order (repeats allowed): a mini-batch, or a part. Same shape and names.
  /// Throws InvalidArgument for an index out of range, an empty list, or sequences of no weight.
  Dataset subset(std::span<const std::size_t> indices) const {
    Dataset part = gather(indices);
    if (part.size() == 0) throw InvalidArgument("Dataset::subset: no index given");
    part.finish("Dataset::subset");
    part.names_ = names_;
    return part;
  }

  /// The same sequences ordered by query, equal queries in their old order: what one pass over W_QK by rows wants.
  Dataset sorted_by_query() const {
    if (std::is_sorted(queries_.begin(), queries_.end())) return *this;
    std::vector<std::size_t> order(size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [this](std::size_t a, std::size_t b) { return queries_[a] < queries_[b]; });
    Dataset sorted = gather(order);
    sorted.total_weight_ = total_weight_;  // the sum in the old order: one number for one dataset
    sorted.names_ = names_;
    return sorted;
  }

  /// The same dataset with counts and weights in another scalar.
  template <class Other>
  Dataset<Other> cast() const {
    Dataset<Other> other;
    const auto convert = [](const std::vector<Scalar>& from) {
      std::vector<Other> to;
      to.reserve(from.size());
      for (const Scalar& value : from) to.push_back(static_cast<Other>(value));
      return to;
    };
    other.shape_ = shape_;
    other.names_ = names_;
    other.queries_ = queries_;
    other.labels_ = labels_;
    other.offsets_ = offsets_;
    other.tokens_ = tokens_;
    other.relevant_ = relevant_;
    other.counts_ = convert(counts_);
    other.null_counts_ = convert(null_counts_);
    other.weights_ = convert(weights_);
    other.finish("Dataset::cast");
    return other;
  }

 private:
  friend class DatasetBuilder<Scalar>;
  template <class Other>
  friend class Dataset;

  Dataset() = default;

  Dataset gather(std::span<const std::size_t> indices) const {
    Dataset to;
    to.shape_ = shape_;
    to.offsets_.reserve(indices.size() + 1);
    for (const std::size_t i : indices) {
      if (i >= size()) throw_invalid("Dataset::subset", "index", i, "be below " + to_text(size()));
      const auto first = offsets_[i], last = offsets_[i + 1];
      to.queries_.push_back(queries_[i]);
      to.labels_.push_back(labels_[i]);
      to.null_counts_.push_back(null_counts_[i]);
      to.weights_.push_back(weights_[i]);
      to.tokens_.insert(to.tokens_.end(), tokens_.begin() + first, tokens_.begin() + last);
      to.counts_.insert(to.counts_.end(), counts_.begin() + first, counts_.begin() + last);
      to.relevant_.insert(to.relevant_.end(), relevant_.begin() + first, relevant_.begin() + last);
      to.offsets_.push_back(static_cast<std::int64_t>(to.tokens_.size()));
    }
    return to;
  }

  void finish(const char* function) {
    total_weight_ = Scalar(0);
    for (const Scalar& weight : weights_) total_weight_ += weight;
    require_positive(function, "sum of the sequences' weights", total_weight_);
  }

  DatasetShape shape_;
  DatasetNames names_;
  std::vector<std::int32_t> queries_, labels_;
  std::vector<Scalar> null_counts_, weights_;
  std::vector<std::int64_t> offsets_{0};
  std::vector<std::int32_t> tokens_;
  std::vector<Scalar> counts_;
  std::vector<std::uint8_t> relevant_;
  Scalar total_weight_ = 0;
};

/// Collects sequences and checks each: what comes out of `build` needs no second look. Errors are InvalidArgument and
/// name the sequence (from 0), the field and its value.
template <class Scalar>
class DatasetBuilder {
 public:
  /// Without a shape, ids only have to be non-negative and the shape becomes what they need.
  DatasetBuilder() = default;
  explicit DatasetBuilder(const DatasetShape& shape) : fixed_(shape) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const auto check = [](const char* what, std::int64_t value) {
      if (value < 1 || value > most) throw_invalid("DatasetBuilder", what, value, "be from 1 to 2^31 - 1");
    };
    check("queries", shape.queries);
    check("tokens", shape.tokens);
    check("classes", shape.classes);
  }

  /// Adds one sequence. Entries of the same token and relevance are merged (counts added), in order of first
  /// appearance.
  DatasetBuilder& add(const Sequence<Scalar>& sequence) {
    check_id("query", sequence.query, fixed_ ? fixed_->queries : 0);
    check_id("label", sequence.label, fixed_ ? fixed_->classes : 0);
    check_amount("weight", sequence.weight, true);
    check_amount("null_count", sequence.null_count, true);
    if (sequence.entries.empty() && !(sequence.null_count > Scalar(0))) {
      throw InvalidArgument("DatasetBuilder: " + where() + " has no tokens");
    }
    for (const auto& entry : sequence.entries) {
      check_id("token", entry.token, fixed_ ? fixed_->tokens : 0);
      check_amount("count", entry.count, false);
    }
    auto& to = dataset_;
    const std::size_t first = to.tokens_.size();
    for (const auto& entry : sequence.entries) {
      // slot_ remembers where a (token, relevance) pair was last put; anything before `first` is another sequence's.
      const std::size_t key = 2 * static_cast<std::size_t>(entry.token) + (entry.relevant ? 1 : 0);
      if (key >= slot_.size()) slot_.resize(key + 1, 0);
      const std::size_t known = slot_[key];
      if (known > first) {
        to.counts_[known - 1] += entry.count;
        continue;
      }
      to.tokens_.push_back(entry.token);
      to.counts_.push_back(entry.count);
      to.relevant_.push_back(entry.relevant ? 1 : 0);
      slot_[key] = to.tokens_.size();
      grown_.tokens = std::max<std::int64_t>(grown_.tokens, std::int64_t{entry.token} + 1);
    }
    to.queries_.push_back(sequence.query);
    to.labels_.push_back(sequence.label);
    to.null_counts_.push_back(sequence.null_count);
    to.weights_.push_back(sequence.weight);
    to.offsets_.push_back(static_cast<std::int64_t>(to.tokens_.size()));
    grown_.queries = std::max<std::int64_t>(grown_.queries, std::int64_t{sequence.query} + 1);
    grown_.classes = std::max<std::int64_t>(grown_.classes, std::int64_t{sequence.label} + 1);
    return *this;
  }

  /// Names of the ids; each list empty or as long as the shape.
  DatasetBuilder& names(DatasetNames names) {
    dataset_.names_ = std::move(names);
    return *this;
  }

  /// Without a shape given at the beginning: makes room for at least this many ids, used or not.
  DatasetBuilder& at_least(const DatasetShape& shape) {
    grown_.queries = std::max(grown_.queries, shape.queries);
    grown_.tokens = std::max(grown_.tokens, shape.tokens);
    grown_.classes = std::max(grown_.classes, shape.classes);
    return *this;
  }

  std::size_t size() const { return dataset_.size(); }
  /// The shape given at the beginning, or what the sequences so far need.
  DatasetShape shape() const { return fixed_.value_or(grown_); }

  /// The dataset. Throws when there is no sequence, when all weights are zero, or when names do not fit the shape.
  Dataset<Scalar> build() && {
    if (dataset_.size() == 0) throw InvalidArgument("DatasetBuilder::build: the dataset has no sequences");
    dataset_.shape_ = shape();
    // A dataset of null tokens only has no token id, yet matrices want a column.
    dataset_.shape_.tokens = std::max<std::int64_t>(dataset_.shape_.tokens, 1);
    check_names("names of queries", dataset_.names_.queries, dataset_.shape_.queries);
    check_names("names of tokens", dataset_.names_.tokens, dataset_.shape_.tokens);
    check_names("names of classes", dataset_.names_.classes, dataset_.shape_.classes);
    dataset_.finish("DatasetBuilder::build");
    return std::move(dataset_);
  }

 private:
  std::string where() const { return "sequence " + to_text(dataset_.size()); }

  void check_id(const char* what, std::int32_t id, std::int64_t limit) const {
    if (id >= 0 && (!fixed_ || id < limit)) return;
    const std::string argument = where() + ": " + what;
    throw_invalid("DatasetBuilder", argument.c_str(), id,
                  fixed_ ? "be from 0 to " + to_text(limit - 1) : std::string("be at least 0"));
  }

  void check_amount(const char* what, const Scalar& value, bool zero_allowed) const {
    using std::isfinite;
    if (isfinite(value) && (value > Scalar(0) || (zero_allowed && value == Scalar(0)))) return;
    const std::string argument = where() + ": " + what;
    throw_invalid("DatasetBuilder", argument.c_str(), value,
                  zero_allowed ? "be finite and at least 0" : "be finite and above 0");
  }

  static void check_names(const char* what, const std::vector<std::string>& names, std::int64_t wanted) {
    if (names.empty() || static_cast<std::int64_t>(names.size()) == wanted) return;
    throw_invalid("DatasetBuilder::build", what, names.size(), "be none or " + to_text(wanted));
  }

  std::optional<DatasetShape> fixed_;
  DatasetShape grown_;
  Dataset<Scalar> dataset_;
  std::vector<std::size_t> slot_;
};

}  // namespace qkflow
