// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/flow/detail/attention_path.hpp"
#include "qkflow/flow/rate_factor.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/wright_omega.hpp"

namespace qkflow {

// The trajectory without the clock. Dividing the two equations of ReducedFlow separates the variables
// (o = mu_OV, q = mu_QK, odds = alpha / (1 - alpha) = (m/n) e^q):
//
//     T(q) - T(q0) = r c0 (S(o) - S(o0)),
//     S(o) = int o / rho_OV do,    T(q) = int (odds + 1) / (s^2 rho_QK) dq
//
// OutputSide is S and its inverse, AttentionSide is T and its inverse. Both work with differences from a start, so
// that no digits are lost however little a circuit has moved.

/// S along the path that starts at o0, as a function of the advance delta = o - o0 >= 0. `gain(delta)` = S(o) - S(o0);
/// `advance(gain)` is its inverse on the side of the start (S is even in o, so that a gain is taken twice by a path
/// that crosses 0), and `advance_across(gain)` the one at o >= 0.
template <class Scalar, class OvRate>
class OutputSide;

namespace detail {

/// The output circuits whose path may cross 0: o0^2 + `square_gain` is the square at the end.
template <class Scalar>
Scalar signed_advance(const Scalar& start, const Scalar& square_gain, bool across) {
  using std::abs;
  using std::sqrt;
  const Scalar square = start * start + square_gain;
  const Scalar root = square > Scalar(0) ? Scalar(sqrt(square)) : Scalar(0);
  if (start < Scalar(0) && across) return root - start;
  if (square_gain == Scalar(0)) return Scalar(0);
  return abs(square_gain) / (root + abs(start));  // |root - |o0||, without cancellation
}

}  // namespace detail

/// A coordinate and its derivative.
template <class Scalar>
struct Fold {
  Scalar value, slope;
};

template <class Scalar>
class OutputSide<Scalar, Collapsed> {  // S = o^2 / 2
 public:
  OutputSide(const Collapsed& /*rate*/, const Scalar& /*sigma*/, const Scalar& start) : start_(start) {}
  Scalar gain(const Scalar& delta) const { return delta * (start_ + delta / Scalar(2)); }
  Scalar advance(const Scalar& gain) const { return detail::signed_advance(start_, Scalar(Scalar(2) * gain), false); }
  Scalar advance_across(const Scalar& gain) const {
    return detail::signed_advance(start_, Scalar(Scalar(2) * gain), true);
  }
  Fold<Scalar> fold(const Scalar& /*o*/) const { return {Scalar(0), Scalar(0)}; }

 private:
  Scalar start_;
};

template <class Scalar>
class OutputSide<Scalar, Balanced> {  // S = |o| / (2 sigma)
 public:
  OutputSide(const Balanced& /*rate*/, const Scalar& sigma, const Scalar& start)
      : signed_two_sigma_(start < Scalar(0) ? Scalar(-2) * sigma : Scalar(2) * sigma) {}
  Scalar gain(const Scalar& delta) const { return delta / signed_two_sigma_; }
  Scalar advance(const Scalar& gain) const { return signed_two_sigma_ * gain; }
  Scalar advance_across(const Scalar& gain) const { return advance(gain); }
  Fold<Scalar> fold(const Scalar& o) const {
    using std::abs;
    using std::log;
    return {log(abs(o)), Scalar(1) / abs(o)};
  }

 private:
  Scalar signed_two_sigma_;
};

template <class Scalar>
class OutputSide<Scalar, Unbalanced<Scalar>> {  // S = sqrt(lambda^2 + k^2 o^2) / k^2, k = 2 sigma
 public:
  OutputSide(const Unbalanced<Scalar>& rate, const Scalar& sigma, const Scalar& start)
      : start_(start), lambda_square_(rate.lambda * rate.lambda), k_square_(Scalar(4) * sigma * sigma) {
    root_ = root(start);
  }
  Scalar gain(const Scalar& delta) const {
    return delta * (Scalar(2) * start_ + delta) / (root_ + root(Scalar(start_ + delta)));
  }
  Scalar advance(const Scalar& gain) const { return detail::signed_advance(start_, square_gain(gain), false); }
  Scalar advance_across(const Scalar& gain) const { return detail::signed_advance(start_, square_gain(gain), true); }
  Fold<Scalar> fold(const Scalar& o) const {
    using std::asinh;
    using std::sqrt;
    const Scalar k = sqrt(k_square_);
    return {asinh(Scalar(k * o / sqrt(lambda_square_))), k / root(o)};
  }

