// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Gradient descent stays within O(h) of the flow and O(h^2) of the modified flow: orders measured over seven halvings,
// in two scalars and in every matrix entry, for all four parameterizations, with different rates of the circuits.
#include "qkflow/compare/modified_flow.hpp"

#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/factor_flow.hpp"
#include "qkflow/compare/order_study.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

constexpr double end = 8;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};
const LearningRates<double> rates{.ov = 0.7, .qk = 2.5};
const CircuitRates<double> circuit_rates{.qk = 2.5, .ov = 0.7};

template <class Field, class State>
State integrated(Field& field, const State& start) {
  const auto run = solve(field, start, {.t_end = end, .rtol = 1e-13, .atol = 1e-16}, {}, Fehlberg78{});
  return run.success() ? run.x : State::Constant(start.size(), not_a_number);
}
template <class Field, class State>
State descended(Field& field, const State& start, double h) {
  return descend(field, start, {.step = h, .steps = static_cast<std::size_t>(std::lround(end / h))}).x;
}

template <class Field, class State>
void check_orders(Field& field, const State& start) {
  const State exact = integrated(field, start);
  const OrderStudy flow =
      order_study([&](double h) { return (descended(field, start, h) - exact).norm(); }, end / 64, 7);
  const OrderStudy modified = order_study(
      [&](double h) {
        ModifiedFlow second(field, h);
        return (descended(field, start, h) - integrated(second, start)).norm();
      },
      end / 64, 7);
  INFO("flow " << flow.slope << " +- " << flow.half_width << ", modified flow " << modified.slope << " +- "
               << modified.half_width);
  CHECK(flow.used == 8);
  CHECK_THAT(flow.slope, WithinAbs(1.0, 0.05));
  CHECK(flow.half_width < 0.05);
  CHECK(modified.used >= 7);
  CHECK_THAT(modified.slope, WithinAbs(2.0, 0.1));
  CHECK(modified.half_width < 0.1);
  // And it is closer, by a lot, at the smallest step.
  CHECK(modified.rows.back().error < 1e-3 * flow.rows.back().error);
}

template <class Parameters>
void check_matrix(const Parameters& parameters) {
  MatrixFlow flow(parameters, block_dataset(task));
  check_orders(flow, Eigen::VectorXd(aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2})));
}
template <class Flow>
void check_scalars(const Flow& flow) {
  check_orders(flow, Eigen::Vector2d(0.3, 0.2));
  const FactorFlow factors(flow, {0.3, 0.2});
  check_orders(factors, factors.start());
}

}  // namespace

TEST_CASE("orders 1 and 2 in two scalars", "[modified_flow]") {
  check_scalars(Caco<double>{task, rates});
  check_scalars(Cafo<double>{task, rates});
  check_scalars(Faco<double>{task, rates});
  check_scalars(Fafo<double>{task, rates});
  check_scalars(ReducedFlow<double, FactorProduct, FactorProduct>{task, rates, {3}, {4}});
}

TEST_CASE("orders 1 and 2 for unbalanced factors in the reduced coordinates", "[modified_flow]") {
  const ReducedFlow<double, Unbalanced<double>, Unbalanced<double>> lazy{task, rates, {0.8}, {-1.7}};
  check_orders(lazy, Eigen::Vector2d(0.3, 0.2));
}

TEST_CASE("orders 1 and 2 in every matrix entry", "[modified_flow]") {
  const DatasetShape shape = BlockLayout::of(task).shape();
  check_matrix(caco_parameters<double>(shape, circuit_rates));
  check_matrix(cafo_parameters<double>(shape, 4, circuit_rates));
  check_matrix(faco_parameters<double>(shape, 4, circuit_rates));
  check_matrix(fafo_parameters<double>(shape, 4, circuit_rates));
}

TEST_CASE("orders 1 and 2 off the line: a random start, with bias", "[modified_flow]") {
  const auto parameters =
      fafo_parameters<double>(BlockLayout::of(task).shape(), 4, {.qk = 2.5, .ov = 0.7, .bias = 0.2}, true);
  MatrixFlow flow(parameters, block_dataset(task));
  check_orders(flow, Eigen::VectorXd(balanced_random_start(parameters, 3, 0.3)));
}

TEST_CASE("without the preconditioner of both circuits the order would not be 2", "[modified_flow]") {
  // The correction with H alone, not P H: the error stays first order. Told by a field that takes the rates out once.
  const Caco<double> flow{task, rates};
  const auto wrong = [&](double h) {
    return [&flow, h](const Eigen::Vector2d& x, Eigen::Vector2d& dxdt, double t) {
      Eigen::Vector2d turn;
      flow(x, dxdt, t);
      flow.derivative(x, dxdt, turn);
      dxdt -= h / 2 * Eigen::Vector2d(turn[0] / rates.ov, turn[1] / rates.qk);
    };
  };
  const Eigen::Vector2d start(0.3, 0.2);
  const OrderStudy study = order_study(
      [&](double h) {
        auto field = wrong(h);
        return (descended(flow, start, h) - integrated(field, start)).norm();
      },
      end / 64, 7);
  CHECK_THAT(study.slope, WithinAbs(1.0, 0.1));
}

TEST_CASE("a linear field: the modified flow by hand", "[modified_flow]") {
  // F = -A x: the correction is -(h/2) A^2 x, of log(1 - h A)/h = -A - h A^2/2 - ...
  struct Linear {
    using State = Eigen::Vector2d;
    Eigen::Matrix2d a;
    void operator()(const State& x, State& dxdt, double) const { dxdt = -a * x; }
    void derivative(const State&, const State& v, State& result) const { result = -a * v; }
  };
  Linear field;
  field.a << 2, 1, 1, 3;
  const Eigen::Vector2d x(0.7, -1.1);
  Eigen::Vector2d velocity;
  ModifiedFlow modified(field, 0.25);
  modified(x, velocity, 0.0);
  CHECK((velocity + field.a * x + 0.125 * field.a * field.a * x).norm() < 1e-15);
  CHECK(modified.step() == 0.25);
  ModifiedFlow none(field, 0.0);
  none(x, velocity, 0.0);
  CHECK(velocity == Eigen::Vector2d(-field.a * x));
}

TEST_CASE("the modified flow says what it takes", "[modified_flow]") {
  const Caco<double> flow;
  static_assert(DifferentiableField<const Caco<double>, Eigen::Vector2d>);
  static_assert(DifferentiableField<GradientField<CacoParameters<double>>, Eigen::VectorXd>);
  static_assert(DifferentiableField<MatrixFlow<FafoParameters<double>>, Eigen::VectorXd>);
  const auto plain = [](const Eigen::Vector2d& x, Eigen::Vector2d& dxdt, double) { dxdt = -x; };
  static_assert(!DifferentiableField<decltype(plain), Eigen::Vector2d>);
  static_assert(!std::is_constructible_v<ModifiedFlow<Caco<double>>, Caco<double>&&, double>);
  CHECK_THROWS_WITH(ModifiedFlow(flow, -1.0), Contains("ModifiedFlow: step = -1"));
  CHECK_THROWS_WITH(ModifiedFlow(flow, not_a_number), Contains("step = nan"));
}
