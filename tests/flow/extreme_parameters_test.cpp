// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Closed form at extreme parameters against the same templates in 50 digits, on a grid drawn from
//   r 1e-12 .. 1e12,  m, n, b 1 .. 1e9,  M 2 .. 1e9,  loss 1e-300 .. just below (and above) log M,  mu_QK0 -500 .. 500.
// The textbook forms of the first integral are checked in 50 digits in closed_form_test.cpp.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

struct Case {
  double classes, block, informative, noise, ratio, mu_ov0, mu_qk0, loss;
};

/// Draws grid points in a fixed pseudo-random order, so that every value meets every other.
class Grid {
 public:
  explicit Grid(std::uint64_t seed) : state_(seed) {}
  Case next() {
    Case c{};
    c.classes = pick({2, 3, 20, 1e3, 1e9});
    c.block = pick({1, 50, 1e4, 1e9});
    c.informative = pick({1, 5, 1e4, 1e9});
    c.noise = pick({1, 50, 1e4, 1e9});
    c.ratio = pick({1e-12, 1e-6, 1e-3, 1, 10, 1e6, 1e12});
    c.mu_qk0 = pick({0, 0, -1, 1e-6, 3, -20, 20, -500, 500});
    c.mu_ov0 = pick({0, 0, 1e-6, 1, 30, -1e-3, -2});
    const double top = std::log(c.classes);
    c.loss = pick({1e-300, 1e-100, 1e-8, 1e-4, 1e-2, 0.5 * top, 0.9 * top, top * (1 - 1e-4), top * (1 - 1e-9),
                   std::nextafter(top, 0.0), top * 1.0001});
    return c;
  }
  std::uint64_t draw() {  // splitmix64
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  double pick(std::initializer_list<double> values) { return *(values.begin() + draw() % values.size()); }
  std::uint64_t state_;
};

template <class Scalar, class QkRate, class OvRate>
std::optional<std::pair<ReducedPoint<Scalar>, Scalar>> solve_case(const Case& c, bool with_time) {
  ReducedFlow<Scalar, QkRate, OvRate> flow;
  flow.task.classes = c.classes;
  flow.task.block = c.block;
  flow.task.informative = c.informative;
  flow.task.noise = c.noise;
  flow.rates.ov = 1;
  flow.rates.qk = c.ratio;
  try {
    const ClosedForm closed(flow, ReducedState<Scalar>{c.mu_ov0, c.mu_qk0});
    const auto point = closed.at_loss(Scalar(c.loss));
    return std::pair{point, with_time ? closed.log_time_at_output(point.mu_ov) : Scalar(0)};
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

double error(double value, const Precise& exact) {
  if (abs(exact) < std::numeric_limits<double>::min()) return std::abs(value) < 1e-300 ? 0.0 : 1.0;
  return static_cast<double>(abs((Precise(value) - exact) / exact));
}

struct Tally {
  int answered = 0, refused = 0;
};

template <class QkRate, class OvRate>
void check(const Case& c, bool with_time, Tally& tally) {
  const auto fast = solve_case<double, QkRate, OvRate>(c, with_time);
  const auto exact = solve_case<Precise, QkRate, OvRate>(c, with_time);
  REQUIRE(fast.has_value() == exact.has_value());  // both answer, or both refuse
  ++(fast ? tally.answered : tally.refused);
  if (!fast) return;
  const double bound = tolerance<double>(Tol::extreme);
  REQUIRE(std::isfinite(fast->first.mu_ov));
  REQUIRE(std::isfinite(fast->first.mu_qk));
  CHECK(error(fast->first.mu_ov, exact->first.mu_ov) < bound);
  // A score that passes 0 on its way from the start is known to the start's last digits.
  const Precise off = abs(Precise(fast->first.mu_qk) - exact->first.mu_qk);
  CHECK(off <= bound * abs(exact->first.mu_qk) + tolerance<double>(Tol::rounding) * std::abs(c.mu_qk0) + 1e-300);
  CHECK(error(fast->first.alpha, exact->first.alpha) < bound);
  if (with_time) {
    REQUIRE(std::isfinite(fast->second));
    CHECK(static_cast<double>(abs((Precise(fast->second) - exact->second) / (1 + abs(exact->second)))) < bound);
  }
}

void check_any(std::uint64_t parameterization, const Case& c, bool with_time, Tally& tally) {
  INFO("parameterization " << parameterization << ", M " << c.classes << ", b " << c.block << ", m " << c.informative
                           << ", n " << c.noise << ", r " << c.ratio << ", start " << c.mu_ov0 << ", " << c.mu_qk0
                           << ", loss " << c.loss);
  switch (parameterization) {
    case 0:
      return check<Collapsed, Collapsed>(c, with_time, tally);
    case 1:
      return check<Collapsed, Balanced>(c, with_time, tally);
    case 2:
      return check<Balanced, Collapsed>(c, with_time, tally);
    default:
      return check<Balanced, Balanced>(c, with_time, tally);
  }
}

}  // namespace

TEST_CASE("States at extreme parameters are right to 1e-11 against 50 digits", "[extreme]") {
  Grid grid(20261130);
  Tally tally;
  for (int k = 0; k < 1600; ++k) {
    const std::uint64_t parameterization = grid.draw() % 4;
    check_any(parameterization, grid.next(), false, tally);
  }
  // The grid holds losses above the start's and saddles; most of it must be answered for the test to mean something.
  CHECK(tally.answered > 600);
  CHECK(tally.refused > 100);
}

TEST_CASE("Times at extreme parameters are right to 1e-11 against 50 digits", "[extreme]") {
  Grid grid(7);
  Tally tally;
  while (tally.answered < 8) {
    const std::uint64_t parameterization = grid.draw() % 4;
    check_any(parameterization, grid.next(), true, tally);
  }
}

TEST_CASE("States at extreme parameters are monotone in the loss and in the ratio", "[extreme]") {
  Grid grid(99);
  int compared = 0;
  for (int k = 0; k < 400; ++k) {
    Case c = grid.next();
    if (c.mu_ov0 < 0) continue;
    INFO("M " << c.classes << ", b " << c.block << ", m " << c.informative << ", n " << c.noise << ", r " << c.ratio
              << ", start " << c.mu_ov0 << ", " << c.mu_qk0);
    double last_ov = -1, last_alpha = -1;
    for (double loss : {0.5 * std::log(c.classes), 1e-2, 1e-6, 1e-30, 1e-150, 1e-300}) {
      c.loss = loss;
      const auto point = solve_case<double, Collapsed, Collapsed>(c, false);
      if (!point) continue;
      ++compared;
      CHECK(point->first.mu_ov >= last_ov);
      CHECK(point->first.alpha >= last_alpha);
      last_ov = point->first.mu_ov;
      last_alpha = point->first.alpha;
    }
    c.loss = 1e-3;
    last_alpha = -1;
    for (double ratio = 1e-12; ratio < 2e12; ratio *= 1e3) {
      c.ratio = ratio;
      const auto point = solve_case<double, Collapsed, Collapsed>(c, false);
      if (!point) continue;
      CHECK(point->first.alpha >= last_alpha * (1 - 1e-15));
      last_alpha = point->first.alpha;
    }
  }
  CHECK(compared > 500);
}
