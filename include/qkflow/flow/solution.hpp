// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/version.hpp"

namespace qkflow {

/// Why `solve` returned.
enum class Status {
  reached_end,          ///< t_end, exactly
  reached_stop,         ///< a terminal stop condition
  already_true,         ///< a terminal stop condition held at t0: no step was taken
  step_limit,           ///< max_steps
  step_underflow,       ///< the step the tolerances ask for no longer moves t: a blow-up, or tolerances too tight
  too_many_rejections,  ///< max_rejections in one step
  non_finite,           ///< a velocity, state or stop function became NaN or infinite
  threw,                ///< the field, a stop condition or the step callback threw: the message is kept
  cancelled,            ///< the cancellation flag was raised
};

constexpr std::string_view to_string(Status status) {
  switch (status) {
    case Status::reached_end:
      return "reached end time";
    case Status::reached_stop:
      return "reached stop";
    case Status::already_true:
      return "already true at start";
    case Status::step_limit:
      return "step limit";
    case Status::step_underflow:
      return "step size underflow";
    case Status::too_many_rejections:
      return "too many rejections";
    case Status::non_finite:
      return "not finite";
    case Status::threw:
      return "exception";
    case Status::cancelled:
      return "cancelled";
  }
  return "unknown";
}

/// What a solve cost.
struct SolveStatistics {
  std::size_t steps = 0;        ///< accepted steps
  std::size_t rejections = 0;   ///< steps tried and refused by the error control
  std::size_t evaluations = 0;  ///< of the field, for steps and for states between them
  std::size_t resteps = 0;      ///< states between steps that cost a step of their own
  /// The step the method would try next, from the last step end: what a resumed run starts with. 0 before the first.
  double next_step = 0;
};

/// A recorded crossing.
template <class State>
struct Event {
  std::size_t stop;  ///< index into the stop conditions given to `solve`
  typename State::Scalar t;
  State x;
};

/// What `solve` returns, whatever happened: the last good state and the time it belongs to are always there.
template <class State>
struct Solution {
  using Scalar = typename State::Scalar;

  Status status = Status::reached_end;
  std::string message;  ///< one sentence for people: the reason and the time reached

  Scalar t = 0;  ///< time reached
  State x;       ///< state there

  std::optional<std::size_t> stop;  ///< which stop condition ended it, by index

  /// Saved rows in the order of time: empty unless saving was asked for, and then the last row is (t, x).
  std::vector<Scalar> times;
  std::vector<State> states;

  std::vector<Event<State>> events;       ///< crossings of conditions that are not terminal, in the order of time
  std::vector<std::size_t> already_true;  ///< conditions (terminal or not) that held at t0
  SolveStatistics statistics;

  /// True if the solve ended where it was asked to: at t_end or at a stop condition.
  bool success() const {
    return status == Status::reached_end || status == Status::reached_stop || status == Status::already_true;
  }
};

}  // namespace qkflow
