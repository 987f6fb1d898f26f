// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "qkflow/math/require.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/detail/chunk_sums.hpp"
#include "qkflow/model/detail/gradient_plan.hpp"
#include "qkflow/model/detail/position_pass.hpp"
#include "qkflow/model/detail/soft_pass.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// Factors on the parts of a gradient, applied as it is written and therefore free: learning rates.
template <class Scalar>
struct CircuitRates {
  Scalar qk = 1;
  Scalar ov = 1;
  Scalar bias = 1;
};

/// Loss and circuit gradient of a finite dataset: the one gradient behind every flow and every training run.
///
///     L(W_QK, W_OV, bias) = sum_s w_s loss_s / sum_s w_s            (loss_s: see AttentionMode)
///     G_QK = -dL/dW_QK  (queries x tokens),   G_OV = -dL/dW_OV  (classes x tokens),   G_bias = -dL/dbias
///
/// One pass, no one-hot matrices: work is proportional to entries x classes, plus writing G_QK once. In soft mode a
/// miss probability p[k], however small, keeps its relative accuracy, so gradients are right at losses far below
/// rounding. NaN in the weights gives a NaN loss and NaN gradient entries; nothing is thrown.
///
/// Results are bit-identical for any number of threads, but not across compilers, instruction sets and scalar types.
/// The constructor copies the dataset in the order it needs; calls do not allocate once the buffers have grown (first
/// call). Not thread-safe: one object a caller. Scalars: float, double, long double, Boost.Multiprecision.
template <class Scalar>
class CircuitGradient {
 public:
  using scalar_type = Scalar;

  /// `threads` 0 means one a core. Throws InvalidArgument for options that are not allowed.
  explicit CircuitGradient(const Dataset<Scalar>& dataset, const HeadOptions<Scalar>& options = {}, int threads = 1)
      : options_(options), pool_(std::make_unique<ThreadPool>(threads)), scratch_(pool_->size()) {
    options_.validate("CircuitGradient");
    reset(dataset);
  }

  /// Takes another dataset, threads and options staying as they are: a mini-batch (Dataset::subset), fresh samples.
  void reset(const Dataset<Scalar>& dataset) {
    plan_ = std::make_unique<detail::GradientPlan<Scalar>>(dataset);
    sums_.resize(plan_->chunks.size());
  }

  const DatasetShape& shape() const { return plan_->shape; }
  const HeadOptions<Scalar>& options() const { return options_; }
  std::size_t threads() const { return pool_->size(); }

  /// The loss alone, at about two thirds of the cost of a gradient. Throws InvalidArgument for circuits of another
  /// shape.
  Scalar loss(const ConstCircuits<Scalar>& w) {
    require_circuit_shape("CircuitGradient::loss", w, plan_->shape);
    return sweep(w, nullptr, {}, nullptr);
  }

  /// Writes rates.qk * G_QK, rates.ov * G_OV and, if `gradient` has a bias, rates.bias * G_bias; returns the loss. The
  /// gradient must not overlap the weights. Throws InvalidArgument for circuits of another shape.
  Scalar operator()(const ConstCircuits<Scalar>& w, MutableCircuits<Scalar> gradient,
                    const CircuitRates<Scalar>& rates = {}) {
    require_circuit_shape("CircuitGradient", w, plan_->shape);
    require_circuit_shape("CircuitGradient: gradient", gradient, plan_->shape);
    const auto factors = factors_of(rates);
    const Scalar loss = sweep(w, nullptr, factors, gradient.qk.data());
    gather(gradient, factors, false);
    return loss;
  }

