// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The matrix flow at the size of the published setting (M = 20, b = 50, m = 5, n = 50: 50,000 sequences, 1,020,000
// parameters), collapsed, from zero to loss 1e-4, with every method and by number of threads; the end is compared with
// the closed form and the run refused if it is not right to 1e-8. docs/matrix_flow.md has the command and results.

#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <string>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace {

using namespace qkflow;

using Flow = MatrixFlow<CacoParameters<double>>;

Flow make_flow(int threads) {
  const BlockTask<double> task;  // the published setting is the default
  return {caco_parameters<double>(BlockLayout::of(task).shape()), block_dataset(task), {}, threads};
}

void one_evaluation(benchmark::State& state) {
  Flow flow = make_flow(static_cast<int>(state.range(0)));
  const Eigen::VectorXd theta = Eigen::VectorXd::Zero(flow.size());
  Eigen::VectorXd velocity;
  for (auto _ : state) {
    flow(theta, velocity, 0);
    benchmark::DoNotOptimize(velocity.data());
  }
  state.counters["sequences/s"] =
      benchmark::Counter(static_cast<double>(flow.dataset().size()), benchmark::Counter::kIsIterationInvariantRate);
}

void one_loss(benchmark::State& state) {
  Flow flow = make_flow(static_cast<int>(state.range(0)));
  const Eigen::VectorXd theta = Eigen::VectorXd::Zero(flow.size());
  for (auto _ : state) benchmark::DoNotOptimize(flow.loss(theta));
}

template <class Method>
void to_loss(benchmark::State& state) {
  constexpr double loss = 1e-4, rtol = 1e-10;
  const Caco<double> reduced;
  const ClosedForm closed(reduced, ReducedState<double>{});
  const auto end = closed.at_loss(loss);
  const double end_time = closed.time(end);
  Flow flow = make_flow(static_cast<int>(state.range(0)));
  const Eigen::VectorXd zero = Eigen::VectorXd::Zero(flow.size());
  Solution<Eigen::VectorXd> run;
  for (auto _ : state) {
    run = solve(flow, zero, {.rtol = rtol, .atol = rtol / 1000}, {stop_at_loss(flow, loss)}, Method{});
  }
  const LinePosition<double> line = LineObserver<double>(reduced.task)(flow.circuits(run.x));
  const auto relative = [](double value, double exact) { return std::abs(value / exact - 1); };
  const double error =
      std::max({relative(run.t, end_time), relative(line.mu_ov, end.mu_ov), relative(line.mu_qk, end.mu_qk)});
  if (!run.success() || !(error < 1e-8)) {
    state.SkipWithError(("not the closed form: error " + std::to_string(error) + ", " + run.message).c_str());
  }
  state.counters["evaluations"] = static_cast<double>(run.statistics.evaluations);
  state.counters["steps"] = static_cast<double>(run.statistics.steps);
  state.counters["error"] = error;
  state.counters["off_line"] = std::max(line.ov_distance, line.qk_distance);
}

BENCHMARK(one_evaluation)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(one_loss)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(to_loss, Fehlberg78)->Arg(1)->Arg(2)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);
BENCHMARK_TEMPLATE(to_loss, BulirschStoer)->Arg(2)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);
BENCHMARK_TEMPLATE(to_loss, DormandPrince5)->Arg(2)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace

BENCHMARK_MAIN();
