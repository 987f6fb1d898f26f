// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "qkflow/math/lanczos.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/gradient_field.hpp"

namespace qkflow {

/// Which parameters may move when curvature is asked for.
enum class SharpnessOf {
  all,
  qk,  ///< those of the attention circuit, the others held
  ov   ///< those of the output circuit and the bias
};

/// The ends of the spectrum of P^(1/2) H P^(1/2), H the Hessian of the loss over the parameters and P their learning
/// rates (those of the field; frozen parameters are left out). Gradient descent theta += eta F(theta) is linearly
/// stable where eta * largest < 2; a negative smallest value is a direction out of a saddle.
///
/// By Lanczos on exact Hessian-vector products, each about four gradients. Throws InvalidArgument when theta has
/// another size, or when no parameter may move.
template <class Parameters>
ExtremeEigenvalues<typename Parameters::scalar_type> sharpness(
    GradientField<Parameters>& field, const ColumnVector<typename Parameters::scalar_type>& theta,
    SharpnessOf which = SharpnessOf::all, const LanczosOptions& options = {}) {
  using Scalar = typename Parameters::scalar_type;
  using std::sqrt;
  const auto& parameters = field.parameters();
  parameters.require_size("sharpness", theta);
  ColumnVector<Scalar> rates = parameters.rates();
  if (which == SharpnessOf::qk) rates.tail(rates.size() - parameters.qk().size()).setZero();
  if (which == SharpnessOf::ov) rates.head(parameters.qk().size()).setZero();
  // Held parameters are left out, not multiplied by zero: they would add an eigenvalue of zero.
  std::vector<Eigen::Index> moving;
  for (Eigen::Index i = 0; i < rates.size(); ++i) {
    if (rates[i] > Scalar(0)) moving.push_back(i);
    rates[i] = sqrt(rates[i]);
  }
  if (moving.empty()) throw InvalidArgument("sharpness: all learning rates asked for are 0");

  // F'(theta) u = -P H u. With u = P^(1/2) v, the wanted product is -P^(-1/2) F' u.
  ColumnVector<Scalar> u = ColumnVector<Scalar>::Zero(theta.size()), product(theta.size());
  const auto apply = [&](const ColumnVector<Scalar>& v, ColumnVector<Scalar>& out) {
    for (std::size_t i = 0; i < moving.size(); ++i) u[moving[i]] = rates[moving[i]] * v[static_cast<Eigen::Index>(i)];
    field.derivative(theta, u, product);
    for (std::size_t i = 0; i < moving.size(); ++i) {
      out[static_cast<Eigen::Index>(i)] = -product[moving[i]] / rates[moving[i]];
    }
  };
  return extreme_eigenvalues<Scalar>(static_cast<Eigen::Index>(moving.size()), apply, options);
}

}  // namespace qkflow
