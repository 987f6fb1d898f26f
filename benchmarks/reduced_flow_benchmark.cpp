// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The reduced flow: what a state, a time and the whole of Figure 4 of [Vashisht26] cost by closed form, by adaptive
// integration and by the published procedure, each with its error against 25-digit values. docs/benchmarks.md has the
// command and a table of results.

#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/odeint.hpp"
#include "qkflow/flow/solve.hpp"

namespace {

using namespace qkflow;

constexpr std::array<double, 5> ratios{0.01, 0.1, 1, 10, 100};

/// End of each ratio (loss 1e-4) to 25 digits: own computation by two independent methods (tests/support/golden.hpp).
struct End {
  double mu_ov, mu_qk, t;
};
constexpr std::array<End, 5> ends{
    {{81.66869863298372318790632, 0.558775704776381998296195, 255394405.1888990606989058},
     {42.2815241600517860548561, 1.394888465248098252509565, 48955873.37144975009272094},
     {20.56256670892542472054463, 2.671139144325967230751052, 12636915.16069325886065799},
     {13.18185148265040211594001, 4.773542589085174437471705, 9319247.218037263295039043},
     {12.24454993892740832452097, 7.210244496691945569004295, 9514802.411710839641487694}}};

const std::vector<double>& stopping_losses() {
  static const std::vector<double> losses = [] {
    std::vector<double> l;
    for (int k = 0; k < 50; ++k) l.push_back(std::pow(10.0, -4.0 * k / 49));
    return l;
  }();
  return losses;
}

Caco<double> flow_at(double ratio) {
  Caco<double> flow;  // M = 20, b = 50, m = 5, n = 50, eta_OV = 1
  flow.rates.qk = ratio;
  return flow;
}

/// What a procedure computes for one ratio: 50 stopping states and the end time.
struct Stops {
  std::vector<ReducedState<double>> states;
  double end_time = 0;
};

Stops by_closed_form(double ratio) {
  const ClosedForm closed(flow_at(ratio), ReducedState<double>{});
  Stops stops;
  stops.states.reserve(50);
  for (const auto& point : closed.at_losses(stopping_losses())) stops.states.push_back({point.mu_ov, point.mu_qk});
  stops.end_time = closed.time_at_output(stops.states.back().mu_ov);
  return stops;
}

template <class Method>
Stops by_solver(double ratio, double rtol) {
  using State = Eigen::Vector2d;
  const Caco<double> flow = flow_at(ratio);
  std::vector<Stop<State>> conditions;
  for (const double loss : stopping_losses()) {
    conditions.push_back(stop_below<State>(
        "loss", [&flow](double, const State& x) { return std::log(flow.loss(x[0], x[1])); }, std::log(loss)));
    conditions.back().terminal = loss == stopping_losses().back();
  }
  const auto solution = solve(flow, State(0, 0), {.rtol = rtol, .atol = rtol / 1000}, conditions, Method{});
  Stops stops;
  for (const auto& event : solution.events) stops.states.push_back({event.x[0], event.x[1]});
  if (stops.states.size() + 1 == stopping_losses().size()) stops.states.push_back({solution.x[0], solution.x[1]});
  stops.end_time = solution.t;
  return stops;
}

/// The published procedure: classical Runge-Kutta with step 10 in normalized time t min(eta_OV, eta_QK), stopped at the
/// first step whose loss is low enough. Written as tightly as the field allows.
Stops by_published_procedure(double ratio) {
  const Caco<double> flow = flow_at(ratio);
  const double h = 10 / std::min(1.0, ratio);
  Eigen::Vector2d x(0, 0), k1, k2, k3, k4, y;
  Stops stops;
  double t = 0;
  while (stops.states.size() < stopping_losses().size()) {
    flow(x, k1, t);
    y = x + h / 2 * k1;
    flow(y, k2, t);
    y = x + h / 2 * k2;
    flow(y, k3, t);
    y = x + h * k3;
    flow(y, k4, t);
    x += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4);
    t += h;
    const double loss = flow.loss(x[0], x[1]);
    while (stops.states.size() < stopping_losses().size() && loss <= stopping_losses()[stops.states.size()]) {
      stops.states.push_back({x[0], x[1]});
    }
  }
  stops.end_time = t;
  return stops;
}

