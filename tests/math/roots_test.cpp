// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/roots.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

/// The root, and how many evaluations it took.
template <class Scalar>
struct Found {
  Scalar root;
  int calls;
};

template <class Scalar, class Function>
Found<Scalar> find(const Function& function, const Scalar& low, const Scalar& high, const Scalar& start) {
  int calls = 0;
  const auto counted = [&](const Scalar& x) -> ValueAndSlope<Scalar> {
    ++calls;
    REQUIRE(x >= low);  // never outside the bracket
    REQUIRE(x <= high);
    return function(x);
  };
  const Scalar root = increasing_root(counted, low, high, start);
  return {root, calls};
}

template <class Scalar>
void check_root(const Found<Scalar>& found, const Precise& exact, int most_calls) {
  INFO("root " << found.root << " after " << found.calls << " calls, exact " << exact);
  CHECK(abs(Precise(found.root) / exact - 1) < Precise(tolerance<Scalar>(Tol::rounding)));
  CHECK(found.calls <= most_calls);
}

}  // namespace

TEMPLATE_TEST_CASE("Convex and concave functions from either side", "[roots]", float, double, long double, Precise) {
  using std::exp;
  using std::log;
  const Precise convex_root = log(Precise(7)), concave_root = exp(Precise(2));
  const auto convex = [](const TestType& x) -> ValueAndSlope<TestType> { return {exp(x) - 7, exp(x)}; };
  const auto concave = [](const TestType& x) -> ValueAndSlope<TestType> { return {log(x) - 2, 1 / x}; };
  for (const double start : {0.0, 0.1, 1.0, 1.9, 2.0, 5.0, 10.0}) {
    check_root(find<TestType>(convex, 0, 10, TestType(start)), convex_root, 30);
  }
  for (const double start : {0.001, 1.0, 7.0, 8.0, 50.0, 100.0}) {
    check_root(find<TestType>(concave, TestType(0.001), 100, TestType(start)), concave_root, 40);
  }
}

TEMPLATE_TEST_CASE("A start outside the bracket, or none at all", "[roots]", double, Precise) {
  const auto cubic = [](const TestType& x) -> ValueAndSlope<TestType> { return {x * x * x - 2, 3 * x * x}; };
  const TestType infinity = std::numeric_limits<TestType>::infinity();
  for (const TestType& start :
       {TestType(-5), TestType(1000), infinity, TestType(-infinity), std::numeric_limits<TestType>::quiet_NaN()}) {
    check_root(find<TestType>(cubic, TestType(0.5), 30, start), cbrt(Precise(2)), 30);
    check_root(find<TestType>(cubic, TestType(0.5), infinity, start), cbrt(Precise(2)), 60);
  }
}

TEMPLATE_TEST_CASE("A bracket without an upper end", "[roots]", float, double, long double, Precise) {
  const TestType infinity = std::numeric_limits<TestType>::infinity();
  for (const double target : {0.75, 3.0, 1e6, 1e30}) {
    const auto line = [&](const TestType& x) -> ValueAndSlope<TestType> { return {x - TestType(target), 1}; };
    check_root(find<TestType>(line, 0, infinity, 0), Precise(TestType(target)), 5);
    // Slow at first: Newton's step from the start leads nowhere near.
    const auto root = [&](const TestType& x) -> ValueAndSlope<TestType> {
      using std::log;
      return {log((1 + x) / (1 + TestType(target))), 1 / (1 + x)};
    };
    check_root(find<TestType>(root, 0, infinity, 0), Precise(TestType(target)), 150);
  }
}

TEST_CASE("Values that overflow count as above the root", "[roots]") {
  const auto steep = [](double x) -> ValueAndSlope<double> { return {std::exp(x * x) - 5, 2 * x * std::exp(x * x)}; };
  for (const double start : {0.01, 1.0, 40.0, 1e6, 1e300}) {
    check_root(find<double>(steep, 0.001, 1e300, start), sqrt(log(Precise(5))), 120);
  }
  // Not a number far out, and minus infinity at the low end.
  const auto hole = [](double x) -> ValueAndSlope<double> {
    if (x > 50) return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
    return {std::log(x), 1 / x};
  };
  CHECK_THAT(increasing_root(hole, 0.0, 1000.0, 900.0), WithinRel(1.0, 1e-15));
  CHECK_THAT(increasing_root(hole, 0.0, 1000.0, 0.0), WithinRel(1.0, 1e-15));
}

TEST_CASE("A root at an end of the bracket", "[roots]") {
  const auto shifted = [](double x) -> ValueAndSlope<double> { return {std::expm1(x - 2), std::exp(x - 2)}; };
  for (const double start : {2.0, 2.5, 3.0})
    CHECK_THAT(increasing_root(shifted, 2.0, 3.0, start), WithinRel(2.0, 1e-15));
  for (const double start : {1.0, 1.5, 2.0})
    CHECK_THAT(increasing_root(shifted, 1.0, 2.0, start), WithinRel(2.0, 1e-15));
  CHECK(increasing_root(shifted, 2.0, 2.0, 2.0) == 2.0);
  // At zero there is no relative step: it is met exactly, or in the smallest numbers.
  const auto through_zero = [](double x) -> ValueAndSlope<double> { return {std::expm1(x), std::exp(x)}; };
  for (const double start : {0.0, 0.5, 4.0}) CHECK(increasing_root(through_zero, 0.0, 5.0, start) < 1e-300);
}

