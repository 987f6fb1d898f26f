// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "qkflow/compare/alignment.hpp"
#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/ensemble.hpp"
#include "qkflow/compare/stability.hpp"
#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow_program {

/// A velocity field with its exact derivative, without its type: everything that is compared steps or integrates one of
/// these, so that steppers and parameterizations are compiled once.
struct CompareField {
  using State = Eigen::VectorXd;
  using scalar_type = double;

  std::function<void(const State&, State&)> velocity_function{};
  std::function<void(const State&, const State&, State&)> derivative_function{};

  void operator()(const State& x, State& dxdt, const double& /*t*/) const { velocity_function(x, dxdt); }
  void derivative(const State& x, const State& v, State& result) const { derivative_function(x, v, result); }
};

/// A head with all its matrices on a dataset: the matrix flow, and what can be asked of it.
struct CompareModel : CompareField {
  std::vector<double> rates{};  ///< of every parameter
  std::function<double(const State&)> loss_function{};
  std::function<qkflow::Observation<double>(const State&)> observe_function{};
  std::function<qkflow::StabilityRow<double>(double t, const State&)> stability{};
  std::function<double(const State&)> sharpness{};  ///< of both circuits together, which is cheaper
  std::function<qkflow::Ensemble(const State& start, const qkflow::EnsembleOptions&)> sgd{};
  std::function<State(const qkflow::ReducedState<double>&)> on_line{};  ///< block task: the state at a point of it
  std::function<State(std::uint64_t seed, double deviation)> random_start{};  ///< balanced where factorized

  double loss(const State& x) const { return loss_function(x); }
};

/// Reads observations off the model's states, as the alignment functions ask for.
struct CompareObserver {
  const CompareModel* model;
  qkflow::Observation<double> operator()(const Eigen::VectorXd& x) const { return model->observe_function(x); }
  double loss(const Eigen::VectorXd& x) const { return model->loss_function(x); }
};

/// A head on the block task's finite dataset; factors meet in as many dimensions as there are classes.
CompareModel block_model(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                         const qkflow::LearningRates<double>& rates);

/// A head on any dataset; factors meet in the full inner dimension.
CompareModel dataset_model(const std::string& parameterization, const qkflow::Dataset<double>& dataset,
                           double score_scale, const qkflow::LearningRates<double>& rates);

/// The line of the block task in the coordinates that training steps (qkflow::FactorFlow): two numbers.
struct CompareLine : CompareField {
  State start{};
  std::function<qkflow::ReducedPoint<double>(const State&)> point{};
  State metric{};  ///< squared lengths, over all matrix entries, of unit steps
};
CompareLine block_line(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                       const qkflow::LearningRates<double>& rates, const qkflow::ReducedState<double>& start);

/// The flow of the block task in closed form, without its types.
struct CompareClosedForm {
  std::function<qkflow::ReducedPoint<double>(double loss)> at_loss{};
  std::function<double(const qkflow::ReducedPoint<double>&)> time{};
  std::function<std::vector<qkflow::TimedPoint<double>>(const std::vector<double>& times)> trajectory{};
};
CompareClosedForm closed_form(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                              const qkflow::LearningRates<double>& rates, const qkflow::ReducedState<double>& start);

/// qkflow::solve by Fehlberg's pair of orders 7 and 8, compiled once. Throws std::runtime_error where it fails, and
/// qkflow::Interrupted on Ctrl-C.
using FieldFunction = std::function<void(const Eigen::VectorXd&, Eigen::VectorXd&, const double&)>;
qkflow::Solution<Eigen::VectorXd> solve_or_throw(const FieldFunction& field, const Eigen::VectorXd& start,
                                                 qkflow::SolveOptions<Eigen::VectorXd> options,
                                                 const std::vector<qkflow::Stop<Eigen::VectorXd>>& stops = {});

/// qkflow::descend by gradient descent, compiled once. Throws qkflow::Interrupted on Ctrl-C.
qkflow::DiscreteRun<Eigen::VectorXd> descend_field(const CompareField& field, const Eigen::VectorXd& start,
                                                   qkflow::DescentOptions<Eigen::VectorXd> options);

}  // namespace qkflow_program
