// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/math/quadrature/gauss.hpp>
#include <limits>

namespace qkflow {

/// Gauss-Legendre quadrature of a smooth function over one panel, through Boost.Math: 15 points up to 64-bit mantissas,
/// 30 beyond. A panel is meant to be short: over `panel_variation` e-foldings of every exponential in the integrand the
/// error is below the last bits of Scalar. Does not allocate.
template <class Scalar, class Function>
Scalar integrate_panel(const Function& function, const Scalar& from, const Scalar& to) {
  constexpr unsigned points = std::numeric_limits<Scalar>::digits <= 64 ? 15 : 30;
  return boost::math::quadrature::gauss<Scalar, points>::integrate(function, from, to);
}

/// How many e-foldings a panel of `integrate_panel` may span.
template <class Scalar>
constexpr double panel_variation() {
  return std::numeric_limits<Scalar>::digits <= 64 ? 2.2 : 1.0;
}

}  // namespace qkflow
