// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/stop.hpp"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"

using namespace qkflow;
using qkflow_test::Precise;

namespace {

using State = Eigen::VectorXd;
constexpr double pi = std::numbers::pi;

/// x = cos t, y = -sin t
State start() { return (State(2) << 1, 0).finished(); }
constexpr auto circle = [](const auto& x, auto& dxdt, const auto&) {
  dxdt[0] = x[1];
  dxdt[1] = -x[0];
};
double first(double, const State& x) { return x[0]; }

Stop<State> falls(const std::string& name, double value) { return stop_below<State>(name, first, value); }

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

TEST_CASE("a threshold is located inside the step, to the tolerance, in time and state") {
  for_every([](auto method) {
    const auto s = solve(circle, start(), {.t_end = 10, .rtol = 1e-12, .atol = 1e-12, .first_step = 1e-3},
                         {falls("half", 0.5)}, method);
    INFO(name_of(method) << ": " << s.message);
    REQUIRE(s.status == Status::reached_stop);
    CHECK(s.stop == 0u);
    CHECK_THAT(s.message, Contains("'half'"));
    CHECK_THAT(s.t, WithinAbs(pi / 3, 2e-11));
    CHECK_THAT(s.x[0], WithinAbs(0.5, 4e-15));
    CHECK_THAT(s.x[1], WithinAbs(-std::sin(pi / 3), 2e-11));
  });
}

TEST_CASE("long steps locate as well as short ones") {
  // Regression: stopping at the step's end misses the threshold by a step.
  for_every([](auto method) {
    const auto s = solve(circle, start(), {.t_end = 10, .rtol = 1e-9, .atol = 1e-9, .first_step = 0.05},
                         {falls("half", 0.5)}, method);
    INFO(name_of(method));
    CHECK_THAT(s.t, WithinAbs(pi / 3, 1e-7));
    CHECK(s.x[0] <= 0.5);
    CHECK_THAT(s.x[0], WithinAbs(0.5, 1e-14));
  });
}

TEST_CASE("the state reported is on the far side of the threshold, and is the last row") {
  // Regression: users of other solvers find the event missing from the output, or a final state short of the threshold.
  for_every([](auto method) {
    for (int k = 1; k < 40; ++k) {
      const double value = std::cos(0.07 * k);
      const auto s =
          solve(circle, start(), {.t_end = 10, .rtol = 1e-6, .first_step = 0.1, .max_step = 0.5, .save_every = 1},
                {falls("x", value)}, method);
      REQUIRE(s.status == Status::reached_stop);
      REQUIRE(s.x[0] <= value);
      REQUIRE(s.x[0] > value - 1e-13);
      REQUIRE(s.times.back() == s.t);
      REQUIRE(s.states.back() == s.x);
      for (std::size_t row = 1; row < s.times.size(); ++row) REQUIRE(s.times[row] > s.times[row - 1]);
    }
    const auto s = solve(circle, start(), {.t_end = 10, .first_step = 0.1, .save_times = {0.5, 1.0, 2.0}},
                         {falls("half", 0.5)}, method);
    CHECK(s.times.size() == 3);
    CHECK(s.times.back() == s.t);
    CHECK_THAT(s.states[1][0], WithinAbs(std::cos(1.0), 1e-6));
  });
}

TEST_CASE("several conditions met in one step are reported in the order of time") {
  // Regression: the wrong one of several events ends the solve when they fall into one step.
  for_every([](auto method) {
    auto early = falls("early", 0.999), middle = falls("middle", 0.99), late = falls("late", 0.98);
    middle.terminal = early.terminal = false;
    // The list is against the order of time, and one long step covers them all.
    const auto s =
        solve(circle, start(), {.t_end = 10, .rtol = 1e-4, .first_step = 0.3}, {late, middle, early}, method);
    INFO(name_of(method));
    REQUIRE(s.status == Status::reached_stop);
    CHECK(s.stop == 0u);
    REQUIRE(s.events.size() == 2);
    CHECK(s.events[0].stop == 2);
    CHECK(s.events[1].stop == 1);
    CHECK(s.events[0].t < s.events[1].t);
    CHECK(s.events[1].t < s.t);
    CHECK_THAT(s.events[0].x[0], WithinAbs(0.999, 1e-14));
    CHECK_THAT(s.events[0].t, WithinAbs(std::acos(0.999), 1e-4));
    CHECK_THAT(s.t, WithinAbs(std::acos(0.98), 1e-4));

    late.terminal = middle.terminal = early.terminal = true;
    const auto t =
        solve(circle, start(), {.t_end = 10, .rtol = 1e-4, .first_step = 0.3}, {late, middle, early}, method);
    CHECK(t.stop == 2u);
    CHECK(t.events.empty());
  });
}

TEST_CASE("two conditions met at one time: the first of the list ends it") {
  const auto s = solve(circle, start(), {.t_end = 10}, {falls("a", 0.5), falls("b", 0.5)});
  CHECK(s.stop == 0u);
}

TEST_CASE("a condition that holds at the start says so") {
  // Regression: a threshold already passed is never crossed, and a solver that waits for it runs to the end.
  const auto s = solve(circle, start(), {.t_end = 10, .save_every = 1}, {falls("low", 0.5), falls("high", 2.0)});
  CHECK(s.status == Status::already_true);
  CHECK(s.success());
  CHECK(s.stop == 1u);
  CHECK(s.t == 0);
  CHECK(s.x == start());
  CHECK(s.statistics.steps == 0);
  CHECK(s.already_true == std::vector<std::size_t>{1});
  CHECK(s.times == std::vector<double>{0});
  CHECK_THAT(s.message, Contains("'high'") && Contains("already"));

  const Stop<State> predicate{.name = "yes", .predicate = [](double, const State& x) { return x[0] > 0.5; }};
  CHECK(solve(circle, start(), {.t_end = 1}, {predicate}).status == Status::already_true);
  // Exactly on the threshold holds, in either direction and in any.
  for (const Direction direction : {Direction::any, Direction::rising, Direction::falling}) {
    const Stop<State> on{.g = [](double, const State& x) { return x[0] - 1; }, .direction = direction};
    CHECK(solve(circle, start(), {.t_end = 1}, {on}).status == Status::already_true);
  }
}

TEST_CASE("a condition told to wait ends the solve the next time it is met") {
  Stop<State> stop{.g = first, .direction = Direction::rising, .at_start = AtStart::wait};
  const auto s = solve(circle, start(), {.t_end = 10, .rtol = 1e-11}, {stop});
  CHECK(s.status == Status::reached_stop);
  CHECK(s.already_true == std::vector<std::size_t>{0});
  CHECK_THAT(s.t, WithinAbs(1.5 * pi, 1e-9));
  // From exactly on the threshold: leaving it is no crossing.
  stop.g = [](double, const State& x) { return -x[1]; };  // sin t
  const auto wave = solve(circle, start(), {.t_end = 10, .rtol = 1e-11}, {stop});
  CHECK_THAT(wave.t, WithinAbs(2 * pi, 1e-9));
}

TEST_CASE("direction decides which crossings count") {
  const auto crossings = [](Direction direction) {
    const auto s = solve(circle, start(), {.t_end = 10, .rtol = 1e-11, .atol = 1e-11},
                         {{.name = "x", .g = first, .direction = direction, .terminal = false}});
    CHECK(s.status == Status::reached_end);
    std::vector<double> times;
    for (const auto& event : s.events) times.push_back(event.t / (pi / 2));
    return times;
  };
  const auto any = crossings(Direction::any), rising = crossings(Direction::rising),
             falling = crossings(Direction::falling);
  REQUIRE(any.size() == 3);
  REQUIRE(rising.size() == 1);
  REQUIRE(falling.size() == 2);
  for (int k = 0; k < 3; ++k) CHECK_THAT(any[static_cast<std::size_t>(k)], WithinAbs(2 * k + 1, 1e-9));
  CHECK_THAT(rising[0], WithinAbs(3, 1e-9));
  CHECK_THAT(falling[1], WithinAbs(5, 1e-9));
}

TEST_CASE("two crossings inside one step are missed, unless the step is checked inside") {
  // The stated limit: only sign changes between check points are seen. x = cos t dips below -0.98 for 0.4 around pi.
  const std::vector<Stop<State>> dip{falls("dip", -0.98)};
  const auto missed = solve(circle, start(), {.t_end = 6, .first_step = 2}, dip, RungeKutta4{});
  CHECK(missed.status == Status::reached_end);
  for_every([&](auto method) {
    const auto found =
        solve(circle, start(), {.t_end = 6, .rtol = 1e-4, .first_step = 0.5, .max_step = 0.5, .checks_per_step = 10},
              dip, method);
    INFO(name_of(method));
    CHECK(found.status == Status::reached_stop);
    CHECK_THAT(found.t, WithinAbs(std::acos(-0.98), 2e-2));
  });
}

TEST_CASE("checking inside steps finds every crossing once, with the interpolant at no evaluation") {
  const Stop<State> fast{
      .name = "fast", .g = [](double t, const State&) { return std::sin(40 * t + 0.5); }, .terminal = false};
  const int expected = static_cast<int>((40 * 3 + 0.5) / pi);
  for_every([&](auto method) {
    const auto s =
        solve(circle, start(), {.t_end = 3, .rtol = 1e-7, .first_step = 0.01, .max_step = 0.5, .checks_per_step = 40},
              {fast}, method);
    INFO(name_of(method));
    REQUIRE(s.events.size() == static_cast<std::size_t>(expected));
    for (int k = 0; k < expected; ++k) {
      CHECK_THAT(s.events[static_cast<std::size_t>(k)].t, WithinAbs(((k + 1) * pi - 0.5) / 40, 1e-12));
    }
  });
  const Stop<State> never{.name = "never", .g = [](double, const State&) { return 1.0; }};
  const auto plain = solve(circle, start(), {.t_end = 3}, {never}, DormandPrince5Dense{});
  const auto checked = solve(circle, start(), {.t_end = 3, .checks_per_step = 50}, {never}, DormandPrince5Dense{});
  CHECK(plain.statistics.evaluations == checked.statistics.evaluations);
}

TEST_CASE("a predicate is located by bisection and is true where it ends") {
  for_every([](auto method) {
    const Stop<State> stop{.name = "left half", .predicate = [](double, const State& x) { return x[0] < 0.5; }};
    const auto s =
        solve(circle, start(), {.t_end = 10, .rtol = 1e-11, .atol = 1e-11, .first_step = 0.005}, {stop}, method);
    INFO(name_of(method));
    REQUIRE(s.status == Status::reached_stop);
    CHECK(s.x[0] < 0.5);
    CHECK_THAT(s.t, WithinAbs(pi / 3, 1e-9));
  });
}

TEST_CASE("infinite values of g have a sign") {
  const Stop<State> wall{.g = [](double, const State& x) { return x[0] > 0.5 ? 1 / (x[0] - 0.5) : -INFINITY; },
                         .direction = Direction::falling};
  const auto s = solve(circle, start(), {.t_end = 10, .rtol = 1e-11}, {wall});
  CHECK(s.status == Status::reached_stop);
  CHECK_THAT(s.t, WithinAbs(pi / 3, 1e-8));
  CHECK(s.x[0] <= 0.5);
}

TEST_CASE("without an end time only a stop ends it") {
  const auto s = solve(circle, start(), {}, {falls("half", 0.5)});
  CHECK(s.status == Status::reached_stop);
  CHECK_THAT(s.t, WithinAbs(pi / 3, 1e-7));
}

TEST_CASE("recorded crossings do not change the steps or the saved rows") {
  for_every([](auto method) {
    const SolveOptions<State> options{
        .t_end = 10, .rtol = 1e-8, .first_step = 0.05, .save_times = {1.0, 1.55, 1.6, 7.0}};
    const auto plain = solve(circle, start(), options, {}, method);
    const auto recorded = solve(circle, start(), options, {{.name = "x", .g = first, .terminal = false}}, method);
    INFO(name_of(method));
    CHECK(recorded.events.size() == 3);
    CHECK(recorded.x == plain.x);
    CHECK(recorded.times == plain.times);
    CHECK(recorded.statistics.steps == plain.statistics.steps);
    for (std::size_t k = 0; k < plain.states.size(); ++k) {
      CHECK((recorded.states[k] - plain.states[k]).cwiseAbs().maxCoeff() < 1e-6);
    }
  });
}

TEST_CASE("fifty thresholds of one quantity are all recorded in order") {
  std::vector<Stop<State>> stops;
  for (int k = 0; k < 50; ++k) {
    stops.push_back(falls(std::to_string(k), 1 - 0.02 * (k + 1)));
    stops.back().terminal = k == 49;
  }
  for_every([&](auto method) {
    const auto s =
        solve(circle, start(), {.t_end = 10, .rtol = 1e-10, .atol = 1e-10, .first_step = 0.01}, stops, method);
    REQUIRE(s.events.size() == 49);
    CHECK(s.stop == 49u);
    for (std::size_t k = 0; k < 49; ++k) {
      CHECK(s.events[k].stop == k);
      CHECK_THAT(s.events[k].t, WithinAbs(std::acos(1 - 0.02 * (double(k) + 1)), 1e-8));
    }
  });
}

TEMPLATE_TEST_CASE("thresholds are located in every scalar type", "", float, long double, Precise) {
  using Scalar = TestType;
  using Vector = Eigen::Matrix<Scalar, 2, 1>;
  using std::abs;
  using std::acos;
  const Scalar epsilon = std::numeric_limits<Scalar>::epsilon();
  const Scalar rtol = std::is_same_v<Scalar, Precise> ? Scalar(1e-30) : Scalar(64 * epsilon);
  const auto check = [&](auto method) {
    const auto s = solve(circle, Vector(Scalar(1), Scalar(0)), {.t_end = 10, .rtol = rtol, .atol = rtol},
                         {stop_below<Vector>(
                             "half", [](const Scalar&, const Vector& x) { return x[0]; }, Scalar(0.5))},
                         method);
    INFO(name_of(method));
    REQUIRE(s.status == Status::reached_stop);
    CHECK(s.x[0] <= Scalar(0.5));
    CHECK(abs(s.x[0] - Scalar(0.5)) < 40 * epsilon);
    CHECK(abs(s.t - acos(Scalar(0.5))) < 40 * rtol);
  };
  check(Fehlberg78{});
  check(BulirschStoer{});
  if constexpr (!std::is_same_v<Scalar, Precise>) {
    check(CashKarp54{});
    check(DormandPrince5{});
    check(DormandPrince5Dense{});
  }
}
