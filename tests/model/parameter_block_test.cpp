// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/parameter_block.hpp"

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("a block is a matrix view in either order") {
  ColumnVector<double> theta = ColumnVector<double>::LinSpaced(10, 0, 9);
  const ParameterBlock<double> by_columns{"A", 1, {2, 3}, false, 1};
  const ParameterBlock<double> by_rows{"B", 4, {2, 3}, true, 1};
  CHECK(block_map(theta, by_columns)(1, 0) == 2);
  CHECK(block_map(theta, by_columns)(0, 2) == 5);
  CHECK(block_map(theta, by_rows)(0, 2) == 6);
  CHECK(block_map(theta, by_rows)(1, 0) == 7);
  for (Eigen::Index r = 0; r < 2; ++r) {
    for (Eigen::Index c = 0; c < 3; ++c) {
      CHECK(theta[by_columns.index(r, c)] == block_map(theta, by_columns)(r, c));
      CHECK(theta[by_rows.index(r, c)] == block_map(theta, by_rows)(r, c));
    }
  }
  block_map(theta, by_rows)(1, 2) = 42;
  CHECK(theta[9] == 42);
}
