// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <utility>

#include "qkflow/math/require.hpp"
#include "qkflow/task/block_task.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// The block task with whole numbers: which id is which token. Class y owns the queries y b .. y b + b - 1 and the
/// informative tokens of the same numbers (two vocabularies); one-hot noise tokens follow from M b on.
struct BlockLayout {
  std::int32_t classes = 0;           ///< M
  std::int32_t block = 0;             ///< b
  std::int32_t noise_vocabulary = 0;  ///< N; 0 when noise tokens are null

  /// Throws InvalidArgument when M, b or a finite N of the task is not a whole number, or the ids exceed 2^31.
  template <class Scalar>
  static BlockLayout of(const BlockTask<Scalar>& task, const char* function = "BlockLayout") {
    using std::isinf;
    task.validate(function);
    BlockLayout layout;
    layout.classes = whole(function, "classes", task.classes);
    layout.block = whole(function, "block", task.block);
    if (!isinf(task.noise_vocabulary))
      layout.noise_vocabulary = whole(function, "noise_vocabulary", task.noise_vocabulary);
    const std::int64_t tokens = std::int64_t{layout.classes} * layout.block + layout.noise_vocabulary;
    if (tokens > 2147483647) throw_invalid(function, "number of tokens", tokens, "be below 2^31");
    return layout;
  }

  std::int32_t query(std::int32_t label, std::int32_t i) const { return label * block + i; }
  std::int32_t informative(std::int32_t label, std::int32_t j) const { return label * block + j; }
  std::int32_t noise(std::int32_t l) const { return classes * block + l; }
  DatasetShape shape() const {
    const std::int64_t informative_tokens = std::int64_t{classes} * block;
    return {informative_tokens, informative_tokens + noise_vocabulary, classes};
  }

  /// `value` as an integer from 1 to 2^31 - 1; throws InvalidArgument if it is not one.
  template <class Scalar>
  static std::int32_t whole(const char* function, const char* argument, const Scalar& value) {
    using std::floor;
    if (!(value >= Scalar(1) && value <= Scalar(2147483647) && floor(value) == value)) {
      throw_invalid(function, argument, value, "be a whole number from 1 to 2^31 - 1 to make a finite dataset");
    }
    return static_cast<std::int32_t>(value);
  }
};

/// How n one-hot noise tokens out of N are laid over the sequences. Both ways every noise token is met equally often
/// with every query, so that on the line both give the population gradient exactly.
enum class NoisePlacement {
  automatic,  ///< windows where they balance, else spread
  windows,    ///< real sequences: the b sequences of a query take consecutive windows of n noise tokens; b n must be a
              ///< multiple of N
  spread      ///< every sequence holds n/N of each noise token: the expected counts
};

