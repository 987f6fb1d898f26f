// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/collapsed_circuit.hpp"
#include "qkflow/model/factorized_circuit.hpp"
#include "qkflow/model/head_parameters.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/model/parameter_block.hpp"
#include "qkflow/model/product_circuit.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace qkflow {

/// A circuit by its singular directions: W = left diag(values) right^T, with orthonormal columns. Values may be
/// negative.
template <class Scalar>
struct SingularForm {
  DenseMatrix<Scalar> left;     ///< rows x k
  ColumnVector<Scalar> values;  ///< k
  DenseMatrix<Scalar> right;    ///< columns x k
};

/// Sets a circuit's parameters so that they form W, one overload a parameterization; a user's own may add another,
/// found by its argument. Factors meet in the inner dimension's first k coordinates; with s a singular value,
///     factorized   w_1 w_2 = s, w_1^2 - w_2^2 = lambda (0: balanced, |w_1| = |w_2|)
///     product      |w_i| = |s|^(1/N), balanced; lambda must be 0 (unless N = 2)
/// and the sign of s goes to the last factor. Throws InvalidArgument when an inner dimension is below k.
template <class Scalar, Circuit which>
void assign_singular(const CollapsedCircuit<Scalar, which>& circuit, const SingularForm<Scalar>& form,
                     const Scalar& /*lambda*/, VectorMap<Scalar> theta) {
  CircuitMap<Scalar, which> w(theta.data(), circuit.shape().rows, circuit.shape().cols);
  w = form.left * form.values.asDiagonal() * form.right.transpose();
}

template <class Scalar, Circuit which>
void assign_singular(const FactorizedCircuit<Scalar, which>& circuit, const SingularForm<Scalar>& form,
                     const Scalar& lambda, VectorMap<Scalar> theta) {
  using std::abs;
  using std::sqrt;
  const Eigen::Index k = form.values.size();
  if (circuit.inner() < k) {
    throw_invalid("assign_singular", "inner dimension", circuit.inner(), "be at least the rank " + to_text(k));
  }
  theta.setZero();
  for (Eigen::Index i = 0; i < k; ++i) {
    const Scalar s = form.values[i];
    // The larger of the two squares without cancellation, the other from the product.
    const Scalar large = sqrt((abs(lambda) + sqrt(lambda * lambda + Scalar(4) * s * s)) / Scalar(2));
    const Scalar small = large > Scalar(0) ? Scalar(abs(s) / large) : Scalar(0);
    const Scalar sign = s < Scalar(0) ? Scalar(-1) : Scalar(1);
    circuit.left(theta).col(i) = (lambda < Scalar(0) ? small : large) * form.left.col(i);
    circuit.right(theta).row(i) = (sign * (lambda < Scalar(0) ? large : small)) * form.right.col(i).transpose();
  }
}

template <class Scalar, Circuit which>
void assign_singular(const ProductCircuit<Scalar, which>& circuit, const SingularForm<Scalar>& form,
                     const Scalar& lambda, VectorMap<Scalar> theta) {
  using std::abs;
  using std::pow;
  const Eigen::Index k = form.values.size();
  const std::size_t factors = circuit.factors();
  if (factors == 2) {
    // Both lie in memory as a factorized circuit's do, but for the order of the first matrix of W_QK.
    const FactorizedCircuit<Scalar, Circuit::ov> pair(circuit.shape(), circuit.blocks()[0].shape.cols);
    return assign_singular(pair, form, lambda, theta);
  }
  if (lambda != Scalar(0)) throw_invalid("assign_singular", "lambda", lambda, "be 0 for a product of N != 2 factors");
  if (factors == 1) {
    circuit.factor(theta, 0) = form.left * form.values.asDiagonal() * form.right.transpose();
    return;
  }
  theta.setZero();
  for (std::size_t f = 0; f < factors; ++f) {
    auto factor = circuit.factor(theta, f);
    if (f + 1 < factors && factor.cols() < k) {
      throw_invalid("assign_singular", "inner dimension", factor.cols(), "be at least the rank " + to_text(k));
    }
    for (Eigen::Index i = 0; i < k; ++i) {
      const Scalar s = form.values[i];
      const Scalar w =
          s == Scalar(0) ? Scalar(0) : Scalar(pow(Scalar(abs(s)), Scalar(1) / Scalar(static_cast<int>(factors))));
      if (f == 0) {
        factor.col(i) = w * form.left.col(i);
      } else if (f + 1 < factors) {
        factor(i, i) = w;
      } else {
        factor.row(i) = (s < Scalar(0) ? Scalar(-w) : w) * form.right.col(i).transpose();
      }
    }
  }
}

