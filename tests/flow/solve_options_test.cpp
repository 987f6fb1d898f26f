// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/solve_options.hpp"

#include <Eigen/Core>
#include <limits>
#include <string>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"

using namespace qkflow;

namespace {

using State = Eigen::VectorXd;
const double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

State one() { return State::Ones(1); }

}  // namespace

TEST_CASE("defaults are within reach of the type") {
  CHECK(SolveOptions<Eigen::VectorXd>{}.rtol == 1e-9);
  CHECK(SolveOptions<Eigen::VectorXf>{}.rtol >= 4 * std::numeric_limits<float>::epsilon());
  CHECK(SolveOptions<Eigen::Matrix<qkflow_test::Precise, 2, 1>>{}.rtol == qkflow_test::Precise(1e-9));
}

TEST_CASE("bad options are refused before the first evaluation, by name and value") {
  int calls = 0;
  const auto field = [&](const State& x, State& dxdt, double) {
    ++calls;
    dxdt = x;
  };
  const auto refuses = [&](SolveOptions<State> options, const std::string& name, State start = one()) {
    INFO(name);
    CHECK_THROWS_AS(solve(field, start, options), InvalidArgument);
    CHECK_THROWS_WITH(solve(field, start, options), Contains("solve: " + name + " = "));
  };
  refuses({.t_end = 1}, "size of start", State(0));
  refuses({.t_end = 1}, "start[0]", State::Constant(1, not_a_number));
  refuses({.t_end = 1}, "start[0]", State::Constant(1, infinity));
  refuses({.t0 = not_a_number, .t_end = 1}, "t0");
  refuses({.t0 = 2, .t_end = 1}, "t_end");
  refuses({.t_end = not_a_number}, "t_end");
  refuses({.t_end = infinity}, "t_end");
  refuses({.t_end = 1, .rtol = -1}, "rtol");
  refuses({.t_end = 1, .rtol = not_a_number}, "rtol");
  refuses({.t_end = 1, .rtol = 1e-17}, "rtol");
  refuses({.t_end = 1, .atol = -1}, "atol");
  refuses({.t_end = 1, .rtol = 0, .atol = 0}, "atol");
  refuses({.t_end = 1, .first_step = -0.1}, "first_step");
  refuses({.t_end = 1, .max_step = 0}, "max_step");
  refuses({.t_end = 1, .max_steps = 0}, "max_steps");
  refuses({.t_end = 1, .max_rejections = 0}, "max_rejections");
  refuses({.t_end = 1, .save_times = {0.5, 0.25}}, "save_times[1]");
  refuses({.t_end = 1, .save_times = {-0.5}}, "save_times[0]");
  refuses({.t_end = 1, .save_times = {2.0}}, "save_times[0]");
  refuses({.t_end = 1, .save_times = {not_a_number}}, "save_times[0]");
  refuses({.t_end = 1, .checks_per_step = 0}, "checks_per_step");
  CHECK_THROWS_WITH(solve(field, one(), {.t_end = 1}, {}, RungeKutta4{}), Contains("first_step = 0"));
  CHECK_THROWS_WITH(solve(field, one(), {.t_end = 1}, {{.name = "empty"}}), Contains("'empty'"));
  CHECK_THROWS_WITH(solve(field, one(), {.t_end = 1},
                          {{.name = "both",
                            .g = [](double, const State&) { return 1.0; },
                            .predicate = [](double, const State&) { return true; }}}),
                    Contains("'both'"));
  CHECK(calls == 0);
}
