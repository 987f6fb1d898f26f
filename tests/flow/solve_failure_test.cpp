// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
// What `solve` does when it cannot go on: a status, a message, the last good state - and never an exception.
#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

using State = Eigen::VectorXd;
const double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

State one() { return State::Ones(1); }
constexpr auto grow = [](const State& x, State& dxdt, double) { dxdt = x; };

template <class Visitor>
void for_every(Visitor&& visit) {
  visit(RungeKutta4{});
  visit(CashKarp54{});
  visit(DormandPrince5{});
  visit(DormandPrince5Dense{});
  visit(Fehlberg78{});
  visit(BulirschStoer{});
}
std::string name_of(auto method) { return std::string(decltype(method)::name); }

}  // namespace

TEST_CASE("a field that is NaN from some time on is never accepted") {
  // Regression: Odeint's error test takes NaN for an accepted step, and an Eigen state then sticks at one time.
  const auto breaks = [](const State& x, State& dxdt, double t) { dxdt[0] = t < 0.5 ? x[0] : not_a_number; };
  for_every([&](auto method) {
    const auto s = solve(breaks, one(), {.t_end = 1, .rtol = 1e-8, .first_step = 0.01, .save_every = 1}, {}, method);
    INFO(name_of(method) << ": " << s.message);
    CHECK(s.status == Status::non_finite);
    CHECK(!s.success());
    CHECK(s.t <= 0.5);
    CHECK(s.t > 0.45);
    CHECK_THAT(s.x[0], WithinRel(std::exp(s.t), 1e-6));
    CHECK(s.times.back() == s.t);
    for (const State& x : s.states) CHECK(std::isfinite(x[0]));
    CHECK_THAT(s.message, Contains("finite") && Contains("t = "));
  });
}

TEST_CASE("a velocity that is not finite at the start is reported there") {
  for (const double bad : {not_a_number, infinity, -infinity}) {
    const auto field = [&](const State&, State& dxdt, double) { dxdt[0] = bad; };
    for_every([&](auto method) {
      const auto s = solve(field, one(), {.t_end = 1, .first_step = 0.1}, {}, method);
      CHECK(s.status == Status::non_finite);
      CHECK(s.t == 0);
      CHECK(s.x == one());
      CHECK(s.statistics.steps == 0);
    });
  }
}

TEST_CASE("a blow-up ends near its pole with the last finite state") {
  const auto square = [](const State& x, State& dxdt, double) { dxdt[0] = x[0] * x[0]; };  // x = 1 / (1 - t)
  for_every([&](auto method) {
    const auto s = solve(square, one(), {.t_end = 2, .rtol = 1e-8, .first_step = 1e-3}, {}, method);
    INFO(name_of(method) << ": " << s.message);
    CHECK(!s.success());
    CHECK(std::isfinite(s.x[0]));
    CHECK(s.x[0] > 100);
    CHECK(s.t > 0.99);
    CHECK(s.t < 1.02);  // a fixed step jumps over the pole before it overflows
    CHECK(s.statistics.steps < 10000);
  });
}

TEST_CASE("a step that no longer moves t is an underflow") {
  // At t = 1e17 numbers are 16 apart; the solution asks for steps of a hundredth.
  const auto fast = [](const State& x, State& dxdt, double) { dxdt[0] = -100 * x[0]; };
  for_every([&](auto method) {
    const auto s = solve(fast, one(), {.t0 = 1e17, .t_end = 2e17, .first_step = 1e-3}, {}, method);
    INFO(name_of(method) << ": " << s.message);
    CHECK(s.status == Status::step_underflow);
    CHECK(s.t == 1e17);
    CHECK(s.x == one());
  });
  const auto s = solve(fast, one(), {.t_end = 1, .rtol = 0, .atol = 1e-40, .first_step = 0.1}, {}, DormandPrince5{});
  CHECK(!s.success());
  CHECK(std::isfinite(s.x[0]));
}

