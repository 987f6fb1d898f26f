// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/descend.hpp"

#include <Eigen/Core>
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "qkflow/flow/reduced_flow.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {
using State = Eigen::VectorXd;
using Plane = Eigen::Vector2d;

/// dx/dt = -x: a step multiplies by 1 - h.
const auto decay = [](const auto& x, auto& dxdt, const auto&) { dxdt = -x; };
State ones(Eigen::Index n) { return State::Ones(n); }
}  // namespace

TEST_CASE("gradient descent is Euler's method, rows and times where asked", "[descend]") {
  const auto run = descend(decay, ones(3), {.step = 0.25, .steps = 10, .save_every = 4});
  CHECK(run.status == DescentStatus::finished);
  CHECK(run.success());
  CHECK(run.steps == 10);
  CHECK(run.t == 2.5);
  CHECK(run.x == State(ones(3) * std::pow(0.75, 10)));
  CHECK(run.saved_steps == std::vector<std::size_t>{0, 4, 8, 10});
  CHECK(run.times == std::vector<double>{0, 1, 2, 2.5});
  REQUIRE(run.states.size() == 4);
  CHECK(run.states[0] == ones(3));
  CHECK_THAT(run.states[1][2], WithinRel(std::pow(0.75, 4), 1e-15));
  CHECK(run.states[3] == run.x);
  CHECK(run.losses.empty());
  CHECK_THAT(run.message, Contains("10 steps"));
}

TEST_CASE("rows at chosen steps, losses, no last row", "[descend]") {
  int evaluations = 0;
  DescentOptions<State> options{.step = 0.5, .steps = 6, .save_steps = {0, 1, 1, 5}, .save_end = false};
  options.loss = [&](const State& x) {
    ++evaluations;
    return x.squaredNorm();
  };
  std::vector<std::size_t> visited;
  options.on_step = [&](std::size_t k, const State&) { visited.push_back(k); };
  const auto run = descend(decay, ones(1), options);
  CHECK(run.saved_steps == std::vector<std::size_t>{0, 1, 5});
  CHECK(run.losses == std::vector<double>{1, 0.25, std::pow(0.25, 5)});
  CHECK(evaluations == 3);
  CHECK(visited == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6});
  options.save_steps.clear();
  CHECK(descend(decay, ones(1), options).states.empty());
  options.save_every = 1;
  options.steps = 0;
  CHECK(descend(decay, ones(1), options).saved_steps == std::vector<std::size_t>{0});
}

TEST_CASE("the field sees the time h k; fixed-size states and other scalars", "[descend]") {
  const auto clock = [](const auto& x, auto& dxdt, const auto& t) {
    dxdt = x;
    dxdt.setConstant(t);
  };
  CHECK(descend(clock, Plane(0, 1), {.step = 0.5, .steps = 4}).x == Plane(1.5, 2.5));  // 0.5 (0 + 0.5 + 1 + 1.5)
  const Eigen::Matrix<float, 2, 1> start(1.F, 2.F);
  CHECK(descend(decay, start, {.step = 0.5F, .steps = 2}).x == Eigen::Matrix<float, 2, 1>(0.25F, 0.5F));
  const Caco<long double> flow;
  const auto run = descend(flow, Eigen::Matrix<long double, 2, 1>(0, 0), {.step = 1, .steps = 1});
  CHECK(run.x[0] == flow.output_velocity(0, 0));
}

TEST_CASE("a rule with memory begins anew with every run; a lambda is a rule", "[descend]") {
  const HeavyBall rule{.beta = 0.5};
  const auto once = descend(decay, ones(2), {.step = 0.1, .steps = 20}, rule);
  CHECK(descend(decay, ones(2), {.step = 0.1, .steps = 20}, rule).x == once.x);
  const auto half = [](State& theta, const State& velocity, const double& h) { theta += h / 2 * velocity; };
  CHECK(descend(decay, ones(2), {.step = 1.0, .steps = 1}, half).x == State(ones(2) / 2));
}

