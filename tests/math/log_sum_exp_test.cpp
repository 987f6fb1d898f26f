// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/log_sum_exp.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <boost/multiprecision/eigen.hpp>
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

template <class Scalar>
using VectorX = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

template <class Scalar>
constexpr Scalar infinity() {
  return std::numeric_limits<Scalar>::infinity();
}

/// True where e^x has all its digits in Scalar.
template <class Scalar>
bool normal_exp(const Scalar& x) {
  using std::log;
  return x > log(std::numeric_limits<Scalar>::min()) + Scalar(1);
}

/// log(sum e^{x_i}) in the exponent range of 50-digit numbers, without taking anything out.
template <class Scalar>
Precise precise_log_sum_exp(const VectorX<Scalar>& x) {
  Precise sum(0);
  for (const Scalar& value : x) sum += exp(Precise(value));
  return log(sum);
}

/// Vectors of every kind a score can be: alike, spread, far up, far down, mixed; awkward lengths.
template <class Scalar>
std::vector<VectorX<Scalar>> sample_vectors() {
  std::vector<VectorX<Scalar>> vectors;
  for (const int size : {1, 2, 3, 7, 17, 64, 101}) {
    for (const double center : {0.0, 1e4, -1e4, 37.5, -1e-8}) {
      for (const double spread : {0.0, 1e-6, 1.0, 40.0, 1e4}) {
        VectorX<Scalar> x(size);
        for (int i = 0; i < size; ++i) {
          x[i] = static_cast<Scalar>(center + spread * std::sin(1.0 + 7.3 * i * i));
        }
        vectors.push_back(x);
      }
    }
  }
  return vectors;
}

}  // namespace

TEMPLATE_TEST_CASE("Softplus is within 2 ulp of 50 digits", "[log_sum_exp]", float, double, long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  const auto lowest = std::log(std::numeric_limits<TestType>::min()) + TestType(1);
  TestType worst = 0;
  const auto check = [&](TestType x) {
    const Precise exact = x > 100 ? Precise(Precise(x) + exp(-Precise(x))) : Precise(log1p(exp(Precise(x))));
    worst = std::max(worst, static_cast<TestType>(abs(Precise(softplus(x)) / exact - 1)) / epsilon);
  };
  for (int i = 0; i <= 600; ++i) {
    check(lowest * TestType(i) / 600);
    check(TestType(i - 300) / 11);
    check(TestType(i) * 40);
    check(std::ldexp(TestType(i % 2 ? 1 : -1), -i / 12));
  }
  INFO("worst error in ulp: " << worst);
  CHECK(worst < 2);
}

TEMPLATE_TEST_CASE("Softplus at its edges", "[log_sum_exp]", float, double, long double, Precise) {
  using std::isnan;
  using std::log;
  CHECK(softplus(TestType(infinity<TestType>())) == infinity<TestType>());
  CHECK(softplus(TestType(-infinity<TestType>())) == 0);
  CHECK(softplus(std::numeric_limits<TestType>::max()) == std::numeric_limits<TestType>::max());
  CHECK(softplus(std::numeric_limits<TestType>::lowest()) == 0);
  CHECK(softplus(TestType(0)) == log(TestType(2)));
  CHECK(isnan(softplus(std::numeric_limits<TestType>::quiet_NaN())));
}

TEMPLATE_TEST_CASE("The logarithm of a sum of two exponentials", "[log_sum_exp]", float, double, long double) {
  for (const double a : {0.0, 1.0, -2.5, 30.0, -80.0, 1e4, -1e4, 1e-9}) {
    for (const double b : {0.0, 1.0, -2.75, 31.0, -79.0, 1e4, -1e4, -3e-7, 0.5}) {
      const TestType x = static_cast<TestType>(a), y = static_cast<TestType>(b);
      const Precise exact = log(exp(Precise(x)) + exp(Precise(y)));
      INFO(a << " and " << b);
      const TestType scale = std::max({std::abs(x), std::abs(y), TestType(1)});
      CHECK(static_cast<TestType>(abs(Precise(log_add_exp(x, y)) - exact)) <=
            2 * std::numeric_limits<TestType>::epsilon() * scale);
      CHECK(log_add_exp(x, y) == log_add_exp(y, x));
    }
  }
}

