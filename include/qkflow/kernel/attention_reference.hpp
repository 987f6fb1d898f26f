// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <limits>

namespace qkflow {

/// Attention of one head as a textbook writes it, with its whole length x length matrix: what the kernels are tested
/// against (in long double) and timed against (as the Eigen expression).
template <class Scalar>
struct AttentionReference {
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

  Matrix weights;      // a = softmax(scale q k^T), row by row; queries x keys
  Matrix output;       // a v; queries x value width
  Vector log_sum_exp;  // of each row of scores; -infinity where every key is masked, and then weights and output are 0
  Matrix d_query, d_keys, d_values;

  /// q: queries x width, k: keys x width, v: keys x value width. Causal: query i sees keys 0..i. `key_mask`: one byte a
  /// key, 0 = masked, or null. Allocates.
  void forward(const Matrix& q, const Matrix& k, const Matrix& v, Scalar scale, bool causal,
               const std::uint8_t* key_mask = nullptr) {
    constexpr Scalar infinity = std::numeric_limits<Scalar>::infinity();
    weights.noalias() = scale * q * k.transpose();
    log_sum_exp.resize(q.rows());
    for (Eigen::Index i = 0; i < q.rows(); ++i) {
      auto row = weights.row(i);
      if (key_mask != nullptr) {
        for (Eigen::Index j = 0; j < k.rows(); ++j) {
          if (key_mask[j] == 0) row(j) = -infinity;
        }
      }
      const Eigen::Index seen = causal ? i + 1 : k.rows();
      const Scalar high = seen > 0 ? row.head(seen).maxCoeff() : -infinity;
      row.tail(k.rows() - seen).setZero();
      if (high == -infinity) {
        row.setZero();
        log_sum_exp(i) = -infinity;
        continue;
      }
      row.head(seen) = (row.head(seen).array() - high).exp();
      const Scalar sum = row.head(seen).sum();
      row.head(seen) /= sum;
      using std::log;
      log_sum_exp(i) = high + log(sum);
    }
    output.noalias() = weights * v;
  }

  /// Gradients of sum(output * d_output) after `forward` with the same operands: with da = d_output v^T and
  /// ds = a (da - rowwise sum(d_output output)): d_query = scale ds k, d_keys = scale ds^T q, d_values = a^T d_output.
  void backward(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& d_output, Scalar scale) {
    const Vector mean = d_output.cwiseProduct(output).rowwise().sum();
    d_values.noalias() = weights.transpose() * d_output;
    Matrix d_scores = d_output * v.transpose();
    d_scores.colwise() -= mean;
    d_scores.array() *= weights.array() * scale;
    d_query.noalias() = d_scores * k;
    d_keys.noalias() = d_scores.transpose() * q;
  }
};

}  // namespace qkflow
