// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <Eigen/Core>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/solution.hpp"

namespace qkflow_program {

/// Where a trajectory ends: exactly one of the three.
struct End {
  std::optional<double> loss{}, alpha{}, time{};
};

struct IntegrationOptions {
  std::string stepper = "fehlberg78";
  double rtol = 1e-12;
  double atol = 0;  // an absolute error would carry a factorized circuit across its saddle at 0
  double step = 0;  ///< of a fixed-step method; the first step of the others, 0: chosen
  int max_steps = 100'000'000;
};

void add_integration_options(CLI::App& app, IntegrationOptions& options);

/// A reduced flow without its types, so that each stepper is compiled once and not once a parameterization.
struct ErasedFlow {
  using State = Eigen::Vector2d;  // (mu_OV, mu_QK)

  std::function<void(const State&, State&, const double&)> field;
  std::function<qkflow::ReducedPoint<double>(double mu_ov, double mu_qk)> point;
};

template <class Flow>
ErasedFlow erase(const Flow& flow) {
  return {flow, [flow](double mu_ov, double mu_qk) { return flow.point(mu_ov, mu_qk); }};
}

/// An integrated trajectory.
struct Integrated {
  std::vector<qkflow::TimedPoint<double>> rows;       ///< at the times asked for, then where it ended
  std::vector<qkflow::TimedPoint<double>> at_losses;  ///< where the loss fell to each of those asked for
  qkflow::SolveStatistics statistics;
};

/// Integrates the flow through Boost.Odeint from `start` to `end`, with rows at `times` (ascending; those beyond the
/// end are left out), at the end, and where the loss falls to each of `losses` (descending). Shows progress on a
/// terminal.
///
/// Errors: qkflow::Interrupted; std::runtime_error with the solver's message where it does not get to the end.
Integrated integrate(const ErasedFlow& flow, const qkflow::ReducedState<double>& start, const End& end,
                     const std::vector<double>& times, const IntegrationOptions& options,
                     const std::vector<double>& losses = {});

}  // namespace qkflow_program
