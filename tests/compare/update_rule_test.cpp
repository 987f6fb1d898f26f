// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/update_rule.hpp"

#include <Eigen/Core>
#include <cmath>
#include <vector>

#include "qkflow/compare/layout_conversion.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/trainer.hpp"
#include "support/catch.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

using State = Eigen::VectorXd;
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};

static_assert(UpdateRule<GradientDescent, State> && UpdateRule<HeavyBall, State> && UpdateRule<SignDescent, State> &&
              UpdateRule<AdamRule, State> && UpdateRule<HeavyBall, Eigen::Matrix<float, 2, 1>>);
static_assert(StepRule<GradientDescent, State> && !StepRule<HeavyBall, State>);
static_assert(!UpdateRule<int, State>);

/// Some steps of a rule along the velocity field of a head, against the trainer's optimizer on the full batch.
template <class Rule, class Parameters>
double difference_from_trainer(const Rule& rule, const OptimizerOptions& optimizer, const Parameters& parameters) {
  const Dataset<double> data = block_dataset(task);
  const double h = 0.3;
  const State start = balanced_random_start(parameters, 5, 0.4);
  MatrixFlow flow(parameters, data);
  State theta = start, velocity(start.size());
  auto step = detail::begin_rule<State>(rule, start);
  const auto layout = training_layout<double>(parameters);
  TrainingOptions<double> options;
  options.rates = training_rates(parameters, h);
  options.optimizer = optimizer;
  Trainer trainer(layout, options, DatasetSampler<double>(data, {}), to_training(parameters, layout, start));
  for (int k = 0; k < 25; ++k) {
    flow(theta, velocity, 0.0);
    step(theta, static_cast<const State&>(velocity), h);
    trainer.advance();
  }
  State trained;
  from_training(parameters, layout, trainer.theta(), trained);
  CHECK((theta - start).cwiseAbs().maxCoeff() > 0.05);
  return (theta - trained).cwiseAbs().maxCoeff();
}

std::vector<double> rates_of(const auto& parameters) {
  const State rates = parameters.rates();
  return {rates.data(), rates.data() + rates.size()};
}

}  // namespace

TEST_CASE("on a full batch every rule is the trainer's optimizer", "[update_rule]") {
  const DatasetShape shape = BlockLayout::of(task).shape();
  const double allowed = tolerance<double>(Tol::state);
  const auto check = [&](const auto& parameters) {
    using Kind = OptimizerOptions::Kind;
    CHECK(difference_from_trainer(GradientDescent{}, {.kind = Kind::sgd}, parameters) < allowed);
    CHECK(difference_from_trainer(HeavyBall{.beta = 0.7}, {.kind = Kind::momentum, .momentum = 0.7}, parameters) <
          allowed);
    // Where a gradient is 0 but for rounding Adam magnifies that: epsilon well above it.
    const AdamRule adam{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .rates = rates_of(parameters)};
    CHECK(difference_from_trainer(adam, {.kind = Kind::adam, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
                                  parameters) < tolerance<double>(Tol::extreme));
  };
  check(caco_parameters<double>(shape, {.qk = 2.5, .ov = 0.7}));
  check(fafo_parameters<double>(shape, 4, {.qk = 2.5, .ov = 0.7}));
}

TEST_CASE("one step of each rule by hand", "[update_rule]") {
  const State start = State::Zero(3);
  State velocity(3);
  velocity << 4, -0.5, 0;
  const std::vector<double> rates{2, 0.25, 3};
  State theta = start;

  GradientDescent{}(theta, velocity, 0.5);
  CHECK(theta == State(0.5 * velocity));

  auto ball = HeavyBall{.beta = 0.5}.begin(start);
  theta = start;
  ball(theta, velocity, 1.0);
  CHECK(theta == velocity);
  ball(theta, velocity, 1.0);  // momentum 1.5 F
  CHECK(theta == State(2.5 * velocity));

  theta = start;
  SignDescent{.rates = rates}.begin(start)(theta, velocity, 0.5);
  CHECK(theta[0] == 1);
  CHECK(theta[1] == -0.125);
  CHECK(theta[2] == 0);
  theta = start;
  SignDescent{.epsilon = 2, .rates = rates}.begin(start)(theta, velocity, 1.0);  // g = 2, -2, 0
  CHECK(theta[0] == 1);
  CHECK(theta[1] == -0.125);
  CHECK(theta[2] == 0);

  // The first step of Adam is a sign, whatever the betas: both corrections undo them.
  theta = start;
  AdamRule{.epsilon = 1e-12, .rates = rates}.begin(start)(theta, velocity, 0.5);
  CHECK_THAT(theta[0], WithinRel(1.0, 1e-10));
  CHECK_THAT(theta[1], WithinRel(-0.125, 1e-10));
  CHECK(theta[2] == 0);
}

TEST_CASE("a frozen parameter stays, a sign needs the rates", "[update_rule]") {
  const State start = State::Ones(2);
  State velocity(2), theta = start;
  velocity << 0, 3;
  SignDescent{.rates = {0, 1}}.begin(start)(theta, velocity, 1.0);
  CHECK(theta[0] == 1);
  CHECK(theta[1] == 2);
  theta = start;
  AdamRule{.rates = {0, 1}}.begin(start)(theta, velocity, 1.0);
  CHECK(theta[0] == 1);
  theta = start;
  SignDescent{}.begin(start)(theta, velocity, 1.0);  // rates 1
  CHECK(theta[1] == 2);
}

TEST_CASE("rules refuse what they cannot work with", "[update_rule]") {
  const State start = State::Zero(2);
  CHECK_THROWS_WITH(HeavyBall{.beta = 1}.begin(start), Contains("HeavyBall: beta = 1,"));
  CHECK_THROWS_WITH(HeavyBall{.beta = -0.1}.begin(start), Contains("beta = -0.1"));
  CHECK_THROWS_WITH(SignDescent{.epsilon = -1}.begin(start), Contains("SignDescent: epsilon = -1"));
  CHECK_THROWS_WITH(SignDescent{.rates = {1}}.begin(start), Contains("number of rates = 1, but it must be none or 2"));
  CHECK_THROWS_WITH((SignDescent{.rates = {1, -2}}.begin(start)), Contains("rates[1] = -2"));
  CHECK_THROWS_WITH(AdamRule{.beta1 = 1}.begin(start), Contains("AdamRule: beta1 = 1,"));
  CHECK_THROWS_WITH(AdamRule{.beta2 = 1.5}.begin(start), Contains("beta2 = 1.5"));
  CHECK_THROWS_WITH(AdamRule{.epsilon = 0}.begin(start), Contains("epsilon = 0"));
}
