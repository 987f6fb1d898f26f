// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <type_traits>

#include "qkflow/flow/solve.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

namespace detail {
/// The state of a field where it says so (`Field::State`), else a vector as long as its rooms of numbers: two for
/// reduced flows, any length for all others.
template <class Field>
struct FieldStateOf {
  using Scalar = typename Field::scalar_type;
  static constexpr int rows = requires(const Field& f, const Scalar& x) { f.point(x, x); }
  ? 2 : Eigen::Dynamic;
  using type = Eigen::Matrix<Scalar, rows, 1>;
};
template <class Field>
requires requires { typename Field::State; }
struct FieldStateOf<Field> {
  using type = typename Field::State;
};

/// Writes F'(x) v: by the field's own `derivative`, or by that of the GradientField within a MatrixFlow.
template <class Field, class State>
void field_derivative(Field& field, const State& x, const State& v, State& result) requires requires {
  field.derivative(x, v, result);
}
{ field.derivative(x, v, result); }
template <class Field, class State>
void field_derivative(Field& field, const State& x, const State& v, State& result) requires requires {
  field.field().derivative(x, v, result);
}
{ field.field().derivative(x, v, result); }
}  // namespace detail

/// The state type of a field: Eigen::Vector of two numbers for reduced flows, of any length for matrix flows; a field
/// of one's own names it `State`.
template <class Field>
using FieldState = typename detail::FieldStateOf<std::remove_cv_t<Field>>::type;

/// A velocity field whose directional derivative F'(x) v is known exactly: `field.derivative(x, v, result)`, as
/// ReducedFlow and GradientField have it, or MatrixFlow through its GradientField.
template <class Field, class State>
concept DifferentiableField = VelocityField<Field, State> && requires(Field& field, const State& x, State& result) {
  detail::field_derivative(field, x, x, result);
};

/// The flow that gradient descent with step h follows to second order [Barrett21, Hairer06]:
///
///     dx/dt = F(x) - (h/2) F'(x) F(x)           with F = -P dL/dx:  -P grad L - (h/2) P H P grad L,
///
/// P the learning rate of each parameter: both circuits' rates are inside F, so each of them is accounted for. Gradient
/// descent stays within O(h^2) of it over a fixed time, and within O(h) of the flow itself.
///
/// In the coordinates of the field: gradient descent on the factors of a factorized circuit is a step of the *matrix*
/// field (or of FactorFlow, compare/factor_flow.hpp), not of the reduced field, whose coordinate is the product.
///
///     MatrixFlow flow(...);
///     ModifiedFlow modified(flow, h);
///     const auto run = solve(modified, start, {.t_end = 10});
///
/// Keeps a pointer to the field, which must outlive it, and buffers: hand it on by reference, use it from one thread.
template <class Field, class X = FieldState<Field>>
class ModifiedFlow {
 public:
  static_assert(DifferentiableField<Field, X>,
                "qkflow::ModifiedFlow: the field must have derivative(x, v, result) writing F'(x) v");
  using State = X;
  using Scalar = typename State::Scalar;
  using scalar_type = Scalar;

  /// Throws InvalidArgument for a step that is negative or not finite; 0 is the flow itself.
  ModifiedFlow(Field& field, const Scalar& step) : field_(&field), step_(step) {
    require_non_negative("ModifiedFlow", "step", step);
  }
  ModifiedFlow(Field&&, const Scalar&) = delete;  // it would be gone

  Field& field() const { return *field_; }
  const Scalar& step() const { return step_; }

  void operator()(const State& x, State& dxdt, const Scalar& t) {
    velocity_.resize(x.size());
    turn_.resize(x.size());
    (*field_)(x, velocity_, t);
    detail::field_derivative(*field_, x, velocity_, turn_);
    dxdt = velocity_ - (step_ / Scalar(2)) * turn_;
  }

 private:
  Field* field_;
  Scalar step_;
  State velocity_, turn_;
};

template <class Field, class Scalar>
ModifiedFlow(Field&, const Scalar&) -> ModifiedFlow<Field>;

}  // namespace qkflow
