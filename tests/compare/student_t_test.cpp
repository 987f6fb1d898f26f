// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/student_t.hpp"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <cstddef>
#include <limits>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("Student's t against Boost.Math", "[student_t]") {
  for (const std::size_t nu : {1, 2, 3, 4, 5, 10, 29, 30, 101, 1000, 4999}) {
    const boost::math::students_t exact(static_cast<double>(nu));
    for (const double t : {0.0, 0.3, 1.0, 1.96, 4.5, 30.0}) {
      INFO("nu " << nu << " t " << t);
      CHECK_THAT(student_t_probability(t, nu), WithinAbs(1 - 2 * boost::math::cdf(complement(exact, t)), 2e-13));
    }
    for (const double confidence : {0.01, 0.5, 0.9, 0.95, 0.99, 0.9999}) {
      INFO("nu " << nu << " confidence " << confidence);
      CHECK_THAT(student_t_factor(confidence, nu),
                 WithinRel(boost::math::quantile(complement(exact, (1 - confidence) / 2)), 1e-8));
    }
  }
}

TEST_CASE("textbook values, and the normal distribution in the end", "[student_t]") {
  CHECK_THAT(student_t_factor(0.95, 1), WithinAbs(12.706204736, 1e-8));
  CHECK_THAT(student_t_factor(0.95, 4), WithinAbs(2.776445105, 1e-8));
  CHECK_THAT(student_t_factor(0.95, 10000), WithinAbs(1.959963985, 3e-4));
  CHECK_THAT(student_t_probability(1e-8, 1), WithinRel(2e-8 / 3.14159265358979, 1e-12));
  CHECK(student_t_probability(std::numeric_limits<double>::infinity(), 7) == 1);
}

TEST_CASE("what is no distribution is refused", "[student_t]") {
  CHECK_THROWS_WITH(student_t_probability(1, 0), Contains("student_t_probability: degrees = 0"));
  CHECK_THROWS_WITH(student_t_probability(-1, 1), Contains("t = -1"));
  CHECK_THROWS_WITH(student_t_factor(0.95, 0), Contains("student_t_factor: degrees = 0"));
  CHECK_THROWS_WITH(student_t_factor(1, 3), Contains("confidence = 1"));
  CHECK_THROWS_WITH(student_t_factor(std::nan(""), 3), Contains("confidence = nan"));
}
