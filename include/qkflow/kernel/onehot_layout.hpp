// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "qkflow/kernel/simd.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// What a one-hot head consists of: W_QK (queries x tokens) and W_OV (classes x tokens), each either a matrix of its
/// own or a product of two over an inner dimension, W_QK = W_Q^T W_K and W_OV = W_O W_V [Vashisht26], and perhaps a
/// bias of the logits.
struct OneHotShape {
  std::int64_t queries = 0;
  std::int64_t tokens = 0;
  std::int64_t classes = 0;
  std::int64_t inner_qk = 0;  ///< 0: W_QK is collapsed
  std::int64_t inner_ov = 0;  ///< 0: W_OV is collapsed
  bool bias = false;

  friend bool operator==(const OneHotShape&, const OneHotShape&) = default;

  /// The name in the literature: C collapsed, F factorized; A attention, O output.
  std::string parameterization() const {
    return std::string(inner_qk > 0 ? "FA" : "CA") + (inner_ov > 0 ? "FO" : "CO");
  }

  /// Throws InvalidArgument for a size below 1 (inner dimensions: below 0) or above 2^24.
  void validate(const char* function) const {
    const auto check = [function](const char* what, std::int64_t value, std::int64_t least) {
      if (value < least || value > (1 << 24)) {
        throw_invalid(function, what, value, "be from " + to_text(least) + " to 2^24");
      }
    };
    check("queries", queries, 1);
    check("tokens", tokens, 1);
    check("classes", classes, 1);
    check("inner_qk", inner_qk, 0);
    check("inner_ov", inner_ov, 0);
  }
};

/// One matrix of parameters: `count` vectors of `length` numbers, each padded with zeros to `stride`, a whole number of
/// registers, so that kernels need no remainders.
struct OneHotBlock {
  std::string name;           ///< "W_QK", "W_Q", "W_K", "W_OV", "W_O", "W_V" or "bias"
  std::ptrdiff_t offset = 0;  ///< of its first number in the flat vector
  std::ptrdiff_t length = 0;
  std::ptrdiff_t count = 0;
  std::ptrdiff_t stride = 0;
  bool rows = false;       ///< whether the vectors are the matrix's rows, not its columns
  bool attention = false;  ///< whether it belongs to the QK circuit

  bool present() const { return count > 0; }
  std::ptrdiff_t size() const { return count * stride; }
  std::int64_t matrix_rows() const { return rows ? count : length; }
  std::int64_t matrix_cols() const { return rows ? length : count; }
};

/// Where the parameters lie in one flat vector, in the orders the kernels read them:
///
///     W_QK  a row a query          W_Q  a column a query      W_K  a row an inner dimension
///     W_OV  a column a token       W_V  a column a token      W_O  a column an inner dimension
///
/// Padding is zero at the start and stays zero under every optimizer. It depends on the instruction set: what is
/// written to files goes through `matrix`.
template <simd::KernelScalar T>
class OneHotLayout {
 public:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

  OneHotLayout() = default;
  /// Throws InvalidArgument for a shape that is not one.
  explicit OneHotLayout(const OneHotShape& shape) : shape_(shape) {
    shape.validate("OneHotLayout");
    if (shape.inner_qk == 0) {
      qk = append("W_QK", shape.tokens, shape.queries, true, true);
    } else {
      q = append("W_Q", shape.inner_qk, shape.queries, false, true);
      k = append("W_K", shape.tokens, shape.inner_qk, true, true);
    }
    if (shape.inner_ov == 0) {
      v = append("W_OV", shape.classes, shape.tokens, false, false);
    } else {
      o = append("W_O", shape.classes, shape.inner_ov, false, false);
      v = append("W_V", shape.inner_ov, shape.tokens, false, false);
    }
    if (shape.bias) bias = append("bias", shape.classes, 1, false, false);
  }

  const OneHotShape& shape() const { return shape_; }
  /// Numbers in the flat vector, padding included.
  std::size_t size() const { return static_cast<std::size_t>(size_); }
  std::vector<OneHotBlock> blocks() const {
    std::vector<OneHotBlock> all;
    for (const OneHotBlock* block : {&qk, &q, &k, &o, &v, &bias}) {
      if (block->present()) all.push_back(*block);
    }
    return all;
  }
  /// The block of this name. Throws InvalidArgument if there is none.
  OneHotBlock block(const std::string& name) const {
    std::string known;
    for (const OneHotBlock& each : blocks()) {
      if (each.name == name) return each;
      known += " " + each.name;
    }
    throw InvalidArgument("OneHotLayout: no block " + name + ", there are:" + known);
  }

  /// A block as a plain matrix, and back.
  Matrix matrix(const std::vector<T>& theta, const OneHotBlock& block) const {
    Matrix result(block.matrix_rows(), block.matrix_cols());
    for (std::ptrdiff_t i = 0; i < block.count; ++i) {
      const Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, 1>> vector(theta.data() + block.offset + i * block.stride,
                                                                         block.length);
      if (block.rows) {
        result.row(i) = vector.transpose();
      } else {
        result.col(i) = vector;
      }
    }
    return result;
  }
  void set_matrix(std::vector<T>& theta, const OneHotBlock& block, const Matrix& values) const {
    if (values.rows() != block.matrix_rows() || values.cols() != block.matrix_cols()) {
      throw_invalid("OneHotLayout::set_matrix", "rows", values.rows(),
                    "be " + to_text(block.matrix_rows()) + ", columns " + to_text(block.matrix_cols()) + ", to fit " +
                        block.name);
    }
    for (std::ptrdiff_t i = 0; i < block.count; ++i) {
      Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, 1>> vector(theta.data() + block.offset + i * block.stride,
                                                             block.length);
      if (block.rows) {
        vector = values.row(i).transpose();
      } else {
        vector = values.col(i);
      }
    }
  }

  /// The circuits, whichever way they are parameterized.
  Matrix w_qk(const std::vector<T>& theta) const {
    if (qk.present()) return matrix(theta, qk);
    return matrix(theta, q).transpose() * matrix(theta, k);
  }
  Matrix w_ov(const std::vector<T>& theta) const {
    if (!o.present()) return matrix(theta, v);
    return matrix(theta, o) * matrix(theta, v);
  }

  OneHotBlock qk, q, k;    ///< absent ones have no vectors
  OneHotBlock o, v, bias;  ///< `v` is W_OV where that is collapsed, else W_V

 private:
  OneHotBlock append(const char* name, std::int64_t length, std::int64_t count, bool rows, bool attention) {
    constexpr std::int64_t lanes = simd::lanes<T>;
    OneHotBlock block{name, size_, length, count, (length + lanes - 1) / lanes * lanes, rows, attention};
    size_ += block.size();
    return block;
  }

  OneHotShape shape_;
  std::ptrdiff_t size_ = 0;
};

}  // namespace qkflow
