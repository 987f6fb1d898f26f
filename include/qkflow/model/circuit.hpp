// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <utility>

#include "qkflow/math/require.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// The two circuits of an attention head. Everything about a head depends on its weights only through them.
enum class Circuit {
  qk,  ///< W_QK, queries x tokens: score of token i for query q = score_scale * W_QK[q, i]
  ov   ///< W_OV, classes x tokens: column i is what token i adds to the logits when attended to
};

/// All parameters, or their velocity, in one flat vector.
template <class Scalar>
using ColumnVector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
template <class Scalar>
using VectorMap = Eigen::Map<ColumnVector<Scalar>>;
template <class Scalar>
using ConstVectorMap = Eigen::Map<const ColumnVector<Scalar>>;

/// A circuit matrix in the order the gradient reads it: a row of W_QK a query, a column of W_OV a token.
template <class Scalar, Circuit circuit>
using CircuitMatrix =
    Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, circuit == Circuit::qk ? Eigen::RowMajor : Eigen::ColMajor>;
template <class Scalar, Circuit circuit>
using CircuitMap = Eigen::Map<CircuitMatrix<Scalar, circuit>>;
template <class Scalar, Circuit circuit>
using ConstCircuitMap = Eigen::Map<const CircuitMatrix<Scalar, circuit>>;

/// Rows and columns of a circuit, or of a factor.
struct MatrixShape {
  Eigen::Index rows = 0;
  Eigen::Index cols = 0;

  Eigen::Index size() const { return rows * cols; }
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

/// The shape a dataset asks of a circuit.
inline MatrixShape circuit_shape(const DatasetShape& shape, Circuit circuit) {
  return {circuit == Circuit::qk ? shape.queries : shape.classes, shape.tokens};
}

/// Both circuits somewhere in memory, to read. `bias` (of the logits) has classes entries, or none.
template <class Scalar>
struct ConstCircuits {
  ConstCircuitMap<Scalar, Circuit::qk> qk;
  ConstCircuitMap<Scalar, Circuit::ov> ov;
  ConstVectorMap<Scalar> bias{nullptr, 0};
};

/// Both circuits somewhere in memory, to write.
template <class Scalar>
struct MutableCircuits {
  CircuitMap<Scalar, Circuit::qk> qk;
  CircuitMap<Scalar, Circuit::ov> ov;
  VectorMap<Scalar> bias{nullptr, 0};
};

/// Both circuits (or a gradient, or a direction) with memory of their own.
template <class Scalar>
struct Circuits {
  CircuitMatrix<Scalar, Circuit::qk> qk;  ///< queries x tokens
  CircuitMatrix<Scalar, Circuit::ov> ov;  ///< classes x tokens
  ColumnVector<Scalar> bias;              ///< classes, or empty

  Circuits() = default;
  /// Zeros of the shape a dataset asks for.
  explicit Circuits(const DatasetShape& shape, bool with_bias = false)
      : qk(CircuitMatrix<Scalar, Circuit::qk>::Zero(shape.queries, shape.tokens)),
        ov(CircuitMatrix<Scalar, Circuit::ov>::Zero(shape.classes, shape.tokens)),
        bias(ColumnVector<Scalar>::Zero(with_bias ? shape.classes : 0)) {}

  ConstCircuits<Scalar> view() const {
    return {{qk.data(), qk.rows(), qk.cols()}, {ov.data(), ov.rows(), ov.cols()}, {bias.data(), bias.size()}};
  }
  MutableCircuits<Scalar> map() {
    return {{qk.data(), qk.rows(), qk.cols()}, {ov.data(), ov.rows(), ov.cols()}, {bias.data(), bias.size()}};
  }
};

/// Throws InvalidArgument unless circuits (const or mutable) have the dataset's shape.
template <class AnyCircuits>
void require_circuit_shape(const char* function, const AnyCircuits& circuits, const DatasetShape& shape) {
  const auto check = [function](const char* what, Eigen::Index found, std::int64_t wanted) {
    if (found != wanted) throw_invalid(function, what, found, "be " + to_text(wanted) + " to fit the dataset");
  };
  check("rows of W_QK", circuits.qk.rows(), shape.queries);
  check("columns of W_QK", circuits.qk.cols(), shape.tokens);
  check("rows of W_OV", circuits.ov.rows(), shape.classes);
  check("columns of W_OV", circuits.ov.cols(), shape.tokens);
  if (circuits.bias.size() != 0) check("size of the bias", circuits.bias.size(), shape.classes);
}

}  // namespace qkflow