/// Times `procedure(ratio)` over all five ratios, after measuring its error at the ends.
template <class Procedure>
void figure_4(benchmark::State& state, const Procedure& procedure) {
  double state_error = 0, time_error = 0;
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const Stops stops = procedure(ratios[i]);
    if (stops.states.size() != 50) return state.SkipWithError("not all stops were reached");
    state_error = std::max({state_error, std::abs(stops.states.back().mu_ov / ends[i].mu_ov - 1),
                            std::abs(stops.states.back().mu_qk / ends[i].mu_qk - 1)});
    time_error = std::max(time_error, std::abs(stops.end_time / ends[i].t - 1));
  }
  for (auto _ : state) {
    for (const double ratio : ratios) benchmark::DoNotOptimize(procedure(ratio));
  }
  state.counters["state_error"] = state_error;
  state.counters["time_error"] = time_error;
}

void figure_4_closed_form(benchmark::State& state) { figure_4(state, by_closed_form); }
void figure_4_published_procedure(benchmark::State& state) { figure_4(state, by_published_procedure); }
template <class Method>
void figure_4_solver(benchmark::State& state) {
  const double rtol = std::pow(10.0, -static_cast<double>(state.range(0)));
  figure_4(state, [rtol](double ratio) { return by_solver<Method>(ratio, rtol); });
}

BENCHMARK(figure_4_closed_form)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(figure_4_solver, DormandPrince5)->Arg(6)->Arg(9)->Arg(12)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(figure_4_solver, Fehlberg78)->Arg(6)->Arg(9)->Arg(12)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(figure_4_solver, BulirschStoer)->Arg(9)->Arg(12)->Unit(benchmark::kMicrosecond);
BENCHMARK(figure_4_published_procedure)->Unit(benchmark::kMicrosecond)->Iterations(2);

/// One state at a loss, and one time, over varied losses; the range is log10 of the ratio.
template <class Flow>
void one_state_at_a_loss(benchmark::State& state) {
  Flow flow;
  flow.rates.qk = std::pow(10.0, static_cast<double>(state.range(0)));
  const ClosedForm closed(flow, ReducedState<double>{0.01, 0.01});
  std::size_t k = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(closed.at_loss(stopping_losses()[k]));
    k = (k + 7) % 50;
  }
}
BENCHMARK_TEMPLATE(one_state_at_a_loss, Caco<double>)->DenseRange(-2, 2, 1);
BENCHMARK_TEMPLATE(one_state_at_a_loss, Cafo<double>)->DenseRange(-2, 2, 2);
BENCHMARK_TEMPLATE(one_state_at_a_loss, Faco<double>)->DenseRange(-2, 2, 2);
BENCHMARK_TEMPLATE(one_state_at_a_loss, Fafo<double>)->DenseRange(-2, 2, 2);

template <class Flow>
void one_time(benchmark::State& state) {
  Flow flow;
  flow.rates.qk = 10;
  const ClosedForm closed(flow, ReducedState<double>{0.01, 0.01});
  const double end = closed.at_loss(1e-4).mu_ov;
  double shift = 0;
  for (auto _ : state) benchmark::DoNotOptimize(closed.time_at_output(end - (shift += 1e-9)));
}
BENCHMARK_TEMPLATE(one_time, Caco<double>)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(one_time, Cafo<double>)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(one_time, Faco<double>)->Unit(benchmark::kMicrosecond);
BENCHMARK_TEMPLATE(one_time, Fafo<double>)->Unit(benchmark::kMicrosecond);

/// A sweep over the task itself: every point has its own r, m, n, b, M and loss.
void parameter_points(benchmark::State& state) {
  struct Point {
    BlockTask<double> task;
    double ratio, loss;
  };
  std::vector<Point> points(4096);
  std::uint64_t draw = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(state.thread_index() + 1);
  const auto uniform = [&draw] {  // a linear congruential sequence is random enough to vary inputs
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(draw >> 11) * 0x1p-53;
  };
  for (Point& p : points) {
    p.task.classes = 2 + std::floor(uniform() * 100);
    p.task.block = 1 + std::floor(uniform() * 100);
    p.task.informative = 1 + std::floor(uniform() * 20);
    p.task.noise = 1 + std::floor(uniform() * 200);
    p.ratio = std::pow(10.0, 6 * uniform() - 3);
    p.loss = std::pow(10.0, -4 * uniform()) * std::log(p.task.classes);
  }
  for (auto _ : state) {
    for (const Point& p : points) {
      Caco<double> flow;
      flow.task = p.task;
      flow.rates.qk = p.ratio;
      benchmark::DoNotOptimize(ClosedForm(flow, ReducedState<double>{}).at_loss(p.loss));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(points.size()));
}
BENCHMARK(parameter_points)->Threads(1)->Threads(2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
