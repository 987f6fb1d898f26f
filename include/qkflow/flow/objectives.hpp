// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/math/constants/constants.hpp>
#include <cmath>
#include <limits>

#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/log_difference.hpp"
#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// The foreground task [Vashisht23]: C classes, sequences of m positions. One position, the foreground, holds the
/// one-hot token of the class; the others have a null embedding (score 0, value 0). One score a class, one W_OV.
/// Classes are equally likely. Real numbers: the equations need no integers.
template <class Scalar>
struct ForegroundTask {
  Scalar classes = 1000;   ///< C, at least 2
  Scalar positions = 100;  ///< m, at least 2 (with one position attention is 1 and never learns)

  void validate(const char* function) const {
    require_at_least(function, "classes", classes, Scalar(2));
    require_at_least(function, "positions", positions, Scalar(2));
  }
};

/// log(C p) with p = e^z / (e^z + C - 1): how far the probability of the label is above chance. 0 at z = 0, rises to
/// log C, falls like z for z -> -infinity; to a few tens of epsilon relative for every z. log C minus the cross
/// entropy.
template <class Scalar>
Scalar log_probability_gain(const Scalar& classes, const Scalar& z) {
  using std::exp;
  using std::expm1;
  using std::log;
  using std::log1p;
  if (z < Scalar(0)) return z - log1p(expm1(z) / classes);
  const Scalar others = classes - Scalar(1);
  const Scalar miss = -others / classes * expm1(-z);  // 1 - 1 / (C p)
  if (miss < Scalar(0.5)) return -log1p(-miss);
  return -log((Scalar(1) + others * exp(-z)) / classes);
}

namespace detail {

/// e^x may grow up to here: beyond, shares are taken in logarithms, so that they neither overflow nor vanish early.
/// Products of two such exponentials with a count stay finite.
template <class Scalar>
Scalar plain_exponent_limit() {
  const Scalar limit = Scalar(std::numeric_limits<Scalar>::max_exponent) * boost::math::constants::ln_two<Scalar>() / 3;
  return limit < Scalar(10000) ? limit : Scalar(10000);
}

/// The share w / (w + e^x) of a weight w beside e^x.
template <class Scalar>
Scalar share_beside(const Scalar& weight, const Scalar& x) {
  using std::exp;
  using std::log;
  if (x > plain_exponent_limit<Scalar>()) return exp(log(weight) - x);
  return Scalar(1) / (Scalar(1) + exp(x) / weight);
}

}  // namespace detail

/// What an objective sees of a state: the attention mass alpha on the foreground, 1 - alpha, W_OV = mu D with
/// D = identity - 1/C, and the score nu of the foreground.
template <class Scalar>
struct ForegroundView {
  Scalar classes, mu, nu, alpha, rest;

  ForegroundView(const ForegroundTask<Scalar>& task, const Scalar& mu_, const Scalar& nu_)
      : classes(task.classes), mu(mu_), nu(nu_) {
    using std::exp;
    const Scalar background = task.positions - Scalar(1);
    alpha = Scalar(1) / (Scalar(1) + background * exp(-nu));
    rest = detail::share_beside(background, nu);
  }
  /// (C - 1) / (e^z + C - 1)
  Scalar miss_probability(const Scalar& z) const { return detail::share_beside(Scalar(classes - Scalar(1)), z); }
};

/// Three losses of one head, each with the velocities of mu and nu at unit rates, its loss, and log C minus the loss
/// (`gain`, accurate near chance). c = C - 1, beta = e^mu / (e^mu + c), Z = alpha beta + (1 - alpha) / C. The gradient
/// is computed on W_OV and the class scores and averaged over classes; on the line W_OV = mu D, scores = nu it is exact
/// (tests/flow/objectives_test.cpp confirms every line against the full matrices).

/// Cross entropy of the attention-weighted representation, loss = log(1 + c e^{-alpha mu}):
///     mu' = alpha / (e^{alpha mu} + c),    nu' = alpha (1 - alpha) c mu / (C (e^{alpha mu} + c))
struct SoftAttention {
  static constexpr const char* name = "soft";

  template <class Scalar>
  static Scalar mu_velocity(const ForegroundView<Scalar>& s) {
    return s.alpha * s.miss_probability(Scalar(s.alpha * s.mu)) / (s.classes - Scalar(1));
  }
  template <class Scalar>
  static Scalar nu_velocity(const ForegroundView<Scalar>& s) {
    return s.alpha * s.rest * s.mu * s.miss_probability(Scalar(s.alpha * s.mu)) / s.classes;
  }
  template <class Scalar>
  static Scalar loss(const ForegroundView<Scalar>& s) {
    using std::log;
    return softplus(Scalar(log(s.classes - Scalar(1)) - s.alpha * s.mu));
  }
  template <class Scalar>
  static Scalar gain(const ForegroundView<Scalar>& s) {
    return log_probability_gain(s.classes, Scalar(s.alpha * s.mu));
  }
};

/// Cross entropy averaged over positions by attention, loss = alpha (-log beta) + (1 - alpha) log C:
///     mu' = alpha / (e^mu + c),    nu' = alpha (1 - alpha) log(C beta) / C
struct HardAttention {
  static constexpr const char* name = "hard";

