// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/flow/detail/stop_search.hpp"
#include "qkflow/flow/odeint.hpp"
#include "qkflow/flow/solution.hpp"
#include "qkflow/flow/solve_options.hpp"
#include "qkflow/flow/stop.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow::detail {

/// The outer loop of `solve`: Odeint only ever takes one step. Use once.
template <class Method, class Vector>
class Integrator {
 public:
  using Scalar = typename Vector::Scalar;
  using State = OdeState<Vector>;
  using Stepper = typename Method::template Stepper<Vector>;

  Integrator(FieldRef<Vector> field, const Vector& start, const SolveOptions<Vector>& options,
             const std::vector<Stop<Vector>>& stops)
      : field_(field),
        options_(options),
        search_(stops),
        stepper_(options.rtol, options.atol, options.max_step),
        t_(options.start_time()),
        x_{start} {}

  Solution<Vector> run() {
    try {
      start();
      while (!finished_) advance();
    } catch (const NotFiniteError& error) {
      finish(Status::non_finite, error.what());
    } catch (const std::exception& error) {
      finish(Status::threw, error.what());
    } catch (...) {
      finish(Status::threw, "something that is no std::exception was thrown");
    }
    result_.t = t_;
    result_.x.swap(x_.v);
    return std::move(result_);
  }

 private:
  void finish(Status status, const std::string& reason) {
    finished_ = true;
    result_.status = status;
    result_.message = reason + " at t = " + to_text(t_);
    // After a failure, too: the row of the last good state. Running out of memory here must not hide the reason.
    try {
      if (options_.save_end && saving()) save(t_, x_.v);
    } catch (const std::exception&) {
      result_.message += " (the last row could not be saved)";
    }
  }

  void start() {
    if (options_.steps_before == 0) {
      if (options_.save_every > 0) save(t_, x_.v);
      save_until(t_, true, Scalar(0));
    } else {
      result_.statistics.steps = options_.steps_before;
      const std::vector<Scalar>& wanted = options_.save_times;  // those up to here are the first part's
      while (next_save_ < wanted.size() && wanted[next_save_] <= t_) ++next_save_;
    }
    result_.already_true = search_.start(t_, x_.v);
    for (const std::size_t index : result_.already_true) {
      if (!search_[index].terminal || search_[index].at_start == AtStart::wait) continue;
      result_.stop = index;
      return finish(Status::already_true, "stop condition '" + search_[index].name + "' holds already");
    }
    if (t_ == options_.t_end) return finish(Status::reached_end, "reached the end time");
    if (cancelled()) return;
    evaluate_velocity();
    if constexpr (Method::adaptive) {
      next_step_ = options_.first_step > Scalar(0) ? options_.first_step : first_step();
    } else {
      next_step_ = options_.first_step;
    }
  }

  /// One step, accepted or refused.
  void advance() {
    if (cancelled()) return;
    if (result_.statistics.steps >= options_.max_steps) {
      return finish(Status::step_limit, "took max_steps = " + to_text(options_.max_steps) + " steps");
    }
    if (!velocity_known_) evaluate_velocity();
    const auto [h, t_new] = choose_step();
    if (t_new == t_) return give_up(Status::step_underflow, "the step size fell below the spacing of numbers");
    Scalar next = h;
    const bool accepted = stepper_.try_step(field_, x_, f_, t_, next, x_new_, f_new_);
    if (!accepted || !all_finite(x_new_.v)) return reject(h, accepted, next);
    rejections_in_a_row_ = 0;
    ++result_.statistics.steps;
    if constexpr (Method::adaptive) next_step_ = next;
    result_.statistics.next_step = static_cast<double>(next_step_);
    finish_step(h, t_new);
  }

  void finish_step(const Scalar& h, const Scalar& t_new) {
    step_ = h;
    interpolating_ = Method::dense;
    const bool met = search_.search(
        t_, h, t_new, x_new_.v, options_.checks_per_step,
        [&](const Scalar& fraction) -> const Vector& { return inside(fraction, false); },
        [&](const Scalar& fraction) -> const Vector& { return inside(fraction, interpolating_); });
    if (met) {
      for (const Crossing<Scalar>& crossing : search_.crossings()) {
        const Scalar time =
            crossing.fraction == Scalar(1) ? t_new : std::min(t_new, Scalar(t_ + crossing.fraction * h));
        const Vector& x = crossing.fraction == Scalar(1) ? x_new_.v : inside(crossing.fraction, false);
        if (search_[crossing.stop].terminal) {
          stop_at(crossing.stop, time, crossing.fraction);
          return;
        }
        result_.events.push_back({crossing.stop, time, x});
      }
    }
    save_until(t_new, false, h);
    move_to(t_new);
    if (options_.save_every > 0 && result_.statistics.steps % options_.save_every == 0) save(t_, x_.v);
    if (options_.on_step) call_on_step();
    if (t_ == options_.t_end) finish(Status::reached_end, "reached the end time");
  }