TEMPLATE_TEST_CASE("Sums of two exponentials at their edges", "[log_sum_exp]", float, double, long double, Precise) {
  using std::isnan;
  using std::log;
  const TestType inf = infinity<TestType>(), nan = std::numeric_limits<TestType>::quiet_NaN();
  const TestType huge = std::numeric_limits<TestType>::max();
  CHECK(log_add_exp(TestType(-inf), TestType(-inf)) == -inf);
  CHECK(log_add_exp(TestType(-inf), TestType(-3.5)) == TestType(-3.5));
  CHECK(log_add_exp(TestType(2), TestType(-inf)) == TestType(2));
  CHECK(log_add_exp(inf, TestType(-inf)) == inf);
  CHECK(log_add_exp(inf, inf) == inf);
  CHECK(log_add_exp(inf, TestType(1)) == inf);
  CHECK(log_add_exp(huge, TestType(-huge)) == huge);
  CHECK(log_add_exp(huge, huge) == huge);
  CHECK(log_add_exp(TestType(0), TestType(0)) == log(TestType(2)));
  for (const TestType& other : {TestType(0), inf, TestType(-inf)}) {
    CHECK(isnan(log_add_exp(nan, other)));
    CHECK(isnan(log_add_exp(other, nan)));
  }
}

TEMPLATE_TEST_CASE("The logarithm of a sum of exponentials against 50 digits", "[log_sum_exp]", float, double,
                   long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  for (const VectorX<TestType>& x : sample_vectors<TestType>()) {
    // Rounding of the largest entry cannot be undone, and n terms are added.
    const TestType allowed = epsilon * (x.cwiseAbs().maxCoeff() + TestType(4) + TestType(x.size()));
    INFO(x.transpose());
    CHECK(static_cast<TestType>(abs(Precise(log_sum_exp(x)) - precise_log_sum_exp(x))) <= allowed);
  }
}

TEMPLATE_TEST_CASE("The logarithm of a sum of exponentials at its edges", "[log_sum_exp]", float, double, long double,
                   Precise) {
  using std::abs;
  using std::isnan;
  using std::log;
  const TestType inf = infinity<TestType>(), nan = std::numeric_limits<TestType>::quiet_NaN();
  const TestType huge = std::numeric_limits<TestType>::max();
  CHECK(log_sum_exp(VectorX<TestType>(0)) == -inf);
  CHECK(log_sum_exp(VectorX<TestType>(VectorX<TestType>::Constant(5, TestType(-inf)))) == -inf);
  CHECK(log_sum_exp(VectorX<TestType>(VectorX<TestType>::Constant(4, huge))) == huge);
  CHECK(log_sum_exp(VectorX<TestType>(VectorX<TestType>::Constant(4, TestType(-huge)))) == -huge);

  VectorX<TestType> x(4);
  x << huge, TestType(-huge), TestType(0), TestType(-inf);
  CHECK(log_sum_exp(x) == huge);
  x << TestType(-inf), TestType(1), TestType(1), TestType(-inf);  // a mask changes nothing for the others
  CHECK(abs(log_sum_exp(x) - (TestType(1) + log(TestType(2)))) <= tolerance<TestType>(Tol::rounding));
  x << TestType(-inf), inf, TestType(1), TestType(2);
  CHECK(log_sum_exp(x) == inf);
  for (int position = 0; position < 4; ++position) {  // no order of NaN and infinity hides the NaN
    x << TestType(-inf), inf, TestType(-inf), TestType(2);
    x[position] = nan;
    CHECK(isnan(log_sum_exp(x)));
  }
}

TEST_CASE("Sums of exponentials take rows, arrays and expressions", "[log_sum_exp]") {
  const Eigen::Matrix<double, 2, 3> m = (Eigen::Matrix<double, 2, 3>() << 1, 2, 3, 4, 5, 6).finished();
  const double row = std::log(std::exp(4.0) + std::exp(5.0) + std::exp(6.0));
  CHECK_THAT(log_sum_exp(m.row(1)), WithinRel(row, tolerance<double>(Tol::rounding)));
  CHECK_THAT(log_sum_exp(m.row(0).array() + 3.0), WithinRel(row, tolerance<double>(Tol::rounding)));
  const Eigen::VectorXd one = Eigen::VectorXd::Constant(1, -0.3);
  CHECK(log_sum_exp(one) == -0.3);
}

