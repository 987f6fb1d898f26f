// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// A circuit that is a product of N matrices, W = A_1 A_2 ... A_N [Arora18]: A_1 is rows x d_1, A_i is d_{i-1} x d_i,
/// A_N is d_{N-1} x columns. Flow: dA_i/dt = rate_i (A_1 ... A_{i-1})^T G (A_{i+1} ... A_N)^T; for equal rates each
/// A_i^T A_i - A_{i+1} A_{i+1}^T is conserved [Du18]. N = 1 is the collapsed circuit, N = 2 the factorized one (which
/// FactorizedCircuit does without allocating; this one allocates its partial products at every call).
///
/// In the flat vector: A_1 first, each column by column.
template <class Scalar, Circuit which>
class ProductCircuit {
 public:
  using scalar_type = Scalar;
  static constexpr Circuit circuit = which;
  using Matrix = DenseMatrix<Scalar>;

  /// `inner`: d_1 .. d_{N-1}, so N - 1 of them, each at least 1; `rates`: one for all factors, or one each, at least 0.
  ProductCircuit(const MatrixShape& shape, std::vector<Eigen::Index> inner, std::vector<Scalar> rates = {Scalar(1)})
      : shape_(shape), rates_(std::move(rates)) {
    constexpr const char* function = "ProductCircuit";
    for (const Eigen::Index d : inner) {
      if (d < 1) throw_invalid(function, "inner dimension", d, "be at least 1");
    }
    const std::size_t factors = inner.size() + 1;
    if (rates_.size() == 1) rates_.assign(factors, rates_.front());
    if (rates_.size() != factors) throw_invalid(function, "number of rates", rates_.size(), "be 1 or one a factor");
    for (const Scalar& rate : rates_) require_non_negative(function, "rate", rate);
    Eigen::Index rows = shape.rows, offset = 0;
    inner.push_back(shape.cols);
    for (const Eigen::Index cols : inner) {
      factors_.push_back({rows, cols});
      offsets_.push_back(offset);
      offset += rows * cols;
      rows = cols;
    }
    offsets_.push_back(offset);
  }

  MatrixShape shape() const { return shape_; }
  std::size_t factors() const { return factors_.size(); }
  Eigen::Index size() const { return offsets_.back(); }
  std::vector<ParameterBlock<Scalar>> blocks() const {
    std::vector<ParameterBlock<Scalar>> blocks;
    for (std::size_t i = 0; i < factors(); ++i) {
      const std::string name = (which == Circuit::qk ? "W_QK_" : "W_OV_") + to_text(i + 1);
      blocks.push_back({name, offsets_[i], factors_[i], false, rates_[i]});
    }
    return blocks;
  }

  /// A_{i+1} (i from 0).
  Eigen::Map<const Matrix> factor(ConstVectorMap<Scalar> theta, std::size_t i) const {
    return {theta.data() + offsets_[i], factors_[i].rows, factors_[i].cols};
  }
  Eigen::Map<Matrix> factor(VectorMap<Scalar> theta, std::size_t i) const {
    return {theta.data() + offsets_[i], factors_[i].rows, factors_[i].cols};
  }

  ConstCircuitMap<Scalar, which> form(ConstVectorMap<Scalar> theta, CircuitMatrix<Scalar, which>& buffer) const {
    buffer = prefixes(theta).back();
    return {buffer.data(), shape_.rows, shape_.cols};
  }

  void pull_back(ConstVectorMap<Scalar> theta, ConstCircuitMap<Scalar, which> gradient,
                 VectorMap<Scalar> velocity) const {
    const auto before = prefixes(theta);
    Matrix carried = gradient;  // G (A_{i+1} ... A_N)^T
    for (std::size_t i = factors(); i-- > 0;) {
      if (i == 0) {
        factor(velocity, i) = rates_[i] * carried;
      } else {
        factor(velocity, i).noalias() = rates_[i] * before[i - 1].transpose() * carried;
        carried = carried * factor(theta, i).transpose();
      }
    }
  }

  ConstCircuitMap<Scalar, which> form_tangent(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> direction,
                                              CircuitMatrix<Scalar, which>& buffer) const {
    buffer = prefix_tangents(theta, direction, prefixes(theta)).back();
    return {buffer.data(), shape_.rows, shape_.cols};
  }

  void pull_back_tangent(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> direction,
                         ConstCircuitMap<Scalar, which> gradient, ConstCircuitMap<Scalar, which> gradient_tangent,
                         VectorMap<Scalar> velocity_tangent) const {
    const auto before = prefixes(theta);
    const auto before_tangent = prefix_tangents(theta, direction, before);
    Matrix carried = gradient, carried_tangent = gradient_tangent;
    for (std::size_t i = factors(); i-- > 0;) {
      auto to = factor(velocity_tangent, i);
      if (i == 0) {
        to = rates_[i] * carried_tangent;
      } else {
        to.noalias() = rates_[i] * before_tangent[i - 1].transpose() * carried;
        to.noalias() += rates_[i] * before[i - 1].transpose() * carried_tangent;
        carried_tangent = carried_tangent * factor(theta, i).transpose();
        carried_tangent.noalias() += carried * factor(direction, i).transpose();
        carried = carried * factor(theta, i).transpose();
      }
    }
  }

  /// The N - 1 differences of neighbouring factors, rates over their larger one as in FactorizedCircuit.
  std::vector<ConservedQuantity<Scalar>> conserved(ConstVectorMap<Scalar> theta) const {
    std::vector<ConservedQuantity<Scalar>> quantities;
    for (std::size_t i = 0; i + 1 < factors(); ++i) {
      const Scalar larger = std::max(rates_[i], rates_[i + 1]);
      const Scalar unit = larger > Scalar(0) ? larger : Scalar(1);
      const auto a = factor(theta, i);
      const auto b = factor(theta, i + 1);
      Matrix value = Scalar(rates_[i + 1] / unit) * (a.transpose() * a);
      value -= Scalar(rates_[i] / unit) * (b * b.transpose());
      const std::string first = to_text(i + 1), second = to_text(i + 2);
      quantities.push_back({"A_" + first + "' A_" + first + " - A_" + second + " A_" + second + "'", value});
    }
    return quantities;
  }

 private:
  /// A_1, A_1 A_2, ..., A_1 ... A_N.
  std::vector<Matrix> prefixes(ConstVectorMap<Scalar> theta) const {
    std::vector<Matrix> products{factor(theta, 0)};
    for (std::size_t i = 1; i < factors(); ++i) products.push_back(products.back() * factor(theta, i));
    return products;
  }
  std::vector<Matrix> prefix_tangents(ConstVectorMap<Scalar> theta, ConstVectorMap<Scalar> direction,
                                      const std::vector<Matrix>& products) const {
    std::vector<Matrix> tangents{factor(direction, 0)};
    for (std::size_t i = 1; i < factors(); ++i) {
      Matrix next = tangents.back() * factor(theta, i);
      next.noalias() += products[i - 1] * factor(direction, i);
      tangents.push_back(std::move(next));
    }
    return tangents;
  }

  MatrixShape shape_;
  std::vector<Scalar> rates_;
  std::vector<MatrixShape> factors_;
  std::vector<Eigen::Index> offsets_;  // one more than factors: the last is the size
};

}  // namespace qkflow