  /// The exact derivative of the gradient along a direction dw of circuit space, by forward differentiation:
  ///     derivative = rates * d/dx G(w + x dw) at x = 0,   that is minus the Hessian of L times dw.
  /// About three times the cost of a gradient. Throws as the gradient does.
  void tangent(const ConstCircuits<Scalar>& w, const ConstCircuits<Scalar>& dw, MutableCircuits<Scalar> derivative,
               const CircuitRates<Scalar>& rates = {}) {
    require_circuit_shape("CircuitGradient::tangent", w, plan_->shape);
    require_circuit_shape("CircuitGradient::tangent: direction", dw, plan_->shape);
    require_circuit_shape("CircuitGradient::tangent: derivative", derivative, plan_->shape);
    const auto factors = factors_of(rates);
    sweep(w, &dw, factors, derivative.qk.data());
    gather(derivative, factors, true);
  }

 private:
  bool is_positional() const {
    return options_.attention == AttentionMode::hard || options_.attention == AttentionMode::marginal;
  }

  detail::GradientFactors<Scalar> factors_of(const CircuitRates<Scalar>& rates) const {
    const Scalar total = plan_->total_weight;
    return {rates.qk / total, rates.ov / total, rates.bias / total};
  }

  /// Runs all chunks: sums into `sums_`, rows of whole groups into `qk_rows`. Returns the loss, except in a tangent
  /// pass of soft attention.
  Scalar sweep(const ConstCircuits<Scalar>& w, const ConstCircuits<Scalar>* dw,
               const detail::GradientFactors<Scalar>& factors, Scalar* qk_rows) {
    if (is_positional()) tabulate(w, dw);
    pool_->for_each(plan_->chunks.size(), [&](std::size_t chunk, std::size_t worker) {
      auto& scratch = scratch_[worker];
      auto& sums = sums_[chunk];
      if (is_positional()) {
        scratch.position.run(*plan_, options_, chunk, w, dw, tables_, factors.qk, qk_rows, sums);
      } else if (dw != nullptr) {
        scratch.soft.tangent(*plan_, options_, chunk, w, *dw, factors, qk_rows, sums);
      } else {
        scratch.soft.gradient(*plan_, options_, chunk, w, factors, qk_rows, sums);
      }
    });
    Scalar loss(0);
    for (const auto& sums : sums_) loss += sums.loss;
    return loss / plan_->total_weight;
  }

  /// Calls body(token, worker) for all tokens, in blocks.
  template <class Body>
  void for_tokens(std::size_t tokens, const Body& body) {
    constexpr std::size_t block = 64;
    pool_->for_each((tokens + block - 1) / block, [&](std::size_t b, std::size_t worker) {
      for (std::size_t t = b * block; t < std::min(tokens, (b + 1) * block); ++t) body(t, worker);
    });
  }

  void tabulate(const ConstCircuits<Scalar>& w, const ConstCircuits<Scalar>* dw) {
    tables_.resize(w, dw != nullptr);
    for_tokens(static_cast<std::size_t>(plan_->shape.tokens) + 1, [&](std::size_t t, std::size_t) {
      tables_.fill(static_cast<Eigen::Index>(t), w);
      if (dw != nullptr) tables_.fill_rate(static_cast<Eigen::Index>(t), *dw);
    });
  }

  /// Adds up what the chunks left, in their order.
  void gather(MutableCircuits<Scalar>& g, const detail::GradientFactors<Scalar>& factors, bool is_tangent) {
    for_tokens(static_cast<std::size_t>(plan_->shape.tokens), [&](std::size_t t, std::size_t worker) {
      Scalar* column = g.ov.data() + static_cast<Eigen::Index>(t) * g.ov.rows();
      if (is_positional()) {
        position_column(t, column, is_tangent, scratch_[worker]);
      } else {
        add_columns(t, &detail::ChunkSums<Scalar>::columns, column);
      }
    });
    // Not scaled in the pass, because the bias needs the same columns at its own rate.
    if (is_positional()) {
      if (g.bias.size() != 0) position_bias(g, is_tangent);
      g.ov *= factors.ov;
      if (g.bias.size() != 0) g.bias *= factors.bias;
    } else if (g.bias.size() != 0) {
      add_bias(&detail::ChunkSums<Scalar>::bias, g.bias.data());
    }
    for (const auto& loose : plan_->loose_rows) {
      Scalar* row = g.qk.data() + loose.query * g.qk.cols();
      std::fill_n(row, g.qk.cols(), Scalar(0));
      for (std::size_t c = loose.first_chunk; c < loose.last_chunk; ++c) {
        const auto& tokens = plan_->chunks[c].tokens;
        const Scalar* partial = sums_[c].row.data();
        for (std::size_t l = 0; l < tokens.size(); ++l) row[tokens[l]] += partial[l];
      }
    }
  }

