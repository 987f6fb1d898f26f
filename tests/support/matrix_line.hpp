// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace qkflow_test {

/// Where circuits stand to the block task's line, read off the matrices entry by entry.
struct OnLine {
  double mu_ov, mu_qk;
  double distance;  ///< the largest entry off the line, of either circuit
};

inline OnLine on_line(const qkflow::BlockTask<double>& task, const qkflow::ConstCircuits<double>& w) {
  const Eigen::MatrixXd d_ov = qkflow::block_output_direction(task), d_qk = qkflow::block_attention_direction(task);
  const double mu = w.ov.cwiseProduct(d_ov).sum() / d_ov.squaredNorm();
  const double x = w.qk.cwiseProduct(d_qk).sum() / d_qk.squaredNorm();
  const double off_ov = (w.ov - mu * d_ov).cwiseAbs().maxCoeff(), off_qk = (w.qk - x * d_qk).cwiseAbs().maxCoeff();
  return {mu, task.score_scale * x, std::max(off_ov, off_qk)};
}

/// The largest difference between a matrix flow and the reduced flow at some times, and the largest distance from the
/// line.
struct Agreement {
  double mu_ov = 0, mu_qk = 0, alpha = 0, loss = 0;  ///< relative differences
  double distance = 0;
  double largest() const { return std::max({mu_ov, mu_qk, alpha, loss}); }
};

/// Integrates both from the same point of the line (for zero factors a product needs mu above 0) to all of `times`.
template <class Parameters, class Reduced>
Agreement compare_with_reduced(const Parameters& parameters, const Reduced& reduced,
                               const qkflow::AlignedStart<double>& start, const std::vector<double>& times) {
  const qkflow::BlockTask<double>& task = reduced.task;
  qkflow::MatrixFlow<Parameters> flow(parameters, qkflow::block_dataset(task), {.score_scale = task.score_scale});
  const Eigen::VectorXd theta = qkflow::aligned_start(parameters, task, start);
  const qkflow::Solution<Eigen::VectorXd> matrix =
      qkflow::solve(flow, theta, {.t_end = times.back(), .rtol = 1e-12, .atol = 1e-15, .save_times = times}, {},
                    qkflow::Fehlberg78{});
  const Eigen::Vector2d x0(start.mu_ov, start.mu_qk);
  const qkflow::Solution<Eigen::Vector2d> scalars =
      qkflow::solve(reduced, x0, {.t_end = times.back(), .rtol = 1e-13, .atol = 1e-16, .save_times = times}, {},
                    qkflow::Fehlberg78{});
  Agreement worst;
  if (!matrix.success() || !scalars.success() || matrix.states.size() != scalars.states.size()) {
    worst.distance = worst.loss = 1;
    return worst;
  }
  const auto take = [](double& to, double value, double exact) {
    to = std::max(to, std::abs(value - exact) / std::max(std::abs(exact), 1e-3));
  };
  for (std::size_t i = 0; i < matrix.states.size(); ++i) {
    const Eigen::Vector2d& x = scalars.states[i];
    const OnLine line = on_line(task, flow.circuits(matrix.states[i]));
    take(worst.mu_ov, line.mu_ov, x[0]);
    take(worst.mu_qk, line.mu_qk, x[1]);
    take(worst.alpha, flow.attention(matrix.states[i]), reduced.alpha(x[1]));
    take(worst.loss, flow.loss(matrix.states[i]), reduced.loss(x[0], x[1]));
    worst.distance = std::max(worst.distance, line.distance);
  }
  return worst;
}

}  // namespace qkflow_test
