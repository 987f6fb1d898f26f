// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <vector>

#include "qkflow/model/circuit.hpp"
#include "qkflow/model/collapsed_circuit.hpp"
#include "qkflow/model/factorized_circuit.hpp"
#include "qkflow/model/parameter_block.hpp"
#include "qkflow/model/product_circuit.hpp"

namespace qkflow {

/// How one circuit depends on parameters. `p` of such a type has, for W the circuit and G = -dL/dW:
///
///   P::scalar_type, P::circuit       the scalar, and which circuit it is for
///   p.shape(), p.size()              shape of W; number of parameters
///   p.blocks()                       its parameter matrices by name, offsets from its own beginning
///   p.form(theta, buffer)            W, as a view of `buffer` (resized and filled) or of theta itself
///   p.pull_back(theta, G, velocity)  velocity = rate * (dW/dtheta)^T G: the flow of its parameters
///   p.conserved(theta)               what that flow leaves unchanged, for any G
///
/// Vectors are the circuit's part of the flat vector; `velocity` has the same size and does not overlap the rest.
template <class P>
concept CircuitParameterization = requires(const P p, ConstVectorMap<typename P::scalar_type> theta,
                                           VectorMap<typename P::scalar_type> velocity,
                                           ConstCircuitMap<typename P::scalar_type, P::circuit> gradient,
                                           CircuitMatrix<typename P::scalar_type, P::circuit>& buffer) {
  { p.shape() } -> std::same_as<MatrixShape>;
  { p.size() } -> std::convertible_to<Eigen::Index>;
  { p.blocks() } -> std::same_as<std::vector<ParameterBlock<typename P::scalar_type>>>;
  { p.form(theta, buffer) } -> std::same_as<ConstCircuitMap<typename P::scalar_type, P::circuit>>;
  p.pull_back(theta, gradient, velocity);
  { p.conserved(theta) } -> std::same_as<std::vector<ConservedQuantity<typename P::scalar_type>>>;
};

/// One that also knows its derivatives, which the modified flow and the sharpness need:
///
///   p.form_tangent(theta, v, buffer)               the derivative of W when theta moves along v; as `form`
///   p.pull_back_tangent(theta, v, G, dG, tangent)  the derivative of `pull_back` when besides G moves along dG
template <class P>
concept DifferentiableParameterization = CircuitParameterization<P> &&
    requires(const P p, ConstVectorMap<typename P::scalar_type> v, VectorMap<typename P::scalar_type> tangent,
             ConstCircuitMap<typename P::scalar_type, P::circuit> gradient,
             CircuitMatrix<typename P::scalar_type, P::circuit>& buffer) {
  { p.form_tangent(v, v, buffer) } -> std::same_as<ConstCircuitMap<typename P::scalar_type, P::circuit>>;
  p.pull_back_tangent(v, v, gradient, gradient, tangent);
};

/// One whose parameters are the circuit in its own order, so that p.direct_rate() * G can be written where the velocity
/// belongs: saves a copy of the circuit.
template <class P>
concept DirectParameterization = CircuitParameterization<P> && requires(const P p) {
  { p.direct_rate() } -> std::convertible_to<typename P::scalar_type>;
};

static_assert(DirectParameterization<CollapsedCircuit<double, Circuit::qk>>);
static_assert(DifferentiableParameterization<CollapsedCircuit<float, Circuit::ov>>);
static_assert(DifferentiableParameterization<FactorizedCircuit<double, Circuit::qk>>);
static_assert(DifferentiableParameterization<FactorizedCircuit<long double, Circuit::ov>>);
static_assert(DifferentiableParameterization<ProductCircuit<double, Circuit::qk>>);
static_assert(DifferentiableParameterization<ProductCircuit<double, Circuit::ov>>);

}  // namespace qkflow
