// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

namespace qkflow_test {

/// The one table of tolerances: each a multiple of the scalar's epsilon, named by what is being compared.
/// In double (epsilon 2.2e-16): rounding 2e-15, elementary 1e-14, state 1e-13, time 1e-12, extreme 1e-11, solver 1e-10.
enum class Tol : long long {
  rounding = 8,           // the same formula written two ways
  elementary = 48,        // a special function against 50 digits
  state = 450,            // closed-form state against golden values
  time = 4500,            // closed-form time against golden values
  extreme = 45000,        // closed form at extreme parameters against 50 digits
  solver = 450000,        // an ODE solver at rtol 1e-12 against the closed form
  matrix_flow = 4500000,  // matrix flow against reduced flow (1e-9)
  difference = 45000000,  // an analytic gradient against central differences (1e-8)
};

template <class Scalar>
Scalar tolerance(Tol tol) {
  return static_cast<Scalar>(static_cast<long long>(tol)) * std::numeric_limits<Scalar>::epsilon();
}

}  // namespace qkflow_test
