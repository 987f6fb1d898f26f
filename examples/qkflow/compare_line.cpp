// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The line of the block task, its closed form, and the solvers of the comparison: apart from the matrices, which take a
// minute to compile by themselves.

#include <memory>
#include <stdexcept>

#include "compare_model.hpp"
#include "qkflow/compare/factor_flow.hpp"
#include "qkflow/report/interrupt.hpp"

namespace qkflow_program {

namespace {

// Calls `callback(qk, ov)` with the rate factors of a name: one matrix, or two balanced ones.
template <class Callback>
auto with_rate_factors(const std::string& name, const Callback& callback) {
  const auto with_ov = [&](const auto& qk) {
    return name.at(2) == 'F' ? callback(qk, qkflow::Balanced{}) : callback(qk, qkflow::Collapsed{});
  };
  return name.at(0) == 'F' ? with_ov(qkflow::Balanced{}) : with_ov(qkflow::Collapsed{});
}

}  // namespace

CompareLine block_line(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                       const qkflow::LearningRates<double>& rates, const qkflow::ReducedState<double>& start) {
  using State = CompareField::State;
  using Two = Eigen::Vector2d;
  // Number by number: g++ 12 warns of a vector of unknown length made one of two.
  const auto two = [](const State& x) { return Two(x[0], x[1]); };
  const auto many = [](const Two& x) {
    State state(2);
    state << x[0], x[1];
    return state;
  };
  return with_rate_factors(parameterization, [&]<class Qk, class Ov>(const Qk& qk, const Ov& ov) {
    const auto flow = std::make_shared<const qkflow::FactorFlow<double>>(
        qkflow::ReducedFlow<double, Qk, Ov>{task, rates, qk, ov}, start);
    CompareLine line;
    line.velocity_function = [=](const State& x, State& dxdt) {
      Two velocity;
      (*flow)(two(x), velocity, 0.0);
      dxdt = many(velocity);
    };
    line.derivative_function = [=](const State& x, const State& v, State& result) {
      const auto j = flow->jacobian(two(x));
      result = many({j.ov_ov * v[0] + j.ov_qk * v[1], j.qk_ov * v[0] + j.qk_qk * v[1]});
    };
    line.start = many(flow->start());
    line.point = [=](const State& x) { return flow->point(two(x)); };
    line.metric = many(flow->metric());
    return line;
  });
}

CompareClosedForm closed_form(const std::string& parameterization, const qkflow::BlockTask<double>& task,
                              const qkflow::LearningRates<double>& rates, const qkflow::ReducedState<double>& start) {
  return with_rate_factors(parameterization, [&]<class Qk, class Ov>(const Qk& qk, const Ov& ov) {
    const qkflow::ClosedForm<double, Qk, Ov> closed(qkflow::ReducedFlow<double, Qk, Ov>{task, rates, qk, ov}, start);
    CompareClosedForm result;
    result.at_loss = [closed](double loss) { return closed.at_loss(loss); };
    result.time = [closed](const qkflow::ReducedPoint<double>& point) { return closed.time(point); };
    result.trajectory = [closed](const std::vector<double>& times) { return closed.trajectory(times); };
    return result;
  });
}

qkflow::Solution<Eigen::VectorXd> solve_or_throw(const FieldFunction& field, const Eigen::VectorXd& start,
                                                 qkflow::SolveOptions<Eigen::VectorXd> options,
                                                 const std::vector<qkflow::Stop<Eigen::VectorXd>>& stops) {
  options.cancel = &qkflow::interrupt_flag();
  auto solution = qkflow::solve(field, start, options, stops, qkflow::Fehlberg78{});
  qkflow::throw_if_interrupted();
  if (!solution.success()) throw std::runtime_error("the flow could not be integrated: " + solution.message);
  return solution;
}

qkflow::DiscreteRun<Eigen::VectorXd> descend_field(const CompareField& field, const Eigen::VectorXd& start,
                                                   qkflow::DescentOptions<Eigen::VectorXd> options) {
  options.cancel = &qkflow::interrupt_flag();
  auto run = qkflow::descend(field, start, options);
  qkflow::throw_if_interrupted();
  return run;
}

}  // namespace qkflow_program