  void stop_at(std::size_t index, const Scalar& time, const Scalar& fraction) {
    // First the rows before it: they use the same scratch state.
    save_until(time, false, step_);
    if (fraction != Scalar(1)) {
      inside(fraction, false);
      x_new_.v.swap(inside_.v);
    }
    move_to(time);
    result_.stop = index;
    // The step count includes the step the stop was found in.
    finish(Status::reached_stop, "stop condition '" + search_[index].name + "' was met");
  }

  void move_to(const Scalar& t_new) {
    t_ = t_new;
    x_.v.swap(x_new_.v);
    velocity_known_ = Stepper::first_same_as_last;
    if constexpr (Stepper::first_same_as_last) {
      f_.v.swap(f_new_.v);
      if (!all_finite(f_.v)) velocity_known_ = false;  // evaluated again, and reported, at the next step
    }
  }

  /// The step to try and the time it leads to. A step that would end within rounding of t_end (or beyond) ends there.
  std::pair<Scalar, Scalar> choose_step() {
    const Scalar limited = std::min(next_step_, options_.max_step);
    const Scalar remaining = options_.t_end - t_;
    if constexpr (Method::adaptive) {
      if (limited >= remaining) return {remaining, options_.t_end};
      const Scalar t_new = t_ + limited;
      if constexpr (Stepper::remembers_step) return {limited, t_new};
      // h is what t really moves by: at late times the spacing of numbers around t may be coarse for h.
      return {Scalar(t_new - t_), t_new};
    } else {
      // Multiples of the step, not their running sum.
      const Scalar slack = limited * Scalar(1024) * std::numeric_limits<Scalar>::epsilon();
      if (limited + slack >= remaining) return {remaining, options_.t_end};
      const Scalar t_new = options_.t0 + Scalar(result_.statistics.steps + 1) * limited;
      return {Scalar(t_new - t_), t_new};
    }
  }

  void reject(const Scalar& h, bool accepted, const Scalar& next) {
    if constexpr (!Method::adaptive) {
      return give_up(Status::non_finite, "the next state is not finite: the last finite one is");
    } else {
      ++result_.statistics.rejections;
      if (++rejections_in_a_row_ > options_.max_rejections) {
        return give_up(Status::too_many_rejections,
                       "refused max_rejections = " + to_text(options_.max_rejections) + " sizes of one step");
      }
      // An accepted step to a state that is not finite (its error estimate missed it) must shrink, too.
      next_step_ = accepted || !(next < h) ? Scalar(h / Scalar(4)) : next;
      // A step of a few spacings of numbers around t, shortened a little, may round to itself, and would be tried again
      // and again.
      if (!(Scalar(t_ + next_step_) < Scalar(t_ + h))) next_step_ = h / Scalar(4);
    }
  }

  /// The step cannot be taken. If that is because the field has no finite value around here, say so.
  void give_up(Status status, const std::string& reason) {
    if (status != Status::non_finite && rejections_in_a_row_ > 0 && !all_finite(x_new_.v)) {
      return finish(Status::non_finite, "the field is not finite on any step, however short,");
    }
    finish(status, reason);
  }

  void evaluate_velocity() {
    field_(x_, f_, t_);
    if (!all_finite(f_.v)) throw NotFiniteError("the velocity is not finite");
    velocity_known_ = true;
  }

  bool cancelled() {
    if (!options_.cancel || !options_.cancel->load(std::memory_order_relaxed)) return false;
    finish(Status::cancelled, "cancelled");
    return true;
  }

