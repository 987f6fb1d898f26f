// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "qkflow/flow/detail/integrator.hpp"
#include "qkflow/flow/odeint.hpp"
#include "qkflow/flow/solution.hpp"
#include "qkflow/flow/solve_options.hpp"
#include "qkflow/flow/stop.hpp"

namespace qkflow {

/// A velocity field: field(x, dxdt, t) writes the velocity at (t, x) to dxdt, which has the length of x.
template <class Field, class State>
concept VelocityField = std::invocable<Field&, const State&, State&, const typename State::Scalar&>;

/// Integrates dx/dt = field(x, t) from (options.t0, start) to options.t_end or to the first terminal stop condition.
///
///     using State = Eigen::Vector2d;
///     const Solution<State> s = solve(flow, State(0, 0), {.t_end = 1e6, .rtol = 1e-12},
///                                     {stop_below<State>("loss", loss, 1e-4)}, Fehlberg78{});
///
/// The state is one flat Eigen column vector, dynamic or fixed size, of float, double, long double or a Boost
/// multiprecision number (without expression templates). Steps after the first allocate no state;
/// saving rows is opt-in.
///
/// Throws InvalidArgument for options it cannot work with, before the first evaluation. From then on nothing is thrown:
/// whatever stops it - an exception out of the field or a condition, a NaN, a step that no longer moves t, the step
/// cap, the cancellation flag - is the `status` of the solution, with a message, the last good state and its time.
/// t_end is met exactly: the last step is shortened. Steps are not bent towards save times or stop conditions: those
/// are found inside the step, by a shorter step from the same start (or the interpolant, see DormandPrince5Dense).
template <OdeMethod Method = DormandPrince5, class Field, class Scalar, int Rows>
Solution<Eigen::Matrix<Scalar, Rows, 1>> solve(
    Field&& field, const Eigen::Matrix<Scalar, Rows, 1>& start,
    const std::type_identity_t<SolveOptions<Eigen::Matrix<Scalar, Rows, 1>>>& options,
    const std::type_identity_t<std::vector<Stop<Eigen::Matrix<Scalar, Rows, 1>>>>& stops = {},
    [[maybe_unused]] Method method = {}) {
  using State = Eigen::Matrix<Scalar, Rows, 1>;
  static_assert(VelocityField<std::remove_reference_t<Field>, State>,
                "qkflow::solve: the field must be callable as field(const State& x, State& dxdt, const Scalar& t), and "
                "const if it is a const object");
  detail::validate(options, start, stops, Method::adaptive);
  std::size_t evaluations = 0;
  const detail::FieldRef<State> reference(field, evaluations);
  detail::Integrator<Method, State> integrator(reference, start, options, stops);
  Solution<State> solution = integrator.run();
  solution.statistics.evaluations = evaluations;
  return solution;
}

}  // namespace qkflow
