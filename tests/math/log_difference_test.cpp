// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/log_difference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "qkflow/flow/reduced_flow.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

template <class Scalar>
Scalar relative_error(const Scalar& value, const Precise& exact) {
  if (exact == 0) return value == Scalar(0) ? Scalar(0) : std::numeric_limits<Scalar>::infinity();
  return static_cast<Scalar>(abs((Precise(value) - exact) / exact));
}

/// y itself and neighbours at every distance from one ulp up.
template <class Scalar>
std::vector<Scalar> around(Scalar y) {
  std::vector<Scalar> values{y};
  for (const Scalar toward : {Scalar(-1e9), Scalar(1e9)}) {
    Scalar next = y;
    for (int i = 0; i < 4; ++i) values.push_back(next = std::nextafter(next, toward));
    for (Scalar distance = 4 * std::numeric_limits<Scalar>::epsilon(); distance < 1; distance *= Scalar(7)) {
      values.push_back(toward > 0 ? y + distance : y - distance);
    }
  }
  return values;
}

/// z = log((M-1) / (e^L - 1)) written down.
Precise gap_written_down(const Precise& classes, const Precise& loss) { return log((classes - 1) / expm1(loss)); }

}  // namespace

TEMPLATE_TEST_CASE("The difference of a logarithm and a number close to it keeps its digits", "[log_difference]", float,
                   double, long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  // y, the logarithm itself rounded, may by chance have many more digits right than it shows: then even the double
  // words end, at epsilon^2 of y.
  for (const double exact_a : {1.25,    2.0,     2.718281828459045, 3.0, 4.0, 10.0, 17.3, 100.0, 1000.0, 1e4,
                               10955.0, 17888.0, 123456.789,        1e6, 1e9, 1e15, 0.75, 0.1,   1e-9,   1e-15}) {
    const TestType a = static_cast<TestType>(exact_a);
    for (const TestType y : around(TestType(std::log(a)))) {
      const Precise exact = log(Precise(a)) - Precise(y);
      const Precise error = abs(Precise(log_difference(a, y)) - exact);
      INFO("a = " << a << ", y = " << y << ", difference " << exact << ", error " << error);
      CHECK(error <= 4 * Precise(epsilon) * abs(exact) + 2 * Precise(epsilon) * Precise(epsilon) * abs(Precise(y)));
    }
  }
}

TEST_CASE("The difference of a logarithm and a number far from it is the plain one", "[log_difference]") {
  CHECK(log_difference(1.0, 0.0) == 0.0);
  CHECK(log_difference(1.0, 5.0) == -5.0);
  CHECK_THAT(log_difference(10.0, -30.0), WithinRel(std::log(10.0) + 30, 1e-15));
  CHECK_THAT(log_difference(1e300, 690.0), WithinRel(static_cast<double>(log(Precise(1e300)) - 690), 1e-13));
  CHECK(log_difference(Precise(3), Precise(1)) == log(Precise(3)) - 1);
}

TEMPLATE_TEST_CASE("The exponential in double words has twice the digits", "[log_difference]", float, double,
                   long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  for (int i = 0; i <= 1300; ++i) {
    const TestType x = TestType(i) / TestType(32.6);
    const auto word = detail::exp_double_word(x);
    const Precise error = (Precise(word.high) + Precise(word.low)) / exp(Precise(x)) - 1;
    INFO("x = " << x << ", error " << error);
    CHECK(abs(error) < 40 * Precise(epsilon) * Precise(epsilon));
    CHECK(word.high == word.high + word.low);
  }
}

