// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <utility>
#include <vector>

#include "qkflow/compare/modified_flow.hpp"
#include "qkflow/compare/update_rule.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// Where heavy ball with step h and factor beta leads for small h. Time is h times the number of steps.
///
/// First order: dx/dt = F(x) / (1 - beta), the flow with all rates divided by 1 - beta; `step` is of no account.
/// Second order, from the same expansion that gives ModifiedFlow [Hairer06],
///
///     dx/dt = F / (1 - beta) - (h/2) (1 + beta) / (1 - beta)^3 F' F,      from x0 - h beta / (1 - beta)^2 F(x0):
///
/// momentum starts at zero, and the way lost until it has settled is never made up (`start`). It follows heavy ball to
/// O(h^2) once beta^k is small. With beta = 0 it is ModifiedFlow.
///
/// Keeps a pointer to the field, which must outlive it, and buffers.
template <class Field, class X = FieldState<Field>>
class HeavyBallFlow {
 public:
  static_assert(VelocityField<Field, X>);
  using State = X;
  using Scalar = typename State::Scalar;
  using scalar_type = Scalar;

  /// `step` 0 gives the first-order limit, which needs no derivative of the field.
  HeavyBallFlow(Field& field, const HeavyBall& rule, const Scalar& step)
      : field_(&field), beta_(static_cast<Scalar>(rule.beta)), step_(step) {
    rule.validate("HeavyBallFlow");
    require_non_negative("HeavyBallFlow", "step", step);
    if constexpr (!DifferentiableField<Field, State>) {
      if (step > Scalar(0)) throw_invalid("HeavyBallFlow", "step", step, "be 0: the field has no derivative");
    }
  }

  void operator()(const State& x, State& dxdt, const Scalar& t) {
    velocity_.resize(x.size());
    const Scalar left = Scalar(1) - beta_;
    (*field_)(x, velocity_, t);
    dxdt = velocity_ / left;
    if constexpr (DifferentiableField<Field, State>) {
      if (!(step_ > Scalar(0))) return;
      turn_.resize(x.size());
      detail::field_derivative(*field_, x, velocity_, turn_);
      dxdt -= (step_ / Scalar(2) * (Scalar(1) + beta_) / (left * left * left)) * turn_;
    }
  }

  /// Where the limit starts when heavy ball starts at x0: x0 to first order.
  State start(const State& x0) {
    State velocity = x0;
    (*field_)(x0, velocity, Scalar(0));
    const Scalar left = Scalar(1) - beta_;
    return x0 - (step_ * beta_ / (left * left)) * velocity;
  }

 private:
  Field* field_;
  Scalar beta_, step_;
  State velocity_, turn_;
};

template <class Field, class Scalar>
HeavyBallFlow(Field&, const HeavyBall&, const Scalar&) -> HeavyBallFlow<Field>;

/// Heavy ball with its momentum kept as a state of its own,
///
///     dx/dt = y,   dy/dt = 2 (F(x) - (1 - beta) y) / (h (1 + beta)),      from y0 = F(x0) / (1 + beta):
///
/// the equation of a ball with mass and friction [Polyak64, Qian99]. It follows the first steps too, in which momentum
/// builds up, to O(h^2) afterwards, and oscillates where heavy ball does. The state is (x, y), twice as long; its
/// fast time scale is h (1 + beta) / (2 (1 - beta)), so an explicit method takes steps not much longer than h.
///
/// Keeps a pointer to the field, which must outlive it, and buffers.
template <class Field>
class HeavyBallInertia {
 public:
  using Inner = FieldState<Field>;
  using Scalar = typename Inner::Scalar;
  using scalar_type = Scalar;
  using State = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

  HeavyBallInertia(Field& field, const HeavyBall& rule, const Scalar& step)
      : field_(&field), beta_(static_cast<Scalar>(rule.beta)), step_(step) {
    rule.validate("HeavyBallInertia");
    require_positive("HeavyBallInertia", "step", step);
  }

  void operator()(const State& state, State& rate, const Scalar& t) {
    const Eigen::Index n = state.size() / 2;
    x_ = state.head(n);
    velocity_.resize(n);
    (*field_)(x_, velocity_, t);
    rate.resize(2 * n);
    rate.head(n) = state.tail(n);
    rate.tail(n) = (Scalar(2) / (step_ * (Scalar(1) + beta_))) * (velocity_ - (Scalar(1) - beta_) * state.tail(n));
  }

  /// (x0, y0) of a heavy ball that starts at x0 without momentum.
  State start(const Inner& x0) {
    velocity_.resize(x0.size());
    (*field_)(x0, velocity_, Scalar(0));
    State state(2 * x0.size());
    state << x0, velocity_ / (Scalar(1) + beta_);
    return state;
  }
  /// x of a state.
  static Inner position(const State& state) { return state.head(state.size() / 2); }

 private:
  Field* field_;
  Scalar beta_, step_;
  Inner x_, velocity_;
};

template <class Field, class Scalar>
HeavyBallInertia(Field&, const HeavyBall&, const Scalar&) -> HeavyBallInertia<Field>;

/// The limit of sign descent, and of Adam, for small h at fixed factors beta:
///
///     dx_i/dt = rate_i g_i / (|g_i| + epsilon),     g = F / rate the negative gradient.
///
/// Adam's moments are means over its last 1/(1 - beta) steps: as h falls the parameters hardly move meanwhile, both
/// moments are those of one gradient, and their quotient is its sign, softened by Adam's own epsilon. With `epsilon` 0
/// the field is discontinuous where a gradient entry changes its sign; an adaptive method then creeps, so give one.
///
/// Keeps a pointer to the field, which must outlive it, and buffers.
template <class Field, class X = FieldState<Field>>
class SignFlow {
 public:
  static_assert(VelocityField<Field, X>);
  using State = X;
  using Scalar = typename State::Scalar;
  using scalar_type = Scalar;

  /// `rates` as in SignDescent. A wrong number of them is an InvalidArgument from the first evaluation.
  SignFlow(Field& field, const Scalar& epsilon, std::vector<double> rates = {})
      : field_(&field), epsilon_(epsilon), given_(std::move(rates)) {
    require_non_negative("SignFlow", "epsilon", epsilon);
  }

  void operator()(const State& x, State& dxdt, const Scalar& t) {
    if (!ready_) rates_ = detail::rates_like("SignFlow", given_, x);
    ready_ = true;
    velocity_.resize(x.size());
    (*field_)(x, velocity_, t);
    for (Eigen::Index i = 0; i < x.size(); ++i) {
      dxdt[i] = rates_[i] * detail::soft_sign(detail::gradient_entry(velocity_, rates_, i), epsilon_);
    }
  }

 private:
  Field* field_;
  Scalar epsilon_;
  std::vector<double> given_;
  bool ready_ = false;
  State rates_, velocity_;
};

template <class Field, class Scalar>
SignFlow(Field&, const Scalar&) -> SignFlow<Field>;
template <class Field, class Scalar>
SignFlow(Field&, const Scalar&, std::vector<double>) -> SignFlow<Field>;

}  // namespace qkflow
