// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/gradient_field.hpp"

#include "support/catch.hpp"
#include "support/parameterization.hpp"
#include "support/random_dataset.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::normal_vector;
using qkflow_test::random_dataset;
using qkflow_test::Tol;

namespace {

const DatasetShape shape{3, 7, 4};

/// The field against differences of the loss, its derivative against differences of the field.
template <class Parameters>
void check_field(const Parameters& parameters, AttentionMode mode) {
  const Dataset<double> data = random_dataset({.shape = shape});
  GradientField<Parameters> field(parameters, data, {.attention = mode, .score_scale = 0.5}, 2);
  const ColumnVector<double> theta = normal_vector<double>(field.size(), 1), u = normal_vector<double>(field.size(), 2);
  const double loose = qkflow_test::tolerance<double>(Tol::difference), h = 1e-5;

  ColumnVector<double> velocity, again;
  const double loss = field.velocity(theta, velocity);
  CHECK_THAT(field.loss(theta), WithinRel(loss, 1e-14));
  field(theta, again, 0.0);
  CHECK(again == velocity);
  const double slope = -(field.loss(theta + h * u) - field.loss(theta - h * u)) / (2 * h);
  CHECK_THAT(velocity.cwiseQuotient(parameters.rates()).dot(u), WithinAbs(slope, loose));

  ColumnVector<double> derivative, up, down;
  field.derivative(theta, u, derivative);
  field.velocity(theta + h * u, up);
  field.velocity(theta - h * u, down);
  const ColumnVector<double> difference = (up - down) / (2 * h);
  CHECK((derivative - difference).cwiseAbs().maxCoeff() < loose * (1 + derivative.cwiseAbs().maxCoeff()));
  // The derivative leaves the field's buffers in order.
  field.velocity(theta, again);
  CHECK(again == velocity);
}

}  // namespace

TEST_CASE("every parameterization's field is the gradient of the loss, and knows its derivative") {
  const CircuitRates<double> rates{.qk = 3, .ov = 0.5, .bias = 2};
  for (const AttentionMode mode : {AttentionMode::soft, AttentionMode::hard, AttentionMode::marginal}) {
    for (const bool with_bias : {false, true}) {
      check_field(caco_parameters<double>(shape, rates, with_bias), mode);
      check_field(cafo_parameters<double>(shape, 2, rates, with_bias), mode);
      check_field(faco_parameters<double>(shape, 2, rates, with_bias), mode);
      check_field(fafo_parameters<double>(shape, 3, rates, with_bias), mode);
      check_field(HeadParameters(ProductCircuit<double, Circuit::qk>({3, 7}, {2, 3}, {1, 2, 3}),
                                 ProductCircuit<double, Circuit::ov>({4, 7}, {3, 5, 2}, {0.5}), {with_bias, 2.0}),
                  mode);
    }
  }
}

TEST_CASE("a field takes another dataset, and refuses one of another shape") {
  const Dataset<double> data = random_dataset({.shape = shape}), other = random_dataset({.shape = shape, .seed = 2});
  GradientField field(caco_parameters<double>(shape), data);
  const ColumnVector<double> theta = normal_vector<double>(field.size(), 1);
  const double loss = field.loss(theta);
  field.reset(other);
  CHECK(field.loss(theta) != loss);
  field.reset(data);
  CHECK(field.loss(theta) == loss);
  CHECK_THROWS_WITH(field.reset(random_dataset({.shape = {3, 8, 4}})), Catch::Contains("tokens of the parameters = 7"));
  CHECK_THROWS_WITH(GradientField(caco_parameters<double>({2, 7, 4}), data), Catch::Contains("queries"));
  ColumnVector<double> velocity;
  CHECK_THROWS_WITH(field.velocity(ColumnVector<double>(3), velocity), Catch::Contains("size of theta = 3"));
}