TEMPLATE_TEST_CASE("Roots of widely different scales in one bracket", "[roots]", double, long double) {
  for (const double exponent : {-290.0, -100.0, -30.0, -3.0, 0.0, 5.0, 60.0, 280.0}) {
    const TestType target = std::pow(TestType(10), TestType(exponent));
    const auto logarithm = [&](const TestType& x) -> ValueAndSlope<TestType> { return {std::log(x / target), 1 / x}; };
    const auto line = [&](const TestType& x) -> ValueAndSlope<TestType> { return {x / target - 1, 1 / target}; };
    INFO("root at 1e" << exponent);
    for (const double low : {0.0, 1e-300}) {
      for (const double start : {1e-295, 1.0, 1e295}) {
        check_root(find<TestType>(logarithm, low, TestType(1e300), TestType(start)), Precise(target), 200);
        check_root(find<TestType>(line, low, TestType(1e300), TestType(start)), Precise(target), 20);
      }
    }
  }
}

TEST_CASE("A root between ends of different sign", "[roots]") {
  for (const double target : {-1e200, -3.0, -1e-200, 1e-200, 1.0, 1e200}) {
    // The step function is as far from Newton's assumptions as can be: bisection alone must find it.
    const auto step = [&](double x) -> ValueAndSlope<double> { return {x < target ? -1.0 : 1.0, 0.0}; };
    INFO(target);
    CHECK_THAT(increasing_root(step, -1e300, 1e300, 0.5), WithinRel(target, 1e-14));
  }
}

TEMPLATE_TEST_CASE("Newton's slow walk down an exponential is cut short", "[roots]", float, double, long double,
                   Precise) {
  using std::exp;
  const auto exponential = [](const TestType& x) -> ValueAndSlope<TestType> { return {exp(x) - 7, exp(x)}; };
  const TestType far = TestType(std::numeric_limits<TestType>::max_exponent > 1000 ? 700 : 85);
  check_root(find<TestType>(exponential, 0, far, far), log(Precise(7)), 45);
  check_root(find<TestType>(exponential, TestType(-far), far, far), log(Precise(7)), 45);
  const auto mirrored = [&](const TestType& x) -> ValueAndSlope<TestType> { return {7 - exp(-x), exp(-x)}; };
  check_root(find<TestType>(mirrored, TestType(-far), 0, TestType(-far)), -log(Precise(7)), 45);
}

TEMPLATE_TEST_CASE("Strong curvature costs no digits", "[roots]", float, double, long double, Precise) {
  using std::exp;
  using std::log;
  const Precise exact = 1 + log(Precise(3)) / Precise(TestType(1e4));
  const auto steep = [](const TestType& x) -> ValueAndSlope<TestType> {
    const TestType power = TestType(1e4) * (x - 1);
    return {exp(power) - 3, TestType(1e4) * exp(power)};
  };
  for (const double start : {1.0, 1.0001, 1.00011, 1.0005}) {
    check_root(find<TestType>(steep, TestType(0.5), 2, TestType(start)), exact, 60);
  }
}

TEST_CASE("Bisection ends where Newton cannot help", "[roots]") {
  // Slope of the wrong size, zero, not a number: only the signs of the values are used.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double slope : {0.0, 1e-300, 1e300, nan}) {
    const auto misleading = [&](double x) -> ValueAndSlope<double> { return {x * x * x - 5, slope}; };
    INFO("slope " << slope);
    if (slope == 1e300) continue;  // a step that changes no digit: taken for convergence, as documented
    CHECK_THAT(increasing_root(misleading, 0.0, 100.0, 50.0), WithinRel(std::cbrt(5.0), 1e-14));
  }
}

TEMPLATE_TEST_CASE("A bracketed root to the last bits", "[roots]", float, double, long double, Precise) {
  using std::cos;
  using std::exp;
  const auto fixed_point = [](const TestType& x) -> TestType { return cos(x) - x; };
  const Precise exact("0.73908513321516064165531208767387340401341175890076");
  const TestType allowed = 4 * std::numeric_limits<TestType>::epsilon();
  CHECK(abs(Precise(bracketed_root<TestType>(fixed_point, 0, 1)) - exact) < Precise(allowed));
  CHECK(abs(Precise(bracketed_root<TestType>(fixed_point, -50, 60)) - exact) < Precise(allowed));
  const auto rising = [](const TestType& x) -> TestType { return x * x * x - 2; };
  CHECK(abs(Precise(bracketed_root<TestType>(rising, -1, 10)) / cbrt(Precise(2)) - 1) < Precise(allowed));
  // A root far below the bracket's size keeps its relative digits.
  const auto tiny = [](const TestType& x) -> TestType { return x - TestType(1e-20); };
  CHECK(abs(Precise(bracketed_root<TestType>(tiny, -1, 1)) / Precise(TestType(1e-20)) - 1) < Precise(allowed));
}

TEST_CASE("A bracketed root at an end", "[roots]") {
  const auto line = [](double x) { return x - 3; };
  CHECK(bracketed_root(line, 3.0, 5.0) == 3.0);
  CHECK(bracketed_root(line, 1.0, 3.0) == 3.0);
  CHECK(bracketed_root(line, 3.0, 3.0) == 3.0);
}

TEST_CASE("A bracket without a sign change is refused", "[roots]") {
  const auto square = [](double x) { return x * x + 1; };
  CHECK_THROWS_WITH(bracketed_root(square, -1.0, 3.0),
                    Contains("bracketed_root") && Contains("f(high) = 10") && Contains("f(low) = 2"));
  CHECK_THROWS_AS(bracketed_root([](double x) { return -x - 10; }, 0.0, 1.0), InvalidArgument);
  const auto nowhere = [](double x) { return x < 0.5 ? -1.0 : std::numeric_limits<double>::quiet_NaN(); };
  CHECK_THROWS_WITH(bracketed_root(nowhere, 0.0, 1.0), Contains("f(high) = nan"));
}
