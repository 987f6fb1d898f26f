// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/circuit.hpp"

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("circuits have the dataset's shape, and views share their memory") {
  const DatasetShape shape{2, 5, 3};
  Circuits<double> w(shape, true);
  CHECK(w.qk.rows() == 2);
  CHECK(w.qk.cols() == 5);
  CHECK(w.ov.rows() == 3);
  CHECK(w.bias.size() == 3);
  CHECK(circuit_shape(shape, Circuit::qk) == MatrixShape{2, 5});
  CHECK(circuit_shape(shape, Circuit::ov) == MatrixShape{3, 5});
  auto map = w.map();
  map.qk(1, 4) = 7;
  map.ov(2, 0) = 8;
  map.bias[1] = 9;
  CHECK(w.view().qk(1, 4) == 7);
  CHECK(w.view().ov(2, 0) == 8);
  CHECK(w.view().bias[1] == 9);
  // A query's row, a token's column are contiguous: what the gradient counts on.
  CHECK(w.qk.data()[9] == 7);
  CHECK(w.ov.data()[2] == 8);
}

TEST_CASE("a wrong shape is named") {
  const DatasetShape shape{2, 5, 3};
  CHECK_NOTHROW(require_circuit_shape("f", Circuits<double>(shape).view(), shape));
  CHECK_NOTHROW(require_circuit_shape("f", Circuits<double>(shape, true).view(), shape));
  CHECK_THROWS_WITH(require_circuit_shape("f", Circuits<double>({3, 5, 3}).view(), shape),
                    "f: rows of W_QK = 3, but it must be 2 to fit the dataset");
  CHECK_THROWS_WITH(require_circuit_shape("f", Circuits<double>({2, 6, 3}).view(), shape), Catch::Contains("columns"));
  CHECK_THROWS_WITH(require_circuit_shape("f", Circuits<double>({2, 5, 4}).view(), shape), Catch::Contains("W_OV = 4"));
}
