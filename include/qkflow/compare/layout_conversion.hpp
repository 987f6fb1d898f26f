// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <string>
#include <vector>

#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/head_parameters.hpp"
#include "qkflow/model/parameter_block.hpp"
#include "qkflow/train/schedule.hpp"

namespace qkflow {

/// The same head for training: the layout whose matrices have the names and shapes of the parameters' blocks. Throws
/// InvalidArgument for parameters that the training kernels do not know (ProductCircuit, a user's own).
template <simd::KernelScalar T, class Qk, class Ov>
OneHotLayout<T> training_layout(const HeadParameters<Qk, Ov>& parameters) {
  const auto shape = parameters.shape();
  OneHotShape head{shape.queries, shape.tokens, shape.classes, 0, 0, parameters.has_bias()};
  for (const auto& block : parameters.blocks()) {
    if (block.name == "W_Q") head.inner_qk = block.shape.rows;
    if (block.name == "W_V") head.inner_ov = block.shape.rows;
  }
  OneHotLayout<T> layout(head);
  std::string known;
  for (const OneHotBlock& block : layout.blocks()) known += " " + block.name;
  const auto blocks = parameters.blocks();
  bool fits = blocks.size() == layout.blocks().size();
  for (const auto& block : blocks) {
    fits = fits && (" " + known + " ").find(" " + block.name + " ") != std::string::npos;
    if (!fits) {
      throw InvalidArgument("training_layout: the training kernels know no parameters " + block.name + " beside" +
                            known);
    }
  }
  return layout;
}

/// A flat vector of the model's parameters in the layout of training, and back. Throws InvalidArgument when theta has
/// another size, or a block another name or shape.
template <simd::KernelScalar T, class Qk, class Ov>
std::vector<T> to_training(const HeadParameters<Qk, Ov>& parameters, const OneHotLayout<T>& layout,
                           const ColumnVector<typename Qk::scalar_type>& theta) {
  parameters.require_size("to_training", theta);
  std::vector<T> flat(layout.size(), T(0));
  for (const auto& block : parameters.blocks()) {
    layout.set_matrix(flat, layout.block(block.name), block_map(theta, block).template cast<T>());
  }
  return flat;
}
template <simd::KernelScalar T, class Qk, class Ov>
void from_training(const HeadParameters<Qk, Ov>& parameters, const OneHotLayout<T>& layout, const std::vector<T>& flat,
                   ColumnVector<typename Qk::scalar_type>& theta) {
  using Scalar = typename Qk::scalar_type;
  if (flat.size() != layout.size()) {
    throw_invalid("from_training", "size of the vector", flat.size(), "be " + to_text(layout.size()));
  }
  theta.resize(parameters.size());
  for (const auto& block : parameters.blocks()) {
    const typename OneHotLayout<T>::Matrix values = layout.matrix(flat, layout.block(block.name));
    if (values.rows() != block.shape.rows || values.cols() != block.shape.cols) {
      throw InvalidArgument("from_training: the shape of " + block.name + " is another");
    }
    block_map(theta, block) = values.template cast<Scalar>();
  }
}

/// The rates of training for a step h: h times the learning rate of each matrix, so that one step of training is one
/// step of size h along the flow's velocity.
template <class Qk, class Ov>
TrainingRates training_rates(const HeadParameters<Qk, Ov>& parameters, double step) {
  require_positive("training_rates", "step", step);
  TrainingRates rates;
  for (const auto& block : parameters.blocks()) {
    const LearningRate rate{step * static_cast<double>(block.rate), {}};
    if (block.name == "W_QK") rates.qk = rate;
    if (block.name == "W_Q") rates.q = rate;
    if (block.name == "W_K") rates.k = rate;
    if (block.name == "W_OV") rates.ov = rate;
    if (block.name == "W_O") rates.o = rate;
    if (block.name == "W_V") rates.v = rate;
    if (block.name == "bias") rates.bias = rate;
  }
  return rates;
}

}  // namespace qkflow
