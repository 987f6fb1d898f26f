// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/wright_omega.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using qkflow::exponential_displacement;
using qkflow::wright_omega;
using qkflow_test::Precise;

namespace {

// An independent 50-digit omega: bisection, then Newton, on v + e^v = x with v = log(w), a form the library never uses.
Precise omega_by_newton(const Precise& x) {
  Precise low = x > 1 ? Precise(0) : Precise(x - 1), high = x > 1 ? Precise(log(x)) : x;
  for (int i = 0; i < 60; ++i) {
    const Precise v = (low + high) / 2;
    (v + exp(v) < x ? low : high) = v;
  }
  Precise v = (low + high) / 2;
  for (int i = 0; i < 12; ++i) v -= (v + exp(v) - x) / (1 + exp(v));
  return exp(v);
}

template <class Scalar>
Scalar relative_error(const Scalar& value, const Precise& exact) {
  return static_cast<Scalar>(abs((Precise(value) - exact) / exact));
}

}  // namespace

TEMPLATE_TEST_CASE("Wright omega is within 4 ulp of 50 digits over the whole real line", "[wright_omega]", float,
                   double, long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  const TestType lowest = std::log(std::numeric_limits<TestType>::min()) * TestType(0.99);
  TestType worst = 0;
  auto check = [&](TestType x) {
    worst = std::max(worst, relative_error(wright_omega(x), omega_by_newton(Precise(x))) / epsilon);
  };
  for (int i = 0; i <= 400; ++i) {
    check(lowest * TestType(i) / 400);
    check(TestType(-30) + TestType(i) * TestType(0.15));
    check(std::pow(TestType(10), TestType(i) * std::numeric_limits<TestType>::max_exponent10 / 401));
    check(TestType(1) + std::ldexp(TestType(1), -i % 60));
  }
  INFO("worst error in ulp: " << worst);
  CHECK(worst < 4);
}

TEST_CASE("Wright omega of 50 digits satisfies its equation", "[wright_omega]") {
  for (const char* text : {"-1000", "-30.5", "-1", "0", "0.999", "1", "4", "17", "1e5", "1e40", "1e1000"}) {
    const Precise x(text);
    const Precise w = wright_omega(x);
    INFO(text);
    // w e^w = e^x in logarithms: the residual of log w + w - x, on the scale of its terms.
    CHECK(abs(log(w) + w - x) < Precise(1e-48) * (1 + abs(x)));
  }
}

TEST_CASE("Wright omega at its edges", "[wright_omega]") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(wright_omega(-infinity) == 0.0);
  CHECK(wright_omega(infinity) == infinity);
  CHECK(std::isnan(wright_omega(std::numeric_limits<double>::quiet_NaN())));
  CHECK(wright_omega(1.0) == 1.0);
  CHECK(wright_omega(std::numeric_limits<double>::max()) == std::numeric_limits<double>::max());
  CHECK(wright_omega(-1e300) == 0.0);
}

TEMPLATE_TEST_CASE("Exponential displacement solves A (e^d - 1) + d = K to a few ulp", "[wright_omega]", float, double,
                   long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  const bool narrow = std::numeric_limits<TestType>::max_exponent10 < 100;
  TestType worst = 0;
  for (int log_weight = narrow ? -30 : -230; log_weight <= (narrow ? 30 : 230); log_weight += narrow ? 5 : 23) {
    for (int log_rise = narrow ? -30 : -250; log_rise <= (narrow ? 30 : 250); log_rise += narrow ? 3 : 10) {
      for (int sign : {-1, 1}) {
        const TestType weight = std::pow(TestType(10), TestType(log_weight));
        const TestType rise = TestType(sign) * std::pow(TestType(10), TestType(log_rise));
        const TestType d = exponential_displacement(weight, rise);
        if (std::abs(d) < std::numeric_limits<TestType>::min()) continue;  // a subnormal has fewer digits to give
        // Condition-free check: one exact Newton step in 50 digits from d tells its distance from the root.
        const Precise a(weight), x(d);
        const Precise step = (a * expm1(x) + x - Precise(rise)) / (a * exp(x) + 1);
        const auto error = static_cast<TestType>(abs(step / x));
        INFO("A = " << weight << ", K = " << rise << ", d = " << d << ", error in ulp " << error / epsilon);
        CHECK(error < 6 * epsilon);
        worst = std::max(worst, error / epsilon);
      }
    }
  }
  INFO("worst " << worst);
  CHECK(worst < 6);
}

TEST_CASE("Exponential displacement refuses bad input", "[wright_omega]") {
  CHECK_THROWS_WITH(exponential_displacement(-1.0, 1.0), Contains("weight") && Contains("-1"));
  CHECK_THROWS_WITH(exponential_displacement(1.0, std::numeric_limits<double>::infinity()),
                    Contains("rise") && Contains("inf"));
  CHECK(exponential_displacement(0.0, 2.5) == 2.5);
  CHECK(exponential_displacement(3.0, 0.0) == 0.0);
}
