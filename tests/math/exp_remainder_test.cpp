// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/exp_remainder.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

TEMPLATE_TEST_CASE("e^x - 1 - x to 8 epsilon from tiny to large", "", float, double, long double) {
  using Scalar = TestType;
  for (const int sign : {-1, 1}) {
    for (double power = -15; power < 1.9; power += 0.01) {
      const Scalar x = static_cast<Scalar>(sign * std::pow(10.0, power));
      // A hundred digits would be needed at 1e-15 from the plain difference: the series in 50 digits is the witness.
      Precise exact(0), term(1);
      if (std::abs(x) < 1) {
        for (int k = 1; k < 60; ++k) {
          term *= Precise(x) / k;
          if (k > 1) exact += term;
        }
      } else {
        exact = exp(Precise(x)) - 1 - Precise(x);
      }
      INFO("x = " << x);
      CHECK(static_cast<Scalar>(abs(Precise(exp_remainder(x)) / exact - 1)) < tolerance<Scalar>(Tol::rounding));
    }
  }
}

TEST_CASE("fifty digits on both sides of the switch") {
  for (const char* text : {"0.999", "1.001", "-0.999", "-1.001", "0.25"}) {
    const Precise x(text);
    CHECK(abs(exp_remainder(x) / (exp(x) - 1 - x) - 1) < Precise("1e-47"));
  }
}

TEST_CASE("e^x - 1 - x at the edges") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(exp_remainder(0.0) == 0);
  CHECK(exp_remainder(1000.0) == infinity);
  CHECK(exp_remainder(-1000.0) == 999);
  CHECK(exp_remainder(infinity) == infinity);
  CHECK(std::isnan(exp_remainder(std::nan(""))));
}