/// The balanced finite dataset of the block task: for each class, each of its b queries and each of the b cyclic
/// windows of m consecutive informative tokens, one sequence: M b^2 sequences, ordered by query. Its full-batch
/// gradient is the population gradient everywhere on the line W_OV = mu_OV D_OV, W_QK = (mu_QK / s) D_QK. Informative
/// tokens are marked relevant. With null noise n may be any positive number.
///
/// Needs whole M, b, m <= b, and for finite N whole n (not with `spread`) and N; else throws InvalidArgument.
template <class Scalar>
Dataset<Scalar> block_dataset(const BlockTask<Scalar>& task, NoisePlacement placement = NoisePlacement::automatic) {
  using std::floor;
  constexpr const char* function = "block_dataset";
  const BlockLayout layout = BlockLayout::of(task, function);
  const std::int32_t b = layout.block, noise_tokens = layout.noise_vocabulary;
  const std::int32_t m = BlockLayout::whole(function, "informative", task.informative);
  if (m > b) throw_invalid(function, "informative", m, "be at most the block " + to_text(b));

  std::int64_t n = 0;  // noise tokens a sequence; stays 0 where they are not laid out as windows
  if (noise_tokens > 0 && placement != NoisePlacement::spread) {
    const bool balances = floor(task.noise) == task.noise && task.noise <= Scalar(2147483647) &&
                          b * static_cast<std::int64_t>(task.noise) % noise_tokens == 0;
    if (!balances && placement == NoisePlacement::windows) {
      throw_invalid(function, "noise", task.noise,
                    "be whole and block * noise a multiple of noise_vocabulary = " + to_text(noise_tokens));
    }
    if (balances) n = static_cast<std::int64_t>(task.noise);
  }

  DatasetBuilder<Scalar> builder(layout.shape());
  Sequence<Scalar> sequence;
  if (noise_tokens == 0) sequence.null_count = task.noise;
  for (std::int32_t label = 0; label < layout.classes; ++label) {
    sequence.label = label;
    for (std::int32_t i = 0; i < b; ++i) {
      sequence.query = layout.query(label, i);
      for (std::int32_t window = 0; window < b; ++window) {
        sequence.entries.clear();
        for (std::int32_t j = 0; j < m; ++j) {
          sequence.entries.push_back({layout.informative(label, (window + j) % b), Scalar(1), true});
        }
        if (n > 0) {
          const std::int64_t every = n / noise_tokens, rest = n % noise_tokens, first = window * n % noise_tokens;
          for (std::int32_t l = 0; l < noise_tokens; ++l) {
            const std::int64_t offset = (l - first + noise_tokens) % noise_tokens;
            const std::int64_t count = every + (offset < rest ? 1 : 0);
            if (count > 0) sequence.entries.push_back({layout.noise(l), static_cast<Scalar>(count), false});
          }
        } else {
          for (std::int32_t l = 0; l < noise_tokens; ++l) {
            sequence.entries.push_back({layout.noise(l), Scalar(task.noise / Scalar(noise_tokens)), false});
          }
        }
        builder.add(sequence);
      }
    }
  }
  return std::move(builder).build();
}

/// The line's direction of W_OV, classes x tokens: D_OV[k, j] = [k = y] - 1/M for j in S_y, 0 for noise. All its
/// nonzero singular values are sqrt(b), M - 1 of them.
template <class Scalar>
Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> block_output_direction(const BlockTask<Scalar>& task) {
  const BlockLayout layout = BlockLayout::of(task, "block_output_direction");
  const DatasetShape shape = layout.shape();
  Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic> direction(shape.classes, shape.tokens);
  direction.setZero();
  for (std::int32_t label = 0; label < layout.classes; ++label) {
    auto columns = direction.middleCols(layout.informative(label, 0), layout.block);
    columns.setConstant(Scalar(-1) / Scalar(layout.classes));
    columns.row(label).array() += Scalar(1);
  }
  return direction;
}

/// The line's direction of W_QK, queries x tokens, with a score gap of 1 between informative and noise tokens: for q in
/// Q_y, D_QK[q, j] = 1 for j in S_y (null noise); with one-hot noise N/(N + b) for j in S_y and -b/(N + b) for noise
/// tokens, because the gradient of a softmax over tokens sums to zero along each row. Elsewhere 0.
template <class Scalar>
Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> block_attention_direction(
    const BlockTask<Scalar>& task) {
  const BlockLayout layout = BlockLayout::of(task, "block_attention_direction");
  const DatasetShape shape = layout.shape();
  const Scalar b(layout.block), noise_tokens(layout.noise_vocabulary);
  Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> direction(shape.queries, shape.tokens);
  direction.setZero();
  const bool null_noise = layout.noise_vocabulary == 0;
  const Scalar informative = null_noise ? Scalar(1) : Scalar(noise_tokens / (noise_tokens + b));
  for (std::int32_t label = 0; label < layout.classes; ++label) {
    const std::int32_t first = layout.query(label, 0);
    direction.block(first, layout.informative(label, 0), layout.block, layout.block).setConstant(informative);
  }
  if (!null_noise) direction.rightCols(layout.noise_vocabulary).setConstant(-b / (noise_tokens + b));
  return direction;
}

}  // namespace qkflow
