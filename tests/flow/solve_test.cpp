// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/solve.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;

namespace {

template <class Scalar>
using Dynamic = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
using State = Dynamic<double>;

template <class Vector>
Vector make(std::initializer_list<typename Vector::Scalar> values) {
  Vector x(static_cast<Eigen::Index>(values.size()));
  Eigen::Index i = 0;
  for (const auto& value : values) x[i++] = value;
  return x;
}

/// The circle x'' = -x: (cos t, -sin t) from (1, 0).
constexpr auto circle = [](const auto& x, auto& dxdt, const auto&) {
  dxdt[0] = x[1];
  dxdt[1] = -x[0];
};
constexpr auto grow = [](const auto& x, auto& dxdt, const auto&) { dxdt = x; };

template <class Vector, class Scalar = typename Vector::Scalar>
Scalar circle_error(const Vector& x, const Scalar& t) {
  using std::abs;
  using std::cos;
  using std::sin;
  const Scalar a = abs(x[0] - cos(t)), b = abs(x[1] + sin(t));
  return a > b ? a : b;
}

template <class Visitor>
void for_adaptive(Visitor&& visit) {
  visit(CashKarp54{});
  visit(DormandPrince5{});
  visit(DormandPrince5Dense{});
  visit(Fehlberg78{});
  visit(BulirschStoer{});
}
template <class Visitor>
void for_every(Visitor&& visit) {
  visit(RungeKutta4{});
  for_adaptive(visit);
}
std::string name_of(auto method) { return std::string(decltype(method)::name); }

}  // namespace

TEST_CASE("every adaptive method keeps near its tolerance, and a tighter one costs more") {
  for_adaptive([](auto method) {
    std::size_t last_evaluations = 0;
    for (const double rtol : {1e-4, 1e-6, 1e-8, 1e-10, 1e-12}) {
      const auto s = solve(circle, make<State>({1, 0}), {.t_end = 10, .rtol = rtol, .atol = rtol}, {}, method);
      INFO(name_of(method) << " rtol " << rtol << " " << s.message);
      REQUIRE(s.status == Status::reached_end);
      CHECK(s.t == 10);
      CHECK(circle_error(s.x, 10.0) < 60 * rtol);
      CHECK(s.statistics.evaluations > last_evaluations);
      CHECK(s.statistics.steps > 0);
      last_evaluations = s.statistics.evaluations;
    }
  });
}

TEST_CASE("fixed and dynamic size take the same steps") {
  for_every([](auto method) {
    const auto a = solve(circle, make<State>({1, 0}), {.t_end = 3, .rtol = 1e-8, .first_step = 0.01}, {}, method);
    const auto b = solve(circle, Eigen::Vector2d(1, 0), {.t_end = 3, .rtol = 1e-8, .first_step = 0.01}, {}, method);
    INFO(name_of(method));
    CHECK(a.statistics.steps == b.statistics.steps);
    CHECK((a.x - b.x).cwiseAbs().maxCoeff() <= 1e-14);
  });
}

TEMPLATE_TEST_CASE("the solver works in every scalar type", "", float, double, long double, Precise) {
  using Scalar = TestType;
  using std::sqrt;
  const Scalar epsilon = std::numeric_limits<Scalar>::epsilon();
  // 50 digits at a tolerance that high order reaches in a few hundred steps.
  const Scalar rtol = std::is_same_v<Scalar, Precise> ? Scalar(1e-30) : Scalar(64 * epsilon);
  SolveOptions<Dynamic<Scalar>> options{.t_end = 2, .rtol = rtol, .atol = rtol};
  const auto check = [&](auto method) {
    const auto s = solve(circle, make<Dynamic<Scalar>>({Scalar(1), Scalar(0)}), options, {}, method);
    INFO(name_of(method) << " " << s.message);
    REQUIRE(s.status == Status::reached_end);
    CHECK(s.t == Scalar(2));
    CHECK(circle_error(s.x, Scalar(2)) < 40 * rtol);
  };
  check(Fehlberg78{});
  check(BulirschStoer{});
  if constexpr (!std::is_same_v<Scalar, Precise>) {
    check(CashKarp54{});
    check(DormandPrince5{});
    check(DormandPrince5Dense{});
  } else {
    options.rtol = options.atol = Scalar(1e-18);  // fifth order: fewer digits
    const auto s = solve(circle, make<Dynamic<Scalar>>({Scalar(1), Scalar(0)}), options, {}, DormandPrince5{});
    CHECK(circle_error(s.x, Scalar(2)) < Scalar(1e-16));
  }
  options.first_step = Scalar(1) / Scalar(64);
  const auto s = solve(circle, make<Dynamic<Scalar>>({Scalar(1), Scalar(0)}), options, {}, RungeKutta4{});
  CHECK(s.t == Scalar(2));
  CHECK(s.statistics.steps == 128);
  CHECK(circle_error(s.x, Scalar(2)) < Scalar(2e-8) + Scalar(128) * epsilon);
}

