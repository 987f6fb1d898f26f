// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "qkflow/flow/solution.hpp"
#include "qkflow/flow/stop.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// How `solve` works. Every field has a default; name those that differ: {.t_end = 10, .rtol = 1e-12}.
template <class State>
struct SolveOptions {
  using Scalar = typename State::Scalar;

  Scalar t0 = 0;                                           ///< start time
  Scalar t_end = std::numeric_limits<Scalar>::infinity();  ///< end time, met exactly; infinite: only a stop ends it

  /// Error allowed in one step, component by component: |error| <= atol + rtol (|x| + |h dx/dt|). Not used by a fixed
  /// step. The error of the whole solution is usually within some tens of it.
  Scalar rtol = default_rtol();
  /// May be 0 (then rtol is not): errors are relative only. A circuit of balanced factors below 0 wants that: it comes
  /// ever closer to its saddle at 0 without crossing it, and an error of atol would carry it across.
  Scalar atol = default_rtol() / 1000;

  /// To resume a fixed-step run: `start` is its state after so many steps of first_step from t0. Later steps then fall
  /// where the uninterrupted run has them, to the last bit; max_steps counts both parts.
  std::size_t steps_before = 0;
  Scalar first_step = 0;  ///< 0: chosen from the field (two evaluations). A fixed-step method needs its step here
  Scalar max_step = std::numeric_limits<Scalar>::infinity();  ///< no step is longer
  std::size_t max_steps = 1'000'000;                          ///< accepted steps before Status::step_limit
  std::size_t max_rejections = 500;  ///< refusals of one step before Status::too_many_rejections

  std::vector<Scalar> save_times{};  ///< rows at exactly these times: ascending, within [t0, t_end]
  std::size_t save_every = 0;        ///< k > 0: rows at t0 and after every k-th step
  bool save_end = true;              ///< if anything is saved, the last row is where the solve ended
  /// If set, rows go here and are not kept: long states need not fill the memory. Where two rows would have the same
  /// time (a stop met at a save time), the later call replaces the earlier one.
  std::function<void(const Scalar& t, const State& x)> on_save{};

  int checks_per_step = 1;  ///< conditions are compared at this many points of each step, the last being its end

  /// Called after every accepted step, for progress or for measuring something along the way without saving states.
  std::function<void(const Scalar& t, const State& x, const SolveStatistics& statistics)> on_step{};
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every step; true ends it with Status::cancelled

  /// The time `start` belongs to: t0, later if a fixed-step run is resumed.
  Scalar start_time() const {
    if (steps_before == 0) return t0;
    return t0 + Scalar(steps_before) * std::min(first_step, max_step);
  }
  /// 1e-9, and 8e-6 (64 epsilon) for float.
  static Scalar default_rtol() { return static_cast<Scalar>(std::numeric_limits<Scalar>::digits <= 24 ? 8e-6 : 1e-9); }
};

namespace detail {

template <class State>
void validate_stops(const std::vector<Stop<State>>& stops) {
  for (const Stop<State>& stop : stops) {
    if (bool(stop.g) == bool(stop.predicate)) {
      throw InvalidArgument("solve: stop condition '" + stop.name + "' must have a g or a predicate, and not both");
    }
  }
}

template <class State>
void validate(const SolveOptions<State>& o, const State& start, const std::vector<Stop<State>>& stops, bool adaptive) {
  using Scalar = typename State::Scalar;
  using std::isfinite;
  using std::isnan;
  constexpr const char* solve = "solve";
  if (start.size() == 0) throw_invalid(solve, "size of start", start.size(), "be above 0");
  for (Eigen::Index i = 0; i < start.size(); ++i) {
    if (!isfinite(start[i])) {
      throw_invalid(solve, ("start[" + std::to_string(i) + "]").c_str(), Scalar(start[i]), "be finite");
    }
  }
  require_finite(solve, "t0", o.t0);
  if (isnan(o.t_end) || o.t_end < o.t0) {
    throw_invalid(solve, "t_end", o.t_end, "be at least t0 = " + to_text(o.t0));
  }
  validate_stops(stops);
  bool may_stop = false;
  for (const Stop<State>& stop : stops) may_stop |= stop.terminal;
  if (!isfinite(o.t_end) && !may_stop) throw_invalid(solve, "t_end", o.t_end, "be finite without a terminal stop");
  require_non_negative(solve, "rtol", o.rtol);
  require_non_negative(solve, "atol", o.atol);
  if (adaptive) {
    const Scalar least = Scalar(4) * std::numeric_limits<Scalar>::epsilon();
    if (o.rtol != Scalar(0) && o.rtol < least) {
      throw_invalid(solve, "rtol", o.rtol, "be 0 or at least 4 epsilon = " + to_text(least));
    }
    if (o.rtol == Scalar(0) && o.atol == Scalar(0)) throw_invalid(solve, "atol", o.atol, "be above 0 when rtol is 0");
  }
  require_non_negative(solve, "first_step", o.first_step);
  if (!adaptive && o.first_step == Scalar(0)) {
    throw_invalid(solve, "first_step", o.first_step, "be above 0: it is the step of a fixed-step method");
  }
  if (adaptive && o.steps_before != 0) {
    throw_invalid(solve, "steps_before", o.steps_before, "be 0 unless the method has a fixed step");
  }
  if (!adaptive && !(o.start_time() <= o.t_end)) {
    throw_invalid(solve, "steps_before", o.steps_before, "not lead beyond t_end = " + to_text(o.t_end));
  }
  if (isnan(o.max_step) || !(o.max_step > Scalar(0))) throw_invalid(solve, "max_step", o.max_step, "be above 0");
  if (o.max_steps == 0) throw_invalid(solve, "max_steps", o.max_steps, "be above 0");
  if (o.max_rejections == 0) throw_invalid(solve, "max_rejections", o.max_rejections, "be above 0");
  if (o.checks_per_step < 1) throw_invalid(solve, "checks_per_step", o.checks_per_step, "be at least 1");
  for (std::size_t i = 0; i < o.save_times.size(); ++i) {
    const Scalar& time = o.save_times[i];
    const Scalar& least = i == 0 ? o.t0 : o.save_times[i - 1];
    if (!isfinite(time) || time < least || time > o.t_end) {
      throw_invalid(solve, ("save_times[" + std::to_string(i) + "]").c_str(), time,
                    "be finite, at least " + to_text(least) + " and at most t_end = " + to_text(o.t_end));
    }
  }
}

}  // namespace detail
}  // namespace qkflow
