// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/train/schedule.hpp"

namespace qkflow {

/// How a gradient moves the parameters. With g = dL/dtheta (weight decay and clipping included), eta the block's rate
/// and k = 1, 2, ... the step, in the usual forms (those of PyTorch, so that runs can be compared):
///
///     sgd       theta -= eta g
///     momentum  m = momentum m + g;  theta -= eta m
///     nesterov  m as above;          theta -= eta (g + momentum m)
///     adam      m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
///               theta -= eta (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + epsilon)
///     adamw     theta -= eta weight_decay theta, then as adam without decay in g
struct OptimizerOptions {
  enum class Kind { sgd, momentum, nesterov, adam, adamw };

  Kind kind = Kind::sgd;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< adds weight_decay * theta to the gradient; adamw: see above
  double clip_norm = 0;     ///< the gradient's Euclidean norm, over all parameters, is scaled down to this; 0: never

  bool has_momentum() const { return kind != Kind::sgd; }
  bool is_adaptive() const { return kind == Kind::adam || kind == Kind::adamw; }

  void validate(const char* function) const {
    const auto fraction = [function](const char* what, double value) {
      if (!(value >= 0 && value < 1)) throw_invalid(function, what, value, "be from 0 to below 1");
    };
    fraction("momentum", momentum);
    fraction("beta1", beta1);
    fraction("beta2", beta2);
    require_positive(function, "epsilon", epsilon);
    require_non_negative(function, "weight_decay", weight_decay);
    require_non_negative(function, "clip_norm", clip_norm);
  }
};

/// The moments an optimizer keeps, in the layout of the parameters.
template <class T>
struct OptimizerState {
  std::vector<T> first, second;
};

/// Moves parameters along a gradient.
template <simd::KernelScalar T>
class Optimizer {
 public:
  Optimizer(const OneHotLayout<T>& layout, const OptimizerOptions& options, const TrainingRates& rates)
      : blocks_(layout.blocks()), options_(options), rates_(rates) {
    options.validate("Optimizer");
    rates.validate("Optimizer");
    if (options.has_momentum()) state_.first.assign(layout.size(), T(0));
    if (options.is_adaptive()) state_.second.assign(layout.size(), T(0));
    for (const OneHotBlock& block : blocks_) block_rates_.push_back(rates_.of(block.name));
  }

  const OptimizerState<T>& state() const { return state_; }
  OptimizerState<T>& state() { return state_; }

  /// Step `step` (from 0) of `steps`. `negative_gradient` holds -dL/dtheta, as the kernel writes it, and is
  /// overwritten.
  void operator()(std::vector<T>& theta, std::vector<T>& negative_gradient, std::uint64_t step, std::uint64_t steps) {
    clip(negative_gradient);
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const OneHotBlock& block = blocks_[b];
      const double rate = block_rates_[b](step, steps);
      if (rate == 0) continue;
      T* w = theta.data() + block.offset;
      T* g = negative_gradient.data() + block.offset;
      const std::ptrdiff_t size = block.size();
      const T eta = static_cast<T>(rate), decay = static_cast<T>(options_.weight_decay);
      if (decay != T(0)) {
        if (options_.kind == OptimizerOptions::Kind::adamw) {
          const T keep = static_cast<T>(1 - rate * options_.weight_decay);
          for (std::ptrdiff_t i = 0; i < size; ++i) w[i] *= keep;
        } else {
          for (std::ptrdiff_t i = 0; i < size; ++i) g[i] -= decay * w[i];
        }
      }
      move(w, g, block.offset, size, eta, step);
    }
  }

 private:
  void clip(std::vector<T>& gradient) const {
    if (!(options_.clip_norm > 0)) return;
    double square = 0;
    for (const T g : gradient) square += static_cast<double>(g) * static_cast<double>(g);
    const double norm = std::sqrt(square);
    if (!(norm > options_.clip_norm)) return;
    const T factor = static_cast<T>(options_.clip_norm / norm);
    for (T& g : gradient) g *= factor;
  }

  void move(T* w, const T* g, std::ptrdiff_t offset, std::ptrdiff_t size, T eta, std::uint64_t step) {
    using Kind = OptimizerOptions::Kind;
    if (options_.kind == Kind::sgd) {
      for (std::ptrdiff_t i = 0; i < size; ++i) w[i] += eta * g[i];
      return;
    }
    T* m = state_.first.data() + offset;  // of -g, so that everything is added
    if (!options_.is_adaptive()) {
      const T mu = static_cast<T>(options_.momentum);
      const bool nesterov = options_.kind == Kind::nesterov;
      for (std::ptrdiff_t i = 0; i < size; ++i) {
        m[i] = mu * m[i] + g[i];
        w[i] += eta * (nesterov ? g[i] + mu * m[i] : m[i]);
      }
      return;
    }
    T* v = state_.second.data() + offset;
    const T b1 = static_cast<T>(options_.beta1), b2 = static_cast<T>(options_.beta2);
    const auto k = static_cast<double>(step + 1);
    const T first = static_cast<T>(static_cast<double>(eta) / (1 - std::pow(options_.beta1, k)));
    const T second = static_cast<T>(1 / std::sqrt(1 - std::pow(options_.beta2, k)));
    const T epsilon = static_cast<T>(options_.epsilon);
    for (std::ptrdiff_t i = 0; i < size; ++i) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      w[i] += first * m[i] / (std::sqrt(v[i]) * second + epsilon);
    }
  }

  std::vector<OneHotBlock> blocks_;
  std::vector<LearningRate> block_rates_;
  OptimizerOptions options_;
  TrainingRates rates_;
  OptimizerState<T> state_;
};

}  // namespace qkflow