TEST_CASE("the end time is met exactly, never overrun and never missed") {
  // Regression for three of Odeint's habits: dense-output integration hangs near some end times,
  // integrate_const(0, 1, 0.3) ends at 0.9, and observers at t_end are off by rounding.
  for_every([](auto method) {
    int late_evaluations = 0;
    double t_end = 1;
    const auto field = [&](const State& x, State& dxdt, double t) {
      late_evaluations += t > t_end * (1 + 1e-15);
      circle(x, dxdt, t);
    };
    for (int k = 0; k < 300; ++k) {  // end times without pattern
      t_end = 0.5 + std::fmod(k * 0.6180339887498949, 1.0);
      const auto s = solve(field, make<State>({1, 0}), {.t_end = t_end, .rtol = 1e-6, .first_step = 0.1}, {}, method);
      REQUIRE(s.status == Status::reached_end);
      REQUIRE(s.t == t_end);
      REQUIRE(s.statistics.steps < 200);
    }
    CHECK(late_evaluations == 0);
    const auto s = solve(circle, make<State>({1, 0}), {.t_end = 1, .rtol = 1e-6, .first_step = 0.3}, {}, method);
    CHECK(s.t == 1);
  });
  const auto s =
      solve(circle, make<State>({1, 0}), {.t_end = 1, .first_step = 0.3, .save_every = 1}, {}, RungeKutta4{});
  CHECK(s.times == std::vector<double>{0, 0.3, 0.6, 3 * 0.3, 1});
}

TEST_CASE("fixed steps are multiples of the step and end without a sliver") {
  const auto s = solve(circle, make<State>({1, 0}), {.t_end = 1, .first_step = 0.1}, {}, RungeKutta4{});
  CHECK(s.statistics.steps == 10);  // summed up, ten steps of 0.1 end below 1
  const auto longer = solve(circle, make<State>({1, 0}), {.t_end = 1000, .first_step = 0.01}, {}, RungeKutta4{});
  CHECK(longer.statistics.steps == 100000);
  CHECK(longer.t == 1000);
}

TEST_CASE("an end time equal to the start time takes no step") {
  const auto s = solve(circle, make<State>({1, 0}), {.t0 = 2, .t_end = 2, .save_times = {2.0}});
  CHECK(s.status == Status::reached_end);
  CHECK(s.statistics.steps == 0);
  CHECK(s.x == make<State>({1, 0}));
  REQUIRE(s.times.size() == 1);
}

TEST_CASE("times up to 1e12 are reached from a first step of 1e-3") {
  const auto slow = [](const auto& x, auto& dxdt, const auto&) { dxdt[0] = std::exp(-x[0]); };  // x = log(1 + t)
  for_adaptive([&](auto method) {
    const auto s = solve(slow, make<State>({0}), {.t_end = 1e12, .rtol = 1e-10, .first_step = 1e-3}, {}, method);
    INFO(name_of(method) << " " << s.message);
    REQUIRE(s.status == Status::reached_end);
    CHECK_THAT(s.x[0], WithinRel(std::log1p(1e12), 1e-8));
    CHECK(s.statistics.steps < 2000);
  });
}

TEST_CASE("save times are exact and do not change the steps") {
  std::vector<double> times;
  for (int k = 0; k <= 100; ++k) times.push_back(0.05 * k);
  for_every([&](auto method) {
    const SolveOptions<State> plain{.t_end = 5, .rtol = 1e-9, .atol = 1e-9, .first_step = 0.02};
    SolveOptions<State> saving = plain;
    saving.save_times = times;
    const auto a = solve(circle, make<State>({1, 0}), plain, {}, method);
    const auto b = solve(circle, make<State>({1, 0}), saving, {}, method);
    INFO(name_of(method));
    CHECK(a.times.empty());
    CHECK(a.x == b.x);
    CHECK(a.statistics.steps == b.statistics.steps);
    CHECK(a.statistics.rejections == b.statistics.rejections);
    REQUIRE(b.times == times);
    double worst = 0;
    for (std::size_t k = 0; k < times.size(); ++k) worst = std::max(worst, circle_error(b.states[k], times[k]));
    CHECK(worst < 100 * 1e-9);
    if (decltype(method)::dense) {
      CHECK(a.statistics.evaluations == b.statistics.evaluations);
      CHECK(b.statistics.resteps == 0);
    }
  });
}

TEST_CASE("every k-th step is saved, the start first and the end last") {
  const auto s =
      solve(circle, make<State>({1, 0}), {.t_end = 1, .first_step = 0.0625, .save_every = 6}, {}, RungeKutta4{});
  CHECK(s.times == std::vector<double>{0, 0.375, 0.75, 1});
  CHECK(s.states.size() == 4);
  CHECK(s.states.front() == make<State>({1, 0}));
  CHECK(s.states.back() == s.x);
  const auto open = solve(circle, make<State>({1, 0}), {.t_end = 1, .save_times = {0.25, 0.5}, .save_end = false}, {});
  CHECK(open.times == std::vector<double>{0.25, 0.5});
  const auto closed = solve(circle, make<State>({1, 0}), {.t_end = 1, .save_times = {0.25, 0.5}}, {});
  CHECK(closed.times == std::vector<double>{0.25, 0.5, 1});
}