namespace detail {
/// An orthonormal basis of the vectors of length n whose entries sum to zero (Helmert's), n x (n - 1).
template <class Scalar>
DenseMatrix<Scalar> zero_sum_basis(Eigen::Index n) {
  using std::sqrt;
  DenseMatrix<Scalar> basis = DenseMatrix<Scalar>::Zero(n, n - 1);
  for (Eigen::Index k = 1; k < n; ++k) {
    const Scalar norm = sqrt(Scalar(static_cast<double>(k)) * Scalar(static_cast<double>(k + 1)));
    basis.col(k - 1).head(k).setConstant(Scalar(1) / norm);
    basis(k, k - 1) = -Scalar(static_cast<double>(k)) / norm;
  }
  return basis;
}

/// Repeats each row `block` times, over sqrt(block): class vectors spread over the class's tokens, norms kept.
template <class Scalar>
DenseMatrix<Scalar> spread_classes(const DenseMatrix<Scalar>& classes, Eigen::Index block, Eigen::Index rows) {
  using std::sqrt;
  DenseMatrix<Scalar> tokens = DenseMatrix<Scalar>::Zero(rows, classes.cols());
  const Scalar norm = sqrt(Scalar(static_cast<double>(block)));
  for (Eigen::Index y = 0; y < classes.rows(); ++y) {
    tokens.middleRows(y * block, block).rowwise() = classes.row(y) / norm;
  }
  return tokens;
}
}  // namespace detail

/// mu D_OV of the block task by its singular directions: M - 1 of them, all of value sqrt(b) mu.
template <class Scalar>
SingularForm<Scalar> block_output_form(const BlockTask<Scalar>& task, const Scalar& mu) {
  const BlockLayout layout = BlockLayout::of(task, "block_output_form");
  const DenseMatrix<Scalar> basis = detail::zero_sum_basis<Scalar>(layout.classes);
  return {basis, ColumnVector<Scalar>::Constant(basis.cols(), mu * task.output_value_singular_value()),
          detail::spread_classes(basis, layout.block, layout.shape().tokens)};
}

/// x D_QK of the block task by its singular directions, M of them: one a class, of value b x, for null noise; with N
/// one-hot noise tokens M - 1 of value sigma_QK x, and the mean direction of value sigma_QK x sqrt(1 + M b / N), which
/// all classes share through the noise.
template <class Scalar>
SingularForm<Scalar> block_attention_form(const BlockTask<Scalar>& task, const Scalar& x) {
  using std::sqrt;
  const BlockLayout layout = BlockLayout::of(task, "block_attention_form");
  const DatasetShape shape = layout.shape();
  const Eigen::Index classes = layout.classes;
  const Scalar sigma = task.query_key_singular_value();
  ColumnVector<Scalar> values = ColumnVector<Scalar>::Constant(classes, x * sigma);
  if (layout.noise_vocabulary == 0) {
    const DenseMatrix<Scalar> basis = DenseMatrix<Scalar>::Identity(classes, classes);
    return {detail::spread_classes(basis, layout.block, shape.queries), values,
            detail::spread_classes(basis, layout.block, shape.tokens)};
  }
  const Scalar m(layout.classes), b(layout.block), n(layout.noise_vocabulary);
  DenseMatrix<Scalar> basis(classes, classes);
  basis.leftCols(classes - 1) = detail::zero_sum_basis<Scalar>(classes);
  basis.col(classes - 1).setConstant(Scalar(1) / sqrt(m));
  DenseMatrix<Scalar> right = detail::spread_classes(basis, layout.block, shape.tokens);
  // The mean direction's row sums to zero: what informative tokens gain, noise tokens lose.
  const Scalar lift = sqrt(Scalar(1) + m * b / n);
  right.col(classes - 1).tail(layout.noise_vocabulary).setConstant(-sqrt(m * b) / n);
  right.col(classes - 1) /= lift;
  values[classes - 1] *= lift;
  return {detail::spread_classes(basis, layout.block, shape.queries), values, right};
}

/// A point of the line, and the imbalance of factors there.
template <class Scalar>
struct AlignedStart {
  Scalar mu_ov = 0;
  Scalar mu_qk = 0;      ///< the score of an informative token (its gap to noise tokens): scale times the weight
  Scalar lambda_ov = 0;  ///< w_1^2 - w_2^2 of every singular direction of W_OV, for factorized circuits
  Scalar lambda_qk = 0;
};

/// Parameters on the line of the block task: W_OV = mu_ov D_OV, W_QK = (mu_qk / scale) D_QK, factors aligned to the
/// singular vectors of D (inner dimension at least M - 1 for W_OV, M for W_QK), the bias zero. From here the matrix
/// flow stays on the line and is the reduced flow; for finite noise vocabulary and factorized attention nearly so.
template <class Qk, class Ov>
ColumnVector<typename Qk::scalar_type> aligned_start(const HeadParameters<Qk, Ov>& parameters,
                                                     const BlockTask<typename Qk::scalar_type>& task,
                                                     const AlignedStart<typename Qk::scalar_type>& start) {
  using Scalar = typename Qk::scalar_type;
  constexpr const char* function = "aligned_start";
  require_finite(function, "mu_ov", start.mu_ov);
  require_finite(function, "mu_qk", start.mu_qk);
  require_finite(function, "lambda_ov", start.lambda_ov);
  require_finite(function, "lambda_qk", start.lambda_qk);
  const DatasetShape shape = BlockLayout::of(task, function).shape();
  if (!(parameters.shape() == shape)) throw InvalidArgument("aligned_start: the parameters' shape is not the task's");
  ColumnVector<Scalar> theta = zero_start(parameters);
  assign_singular(parameters.qk(), block_attention_form(task, Scalar(start.mu_qk / task.score_scale)), start.lambda_qk,
                  parameters.qk_part(theta));
  assign_singular(parameters.ov(), block_output_form(task, start.mu_ov), start.lambda_ov, parameters.ov_part(theta));
  return theta;
}

