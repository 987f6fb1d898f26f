// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/layout_conversion.hpp"

#include <Eigen/Core>
#include <utility>
#include <vector>

#include "qkflow/model/aligned_start.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/model/product_circuit.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

const DatasetShape shape{3, 7, 5};  // nothing square, nothing a multiple of the lanes

template <class T, class Parameters>
void check(const Parameters& parameters) {
  const Eigen::VectorXd theta = balanced_random_start(parameters, 4, 1.0);
  const OneHotLayout<T> layout = training_layout<T>(parameters);
  const std::vector<T> flat = to_training(parameters, layout, theta);
  // The circuits are the same matrices.
  Circuits<double> buffers;
  const auto w = parameters.circuits(theta, buffers);
  const double allowed = sizeof(T) == 4 ? 1e-5 : 1e-14;
  CHECK((layout.w_qk(flat).template cast<double>() - w.qk).cwiseAbs().maxCoeff() < allowed);
  CHECK((layout.w_ov(flat).template cast<double>() - w.ov).cwiseAbs().maxCoeff() < allowed);
  Eigen::VectorXd back;
  from_training(parameters, layout, flat, back);
  if (sizeof(T) == 8) CHECK(back == theta);
  CHECK((back - theta).cwiseAbs().maxCoeff() < 1e-6);
  const OneHotShape head = layout.shape();
  CHECK(head.queries == 3);
  CHECK(head.tokens == 7);
  CHECK(head.classes == 5);
  CHECK(head.bias == parameters.has_bias());
}

}  // namespace

TEST_CASE("parameters and training hold the same matrices, both ways", "[layout_conversion]") {
  check<double>(caco_parameters<double>(shape));
  check<double>(cafo_parameters<double>(shape, 2));
  check<double>(faco_parameters<double>(shape, 3));
  check<double>(fafo_parameters<double>(shape, 3, {}, true));
  check<float>(fafo_parameters<double>(shape, 3));
}

TEST_CASE("one step of training is a step of the flow's velocity: rates times h", "[layout_conversion]") {
  const auto factors = training_rates(fafo_parameters<double>(shape, 3, {.qk = 4, .ov = 0.5, .bias = 2}, true), 0.25);
  CHECK(factors.of("W_Q").value == 1);
  CHECK(factors.of("W_K").value == 1);
  CHECK(factors.of("W_O").value == 0.125);
  CHECK(factors.of("W_V").value == 0.125);
  CHECK(factors.of("bias").value == 0.5);
  const auto collapsed = training_rates(caco_parameters<double>(shape, {.qk = 4, .ov = 0.5}), 0.25);
  CHECK(collapsed.of("W_QK").value == 1);
  CHECK(collapsed.of("W_OV").value == 0.125);
  CHECK_THROWS_WITH(training_rates(caco_parameters<double>(shape), 0), Contains("training_rates: step = 0"));
}

TEST_CASE("parameters the kernels do not know, and vectors of another size, are refused", "[layout_conversion]") {
  const HeadParameters deep(ProductCircuit<double, Circuit::qk>(circuit_shape(shape, Circuit::qk), {2, 2}, {1.0}),
                            CollapsedCircuit<double, Circuit::ov>(circuit_shape(shape, Circuit::ov), 1.0));
  CHECK_THROWS_WITH(training_layout<double>(deep),
                    Contains("training_layout: the training kernels know no parameters"));
  const auto parameters = caco_parameters<double>(shape);
  const auto layout = training_layout<double>(parameters);
  CHECK_THROWS_WITH(to_training(parameters, layout, Eigen::VectorXd::Zero(3)),
                    Contains("to_training: size of theta = 3"));
  Eigen::VectorXd theta;
  CHECK_THROWS_WITH(from_training(parameters, layout, std::vector<double>(3), theta),
                    Contains("size of the vector = 3"));
  const auto other = training_layout<double>(fafo_parameters<double>(shape, 3));
  CHECK_THROWS_WITH(to_training(parameters, other, Eigen::VectorXd::Zero(parameters.size())),
                    Contains("no block W_QK"));
}