 private:
  Scalar root(const Scalar& o) const {
    using std::sqrt;
    return sqrt(lambda_square_ + k_square_ * o * o);
  }
  Scalar square_gain(const Scalar& gain) const { return gain * (Scalar(2) * root_ + k_square_ * gain); }
  Scalar start_, lambda_square_, k_square_, root_;
};

template <class Scalar>
class OutputSide<Scalar, FactorProduct> {  // S = |o|^{2/N} / (2 sigma^p), p = 2 - 2/N; N = 1 is the collapsed side
 public:
  OutputSide(const FactorProduct& rate, const Scalar& sigma, const Scalar& start)
      : collapsed_(rate.factors == 1),
        one_(Collapsed{}, sigma, start),
        start_(start),
        power_(Scalar(2) / Scalar(rate.factors)) {
    using std::abs;
    using std::pow;
    start_gain_ = pow(abs(start), power_) / (Scalar(2) * pow(sigma, rate.template exponent<Scalar>()));
  }
  Scalar gain(const Scalar& delta) const {
    using std::expm1;
    using std::log1p;
    return collapsed_ ? one_.gain(delta) : Scalar(start_gain_ * expm1(Scalar(power_ * log1p(Scalar(delta / start_)))));
  }
  Scalar advance(const Scalar& gain) const {
    using std::expm1;
    using std::log1p;
    if (collapsed_) return one_.advance(gain);
    const Scalar relative = gain / start_gain_;
    return relative > Scalar(-1) ? Scalar(start_ * expm1(Scalar(log1p(relative) / power_))) : Scalar(-start_);
  }
  Scalar advance_across(const Scalar& gain) const { return collapsed_ ? one_.advance_across(gain) : advance(gain); }
  Fold<Scalar> fold(const Scalar& o) const {
    using std::abs;
    using std::log;
    if (collapsed_) return one_.fold(o);
    return {log(abs(o)), Scalar(1) / abs(o)};
  }

 private:
  bool collapsed_;
  OutputSide<Scalar, Collapsed> one_;
  Scalar start_, power_, start_gain_;
};

/// T along the path that starts at q0, as a function of a displacement v with v(q0) = 0, increasing in q, chosen for
/// each rate factor so that everything is smooth in it. `at(v)` evaluates; `displacement(rise)` inverts
/// (`least_displacement` is a bound from below that may be cheaper, for rise >= 0);
/// `displacement_of_score(q)` is v(q); `fold(v)` is the part of v that is not the score itself (0 where v is): the
/// coordinate in which rho_QK has no scale.
template <class Scalar, class QkRate>
class AttentionSide;

/// Collapsed: v = q - q0, T = (A (e^v - 1) + v) / s^2 with A = (m/n) e^{q0}; inverted by the Wright omega function.
template <class Scalar>
class AttentionSide<Scalar, Collapsed> {
 public:
  AttentionSide(const BlockTask<Scalar>& task, Collapsed /*rate*/, const Scalar& start)
      : start_(start),
        scale_square_(task.score_scale * task.score_scale),
        inverse_scale_square_(Scalar(1) / scale_square_) {
    using std::exp;
    using std::log;
    log_weight_ = start + log(task.informative / task.noise);
    weight_ = task.informative / task.noise * exp(start);
  }
  AttentionStep<Scalar> at(const Scalar& v) const {
    using std::exp;
    using std::expm1;
    Scalar grown = weight_ * (v > Scalar(0.7) ? Scalar(exp(v) - Scalar(1)) : Scalar(expm1(v)));
    Scalar odds = v < Scalar(0) ? Scalar(weight_ * exp(v)) : Scalar(grown + weight_);
    if (v > Scalar(detail::log_range<Scalar>())) {  // e^v alone may overflow
      const Scalar half = exp(Scalar(v / Scalar(2)));
      odds = weight_ * half * half;
      grown = odds - weight_;
    }
    return {start_ + v, Scalar(1), odds, (grown + v) * inverse_scale_square_,
            (odds + Scalar(1)) * inverse_scale_square_};
  }
  Scalar displacement(const Scalar& rise) const {
    return exponential_displacement(weight_, Scalar(rise * scale_square_), log_weight_);
  }
  Scalar displacement_of_score(const Scalar& score) const { return score - start_; }
  Scalar least_displacement(const Scalar& rise) const {
    using std::log1p;
    return log1p(Scalar(rise * scale_square_ / (Scalar(1) + weight_)));
  }
  Scalar fold(const Scalar& /*v*/) const { return Scalar(0); }
  /// A displacement no path needs to pass: the odds end there with the range of Scalar.
  Scalar highest() const { return Scalar(detail::log_range<Scalar>()) - log_weight_; }

