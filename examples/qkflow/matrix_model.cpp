// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "matrix_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/model/observables.hpp"
#include "qkflow/model/parameter_file.hpp"
#include "qkflow/model/sharpness.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/task/dataset_file.hpp"

namespace qkflow_program {

namespace {

using State = ErasedMatrixFlow::State;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class Parameters>
State make_start(const MatrixRun& run, const Parameters& parameters) {
  const MatrixOptions& matrix = run.matrix;
  const auto seed = static_cast<std::uint32_t>(matrix.seed);
  if (!matrix.init_file.empty()) return qkflow::read_parameters(matrix.init_file, parameters);
  if (matrix.init == "zero") return qkflow::zero_start(parameters);
  if (matrix.init == "identity") return qkflow::identity_start(parameters, matrix.init_size);
  if (matrix.init == "uniform") return qkflow::uniform_start(parameters, seed);
  if (matrix.init == "gaussian") return qkflow::gaussian_start(parameters, seed, matrix.init_size);
  if (matrix.init == "balanced") return qkflow::balanced_random_start(parameters, seed, matrix.init_size);
  if (matrix.init == "pytorch") return qkflow::pytorch_start(parameters, seed);
  return qkflow::aligned_start(parameters, run.flow.task,
                               qkflow::AlignedStart<double>{.mu_ov = run.flow.start.mu_ov,
                                                            .mu_qk = run.flow.start.mu_qk,
                                                            .lambda_ov = run.flow.lambda_ov.value_or(0),
                                                            .lambda_qk = run.flow.lambda_qk.value_or(0)});
}

template <class Parameters>
ErasedMatrixFlow erase(const MatrixRun& run, Parameters parameters, qkflow::Dataset<double> dataset) {
  using Flow = qkflow::MatrixFlow<Parameters>;
  ErasedMatrixFlow erased;
  erased.start = make_start(run, parameters);
  const auto flow =
      std::make_shared<Flow>(std::move(parameters), std::move(dataset),
                             qkflow::HeadOptions<double>{.score_scale = run.flow.task.score_scale}, run.matrix.threads);
  erased.field = [flow](const State& x, State& dxdt, const double& t) { (*flow)(x, dxdt, t); };
  erased.loss = [flow](const State& x) { return flow->loss(x); };
  erased.attention = [flow](const State& x) { return flow->attention(x); };
  erased.columns = {"t",       "mu_ov",   "mu_qk",   "alpha",   "loss",          "accuracy",     "entropy",
                    "line_ov", "line_qk", "norm_ov", "norm_qk", "gradient_norm", "balance_drift"};
  const int singular_values = run.matrix.singular_values;
  for (const char* circuit : {"ov", "qk"}) {
    for (int i = 1; i <= singular_values; ++i) erased.columns.push_back(fmt::format("singular_{}_{}", circuit, i));
  }
  const bool with_sharpness = run.matrix.sharpness;
  if (with_sharpness) erased.columns.emplace_back("sharpness");
  std::shared_ptr<const qkflow::LineObserver<double>> line;
  if (run.matrix.data.empty()) line = std::make_shared<const qkflow::LineObserver<double>>(run.flow.task);
  const auto conserved = flow->parameters().conserved(erased.start);
  erased.row = [=](double t, const State& theta) {
    const auto seen = flow->observe(theta);
    const auto w = flow->circuits(theta);
    qkflow::LinePosition<double> at{not_a_number, not_a_number, not_a_number, not_a_number};
    if (line) at = (*line)(w);
    std::vector<double> row{t,
                            at.mu_ov,
                            at.mu_qk,
                            seen.relevant_attention,
                            seen.loss,
                            seen.accuracy,
                            seen.attention_entropy,
                            at.ov_distance,
                            at.qk_distance,
                            w.ov.norm(),
                            w.qk.norm()};
    if (singular_values > 0) {
      for (const State& values : {State(qkflow::leading_singular_values(w.ov, singular_values)),
                                  State(qkflow::leading_singular_values(w.qk, singular_values))}) {
        for (int i = 0; i < singular_values; ++i) row.push_back(i < values.size() ? values[i] : 0.0);
      }
    }
    const double drift = qkflow::conserved_drift(conserved, flow->parameters().conserved(theta));
    row.insert(row.begin() + 11, {flow->gradient_norm(theta), drift});
    if (with_sharpness) row.push_back(qkflow::sharpness(flow->field(), theta).largest);
    return row;
  };
  return erased;
}

bool is_factorized(const MatrixRun& run, qkflow::Circuit which) {
  return run.flow.parameterization.at(which == qkflow::Circuit::qk ? 0 : 2) == 'F';
}

Eigen::Index inner_dimension(const MatrixRun& run, const qkflow::DatasetShape& shape, qkflow::Circuit which) {
  if (run.matrix.dim > 0) return run.matrix.dim;
  if (run.matrix.data.empty()) return static_cast<Eigen::Index>(shape.classes);
  const qkflow::MatrixShape size = qkflow::circuit_shape(shape, which);
  return std::min(size.rows, size.cols);
}

// One matrix or two: calls `next` with the parameters of one circuit.
template <qkflow::Circuit which, class Next>
auto with_circuit(const MatrixRun& run, const qkflow::DatasetShape& shape, const Next& next) {
  const double rate = which == qkflow::Circuit::qk ? run.flow.rates.qk : run.flow.rates.ov;
  const qkflow::MatrixShape size = qkflow::circuit_shape(shape, which);
  if (!is_factorized(run, which)) return next(qkflow::CollapsedCircuit<double, which>(size, rate));
  return next(qkflow::FactorizedCircuit<double, which>(size, inner_dimension(run, shape, which), rate));
}

// Any number, where one of the circuits has another.
template <qkflow::Circuit which>
qkflow::ProductCircuit<double, which> product(const MatrixRun& run, const qkflow::DatasetShape& shape) {
  constexpr bool is_qk = which == qkflow::Circuit::qk;
  const int factors = is_factorized(run, which) ? (is_qk ? run.flow.factors_qk : run.flow.factors_ov).value_or(2) : 1;
  return {qkflow::circuit_shape(shape, which),
          std::vector<Eigen::Index>(static_cast<std::size_t>(factors) - 1, inner_dimension(run, shape, which)),
          {is_qk ? run.flow.rates.qk : run.flow.rates.ov}};
}

}  // namespace

ErasedMatrixFlow make_matrix_flow(const MatrixRun& run) {
  // The reduced flow's own checks of names, rates and factors; then the data.
  with_reduced_flow(run.flow, [](const auto& /*flow*/) {});
  qkflow::Dataset<double> dataset = run.matrix.data.empty()
                                        ? qkflow::block_dataset(run.flow.task)
                                        : qkflow::read_dataset<double>(run.matrix.data, {.ids = run.matrix.ids});
  const qkflow::DatasetShape shape = dataset.shape();
  if (run.flow.factors_qk.value_or(2) != 2 || run.flow.factors_ov.value_or(2) != 2) {
    return erase(
        run, qkflow::HeadParameters(product<qkflow::Circuit::qk>(run, shape), product<qkflow::Circuit::ov>(run, shape)),
        std::move(dataset));
  }
  return with_circuit<qkflow::Circuit::qk>(run, shape, [&](const auto& qk) {
    return with_circuit<qkflow::Circuit::ov>(
        run, shape, [&](const auto& ov) { return erase(run, qkflow::HeadParameters(qk, ov), std::move(dataset)); });
  });
}

}  // namespace qkflow_program
