// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "qkflow/version.hpp"

namespace qkflow {

/// Which sign change of g counts: any, from below 0 to 0 or above, from above 0 to 0 or below.
enum class Direction { any, rising, falling };

/// What a condition that already holds at t0 means: the end of the solve before its first step, or wait until it has
/// ceased to hold and holds again.
enum class AtStart { stop, wait };

/// A condition on the trajectory: a function g(t, x) crossing 0, or a predicate becoming true. `solve` takes any number
/// of them and reports them in the order of time. A crossing is located inside the step to the last bits of the step
/// size, with states as accurate as the method's own; the state reported is on the far side: g there is exactly 0 or
/// has changed sign, the predicate there is true.
///
/// A crossing is seen when g has changed sign from one step end (or check point, `SolveOptions::checks_per_step`) to
/// the next: two crossings between neighbouring check points cancel and are missed. Bound `max_step` or raise
/// `checks_per_step` where g oscillates.
///
///     Stop<State>{.name = "loss", .g = [&](double, const State& x) { return loss(x) - 1e-4; },
///                 .direction = Direction::falling}
template <class State>
struct Stop {
  using Scalar = typename State::Scalar;

  std::string name = "stop";                                   ///< for messages
  std::function<Scalar(const Scalar& t, const State& x)> g{};  ///< crosses 0; may be infinite, never NaN
  /// Instead of g: becomes true. Located by bisection, some 50 short steps in double.
  std::function<bool(const Scalar& t, const State& x)> predicate{};
  Direction direction = Direction::any;  ///< of g; a predicate always rises
  bool terminal = true;                  ///< ends the solve; if not, every crossing is recorded in Solution::events
  /// A terminal condition holds at t0 if g is there at or beyond 0 in its direction (Direction::any: is 0).
  AtStart at_start = AtStart::stop;
};

/// A stop when a quantity falls to a value (or is below it at the start): stop_below("loss", loss, 1e-4).
template <class State>
Stop<State> stop_below(std::string name,
                       std::function<typename State::Scalar(const typename State::Scalar&, const State&)> quantity,
                       typename State::Scalar value) {
  using Scalar = typename State::Scalar;
  return {.name = std::move(name),
          .g = [quantity = std::move(quantity), value](const Scalar& t, const State& x) -> Scalar {
            return quantity(t, x) - value;
          },
          .direction = Direction::falling};
}

/// A stop when a quantity rises to a value (or is above it at the start).
template <class State>
Stop<State> stop_above(std::string name,
                       std::function<typename State::Scalar(const typename State::Scalar&, const State&)> quantity,
                       typename State::Scalar value) {
  Stop<State> stop = stop_below<State>(std::move(name), std::move(quantity), std::move(value));
  stop.direction = Direction::rising;
  return stop;
}

}  // namespace qkflow