TEMPLATE_TEST_CASE("Softmax against 50 digits", "[log_sum_exp]", float, double, long double) {
  const TestType epsilon = std::numeric_limits<TestType>::epsilon();
  for (const VectorX<TestType>& x : sample_vectors<TestType>()) {
    VectorX<TestType> p(x.size());
    softmax(x, p);
    const TestType high = x.maxCoeff();
    const Precise normalizer = precise_log_sum_exp(x);
    TestType total = 0;
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      total += p[i];
      REQUIRE(p[i] >= 0);
      if (!normal_exp(TestType(x[i] - high - 5))) continue;  // a subnormal has fewer digits to give
      const Precise exact = exp(Precise(x[i]) - normalizer);
      // One rounding of x_i - max, in units of the exponent, and the sum.
      const TestType allowed = epsilon * (high - x[i] + TestType(4) + TestType(x.size()));
      INFO("x = " << x[i] << " of maximum " << high << ", p = " << p[i]);
      CHECK(static_cast<TestType>(abs(Precise(p[i]) / exact - 1)) <= allowed);
    }
    CHECK(std::abs(total - 1) <= epsilon * TestType(2 * x.size()));
  }
}

TEST_CASE("Softmax of 50 digits is a normalized exponential to 50 digits", "[log_sum_exp]") {
  VectorX<Precise> x(5), p(5);
  x << Precise("-1000.25"), Precise(1) / 3, Precise(0), Precise("12.5"), Precise("12.5");
  softmax(x, p);
  for (int i = 0; i < 5; ++i) {
    Precise inverse(0);
    for (int j = 0; j < 5; ++j) inverse += exp(x[j] - x[i]);
    CHECK(abs(p[i] * inverse - 1) < tolerance<Precise>(Tol::elementary));
  }
  CHECK(p[3] == p[4]);
}

TEMPLATE_TEST_CASE("Softmax of masked, huge and single entries", "[log_sum_exp]", float, double, long double, Precise) {
  const TestType inf = infinity<TestType>(), huge = std::numeric_limits<TestType>::max();
  VectorX<TestType> x(3), p(3);

  x << TestType(-inf), TestType(2), TestType(2);
  softmax(x, p);
  CHECK(p[0] == 0);  // exactly: not a denormal
  CHECK(p[1] == TestType(0.5));
  CHECK(p[2] == TestType(0.5));

  x.setConstant(TestType(-inf));
  p.setConstant(TestType(7));
  softmax(x, p);
  CHECK((p.array() == TestType(0)).all());

  x << huge, TestType(-huge), TestType(-inf);
  softmax(x, p);
  CHECK(p[0] == 1);
  CHECK(p[1] == 0);
  CHECK(p[2] == 0);

  x.setConstant(TestType(-huge));
  softmax(x, p);
  CHECK(p[0] == TestType(1) / 3);

  VectorX<TestType> empty(0), nothing(0);
  CHECK_NOTHROW(softmax(empty, nothing));
  VectorX<TestType> one = VectorX<TestType>::Constant(1, TestType(-1e4)), certain(1);
  softmax(one, certain);
  CHECK(certain[0] == 1);
}

TEST_CASE("Softmax may overwrite its input, and takes arrays", "[log_sum_exp]") {
  Eigen::VectorXd x(4), p(4);
  x << 0.5, -2, 3, 1;
  softmax(x, p);
  Eigen::VectorXd in_place = x;
  softmax(in_place, in_place);
  CHECK(in_place == p);
  Eigen::ArrayXf array = x.array().cast<float>(), result(4);
  softmax(array, result);
  CHECK((result - p.array().cast<float>()).abs().maxCoeff() < tolerance<float>(Tol::rounding));
}

TEST_CASE("Softmax refuses what has no probabilities", "[log_sum_exp]") {
  Eigen::VectorXd x(3), p(3), shorter(2);
  x << 1, std::numeric_limits<double>::infinity(), 2;
  CHECK_THROWS_WITH(softmax(x, p), Contains("softmax") && Contains("x = inf"));
  x << 1, 2, std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(softmax(x, p), Contains("softmax") && Contains("nan"));
  x << 1, 2, 3;
  CHECK_THROWS_WITH(softmax(x, shorter), Contains("softmax") && Contains("size of p = 2"));
}
