// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

#include "compare_model.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/model/head_parameters.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace qkflow_program {

namespace {

using State = CompareField::State;

template <class Parameters>
CompareModel erase(const Parameters& parameters, const qkflow::Dataset<double>& dataset,
                   const qkflow::HeadOptions<double>& head, const std::optional<qkflow::BlockTask<double>>& task) {
  using Flow = qkflow::MatrixFlow<Parameters>;
  const auto flow = std::make_shared<Flow>(parameters, dataset, head);
  CompareModel model;
  const State rates = parameters.rates();
  model.rates.assign(rates.data(), rates.data() + rates.size());
  model.velocity_function = [flow](const State& x, State& dxdt) { (*flow)(x, dxdt, 0.0); };
  model.derivative_function = [flow](const State& x, const State& v, State& result) {
    flow->field().derivative(x, v, result);
  };
  model.loss_function = [flow](const State& x) { return flow->loss(x); };
  const auto observer = std::make_shared<const qkflow::MatrixObserver<Parameters>>(
      task ? qkflow::MatrixObserver<Parameters>(*flow, *task) : qkflow::MatrixObserver<Parameters>(*flow));
  model.observe_function = [flow, observer](const State& x) { return (*observer)(x); };
  model.stability = [flow](double t, const State& x) { return qkflow::stability(*flow, t, x); };
  model.sharpness = [flow](const State& x) {
    return qkflow::sharpness(flow->field(), x, qkflow::SharpnessOf::all, {.rtol = 1e-3}).largest;
  };
  model.sgd = [flow](const State& start, const qkflow::EnsembleOptions& options) {
    return qkflow::sgd_ensemble(flow->parameters(), flow->dataset(), start, options, flow->options());
  };
  model.random_start = [parameters](std::uint64_t seed, double deviation) {
    return State(qkflow::balanced_random_start(parameters, seed, deviation));
  };
  if (task) {
    model.on_line = [parameters, block = *task](const qkflow::ReducedState<double>& x) {
      return State(
          qkflow::aligned_start(parameters, block, qkflow::AlignedStart<double>{.mu_ov = x.mu_ov, .mu_qk = x.mu_qk}));
    };
  }
  return model;
}

// One matrix or two.
template <qkflow::Circuit which, class Next>
CompareModel with_circuit(bool factorized, const qkflow::DatasetShape& shape, std::int64_t inner, double rate,
                          const Next& next) {
  const qkflow::MatrixShape size = qkflow::circuit_shape(shape, which);
  if (!factorized) return next(qkflow::CollapsedCircuit<double, which>(size, rate));
  const auto full = static_cast<std::int64_t>(std::min(size.rows, size.cols));
  return next(qkflow::FactorizedCircuit<double, which>(size, inner > 0 ? inner : full, rate));
}

CompareModel make_model(const std::string& name, const qkflow::Dataset<double>& dataset, double score_scale,
                        const qkflow::LearningRates<double>& rates, std::int64_t inner,
                        const std::optional<qkflow::BlockTask<double>>& task) {
  const qkflow::DatasetShape shape = dataset.shape();
  const qkflow::HeadOptions<double> head{.score_scale = score_scale};
  return with_circuit<qkflow::Circuit::qk>(name.at(0) == 'F', shape, inner, rates.qk, [&](const auto& qk) {
    return with_circuit<qkflow::Circuit::ov>(name.at(2) == 'F', shape, inner, rates.ov, [&](const auto& ov) {
      return erase(qkflow::HeadParameters(qk, ov), dataset, head, task);
    });
  });
}

}  // namespace

CompareModel block_model(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                         const qkflow::LearningRates<double>& rates) {
  const qkflow::Dataset<double> dataset = qkflow::block_dataset(task);
  return make_model(parameterization, dataset, task.score_scale, rates, dataset.shape().classes, task);
}

CompareModel dataset_model(const std::string& parameterization, const qkflow::Dataset<double>& dataset,
                           double score_scale, const qkflow::LearningRates<double>& rates) {
  return make_model(parameterization, dataset, score_scale, rates, 0, std::nullopt);
}

}  // namespace qkflow_program
