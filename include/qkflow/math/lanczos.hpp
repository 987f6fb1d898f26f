// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "qkflow/math/random.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

struct LanczosOptions {
  int max_steps = 200;       ///< products with the operator, at least 1
  double rtol = 1e-8;        ///< stop when both ends are known to rtol * the largest magnitude
  bool largest_only = true;  ///< wait for the largest eigenvalue alone
  std::uint64_t seed = 1;    ///< of the starting vector
};

template <class Scalar>
struct ExtremeEigenvalues {
  Scalar largest = 0, smallest = 0;              ///< algebraically
  Scalar largest_error = 0, smallest_error = 0;  ///< bounds: an eigenvalue lies within this of each
  int steps = 0;                                 ///< products with the operator
  bool converged = false;
};

/// The ends of the spectrum of a symmetric operator on vectors of length n, by Lanczos' three-term recurrence from a
/// random vector. `apply(v, out)` writes A v; three vectors are kept, whatever the number of steps: lost orthogonality
/// repeats eigenvalues inside the spectrum but does not move its ends. A NaN from the operator ends the run
/// unconverged, with NaN in both ends.
///
/// Throws InvalidArgument for n below 1 or options out of range.
template <class Scalar, class Operator>
ExtremeEigenvalues<Scalar> extreme_eigenvalues(Eigen::Index n, Operator&& apply, const LanczosOptions& options = {}) {
  using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;
  using std::abs;
  using std::isfinite;
  constexpr const char* function = "extreme_eigenvalues";
  if (n < 1) throw_invalid(function, "n", n, "be at least 1");
  if (options.max_steps < 1) throw_invalid(function, "max_steps", options.max_steps, "be at least 1");
  require_non_negative(function, "rtol", options.rtol);

  RandomStream random(options.seed);
  Vector v(n), previous = Vector::Zero(n), next(n);
  for (Scalar& entry : v) entry = static_cast<Scalar>(random.normal());
  v /= v.norm();
  std::vector<Scalar> diagonal, off_diagonal;
  ExtremeEigenvalues<Scalar> result;
  Scalar beta(0);
  while (result.steps < options.max_steps) {
    apply(static_cast<const Vector&>(v), next);
    ++result.steps;
    const Scalar alpha = v.dot(next);
    next -= alpha * v;
    if (result.steps > 1) next -= beta * previous;
    diagonal.push_back(alpha);
    beta = next.norm();
    if (!isfinite(beta) || !isfinite(alpha)) {
      result.largest = result.smallest = alpha + beta - beta + (alpha - alpha);
      return result;
    }

    const auto size = static_cast<Eigen::Index>(diagonal.size());
    Eigen::SelfAdjointEigenSolver<Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>> solver;
    solver.computeFromTridiagonal(Eigen::Map<const Vector>(diagonal.data(), size),
                                  Eigen::Map<const Vector>(off_diagonal.data(), size - 1));
    const auto& values = solver.eigenvalues();
    result.largest = values[size - 1];
    result.smallest = values[0];
    // The residual of a Ritz pair is beta times the last entry of its vector.
    result.largest_error = beta * abs(solver.eigenvectors()(size - 1, size - 1));
    result.smallest_error = beta * abs(solver.eigenvectors()(size - 1, 0));
    const Scalar size_of_spectrum = std::max(Scalar(abs(result.largest)), Scalar(abs(result.smallest)));
    const Scalar wanted = Scalar(options.rtol) * size_of_spectrum;
    result.converged = result.largest_error <= wanted && (options.largest_only || result.smallest_error <= wanted);
    // Beta vanishes when the vectors so far span an invariant space: nothing more can be learned from this start.
    const bool exhausted = beta <= std::numeric_limits<Scalar>::epsilon() * size_of_spectrum || result.steps >= n;
    result.converged = result.converged || exhausted;
    if (result.converged) return result;
    off_diagonal.push_back(beta);
    previous.swap(v);
    v = next / beta;
  }
  return result;
}

}  // namespace qkflow
