// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
// Steps after the first allocate no state: million-entry states depend on it.
#include <stdexcept>

// Eigen can forbid itself to allocate; here it says so whatever NDEBUG is.
#define EIGEN_RUNTIME_NO_MALLOC
#define eigen_assert(condition) \
  if (!(condition)) throw std::runtime_error("Eigen: " #condition)

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"

using namespace qkflow;
using State = Eigen::VectorXd;

namespace {

template <class Method>
void check(Method method) {
  const auto field = [](const State& x, State& dxdt, double t) { dxdt = (1 + t) * x.cwiseInverse(); };
  SolveOptions<State> options{.t_end = 5, .rtol = 1e-7, .first_step = 0.05};
  options.on_step = [&](double, const State&, const SolveStatistics&) {
    Eigen::internal::set_is_malloc_allowed(false);
  };
  const State start = State::Constant(1000, 1);
  const Stop<State> stop{.name = "far", .g = [](double, const State& x) { return x[0] - 100; }};
  const auto s = solve(field, start, options, {stop}, method);
  Eigen::internal::set_is_malloc_allowed(true);
  INFO(Method::name << ": " << s.message);
  CHECK(s.status == Status::reached_end);
  CHECK(s.statistics.steps > 2);
}

}  // namespace

TEST_CASE("steps after the first allocate no state") {
  check(RungeKutta4{});
  check(CashKarp54{});
  check(DormandPrince5{});
  check(DormandPrince5Dense{});
  check(Fehlberg78{});
  check(BulirschStoer{});
}

TEST_CASE("the guard itself works") {
  Eigen::internal::set_is_malloc_allowed(false);
  CHECK_THROWS(State(State::Ones(10)));
  Eigen::internal::set_is_malloc_allowed(true);
}