TEST_CASE("the step callback sees every accepted step") {
  std::size_t calls = 0;
  double last = 0;
  SolveOptions<State> options{.t_end = 3};
  options.on_step = [&](double t, const State& x, const SolveStatistics& statistics) {
    ++calls;
    CHECK(t > last);
    CHECK(statistics.steps == calls);
    CHECK(circle_error(x, t) < 1e-7);
    last = t;
  };
  const auto s = solve(circle, make<State>({1, 0}), options);
  CHECK(calls == s.statistics.steps);
  CHECK(last == 3);
}

TEST_CASE("no step is longer than max_step") {
  for_every([](auto method) {
    double last = 0, longest = 0;
    SolveOptions<State> options{.t_end = 3, .rtol = 1e-3, .first_step = 0.5, .max_step = 0.125};
    options.on_step = [&](double t, const State&, const SolveStatistics&) {
      longest = std::max(longest, t - last);
      last = t;
    };
    solve(circle, make<State>({1, 0}), options, {}, method);
    INFO(name_of(method));
    CHECK(longest <= 0.125 * (1 + 1e-12));
    CHECK(longest > 0.06);
  });
}

TEST_CASE("evaluations are counted one by one") {
  std::size_t calls = 0;
  const auto counting = [&](const State& x, State& dxdt, double t) {
    ++calls;
    circle(x, dxdt, t);
  };
  for_every([&](auto method) {
    calls = 0;
    const auto s = solve(counting, make<State>({1, 0}), {.t_end = 3, .first_step = 0.1, .save_times = {1.0, 2.0}},
                         {stop_below<State>(
                             "x", [](double, const State& x) { return x[0]; }, -0.5)},
                         method);
    INFO(name_of(method));
    CHECK(s.statistics.evaluations == calls);
  });
  const auto s = solve(counting, make<State>({1, 0}), {.t_end = 1, .first_step = 0.1}, {}, RungeKutta4{});
  CHECK(s.statistics.evaluations == 40);
}

TEST_CASE("a refused step costs no second evaluation at its start") {
  // From a far too long first step: refused attempts reuse the velocity, and Dormand-Prince its last stage.
  const auto s = solve(circle, make<State>({1, 0}), {.t_end = 1, .rtol = 1e-10, .first_step = 1}, {}, DormandPrince5{});
  CHECK(s.statistics.rejections > 0);
  CHECK(s.statistics.evaluations == 1 + 6 * (s.statistics.steps + s.statistics.rejections));
}

TEST_CASE("a field may be mutable, const, or a plain function") {
  struct Counter {
    int calls = 0;
    void operator()(const State& x, State& dxdt, double) {
      ++calls;
      dxdt = x;
    }
  } counter;
  CHECK(solve(counter, make<State>({1}), {.t_end = 1}).success());
  CHECK(counter.calls > 0);
  const auto lambda = [](const State& x, State& dxdt, double) { dxdt = x; };
  CHECK(solve(lambda, make<State>({1}), {.t_end = 1}).success());
  void (*function)(const State&, State&, const double&) = [](const State& x, State& dxdt, const double&) { dxdt = x; };
  CHECK(solve(function, make<State>({1}), {.t_end = 1}).success());
}

TEST_CASE("options and conditions can be used again, also for a longer state") {
  // Regression: a Dormand-Prince stepper of Odeint reused for a larger state advances only the old components.
  const SolveOptions<State> options{.t_end = 1, .rtol = 1e-10, .atol = 1e-10};
  const auto small = solve(grow, State(State::Ones(2)), options);
  const auto large = solve(grow, State(State::Ones(1000)), options);
  CHECK_THAT(small.x.minCoeff(), WithinRel(std::exp(1.0), 1e-9));
  CHECK_THAT(large.x.minCoeff(), WithinRel(std::exp(1.0), 1e-9));
  CHECK_THAT(large.x.maxCoeff(), WithinRel(std::exp(1.0), 1e-9));
}

TEST_CASE("a million entries take the same steps as two") {
  SolveOptions<State> options{.t_end = 1, .rtol = 1e-8};
  const auto small = solve(grow, State(State::Ones(2)), options);
  const auto large = solve(grow, State(State::Ones(1'000'000)), options);
  CHECK(large.statistics.steps == small.statistics.steps);
  CHECK(large.x.minCoeff() == small.x[0]);
  CHECK(large.times.empty());
}

TEST_CASE("a component that stays at zero is no error at atol 0") {
  const auto s = solve(grow, make<State>({1, 0}), {.t_end = 1, .rtol = 1e-9, .atol = 0});
  CHECK(s.status == Status::reached_end);
  CHECK(s.x[1] == 0);
}

TEST_CASE("an equilibrium is left in a few steps") {
  for_adaptive([](auto method) {
    const auto s = solve(grow, make<State>({0, 0}), {.t_end = 1e6}, {}, method);
    CHECK(s.status == Status::reached_end);
    CHECK(s.statistics.steps < 60);
  });
}