TEMPLATE_TEST_CASE("The gap at a loss against 50 digits, from the tiniest loss through log M to the largest",
                   "[log_difference]", float, double, long double) {
  using limits = std::numeric_limits<TestType>;
  for (const double m : {2.0, 2.5, 3.0, 4.0, 20.0, 1000.0, 10955.0, 1e6, 1e9}) {
    const TestType classes = static_cast<TestType>(m);
    std::vector<TestType> losses = around(TestType(std::log(classes)));
    for (int i = 0; i <= 120; ++i) {
      losses.push_back(std::pow(TestType(10), TestType(limits::min_exponent10) * TestType(120 - i) / 120));
      losses.push_back(TestType(i) / 12 + TestType(0.003));
      losses.push_back(std::pow(TestType(10), TestType(i) / 40));
    }
    for (const TestType loss : losses) {
      if (!(loss > 0)) continue;
      const TestType gap = logit_gap_at_loss(classes, loss);
      const Precise exact = gap_written_down(Precise(classes), Precise(loss));
      const Precise error = abs(Precise(gap) - exact);
      const Precise epsilon(limits::epsilon());
      INFO("M = " << m << ", loss = " << loss << ", gap = " << gap << ", error " << error / abs(exact) / epsilon
                  << " epsilon");
      // Outside |log M - loss| < 1/4 the logarithms are subtracted plainly; inside, see log_difference.
      CHECK(error <= 60 * epsilon * abs(exact) + 4 * epsilon * epsilon * Precise(loss));
    }
  }
}

TEST_CASE("The gap at a loss in 50 digits", "[log_difference]") {
  for (const char* classes : {"2", "20", "1e6"}) {
    for (const char* loss : {"1e-300", "1e-40", "0.001", "0.5", "0.7", "1", "2.9957", "3", "13.8", "50", "1000"}) {
      const Precise gap = logit_gap_at_loss(Precise(classes), Precise(loss));
      INFO(classes << ", " << loss);
      CHECK(abs(log1p((Precise(classes) - 1) * exp(-gap)) / Precise(loss) - 1) <
            tolerance<Precise>(Tol::rounding) * (1 + abs(gap)));
    }
  }
}

TEMPLATE_TEST_CASE("The gap at a loss has that loss", "[log_difference]", float, double, long double, Precise) {
  using std::abs;
  using std::log;
  for (const double m : {2.0, 3.0, 20.0, 1e4}) {
    const ReducedFlow<TestType> flow{.task = {.classes = TestType(m)}};
    for (const double l : {1e-30, 1e-8, 1e-3, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 9.2, 30.0, 700.0}) {
      const TestType loss = TestType(l);
      const TestType gap = logit_gap_at_loss(flow.task.classes, loss);
      // The loss cannot know more than the gap: below log M an error in z is an error in log(loss).
      const TestType allowed = tolerance<TestType>(Tol::rounding) * (1 + abs(gap) / 2);
      INFO("M = " << m << ", loss = " << l << ", gap = " << gap);
      CHECK(abs(flow.loss_at_gap(gap) / loss - 1) <= allowed);
    }
    CHECK(abs(logit_gap_at_loss(flow.task.classes, flow.loss_at_gap(TestType(0)))) <=
          4 * std::numeric_limits<TestType>::epsilon() * log(TestType(m)));
  }
}

TEST_CASE("The gap falls with the loss, without a jump at the seams", "[log_difference]") {
  for (const double classes : {2.0, 3.0, 20.0, 1e6}) {
    const double middle = std::log(classes);
    for (const double seam : {middle - 0.25, middle, middle + 0.25, 1.0}) {
      if (!(seam > 0)) continue;
      double loss = seam;
      for (int i = 0; i < 50; ++i) loss = std::nextafter(loss, 0.0);
      double before = logit_gap_at_loss(classes, loss);
      for (int i = 0; i < 20; ++i) {
        loss *= 1 + 1e-13;
        const double gap = logit_gap_at_loss(classes, loss);
        INFO("M = " << classes << ", loss = " << loss);
        CHECK(gap < before);
        before = gap;
      }
    }
  }
}

TEST_CASE("The gap at a loss refuses what is no loss", "[log_difference]") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(logit_gap_at_loss(1.5, 1.0), Contains("logit_gap_at_loss") && Contains("classes = 1.5"));
  CHECK_THROWS_WITH(logit_gap_at_loss(infinity, 1.0), Contains("classes = inf"));
  CHECK_THROWS_WITH(logit_gap_at_loss(nan, 1.0), Contains("classes = nan"));
  for (const double loss : {0.0, -1.0, infinity, nan}) {
    CHECK_THROWS_WITH(logit_gap_at_loss(20.0, loss), Contains("loss = " + to_text(loss)));
  }
}
