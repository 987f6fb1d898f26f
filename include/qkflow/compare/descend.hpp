// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "qkflow/compare/update_rule.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// How `descend` works: {.step = h, .steps = n} and what is to be kept.
template <class State>
struct DescentOptions {
  using Scalar = typename State::Scalar;

  Scalar step = 0;        ///< h, above 0: a step moves theta by h F(theta), and time by h
  std::size_t steps = 0;  ///< how many

  std::size_t save_every = 0;             ///< k > 0: rows at the start and after every k-th step
  std::vector<std::size_t> save_steps{};  ///< rows after these many steps: ascending, 0 is the start
  bool save_end = true;                   ///< if anything is saved, the last row is where the run ended

  std::function<Scalar(const State& x)> loss{};  ///< if set, evaluated at every row
  /// If set, the run ends after the first step at which it is true.
  std::function<bool(std::size_t step, const State& x)> stop{};
  /// The run has blown up when an entry exceeds this. Without it only overflow tells.
  Scalar largest_state = std::numeric_limits<Scalar>::infinity();

  std::function<void(std::size_t step, const State& x)> on_step{};  ///< called at the start (0) and after every step
  const std::atomic<bool>* cancel = nullptr;                        ///< looked at before every step
};

/// Why `descend` returned.
enum class DescentStatus {
  finished,    ///< all steps done
  stopped,     ///< the stop condition
  blew_up,     ///< an entry above largest_state
  non_finite,  ///< a velocity or state became NaN or infinite
  threw,       ///< the field, the rule or a callback threw: the message is kept
  cancelled    ///< the cancellation flag was raised
};

constexpr std::string_view to_string(DescentStatus status) {
  switch (status) {
    case DescentStatus::finished:
      return "finished";
    case DescentStatus::stopped:
      return "reached stop";
    case DescentStatus::blew_up:
      return "blew up";
    case DescentStatus::non_finite:
      return "not finite";
    case DescentStatus::threw:
      return "exception";
    case DescentStatus::cancelled:
      return "cancelled";
  }
  return "unknown";
}

/// What `descend` returns, whatever happened.
template <class State>
struct DiscreteRun {
  using Scalar = typename State::Scalar;

  DescentStatus status = DescentStatus::finished;
  std::string message;  ///< one sentence for people

  std::size_t steps = 0;  ///< done; the step that failed is not
  Scalar t = 0;           ///< h * steps
  State x;                ///< the last good state

  std::vector<std::size_t> saved_steps;  ///< of each row
  std::vector<Scalar> times;             ///< h * step of each row
  std::vector<State> states;
  std::vector<Scalar> losses;  ///< of each row, if options.loss is set

  bool success() const { return status == DescentStatus::finished || status == DescentStatus::stopped; }
};

namespace detail {

template <class State>
void validate(const DescentOptions<State>& o, const State& start) {
  constexpr const char* function = "descend";
  using std::isfinite;
  using std::isnan;
  require_positive(function, "step", o.step);
  if (start.size() == 0) throw_invalid(function, "size of start", start.size(), "be above 0");
  for (Eigen::Index i = 0; i < start.size(); ++i) {
    if (!isfinite(start[i])) {
      throw_invalid(function, ("start[" + to_text(i) + "]").c_str(), typename State::Scalar(start[i]), "be finite");
    }
  }
  if (isnan(o.largest_state) || !(o.largest_state > typename State::Scalar(0))) {
    throw_invalid(function, "largest_state", o.largest_state, "be above 0");
  }
  for (std::size_t i = 0; i < o.save_steps.size(); ++i) {
    const std::size_t least = i == 0 ? 0 : o.save_steps[i - 1];
    if (o.save_steps[i] < least || o.save_steps[i] > o.steps) {
      throw_invalid(function, ("save_steps[" + to_text(i) + "]").c_str(), o.save_steps[i],
                    "be at least " + to_text(least) + " and at most steps = " + to_text(o.steps));
    }
  }
}

/// One run: rows and status are written as it goes, so that an exception loses nothing.
template <class State, class Field, class Step>
class Descent {
 public:
  using Scalar = typename State::Scalar;

  Descent(Field& field, Step& step, const DescentOptions<State>& options, DiscreteRun<State>& run)
      : field_(field), step_(step), options_(options), run_(run) {}

