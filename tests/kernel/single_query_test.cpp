// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/single_query.hpp"

#include "attention_case.hpp"
#include "support/catch.hpp"

using namespace qkflow_test;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
void run(AttentionCase<T>& c, qkflow::AttentionWorkspace& workspace) {
  qkflow::single_query_attention<T>(c.q.view, c.k.view, c.v.view, c.options, c.out.view, c.log_sum_exp.data(),
                                    workspace);
}

}  // namespace

TEMPLATE_TEST_CASE("Single-query attention stays within its stated error", "[single_query]", float, double) {
  qkflow::AttentionWorkspace workspace;
  std::vector<Shape> shapes = awkward_shapes();
  shapes.push_back({1, 1, 4096 + 129, 5, 3, 3, true, true});  // more than one piece of keys
  shapes.push_back({1, 2, 2 * 4096 + 1, 17, 16, 30, false, false});
  for (const Shape& shape : shapes) {
    AttentionCase<TestType> c(shape, false);
    run(c, workspace);
    const Errors errors = errors_of(c, false);
    INFO(c.name() << ": output " << errors.out << ", log-sum-exp " << errors.log_sum_exp << " of the bound");
    CHECK(errors.out <= 1);
    CHECK(errors.log_sum_exp <= 1);
    CHECK(c.out.untouched() == c.out.outside());
  }
}

TEMPLATE_TEST_CASE("A query without keys gets exact zeros", "[single_query]", float, double) {
  qkflow::AttentionWorkspace workspace;
  AttentionCase<TestType> padding({2, 2, 70, 24, 24, 3, false, true}, false);
  run(padding, workspace);
  AttentionCase<TestType> nothing({1, 1, 0, 4, 9, 3, false, false}, false);
  run(nothing, workspace);
  CHECK(nothing.log_sum_exp[0] == -std::numeric_limits<TestType>::infinity());
  CHECK(padding.log_sum_exp[3] == -std::numeric_limits<TestType>::infinity());
  for (Index k = 0; k < 24; ++k) CHECK(padding.out.view.row(1, 1, 0)[k] == 0);
  for (Index k = 0; k < 9; ++k) CHECK(nothing.out.view.row(0, 0, 0)[k] == 0);
}

TEST_CASE("Single-query results depend neither on threads nor on the workspace", "[single_query]") {
  qkflow::ThreadPool pool(3);
  for (const bool masked : {false, true}) {
    AttentionCase<float> c({2, 2, 3 * 4096 + 5, 16, 16, 3, false, masked}, false);
    qkflow::AttentionWorkspace one, other;
    run(c, one);
    const auto out = c.out.memory, sums = c.log_sum_exp;
    c.options.pool = &pool;
    for (int repeat = 0; repeat < 3; ++repeat) {
      run(c, other);
      CHECK(c.out.memory == out);
      CHECK(c.log_sum_exp == sums);
    }
  }
}

TEST_CASE("A key that scores far below the rest counts as little as a masked one", "[single_query]") {
  AttentionCase<double> c({1, 1, 150, 16, 16, 3, false, false}, false);
  qkflow::AttentionWorkspace workspace;
  run(c, workspace);
  const auto out = c.out.memory;
  for (const Index place : {0, 70, 149}) {
    AttentionCase<double> far = c;
    far.k.view.data = far.k.memory.data();
    for (Index k = 0; k < 16; ++k) far.k.view.row(0, 0, place)[k] = -1e6 * far.q.memory[static_cast<std::size_t>(k)];
    qkflow::single_query_attention<double>(c.q.view, far.k.view, c.v.view, c.options, c.out.view, nullptr, workspace);
    const auto without = c.out.memory;
    std::vector<std::uint8_t> mask(150, 1);
    mask[static_cast<std::size_t>(place)] = 0;
    auto options = c.options;
    options.key_mask = mask.data();
    qkflow::single_query_attention<double>(c.q.view, c.k.view, c.v.view, options, c.out.view, nullptr, workspace);
    for (std::size_t k = 0; k < 16; ++k) CHECK_THAT(c.out.memory[k], WithinAbs(without[k], 1e-14));
    CHECK(c.out.memory != out);
  }
}

TEST_CASE("Single-query attention refuses shapes that do not fit", "[single_query]") {
  qkflow::AttentionWorkspace workspace;
  const auto attempt = [&](auto change) {
    AttentionCase<float> c({1, 2, 9, 4, 5, 1, false, false}, false);
    change(c);
    run(c, workspace);
  };
  CHECK_THROWS_WITH(attempt([](auto& c) { c.q.view.length = 2; }), Contains("q.length = 2") && Contains("be 1"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.q.view.width = 3; }), Contains("q.width = 3"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.v.view.length = 8; }), Contains("v.length = 8"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.out.view.width = 4; }), Contains("out.width = 4"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.k.view.data = nullptr; }), Contains("k.data"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.options.scale = std::numeric_limits<float>::infinity(); }),
                    Contains("scale"));
}
