// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <concepts>
#include <limits>

#include "qkflow/math/require.hpp"

namespace qkflow {

namespace detail {
/// -1, 0 or 1; NaN stays NaN.
template <class Scalar>
Scalar sign(const Scalar& x) {
  if (x > Scalar(0)) return Scalar(1);
  if (x < Scalar(0)) return Scalar(-1);
  return x == Scalar(0) ? Scalar(0) : x;
}
}  // namespace detail

/// What a parameterization is to the reduced flow: a factor rho(mu) on the circuit's learning rate,
///     d mu/dt = rho(mu) * (d mu/dt of the collapsed circuit),
/// where mu is the weight along the line and sigma the singular value of the line's direction. A rate factor has
///   rate(mu, sigma)      rho(mu), at least 0
///   slope(mu, sigma)     d rho / d mu; may be left out: only the derivative of the field needs it. Where rho has
///                        a kink (at 0) it is 0, the mean of both sides
///   saddle_at_zero()     true when rho(0) = 0: mu = 0 stays there and no trajectory crosses it
///   validate(function)   throws InvalidArgument
/// A user's own rate factor with these members integrates through `solve`; the closed form knows the four below.

/// A rate factor whose slope is known.
template <class Rate, class Scalar>
concept DifferentiableRate = requires(const Rate& rate, const Scalar& x) {
  { rate.slope(x, x) } -> std::convertible_to<Scalar>;
};

/// One matrix: rho = 1.
struct Collapsed {
  template <class Scalar>
  Scalar rate(const Scalar& /*mu*/, const Scalar& /*sigma*/) const {
    return Scalar(1);
  }
  template <class Scalar>
  Scalar slope(const Scalar& /*mu*/, const Scalar& /*sigma*/) const {
    return Scalar(0);
  }
  static constexpr bool saddle_at_zero() { return false; }
  void validate(const char* /*function*/) const {}
};

/// Two balanced factors aligned to the singular vectors: rho = 2 sigma |mu|. From mu > 0 it grows, at 0 it stays, from
/// mu < 0 it rises towards 0 and never crosses [Vashisht26].
struct Balanced {
  template <class Scalar>
  Scalar rate(const Scalar& mu, const Scalar& sigma) const {
    using std::abs;
    return Scalar(2) * sigma * abs(mu);
  }
  template <class Scalar>
  Scalar slope(const Scalar& mu, const Scalar& sigma) const {
    return Scalar(2) * sigma * detail::sign(mu);
  }
  static constexpr bool saddle_at_zero() { return true; }
  void validate(const char* /*function*/) const {}
};

/// Two factors with conserved imbalance lambda = w_1^2 - w_2^2 per singular direction (mu = w_1 w_2 / sigma):
/// rho = sqrt(lambda^2 + 4 sigma^2 mu^2). Lambda -> 0 is Balanced (rich), a large lambda a collapsed circuit at
/// |lambda| times the rate (lazy) [Du18].
template <class Scalar>
struct Unbalanced {
  Scalar lambda;

  Scalar rate(const Scalar& mu, const Scalar& sigma) const {
    using std::sqrt;
    const Scalar product = Scalar(2) * sigma * mu;
    return sqrt(lambda * lambda + product * product);
  }
  Scalar slope(const Scalar& mu, const Scalar& sigma) const {
    const Scalar product = Scalar(2) * sigma * mu;
    return Scalar(2) * sigma * (product / rate(mu, sigma));
  }
  static constexpr bool saddle_at_zero() { return false; }
  void validate(const char* function) const {
    require_finite(function, "lambda", lambda);
    if (lambda == Scalar(0)) throw_invalid(function, "lambda", lambda, "not be 0: use Balanced");
    const Scalar square = lambda * lambda;
    if (!(square >= std::numeric_limits<Scalar>::min()) || !(square <= std::numeric_limits<Scalar>::max())) {
      throw_invalid(function, "lambda", lambda, "have a square within the range of the scalar type");
    }
  }
};

/// A product of N balanced factors: rho = N (sigma |mu|)^(2 - 2/N) [Arora18]. N = 1 is Collapsed, N = 2 is Balanced.
/// With sigma |mu| = w^N, each of the N factors contributes (product of the other N - 1)^2 = w^(2 N - 2).
struct FactorProduct {
  int factors = 2;

  template <class Scalar>
  Scalar rate(const Scalar& mu, const Scalar& sigma) const {
    using std::abs;
    using std::pow;
    if (factors == 1) return Scalar(1);
    return Scalar(factors) * pow(sigma * abs(mu), exponent<Scalar>());
  }
  template <class Scalar>
  Scalar slope(const Scalar& mu, const Scalar& sigma) const {
    using std::abs;
    using std::pow;
    if (factors == 1) return Scalar(0);
    const Scalar power = exponent<Scalar>();
    return detail::sign(mu) * Scalar(factors) * power * sigma * pow(sigma * abs(mu), Scalar(power - Scalar(1)));
  }
  /// 2 - 2/N
  template <class Scalar>
  Scalar exponent() const {
    return Scalar(2) - Scalar(2) / Scalar(factors);
  }
  bool saddle_at_zero() const { return factors > 1; }
  void validate(const char* function) const {
    if (factors < 1) throw_invalid(function, "factors", factors, "be at least 1");
  }
};

}  // namespace qkflow
