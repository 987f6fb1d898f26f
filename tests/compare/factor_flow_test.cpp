// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Training of the matrices is Euler's method on two numbers.
#include "qkflow/compare/factor_flow.hpp"

#include <Eigen/Core>
#include <boost/multiprecision/eigen.hpp>
#include <cmath>

#include "qkflow/compare/alignment.hpp"
#include "qkflow/compare/descend.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

const LearningRates<double> rates{.ov = 0.7, .qk = 2.5};
const CircuitRates<double> circuit_rates{.qk = 2.5, .ov = 0.7};
const BlockTask<double> plain{.classes = 3, .block = 4, .informative = 2, .noise = 3};

template <class Parameters, class Reduced>
void check_training(const Parameters& parameters, const Reduced& reduced, double mu_ov, double mu_qk) {
  const BlockTask<double>& task = reduced.task;
  MatrixFlow flow(parameters, block_dataset(task), {.score_scale = task.score_scale});
  const Eigen::VectorXd start = aligned_start(parameters, task, {.mu_ov = mu_ov, .mu_qk = mu_qk});
  const FactorFlow<double> factors(reduced, {mu_ov, mu_qk});
  const double h = 0.8;
  const auto matrix = descend(flow, start, {.step = h, .steps = 60, .save_every = 20});
  const auto scalars = descend(factors, factors.start(), {.step = h, .steps = 60, .save_every = 20});
  REQUIRE(matrix.success());
  REQUIRE(scalars.success());
  const MatrixObserver observe(flow, task);
  const FactorObserver observe_factors(factors);
  const double allowed = 10 * tolerance<double>(Tol::state);
  for (std::size_t i = 0; i < matrix.states.size(); ++i) {
    const auto a = observe(matrix.states[i]), b = observe_factors(scalars.states[i]);
    CHECK_THAT(a.mu_ov, WithinAbs(b.mu_ov, allowed));
    CHECK_THAT(a.mu_qk, WithinAbs(b.mu_qk, allowed));
    CHECK_THAT(a.alpha, WithinAbs(b.alpha, allowed));
    CHECK_THAT(a.loss, WithinAbs(b.loss, allowed));
    CHECK(a.off_line < allowed);
    // The metric turns its distance into the parameters'.
    const Eigen::Vector2d moved = scalars.states[i] - factors.start();
    CHECK_THAT((matrix.states[i] - start).norm(),
               WithinAbs(std::sqrt(factors.metric().dot(moved.cwiseAbs2())), allowed));
  }
  // A step of the product is something else: where a circuit has factors the reduced flow's steps differ.
  const auto products = descend(reduced, Eigen::Vector2d(mu_ov, mu_qk), {.step = h, .steps = 60});
  const double difference = std::abs(products.x[0] - factors.reduced(scalars.x).mu_ov) +
                            std::abs(products.x[1] - factors.reduced(scalars.x).mu_qk);
  if (Parameters::Qk_type::circuit == Circuit::qk && factors.metric()[0] < 6.5) CHECK(difference > 1e-4);
}

template <class Scalar, Circuit which>
ProductCircuit<Scalar, which> product(std::vector<Eigen::Index> inner, double rate) {
  return {circuit_shape(BlockLayout::of(plain).shape(), which), std::move(inner), {Scalar(rate)}};
}

}  // namespace

TEST_CASE("gradient descent of the matrices is Euler's method on the factors", "[factor_flow]") {
  const DatasetShape shape = BlockLayout::of(plain).shape();
  check_training(caco_parameters<double>(shape, circuit_rates), Caco<double>{plain, rates}, 0.3, 0.2);
  check_training(cafo_parameters<double>(shape, 3, circuit_rates), Cafo<double>{plain, rates}, 0.3, 0.2);
  check_training(faco_parameters<double>(shape, 3, circuit_rates), Faco<double>{plain, rates}, 0.3, 0.2);
  check_training(fafo_parameters<double>(shape, 5, circuit_rates), Fafo<double>{plain, rates}, 0.3, 0.2);
  check_training(fafo_parameters<double>(shape, 5, circuit_rates), Fafo<double>{plain, rates}, -0.3, -0.2);
}

