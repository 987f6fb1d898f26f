// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/product_circuit.hpp"

#include <type_traits>

#include "qkflow/model/factorized_circuit.hpp"
#include "support/catch.hpp"
#include "support/parameterization.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("a product of factors forms, pulls back and conserves", "",
                   (std::integral_constant<Circuit, Circuit::qk>), (std::integral_constant<Circuit, Circuit::ov>)) {
  constexpr Circuit circuit = TestType::value;
  using Product = ProductCircuit<double, circuit>;
  qkflow_test::check_parameterization(Product({3, 5}, {}, {2.0}));
  qkflow_test::check_parameterization(Product({3, 5}, {4}));
  qkflow_test::check_parameterization(Product({3, 5}, {2, 7}, {0.5, 1, 3}));
  qkflow_test::check_parameterization(Product({3, 5}, {1, 3, 2}, {0.25}));
  qkflow_test::check_parameterization(Product({1, 1}, {1, 1}));
  CHECK(Product({3, 5}, {2, 7}).factors() == 3);
  CHECK(Product({3, 5}, {2, 7}).size() == 6 + 14 + 35);
}

TEST_CASE("a product of two is the factorized circuit") {
  const ProductCircuit<double, Circuit::ov> product({4, 5}, {3}, {0.5, 2.0});
  const FactorizedCircuit<double, Circuit::ov> factorized({4, 5}, 3, {.left = 0.5, .right = 2.0});
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(product.size(), 5);
  const ConstVectorMap<double> map(theta.data(), theta.size());
  CircuitMatrix<double, Circuit::ov> a, b;
  CHECK(product.form(map, a).isApprox(factorized.form(map, b), 1e-15));
  ColumnVector<double> u(theta.size()), v(theta.size());
  const CircuitMatrix<double, Circuit::ov> gradient = CircuitMatrix<double, Circuit::ov>::Random(4, 5);
  product.pull_back(map, {gradient.data(), 4, 5}, {u.data(), u.size()});
  factorized.pull_back(map, {gradient.data(), 4, 5}, {v.data(), v.size()});
  CHECK(u.isApprox(v, 1e-15));
  CHECK(product.conserved(map).at(0).value.isApprox(factorized.conserved(map).at(0).value, 1e-14));
}

TEST_CASE("bad products are refused") {
  using Product = ProductCircuit<double, Circuit::qk>;
  CHECK_THROWS_WITH(Product({3, 5}, {2, 0}), Catch::Contains("inner dimension = 0"));
  CHECK_THROWS_WITH(Product({3, 5}, {2, 2}, {1, 2}), Catch::Contains("number of rates = 2"));
  CHECK_THROWS_WITH(Product({3, 5}, {2}, {1, -2}), Catch::Contains("rate = -2"));
}
