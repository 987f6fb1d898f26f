// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/schedule.hpp"

#include <cmath>

#include "support/catch.hpp"

using namespace qkflow;
using Kind = Schedule::Kind;

TEST_CASE("Schedules at their beginning, middle and end", "[schedule]") {
  CHECK(Schedule{}(7, 10) == 1);
  const Schedule linear{.kind = Kind::linear, .end = 40};
  CHECK(linear(0, 200) == 1);
  CHECK(linear(100, 200) == 20.5);
  CHECK(linear(200, 200) == 40);
  const Schedule step{.kind = Kind::step, .factor = 0.5, .every = 10};
  CHECK(step(9, 100) == 1);
  CHECK(step(10, 100) == 0.5);
  CHECK(step(39, 100) == 0.125);
  const Schedule cosine{.kind = Kind::cosine, .end = 0.1};
  CHECK(cosine(0, 100) == 1);
  CHECK(std::abs(cosine(50, 100) - 0.55) < 1e-15);
  CHECK(std::abs(cosine(100, 100) - 0.1) < 1e-15);
  const Schedule user{.kind = Kind::user, .callable = [](std::uint64_t k, std::uint64_t steps) {
                        return k == 3 && steps == 5 ? 8.0 : 2.0;
                      }};
  CHECK(user(3, 5) == 8);
  const Schedule warm{.kind = Kind::linear, .end = 3, .warm_up = 4};
  CHECK(warm(0, 100) == 0.25);
  CHECK(warm(1, 100) == 0.5 * (1 + 2 * 0.01));
  CHECK(warm(50, 100) == 2);
}

TEST_CASE("Rates of factors fall back to those of their circuit", "[schedule]") {
  TrainingRates rates{.qk = {.value = 0.2}, .ov = {.value = 0.1}, .k = LearningRate{.value = 0.3}};
  CHECK(rates.of("W_QK").value == 0.2);
  CHECK(rates.of("W_Q").value == 0.2);
  CHECK(rates.of("W_K").value == 0.3);
  CHECK(rates.of("W_O").value == 0.1);
  CHECK(rates.of("W_V").value == 0.1);
  CHECK(rates.of("W_OV").value == 0.1);
  CHECK(rates.of("bias").value == 0.1);
  CHECK(LearningRate{0.5, {.kind = Kind::linear, .end = 3}}(1, 2) == 1);
}

TEST_CASE("Schedules and rates that make no sense are refused", "[schedule]") {
  TrainingRates rates;
  rates.ov.value = -1;
  CHECK_THROWS_WITH(rates.validate("test"), Contains("learning rate of W_OV = -1"));
  rates = {};
  rates.qk.schedule.kind = Kind::user;
  CHECK_THROWS_WITH(rates.validate("test"), Contains("no callable"));
  rates = {};
  rates.qk.schedule.every = 0;
  CHECK_THROWS_WITH(rates.validate("test"), Contains("every = 0"));
  rates = {};
  rates.q = LearningRate{std::nan("")};
  CHECK_THROWS_WITH(rates.validate("test"), Contains("learning rate of W_Q = nan"));
}
