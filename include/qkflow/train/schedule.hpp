// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <optional>
#include <string>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// What a learning rate is multiplied by at step k of a run of K steps.
struct Schedule {
  enum class Kind {
    constant,  ///< 1
    linear,    ///< from 1 to `end`: 1 + (end - 1) k / K
    step,      ///< `factor` more every `every` steps: factor^floor(k / every)
    cosine,    ///< from 1 to `end` along half a cosine
    user       ///< `callable(k, K)`
  };

  Kind kind = Kind::constant;
  double end = 1;              ///< linear, cosine: the factor at step K
  double factor = 0.5;         ///< step
  std::uint64_t every = 1000;  ///< step
  std::uint64_t warm_up = 0;   ///< beside any kind: times (k + 1) / warm_up while that is below 1
  std::function<double(std::uint64_t step, std::uint64_t steps)> callable{};

  double operator()(std::uint64_t step, std::uint64_t steps) const {
    const double share = steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 0;
    double value = 1;
    switch (kind) {
      case Kind::constant:
        break;
      case Kind::linear:
        value = 1 + (end - 1) * share;
        break;
      case Kind::step:
        value = std::pow(factor, static_cast<double>(step / every));
        break;
      case Kind::cosine:
        value = end + (1 - end) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, share)));
        break;
      case Kind::user:
        value = callable(step, steps);
        break;
    }
    if (step < warm_up) value *= static_cast<double>(step + 1) / static_cast<double>(warm_up);
    return value;
  }

  void validate(const char* function) const {
    require_non_negative(function, "schedule: end", end);
    require_positive(function, "schedule: factor", factor);
    if (every == 0) throw_invalid(function, "schedule: every", every, "be at least 1");
    if (kind == Kind::user && !callable) throw InvalidArgument(std::string(function) + ": schedule has no callable");
  }
};

/// One learning rate: a number and what becomes of it.
struct LearningRate {
  double value = 0.01;  ///< at least 0; 0 freezes
  Schedule schedule{};

  double operator()(std::uint64_t step, std::uint64_t steps) const {
    return schedule.kind == Schedule::Kind::constant && schedule.warm_up == 0 ? value : value * schedule(step, steps);
  }
};

/// The learning rates of a head: one a circuit, and where wanted one a factor or for the bias.
struct TrainingRates {
  LearningRate qk{}, ov{};               ///< r = eta_QK / eta_OV is the control parameter [Vashisht26]
  std::optional<LearningRate> q{}, k{};  ///< of W_Q and W_K; left out: that of the circuit
  std::optional<LearningRate> o{}, v{};  ///< of W_O and W_V; left out: that of the circuit
  std::optional<LearningRate> bias{};    ///< left out: that of the OV circuit

  const LearningRate& of(const std::string& block) const {
    if (block == "W_QK") return qk;
    if (block == "W_Q") return q ? *q : qk;
    if (block == "W_K") return k ? *k : qk;
    if (block == "W_O") return o ? *o : ov;
    if (block == "W_V") return v ? *v : ov;
    if (block == "bias") return bias ? *bias : ov;
    return ov;
  }

  void validate(const char* function) const {
    for (const char* block : {"W_QK", "W_OV", "W_Q", "W_K", "W_O", "W_V", "bias"}) {
      const LearningRate& rate = of(block);
      require_non_negative(function, (std::string("learning rate of ") + block).c_str(), rate.value);
      rate.schedule.validate(function);
    }
  }
};

}  // namespace qkflow
