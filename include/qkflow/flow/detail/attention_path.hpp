// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/math/constants/constants.hpp>
#include <boost/math/policies/policy.hpp>
#include <boost/math/special_functions/expint.hpp>
#include <cmath>
#include <limits>
#include <utility>

#include "qkflow/math/quadrature.hpp"
#include "qkflow/math/roots.hpp"
#include "qkflow/task/block_task.hpp"

namespace qkflow {

/// One point of the attention circuit's path, as a function of its displacement v.
template <class Scalar>
struct AttentionStep {
  Scalar score;        ///< q
  Scalar score_slope;  ///< dq/dv, above 0
  Scalar odds;         ///< alpha / (1 - alpha)
  Scalar rise;         ///< T(q) - T(q0)
  Scalar rise_slope;   ///< dT/dv, above 0
};

namespace detail {
/// A little below the logarithm of the largest number; for types without a practical limit, beyond any score in use.
template <class Scalar>
constexpr double log_range() {
  return std::numeric_limits<Scalar>::max_exponent < 16384 ? 0.69 * std::numeric_limits<Scalar>::max_exponent : 11000.0;
}
/// The displacement coordinate shared by the factorized circuits, their linear part and the integral of the odds.
/// `Path` supplies score(v), score_slope(v), weight(v) = dT/dv / (odds + 1), linear(v) = int weight dv, its inverse
/// linear_inverse(l) (saturating), and exact_integral(v0, v, value): false where the odds integral has no special form.
template <class Scalar, class Path>
class FactorizedAttentionSide {
 public:
  FactorizedAttentionSide(const BlockTask<Scalar>& task, Path path)
      : ratio_(task.informative / task.noise), path_(std::move(path)) {
    using std::log;
    // Odds below epsilon^1.5 next to the linear part, and e-foldings that far below the top, change no digit of T.
    depth_ = Scalar(-1.5) * log(std::numeric_limits<Scalar>::epsilon()) + Scalar(5);
    floor_ = -depth_ - log(ratio_);
    top_ = Scalar(log_range<Scalar>());
  }
  AttentionStep<Scalar> at(const Scalar& v) const {
    using std::exp;
    const Scalar score = path_.score(v);
    const Scalar odds = ratio_ * exp(score);
    return {score, path_.score_slope(v), odds, path_.linear(v) + ratio_ * integral(v),
            path_.weight(v) * (odds + Scalar(1))};
  }
  Scalar displacement_of_score(const Scalar& score) const { return path_.displacement(score); }
  Scalar least_displacement(const Scalar& rise) const { return displacement(rise); }
  Scalar fold(const Scalar& v) const { return v; }
  Scalar highest() const {
    return path_.score(Scalar(0)) < Scalar(0) && path_.keeps_sign() ? std::numeric_limits<Scalar>::infinity()
                                                                    : path_.displacement(top_);
  }

  /// Newton's method on log(T / rise), which is nearly straight where T is nearly linear and where it is exponential.
  Scalar displacement(const Scalar& rise) const {
    using std::abs;
    using std::log;
    if (rise == Scalar(0)) return Scalar(0);
    const Scalar sign = rise > Scalar(0) ? Scalar(1) : Scalar(-1);
    // The odds only add to T: its linear part alone needs the longest way.
    Scalar far = abs(path_.linear_inverse(rise));
    if (rise > Scalar(0) && (path_.score(far) > top_ || !(far < std::numeric_limits<Scalar>::max()))) {
      far = path_.displacement(top_);
    }
    const Scalar straight = abs(rise) / at(Scalar(0)).rise_slope;
    Scalar guess = straight < far ? straight : far;
    if (rise > Scalar(0)) {
      const Scalar size = Scalar(3) + rise / (path_.weight(guess) * ratio_);
      const Scalar exponential = log(size) + log(log(size));
      if (exponential < path_.score(guess) && exponential > path_.score(Scalar(0))) {
        guess = path_.displacement(exponential);
      }
    }
    return sign * increasing_root(
                      [&](const Scalar& distance) -> ValueAndSlope<Scalar> {
                        const AttentionStep<Scalar> step = at(Scalar(sign * distance));
                        return {Scalar(log(step.rise / rise)), Scalar(sign * step.rise_slope / step.rise)};
                      },
                      Scalar(0), far, guess);
  }

