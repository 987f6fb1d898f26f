// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkflow/kernel/onehot_kernel.hpp"
#include "qkflow/train/trainer.hpp"

namespace qkflow {

/// What a head does on fresh sequences.
struct Evaluation {
  static constexpr int bins = 5;

  std::uint64_t sequences = 0;
  double loss = 0;                ///< mean
  double accuracy = 0;            ///< share whose label is the likeliest class
  double relevant_attention = 0;  ///< mean attention mass on relevant tokens (the distinct ones of the topic task)
  double query_attention = 0;     ///< mean attention mass on the query's own token, wherever it stands
  /// heat_map[i][j]: share of the sequences whose label has a probability in bin i and whose attention mass on relevant
  /// tokens is in bin j, bins of one fifth from 0 to 1 [Vashisht26].
  std::array<std::array<double, bins>, bins> heat_map{};

  static std::size_t bin(double value) {
    return static_cast<std::size_t>(std::clamp(static_cast<int>(value * bins), 0, bins - 1));
  }
};

/// Evaluates parameters on batches first_step, first_step + 1, ... of a source: take steps that training does not use.
template <simd::KernelScalar T, BatchSource<T> Source>
Evaluation evaluate(OneHotKernel<T>& kernel, const std::vector<T>& theta, Source& source, std::uint64_t first_step,
                    std::uint64_t batches) {
  Evaluation result;
  OneHotBatch<T> batch;
  for (std::uint64_t i = 0; i < batches; ++i) {
    source(first_step + i, batch);
    result.loss += kernel.loss(batch, theta.data());
    result.sequences += batch.size();
    for (const OneHotGroup& group : batch.groups) {
      for (std::int32_t s = 0; s < group.sequences; ++s) {
        const auto at = static_cast<std::size_t>(group.first + s);
        const auto attention = static_cast<double>(kernel.relevant_attention(batch, group, s));
        const auto probability = static_cast<double>(kernel.label_probability(at));
        result.relevant_attention += attention;
        result.query_attention += static_cast<double>(kernel.attention_on(batch, group, s, group.query));
        result.accuracy += kernel.label_is_likeliest(at) ? 1 : 0;
        result.heat_map[Evaluation::bin(probability)][Evaluation::bin(attention)] += 1;
      }
    }
  }
  const auto sequences = static_cast<double>(std::max<std::uint64_t>(result.sequences, 1));
  result.loss /= static_cast<double>(std::max<std::uint64_t>(batches, 1));
  result.accuracy /= sequences;
  result.relevant_attention /= sequences;
  result.query_attention /= sequences;
  for (auto& row : result.heat_map) {
    for (double& share : row) share /= sequences;
  }
  return result;
}

/// Steps whose batches no training run meets: for `evaluate`.
inline constexpr std::uint64_t evaluation_step = std::uint64_t{1} << 62;

}  // namespace qkflow