TEST_CASE("what goes wrong is a status, with the last good state", "[descend]") {
  SECTION("blow-up") {
    // |1 - h| = 2: doubling, with changing sign.
    const auto run = descend(decay, ones(1), {.step = 3, .steps = 100, .save_every = 1, .largest_state = 1000});
    CHECK(run.status == DescentStatus::blew_up);
    CHECK_FALSE(run.success());
    CHECK(run.steps == 10);
    CHECK(run.x[0] == 1024);
    CHECK(run.states.back() == run.x);
    CHECK_THAT(run.message, Contains("above 1000") && Contains("10 steps"));
  }
  SECTION("overflow") {
    const auto run = descend(decay, ones(1), {.step = 3, .steps = 5000, .save_every = 1000});
    CHECK(run.status == DescentStatus::non_finite);
    CHECK(run.steps == 1023);
    CHECK(run.x.allFinite());
    CHECK(run.saved_steps.back() == 1023);
  }
  SECTION("a NaN velocity") {
    const auto field = [](const State& x, State& dxdt, double t) {
      dxdt = t < 0.9 ? x : State(x * std::numeric_limits<double>::quiet_NaN());
    };
    const auto run = descend(field, ones(2), {.step = 0.5, .steps = 9});
    CHECK(run.status == DescentStatus::non_finite);
    CHECK(run.steps == 2);
    CHECK(run.x[0] == 2.25);
  }
  SECTION("an exception, also from a callback and one that is no std::exception") {
    const auto field = [](const State& x, State& dxdt, double t) {
      if (t > 0.9) throw std::runtime_error("no more");
      dxdt = x;
    };
    const auto run = descend(field, ones(2), {.step = 0.5, .steps = 9, .save_every = 100});
    CHECK(run.status == DescentStatus::threw);
    CHECK_THAT(run.message, Contains("no more") && Contains("2 steps"));
    CHECK(run.states.back() == run.x);
    DescentOptions<State> options{.step = 1, .steps = 3};
    options.on_step = [](std::size_t, const State&) { throw 1; };
    CHECK(descend(decay, ones(1), options).status == DescentStatus::threw);
    options.on_step = {};
    options.save_every = 1;
    options.loss = [](const State&) -> double { throw std::runtime_error("no loss"); };
    const auto no_loss = descend(decay, ones(1), options);
    CHECK(no_loss.status == DescentStatus::threw);
    CHECK(no_loss.states.empty());
  }
  SECTION("a velocity of another size") {
    const auto field = [](const State&, State& dxdt, double) { dxdt = State::Zero(1); };
    CHECK(descend(field, ones(2), {.step = 1, .steps = 3}).status == DescentStatus::threw);
  }
  SECTION("cancelled, stopped") {
    std::atomic<bool> flag{false};
    DescentOptions<State> options{.step = 0.5, .steps = 9, .cancel = &flag};
    options.on_step = [&](std::size_t k, const State&) { flag = k == 3; };
    const auto run = descend(decay, ones(1), options);
    CHECK(run.status == DescentStatus::cancelled);
    CHECK(run.steps == 3);
    options.cancel = nullptr;
    options.stop = [](std::size_t, const State& x) { return x[0] < 0.1; };
    const auto stopped = descend(decay, ones(1), options);
    CHECK(stopped.status == DescentStatus::stopped);
    CHECK(stopped.success());
    CHECK(stopped.steps == 4);
  }
}

TEST_CASE("options without sense are refused before anything is evaluated", "[descend]") {
  const auto never = [](const State&, State&, double) { FAIL("evaluated"); };
  CHECK_THROWS_WITH(descend(never, ones(1), {.steps = 1}), Contains("descend: step = 0,"));
  CHECK_THROWS_WITH(descend(never, ones(1), {.step = -1, .steps = 1}), Contains("step = -1"));
  CHECK_THROWS_WITH(descend(never, State(), {.step = 1, .steps = 1}), Contains("size of start = 0"));
  State bad = ones(2);
  bad[1] = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(descend(never, bad, {.step = 1, .steps = 1}), Contains("start[1] = inf"));
  CHECK_THROWS_WITH(descend(never, ones(1), {.step = 1, .steps = 3, .save_steps = {2, 1}}),
                    Contains("save_steps[1] = 1"));
  CHECK_THROWS_WITH(descend(never, ones(1), {.step = 1, .steps = 3, .save_steps = {4}}), Contains("save_steps[0] = 4"));
  CHECK_THROWS_WITH(descend(never, ones(1), {.step = 1, .steps = 3, .largest_state = 0}),
                    Contains("largest_state = 0"));
  CHECK_THROWS_WITH(descend(never, ones(1), {.step = 1, .steps = 3}, HeavyBall{.beta = 2}), Contains("beta = 2"));
  CHECK(to_string(DescentStatus::blew_up) == "blew up");
}
