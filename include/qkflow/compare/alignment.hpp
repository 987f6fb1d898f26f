// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "qkflow/compare/factor_flow.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/observables.hpp"

namespace qkflow {

/// What two trajectories are compared in. What a field does not have is NaN.
template <class Scalar>
struct Observation {
  Scalar mu_ov = std::numeric_limits<Scalar>::quiet_NaN();
  Scalar mu_qk = std::numeric_limits<Scalar>::quiet_NaN();
  Scalar alpha = std::numeric_limits<Scalar>::quiet_NaN();
  Scalar loss = std::numeric_limits<Scalar>::quiet_NaN();
  /// How far the circuits are from the block task's line, largest entry; 0 for reduced flows.
  Scalar off_line = std::numeric_limits<Scalar>::quiet_NaN();
};

/// Reads observations off states. `observer(x)` gives one, `observer.loss(x)` the loss alone, which is cheaper.
template <class Scalar, class QkRate, class OvRate>
class ReducedObserver {
 public:
  explicit ReducedObserver(const ReducedFlow<Scalar, QkRate, OvRate>& flow) : flow_(flow) {}
  template <class State>
  Observation<Scalar> operator()(const State& x) const {
    const auto point = flow_.point(x[0], x[1]);
    return {point.mu_ov, point.mu_qk, point.alpha, point.loss, Scalar(0)};
  }
  template <class State>
  Scalar loss(const State& x) const {
    return flow_.loss(x[0], x[1]);
  }

 private:
  ReducedFlow<Scalar, QkRate, OvRate> flow_;
};

template <class Scalar>
class FactorObserver {
 public:
  explicit FactorObserver(const FactorFlow<Scalar>& flow) : flow_(flow) {}
  Observation<Scalar> operator()(const typename FactorFlow<Scalar>::State& x) const {
    const auto point = flow_.point(x);
    return {point.mu_ov, point.mu_qk, point.alpha, point.loss, Scalar(0)};
  }
  Scalar loss(const typename FactorFlow<Scalar>::State& x) const { return flow_.loss(x); }

 private:
  FactorFlow<Scalar> flow_;
};

/// The same of a matrix flow, on any dataset; with a block task also the place on its line. Keeps a pointer to the
/// flow, which must outlive it.
template <class Parameters>
class MatrixObserver {
 public:
  using Scalar = typename Parameters::scalar_type;
  using State = ColumnVector<Scalar>;

  explicit MatrixObserver(MatrixFlow<Parameters>& flow) : flow_(&flow) {}
  MatrixObserver(MatrixFlow<Parameters>& flow, const BlockTask<Scalar>& task)
      : flow_(&flow), line_{LineObserver(task)} {}

  Observation<Scalar> operator()(const State& theta) const {
    const HeadObservables<Scalar> seen = flow_->observe(theta);
    Observation<Scalar> result;
    result.alpha = seen.relevant_attention;
    result.loss = seen.loss;
    if (!line_.empty()) {
      const LinePosition<Scalar> line = line_.front()(flow_->circuits(theta));
      result.mu_ov = line.mu_ov;
      result.mu_qk = line.mu_qk;
      result.off_line = std::max(line.ov_distance, line.qk_distance);
    }
    return result;
  }
  Scalar loss(const State& theta) const { return flow_->loss(theta); }