TEST_CASE("the same with a score scale, and with noise tokens", "[factor_flow]") {
  BlockTask<double> task = plain;
  task.score_scale = 0.6;
  const DatasetShape shape = BlockLayout::of(task).shape();
  check_training(caco_parameters<double>(shape, circuit_rates), Caco<double>{task, rates}, 0.3, 0.2);
  check_training(fafo_parameters<double>(shape, 3, circuit_rates), Fafo<double>{task, rates}, 0.3, 0.2);
  task.noise_vocabulary = 6;
  check_training(cafo_parameters<double>(BlockLayout::of(task).shape(), 3, circuit_rates), Cafo<double>{task, rates},
                 0.3, 0.2);
}

TEST_CASE("the same for products of three and four factors", "[factor_flow]") {
  const HeadParameters parameters(product<double, Circuit::qk>({3, 4}, 2.5),
                                  product<double, Circuit::ov>({5, 3, 3}, 0.7));
  check_training(parameters, ReducedFlow<double, FactorProduct, FactorProduct>{plain, rates, {3}, {4}}, 0.3, 0.15);
}

TEST_CASE("in continuous time it is the reduced flow", "[factor_flow]") {
  const Fafo<double> reduced{plain, rates};
  const FactorFlow<double> factors(reduced, {-0.3, 0.2});
  Eigen::Vector2d velocity;
  factors(factors.start(), velocity, 0.0);
  // d mu = (d mu / dx) dx, by differences along the velocity.
  const double e = 1e-6;
  const auto up = factors.reduced(factors.start() + e * velocity),
             down = factors.reduced(factors.start() - e * velocity);
  CHECK_THAT((up.mu_ov - down.mu_ov) / (2 * e), WithinRel(reduced.output_velocity(-0.3, 0.2), 1e-8));
  CHECK_THAT((up.mu_qk - down.mu_qk) / (2 * e), WithinRel(reduced.attention_velocity(-0.3, 0.2), 1e-8));
  CHECK_THAT(factors.loss(factors.start()), WithinRel(reduced.loss(-0.3, 0.2), 1e-14));
}

TEST_CASE("its derivative against differences in 50 digits", "[factor_flow]") {
  using State = Eigen::Matrix<Precise, 2, 1>;
  BlockTask<Precise> task{.classes = 5, .block = 4, .informative = 2, .noise = 3, .score_scale = Precise(0.7)};
  const auto check = [&](const auto& reduced, double mu_ov, double mu_qk) {
    const FactorFlow<Precise> flow(reduced, {Precise(mu_ov), Precise(mu_qk)});
    const State x = flow.start(), v(Precise(0.3), Precise(-1.7));
    State derivative, up, down;
    flow.derivative(x, v, derivative);
    const Precise h("1e-16");
    flow(State(x + h * v), up, Precise(0));
    flow(State(x - h * v), down, Precise(0));
    const State numeric = (up - down) / (2 * h);
    INFO(derivative[0] << " " << numeric[0] << ", " << derivative[1] << " " << numeric[1]);
    CHECK(State(derivative - numeric).norm() < Precise("1e-27"));
  };
  const LearningRates<Precise> r{.ov = Precise(0.7), .qk = Precise(2.5)};
  check(Caco<Precise>{task, r}, 0.4, -0.3);
  check(Cafo<Precise>{task, r}, -0.4, 0.3);
  check(Faco<Precise>{task, r}, 0.4, -0.3);
  check(Fafo<Precise>{task, r}, 1.4, 0.3);
  check(ReducedFlow<Precise, FactorProduct, FactorProduct>{task, r, {3}, {4}}, -0.4, -0.3);
  // At the saddle the derivative is there too: two factors make it a way out.
  const FactorFlow<double> saddle(Fafo<double>{plain, rates}, {0, 0});
  CHECK(saddle.start() == Eigen::Vector2d(0, 0));
  CHECK(saddle.jacobian(saddle.start()).ov_ov > 0);
}

TEST_CASE("a factor flow refuses what is no start", "[factor_flow]") {
  CHECK_THROWS_WITH(FactorFlow(Caco<double>{}, ReducedState<double>{std::nan(""), 0}),
                    Contains("FactorFlow: mu_ov = nan"));
  CHECK_THROWS_WITH(FactorFlow(Caco<double>{.task = {.classes = 1}}, ReducedState<double>{}), Contains("classes = 1"));
}