TEST_CASE("the step cap ends it with what was reached") {
  for_every([](auto method) {
    const auto s = solve(grow, one(), {.t_end = 1e9, .first_step = 1e-3, .max_step = 1e-3, .max_steps = 7}, {}, method);
    CHECK(s.status == Status::step_limit);
    CHECK(s.statistics.steps == 7);
    CHECK_THAT(s.t, WithinRel(7e-3, 1e-12));
    CHECK_THAT(s.x[0], WithinRel(std::exp(s.t), 1e-9));
    CHECK_THAT(s.message, Contains("max_steps = 7"));
  });
}

TEST_CASE("refusals of one step are capped") {
  const auto s = solve(grow, one(), {.t_end = 1e6, .rtol = 1e-10, .first_step = 1e6, .max_rejections = 3}, {});
  CHECK(s.status == Status::too_many_rejections);
  CHECK(s.statistics.rejections == 4);
  CHECK(s.t == 0);
  CHECK_THAT(s.message, Contains("max_rejections = 3"));
}

TEST_CASE("what the field throws is kept") {
  const auto throws = [](const State& x, State& dxdt, double t) {
    if (t > 0.3) throw std::domain_error("no data beyond 0.3");
    dxdt = x;
  };
  for_every([&](auto method) {
    const auto s = solve(throws, one(), {.t_end = 1, .first_step = 0.01, .save_every = 1}, {}, method);
    INFO(name_of(method));
    CHECK(s.status == Status::threw);
    CHECK_THAT(s.message, Contains("the field threw: no data beyond 0.3"));
    CHECK(s.t <= 0.3);
    CHECK_THAT(s.x[0], WithinRel(std::exp(s.t), 1e-6));
    CHECK(s.times.back() == s.t);
  });
  const auto odd = [](const State&, State&, double) { throw 42; };
  const auto s = solve(odd, one(), {.t_end = 1});
  CHECK(s.status == Status::threw);
  CHECK(s.x == one());
}

TEST_CASE("what a condition or the step callback throws is kept") {
  const Stop<State> predicate{.name = "mood", .predicate = [](double t, const State&) -> bool {
                                if (t > 0.5) throw std::runtime_error("no idea");
                                return false;
                              }};
  const Stop<State> function{.name = "size", .g = [](double t, const State&) -> double {
                               if (t > 0.5) throw std::runtime_error("no idea");
                               return 1;
                             }};
  for (const auto& stop : {predicate, function}) {
    const auto s = solve(grow, one(), {.t_end = 1}, {stop});
    CHECK(s.status == Status::threw);
    CHECK_THAT(s.message, Contains("stop condition '" + stop.name + "' threw: no idea"));
    CHECK_THAT(s.x[0], WithinRel(std::exp(s.t), 1e-6));
  }
  const auto s = solve(grow, one(), {.t_end = 1, .on_step = [](double, const State&, const SolveStatistics&) {
                                       throw std::runtime_error("screen gone");
                                     }});
  CHECK(s.status == Status::threw);
  CHECK_THAT(s.message, Contains("on_step threw: screen gone"));
}

TEST_CASE("a condition that is NaN is reported, not passed over") {
  const auto s = solve(grow, one(), {.t_end = 1},
                       {{.name = "log", .g = [](double t, const State&) { return t > 0.5 ? std::log(-1.0) : -1.0; }}});
  CHECK(s.status == Status::non_finite);
  CHECK_THAT(s.message, Contains("'log' is not a number"));
}

TEST_CASE("the cancellation flag ends it at the next step") {
  std::atomic<bool> cancel{false};
  SolveOptions<State> options{.t_end = 100, .max_step = 0.1, .cancel = &cancel};
  options.on_step = [&](double, const State&, const SolveStatistics& statistics) {
    if (statistics.steps == 5) cancel = true;
  };
  const auto s = solve(grow, one(), options);
  CHECK(s.status == Status::cancelled);
  CHECK(s.statistics.steps == 5);
  CHECK_THAT(s.x[0], WithinRel(std::exp(s.t), 1e-8));
  const auto before = solve(grow, one(), options);
  CHECK(before.status == Status::cancelled);
  CHECK(before.t == 0);
  CHECK(before.statistics.evaluations == 0);
}