 private:
  MatrixFlow<Parameters>* flow_;
  std::vector<LineObserver<Scalar>> line_;  // none or one
};

/// A state of a discrete run beside the state of the flow it is compared with.
template <class Scalar>
struct AlignedRow {
  Scalar t = 0;            ///< of the run
  Scalar reference_t = 0;  ///< of the flow: the same where aligned in time
  Observation<Scalar> run, reference;
  Scalar distance = 0;        ///< |theta - theta_reference|, Euclidean, over all parameters
  Scalar reference_move = 0;  ///< |theta_reference - theta_0|: what the distance is small or large against
};

namespace detail {
template <class State, class Observer>
AlignedRow<typename State::Scalar> aligned_row(const typename State::Scalar& t,
                                               const typename State::Scalar& reference_t, const State& x,
                                               const State& reference, const State& start, const Observer& observe) {
  return {t, reference_t, observe(x), observe(reference), (x - reference).norm(), (reference - start).norm()};
}
}  // namespace detail

/// Rows of two trajectories with the same times (`times` and `states`: a Solution, a DiscreteRun), pairwise. Let
/// `solve` save at the run's times: {.t_end = run.t, .save_times = run.times}. If one is shorter (it failed), that is
/// where the rows end.
///
/// Throws InvalidArgument when times differ by more than rounding.
template <class Run, class Reference, class Observer>
auto align_in_time(const Run& run, const Reference& reference, const Observer& observe) {
  using State = typename std::decay_t<decltype(run.states)>::value_type;
  using Scalar = typename State::Scalar;
  using std::abs;
  std::vector<AlignedRow<Scalar>> rows;
  const std::size_t count = std::min(run.states.size(), reference.states.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Scalar rounding = Scalar(64) * std::numeric_limits<Scalar>::epsilon() * abs(run.times[i]);
    if (!(abs(Scalar(run.times[i] - reference.times[i])) <= rounding)) {
      throw_invalid("align_in_time", ("time of row " + to_text(i)).c_str(), reference.times[i],
                    "be that of the run, " + to_text(run.times[i]));
    }
    rows.push_back(detail::aligned_row<State>(run.times[i], reference.times[i], run.states[i], reference.states[i],
                                              reference.states[0], observe));
  }
  return rows;
}

/// A discrete run against the flow *at the same loss*: what is left when training is merely faster or slower than the
/// flow. For every row of the run whose loss is below all before it (a step that raised the loss has no counterpart),
/// the flow's state where its loss falls to that value: found by integration from `start`, one stop condition after the
/// other. Times are those at which each gets there.
///
/// Rows end where the flow does not reach a loss by options.t_end (which may be infinite only if it surely does), or
/// fails: `status` and `message` say so. Throws what `solve` throws.
template <class Scalar>
struct LossAlignment {
  std::vector<AlignedRow<Scalar>> rows;
  Status status = Status::reached_stop;
  std::string message;
};

template <OdeMethod Method = Fehlberg78, class Run, class Field, class Scalar, int Rows, class Observer>
LossAlignment<Scalar> align_in_loss(const Run& run, Field& field, const Eigen::Matrix<Scalar, Rows, 1>& start,
                                    const Observer& observe,
                                    const std::type_identity_t<SolveOptions<Eigen::Matrix<Scalar, Rows, 1>>>& options,
                                    Method method = {}) {
  using State = Eigen::Matrix<Scalar, Rows, 1>;
  LossAlignment<Scalar> result;
  SolveOptions<State> each = options;
  each.save_times.clear();
  each.save_every = 0;
  State x = start;
  Scalar lowest = std::numeric_limits<Scalar>::infinity();
  for (std::size_t i = 0; i < run.states.size(); ++i) {
    const Scalar loss = observe.loss(run.states[i]);
    if (!(loss < lowest)) continue;
    lowest = loss;
    // Conditions look at the logarithm, which varies evenly where the loss spans decades.
    const Stop<State> stop{.name = "loss",
                           .g = [&observe, loss](const Scalar&, const State& state) -> Scalar {
                             using std::log;
                             return log(Scalar(observe.loss(state) / loss));
                           },
                           .direction = Direction::falling};
    const Solution<State> solution = solve(field, x, each, {stop}, method);
    if (solution.status != Status::reached_stop && solution.status != Status::already_true) {
      result.status = solution.status;
      result.message = solution.message;
      return result;
    }
    x = solution.x;
    each.t0 = solution.t;
    if (solution.statistics.next_step > 0) each.first_step = static_cast<Scalar>(solution.statistics.next_step);
    result.rows.push_back(detail::aligned_row<State>(run.times[i], solution.t, run.states[i], x, start, observe));
  }
  return result;
}

/// The largest error over rows, of each observable; errors of rows with NaN are NaN.
template <class Scalar>
struct LargestErrors {
  Scalar mu_ov = 0, mu_qk = 0, alpha = 0, loss = 0, distance = 0;
};
template <class Scalar>
LargestErrors<Scalar> largest_errors(const std::vector<AlignedRow<Scalar>>& rows) {
  using std::abs;
  LargestErrors<Scalar> largest;
  const auto take = [](Scalar& to, const Scalar& error) {
    if (to == to && !(error <= to)) to = error;  // a NaN is taken, and stays
  };
  for (const auto& row : rows) {
    take(largest.mu_ov, abs(Scalar(row.run.mu_ov - row.reference.mu_ov)));
    take(largest.mu_qk, abs(Scalar(row.run.mu_qk - row.reference.mu_qk)));
    take(largest.alpha, abs(Scalar(row.run.alpha - row.reference.alpha)));
    take(largest.loss, abs(Scalar(row.run.loss - row.reference.loss)));
    take(largest.distance, row.distance);
  }
  return largest;
}

}  // namespace qkflow
