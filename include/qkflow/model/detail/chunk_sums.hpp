// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>

#include "qkflow/model/detail/gradient_plan.hpp"
#include "qkflow/model/detail/lanes.hpp"

namespace qkflow::detail {

/// What one chunk adds to the result. Columns are padded to whole registers.
template <class Scalar>
struct ChunkSums {
  Scalar loss = 0;
  Buffer<Scalar> columns;       ///< of G_OV (soft), or label by token masses (hard, marginal): classes x chunk's tokens
  Buffer<Scalar> column_rates;  ///< their derivatives, in a tangent pass of hard or marginal attention
  Buffer<Scalar> row;           ///< of G_QK over the chunk's tokens, when the chunk is a piece of a group
  Buffer<Scalar> bias;          ///< of G_bias (soft), or label masses of null tokens (hard, marginal)
  Buffer<Scalar> bias_rates;

  void clear(const GradientChunk& chunk, Eigen::Index stride, bool with_rates) {
    const auto tokens = static_cast<Eigen::Index>(chunk.tokens.size());
    columns.zeros(tokens * stride);
    bias.zeros(stride);
    if (with_rates) {
      column_rates.zeros(tokens * stride);
      bias_rates.zeros(stride);
    }
    if (chunk.is_piece) row.zeros(tokens);
  }
};

/// Factors on the three parts of the gradient: learning rates over the total weight.
template <class Scalar>
struct GradientFactors {
  Scalar qk, ov, bias;
};

/// Hands out the row of G_QK a sequence adds to: the chunk's own for a piece of a group, else the result's, cleared
/// when its group begins.
template <class Scalar>
class RowWriter {
 public:
  RowWriter(const GradientChunk& chunk, ChunkSums<Scalar>& sums, Scalar* rows, Eigen::Index row_size)
      : piece_(chunk.is_piece ? sums.row.data() : nullptr), rows_(rows), row_size_(row_size) {}

  /// Indexed by local token ids where `is_local`, else by tokens.
  Scalar* row(std::int32_t query) {
    if (piece_ != nullptr) return piece_;
    Scalar* row = rows_ + query * row_size_;
    if (query != open_) std::fill_n(row, row_size_, Scalar(0));
    open_ = query;
    return row;
  }
  bool is_local() const { return piece_ != nullptr; }

 private:
  Scalar* piece_;
  Scalar* rows_;
  Eigen::Index row_size_;
  std::int32_t open_ = -1;
};

}  // namespace qkflow::detail
