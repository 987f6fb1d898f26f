// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <string>
#include <vector>

#include "qkflow/model/circuit.hpp"

namespace qkflow {

/// One matrix of parameters and where it lies in the flat vector: for initializations, files, optimizers with a rate a
/// factor, and whoever wants to look.
template <class Scalar>
struct ParameterBlock {
  std::string name;           ///< "W_QK", "W_Q", "W_K", "W_OV", "W_O", "W_V", "bias", ...
  Eigen::Index offset = 0;    ///< of its first entry, from the beginning of the vector
  MatrixShape shape{};        ///< as the name's matrix has it: W_Q is inner x queries
  bool is_row_major = false;  ///< how its entries follow each other
  Scalar rate = 1;            ///< its learning rate

  Eigen::Index index(Eigen::Index row, Eigen::Index col) const {
    return offset + (is_row_major ? row * shape.cols + col : col * shape.rows + row);
  }
};

template <class Scalar>
using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;

/// A block as a matrix, whatever its order, to read or write.
template <class Scalar>
using BlockMap = Eigen::Map<DenseMatrix<Scalar>, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
template <class Scalar>
using ConstBlockMap =
    Eigen::Map<const DenseMatrix<Scalar>, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

template <class Scalar>
Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic> block_stride(const ParameterBlock<Scalar>& block) {
  return block.is_row_major ? Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(1, block.shape.cols)
                            : Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(block.shape.rows, 1);
}
template <class Scalar>
BlockMap<Scalar> block_map(ColumnVector<Scalar>& theta, const ParameterBlock<Scalar>& block) {
  return {theta.data() + block.offset, block.shape.rows, block.shape.cols, block_stride(block)};
}
template <class Scalar>
ConstBlockMap<Scalar> block_map(const ColumnVector<Scalar>& theta, const ParameterBlock<Scalar>& block) {
  return {theta.data() + block.offset, block.shape.rows, block.shape.cols, block_stride(block)};
}

/// Something the exact flow leaves unchanged, for any data: a matrix, or a number as a 1 x 1 matrix.
template <class Scalar>
struct ConservedQuantity {
  std::string name;
  DenseMatrix<Scalar> value;
};

}  // namespace qkflow
