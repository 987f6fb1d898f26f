// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Away from any line: random starts on sampled data. What must hold there: conservation laws and a falling loss.
#include <cmath>
#include <limits>
#include <vector>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/task/topic_task.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"

using namespace qkflow;
using namespace qkflow_test;

namespace {

using State = Eigen::VectorXd;

/// The largest change of any entry of any conserved matrix.
template <class Parameters>
double drift(const Parameters& parameters, const State& from, const State& to) {
  const auto before = parameters.conserved(from), after = parameters.conserved(to);
  REQUIRE(before.size() == after.size());
  double largest = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    largest = std::max(largest, (after[i].value - before[i].value).cwiseAbs().maxCoeff());
  }
  return largest;
}

/// Follows a run step by step: the loss must fall at each.
template <class Flow>
Solution<State> run_and_watch(Flow& flow, const State& start, double end, double rtol, double& previous) {
  previous = std::numeric_limits<double>::infinity();
  bool falls = true;
  SolveOptions<State> options{.t_end = end, .rtol = rtol, .atol = rtol / 100};
  options.on_step = [&](double, const State& theta, const SolveStatistics&) {
    const double loss = flow.loss(theta);
    falls &= loss < previous;
    previous = loss;
  };
  Solution<State> run = solve(flow, start, options, {}, Fehlberg78{});
  INFO(run.message);
  CHECK(run.success());
  CHECK(falls);
  return run;
}

}  // namespace

TEST_CASE("topic data, random start: both balancedness matrices stay and the loss falls") {
  const TopicTask topics{.length = 24};
  const auto dataset = topics.dataset<double>(7, 200);
  const HeadOptions<double> options{.score_scale = TopicTask::score_scale()};
  MatrixFlow flow(fafo_parameters<double>(dataset.shape(), 12, {.qk = 30, .ov = 3}), dataset, options, 2);
  const State start = uniform_start(flow.parameters(), 3);
  double loss = 0;
  const auto loose = run_and_watch(flow, start, 30, 1e-6, loss);
  const auto tight = run_and_watch(flow, start, 30, 1e-10, loss);
  const double size = flow.parameters().conserved(start)[0].value.cwiseAbs().maxCoeff();
  const double loose_drift = drift(flow.parameters(), start, loose.x),
               tight_drift = drift(flow.parameters(), start, tight.x);
  INFO(size << " " << loose_drift << " " << tight_drift << " loss " << flow.loss(start) << " to " << loss);
  CHECK(size > 0.1);
  CHECK((tight.x - start).norm() > 1);  // it went somewhere
  CHECK(loss < flow.loss(start) / 2);
  // Not upwards: the head sees the query, too, which gives the label away.
  CHECK(std::abs(flow.attention(tight.x) - flow.attention(start)) > 0.01);
  CHECK(tight_drift < 1e-8);
  CHECK(tight_drift < loose_drift / 10);
}

TEST_CASE("any data, any start: rates of their own for each factor, products and a bias") {
  const auto dataset = random_dataset({.shape = {3, 7, 4}, .sequences = 30});
  const DatasetShape shape = dataset.shape();
  using Qk = FactorizedCircuit<double, Circuit::qk>;
  using Ov = ProductCircuit<double, Circuit::ov>;
  const HeadParameters parameters(Qk(circuit_shape(shape, Circuit::qk), 5, Qk::Rates{.left = 2, .right = 0.5}),
                                  Ov(circuit_shape(shape, Circuit::ov), {6, 3}, {1, 0.3, 2}), {true, 0.7});
  for (const AttentionMode mode : {AttentionMode::soft, AttentionMode::hard, AttentionMode::marginal}) {
    MatrixFlow flow(parameters, dataset, {.attention = mode});
    const State start = gaussian_start(parameters, 5, 0.6);
    double loss = 0;
    const auto run = run_and_watch(flow, start, 20, 1e-10, loss);
    CHECK((run.x - start).norm() > 0.3);
    CHECK(drift(parameters, start, run.x) < 1e-8);
  }
}

TEST_CASE("the loss falls at the rate of the squared gradient") {
  // dL/dt = -|grad L|^2 at unit rates: the flow's own energy balance, integrated over a stretch.
  const auto dataset = TopicTask{.length = 12}.dataset<double>(1, 40);
  MatrixFlow flow(caco_parameters<double>(dataset.shape()), dataset);
  const State start = gaussian_start(flow.parameters(), 2, 0.3);
  const double h = 1e-3;
  const auto there = solve(flow, start, {.t_end = h, .rtol = 1e-12, .atol = 1e-14}, {}, Fehlberg78{});
  const auto middle = solve(flow, start, {.t_end = h / 2, .rtol = 1e-12, .atol = 1e-14}, {}, Fehlberg78{});
  const double rate = std::pow(flow.gradient_norm(middle.x), 2);
  CHECK_THAT((flow.loss(start) - flow.loss(there.x)) / h, WithinRel(rate, 1e-7));
}
