// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/factorized_circuit.hpp"

#include <type_traits>

#include "support/catch.hpp"
#include "support/parameterization.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("a factorized circuit forms, pulls back and conserves", "",
                   (std::integral_constant<Circuit, Circuit::qk>), (std::integral_constant<Circuit, Circuit::ov>)) {
  constexpr Circuit circuit = TestType::value;
  // Inner dimension below, between and above the circuit's own; ones; equal, unequal and float rates.
  for (const Eigen::Index inner : {1, 2, 4, 11}) {
    CAPTURE(inner);
    qkflow_test::check_parameterization(FactorizedCircuit<double, circuit>({3, 5}, inner));
    qkflow_test::check_parameterization(FactorizedCircuit<double, circuit>({3, 5}, inner, {.left = 0.5, .right = 3}));
    qkflow_test::check_parameterization(FactorizedCircuit<double, circuit>({1, 1}, inner, 2.0));
    qkflow_test::check_parameterization(FactorizedCircuit<long double, circuit>({7, 2}, inner, 2.0L));
  }
}

TEST_CASE("the factors are W_Q, W_K and W_O, W_V as the theory writes them") {
  const FactorizedCircuit<double, Circuit::qk> qk({3, 5}, 2, 0.5);
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(qk.size(), 3);
  const auto blocks = qk.blocks();
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].name == "W_Q");
  CHECK(blocks[0].shape == MatrixShape{2, 3});
  CHECK(blocks[1].name == "W_K");
  CHECK(blocks[1].shape == MatrixShape{2, 5});
  CHECK(blocks[1].rate == 0.5);
  const ConstVectorMap<double> map(theta.data(), theta.size());
  const DenseMatrix<double> w_q = block_map(theta, blocks[0]), w_k = block_map(theta, blocks[1]);
  CircuitMatrix<double, Circuit::qk> buffer;
  const double tight = qkflow_test::tolerance<double>(qkflow_test::Tol::rounding);
  CHECK((qk.form(map, buffer) - w_q.transpose() * w_k).cwiseAbs().maxCoeff() < tight);
  CHECK((qk.left(map) - w_q.transpose()).cwiseAbs().maxCoeff() == 0);
  const DenseMatrix<double> balance = w_q * w_q.transpose() - w_k * w_k.transpose();
  CHECK((qk.conserved(map).at(0).value - balance).cwiseAbs().maxCoeff() < tight * 10);

  const FactorizedCircuit<double, Circuit::ov> ov({4, 5}, 2);
  const ColumnVector<double> phi = qkflow_test::normal_vector<double>(ov.size(), 4);
  const ConstVectorMap<double> phi_map(phi.data(), phi.size());
  const DenseMatrix<double> w_o = block_map(phi, ov.blocks()[0]), w_v = block_map(phi, ov.blocks()[1]);
  CHECK(ov.blocks()[0].name == "W_O");
  CHECK(ov.blocks()[0].shape == MatrixShape{4, 2});
  CircuitMatrix<double, Circuit::ov> ov_buffer;
  CHECK((ov.form(phi_map, ov_buffer) - w_o * w_v).cwiseAbs().maxCoeff() < tight);
  CHECK((ov.conserved(phi_map).at(0).value - (w_o.transpose() * w_o - w_v * w_v.transpose())).cwiseAbs().maxCoeff() <
        tight * 10);
}

TEST_CASE("a frozen factor stays, and its own norm is what is conserved") {
  using Factorized = FactorizedCircuit<double, Circuit::ov>;
  const Factorized ov({4, 5}, 2, {.left = 0, .right = 1});
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(ov.size(), 4);
  const ConstVectorMap<double> map(theta.data(), theta.size());
  CircuitMatrix<double, Circuit::ov> gradient = CircuitMatrix<double, Circuit::ov>::Ones(4, 5);
  ColumnVector<double> velocity(ov.size());
  ov.pull_back(map, {gradient.data(), 4, 5}, {velocity.data(), velocity.size()});
  CHECK(velocity.head(8).cwiseAbs().maxCoeff() == 0);
  CHECK(velocity.tail(10).cwiseAbs().maxCoeff() > 0);
  CHECK(ov.conserved(map).at(0).value.isApprox(ov.left(map).transpose() * ov.left(map)));
}

TEST_CASE("bad inner dimensions and rates are refused") {
  using Factorized = FactorizedCircuit<double, Circuit::qk>;
  CHECK_THROWS_WITH(Factorized({3, 5}, 0), Catch::Contains("inner dimension = 0"));
  CHECK_THROWS_WITH(Factorized({3, 5}, 2, {.left = -1}), Catch::Contains("left rate = -1"));
  CHECK_THROWS_WITH(Factorized({3, 5}, 2, {.left = 1, .right = -2}), Catch::Contains("right rate = -2"));
}
