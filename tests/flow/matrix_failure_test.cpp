// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// What a matrix flow that cannot go on leaves: a status, the time reached and the last good state.
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

using State = Eigen::VectorXd;
using Flow = MatrixFlow<FafoParameters<double>>;

Flow make_flow() {
  const BlockTask<double> task{.classes = 3, .block = 2, .informative = 1, .noise = 2};
  return {fafo_parameters<double>(BlockLayout::of(task).shape(), 3), block_dataset(task)};
}

template <class Visitor>
void for_every(Visitor&& visit) {
  visit(RungeKutta4{});
  visit(CashKarp54{});
  visit(DormandPrince5{});
  visit(DormandPrince5Dense{});
  visit(Fehlberg78{});
  visit(BulirschStoer{});
}

/// The state is what the flow has at that time.
void check_good(Flow& flow, const State& start, const Solution<State>& run) {
  CHECK(run.x.allFinite());
  if (run.t == 0) {
    CHECK(run.x == start);
    return;
  }
  const auto again = solve(flow, start, {.t_end = run.t, .rtol = 1e-11, .atol = 1e-13}, {}, Fehlberg78{});
  CHECK((again.x - run.x).cwiseAbs().maxCoeff() < 1e-5);
}

}  // namespace

TEST_CASE("a user predicate that throws ends the matrix flow with the last good state") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  for_every([&](auto method) {
    const Stop<State> broken{.name = "broken", .predicate = [](double t, const State&) -> bool {
                               if (t > 2) throw std::runtime_error("no such quantity");
                               return false;
                             }};
    const auto run =
        solve(flow, start, {.t_end = 50, .rtol = 1e-7, .first_step = 0.1, .max_step = 0.5}, {broken}, method);
    INFO(std::string(decltype(method)::name) << ": " << run.message);
    CHECK(run.status == Status::threw);
    CHECK(run.t <= 2);
    CHECK(run.t > 1.4);
    CHECK_THAT(run.message, Contains("'broken'") && Contains("no such quantity") && Contains("t = "));
    check_good(flow, start, run);
  });
}

TEST_CASE("a gradient that becomes NaN ends the matrix flow with the last good state") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  // One entry of the gradient is lost from some time on.
  const auto broken = [&](const State& theta, State& velocity, double t) {
    flow(theta, velocity, t);
    if (t > 2) velocity[3] = std::numeric_limits<double>::quiet_NaN();
  };
  for_every([&](auto method) {
    const auto run = solve(broken, start, {.t_end = 50, .rtol = 1e-7, .first_step = 0.1}, {}, method);
    INFO(std::string(decltype(method)::name) << ": " << run.message);
    CHECK(run.status == Status::non_finite);
    CHECK(run.t <= 2);
    CHECK(run.t > 1.8);
    check_good(flow, start, run);
  });
}

TEST_CASE("NaN weights give a NaN velocity, and not a hang") {
  Flow flow = make_flow();
  State start = gaussian_start(flow.parameters(), 1, 0.5), velocity;
  start[0] = std::numeric_limits<double>::quiet_NaN();
  flow(start, velocity, 0);
  CHECK(std::isnan(velocity.sum()));
  CHECK(std::isnan(flow.loss(start)));
  CHECK_THROWS_AS(solve(flow, start, {.t_end = 1}), InvalidArgument);  // before the first evaluation
}

TEST_CASE("a step size that underflows ends the matrix flow with the last good state") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  // theta' = |theta|^2 theta alone blows up at 1 / (2 |theta_0|^2); the gradient hardly matters. Regression: the
  // shortest steps, made a little shorter, rounded to themselves and were refused until the cap on refusals.
  const auto explodes = [&](const State& theta, State& velocity, double t) {
    flow(theta, velocity, t);
    velocity += theta * theta.squaredNorm();
  };
  const double blow_up = 1 / (2 * start.squaredNorm());
  const auto check = [&](auto method) {
    const auto run = solve(explodes, start, {.t_end = 50, .rtol = 1e-8}, {}, method);
    INFO(std::string(decltype(method)::name) << ": " << run.message);
    CHECK(run.status == Status::step_underflow);
    CHECK_THAT(run.t, WithinRel(blow_up, 0.2));
    CHECK(run.x.allFinite());
    CHECK(run.x.norm() > 1e3);
  };
  check(CashKarp54{});
  check(DormandPrince5{});
  check(DormandPrince5Dense{});
  check(Fehlberg78{});
  check(BulirschStoer{});
}

TEST_CASE("cancelling and the step cap keep where the matrix flow has got to") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  std::atomic<bool> cancel = false;
  SolveOptions<State> options{.t_end = 50, .rtol = 1e-7, .max_step = 0.1, .cancel = &cancel};
  options.on_step = [&](double t, const State&, const SolveStatistics&) { cancel = t >= 1; };
  const auto cancelled = solve(flow, start, options);
  CHECK(cancelled.status == Status::cancelled);
  CHECK_THAT(cancelled.t, WithinAbs(1.05, 0.06));
  check_good(flow, start, cancelled);
  const auto capped = solve(flow, start, {.t_end = 50, .rtol = 1e-7, .max_steps = 3});
  CHECK(capped.status == Status::step_limit);
  CHECK(capped.statistics.steps == 3);
  check_good(flow, start, capped);
}