 private:
  /// int_0^v e^{q} weight dv': special functions where the path has them and the ends are apart, else panels.
  Scalar integral(const Scalar& v) const {
    using std::log;
    if (v == Scalar(0)) return Scalar(0);
    const Scalar q0 = path_.score(Scalar(0));
    const Scalar q = path_.score(v);
    Scalar value;
    if (path_.exact_integral(v, q0, q, value)) return value;
    const auto integrand = [this](const Scalar& u) -> Scalar {
      using std::exp;
      return exp(path_.score(u)) * path_.weight(u);
    };
    // From the low end of the score upwards, leaving out what is too far below the top to count.
    Scalar low = v > Scalar(0) ? Scalar(0) : v;
    const Scalar high = v > Scalar(0) ? v : Scalar(0);
    const Scalar top = v > Scalar(0) ? q : q0;
    Scalar cut = top - depth_;
    const Scalar weight_ratio = path_.weight(low) / path_.weight(high);
    if (weight_ratio > Scalar(1)) cut -= log(weight_ratio);  // of more than two factors, towards 0
    if (cut < floor_) cut = floor_;
    if (top <= cut) return Scalar(0);
    if (path_.score(low) < cut) {
      const Scalar trimmed = path_.displacement(cut);
      if (trimmed > low && trimmed < high) low = trimmed;
    }
    // e^{q(v)} is entire: a Gauss panel may span several e-foldings of it, and one of q itself.
    constexpr bool wide = std::numeric_limits<Scalar>::digits <= 64;
    const Scalar widest(wide ? 1.0 : 0.5), foldings(wide ? 4.5 : 2.5);
    Scalar sum(0);
    while (low < high) {
      Scalar width = foldings / path_.score_slope(low);
      if (width > widest) width = widest;
      Scalar next = low + width;
      if (next >= high || next == low) next = high;
      sum += integrate_panel(integrand, low, next);
      low = next;
    }
    return v > Scalar(0) ? sum : Scalar(-sum);
  }

  Scalar ratio_, depth_, floor_, top_;
  Path path_;
};

/// q = q0 e^{+-v}: the sign of q never changes. weight = |q|^{1-p} / K.
template <class Scalar>
class PowerPath {
 public:
  PowerPath(const Scalar& start, const Scalar& power, const Scalar& factor)
      : start_(start), sign_(start > Scalar(0) ? Scalar(1) : Scalar(-1)), excess_(power - Scalar(1)) {
    using std::abs;
    using std::pow;
    balanced_ = excess_ == Scalar(0);
    weight_ = balanced_ ? Scalar(Scalar(1) / factor) : Scalar(pow(abs(start), -excess_) / factor);
    if (balanced_) exponential_integral_ = exponential_integral(start);
  }
  Scalar score(const Scalar& v) const {
    using std::exp;
    return start_ * exp(sign_ * v);
  }
  Scalar score_slope(const Scalar& v) const { return sign_ * score(v); }
  static constexpr bool keeps_sign() { return true; }
  Scalar displacement(const Scalar& score) const {
    using std::abs;
    using std::log;
    using std::log1p;
    const Scalar relative = (score - start_) / start_;
    return sign_ * (abs(relative) < Scalar(0.5) ? log1p(relative) : log(Scalar(score / start_)));
  }
  Scalar weight(const Scalar& v) const {
    using std::exp;
    return balanced_ ? weight_ : Scalar(weight_ * exp(-sign_ * excess_ * v));
  }
  Scalar linear(const Scalar& v) const {
    using std::expm1;
    if (balanced_) return weight_ * v;
    return -sign_ * weight_ * expm1(Scalar(-sign_ * excess_ * v)) / excess_;
  }
  Scalar linear_inverse(const Scalar& l) const {
    using std::log1p;
    if (balanced_) return l / weight_;
    const Scalar x = -sign_ * l * excess_ / weight_;
    return x > Scalar(-1) ? Scalar(-sign_ * log1p(x) / excess_) : std::numeric_limits<Scalar>::infinity();
  }
  bool exact_integral(const Scalar& v, const Scalar& q0, const Scalar& q, Scalar& value) const {
    using std::abs;
    using std::log;
    if (!balanced_ || (abs(v) <= Scalar(1) && abs(q - q0) <= Scalar(2))) return false;
    // Towards 0, Ei(q) = gamma + log|q| + q + ...: log|q| is known even where q itself underflows.
    const Scalar end = abs(q) < std::numeric_limits<Scalar>::epsilon()
                           ? Scalar(boost::math::constants::euler<Scalar>() + log(abs(start_)) + sign_ * v)
                           : exponential_integral(q);
    value = sign_ * weight_ * (end - exponential_integral_);
    return true;
  }

