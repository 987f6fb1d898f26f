// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "qkflow/flow/stop.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/gradient_field.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/model/observables.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// The matrix flow: every entry of every matrix of a head, on any finite dataset,
///
///     d theta/dt = -P dL/d theta        (P: the learning rate of each matrix; theta: all parameters, one flat vector)
///
/// as a velocity field that `solve` integrates with any of its methods:
///
///     MatrixFlow flow(caco_parameters<double>(dataset.shape(), {.qk = 10, .ov = 1}), dataset);
///     const auto run = solve(flow, theta, {.rtol = 1e-10}, {stop_at_loss(flow, 1e-4)}, Fehlberg78{});
///
/// On the block task, from zero or aligned start, it stays on a line and is the reduced flow (flow/reduced_flow.hpp).
/// theta may come from anywhere: model/initialization.hpp, model/aligned_start.hpp.
///
/// An object holds the gradient, its threads and buffers, and a copy of the dataset (move it in to save the copy): hand
/// it on by reference and use it from one thread at a time. Nothing is allocated once it is warm, except by
/// ProductCircuit. A NaN in theta gives a NaN velocity, which `solve` reports.
template <class Parameters>
class MatrixFlow {
 public:
  using Scalar = typename Parameters::scalar_type;
  using scalar_type = Scalar;
  using State = ColumnVector<Scalar>;

  /// `threads` 0 means one a core; any number gives the same bits. Throws InvalidArgument when the parameters form
  /// circuits of another shape than the dataset's, and for options that are not allowed.
  MatrixFlow(Parameters parameters, Dataset<Scalar> dataset, const HeadOptions<Scalar>& options = {}, int threads = 1)
      : dataset_(std::make_unique<const Dataset<Scalar>>(std::move(dataset))),
        options_(options),
        field_(std::move(parameters), *dataset_, options, threads),
        observer_(*dataset_, options, threads) {}

  const Parameters& parameters() const { return field_.parameters(); }
  const Dataset<Scalar>& dataset() const { return *dataset_; }
  const HeadOptions<Scalar>& options() const { return options_; }
  GradientField<Parameters>& field() { return field_; }
  Eigen::Index size() const { return field_.size(); }

  /// Writes d theta/dt; time does not enter. Throws InvalidArgument when theta has another size.
  void operator()(const State& theta, State& velocity, const Scalar& /*t*/) { field_.velocity(theta, velocity); }

  Scalar loss(const State& theta) { return field_.loss(theta); }

  /// Loss, accuracy, attention mass on relevant tokens (alpha), attention entropy: one forward pass.
  HeadObservables<Scalar> observe(const State& theta) { return observer_(circuits(theta)); }
  /// alpha: the attention mass on relevant tokens, the weighted mean over sequences. NaN if theta is.
  Scalar attention(const State& theta) { return observe(theta).relevant_attention; }

  /// The norm of dL/d theta over the parameters that learn (learning rate above 0).
  Scalar gradient_norm(const State& theta) {
    using std::sqrt;
    field_.velocity(theta, velocity_);
    Scalar square(0);
    for (const auto& block : parameters().blocks()) {
      if (!(block.rate > Scalar(0))) continue;
      square += velocity_.segment(block.offset, block.shape.size()).squaredNorm() / (block.rate * block.rate);
    }
    return sqrt(square);
  }

  /// The circuits at theta: views of theta or of buffers in here, valid until the next call.
  ConstCircuits<Scalar> circuits(const State& theta) { return parameters().circuits(theta, circuits_); }

 private:
  std::unique_ptr<const Dataset<Scalar>> dataset_;  // where it stays when the flow is moved: the observer points to it
  HeadOptions<Scalar> options_;
  GradientField<Parameters> field_;
  HeadObserver<Scalar> observer_;
  Circuits<Scalar> circuits_;
  State velocity_;
};

/// Ends (or with `terminal` false marks) a run where the loss falls to `value`. Watches the logarithm, which varies
/// evenly where the loss spans decades. The flow must outlive the condition. One loss evaluation a step, and a few
/// steps' worth where it is met.
template <class Parameters>
Stop<typename MatrixFlow<Parameters>::State> stop_at_loss(
    MatrixFlow<Parameters>& flow, const std::type_identity_t<typename Parameters::scalar_type>& value) {
  using Scalar = typename Parameters::scalar_type;
  require_positive("stop_at_loss", "loss", value);
  return {.name = "loss",
          .g = [&flow, value](const Scalar&, const ColumnVector<Scalar>& theta) -> Scalar {
            using std::log;
            return log(Scalar(flow.loss(theta) / value));
          },
          .direction = Direction::falling};
}

/// The same where the attention mass on relevant tokens rises to `value`.
template <class Parameters>
Stop<typename MatrixFlow<Parameters>::State> stop_at_attention(
    MatrixFlow<Parameters>& flow, const std::type_identity_t<typename Parameters::scalar_type>& value) {
  using Scalar = typename Parameters::scalar_type;
  require_positive("stop_at_attention", "attention", value);
  if (!(value < Scalar(1))) throw_invalid("stop_at_attention", "attention", value, "be below 1");
  return stop_above<ColumnVector<Scalar>>(
      "attention", [&flow](const Scalar&, const ColumnVector<Scalar>& theta) { return flow.attention(theta); }, value);
}

/// The same where the norm of dL/d theta falls to `value`. At a saddle (all factors 0) that is at once: `already_true`.
template <class Parameters>
Stop<typename MatrixFlow<Parameters>::State> stop_at_gradient_norm(
    MatrixFlow<Parameters>& flow, const std::type_identity_t<typename Parameters::scalar_type>& value) {
  using Scalar = typename Parameters::scalar_type;
  require_positive("stop_at_gradient_norm", "norm", value);
  return stop_below<ColumnVector<Scalar>>(
      "gradient norm", [&flow](const Scalar&, const ColumnVector<Scalar>& theta) { return flow.gradient_norm(theta); },
      value);
}

}  // namespace qkflow
