// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// A circuit that is a product of two matrices over an inner dimension d [Vashisht26]:
///     W_QK = W_Q^T W_K   (W_Q: d x queries, W_K: d x tokens),      W_OV = W_O W_V   (W_O: classes x d, W_V: d x
///     tokens).
/// With left = W_Q^T or W_O and right = W_K or W_V, W = left right, the flow is
///     d left/dt = rate_left G right^T,     d right/dt = rate_right left^T G,
/// and for equal rates it conserves left^T left - right right^T [Du18].
///
/// In the flat vector: left first. The inner dimension may be anything from 1; below the rank the data ask for, the
/// circuit is confined to that rank.
template <class Scalar, Circuit which>
class FactorizedCircuit {
 public:
  using scalar_type = Scalar;
  static constexpr Circuit circuit = which;
  /// W_Q is stored column by column, and so its transpose row by row.
  using LeftMatrix = CircuitMatrix<Scalar, which>;
  using RightMatrix = DenseMatrix<Scalar>;

  struct Rates {
    Scalar left = 1;   ///< of W_Q or W_O, at least 0
    Scalar right = 1;  ///< of W_K or W_V, at least 0
  };

  /// Throws InvalidArgument for an inner dimension below 1 or a negative rate.
  FactorizedCircuit(const MatrixShape& shape, Eigen::Index inner, const Rates& rates = {})
      : shape_(shape), inner_(inner), rates_(rates) {
    if (inner < 1) throw_invalid("FactorizedCircuit", "inner dimension", inner, "be at least 1");
    require_non_negative("FactorizedCircuit", "left rate", rates.left);
    require_non_negative("FactorizedCircuit", "right rate", rates.right);
  }
  FactorizedCircuit(const MatrixShape& shape, Eigen::Index inner, const Scalar& rate)
      : FactorizedCircuit(shape, inner, Rates{rate, rate}) {}

  MatrixShape shape() const { return shape_; }
  Eigen::Index inner() const { return inner_; }
  Eigen::Index size() const { return left_size() + inner_ * shape_.cols; }
  std::vector<ParameterBlock<Scalar>> blocks() const {
    const bool is_qk = which == Circuit::qk;
    const MatrixShape left = is_qk ? MatrixShape{inner_, shape_.rows} : MatrixShape{shape_.rows, inner_};
    return {{is_qk ? "W_Q" : "W_O", 0, left, false, rates_.left},
            {is_qk ? "W_K" : "W_V", left_size(), {inner_, shape_.cols}, false, rates_.right}};
  }

  /// W_Q^T or W_O, rows x d.
  Eigen::Map<const LeftMatrix> left(ConstVectorMap<Scalar> theta) const { return {theta.data(), shape_.rows, inner_}; }
  Eigen::Map<LeftMatrix> left(VectorMap<Scalar> theta) const { return {theta.data(), shape_.rows, inner_}; }
  /// W_K or W_V, d x columns.
  Eigen::Map<const RightMatrix> right(ConstVectorMap<Scalar> theta) const {
    return {theta.data() + left_size(), inner_, shape_.cols};
  }
  Eigen::Map<RightMatrix> right(VectorMap<Scalar> theta) const {
    return {theta.data() + left_size(), inner_, shape_.cols};
  }

  /// W = left right, in `buffer`.
  ConstCircuitMap<Scalar, which> form(ConstVectorMap<Scalar> theta, CircuitMatrix<Scalar, which>& buffer) const {
    buffer.noalias() = left(theta) * right(theta);
    return {buffer.data(), shape_.rows, shape_.cols};
  }
  void pull_back(ConstVectorMap<Scalar> theta, ConstCircuitMap<Scalar, which> gradient,
                 VectorMap<Scalar> velocity) const {
    left(velocity).noalias() = rates_.left * gradient * right(theta).transpose();
    right(velocity).noalias() = rates_.right * left(theta).transpose() * gradient;
  }

  /// W' = left' right + left right'.
  ConstCircuitMap<Scalar, which> form_tangent(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> direction,
                                              CircuitMatrix<Scalar, which>& buffer) const {
    buffer.noalias() = left(direction) * right(theta);
    buffer.noalias() += left(theta) * right(direction);
    return {buffer.data(), shape_.rows, shape_.cols};
  }
  /// The derivative of `pull_back` when theta moves along `direction` and the gradient along `gradient_tangent`.
  void pull_back_tangent(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> direction,
                         ConstCircuitMap<Scalar, which> gradient, ConstCircuitMap<Scalar, which> gradient_tangent,
                         VectorMap<Scalar> velocity_tangent) const {
    auto to_left = left(velocity_tangent);
    to_left.noalias() = rates_.left * gradient * right(direction).transpose();
    to_left.noalias() += rates_.left * gradient_tangent * right(theta).transpose();
    auto to_right = right(velocity_tangent);
    to_right.noalias() = rates_.right * left(direction).transpose() * gradient;
    to_right.noalias() += rates_.right * left(theta).transpose() * gradient_tangent;
  }

  /// rate_right left^T left - rate_left right right^T, both rates over the larger one: for equal rates
  /// W_Q W_Q^T - W_K W_K^T, or W_O^T W_O - W_V W_V^T (d x d) [Du18].
  std::vector<ConservedQuantity<Scalar>> conserved(ConstVectorMap<Scalar> theta) const {
    const Scalar larger = std::max(rates_.left, rates_.right);
    const Scalar unit = larger > Scalar(0) ? larger : Scalar(1);
    DenseMatrix<Scalar> value = Scalar(rates_.right / unit) * (left(theta).transpose() * left(theta));
    value -= Scalar(rates_.left / unit) * (right(theta) * right(theta).transpose());
    return {{which == Circuit::qk ? "W_Q W_Q' - W_K W_K'" : "W_O' W_O - W_V W_V'", value}};
  }

 private:
  Eigen::Index left_size() const { return shape_.rows * inner_; }

  MatrixShape shape_;
  Eigen::Index inner_;
  Rates rates_;
};

}  // namespace qkflow