  void operator()() {
    visit();
    State velocity = run_.x, next = run_.x;
    while (run_.steps < options_.steps) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        return end(DescentStatus::cancelled, "cancelled");
      }
      const Scalar t = Scalar(run_.steps) * options_.step;
      field_(static_cast<const State&>(run_.x), velocity, t);
      if (velocity.size() != run_.x.size()) return end(DescentStatus::threw, "the field changed the size of dxdt");
      if (!velocity.allFinite()) return end(DescentStatus::non_finite, "the velocity is not finite");
      next = run_.x;
      step_(next, static_cast<const State&>(velocity), options_.step);
      if (!next.allFinite()) return end(DescentStatus::non_finite, "the state is not finite");
      run_.x.swap(next);
      ++run_.steps;
      run_.t = Scalar(run_.steps) * options_.step;
      visit();
      if (run_.x.cwiseAbs().maxCoeff() > options_.largest_state) {
        return end(DescentStatus::blew_up, "an entry is above " + to_text(options_.largest_state));
      }
      if (options_.stop && options_.stop(run_.steps, run_.x)) return end(DescentStatus::stopped, "the stop condition");
    }
    end(DescentStatus::finished, "all steps done");
  }

  void end(DescentStatus status, const std::string& reason) {
    run_.status = status;
    run_.message = reason + " after " + to_text(run_.steps) + " steps, t = " + to_text(run_.t);
  }
  void save() {
    if (!run_.saved_steps.empty() && run_.saved_steps.back() == run_.steps) return;
    Scalar loss(0);
    if (options_.loss) loss = options_.loss(run_.x);
    run_.saved_steps.push_back(run_.steps);
    run_.times.push_back(run_.t);
    run_.states.push_back(run_.x);
    if (options_.loss) run_.losses.push_back(loss);
  }
  bool saves() const { return options_.save_every > 0 || !options_.save_steps.empty(); }

 private:
  void visit() {
    bool wanted = options_.save_every > 0 && run_.steps % options_.save_every == 0;
    while (next_save_ < options_.save_steps.size() && options_.save_steps[next_save_] <= run_.steps) {
      wanted = true;
      ++next_save_;
    }
    if (wanted) save();
    if (options_.on_step) options_.on_step(run_.steps, run_.x);
  }

  Field& field_;
  Step& step_;
  const DescentOptions<State>& options_;
  DiscreteRun<State>& run_;
  std::size_t next_save_ = 0;
};

}  // namespace detail

/// Discrete training: `steps` moves of an update rule along the field's velocity, from `start`. With GradientDescent
/// that is theta_{k+1} = theta_k + h F(theta_k, h k), to be compared with the flow dx/dt = F at t = h k: learning rates
/// are inside the field, as they are for `solve`.
///
///     const auto run = descend(flow, start, {.step = 0.1, .steps = 1000, .save_every = 10}, HeavyBall{.beta = 0.9});
///
/// Throws InvalidArgument for options and rules it cannot work with, before the first evaluation. From then on nothing
/// is thrown: whatever ends the run is its `status`, with a message and the last good state. Steps allocate nothing.
template <class Field, class Scalar, int Rows, class Rule = GradientDescent>
DiscreteRun<Eigen::Matrix<Scalar, Rows, 1>> descend(
    Field&& field, const Eigen::Matrix<Scalar, Rows, 1>& start,
    const std::type_identity_t<DescentOptions<Eigen::Matrix<Scalar, Rows, 1>>>& options, const Rule& rule = {}) {
  using State = Eigen::Matrix<Scalar, Rows, 1>;
  static_assert(VelocityField<std::remove_reference_t<Field>, State>,
                "qkflow::descend: the field must be callable as field(const State& x, State& dxdt, const Scalar& t)");
  static_assert(UpdateRule<Rule, State>,
                "qkflow::descend: the rule must be callable as rule(State& theta, const State& velocity, const Scalar& "
                "h), or have begin(start) that returns such a callable");
  detail::validate(options, start);
  auto step = detail::begin_rule<State>(rule, start);
  DiscreteRun<State> run;
  run.x = start;
  detail::Descent<State, std::remove_reference_t<Field>, decltype(step)> descent(field, step, options, run);
  const auto guarded = [&](auto&& action) {
    try {
      action();
    } catch (const std::exception& error) {
      descent.end(DescentStatus::threw, error.what());
    } catch (...) {
      descent.end(DescentStatus::threw, "something that is no std::exception was thrown");
    }
  };
  guarded(descent);
  if (options.save_end && descent.saves()) guarded([&] { descent.save(); });
  return run;
}

}  // namespace qkflow