  template <class Scalar>
  static Scalar mu_velocity(const ForegroundView<Scalar>& s) {
    return s.alpha * s.miss_probability(s.mu) / (s.classes - Scalar(1));
  }
  template <class Scalar>
  static Scalar nu_velocity(const ForegroundView<Scalar>& s) {
    return s.alpha * s.rest * log_probability_gain(s.classes, s.mu) / s.classes;
  }
  template <class Scalar>
  static Scalar loss(const ForegroundView<Scalar>& s) {
    using std::log;
    return s.alpha * softplus(Scalar(log(s.classes - Scalar(1)) - s.mu)) + s.rest * log(s.classes);
  }
  template <class Scalar>
  static Scalar gain(const ForegroundView<Scalar>& s) {
    return s.alpha * log_probability_gain(s.classes, s.mu);
  }
};

/// Minus the logarithm of the attention-averaged probability (latent-variable marginal likelihood), loss = -log Z:
///     mu' = alpha beta / ((e^mu + c) Z),    nu' = (alpha / C) (beta / Z - 1)
struct LatentMarginal {
  static constexpr const char* name = "lvml";

  /// C Z = 1 - alpha + alpha C beta, without cancellation.
  template <class Scalar>
  static Scalar relative_likelihood(const ForegroundView<Scalar>& s, const Scalar& relative_beta) {
    return s.rest + s.alpha * relative_beta;
  }
  template <class Scalar>
  static Scalar mu_velocity(const ForegroundView<Scalar>& s) {
    using std::exp;
    const Scalar relative_beta = exp(log_probability_gain(s.classes, s.mu));
    return s.alpha * s.miss_probability(s.mu) * relative_beta /
           (relative_likelihood(s, relative_beta) * (s.classes - Scalar(1)));
  }
  template <class Scalar>
  static Scalar nu_velocity(const ForegroundView<Scalar>& s) {
    using std::exp;
    using std::expm1;
    const Scalar log_beta = log_probability_gain(s.classes, s.mu);
    const Scalar relative_beta = exp(log_beta);
    return s.alpha * s.rest * expm1(log_beta) / (relative_likelihood(s, relative_beta) * s.classes);
  }
  template <class Scalar>
  static Scalar loss(const ForegroundView<Scalar>& s) {
    using std::log;
    using std::log1p;
    // 1 - Z, a sum of two shares
    const Scalar others = (s.classes - Scalar(1)) / s.classes;
    const Scalar missing = s.alpha * s.miss_probability(s.mu) + s.rest * others;
    return missing < Scalar(0.5) ? Scalar(-log1p(-missing)) : Scalar(log(s.classes) - gain(s));
  }
  template <class Scalar>
  static Scalar gain(const ForegroundView<Scalar>& s) {
    using std::exp;
    using std::expm1;
    using std::log;
    using std::log1p;
    const Scalar log_beta = log_probability_gain(s.classes, s.mu);
    const Scalar change = s.alpha * expm1(log_beta);
    if (change < Scalar(-0.5)) return log(relative_likelihood(s, Scalar(exp(log_beta))));
    return log1p(change);
  }
};

/// A point of the flow of an objective.
template <class Scalar>
struct ForegroundPoint {
  Scalar mu, nu, alpha, beta, loss;
};

/// The gradient flow of W_OV = mu D and the scores nu under one of the three objectives, with learning rates eta_OV for
/// mu and eta_QK for nu. A velocity field for `solve`: x = (mu, nu). Finite for every finite state.
template <class Scalar, class Objective>
struct ForegroundFlow {
  using scalar_type = Scalar;
  using objective_type = Objective;

  ForegroundTask<Scalar> task{};
  LearningRates<Scalar> rates{};

  Scalar alpha(const Scalar& nu) const { return view(Scalar(0), nu).alpha; }
  /// beta = e^mu / (e^mu + C - 1): the probability of the label when only the foreground is seen.
  Scalar beta(const Scalar& mu) const {
    using std::exp;
    return Scalar(1) / (Scalar(1) + (task.classes - Scalar(1)) * exp(-mu));
  }
  Scalar loss(const Scalar& mu, const Scalar& nu) const { return Objective::loss(view(mu, nu)); }
  /// log C - loss, with full relative accuracy near chance.
  Scalar gain(const Scalar& mu, const Scalar& nu) const { return Objective::gain(view(mu, nu)); }
  ForegroundPoint<Scalar> point(const Scalar& mu, const Scalar& nu) const {
    const auto s = view(mu, nu);
    return {mu, nu, s.alpha, beta(mu), Objective::loss(s)};
  }
  Scalar mu_velocity(const Scalar& mu, const Scalar& nu) const {
    return rates.ov * Objective::mu_velocity(view(mu, nu));
  }
  template <class State>
  void operator()(const State& x, State& dxdt, const Scalar& /*t*/) const {
    const auto s = view(x[0], x[1]);
    dxdt[0] = rates.ov * Objective::mu_velocity(s);
    dxdt[1] = rates.qk * Objective::nu_velocity(s);
  }
  void validate(const char* function) const {
    task.validate(function);
    rates.validate(function);
  }

 private:
  ForegroundView<Scalar> view(const Scalar& mu, const Scalar& nu) const { return {task, mu, nu}; }
};

template <class Scalar>
using SoftFlow = ForegroundFlow<Scalar, SoftAttention>;
template <class Scalar>
using HardFlow = ForegroundFlow<Scalar, HardAttention>;
template <class Scalar>
using LatentMarginalFlow = ForegroundFlow<Scalar, LatentMarginal>;

}  // namespace qkflow