 private:
  Scalar start_, scale_square_, inverse_scale_square_, log_weight_, weight_;
};

/// Balanced: v = log(q / q0) (its negative below 0), T = (h(q) - h(q0)) / (2 sigma s), h = (m/n) Ei(q) + log|q|;
/// inverted by a bracketed root.
template <class Scalar>
class AttentionSide<Scalar, Balanced> : public detail::FactorizedAttentionSide<Scalar, detail::PowerPath<Scalar>> {
 public:
  AttentionSide(const BlockTask<Scalar>& task, Balanced /*rate*/, const Scalar& start)
      : detail::FactorizedAttentionSide<Scalar, detail::PowerPath<Scalar>>(
            task, {start, Scalar(1), Scalar(2) * task.query_key_singular_value() * task.score_scale}) {}
};

/// Unbalanced: v = asinh(k q / a) - asinh(k q0 / a); T by quadrature, inverted by a bracketed root.
template <class Scalar>
class AttentionSide<Scalar, Unbalanced<Scalar>>
    : public detail::FactorizedAttentionSide<Scalar, detail::HyperbolicPath<Scalar>> {
 public:
  AttentionSide(const BlockTask<Scalar>& task, const Unbalanced<Scalar>& rate, const Scalar& start)
      : detail::FactorizedAttentionSide<Scalar, detail::HyperbolicPath<Scalar>>(
            task, {start, task.score_scale * task.score_scale * (rate.lambda < Scalar(0) ? -rate.lambda : rate.lambda),
                   Scalar(2) * task.query_key_singular_value() * task.score_scale}) {}
};

/// N factors: v = log(q / q0), T by quadrature, inverted by a bracketed root; N = 1 is the collapsed side.
template <class Scalar>
class AttentionSide<Scalar, FactorProduct> {
 public:
  AttentionSide(const BlockTask<Scalar>& task, const FactorProduct& rate, const Scalar& start)
      : collapsed_(rate.factors == 1),
        one_(task, Collapsed{}, start),
        many_(task, {collapsed_ ? Scalar(1) : start, collapsed_ ? Scalar(1) : rate.template exponent<Scalar>(),
                     factor(task, rate)}) {}
  AttentionStep<Scalar> at(const Scalar& v) const { return collapsed_ ? one_.at(v) : many_.at(v); }
  Scalar displacement(const Scalar& rise) const {
    return collapsed_ ? one_.displacement(rise) : many_.displacement(rise);
  }
  Scalar displacement_of_score(const Scalar& score) const {
    return collapsed_ ? one_.displacement_of_score(score) : many_.displacement_of_score(score);
  }
  Scalar least_displacement(const Scalar& rise) const {
    return collapsed_ ? one_.least_displacement(rise) : many_.least_displacement(rise);
  }
  Scalar fold(const Scalar& v) const { return collapsed_ ? Scalar(0) : v; }
  Scalar highest() const { return collapsed_ ? one_.highest() : many_.highest(); }

 private:
  /// s^2 rho_QK = N s^2 (sigma / s)^p |q|^p
  static Scalar factor(const BlockTask<Scalar>& task, const FactorProduct& rate) {
    using std::pow;
    const Scalar s = task.score_scale;
    return Scalar(rate.factors) * s * s *
           pow(Scalar(task.query_key_singular_value() / s), rate.template exponent<Scalar>());
  }
  bool collapsed_;
  AttentionSide<Scalar, Collapsed> one_;
  detail::FactorizedAttentionSide<Scalar, detail::PowerPath<Scalar>> many_;
};

}  // namespace qkflow
