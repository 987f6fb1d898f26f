// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// A circuit that is its own parameter: W. Flow: dW/dt = rate * G.
template <class Scalar, Circuit which>
class CollapsedCircuit {
 public:
  using scalar_type = Scalar;
  static constexpr Circuit circuit = which;

  /// Rate at least 0; 0 freezes the circuit. Throws InvalidArgument.
  explicit CollapsedCircuit(const MatrixShape& shape, const Scalar& rate = Scalar(1)) : shape_(shape), rate_(rate) {
    require_non_negative("CollapsedCircuit", "rate", rate);
  }

  MatrixShape shape() const { return shape_; }
  Eigen::Index size() const { return shape_.size(); }
  std::vector<ParameterBlock<Scalar>> blocks() const {
    return {{which == Circuit::qk ? "W_QK" : "W_OV", 0, shape_, which == Circuit::qk, rate_}};
  }

  /// The parameters themselves, viewed as the circuit.
  ConstCircuitMap<Scalar, which> form(ConstVectorMap<Scalar> theta, CircuitMatrix<Scalar, which>& /*buffer*/) const {
    return {theta.data(), shape_.rows, shape_.cols};
  }
  void pull_back(ConstVectorMap<Scalar> /*theta*/, ConstCircuitMap<Scalar, which> gradient,
                 VectorMap<Scalar> velocity) const {
    velocity = rate_ * ConstVectorMap<Scalar>(gradient.data(), gradient.size());
  }
  /// The gradient times this rate is the velocity: whoever computes it may write it there at once.
  Scalar direct_rate() const { return rate_; }

  ConstCircuitMap<Scalar, which> form_tangent(ConstVectorMap<Scalar> /*theta*/, ConstVectorMap<Scalar> direction,
                                              CircuitMatrix<Scalar, which>& /*buffer*/) const {
    return {direction.data(), shape_.rows, shape_.cols};
  }
  void pull_back_tangent(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> /*direction*/,
                         ConstCircuitMap<Scalar, which> /*gradient*/, ConstCircuitMap<Scalar, which> gradient_tangent,
                         VectorMap<Scalar> velocity_tangent) const {
    pull_back(theta, gradient_tangent, velocity_tangent);
  }

  std::vector<ConservedQuantity<Scalar>> conserved(ConstVectorMap<Scalar> /*theta*/) const { return {}; }

 private:
  MatrixShape shape_;
  Scalar rate_;
};

}  // namespace qkflow
