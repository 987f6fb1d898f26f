// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "qkflow/compare/ensemble.hpp"
#include "qkflow/compare/order_study.hpp"
#include "qkflow/compare/student_t.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// How far the mean of an ensemble is from a reference, and how much of that is chance.
struct MeanDistance {
  std::size_t seeds = 0;
  double spread = 0;    ///< sqrt(tr C), C the covariance over seeds: how far one run is from the mean, typically
  double distance = 0;  ///< |mean - reference|, as it is
  double chance = 0;    ///< sqrt(tr C / seeds): what the distance would be by chance alone
  /// An unbiased estimate of |E[theta] - reference|^2, the part that more seeds do not remove: the mean of
  /// (theta_i - ref) . (theta_j - ref) over pairs of different seeds. May come out negative where chance rules.
  double systematic_square = 0;
  /// Its standard error, by the jackknife over seeds: too large by up to sqrt(2) where chance rules.
  double systematic_square_error = 0;

  double systematic() const { return std::sqrt(std::max(0.0, systematic_square)); }
  /// Whether the systematic part is seen at all: above 0 by this many standard errors.
  bool resolved(double errors = 2) const { return systematic_square > errors * systematic_square_error; }
};

/// Takes the states of an ensemble at one row. Throws InvalidArgument for fewer than three states or other sizes.
inline MeanDistance mean_distance(const std::vector<Eigen::VectorXd>& states, const Eigen::VectorXd& reference) {
  constexpr const char* function = "mean_distance";
  if (states.size() < 3) throw_invalid(function, "number of states", states.size(), "be at least 3");
  const auto count = static_cast<Eigen::Index>(states.size());
  Eigen::VectorXd sum = Eigen::VectorXd::Zero(reference.size());
  for (const auto& state : states) {
    if (state.size() != reference.size()) {
      throw_invalid(function, "size of a state", state.size(), "be that of the reference");
    }
    sum += state - reference;
  }
  // sum_j d_i . d_j and |d_i|^2 are all that is needed, and cost one pass each.
  Eigen::VectorXd with_all(count), own(count);
  double trace = 0;
  for (Eigen::Index i = 0; i < count; ++i) {
    const Eigen::VectorXd difference = states[static_cast<std::size_t>(i)] - reference;
    with_all[i] = difference.dot(sum);
    own[i] = difference.squaredNorm();
    trace += (difference - sum / static_cast<double>(count)).squaredNorm();
  }
  const double n = static_cast<double>(count);
  MeanDistance result;
  result.seeds = states.size();
  result.spread = std::sqrt(trace / (n - 1));
  result.distance = sum.norm() / n;
  result.chance = result.spread / std::sqrt(n);
  const double pairs = sum.squaredNorm() - own.sum();  // over i != j
  result.systematic_square = pairs / (n * (n - 1));
  double mean = 0, squares = 0;
  Eigen::VectorXd without(count);
  for (Eigen::Index i = 0; i < count; ++i) {
    without[i] = (pairs - 2 * (with_all[i] - own[i])) / ((n - 1) * (n - 2));
    mean += without[i] / n;
  }
  for (Eigen::Index i = 0; i < count; ++i) squares += (without[i] - mean) * (without[i] - mean);
  result.systematic_square_error = std::sqrt((n - 1) / n * squares);
  return result;
}

/// The mean of SGD against batch size, everything else equal.
struct BatchStudy {
  struct Row {
    std::size_t batch;
    MeanDistance to_descent;  ///< from gradient descent with the same step: what sampling does
    MeanDistance to_flow;     ///< from the flow: the step's own O(h) comes on top
  };
  std::vector<Row> rows;
  double descent_to_flow = 0;  ///< |gradient descent - flow|: what remains however large the batch
  OrderStudy spread;           ///< of `spread` over 1/batch: 1/2 expected
  /// Of the systematic part (to_descent) over 1/batch, on resolved rows only: 1 expected, as the noise of a step has
  /// covariance ~ h^2/B, and the mean feels it through the curvature of the field: h t / B.
  OrderStudy systematic;
  std::vector<std::size_t> diverged;  ///< batch sizes of which a run failed: left out
};

/// Runs an ensemble for each batch size and measures how its mean approaches gradient descent, and the flow, as the
/// batch grows. Two parts are kept apart: the systematic one, O(h/B), and the error of the mean itself, which falls as
/// 1/sqrt(B seeds) and has nothing to do with the flow. At the end of `options.steps`; `flow_end` is the flow at
/// t = step * steps, `descent_end` gradient descent after `steps`.
///
/// Throws InvalidArgument as `sgd_ensemble` does, and for fewer than three seeds.
template <class Qk, class Ov>
BatchStudy batch_study(const HeadParameters<Qk, Ov>& parameters, const Dataset<double>& dataset,
                       const Eigen::VectorXd& start, const Eigen::VectorXd& descent_end,
                       const Eigen::VectorXd& flow_end, const std::vector<std::size_t>& batches,
                       const EnsembleOptions& options, const HeadOptions<double>& head = {}) {
  if (options.seeds < 3) throw_invalid("batch_study", "seeds", options.seeds, "be at least 3");
  BatchStudy study;
  study.descent_to_flow = (descent_end - flow_end).norm();
  std::vector<double> inverse, spreads, resolved_inverse, systematic;
  for (const std::size_t batch : batches) {
    EnsembleOptions own = options;
    own.batch = batch;
    own.save_steps.clear();
    const Ensemble ensemble = sgd_ensemble(parameters, dataset, start, own, head);
    if (ensemble.cancelled) break;
    if (!ensemble.failed.empty()) {
      study.diverged.push_back(batch);
      continue;
    }
    const auto& states = ensemble.states.front();
    study.rows.push_back({batch, mean_distance(states, descent_end), mean_distance(states, flow_end)});
    const MeanDistance& row = study.rows.back().to_descent;
    inverse.push_back(1 / static_cast<double>(batch));
    spreads.push_back(row.spread);
    if (row.resolved()) {
      resolved_inverse.push_back(inverse.back());
      systematic.push_back(row.systematic());
    }
  }
  study.spread = fit_order(inverse, spreads, {.find_plateau = false});
  study.systematic = fit_order(resolved_inverse, systematic, {.find_plateau = false});
  return study;
}

}  // namespace qkflow