  void call_on_step() {
    try {
      options_.on_step(t_, x_.v, result_.statistics);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string("on_step threw: ") + error.what());
    }
  }

  static bool all_finite(const Vector& v) {
    using std::abs;
    const Scalar largest = std::numeric_limits<Scalar>::max();
    bool finite = true;
    for (Eigen::Index i = 0; i < v.size(); ++i) finite &= abs(v.data()[i]) <= largest;
    return finite;
  }

  /// The state at t + fraction h of the step just accepted; valid until the next call.
  const Vector& inside(const Scalar& fraction, bool interpolate) {
    if constexpr (Method::dense) {
      if (interpolate) {
        stepper_.interpolate(fraction, step_, x_, f_, x_new_, f_new_, inside_);
        return inside_.v;
      }
    }
    interpolating_ = false;  // a step out of the same stepper overwrites the stages of the interpolant
    ++result_.statistics.resteps;
    stepper_.restep(field_, x_, f_, t_, Scalar(fraction * step_), inside_, scratch_);
    return inside_.v;
  }

  bool saving() const { return options_.save_every > 0 || !options_.save_times.empty(); }

  void save(const Scalar& t, const Vector& x) {
    if (options_.on_save) {
      options_.on_save(t, x);
      return;
    }
    if (!result_.times.empty() && result_.times.back() == t) {
      result_.states.back() = x;  // a stop met at a save time: its own state is the one on the far side
      return;
    }
    result_.states.push_back(x);
    result_.times.push_back(t);
  }

  /// Rows at the save times up to `time`, in the step [t_, t_ + h] just accepted (or at the start).
  void save_until(const Scalar& time, bool at_start, const Scalar& h) {
    const std::vector<Scalar>& wanted = options_.save_times;
    for (; next_save_ < wanted.size() && wanted[next_save_] <= time; ++next_save_) {
      const Scalar& t = wanted[next_save_];
      if (at_start) {
        save(t, x_.v);
        continue;
      }
      const Scalar fraction = (t - t_) / h;
      if (fraction >= Scalar(1)) {
        save(t, x_new_.v);
      } else {
        save(t, inside(fraction, interpolating_));
      }
    }
  }

  /// A step over which an Euler step and the change of the velocity stay at the tolerance [Hairer93, II.4].
  Scalar first_step() {
    using std::isfinite;
    using std::pow;
    const Scalar size = scaled_norm(x_.v), speed = scaled_norm(f_.v);
    const Scalar hundredth = Scalar(1) / Scalar(100), tiny = Scalar(1) / Scalar(100000);
    Scalar euler = size > tiny && speed > tiny ? Scalar(hundredth * size / speed) : Scalar(tiny / Scalar(10));
    euler = std::min(euler, std::min(options_.max_step, Scalar(options_.t_end - t_)));
    x_new_.v = x_.v + euler * f_.v;
    field_(x_new_, f_new_, Scalar(t_ + euler));
    f_new_.v -= f_.v;
    const Scalar bend = scaled_norm(f_new_.v) / euler;
    if (!isfinite(bend)) return euler / Scalar(1000);
    const Scalar rate = std::max(speed, bend);
    const Scalar floor = pow(Scalar(10), Scalar(-15));
    const Scalar h = rate > floor ? Scalar(pow(Scalar(hundredth / rate), Scalar(1) / Scalar(Method::order + 1)))
                                  : std::max(Scalar(euler / Scalar(1000)), tiny);
    const Scalar least = Scalar(16) * std::numeric_limits<Scalar>::epsilon() * std::max(t_, Scalar(-t_));
    return std::max(least, std::min(h, Scalar(Scalar(100) * euler)));
  }

  Scalar scaled_norm(const Vector& v) const {
    using std::abs;
    Scalar largest(0);
    for (Eigen::Index i = 0; i < v.size(); ++i) {
      const Scalar scale = options_.atol + options_.rtol * abs(x_.v[i]);
      if (scale == Scalar(0)) continue;  // atol = 0 at x = 0: this component sets no scale
      const Scalar value = abs(v[i]) / scale;
      if (!(value <= largest)) largest = value;
    }
    return largest;
  }

  FieldRef<Vector> field_;
  const SolveOptions<Vector>& options_;
  StopSearch<Vector> search_;
  Stepper stepper_;
  Solution<Vector> result_;
  Scalar t_, step_{0}, next_step_{0};
  State x_, f_, x_new_, f_new_, inside_, scratch_;
  std::size_t next_save_ = 0, rejections_in_a_row_ = 0;
  bool velocity_known_ = false, interpolating_ = false, finished_ = false;
};

}  // namespace qkflow::detail
