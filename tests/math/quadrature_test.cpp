// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/quadrature.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

/// sum_k (k + 1) c_k x^k with c_k = 1 - k / 7: coefficients of both signs, antiderivative sum_k c_k x^{k+1}.
template <class Scalar>
Scalar polynomial(const Scalar& x, int degree) {
  Scalar sum(0);
  for (int k = degree; k >= 0; --k) sum = sum * x + Scalar(k + 1) * (Scalar(1) - Scalar(k) / 7);
  return sum;
}
template <class Scalar>
Scalar antiderivative(const Scalar& x, int degree) {
  Scalar sum(0);
  for (int k = degree; k >= 0; --k) sum = (sum + (Scalar(1) - Scalar(k) / 7)) * x;
  return sum;
}

}  // namespace

TEMPLATE_TEST_CASE("A panel is exact for polynomials of twice its points less one", "[quadrature]", float, double,
                   long double, Precise) {
  using std::abs;
  const int exact_degree = std::numeric_limits<TestType>::digits <= 64 ? 29 : 59;
  for (int degree = 0; degree <= exact_degree; ++degree) {
    for (const double from : {-1.0, 0.0, 0.5}) {
      const TestType a = TestType(from), b = TestType(1);
      const TestType integral =
          integrate_panel<TestType>([&](const TestType& x) { return polynomial(x, degree); }, a, b);
      const Precise exact = antiderivative(Precise(1), degree) - antiderivative(Precise(from), degree);
      // Terms of both signs: errors count on the scale of the sum of their sizes.
      Precise size(1);
      for (int k = 0; k <= degree; ++k) size += abs(1 - Precise(k) / 7);
      INFO("degree " << degree << " from " << from);
      CHECK(abs(Precise(integral) - exact) < Precise(tolerance<TestType>(Tol::rounding)) * size);
    }
  }
  // Not exact for one more: the test above can fail. The error is the integral of the squared Legendre polynomial.
  if constexpr (std::is_same_v<TestType, Precise>) {
    const auto power = [](const Precise& x) -> Precise { return pow(x, 60); };
    CHECK(abs(integrate_panel<Precise>(power, Precise(-1), Precise(1)) - Precise(2) / 61) > Precise(1e-40));
  }
}

TEMPLATE_TEST_CASE("A panel is exact for exponentials over its e-foldings", "[quadrature]", float, double, long double,
                   Precise) {
  using std::abs;
  using std::exp;
  const TestType width = static_cast<TestType>(panel_variation<TestType>());
  const TestType allowed = tolerance<TestType>(Tol::rounding);
  for (const double from : {-80.0, -3.0, -0.5, 0.0, 1.0, 40.0}) {
    const TestType a = TestType(from);
    const Precise exact = exp(Precise(from)) * expm1(Precise(width));
    const auto rising = [](const TestType& x) -> TestType { return exp(x); };
    CHECK(static_cast<TestType>(abs(Precise(integrate_panel<TestType>(rising, a, TestType(a + width))) / exact - 1)) <
          allowed * (1 + abs(a) / 8));
    const auto falling = [](const TestType& x) -> TestType { return exp(-x); };
    const Precise mirrored = integrate_panel<TestType>(falling, TestType(-a - width), TestType(-a));
    CHECK(static_cast<TestType>(abs(mirrored / exact - 1)) < allowed * (1 + abs(a) / 8));
  }
}

TEMPLATE_TEST_CASE("A panel survives a product of an exponential and a pole a panel away", "[quadrature]", double,
                   long double) {
  // int_0^1 e^x / (x + 1) dx = (Ei(2) - Ei(1)) / e, here from the 30-point rule on two halves in 50 digits.
  const auto integrand = [](const auto& x) {
    using Number = std::decay_t<decltype(x)>;
    using std::exp;
    return Number(exp(x) / (x + Number(1)));
  };
  Precise exact(0);
  for (int part = 0; part < 8; ++part) {
    exact += integrate_panel<Precise>(integrand, Precise(part) / 8, Precise(part + 1) / 8);
  }
  const Precise integral = integrate_panel<TestType>(integrand, TestType(0), TestType(1));
  CHECK(static_cast<TestType>(abs(integral / exact - 1)) < tolerance<TestType>(Tol::rounding));
}

TEST_CASE("A panel of length zero, reversed, or of something that is no number", "[quadrature]") {
  const auto exponential = [](double x) { return std::exp(x); };
  CHECK(integrate_panel(exponential, 1.0, 1.0) == 0.0);
  CHECK_THAT(integrate_panel(exponential, 1.0, 0.0),
             WithinRel(-integrate_panel(exponential, 0.0, 1.0), tolerance<double>(Tol::rounding)));
  const auto nowhere = [](double) { return std::numeric_limits<double>::quiet_NaN(); };
  CHECK(std::isnan(integrate_panel(nowhere, 0.0, 1.0)));
  const auto overflowing = [](double x) { return std::exp(800 * x); };
  CHECK(std::isinf(integrate_panel(overflowing, 0.0, 1.0)));
}

TEST_CASE("Panels add up", "[quadrature]") {
  const auto wave = [](double x) { return std::sin(x) + 2; };
  double sum = 0;
  for (int i = 0; i < 20; ++i) sum += integrate_panel(wave, i * 0.5, (i + 1) * 0.5);
  CHECK_THAT(sum, WithinRel(21 - std::cos(10.0), tolerance<double>(Tol::rounding)));
}
