// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "qkflow/model/circuit.hpp"
#include "qkflow/model/circuit_gradient.hpp"
#include "qkflow/model/concepts.hpp"
#include "qkflow/model/head_parameters.hpp"

namespace qkflow {

/// The velocity field of a head's parameters on a dataset, with the learning rates P inside:
///     F(theta) = -P dL/dtheta.
/// Continuous flow integrates it, gradient descent steps along it, the modified flow adds -(eta/2) F'(theta) F(theta).
///
/// Holds the gradient, its threads and buffers: move it, hand it on by reference, use it from one thread at a time.
template <class Parameters>
class GradientField {
 public:
  using Scalar = typename Parameters::scalar_type;
  using scalar_type = Scalar;

  /// Throws InvalidArgument when the parameters form circuits of another shape than the dataset's.
  GradientField(Parameters parameters, const Dataset<Scalar>& dataset, const HeadOptions<Scalar>& options = {},
                int threads = 1)
      : parameters_(std::move(parameters)), gradient_(dataset, options, threads) {
    require_shape(dataset.shape());
  }

  const Parameters& parameters() const { return parameters_; }
  CircuitGradient<Scalar>& gradient() { return gradient_; }
  Eigen::Index size() const { return parameters_.size(); }
  /// Takes another dataset of the same shape: a mini-batch.
  void reset(const Dataset<Scalar>& dataset) {
    require_shape(dataset.shape());
    gradient_.reset(dataset);
  }

  /// Writes F(theta) and returns the loss at theta. `velocity` must not be theta. Throws InvalidArgument when theta has
  /// another size. Does not allocate once warm (except in ProductCircuit).
  Scalar velocity(const ColumnVector<Scalar>& theta, ColumnVector<Scalar>& velocity) {
    const ConstCircuits<Scalar> w = parameters_.circuits(theta, circuits_);
    velocity.resize(size());
    CircuitRates<Scalar> rates;
    MutableCircuits<Scalar> g = target(velocity, rates);
    const Scalar loss = gradient_(w, g, rates);
    if constexpr (!DirectParameterization<typename Parameters::Qk_type>) {
      const auto& qk = parameters_.qk();
      qk.pull_back(parameters_.qk_part(theta), circuit_gradient_.view().qk, parameters_.qk_part(velocity));
    }
    if constexpr (!DirectParameterization<typename Parameters::Ov_type>) {
      const auto& ov = parameters_.ov();
      ov.pull_back(parameters_.ov_part(theta), circuit_gradient_.view().ov, parameters_.ov_part(velocity));
    }
    return loss;
  }
  /// As solvers call it; the field does not depend on time.
  void operator()(const ColumnVector<Scalar>& theta, ColumnVector<Scalar>& velocity, const Scalar& /*t*/) {
    this->velocity(theta, velocity);
  }

  Scalar loss(const ColumnVector<Scalar>& theta) { return gradient_.loss(parameters_.circuits(theta, circuits_)); }

  /// Writes F'(theta) v, the exact derivative of the field along v: -P H v with H the Hessian of the loss over theta.
  void derivative(const ColumnVector<Scalar>& theta, const ColumnVector<Scalar>& v,
                  ColumnVector<Scalar>& result) requires Parameters::is_differentiable {
    const DatasetShape shape = parameters_.shape();
    circuit_gradient_.qk.resize(shape.queries, shape.tokens);
    circuit_gradient_.ov.resize(shape.classes, shape.tokens);
    circuit_tangent_.qk.resize(shape.queries, shape.tokens);
    circuit_tangent_.ov.resize(shape.classes, shape.tokens);
    circuit_tangent_.bias.resize(parameters_.has_bias() ? shape.classes : 0);
    const ConstCircuits<Scalar> w = parameters_.circuits(theta, circuits_);
    const ConstCircuits<Scalar> dw = parameters_.circuit_tangents(theta, v, circuit_directions_);
    gradient_(w, circuit_gradient_.map());
    gradient_.tangent(w, dw, circuit_tangent_.map());
    parameters_.pull_back_tangent(theta, v, circuit_gradient_.view(), circuit_tangent_.view(), result);
  }

 private:
  void require_shape(const DatasetShape& shape) const {
    const auto found = parameters_.shape();
    const auto check = [](const char* what, std::int64_t have, std::int64_t want) {
      if (have != want) throw_invalid("GradientField", what, have, "be " + to_text(want) + " to fit the dataset");
    };
    check("queries of the parameters", found.queries, shape.queries);
    check("tokens of the parameters", found.tokens, shape.tokens);
    check("classes of the parameters", found.classes, shape.classes);
  }

  /// Where the circuit gradient goes: straight into the velocity, at the circuit's rate, wherever that is all there is
  /// to its pull-back.
  MutableCircuits<Scalar> target(ColumnVector<Scalar>& velocity, CircuitRates<Scalar>& rates) {
    const DatasetShape shape = parameters_.shape();
    Scalar* qk = parameters_.qk_part(velocity).data();
    Scalar* ov = parameters_.ov_part(velocity).data();
    if constexpr (DirectParameterization<typename Parameters::Qk_type>) {
      rates.qk = parameters_.qk().direct_rate();
    } else {
      circuit_gradient_.qk.resize(shape.queries, shape.tokens);
      qk = circuit_gradient_.qk.data();
    }
    if constexpr (DirectParameterization<typename Parameters::Ov_type>) {
      rates.ov = parameters_.ov().direct_rate();
    } else {
      circuit_gradient_.ov.resize(shape.classes, shape.tokens);
      ov = circuit_gradient_.ov.data();
    }
    rates.bias = parameters_.bias_rate();
    return {{qk, shape.queries, shape.tokens}, {ov, shape.classes, shape.tokens}, parameters_.bias_part(velocity)};
  }

  Parameters parameters_;
  CircuitGradient<Scalar> gradient_;
  Circuits<Scalar> circuits_, circuit_directions_, circuit_gradient_, circuit_tangent_;
};

}  // namespace qkflow
