// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/single_query_backward.hpp"

#include "attention_case.hpp"
#include "support/catch.hpp"

using namespace qkflow_test;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
void run(AttentionCase<T>& c, qkflow::AttentionWorkspace& workspace) {
  qkflow::single_query_attention<T>(c.q.view, c.k.view, c.v.view, c.options, c.out.view, c.log_sum_exp.data(),
                                    workspace);
  qkflow::single_query_attention_backward<T>(c.q.view, c.k.view, c.v.view, c.out.view, c.log_sum_exp.data(),
                                             c.d_out.view, c.options, c.d_q.view, c.d_k.view, c.d_v.view, workspace);
}

}  // namespace

TEMPLATE_TEST_CASE("Single-query gradients stay within their stated error", "[single_query_backward]", float, double) {
  qkflow::AttentionWorkspace workspace;
  std::vector<Shape> shapes = awkward_shapes();
  shapes.push_back({1, 1, 4096 + 129, 5, 3, 3, true, true});
  for (const Shape& shape : shapes) {
    AttentionCase<TestType> c(shape, false);
    run(c, workspace);
    const Errors errors = errors_of(c, true);
    INFO(c.name() << ": d_q " << errors.d_q << ", d_k " << errors.d_k << ", d_v " << errors.d_v << " of the bound");
    CHECK(errors.d_q <= 1);
    CHECK(errors.d_k <= 1);
    CHECK(errors.d_v <= 1);
    CHECK(c.d_q.untouched() == c.d_q.outside());
    CHECK(c.d_k.untouched() == c.d_k.outside());
    CHECK(c.d_v.untouched() == c.d_v.outside());
  }
}

TEST_CASE("Single-query gradients against finite differences", "[single_query_backward]") {
  qkflow::AttentionWorkspace workspace;
  for (const Shape shape : {Shape{1, 1, 1, 1, 1, 3, false, false}, Shape{1, 1, 17, 7, 5, 3, true, false},
                            Shape{2, 1, 13, 3, 17, 3, false, true}}) {
    AttentionCase<double> c(shape, false);
    run(c, workspace);
    const auto value = [&] {
      Rows<double> out(shape.batch, shape.heads, 1, shape.value_width, false);
      qkflow::single_query_attention<double>(c.q.view, c.k.view, c.v.view, c.options, out.view, nullptr, workspace);
      double sum = 0;
      for (Index b = 0; b < shape.batch; ++b) {
        sum += static_cast<double>(to_matrix(out.view, b, 0).cwiseProduct(to_matrix(c.d_out.view, b, 0)).sum());
      }
      return sum;
    };
    const auto check = [&](Rows<double>& x, const Rows<double>& gradient, const char* name) {
      double worst = 0;
      for (std::size_t i = 0; i < x.memory.size(); ++i) {
        if (x.memory[i] == Rows<double>::sentinel || std::isnan(x.memory[i])) continue;
        const double kept = x.memory[i], step = 1e-5;
        x.memory[i] = kept + step;
        const double high = value();
        x.memory[i] = kept - step;
        const double low = value();
        x.memory[i] = kept;
        worst = std::max(worst, std::abs((high - low) / (2 * step) - gradient.memory[i]));
      }
      INFO(c.name() << ": " << name << " off by " << worst);
      CHECK(worst < 2e-9);
    };
    check(c.q, c.d_q, "d_q");
    check(c.k, c.d_k, "d_k");
    check(c.v, c.d_v, "d_v");
  }
}

TEST_CASE("Masked keys get gradients of exactly zero, and so does a query without keys", "[single_query_backward]") {
  qkflow::AttentionWorkspace workspace;
  AttentionCase<float> c({2, 2, 70, 24, 24, 3, false, true}, false);
  run(c, workspace);
  for (Index b = 0; b < 2; ++b) {
    for (Index i = 0; i < 70; ++i) {
      if (c.mask_of(b)[i] != 0) continue;
      CHECK(to_matrix(c.d_k.view, b, 1).row(i).cwiseAbs().maxCoeff() == 0);
      CHECK(to_matrix(c.d_v.view, b, 1).row(i).cwiseAbs().maxCoeff() == 0);
    }
  }
  CHECK(to_matrix(c.d_q.view, 1, 0).cwiseAbs().maxCoeff() == 0);
}

TEST_CASE("Single-query gradients do not depend on the number of threads", "[single_query_backward]") {
  qkflow::ThreadPool pool(3);
  qkflow::AttentionWorkspace workspace;
  AttentionCase<float> c({2, 2, 2 * 4096 + 7, 8, 16, 3, false, true}, false);
  run(c, workspace);
  const auto d_q = c.d_q.memory, d_k = c.d_k.memory, d_v = c.d_v.memory;
  c.options.pool = &pool;
  run(c, workspace);
  CHECK(d_q == c.d_q.memory);
  CHECK(d_k == c.d_k.memory);
  CHECK(d_v == c.d_v.memory);
}

TEST_CASE("Single-query backward refuses what does not fit", "[single_query_backward]") {
  qkflow::AttentionWorkspace workspace;
  const auto attempt = [&](auto change) {
    AttentionCase<float> c({1, 2, 9, 4, 5, 1, false, false}, false);
    const float* log_sum_exp = c.log_sum_exp.data();
    change(c, log_sum_exp);
    qkflow::single_query_attention_backward<float>(c.q.view, c.k.view, c.v.view, c.out.view, log_sum_exp, c.d_out.view,
                                                   c.options, c.d_q.view, c.d_k.view, c.d_v.view, workspace);
  };
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_k.view.width = 3; }), Contains("d_k.width = 3"));
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_q.view.length = 9; }), Contains("d_q.length = 9"));
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_v.view.length = 2; }), Contains("d_v.length = 2"));
  CHECK_THROWS_WITH(attempt([](auto&, auto& sums) { sums = nullptr; }), Contains("log_sum_exp"));
}
