// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/vector_exp.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.hpp"

namespace {

// long double has 11 bits more than double: its libm exponential is the witness.
template <class T>
long double relative_error(T value, long double exact) {
  return std::abs((static_cast<long double>(value) - exact) / exact) / std::numeric_limits<T>::epsilon();
}

template <class T>
T uniform(std::mt19937_64& bits, T low, T high) {
  return low + (high - low) * static_cast<T>(static_cast<double>(bits() >> 11) * 0x1p-53);
}

template <class T>
const T lowest_argument = std::nextafter(std::log(std::numeric_limits<T>::min()), T(0));
template <class T>
const T highest_argument = std::nextafter(std::log(std::numeric_limits<T>::max()), T(0));

}  // namespace

TEMPLATE_TEST_CASE("Vector exponential is within 2 epsilon over its whole range", "[vector_exp]", float, double) {
  std::mt19937_64 bits(7);
  std::vector<TestType> x, y;
  for (int i = 0; i < 60000; ++i) {
    x.push_back(uniform(bits, lowest_argument<TestType>, highest_argument<TestType>));
    x.push_back(uniform(bits, TestType(-1), TestType(1)));
    x.push_back(std::ldexp(uniform(bits, TestType(-1), TestType(1)), -i % 40));
  }
  // Both sides of every change of exponent, where the reduction is at its worst, and the two ends of the range.
  for (int n = std::numeric_limits<TestType>::min_exponent; n < std::numeric_limits<TestType>::max_exponent; ++n) {
    const auto edge = static_cast<TestType>((n + 0.5L) * 0.693147180559945309417L);
    for (const TestType t : {edge, std::nextafter(edge, TestType(-1e30)), std::nextafter(edge, TestType(1e30))}) {
      if (t >= lowest_argument<TestType> && t <= highest_argument<TestType>) x.push_back(t);
    }
  }
  for (int i = 0; i < 100; ++i) {
    x.push_back(lowest_argument<TestType> * (1 - TestType(i) * std::numeric_limits<TestType>::epsilon()));
    x.push_back(highest_argument<TestType> * (1 - TestType(i) * std::numeric_limits<TestType>::epsilon()));
  }
  y.resize(x.size());
  qkflow::vector_exp(x.data(), y.data(), static_cast<Eigen::Index>(x.size()));
  long double worst = 0;
  TestType where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double error = relative_error(y[i], std::exp(static_cast<long double>(x[i])));
    if (!(error <= worst)) worst = error, where = x[i];
  }
  INFO(qkflow::simd::instruction_set() << ": worst error " << worst << " epsilon at " << where);
  CHECK(worst < 2);
}

