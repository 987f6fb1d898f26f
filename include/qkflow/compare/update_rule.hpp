// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// How parameters move along a velocity F(theta) = -P dL/dtheta, one step of size h at a time. A step rule is any
/// callable `step(theta, velocity, h)` that moves theta; an update rule either is one (GradientDescent, a lambda) or
/// makes one, with the memory it needs, by `begin(start)` (all others). `descend` asks for a new one for every run, so
/// a rule is a plain description that can be used again.
template <class Rule, class State>
concept StepRule = std::invocable<Rule&, State&, const State&, const typename State::Scalar&>;

template <class Rule, class State>
concept UpdateRule = StepRule<Rule, State> || requires(const Rule& rule, const State& start) {
  { rule.begin(start) } -> StepRule<State>;
};

/// theta += h F: Euler's method on the flow.
struct GradientDescent {
  template <class State>
  void operator()(State& theta, const State& velocity, const typename State::Scalar& h) const {
    theta += h * velocity;
  }
};

/// m <- beta m + F, theta += h m, from m = 0: what optimizers call momentum. Once m has settled a step is worth
/// h / (1 - beta) (compare/continuous_limit.hpp) [Polyak64].
struct HeavyBall {
  double beta = 0.9;  ///< from 0 to below 1

  template <class State>
  struct Step {
    typename State::Scalar beta;
    State momentum;
    void operator()(State& theta, const State& velocity, const typename State::Scalar& h) {
      momentum = beta * momentum + velocity;
      theta += h * momentum;
    }
  };
  template <class State>
  Step<State> begin(const State& start) const {
    validate("HeavyBall");
    return {static_cast<typename State::Scalar>(beta), State::Zero(start.size())};
  }
  void validate(const char* function) const {
    if (!(beta >= 0 && beta < 1)) throw_invalid(function, "beta", beta, "be from 0 to below 1");
  }
};

namespace detail {
/// The rate of each parameter in the scalar of the state: `rates` itself, all ones where it is empty.
template <class State>
State rates_like(const char* function, const std::vector<double>& rates, const State& start) {
  using Scalar = typename State::Scalar;
  State result = State::Constant(start.size(), Scalar(1));
  if (rates.empty()) return result;
  if (rates.size() != static_cast<std::size_t>(start.size())) {
    throw_invalid(function, "number of rates", rates.size(), "be none or " + to_text(start.size()));
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    require_non_negative(function, ("rates[" + to_text(i) + "]").c_str(), rates[i]);
    result[static_cast<Eigen::Index>(i)] = static_cast<Scalar>(rates[i]);
  }
  return result;
}

/// g = F / rate, the gradient of a velocity; 0 where the parameter is frozen.
template <class State>
typename State::Scalar gradient_entry(const State& velocity, const State& rates, Eigen::Index i) {
  using Scalar = typename State::Scalar;
  return rates[i] > Scalar(0) ? Scalar(velocity[i] / rates[i]) : Scalar(0);
}

/// g / (|g| + epsilon), and 0 where g is 0.
template <class Scalar>
Scalar soft_sign(const Scalar& g, const Scalar& epsilon) {
  using std::abs;
  return g == Scalar(0) ? Scalar(0) : Scalar(g / (abs(g) + epsilon));
}
}  // namespace detail

/// theta_i += h rate_i g_i / (|g_i| + epsilon) with g = F / rate the negative gradient: its sign alone, softened where
/// it is no larger than epsilon.
struct SignDescent {
  double epsilon = 0;  ///< at least 0; 0 is the exact sign, 0 at 0
  /// The learning rate of every parameter (`HeadParameters::rates`): those inside the velocity, as a sign would lose
  /// them. Empty: all 1.
  std::vector<double> rates{};

  template <class State>
  struct Step {
    State rates;
    typename State::Scalar epsilon;
    void operator()(State& theta, const State& velocity, const typename State::Scalar& h) const {
      for (Eigen::Index i = 0; i < theta.size(); ++i) {
        theta[i] += h * rates[i] * detail::soft_sign(detail::gradient_entry(velocity, rates, i), epsilon);
      }
    }
  };
  template <class State>
  Step<State> begin(const State& start) const {
    require_non_negative("SignDescent", "epsilon", epsilon);
    return {detail::rates_like("SignDescent", rates, start), static_cast<typename State::Scalar>(epsilon)};
  }
};

/// Adam with both moments corrected for their start [Kingma15], g = F / rate the negative gradient:
///     m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2,
///     theta += h rate m / (1 - beta1^k) / (sqrt(v / (1 - beta2^k)) + epsilon)      at the k-th step, from 1.
/// On a full batch it is the optimizer of train/optimizer.hpp.
struct AdamRule {
  double beta1 = 0.9;           ///< from 0 to below 1
  double beta2 = 0.999;         ///< from 0 to below 1
  double epsilon = 1e-8;        ///< above 0
  std::vector<double> rates{};  ///< as in SignDescent

  template <class State>
  struct Step {
    using Scalar = typename State::Scalar;
    State rates;
    Scalar beta1, beta2, epsilon;
    State first, second;
    Scalar power1 = 1, power2 = 1;  // beta^k

    void operator()(State& theta, const State& velocity, const Scalar& h) {
      using std::sqrt;
      power1 *= beta1;
      power2 *= beta2;
      for (Eigen::Index i = 0; i < theta.size(); ++i) {
        const Scalar g = detail::gradient_entry(velocity, rates, i);
        first[i] = beta1 * first[i] + (Scalar(1) - beta1) * g;
        second[i] = beta2 * second[i] + (Scalar(1) - beta2) * g * g;
        const Scalar size = sqrt(Scalar(second[i] / (Scalar(1) - power2))) + epsilon;
        theta[i] += h * rates[i] * (first[i] / (Scalar(1) - power1)) / size;
      }
    }
  };
  template <class State>
  Step<State> begin(const State& start) const {
    using Scalar = typename State::Scalar;
    validate("AdamRule");
    return {detail::rates_like("AdamRule", rates, start),
            static_cast<Scalar>(beta1),
            static_cast<Scalar>(beta2),
            static_cast<Scalar>(epsilon),
            State::Zero(start.size()),
            State::Zero(start.size())};
  }
  void validate(const char* function) const {
    if (!(beta1 >= 0 && beta1 < 1)) throw_invalid(function, "beta1", beta1, "be from 0 to below 1");
    if (!(beta2 >= 0 && beta2 < 1)) throw_invalid(function, "beta2", beta2, "be from 0 to below 1");
    require_positive(function, "epsilon", epsilon);
  }
};

namespace detail {
/// The step rule of one run.
template <class State, class Rule>
auto begin_rule(const Rule& rule, const State& start) {
  if constexpr (requires { rule.begin(start); }) {
    return rule.begin(start);
  } else {
    return rule;
  }
}
}  // namespace detail
}  // namespace qkflow
