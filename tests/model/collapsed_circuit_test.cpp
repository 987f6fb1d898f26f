// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/collapsed_circuit.hpp"

#include <type_traits>

#include "support/catch.hpp"
#include "support/parameterization.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("a collapsed circuit is its own parameter", "", (std::integral_constant<Circuit, Circuit::qk>),
                   (std::integral_constant<Circuit, Circuit::ov>)) {
  constexpr Circuit circuit = TestType::value;
  const CollapsedCircuit<double, circuit> collapsed({3, 5}, 2.0);
  CHECK(collapsed.size() == 15);
  CHECK(collapsed.blocks().at(0).name == (circuit == Circuit::qk ? "W_QK" : "W_OV"));
  CHECK(collapsed.blocks().at(0).rate == 2.0);
  const ColumnVector<double> theta = qkflow_test::normal_vector<double>(15, 1);
  CircuitMatrix<double, circuit> buffer;
  const ConstVectorMap<double> map(theta.data(), theta.size());
  CHECK(collapsed.form(map, buffer).data() == theta.data());  // no copy
  CHECK(block_map(theta, collapsed.blocks().at(0)) == collapsed.form(map, buffer));
  CHECK(collapsed.conserved(map).empty());
  qkflow_test::check_parameterization(collapsed);
}

TEST_CASE("a collapsed circuit refuses a negative rate") {
  using Collapsed = CollapsedCircuit<double, Circuit::qk>;
  CHECK_THROWS_WITH(Collapsed({3, 5}, -1.0), Catch::Contains("rate = -1"));
  CHECK_NOTHROW(Collapsed({3, 5}, 0.0));
}