TEMPLATE_TEST_CASE("Vector exponential at its edges", "[vector_exp]", float, double) {
  using Limits = std::numeric_limits<TestType>;
  const TestType infinity = Limits::infinity();
  const TestType above = std::nextafter(std::nextafter(highest_argument<TestType>, infinity), infinity);
  const TestType below = std::nextafter(std::log(Limits::min()), -infinity);
  const std::vector<TestType> x{0,
                                -TestType(0),
                                infinity,
                                -infinity,
                                Limits::max(),
                                Limits::lowest(),
                                above,
                                below,
                                Limits::quiet_NaN(),
                                -Limits::quiet_NaN(),
                                Limits::signaling_NaN(),
                                Limits::denorm_min()};
  const std::vector<TestType> expected{1, 1, infinity, 0, infinity, 0, infinity, 0};
  std::vector<TestType> y(x.size(), TestType(-1));
  qkflow::vector_exp(x.data(), y.data(), static_cast<Eigen::Index>(x.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("e^" << x[i]);
    CHECK(y[i] == expected[i]);
  }
  CHECK(std::isnan(y[8]));
  CHECK(std::isnan(y[9]));
  CHECK(std::isnan(y[10]));
  CHECK(y[11] == 1);
}

TEMPLATE_TEST_CASE("Vector exponential touches exactly its elements, and treats all alike", "[vector_exp]", float,
                   double) {
  constexpr int lanes = qkflow::simd::lanes<TestType>;
  for (const int count : {0, 1, lanes - 1, lanes, lanes + 1, 4 * lanes - 1, 4 * lanes + 1, 67}) {
    for (const int offset : {0, 1, 3}) {
      std::vector<TestType> x(static_cast<std::size_t>(count + offset), TestType(0)), y(x.size() + 1, TestType(-7));
      for (int i = 0; i < count; ++i) x[static_cast<std::size_t>(i + offset)] = TestType(0.37) * TestType(i) - 5;
      qkflow::vector_exp(x.data() + offset, y.data() + offset, count);
      INFO("count " << count << ", offset " << offset);
      for (int i = 0; i < offset; ++i) CHECK(y[static_cast<std::size_t>(i)] == -7);
      CHECK(y.back() == -7);
      for (int i = 0; i < count; ++i) {
        TestType alone = 0;
        qkflow::vector_exp(&x[static_cast<std::size_t>(i + offset)], &alone, 1);
        CHECK(y[static_cast<std::size_t>(i + offset)] == alone);
      }
    }
  }
}

TEMPLATE_TEST_CASE("The softmax exponential is within 1.5 epsilon, and zero where it must be", "[vector_exp]", float,
                   double) {
  namespace simd = qkflow::simd;
  constexpr int lanes = simd::lanes<TestType>;
  const auto exp2_one = [](TestType x) {
    TestType y[lanes];
    simd::store<TestType>(y, simd::exp2_nonpositive<TestType>(simd::broadcast(x)));
    return y[lanes - 1];
  };
  const TestType bias = std::numeric_limits<TestType>::max_exponent - 1;
  std::mt19937_64 bits(11);
  long double worst = 0;
  for (int i = 0; i < 60000; ++i) {
    const TestType x = uniform(bits, i % 2 == 0 ? -(bias - 1) : TestType(-2), i % 2 == 0 ? bias - 1 : TestType(0));
    worst = std::max(worst, relative_error(exp2_one(x), std::exp2(static_cast<long double>(x))));
  }
  INFO(simd::instruction_set() << ": worst error " << worst << " epsilon");
  CHECK(worst < 1.5L);
  CHECK(exp2_one(0) == 1);
  CHECK(exp2_one(-1) == TestType(0.5));
  CHECK(exp2_one(-bias) == 0);
  CHECK(exp2_one(-10 * bias) == 0);
  CHECK(exp2_one(std::numeric_limits<TestType>::lowest()) == 0);
  CHECK(exp2_one(-std::numeric_limits<TestType>::infinity()) == 0);
}

TEMPLATE_TEST_CASE("Registers: tails, sums and gathers", "[vector_exp]", float, double) {
  namespace simd = qkflow::simd;
  constexpr int lanes = simd::lanes<TestType>;
  std::vector<TestType> numbers(256);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<TestType>(i * i % 101);
  std::vector<std::int32_t> index(lanes);
  for (int i = 0; i < lanes; ++i) index[static_cast<std::size_t>(i)] = (37 * i + 5) % 256;
  TestType out[lanes];
  simd::store<TestType>(out, simd::gather(numbers.data(), index.data()));
  for (int i = 0; i < lanes; ++i) CHECK(out[i] == numbers[static_cast<std::size_t>((37 * i + 5) % 256)]);

  simd::Pack<TestType> rows[lanes];
  for (int i = 0; i < lanes; ++i) rows[i] = simd::load(numbers.data() + 3 * i);
  simd::store<TestType>(out, simd::sum_each<TestType>(rows));
  for (int i = 0; i < lanes; ++i) {
    TestType expected = 0;  // whole numbers: every order of summation is exact
    for (int j = 0; j < lanes; ++j) expected += numbers[static_cast<std::size_t>(3 * i + j)];
    CHECK(out[i] == expected);
    CHECK(simd::sum(rows[i]) == expected);
  }
  const simd::Pack<TestType> part = simd::load_first(numbers.data() + 1, lanes / 2, TestType(-1));
  simd::store(out, part);
  for (int i = 0; i < lanes; ++i)
    CHECK(out[i] == (i < lanes / 2 ? numbers[static_cast<std::size_t>(i + 1)] : TestType(-1)));
}

TEST_CASE("Vector exponential on Eigen objects", "[vector_exp]") {
  const Eigen::MatrixXd x = Eigen::MatrixXd::Constant(3, 5, -2.0);
  Eigen::MatrixXd y(3, 5);
  qkflow::vector_exp(x, y);
  CHECK_THAT(y.sum(), WithinRel(15 * std::exp(-2.0), 1e-15));
  Eigen::MatrixXd small(2, 5);
  CHECK_THROWS_WITH(qkflow::vector_exp(x, small), Contains("size of y") && Contains("10"));
}
