// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/onehot_layout.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("A layout names its blocks, pads them, and gives matrices back", "[onehot_layout]", float, double) {
  using T = TestType;
  using Matrix = typename OneHotLayout<T>::Matrix;
  const OneHotLayout<T> layout(OneHotShape{3, 5, 4, 2, 6, true});
  CHECK(layout.shape().parameterization() == "FAFO");
  std::string names;
  std::ptrdiff_t end = 0;
  for (const OneHotBlock& block : layout.blocks()) {
    names += block.name + " ";
    CHECK(block.offset == end);
    CHECK(block.stride % simd::lanes<T> == 0);
    CHECK(block.stride >= block.length);
    end += block.size();
  }
  CHECK(names == "W_Q W_K W_O W_V bias ");
  CHECK(static_cast<std::size_t>(end) == layout.size());

  std::vector<T> theta(layout.size(), T(0));
  Matrix q(2, 3), k(2, 5), o(4, 6), v(6, 5);
  T next(1);
  for (Matrix* m : {&q, &k, &o, &v}) {
    for (Eigen::Index i = 0; i < m->size(); ++i) m->data()[i] = next += T(0.25);
  }
  layout.set_matrix(theta, layout.block("W_Q"), q);
  layout.set_matrix(theta, layout.block("W_K"), k);
  layout.set_matrix(theta, layout.block("W_O"), o);
  layout.set_matrix(theta, layout.block("W_V"), v);
  CHECK(layout.matrix(theta, layout.block("W_Q")) == q);
  CHECK(layout.matrix(theta, layout.block("W_K")) == k);
  CHECK(layout.matrix(theta, layout.block("W_O")) == o);
  CHECK(layout.matrix(theta, layout.block("W_V")) == v);
  CHECK(layout.w_qk(theta).isApprox(q.transpose() * k));
  CHECK(layout.w_ov(theta).isApprox(o * v));
  // The orders the kernels read: W_Q a column a query, W_K a row an inner dimension.
  const auto& w_q = layout.q;
  CHECK(theta[static_cast<std::size_t>(w_q.offset + 2 * w_q.stride + 1)] == q(1, 2));
  const auto& w_k = layout.k;
  CHECK(theta[static_cast<std::size_t>(w_k.offset + 1 * w_k.stride + 3)] == k(1, 3));

  const OneHotLayout<T> collapsed(OneHotShape{3, 5, 4});
  CHECK(collapsed.shape().parameterization() == "CACO");
  CHECK(collapsed.block("W_QK").matrix_rows() == 3);
  CHECK(collapsed.block("W_OV").matrix_rows() == 4);
}

TEST_CASE("A layout refuses what is no shape, no block, no fitting matrix", "[onehot_layout]") {
  CHECK_THROWS_WITH(OneHotLayout<float>(OneHotShape{0, 5, 4}), Contains("queries = 0"));
  CHECK_THROWS_WITH(OneHotLayout<float>(OneHotShape{1, 5, 1 << 25}), Contains("classes = 33554432"));
  CHECK_THROWS_WITH(OneHotLayout<float>(OneHotShape{1, 5, 4, -1}), Contains("inner_qk = -1"));
  const OneHotLayout<float> layout(OneHotShape{3, 5, 4});
  CHECK_THROWS_WITH(layout.block("W_Q"), Contains("no block W_Q") && Contains("W_QK W_OV"));
  std::vector<float> theta(layout.size());
  CHECK_THROWS_AS(layout.set_matrix(theta, layout.qk, OneHotLayout<float>::Matrix(5, 3)), InvalidArgument);
}
