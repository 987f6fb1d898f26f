// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/causal_attention.hpp"

#include "attention_case.hpp"
#include "support/catch.hpp"

using namespace qkflow_test;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
void run(AttentionCase<T>& c, qkflow::AttentionWorkspace& workspace) {
  qkflow::causal_attention<T>(c.q.view, c.k.view, c.v.view, c.options, c.out.view, c.log_sum_exp.data(), workspace);
}

}  // namespace

TEMPLATE_TEST_CASE("Causal attention stays within its stated error", "[causal_attention]", float, double) {
  qkflow::AttentionWorkspace workspace;
  for (const Shape& shape : awkward_shapes()) {
    AttentionCase<TestType> c(shape, true);
    run(c, workspace);
    const Errors errors = errors_of(c, false);
    INFO(c.name() << ": output " << errors.out << ", log-sum-exp " << errors.log_sum_exp << " of the bound");
    CHECK(errors.out <= 1);
    CHECK(errors.log_sum_exp <= 1);
    CHECK(c.out.untouched() == c.out.outside());
  }
}

TEMPLATE_TEST_CASE("Queries that see no key get exact zeros", "[causal_attention]", float, double) {
  qkflow::AttentionWorkspace workspace;
  AttentionCase<TestType> c({2, 2, 70, 24, 24, 3, false, true}, true);
  run(c, workspace);
  for (const Index i : {Index(0), Index(16)}) {
    CHECK(c.log_sum_exp[static_cast<std::size_t>(i)] == -std::numeric_limits<TestType>::infinity());
    for (Index k = 0; k < 24; ++k) CHECK(c.out.view.row(0, 0, i)[k] == 0);
  }
  for (Index i = 0; i < 70; ++i) CHECK(c.out.view.row(1, 1, i)[23] == 0);  // the sequence that is all padding
}

TEMPLATE_TEST_CASE("Results depend neither on threads nor on the workspace", "[causal_attention]", float, double) {
  qkflow::ThreadPool pool(3);
  for (const bool masked : {false, true}) {
    AttentionCase<TestType> alone({2, 2, 500, 32, 16, 3, false, masked}, true), together = alone;
    together.out.view.data = together.out.memory.data();
    qkflow::AttentionWorkspace one, other;
    run(alone, one);
    together.options.pool = &pool;
    for (int repeat = 0; repeat < 3; ++repeat) {
      qkflow::causal_attention<TestType>(alone.q.view, alone.k.view, alone.v.view, together.options, together.out.view,
                                         together.log_sum_exp.data(), other);
      CHECK(alone.out.memory == together.out.memory);
      CHECK(alone.log_sum_exp == together.log_sum_exp);
    }
  }
}

TEST_CASE("Memory of causal attention grows with the length, not its square", "[causal_attention]") {
  const auto bytes_at = [](Index length, bool masked) {
    AttentionCase<float> c({1, 1, length, 20, 20, 3, false, masked}, true);
    qkflow::AttentionWorkspace workspace;
    run(c, workspace);
    return static_cast<double>(workspace.bytes());
  };
  for (const bool masked : {false, true}) {
    const double first = bytes_at(400, masked), second = bytes_at(800, masked), third = bytes_at(1600, masked);
    CHECK(third - second <= 2.01 * (second - first));
    CHECK(third < 1600 * (20 + 64 + 4) * 4 + 200000);
  }
}

TEST_CASE("Causal attention is right from the first key on, and forgets the future", "[causal_attention]") {
  AttentionCase<double> c({1, 1, 100, 16, 16, 3, false, false}, true);
  qkflow::AttentionWorkspace workspace;
  run(c, workspace);
  for (Index k = 0; k < 16; ++k) CHECK(c.out.view.row(0, 0, 0)[k] == c.v.view.row(0, 0, 0)[k]);
  const std::vector<double> before = c.out.memory;
  for (Index k = 0; k < 16; ++k) c.k.view.row(0, 0, 60)[k] = c.v.view.row(0, 0, 60)[k] = 17;
  run(c, workspace);
  CHECK(std::equal(before.begin(), before.begin() + 60 * 16, c.out.memory.begin()));
  CHECK(before[60 * 16] != c.out.memory[60 * 16]);
}

TEST_CASE("Causal attention accepts nothing to do, and no log-sum-exp", "[causal_attention]") {
  qkflow::AttentionWorkspace workspace;
  for (const Shape shape : {Shape{0, 2, 5, 3, 3, 1, false, false}, Shape{2, 0, 5, 3, 3, 1, false, false},
                            Shape{2, 2, 0, 3, 3, 1, false, false}}) {
    AttentionCase<float> c(shape, true);
    CHECK_NOTHROW(run(c, workspace));
  }
  AttentionCase<float> c({1, 1, 9, 3, 3, 1, false, false}, true);
  CHECK_NOTHROW(
      qkflow::causal_attention<float>(c.q.view, c.k.view, c.v.view, c.options, c.out.view, nullptr, workspace));
}

TEST_CASE("Causal attention refuses shapes that do not fit", "[causal_attention]") {
  qkflow::AttentionWorkspace workspace;
  const auto attempt = [&](auto change) {
    AttentionCase<float> c({1, 2, 9, 4, 5, 1, false, false}, true);
    change(c);
    run(c, workspace);
  };
  CHECK_THROWS_WITH(attempt([](auto& c) { c.k.view.width = 3; }), Contains("k.width = 3") && Contains("be 4"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.v.view.length = 8; }), Contains("v.length = 8"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.out.view.heads = 1; }), Contains("out.heads = 1"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.out.view.batch = 3; }), Contains("out.batch = 3"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.q.view.width = 0; }), Contains("q.width = 0"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.q.view.length = -1; }), Contains("q.length = -1"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.q.view.row_stride = 2; }), Contains("q.row_stride = 2"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.v.view.data = nullptr; }), Contains("v.data"));
  CHECK_THROWS_WITH(attempt([](auto& c) { c.options.scale = std::numeric_limits<float>::quiet_NaN(); }),
                    Contains("scale"));
}