/// The singular directions of any matrix, values below `rank_tolerance` times the largest left out. Takes a full
/// singular value decomposition: seconds for a thousand rows.
template <class Derived>
SingularForm<typename Derived::Scalar> singular_form(const Eigen::MatrixBase<Derived>& w,
                                                     const typename Derived::Scalar& rank_tolerance) {
  using Scalar = typename Derived::Scalar;
  const DenseMatrix<Scalar> matrix = w;
  const Eigen::BDCSVD<DenseMatrix<Scalar>> svd(matrix, Eigen::ComputeThinU | Eigen::ComputeThinV);
  Eigen::Index rank = 0;
  const auto& values = svd.singularValues();
  while (rank < values.size() && values[rank] > rank_tolerance * values[0]) ++rank;
  return {svd.matrixU().leftCols(rank), values.head(rank), svd.matrixV().leftCols(rank)};
}

/// Parameters that form given circuits (and bias, if both have one) with balanced factors. Throws InvalidArgument when
/// a circuit's rank exceeds an inner dimension, or shapes differ.
template <class Qk, class Ov>
ColumnVector<typename Qk::scalar_type> balanced_start(const HeadParameters<Qk, Ov>& parameters,
                                                      const ConstCircuits<typename Qk::scalar_type>& circuits) {
  using Scalar = typename Qk::scalar_type;
  require_circuit_shape("balanced_start", circuits, parameters.shape());
  const Scalar tolerance = Scalar(100) * std::numeric_limits<Scalar>::epsilon();
  ColumnVector<Scalar> theta = zero_start(parameters);
  const auto assign = [&](const auto& circuit, const auto& w, VectorMap<Scalar> part) {
    if constexpr (requires { circuit.direct_rate(); }) {
      part = ConstVectorMap<Scalar>(w.data(), w.size());
    } else {
      assign_singular(circuit, singular_form(w, tolerance), Scalar(0), part);
    }
  };
  assign(parameters.qk(), circuits.qk, parameters.qk_part(theta));
  assign(parameters.ov(), circuits.ov, parameters.ov_part(theta));
  if (parameters.has_bias() && circuits.bias.size() != 0) parameters.bias_part(theta) = circuits.bias;
  return theta;
}

/// Balanced factors of random circuits: each circuit a Gaussian matrix with entries of this standard deviation, cut to
/// its leading singular directions where an inner dimension is smaller. Collapsed circuits are the Gaussian matrix.
template <class Qk, class Ov>
ColumnVector<typename Qk::scalar_type> balanced_random_start(const HeadParameters<Qk, Ov>& parameters,
                                                             std::uint64_t seed, double deviation) {
  using Scalar = typename Qk::scalar_type;
  require_non_negative("balanced_random_start", "deviation", deviation);
  Circuits<Scalar> w(parameters.shape());
  const auto fill = [&](auto& matrix, std::uint32_t stream) {
    RandomStream random(seed, detail::start_step, stream);
    for (Eigen::Index i = 0; i < matrix.size(); ++i)
      matrix.data()[i] = static_cast<Scalar>(deviation * random.normal());
  };
  fill(w.qk, 0);
  fill(w.ov, 1);
  ColumnVector<Scalar> theta = zero_start(parameters);
  const auto assign = [](const auto& circuit, const auto& matrix, VectorMap<Scalar> part) {
    if constexpr (requires { circuit.direct_rate(); }) {
      part = ConstVectorMap<Scalar>(matrix.data(), matrix.size());
    } else {
      SingularForm<Scalar> form = singular_form(matrix, Scalar(0));
      Eigen::Index room = form.values.size();
      const auto blocks = circuit.blocks();
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        // The inner dimensions are the sides at which neighbouring factors meet: no factor is narrower than they are.
        room = std::min(room, std::min(blocks[i].shape.rows, blocks[i].shape.cols));
      }
      form = {form.left.leftCols(room), form.values.head(room), form.right.leftCols(room)};
      assign_singular(circuit, form, Scalar(0), part);
    }
  };
  assign(parameters.qk(), w.qk, parameters.qk_part(theta));
  assign(parameters.ov(), w.ov, parameters.ov_part(theta));
  return theta;
}

}  // namespace qkflow
