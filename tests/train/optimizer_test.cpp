// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/optimizer.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;
using Kind = OptimizerOptions::Kind;

namespace {

/// Five steps on f = 3/2 w0^2 + w1^4 / 4 - 2 cos w2 + w0 w1 w2 from (0.5, -1.25, 2) at rate 0.1.
std::vector<double> five_steps(const OptimizerOptions& options) {
  const OneHotLayout<double> layout(OneHotShape{1, 3, 1});
  TrainingRates rates;
  rates.qk.value = 0.1;
  rates.ov.value = 0;
  Optimizer<double> optimizer(layout, options, rates);
  std::vector<double> theta(layout.size(), 0.0), g(layout.size());
  double* w = theta.data() + layout.qk.offset;
  w[0] = 0.5;
  w[1] = -1.25;
  w[2] = 2;
  for (std::uint64_t step = 0; step < 5; ++step) {
    std::fill(g.begin(), g.end(), 0.0);
    double* d = g.data() + layout.qk.offset;
    d[0] = -(3 * w[0] + w[1] * w[2]);
    d[1] = -(w[1] * w[1] * w[1] + w[0] * w[2]);
    d[2] = -(2 * std::sin(w[2]) + w[0] * w[1]);
    optimizer(theta, g, step, 5);
  }
  for (std::size_t i = 0; i < theta.size(); ++i) {
    if (i < static_cast<std::size_t>(layout.qk.offset) || i >= static_cast<std::size_t>(layout.qk.offset) + 3) {
      CHECK(theta[i] == 0);
    }
  }
  return {w[0], w[1], w[2]};
}

}  // namespace

TEST_CASE("Every optimizer takes the steps that PyTorch 1.13 takes", "[optimizer]") {
  struct Golden {
    std::string name;
    OptimizerOptions options;
    std::vector<double> end;
  };
  const std::vector<Golden> all{
      {"sgd",
       {.kind = Kind::sgd, .weight_decay = 0.01},
       {0.59439318767087845, -1.0331183503210595, 1.3608314115044304}},
      {"momentum",
       {.kind = Kind::momentum, .weight_decay = 0.01},
       {0.53098325971508664, -0.78887876843861049, 0.40968930301742335}},
      {"nesterov",
       {.kind = Kind::nesterov, .weight_decay = 0.01},
       {0.17989115002834227, -0.70465852821329122, 0.066753867381785917}},
      {"adam",
       {.kind = Kind::adam, .weight_decay = 0.01},
       {0.74443457829884496, -0.94059590351056799, 1.4994870581958983}},
      {"adamw",
       {.kind = Kind::adamw, .weight_decay = 0.01},
       {0.74244283611952822, -0.94034498376182452, 1.4904289720712249}},
      // PyTorch divides by the norm plus 1e-6; the difference shows in the sixth digit.
      {"clipping", {.kind = Kind::sgd, .clip_norm = 1}, {0.62733979095841541, -1.0783180377342234, 1.569578362248726}},
  };
  for (const Golden& golden : all) {
    INFO(golden.name);
    const std::vector<double> end = five_steps(golden.options);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(std::abs(end[i] - golden.end[i]) <= (golden.options.clip_norm > 0 ? 1e-5 : 1e-13));
    }
  }
}

TEST_CASE("Each block moves at its own rate, and its own schedule", "[optimizer]") {
  const OneHotLayout<float> layout(OneHotShape{2, 3, 2, 2, 2, true});
  TrainingRates rates{.qk = {.value = 1}, .ov = {.value = 2}};
  rates.k = LearningRate{4, {.kind = Schedule::Kind::linear, .end = 3}};
  rates.o = LearningRate{8};
  rates.bias = LearningRate{0};
  Optimizer<float> optimizer(layout, {}, rates);
  std::vector<float> theta(layout.size(), 0.0F), g(layout.size(), 1.0F);
  optimizer(theta, g, 5, 10);
  const auto moved = [&](const OneHotBlock& block) { return theta[static_cast<std::size_t>(block.offset)]; };
  CHECK(moved(layout.q) == 1);
  CHECK(moved(layout.k) == 8);
  CHECK(moved(layout.o) == 8);
  CHECK(moved(layout.v) == 2);
  CHECK(moved(layout.bias) == 0);
}

TEST_CASE("Optimizers refuse what makes no sense", "[optimizer]") {
  const OneHotLayout<float> layout(OneHotShape{2, 3, 2});
  const auto make = [&](const OptimizerOptions& options) { Optimizer<float>(layout, options, {}); };
  CHECK_THROWS_WITH(make({.momentum = 1}), Contains("momentum = 1"));
  CHECK_THROWS_WITH(make({.beta2 = -0.1}), Contains("beta2"));
  CHECK_THROWS_WITH(make({.epsilon = 0}), Contains("epsilon = 0"));
  CHECK_THROWS_WITH(make({.clip_norm = -1}), Contains("clip_norm = -1"));
}
