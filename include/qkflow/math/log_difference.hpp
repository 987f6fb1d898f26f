// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "qkflow/math/require.hpp"

namespace qkflow {
namespace detail {

/// An unevaluated sum high + low of two floating-point numbers: about twice the digits.
template <class Scalar>
struct DoubleWord {
  Scalar high, low;
};

template <class Scalar>
DoubleWord<Scalar> quick_two_sum(Scalar a, Scalar b) {
  const Scalar sum = a + b;
  return {sum, b - (sum - a)};
}

template <class Scalar>
DoubleWord<Scalar> multiply(DoubleWord<Scalar> a, DoubleWord<Scalar> b) {
  const Scalar high = a.high * b.high;
  const Scalar low = std::fma(a.high, b.high, -high) + (a.high * b.low + a.low * b.high);
  return quick_two_sum(high, low);
}

template <class Scalar>
DoubleWord<Scalar> divide(DoubleWord<Scalar> a, Scalar b) {
  const Scalar high = a.high / b;
  const Scalar low = (std::fma(-high, b, a.high) + a.low) / b;
  return quick_two_sum(high, low);
}

template <class Scalar>
DoubleWord<Scalar> add(DoubleWord<Scalar> a, DoubleWord<Scalar> b) {
  const Scalar sum = a.high + b.high;
  const Scalar of_b = sum - a.high;
  const Scalar error = (a.high - (sum - of_b)) + (b.high - of_b);  // exact, whichever is larger
  return quick_two_sum(sum, Scalar(error + (a.low + b.low)));
}

/// e^x for 0 <= x <= 40, relative error below 40 epsilon^2 (measured): Taylor series of e^r - 1 at r = x / 256 (an
/// exact division), then eight times e^{2r} - 1 = p (2 + p), which doubles an error where squaring e^r would let it
/// grow with every digit that e^r - 1 has lost.
template <class Scalar>
DoubleWord<Scalar> exp_double_word(Scalar x) {
  const DoubleWord<Scalar> one{Scalar(1), Scalar(0)};
  const DoubleWord<Scalar> r{x / Scalar(256), Scalar(0)};
  DoubleWord<Scalar> p = one;
  for (int k = 24; k >= 2; --k) p = add(one, divide(multiply(p, r), Scalar(k)));  // Horner: r (1 + r/2 (1 + r/3 ...))
  p = multiply(p, r);
  for (int k = 0; k < 8; ++k) p = add({Scalar(2) * p.high, Scalar(2) * p.low}, multiply(p, p));
  return add(one, p);
}

}  // namespace detail

/// log(a) - y for a > 0, also where the two nearly cancel and e^-40 < a < e^40: there log(a) - y =
/// log1p((a - e^y) / e^y) with e^y in double-word arithmetic, and the error is below 4 epsilon of the result plus
/// 2 epsilon^2 |y| (measured). For types that are not built-in floating point the plain difference is returned: they
/// are used with digits to spare.
template <class Scalar>
Scalar log_difference(const Scalar& a, const Scalar& y) {
  using std::abs;
  using std::log;
  const Scalar plain = log(a) - y;
  if constexpr (std::is_floating_point_v<Scalar>) {
    if (abs(plain) < Scalar(0.25) * abs(y) && abs(y) < Scalar(40)) {
      // e^|y|: of a small e^y, formed as 1 + (e^y - 1), the last digits would be lost.
      const detail::DoubleWord<Scalar> e = detail::exp_double_word(Scalar(abs(y)));
      if (y > Scalar(0)) return std::log1p(((a - e.high) - e.low) / e.high);
      const detail::DoubleWord<Scalar> product = detail::multiply({a, Scalar(0)}, e);
      return std::log1p((product.high - Scalar(1)) + product.low);
    }
  }
  return plain;
}

/// The logit gap z at which the cross entropy of M classes is `loss`:
///
///     loss = log(1 + (M-1) e^{-z}),   z = log((M-1) / (e^loss - 1))
///
/// accurate from loss = 1e-300 through log M (where z = 0) to far above it (z negative).
/// Preconditions: M >= 2, loss > 0 and finite.
template <class Scalar>
Scalar logit_gap_at_loss(const Scalar& classes, const Scalar& loss) {
  using std::abs;
  using std::exp;
  using std::expm1;
  using std::log;
  using std::log1p;
  require_at_least("logit_gap_at_loss", "classes", classes, Scalar(2));
  require_positive("logit_gap_at_loss", "loss", loss);
  // Near log M: (e^loss - 1) / (M - 1) = 1 + M (e^{-delta} - 1) / (M - 1), delta = log M - loss.
  const Scalar delta = log(classes) - loss;
  if (abs(delta) < Scalar(0.25)) {
    return -log1p(classes / (classes - Scalar(1)) * expm1(Scalar(-log_difference(classes, loss))));
  }
  const Scalar log_others = log(classes - Scalar(1));
  if (loss > Scalar(1)) return log_others - loss - log1p(-exp(-loss));
  return log_others - log(expm1(loss));
}

}  // namespace qkflow
