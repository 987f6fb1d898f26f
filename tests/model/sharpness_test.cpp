// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/sharpness.hpp"

#include <Eigen/Eigenvalues>

#include "support/catch.hpp"
#include "support/parameterization.hpp"
#include "support/random_dataset.hpp"

using namespace qkflow;

namespace {

const DatasetShape shape{3, 6, 4};

/// The Hessian of the loss, column by column by central differences of the gradient at unit rates.
template <class Parameters>
DenseMatrix<double> numeric_hessian(const Parameters& at_unit_rates, const Dataset<double>& data,
                                    const ColumnVector<double>& theta) {
  GradientField<Parameters> field(at_unit_rates, data);
  DenseMatrix<double> hessian(theta.size(), theta.size());
  ColumnVector<double> probe = theta, up, down;
  const double h = 1e-5;
  for (Eigen::Index i = 0; i < theta.size(); ++i) {
    probe[i] = theta[i] + h;
    field.velocity(probe, up);
    probe[i] = theta[i] - h;
    field.velocity(probe, down);
    probe[i] = theta[i];
    hessian.col(i) = (down - up) / (2 * h);
  }
  return (hessian + hessian.transpose()) / 2;
}

template <class Parameters>
void check_sharpness(const Parameters& parameters, const Parameters& at_unit_rates) {
  const Dataset<double> data = qkflow_test::random_dataset({.shape = shape, .sequences = 40});
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(parameters.size(), 3);
  const DenseMatrix<double> hessian = numeric_hessian(at_unit_rates, data, theta);
  GradientField<Parameters> field(parameters, data);
  for (const auto which : {SharpnessOf::all, SharpnessOf::qk, SharpnessOf::ov}) {
    const Eigen::Index split = parameters.qk().size(), size = parameters.size();
    const Eigen::Index first = which == SharpnessOf::ov ? split : 0;
    const Eigen::Index count = which == SharpnessOf::all ? size : which == SharpnessOf::qk ? split : size - split;
    const ColumnVector<double> root = parameters.rates().cwiseSqrt().segment(first, count);
    const DenseMatrix<double> scaled =
        root.asDiagonal() * hessian.block(first, first, count, count) * root.asDiagonal();
    const Eigen::SelfAdjointEigenSolver<DenseMatrix<double>> exact(scaled);
    const auto found = sharpness(field, theta, which, {.rtol = 1e-10, .largest_only = false});
    CAPTURE(static_cast<int>(which));
    CHECK(found.converged);
    CHECK_THAT(found.largest, WithinAbs(exact.eigenvalues().maxCoeff(), 1e-8));
    CHECK_THAT(found.smallest, WithinAbs(exact.eigenvalues().minCoeff(), 1e-7));
  }
}

}  // namespace

TEST_CASE("sharpness is the largest eigenvalue of the preconditioned Hessian") {
  const CircuitRates<double> rates{.qk = 3, .ov = 0.5, .bias = 2};
  check_sharpness(caco_parameters<double>(shape, rates, true), caco_parameters<double>(shape, {}, true));
  check_sharpness(fafo_parameters<double>(shape, 2, rates, true), fafo_parameters<double>(shape, 2, {}, true));
}

TEST_CASE("gradient descent on a quadratic bowl: stable below 2 / sharpness, unstable above") {
  // Near a minimum of a task that cannot be fitted (labels contradict each other), only W_OV moving.
  DatasetBuilder<double> builder({1, 2, 2});
  builder.add({.label = 0, .entries = {{0}}, .weight = 2});
  builder.add({.label = 1, .entries = {{0}}});
  builder.add({.label = 1, .entries = {{1}}, .weight = 3});
  builder.add({.label = 0, .entries = {{1}}});
  const Dataset<double> data = std::move(builder).build();
  const auto run = [&](double eta) {
    GradientField field(caco_parameters<double>({1, 2, 2}, {.qk = 0, .ov = eta}), data);
    ColumnVector<double> theta = ColumnVector<double>::Zero(field.size()), velocity;
    for (int k = 0; k < 2000; ++k) {
      field.velocity(theta, velocity);
      theta += velocity;
    }
    field.velocity(theta, velocity);
    return velocity.norm() / eta;
  };
  GradientField field(caco_parameters<double>({1, 2, 2}, {.qk = 0}), data);
  ColumnVector<double> theta = ColumnVector<double>::Zero(field.size()), velocity;
  for (int k = 0; k < 2000; ++k) {
    field.velocity(theta, velocity);
    theta += velocity;
  }
  const double largest = sharpness(field, theta).largest;
  CHECK(run(1.9 / largest) < 1e-10);
  CHECK(run(2.1 / largest) > 1e-3);
}

TEST_CASE("nothing that moves, or a wrong size, is refused") {
  const Dataset<double> data = qkflow_test::random_dataset({.shape = shape});
  GradientField frozen(caco_parameters<double>(shape, {.qk = 0, .ov = 1}), data);
  const ColumnVector<double> theta = ColumnVector<double>::Zero(frozen.size());
  CHECK_THROWS_WITH(sharpness(frozen, theta, SharpnessOf::qk), Catch::Contains("all learning rates asked for are 0"));
  CHECK_NOTHROW(sharpness(frozen, theta));
  CHECK_THROWS_WITH(sharpness(frozen, ColumnVector<double>(2)), Catch::Contains("size of theta = 2"));
}
