// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/model/parameter_block.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// What a head does on a dataset; weighted means over sequences.
template <class Scalar>
struct HeadObservables {
  Scalar loss = 0;
  Scalar accuracy = 0;  ///< how often the label is the most probable class; of k equal ones, 1/k
  Scalar label_probability = 0;
  Scalar relevant_attention = 0;  ///< attention mass on relevant tokens: alpha of the theory
  Scalar attention_entropy = 0;   ///< of attention over positions, in nats
};

/// Computes them. Keeps a reference to the dataset, which must outlive it; not thread-safe. The same bits for any
/// number of threads.
template <class Scalar>
class HeadObserver {
 public:
  explicit HeadObserver(const Dataset<Scalar>& dataset, const HeadOptions<Scalar>& options = {}, int threads = 1)
      : dataset_(&dataset),
        pool_(std::make_unique<ThreadPool>(threads)),
        forward_(pool_->size(), HeadForward<Scalar>(options)),
        parts_((dataset.size() + chunk - 1) / chunk) {}

  /// Throws InvalidArgument for circuits of another shape than the dataset's.
  HeadObservables<Scalar> operator()(const ConstCircuits<Scalar>& w) {
    require_circuit_shape("HeadObserver", w, dataset_->shape());
    pool_->for_each(parts_.size(), [&](std::size_t part, std::size_t worker) {
      HeadObservables<Scalar> sum;
      const std::size_t last = std::min(dataset_->size(), (part + 1) * chunk);
      for (std::size_t s = part * chunk; s < last; ++s) {
        const auto sequence = (*dataset_)[s];
        const auto& result = forward_[worker](sequence, w);
        sum.loss += sequence.weight * result.loss;
        sum.accuracy += sequence.weight * accuracy(result.probabilities, sequence.label);
        sum.label_probability += sequence.weight * result.probabilities[sequence.label];
        sum.relevant_attention += sequence.weight * result.relevant_attention;
        sum.attention_entropy += sequence.weight * result.entropy;
      }
      parts_[part] = sum;
    });
    HeadObservables<Scalar> total;
    for (const auto& part : parts_) {
      total.loss += part.loss;
      total.accuracy += part.accuracy;
      total.label_probability += part.label_probability;
      total.relevant_attention += part.relevant_attention;
      total.attention_entropy += part.attention_entropy;
    }
    const Scalar weight = dataset_->total_weight();
    return {total.loss / weight, total.accuracy / weight, total.label_probability / weight,
            total.relevant_attention / weight, total.attention_entropy / weight};
  }

 private:
  static constexpr std::size_t chunk = 256;

  static Scalar accuracy(const ColumnVector<Scalar>& p, Eigen::Index label) {
    int equal = 0;
    for (Eigen::Index k = 0; k < p.size(); ++k) {
      if (p[k] > p[label]) return Scalar(0);
      if (p[k] == p[label]) ++equal;
    }
    return equal > 0 ? Scalar(Scalar(1) / Scalar(equal)) : Scalar(0);  // none is equal only where p is NaN
  }

  const Dataset<Scalar>* dataset_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<HeadForward<Scalar>> forward_;  // one a thread
  std::vector<HeadObservables<Scalar>> parts_;
};

/// Where circuits stand relative to the line of the block task: W_OV = mu_ov D_OV, W_QK = (mu_qk / scale) D_QK.
template <class Scalar>
struct LinePosition {
  Scalar mu_ov = 0, mu_qk = 0;              ///< coefficients of the orthogonal projections
  Scalar ov_distance = 0, qk_distance = 0;  ///< of W_OV and W_QK from them, largest entry
};

/// Projects circuits on the line of a block task.
template <class Scalar>
class LineObserver {
 public:
  /// Throws InvalidArgument when the task has no finite dataset (BlockLayout).
  explicit LineObserver(const BlockTask<Scalar>& task)
      : scale_(task.score_scale), ov_(block_output_direction(task)), qk_(block_attention_direction(task)) {}

  /// Throws InvalidArgument for circuits of another shape. Does not allocate.
  LinePosition<Scalar> operator()(const ConstCircuits<Scalar>& w) const {
    require_circuit_shape("LineObserver", w, {qk_.rows(), qk_.cols(), ov_.rows()});
    const Scalar ov = w.ov.cwiseProduct(ov_).sum() / ov_.squaredNorm();
    const Scalar qk = w.qk.cwiseProduct(qk_).sum() / qk_.squaredNorm();
    return {ov, Scalar(scale_ * qk), (w.ov - ov * ov_).cwiseAbs().maxCoeff(), (w.qk - qk * qk_).cwiseAbs().maxCoeff()};
  }

 private:
  Scalar scale_;
  CircuitMatrix<Scalar, Circuit::ov> ov_;
  CircuitMatrix<Scalar, Circuit::qk> qk_;
};

/// The `count` largest singular values, descending (fewer if the matrix is smaller). A full decomposition without
/// vectors: about a second for a thousand rows.
template <class Derived>
ColumnVector<typename Derived::Scalar> leading_singular_values(const Eigen::MatrixBase<Derived>& w,
                                                               Eigen::Index count) {
  if (count < 1) throw_invalid("leading_singular_values", "count", count, "be at least 1");
  const DenseMatrix<typename Derived::Scalar> matrix = w;
  const Eigen::BDCSVD<DenseMatrix<typename Derived::Scalar>> svd(matrix);
  return svd.singularValues().head(std::min<Eigen::Index>(count, svd.singularValues().size()));
}

/// The size of each conserved quantity now: for factorized circuits the imbalance of the factors (largest singular
/// direction: the Frobenius norm bounds it).
template <class Scalar>
struct NamedValue {
  std::string name;
  Scalar value = 0;
};
template <class Parameters>
std::vector<NamedValue<typename Parameters::scalar_type>> imbalances(
    const Parameters& parameters, const ColumnVector<typename Parameters::scalar_type>& theta) {
  std::vector<NamedValue<typename Parameters::scalar_type>> result;
  for (const auto& quantity : parameters.conserved(theta)) result.push_back({quantity.name, quantity.value.norm()});
  return result;
}

/// How far conserved quantities have moved: the largest entry of any difference. Both lists from the same parameters.
template <class Scalar>
Scalar conserved_drift(const std::vector<ConservedQuantity<Scalar>>& before,
                       const std::vector<ConservedQuantity<Scalar>>& after) {
  if (before.size() != after.size()) {
    throw_invalid("conserved_drift", "number of quantities after", after.size(), "be " + to_text(before.size()));
  }
  Scalar drift(0);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].value.rows() != after[i].value.rows() || before[i].value.cols() != after[i].value.cols()) {
      throw InvalidArgument("conserved_drift: the shapes of " + before[i].name + " differ");
    }
    drift = std::max(drift, Scalar((before[i].value - after[i].value).cwiseAbs().maxCoeff()));
  }
  return drift;
}

}  // namespace qkflow
