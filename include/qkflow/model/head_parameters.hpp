// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/circuit_gradient.hpp"
#include "qkflow/model/concepts.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// A bias of the logits: whether there is one, and its learning rate.
template <class Scalar>
struct OutputBias {
  bool present = false;
  Scalar rate = 1;
};

/// All parameters of a head as one flat vector: those of the attention circuit, those of the output circuit, and the
/// bias of the logits if there is one. `Qk` and `Ov` are any two parameterizations of one scalar: the library's, or a
/// user's own (model/concepts.hpp says what it takes).
template <CircuitParameterization Qk, CircuitParameterization Ov>
class HeadParameters {
 public:
  static_assert(Qk::circuit == Circuit::qk, "the first parameterization must be one of W_QK (Circuit::qk)");
  static_assert(Ov::circuit == Circuit::ov, "the second parameterization must be one of W_OV (Circuit::ov)");
  static_assert(std::is_same_v<typename Qk::scalar_type, typename Ov::scalar_type>,
                "both circuits must have the same scalar");
  using Scalar = typename Qk::scalar_type;
  using scalar_type = Scalar;
  using Qk_type = Qk;
  using Ov_type = Ov;
  static constexpr bool is_differentiable = DifferentiableParameterization<Qk> && DifferentiableParameterization<Ov>;

  /// Throws InvalidArgument when the circuits differ in their number of tokens.
  HeadParameters(Qk qk, Ov ov, const OutputBias<Scalar>& bias = {})
      : qk_(std::move(qk)), ov_(std::move(ov)), bias_(bias) {
    if (qk_.shape().cols != ov_.shape().cols) {
      throw_invalid("HeadParameters", "tokens of W_OV", ov_.shape().cols,
                    "equal those of W_QK, " + to_text(qk_.shape().cols));
    }
    require_non_negative("HeadParameters", "bias rate", bias.rate);
  }

  const Qk& qk() const { return qk_; }
  const Ov& ov() const { return ov_; }
  DatasetShape shape() const { return {qk_.shape().rows, qk_.shape().cols, ov_.shape().rows}; }
  bool has_bias() const { return bias_.present; }
  Eigen::Index size() const { return qk_.size() + ov_.size() + bias_size(); }

  /// All parameter matrices by name, offsets from the beginning of the flat vector.
  std::vector<ParameterBlock<Scalar>> blocks() const {
    auto blocks = qk_.blocks();
    for (auto& block : ov_.blocks()) {
      block.offset += qk_.size();
      blocks.push_back(std::move(block));
    }
    if (bias_.present) blocks.push_back({"bias", qk_.size() + ov_.size(), {bias_size(), 1}, false, bias_.rate});
    return blocks;
  }
  /// The block of this name. Throws InvalidArgument if there is none.
  ParameterBlock<Scalar> block(const std::string& name) const {
    std::string known;
    for (auto& block : blocks()) {
      if (block.name == name) return block;
      known += " " + block.name;
    }
    throw InvalidArgument("HeadParameters::block: no block " + name + ", there are:" + known);
  }

  /// The parts of a flat vector.
  ConstVectorMap<Scalar> qk_part(const ColumnVector<Scalar>& theta) const { return {theta.data(), qk_.size()}; }
  ConstVectorMap<Scalar> ov_part(const ColumnVector<Scalar>& theta) const {
    return {theta.data() + qk_.size(), ov_.size()};
  }
  ConstVectorMap<Scalar> bias_part(const ColumnVector<Scalar>& theta) const {
    return {theta.data() + qk_.size() + ov_.size(), bias_size()};
  }
  VectorMap<Scalar> qk_part(ColumnVector<Scalar>& theta) const { return {theta.data(), qk_.size()}; }
  VectorMap<Scalar> ov_part(ColumnVector<Scalar>& theta) const { return {theta.data() + qk_.size(), ov_.size()}; }
  VectorMap<Scalar> bias_part(ColumnVector<Scalar>& theta) const {
    return {theta.data() + qk_.size() + ov_.size(), bias_size()};
  }

  /// The circuits these parameters form: views of `theta` where a circuit is its own parameter, else of `buffers`;
  /// valid as long as both are. Throws InvalidArgument when theta has another size.
  ConstCircuits<Scalar> circuits(const ColumnVector<Scalar>& theta, Circuits<Scalar>& buffers) const {
    require_size("HeadParameters::circuits", theta);
    return {qk_.form(qk_part(theta), buffers.qk), ov_.form(ov_part(theta), buffers.ov), bias_part(theta)};
  }

  /// velocity = rates * (d circuits/d theta)^T gradient, for a gradient of the circuits (and of the bias, if there is
  /// one).
  void pull_back(const ColumnVector<Scalar>& theta, const ConstCircuits<Scalar>& gradient,
                 ColumnVector<Scalar>& velocity) const {
    require_size("HeadParameters::pull_back", theta);
    velocity.resize(size());
    qk_.pull_back(qk_part(theta), gradient.qk, qk_part(velocity));
    ov_.pull_back(ov_part(theta), gradient.ov, ov_part(velocity));
    if (bias_.present) bias_part(velocity) = bias_.rate * gradient.bias;
  }

