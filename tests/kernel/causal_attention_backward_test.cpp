// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/causal_attention_backward.hpp"

#include "attention_case.hpp"
#include "qkflow/kernel/causal_attention.hpp"
#include "support/catch.hpp"

using namespace qkflow_test;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
void run(AttentionCase<T>& c, qkflow::AttentionWorkspace& workspace) {
  qkflow::causal_attention<T>(c.q.view, c.k.view, c.v.view, c.options, c.out.view, c.log_sum_exp.data(), workspace);
  qkflow::causal_attention_backward<T>(c.q.view, c.k.view, c.v.view, c.out.view, c.log_sum_exp.data(), c.d_out.view,
                                       c.options, c.d_q.view, c.d_k.view, c.d_v.view, workspace);
}

}  // namespace

TEMPLATE_TEST_CASE("Causal gradients stay within their stated error", "[causal_attention_backward]", float, double) {
  qkflow::AttentionWorkspace workspace;
  for (const Shape& shape : awkward_shapes()) {
    AttentionCase<TestType> c(shape, true);
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

TEST_CASE("Causal gradients against finite differences", "[causal_attention_backward]") {
  qkflow::AttentionWorkspace workspace;
  for (const Shape shape : {Shape{1, 1, 1, 1, 1, 3, false, false}, Shape{1, 1, 17, 7, 5, 3, true, false},
                            Shape{2, 1, 13, 3, 17, 3, false, true}}) {
    AttentionCase<double> c(shape, true);
    run(c, workspace);
    auto at = c;  // views follow the copy
    at.q.view.data = at.q.memory.data() + (c.q.view.data - c.q.memory.data());
    at.k.view.data = at.k.memory.data() + (c.k.view.data - c.k.memory.data());
    at.v.view.data = at.v.memory.data() + (c.v.view.data - c.v.memory.data());
    const auto value = [&] {
      qkflow::causal_attention<double>(at.q.view, at.k.view, at.v.view, c.options, c.out.view, nullptr, workspace);
      double sum = 0;
      for (Index b = 0; b < shape.batch; ++b) {
        sum += static_cast<double>(to_matrix(c.out.view, b, 0).cwiseProduct(to_matrix(c.d_out.view, b, 0)).sum());
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
    check(at.q, c.d_q, "d_q");
    check(at.k, c.d_k, "d_k");
    check(at.v, c.d_v, "d_v");
  }
}

TEMPLATE_TEST_CASE("Masked keys and blind queries get gradients of exactly zero", "[causal_attention_backward]", float,
                   double) {
  qkflow::AttentionWorkspace workspace;
  AttentionCase<TestType> c({2, 2, 70, 24, 24, 3, false, true}, true);
  run(c, workspace);
  for (Index b = 0; b < 2; ++b) {
    for (Index i = 0; i < 70; ++i) {
      if (c.mask_of(b)[i] != 0) continue;
      CHECK(to_matrix(c.d_k.view, b, 1).row(i).cwiseAbs().maxCoeff() == 0);
      CHECK(to_matrix(c.d_v.view, b, 1).row(i).cwiseAbs().maxCoeff() == 0);
    }
  }
  CHECK(to_matrix(c.d_q.view, 0, 0).topRows(17).cwiseAbs().maxCoeff() == 0);
  CHECK(to_matrix(c.d_q.view, 1, 0).cwiseAbs().maxCoeff() == 0);
}

TEST_CASE("Causal gradients do not depend on the number of threads", "[causal_attention_backward]") {
  qkflow::ThreadPool pool(3);
  qkflow::AttentionWorkspace workspace;
  AttentionCase<float> c({2, 2, 200, 32, 16, 3, false, true}, true);
  run(c, workspace);
  const auto d_q = c.d_q.memory, d_k = c.d_k.memory, d_v = c.d_v.memory;
  c.options.pool = &pool;
  run(c, workspace);
  CHECK(d_q == c.d_q.memory);
  CHECK(d_k == c.d_k.memory);
  CHECK(d_v == c.d_v.memory);
}

TEST_CASE("Causal backward refuses what does not fit", "[causal_attention_backward]") {
  qkflow::AttentionWorkspace workspace;
  const auto attempt = [&](auto change) {
    AttentionCase<float> c({1, 2, 9, 4, 5, 1, false, false}, true);
    const float* log_sum_exp = c.log_sum_exp.data();
    change(c, log_sum_exp);
    qkflow::causal_attention_backward<float>(c.q.view, c.k.view, c.v.view, c.out.view, log_sum_exp, c.d_out.view,
                                             c.options, c.d_q.view, c.d_k.view, c.d_v.view, workspace);
  };
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_k.view.width = 3; }), Contains("d_k.width = 3"));
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_out.view.width = 4; }), Contains("d_out.width = 4"));
  CHECK_THROWS_WITH(attempt([](auto& c, auto&) { c.d_v.view.length = 2; }), Contains("d_v.length = 2"));
  CHECK_THROWS_WITH(attempt([](auto&, auto& sums) { sums = nullptr; }), Contains("log_sum_exp"));
}