 private:
  static Scalar exponential_integral(const Scalar& q) {
    using namespace boost::math::policies;
    using Quiet = policy<overflow_error<ignore_error>, underflow_error<ignore_error>, promote_double<false>,
                         promote_float<false>>;
    return boost::math::expint(q, Quiet());
  }
  Scalar start_, sign_, excess_, weight_, exponential_integral_{};
  bool balanced_;
};

/// q = (a/k) sinh(u0 + v), a = s^2 |lambda|, k = 2 sigma s: crosses 0 freely. weight = 1/k.
template <class Scalar>
class HyperbolicPath {
 public:
  HyperbolicPath(const Scalar& start, const Scalar& a, const Scalar& k) : ratio_(a / k), weight_(Scalar(1) / k) {
    using std::asinh;
    origin_ = asinh(Scalar(start / ratio_));
    start_ = start;
    cosh_ = slope_at(start);
    // cosh u0 +- sinh u0, the smaller one as the inverse of the larger.
    const bool positive = start > Scalar(0);
    const Scalar larger = positive ? Scalar(cosh_ + start) : Scalar(cosh_ - start);
    const Scalar smaller = ratio_ * ratio_ / larger;
    grow_ = positive ? larger : smaller;
    shrink_ = positive ? smaller : larger;
  }
  Scalar score(const Scalar& v) const {
    using std::exp;
    using std::sinh;
    // sinh(u0 + v) - sinh(u0) = 2 sinh(v/2) cosh(u0 + v/2), without cancellation; overflows to infinity, never to NaN.
    const Scalar half = v / Scalar(2);
    return start_ + sinh(half) * (grow_ * exp(half) + shrink_ * exp(-half));
  }
  Scalar score_slope(const Scalar& v) const { return slope_at(score(v)); }
  static constexpr bool keeps_sign() { return false; }
  Scalar displacement(const Scalar& score) const {
    using std::asinh;
    // asinh x - asinh y = asinh(x sqrt(1+y^2) - y sqrt(1+x^2)), written without cancellation.
    const Scalar sum = start_ * slope_at(score) + score * cosh_;
    if (score * start_ > Scalar(0)) return asinh(Scalar((score - start_) * ((score + start_) / sum)));
    return asinh(Scalar(score / ratio_)) - origin_;
  }
  Scalar weight(const Scalar& /*v*/) const { return weight_; }
  Scalar linear(const Scalar& v) const { return weight_ * v; }
  Scalar linear_inverse(const Scalar& l) const { return l / weight_; }
  bool exact_integral(const Scalar&, const Scalar&, const Scalar&, Scalar&) const { return false; }

 private:
  Scalar slope_at(const Scalar& q) const {
    using std::sqrt;
    return sqrt(ratio_ * ratio_ + q * q);
  }
  Scalar ratio_, weight_, origin_, start_, cosh_, grow_, shrink_;
};

}  // namespace detail
}  // namespace qkflow