  /// The derivative of `circuits` along `direction`.
  ConstCircuits<Scalar> circuit_tangents(const ColumnVector<Scalar>& theta, const ColumnVector<Scalar>& direction,
                                         Circuits<Scalar>& buffers) const requires is_differentiable {
    require_size("HeadParameters::circuit_tangents", theta);
    require_size("HeadParameters::circuit_tangents: direction", direction);
    return {qk_.form_tangent(qk_part(theta), qk_part(direction), buffers.qk),
            ov_.form_tangent(ov_part(theta), ov_part(direction), buffers.ov), bias_part(direction)};
  }

  /// The derivative of `pull_back` when theta moves along `direction` and the gradient along `gradient_tangent`.
  void pull_back_tangent(const ColumnVector<Scalar>& theta, const ColumnVector<Scalar>& direction,
                         const ConstCircuits<Scalar>& gradient, const ConstCircuits<Scalar>& gradient_tangent,
                         ColumnVector<Scalar>& velocity_tangent) const requires is_differentiable {
    require_size("HeadParameters::pull_back_tangent", theta);
    velocity_tangent.resize(size());
    qk_.pull_back_tangent(qk_part(theta), qk_part(direction), gradient.qk, gradient_tangent.qk,
                          qk_part(velocity_tangent));
    ov_.pull_back_tangent(ov_part(theta), ov_part(direction), gradient.ov, gradient_tangent.ov,
                          ov_part(velocity_tangent));
    if (bias_.present) bias_part(velocity_tangent) = bias_.rate * gradient_tangent.bias;
  }

  /// What the exact flow conserves, both circuits' together.
  std::vector<ConservedQuantity<Scalar>> conserved(const ColumnVector<Scalar>& theta) const {
    require_size("HeadParameters::conserved", theta);
    auto quantities = qk_.conserved(qk_part(theta));
    for (auto& quantity : ov_.conserved(ov_part(theta))) quantities.push_back(std::move(quantity));
    return quantities;
  }

  /// The learning rate of every single parameter: the preconditioner of the flow.
  ColumnVector<Scalar> rates() const {
    ColumnVector<Scalar> rates(size());
    for (const auto& block : blocks()) rates.segment(block.offset, block.shape.size()).setConstant(block.rate);
    return rates;
  }

  void require_size(const char* function, const ColumnVector<Scalar>& theta) const {
    if (theta.size() != size()) throw_invalid(function, "size of theta", theta.size(), "be " + to_text(size()));
  }
  Scalar bias_rate() const { return bias_.rate; }

 private:
  Eigen::Index bias_size() const { return bias_.present ? ov_.shape().rows : 0; }

  Qk qk_;
  Ov ov_;
  OutputBias<Scalar> bias_;
};

/// The four parameterizations by name (C collapsed, F factorized; A attention, O output) [Vashisht26].
template <class Scalar>
using CacoParameters = HeadParameters<CollapsedCircuit<Scalar, Circuit::qk>, CollapsedCircuit<Scalar, Circuit::ov>>;
template <class Scalar>
using CafoParameters = HeadParameters<CollapsedCircuit<Scalar, Circuit::qk>, FactorizedCircuit<Scalar, Circuit::ov>>;
template <class Scalar>
using FacoParameters = HeadParameters<FactorizedCircuit<Scalar, Circuit::qk>, CollapsedCircuit<Scalar, Circuit::ov>>;
template <class Scalar>
using FafoParameters = HeadParameters<FactorizedCircuit<Scalar, Circuit::qk>, FactorizedCircuit<Scalar, Circuit::ov>>;

/// The same for a dataset's shape, one rate a circuit, and an inner dimension for whatever is factorized.
template <class Scalar>
CacoParameters<Scalar> caco_parameters(const DatasetShape& shape, const CircuitRates<Scalar>& rates = {},
                                       bool with_bias = false) {
  return {CollapsedCircuit<Scalar, Circuit::qk>(circuit_shape(shape, Circuit::qk), rates.qk),
          CollapsedCircuit<Scalar, Circuit::ov>(circuit_shape(shape, Circuit::ov), rates.ov),
          {with_bias, rates.bias}};
}
template <class Scalar>
CafoParameters<Scalar> cafo_parameters(const DatasetShape& shape, Eigen::Index inner,
                                       const CircuitRates<Scalar>& rates = {}, bool with_bias = false) {
  return {CollapsedCircuit<Scalar, Circuit::qk>(circuit_shape(shape, Circuit::qk), rates.qk),
          FactorizedCircuit<Scalar, Circuit::ov>(circuit_shape(shape, Circuit::ov), inner, rates.ov),
          {with_bias, rates.bias}};
}
template <class Scalar>
FacoParameters<Scalar> faco_parameters(const DatasetShape& shape, Eigen::Index inner,
                                       const CircuitRates<Scalar>& rates = {}, bool with_bias = false) {
  return {FactorizedCircuit<Scalar, Circuit::qk>(circuit_shape(shape, Circuit::qk), inner, rates.qk),
          CollapsedCircuit<Scalar, Circuit::ov>(circuit_shape(shape, Circuit::ov), rates.ov),
          {with_bias, rates.bias}};
}
template <class Scalar>
FafoParameters<Scalar> fafo_parameters(const DatasetShape& shape, Eigen::Index inner,
                                       const CircuitRates<Scalar>& rates = {}, bool with_bias = false) {
  return {FactorizedCircuit<Scalar, Circuit::qk>(circuit_shape(shape, Circuit::qk), inner, rates.qk),
          FactorizedCircuit<Scalar, Circuit::ov>(circuit_shape(shape, Circuit::ov), inner, rates.ov),
          {with_bias, rates.bias}};
}

}  // namespace qkflow
