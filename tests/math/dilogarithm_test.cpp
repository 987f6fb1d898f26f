// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/dilogarithm.hpp"

#include <boost/math/quadrature/tanh_sinh.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

/// Points of both signs over the whole line, denser where the formula changes.
std::vector<double> points() {
  std::vector<double> xs{0.5, std::nextafter(0.5, 1), -1, std::nextafter(-1.0, -2), 1, std::nextafter(1.0, 0)};
  for (int k = -300; k <= 300; k += 7) xs.push_back(-std::pow(10.0, k));
  for (int k = -300; k < 0; k += 7) xs.push_back(std::pow(10.0, k));
  for (int k = 1; k < 100; ++k) xs.push_back(-3 + 0.04 * k);
  return xs;
}

}  // namespace

TEST_CASE("known values, in fifty digits") {
  const Precise pi = boost::math::constants::pi<Precise>(), ln2 = boost::math::constants::ln_two<Precise>();
  const Precise tiny("1e-48");
  CHECK(dilogarithm(Precise(0)) == 0);
  CHECK(abs(dilogarithm(Precise(1)) - pi * pi / 6) < tiny);
  CHECK(abs(dilogarithm(Precise(-1)) + pi * pi / 12) < tiny);
  CHECK(abs(dilogarithm(Precise(1) / 2) - (pi * pi / 12 - ln2 * ln2 / 2)) < tiny);
  // The golden ratio has closed values, too.
  const Precise golden = (sqrt(Precise(5)) - 1) / 2;
  CHECK(abs(dilogarithm(golden) - (pi * pi / 10 - log(golden) * log(golden))) < tiny);
  CHECK(abs(dilogarithm(Precise(-1 / golden)) - (-pi * pi / 10 - log(golden) * log(golden))) < tiny);
}

TEST_CASE("fifty digits agree with the integral and with the power series") {
  boost::math::quadrature::tanh_sinh<Precise> quadrature;
  for (const char* text : {"-25", "-3.7", "-1.01", "-0.99", "-0.3", "0.2", "0.49", "0.51", "0.9"}) {
    const Precise x(text);
    // Shifted by 1: the rule wants ends that are not 0.
    const auto integrand = [&](const Precise& v) { return v == 1 ? x : Precise(-log1p(-x * (v - 1)) / (v - 1)); };
    const Precise integral = quadrature.integrate(integrand, Precise(1), Precise(2));
    CHECK(abs(dilogarithm(x) / integral - 1) < Precise("1e-45"));
  }
  for (const char* text : {"-0.4", "-1e-3", "1e-20", "0.3", "0.45"}) {
    const Precise x(text);
    Precise sum(0), power(1);
    for (int k = 1; k < 200; ++k) {
      power *= x;
      sum += power / (k * k);
    }
    CHECK(abs(dilogarithm(x) / sum - 1) < Precise("1e-48"));
  }
}

TEMPLATE_TEST_CASE("every scalar type agrees with fifty digits to 8 epsilon", "", float, double, long double) {
  using Scalar = TestType;
  for (const double point : points()) {
    const Scalar x = static_cast<Scalar>(point);
    if (!(std::abs(x) >= std::numeric_limits<Scalar>::min()) || !std::isfinite(x)) continue;
    const Precise exact = dilogarithm(Precise(x));
    const Precise error = abs(Precise(dilogarithm(x)) / exact - 1);
    INFO("x = " << point);
    CHECK(static_cast<Scalar>(error) < tolerance<Scalar>(Tol::rounding));
  }
}

TEST_CASE("the duplication formula holds") {
  for (double x = 0.01; x < 1; x += 0.01) {
    CHECK_THAT(dilogarithm(x) + dilogarithm(-x), WithinAbs(dilogarithm(x * x) / 2, 1e-15));
  }
}

TEST_CASE("the dilogarithm at the edges") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(dilogarithm(-infinity) == -infinity);
  CHECK(std::isnan(dilogarithm(std::nan(""))));
  CHECK(dilogarithm(5e-324) == 5e-324);
  CHECK(std::isfinite(dilogarithm(std::numeric_limits<double>::lowest())));
  CHECK_THROWS_AS(dilogarithm(1.5), InvalidArgument);
  CHECK_THROWS_WITH(dilogarithm(1.5), Contains("x = 1.5"));
}
