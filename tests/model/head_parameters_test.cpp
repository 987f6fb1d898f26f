// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/head_parameters.hpp"

#include "support/catch.hpp"
#include "support/parameterization.hpp"

using namespace qkflow;

namespace {
const DatasetShape shape{3, 5, 4};
}

TEST_CASE("the flat vector holds attention, output and bias, by name") {
  const auto fafo = fafo_parameters<double>(shape, 2, {.qk = 3, .ov = 0.5, .bias = 7}, true);
  CHECK(fafo.size() == 2 * 3 + 2 * 5 + 4 * 2 + 2 * 5 + 4);
  CHECK(fafo.shape() == shape);
  const auto blocks = fafo.blocks();
  REQUIRE(blocks.size() == 5);
  CHECK(blocks[2].name == "W_O");
  CHECK(blocks[2].offset == 16);
  CHECK(fafo.block("bias").offset == 34);
  CHECK(fafo.block("bias").rate == 7);
  CHECK(fafo.block("W_V").rate == 0.5);
  const ColumnVector<double> rates = fafo.rates();
  CHECK(rates[0] == 3);
  CHECK(rates[16] == 0.5);
  CHECK(rates[37] == 7);
  CHECK(caco_parameters<double>(shape).blocks().size() == 2);
  CHECK(cafo_parameters<double>(shape, 2).block("W_QK").is_row_major);
  CHECK(faco_parameters<double>(shape, 2).block("W_OV").offset == 16);
}

TEST_CASE("circuits, pull-back and conserved quantities are those of the parts") {
  const auto faco = faco_parameters<double>(shape, 2, {.qk = 3, .ov = 0.5, .bias = 7}, true);
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(faco.size(), 1);
  Circuits<double> buffers, part;
  const auto w = faco.circuits(theta, buffers);
  CHECK(w.qk.isApprox(faco.qk().form(faco.qk_part(theta), part.qk)));
  CHECK(w.ov.data() == theta.data() + 16);  // collapsed: a view
  CHECK(w.bias == theta.tail(4));
  Circuits<double> gradient(shape, true);
  gradient.qk.setRandom();
  gradient.ov.setRandom();
  gradient.bias.setRandom();
  ColumnVector<double> velocity, expected(faco.size());
  faco.pull_back(theta, gradient.view(), velocity);
  faco.qk().pull_back(faco.qk_part(theta), gradient.view().qk, faco.qk_part(expected));
  faco.ov().pull_back(faco.ov_part(theta), gradient.view().ov, faco.ov_part(expected));
  expected.tail(4) = 7 * gradient.bias;
  CHECK(velocity == expected);
  REQUIRE(faco.conserved(theta).size() == 1);
  CHECK(faco.conserved(theta)[0].name == "W_Q W_Q' - W_K W_K'");
}

TEST_CASE("mixed parameterizations make a head; what does not fit is refused by name") {
  const HeadParameters mixed(ProductCircuit<double, Circuit::qk>({3, 5}, {2, 2}),
                             CollapsedCircuit<double, Circuit::ov>({4, 5}));
  CHECK(mixed.blocks().size() == 4);
  CHECK(mixed.block("W_QK_2").shape == MatrixShape{2, 2});
  CHECK_THROWS_WITH(mixed.block("W_Q"), Catch::Contains("no block W_Q") && Catch::Contains("W_QK_3 W_OV"));
  using Caco = CacoParameters<double>;
  CHECK_THROWS_WITH(Caco(CollapsedCircuit<double, Circuit::qk>({3, 5}), CollapsedCircuit<double, Circuit::ov>({4, 6})),
                    Catch::Contains("tokens of W_OV = 6"));
  CHECK_THROWS_WITH(caco_parameters<double>(shape, {.bias = -1}), Catch::Contains("bias rate = -1"));
  const auto caco = caco_parameters<double>(shape);
  Circuits<double> buffers;
  ColumnVector<double> velocity;
  CHECK_THROWS_WITH(caco.circuits(ColumnVector<double>(7), buffers), Catch::Contains("size of theta = 7"));
  CHECK_THROWS_WITH(caco.pull_back(ColumnVector<double>(7), Circuits<double>(shape).view(), velocity),
                    Catch::Contains("be 35"));
}
