// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/vector_softmax.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/catch.hpp"

namespace {

template <class T>
std::vector<T> scores(int count, T spread, unsigned seed) {
  std::mt19937_64 bits(seed);
  std::vector<T> x(static_cast<std::size_t>(count));
  for (T& value : x) value = spread * (static_cast<T>(static_cast<double>(bits() >> 11) * 0x1p-52) - 1);
  return x;
}

template <class T>
struct Exact {
  long double high = -std::numeric_limits<long double>::infinity(), log_sum = high;
  std::vector<long double> p;
  explicit Exact(const std::vector<T>& x) : p(x.size(), 0.0L) {
    for (const T value : x) high = std::max(high, static_cast<long double>(value));
    if (std::isinf(high)) return;
    long double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += p[i] = std::exp(static_cast<long double>(x[i]) - high);
    for (long double& value : p) value /= sum;
    log_sum = high + std::log(sum);
  }
};

template <class T>
std::vector<int> awkward_lengths() {
  constexpr int lanes = qkflow::simd::lanes<T>;
  return {1, 2, 7, std::max(1, lanes - 1), lanes, lanes + 1, 4 * lanes - 1, 4 * lanes + 1, 1000, 4099};
}

}  // namespace

TEMPLATE_TEST_CASE("Softmax and log-sum-exp stay within their stated errors", "[vector_softmax]", float, double) {
  constexpr long double epsilon = std::numeric_limits<TestType>::epsilon();
  constexpr long double smallest = std::numeric_limits<TestType>::min();
  for (const int count : awkward_lengths<TestType>()) {
    for (const TestType spread : {TestType(1e-6), TestType(1), TestType(30), TestType(1e4)}) {
      std::vector<TestType> x = scores(count, spread, static_cast<unsigned>(count));
      if (count > 3) x[static_cast<std::size_t>(count / 2)] = -std::numeric_limits<TestType>::infinity();
      const Exact<TestType> exact(x);
      const long double rounds = static_cast<long double>(count) / qkflow::simd::lanes<TestType>;
      INFO("length " << count << ", scores to " << spread);
      const long double log_error = std::abs(qkflow::vector_log_sum_exp(x.data(), count) - exact.log_sum);
      CHECK(log_error <= epsilon * (std::abs(exact.log_sum) + 4 + rounds));

      std::vector<TestType> p(x.size(), TestType(-1));
      const TestType log_sum = qkflow::vector_softmax(x.data(), p.data(), count);
      CHECK(std::abs(log_sum - exact.log_sum) <= epsilon * (std::abs(exact.log_sum) + 4 + rounds));
      int outside = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const long double distance = std::isinf(x[i]) ? 0 : exact.high - x[i];
        const long double allowed = epsilon * (4 + distance / 2 + rounds) * exact.p[i] + 2 * smallest;
        if (!(std::abs(p[i] - exact.p[i]) <= allowed)) ++outside;
      }
      CHECK(outside == 0);
      if (count > 3) CHECK(p[static_cast<std::size_t>(count / 2)] == 0);

      qkflow::vector_softmax(x.data(), x.data(), count);  // in place
      CHECK(x == p);
    }
  }
}

TEMPLATE_TEST_CASE("Softmax backward is within its stated error", "[vector_softmax]", float, double) {
  constexpr long double epsilon = std::numeric_limits<TestType>::epsilon();
  for (const int count : awkward_lengths<TestType>()) {
    std::vector<TestType> p = scores<TestType>(count, 4, 3), ds(p.size());
    const std::vector<TestType> dp = scores<TestType>(count, 100, 5);
    qkflow::vector_softmax(p.data(), p.data(), count);
    qkflow::vector_softmax_backward(p.data(), dp.data(), ds.data(), count);
    long double mean = 0, size = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      mean += static_cast<long double>(p[i]) * dp[i];
      size += std::abs(static_cast<long double>(p[i]) * dp[i]);
    }
    const long double rounds = static_cast<long double>(count) / qkflow::simd::lanes<TestType>;
    int outside = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const long double allowed =
          epsilon * p[i] * (2 * std::abs(static_cast<long double>(dp[i])) + (3 + rounds) * size);
      if (!(std::abs(ds[i] - p[i] * (dp[i] - mean)) <= allowed)) ++outside;
    }
    INFO("length " << count);
    CHECK(outside == 0);
  }
}

TEST_CASE("Softmax backward is the derivative of softmax", "[vector_softmax]") {
  const int count = 19;
  const std::vector<double> x = scores<double>(count, 2, 1), dp = scores<double>(count, 1, 2);
  std::vector<double> p(x.size()), ds(x.size());
  const auto value = [&](const std::vector<double>& at) {
    std::vector<double> q(at.size());
    qkflow::vector_softmax(at.data(), q.data(), count);
    double sum = 0;
    for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * dp[i];
    return sum;
  };
  qkflow::vector_softmax(x.data(), p.data(), count);
  qkflow::vector_softmax_backward(p.data(), dp.data(), ds.data(), count);
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto high = x, low = x;
    high[i] += 1e-5;
    low[i] -= 1e-5;
    CHECK_THAT(ds[i], WithinAbs((value(high) - value(low)) / 2e-5, 1e-10));
  }
}

TEMPLATE_TEST_CASE("Softmax of masked, infinite and missing scores", "[vector_softmax]", float, double) {
  const TestType infinity = std::numeric_limits<TestType>::infinity();
  for (const int count : awkward_lengths<TestType>()) {
    std::vector<TestType> masked(static_cast<std::size_t>(count), -infinity), p(masked.size(), TestType(-1));
    CHECK(qkflow::vector_log_sum_exp(masked.data(), count) == -infinity);
    CHECK(qkflow::vector_softmax(masked.data(), p.data(), count) == -infinity);
    CHECK(p == std::vector<TestType>(p.size(), TestType(0)));

    for (const int place : {0, count / 2, count - 1}) {
      std::vector<TestType> x = scores<TestType>(count, 3, 9);
      x[static_cast<std::size_t>(place)] = std::numeric_limits<TestType>::quiet_NaN();
      INFO("NaN at " << place << " of " << count);
      CHECK(std::isnan(qkflow::vector_log_sum_exp(x.data(), count)));
      qkflow::vector_softmax(x.data(), p.data(), count);
      CHECK(std::all_of(p.begin(), p.end(), [](TestType value) { return std::isnan(value); }));
      masked[static_cast<std::size_t>(place)] = std::numeric_limits<TestType>::quiet_NaN();
      CHECK(std::isnan(qkflow::vector_log_sum_exp(masked.data(), count)));
      masked[static_cast<std::size_t>(place)] = -infinity;
      x[static_cast<std::size_t>(place)] = infinity;
      CHECK(qkflow::vector_log_sum_exp(x.data(), count) == infinity);
    }
  }
  CHECK(qkflow::vector_log_sum_exp<TestType>(nullptr, 0) == -infinity);
  CHECK(qkflow::vector_softmax<TestType>(nullptr, nullptr, 0) == -infinity);
}
