// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/require.hpp"

#include <limits>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"
#include "support/comma_locale.hpp"
#include "support/precise.hpp"

using namespace qkflow;
using qkflow_test::Precise;

namespace {

template <class T>
T read_back(const std::string& text) {
  if constexpr (std::is_same_v<T, float>) return std::stof(text);
  if constexpr (std::is_same_v<T, double>) return std::stod(text);
  if constexpr (std::is_same_v<T, long double>) return std::stold(text);
  if constexpr (std::is_same_v<T, Precise>) return Precise(text);
}

}  // namespace

TEMPLATE_TEST_CASE("Text of a number reads back as the same number", "[require]", float, double, long double, Precise) {
  using limits = std::numeric_limits<TestType>;
  for (const TestType& value : {TestType(0), TestType(1) / 3, TestType(-2) / 7, TestType(1e22), TestType(123456789),
                                TestType(1) + limits::epsilon(), TestType(limits::max()), TestType(limits::lowest()),
                                TestType(limits::min())}) {
    INFO(to_text(value));
    CHECK(read_back<TestType>(to_text(value)) == value);
  }
}

TEST_CASE("Text of a number is short, and no locale touches it", "[require]") {
  CHECK(to_text(0.1) == "0.1");
  CHECK(to_text(0.1F) == "0.1");
  CHECK(to_text(0.1L) == "0.1");
  CHECK(to_text(-7) == "-7");
  CHECK(to_text(std::size_t{18446744073709551615U}) == "18446744073709551615");
  CHECK(to_text(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(to_text(-std::numeric_limits<double>::infinity()) == "-inf");
  CHECK(to_text(std::numeric_limits<double>::quiet_NaN()) == "nan");
  const qkflow_test::CommaLocale comma;
  CHECK(to_text(1234567.5) == "1234567.5");
}

TEST_CASE("A refusal names function, argument and value", "[require]") {
  CHECK_THROWS_WITH(throw_invalid("f", "x", -2.5, "be kind"), Equals("f: x = -2.5, but it must be kind"));
  CHECK_THROWS_WITH(throw_invalid("f", "count", 3, "be even"), Equals("f: count = 3, but it must be even"));
  CHECK_THROWS_WITH(require_at_least("f", "x", 1.5, 2.0), Equals("f: x = 1.5, but it must be finite and at least 2"));
  CHECK_THROWS_AS(throw_invalid("f", "x", 0, "be kind"), InvalidArgument);
  // Whoever catches the standard's exceptions catches ours.
  CHECK_THROWS_AS(require_positive("f", "x", 0.0), std::invalid_argument);
}

TEMPLATE_TEST_CASE("What is required is required", "[require]", float, double, long double, Precise) {
  using limits = std::numeric_limits<TestType>;
  const TestType zero(0), one(1), infinity = limits::infinity(), nan = limits::quiet_NaN();
  const TestType tiny = limits::min(), huge = limits::max();

  SECTION("finite") {
    for (const TestType& good : {zero, TestType(-zero), one, TestType(-huge), huge, tiny}) {
      CHECK_NOTHROW(require_finite("f", "x", good));
    }
    CHECK_THROWS_WITH(require_finite("f", "x", infinity), Contains("f: x = inf") && Contains("finite"));
    CHECK_THROWS_WITH(require_finite("f", "x", TestType(-infinity)), Contains("x = -inf"));
    CHECK_THROWS_WITH(require_finite("f", "x", nan), Contains("x = nan"));
  }
  SECTION("positive") {
    for (const TestType& good : {one, huge, tiny}) CHECK_NOTHROW(require_positive("f", "x", good));
    for (const TestType& bad : {zero, TestType(-zero), TestType(-tiny), infinity, nan}) {
      CHECK_THROWS_WITH(require_positive("f", "x", bad), Contains("f: x = ") && Contains("above 0"));
    }
  }
  SECTION("not negative") {
    for (const TestType& good : {zero, TestType(-zero), one, huge, tiny}) {
      CHECK_NOTHROW(require_non_negative("f", "x", good));
    }
    for (const TestType& bad : {TestType(-tiny), TestType(-infinity), infinity, nan}) {
      CHECK_THROWS_WITH(require_non_negative("f", "x", bad), Contains("f: x = ") && Contains("at least 0"));
    }
  }
  SECTION("at least a bound") {
    const TestType two(2);
    for (const TestType& good : {two, TestType(3), huge}) CHECK_NOTHROW(require_at_least("f", "x", good, two));
    for (const TestType& bad : {TestType(two - limits::epsilon()), zero, TestType(-infinity), infinity, nan}) {
      CHECK_THROWS_WITH(require_at_least("f", "x", bad, two), Contains("f: x = ") && Contains("at least 2"));
    }
  }
}

TEST_CASE("Requirements hold for integers too", "[require]") {
  CHECK_NOTHROW(require_positive("f", "n", 1));
  CHECK_THROWS_WITH(require_positive("f", "n", 0), Contains("n = 0"));
  CHECK_THROWS_WITH(require_at_least("f", "n", -3, 1), Contains("n = -3") && Contains("at least 1"));
}