  using Part = detail::Buffer<Scalar> detail::ChunkSums<Scalar>::*;

  void add_columns(std::size_t t, Part part, Scalar* column) const {
    const auto classes = static_cast<Eigen::Index>(plan_->shape.classes);
    const Eigen::Index stride = detail::padded<Scalar>(classes);
    VectorMap<Scalar> sum(column, classes);
    const std::size_t first = plan_->column_offsets[t], last = plan_->column_offsets[t + 1];
    if (first == last) sum.setZero();
    for (std::size_t p = first; p < last; ++p) {
      const auto& from = plan_->partials[p];
      const ConstVectorMap<Scalar> partial((sums_[from.chunk].*part).data() + from.local * stride, classes);
      if (p == first) {
        sum = partial;
      } else {
        sum += partial;
      }
    }
  }

  void add_bias(Part part, Scalar* bias) const {
    const auto classes = static_cast<Eigen::Index>(plan_->shape.classes);
    std::fill_n(bias, classes, Scalar(0));
    for (const auto& sums : sums_) {
      for (Eigen::Index k = 0; k < classes; ++k) bias[k] += (sums.*part).data()[k];
    }
  }

  struct Scratch {
    detail::SoftPass<Scalar> soft;
    detail::PositionPass<Scalar> position;
    detail::Buffer<Scalar> masses, rates;
  };

  void position_column(std::size_t t, Scalar* column, bool is_tangent, Scratch& scratch) const {
    const auto classes = static_cast<Eigen::Index>(plan_->shape.classes);
    Scalar* masses = scratch.masses.reserve(classes);
    Scalar* rates = scratch.rates.reserve(classes);
    add_columns(t, &detail::ChunkSums<Scalar>::columns, masses);
    if (is_tangent) {
      add_columns(t, &detail::ChunkSums<Scalar>::column_rates, rates);
      tables_.column_rate(static_cast<Eigen::Index>(t), masses, rates, column);
    } else {
      tables_.column(static_cast<Eigen::Index>(t), masses, column);
    }
  }

  /// The bias moves the logits of every position: its gradient is the sum of all columns, the null token's included.
  void position_bias(MutableCircuits<Scalar>& g, bool is_tangent) {
    const auto classes = static_cast<Eigen::Index>(plan_->shape.classes);
    Scalar* masses = scratch_[0].masses.reserve(classes);
    Scalar* rates = scratch_[0].rates.reserve(classes);
    add_bias(&detail::ChunkSums<Scalar>::bias, masses);
    if (is_tangent) {
      add_bias(&detail::ChunkSums<Scalar>::bias_rates, rates);
      tables_.column_rate(tables_.tokens, masses, rates, g.bias.data());
    } else {
      tables_.column(tables_.tokens, masses, g.bias.data());
    }
    for (Eigen::Index t = 0; t < g.ov.cols(); ++t) g.bias += g.ov.col(t);
  }

  HeadOptions<Scalar> options_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Scratch> scratch_;  // one a thread
  std::unique_ptr<detail::GradientPlan<Scalar>> plan_;
  std::vector<detail::ChunkSums<Scalar>> sums_;  // one a chunk
  detail::PositionTables<Scalar> tables_;
};

}  // namespace qkflow
