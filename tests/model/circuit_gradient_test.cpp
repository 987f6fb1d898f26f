// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/circuit_gradient.hpp"

#include <boost/multiprecision/eigen.hpp>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/random_dataset.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::inner_product;
using qkflow_test::moved;
using qkflow_test::Precise;
using qkflow_test::random_circuits;
using qkflow_test::random_dataset;
using qkflow_test::relative_difference;
using qkflow_test::Tol;

namespace {

struct Case {
  DatasetShape shape;
  std::uint32_t sequences, longest;
  bool null_tokens, with_bias;
};

// Ones, primes, and classes around the sizes of registers.
const std::vector<Case> cases{{{1, 1, 1}, 1, 1, true, false},  {{1, 1, 2}, 3, 1, true, true},
                              {{3, 7, 5}, 20, 6, true, false}, {{2, 13, 3}, 30, 5, false, true},
                              {{5, 11, 8}, 23, 9, true, true}, {{1, 5, 17}, 11, 4, true, false},
                              {{7, 2, 16}, 13, 3, true, true}, {{3, 37, 61}, 29, 31, true, true}};

const std::vector<AttentionMode> modes{AttentionMode::soft, AttentionMode::fixed, AttentionMode::hard,
                                       AttentionMode::marginal};

// Fifty digits are slow, and many times slower unoptimized and sanitized: there large shapes are left to double.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

template <class Scalar>
HeadOptions<Scalar> options_of(AttentionMode mode) {
  return {.attention = mode, .score_scale = Scalar(0.75), .fixed_alpha = Scalar(0.625)};
}

/// The loss by the plain reference, one sequence at a time.
template <class Scalar>
Scalar reference_loss(const Dataset<Scalar>& data, const HeadOptions<Scalar>& options, const Circuits<Scalar>& w) {
  HeadForward<Scalar> forward(options);
  Scalar loss(0);
  for (std::size_t s = 0; s < data.size(); ++s) loss += data[s].weight * forward(data[s], w.view()).loss;
  return loss / data.total_weight();
}

}  // namespace

TEST_CASE("the gradient is the derivative of the reference loss, entry by entry, in 50 digits") {
  for (const auto& c : cases) {
    if (c.shape.classes > (is_sanitized ? 2 : 16)) continue;
    const Dataset<Precise> data =
        random_dataset({.shape = c.shape, .sequences = c.sequences, .longest = c.longest, .null_tokens = c.null_tokens})
            .cast<Precise>();
    const auto w = random_circuits<Precise>(c.shape, 1.0, c.with_bias, 5);
    for (const AttentionMode mode : modes) {
      CAPTURE(c.shape.queries, c.shape.tokens, c.shape.classes, static_cast<int>(mode));
      const auto options = options_of<Precise>(mode);
      CircuitGradient<Precise> gradient(data, options);
      Circuits<Precise> g(c.shape, c.with_bias);
      const Precise loss = gradient(w.view(), g.map());
      CHECK(abs(loss - reference_loss(data, options, w)) < Precise(1e-45));
      CHECK(abs(gradient.loss(w.view()) - loss) < Precise(1e-45));
      const Precise h(1e-16);  // central differences: error h^2 + 1e-50 / h
      auto probe = w;
      const auto differentiate = [&](auto& entries, const auto& analytic) {
        // Every entry of a small circuit, a sample of a large one: 50 digits are slow.
        for (Eigen::Index i = 0; i < entries.size(); i += 1 + entries.size() / 5) {
          const Precise at = entries.data()[i];
          entries.data()[i] = at + h;
          const Precise up = reference_loss(data, options, probe);
          entries.data()[i] = at - h;
          const Precise down = reference_loss(data, options, probe);
          entries.data()[i] = at;
          CHECK(abs(analytic.data()[i] + (up - down) / (2 * h)) < Precise(1e-28));
        }
      };
      differentiate(probe.qk, g.qk);
      differentiate(probe.ov, g.ov);
      differentiate(probe.bias, g.bias);
    }
  }
}

TEST_CASE("the gradient is the derivative of the reference loss in double") {
  for (const auto& c : cases) {
    const Dataset<double> data = random_dataset(
        {.shape = c.shape, .sequences = c.sequences, .longest = c.longest, .null_tokens = c.null_tokens, .seed = 2});
    const auto w = random_circuits<double>(c.shape, 1.0, c.with_bias, 6);
    for (const AttentionMode mode : modes) {
      CAPTURE(c.shape.queries, c.shape.tokens, c.shape.classes, static_cast<int>(mode));
      const auto options = options_of<double>(mode);
      CircuitGradient<double> gradient(data, options);
      Circuits<double> g(c.shape, c.with_bias);
      gradient(w.view(), g.map());
      for (std::uint64_t direction = 0; direction < 3; ++direction) {
        const auto dw = random_circuits<double>(c.shape, 1.0, c.with_bias, 100 + direction);
        const double h = 1e-5;
        const double numeric =
            -(reference_loss(data, options, moved(w, h, dw)) - reference_loss(data, options, moved(w, -h, dw))) /
            (2 * h);
        CHECK_THAT(inner_product(g, dw), WithinAbs(numeric, qkflow_test::tolerance<double>(Tol::difference)));
      }
    }
  }
}

TEMPLATE_TEST_CASE("every scalar agrees with 50 digits", "", float, double, long double) {
  using Scalar = TestType;
  for (const auto& c : cases) {
    if (is_sanitized && c.shape.classes > 8) continue;
    const Dataset<double> data = random_dataset(
        {.shape = c.shape, .sequences = c.sequences, .longest = c.longest, .null_tokens = c.null_tokens, .seed = 3});
    for (const AttentionMode mode : modes) {
      CAPTURE(c.shape.queries, c.shape.tokens, c.shape.classes, static_cast<int>(mode));
      // The same weights in both: float's, exactly.
      const auto w = random_circuits<float>(c.shape, 1.0, c.with_bias, 7);
      const auto convert = [&](auto zero) {
        using To = decltype(zero);
        Circuits<To> to(c.shape, c.with_bias);
        for (Eigen::Index i = 0; i < w.qk.size(); ++i) to.qk.data()[i] = static_cast<To>(w.qk.data()[i]);
        for (Eigen::Index i = 0; i < w.ov.size(); ++i) to.ov.data()[i] = static_cast<To>(w.ov.data()[i]);
        for (Eigen::Index i = 0; i < w.bias.size(); ++i) to.bias[i] = static_cast<To>(w.bias[i]);
        return to;
      };
      CircuitGradient<Scalar> gradient(data.cast<Scalar>(), options_of<Scalar>(mode));
      CircuitGradient<Precise> exact(data.cast<Precise>(), options_of<Precise>(mode));
      Circuits<Scalar> g(c.shape, c.with_bias);
      Circuits<Precise> g_exact(c.shape, c.with_bias);
      const Scalar loss = gradient(convert(Scalar(0)).view(), g.map());
      const Precise loss_exact = exact(convert(Precise(0)).view(), g_exact.map());
      const double tolerance = static_cast<double>(qkflow_test::tolerance<Scalar>(Tol::state));
      CAPTURE(loss);
      CHECK(abs(Precise(loss) - loss_exact) <= tolerance * (1 + abs(loss_exact)));
      CHECK(relative_difference(g, g_exact) < tolerance);
    }
  }
}

TEST_CASE("any number of threads gives the same bits, whole groups and pieces alike") {
  // One query: its group is cut into pieces. Many queries: whole groups a chunk. A few: both.
  for (const std::int64_t queries : {1, 5, 200}) {
    const DatasetShape shape{queries, 40, 6};
    const Dataset<double> data =
        random_dataset({.shape = shape, .sequences = is_sanitized ? 1500U : 4000U, .longest = 9, .seed = 4});
    const auto w = random_circuits<double>(shape, 1.0, true, 8), dw = random_circuits<double>(shape, 1.0, true, 9);
    for (const AttentionMode mode : modes) {
      CAPTURE(queries, static_cast<int>(mode));
      Circuits<double> first(shape, true), first_tangent(shape, true);
      double first_loss = 0;
      for (const int threads : {1, 2, 3, 5}) {
        CircuitGradient<double> gradient(data, options_of<double>(mode), threads);
        CHECK(gradient.threads() == static_cast<std::size_t>(threads));
        Circuits<double> g(shape, true), tangent(shape, true);
        // What is in the result before must not matter.
        g.qk.setConstant(1e300);
        g.ov.setConstant(std::numeric_limits<double>::quiet_NaN());
        const double loss = gradient(w.view(), g.map());
        gradient.tangent(w.view(), dw.view(), tangent.map());
        if (threads == 1) {
          first = g;
          first_tangent = tangent;
          first_loss = loss;
          // Cutting into chunks changes nothing but rounding.
          CHECK_THAT(loss, WithinRel(reference_loss(data, options_of<double>(mode), w),
                                     qkflow_test::tolerance<double>(Tol::state)));
          const double h = 1e-5;
          const double numeric = -(reference_loss(data, options_of<double>(mode), moved(w, h, dw)) -
                                   reference_loss(data, options_of<double>(mode), moved(w, -h, dw))) /
                                 (2 * h);
          CHECK_THAT(inner_product(g, dw), WithinAbs(numeric, qkflow_test::tolerance<double>(Tol::difference)));
          continue;
        }
        const auto same = [](const auto& a, const auto& b) {
          return std::memcmp(a.data(), b.data(), sizeof(double) * static_cast<std::size_t>(a.size())) == 0;
        };
        CHECK(loss == first_loss);
        CHECK(same(g.qk, first.qk));
        CHECK(same(g.ov, first.ov));
        CHECK(same(g.bias, first.bias));
        CHECK(same(tangent.qk, first_tangent.qk));
        CHECK(same(tangent.ov, first_tangent.ov));
        CHECK(same(tangent.bias, first_tangent.bias));
      }
    }
  }
}

TEST_CASE("the tangent is the derivative of the gradient, and the Hessian is symmetric") {
  for (const auto& c : cases) {
    const Dataset<double> data = random_dataset(
        {.shape = c.shape, .sequences = c.sequences, .longest = c.longest, .null_tokens = c.null_tokens, .seed = 5});
    const auto w = random_circuits<double>(c.shape, 1.0, c.with_bias, 10);
    const auto u = random_circuits<double>(c.shape, 1.0, c.with_bias, 11);
    const auto v = random_circuits<double>(c.shape, 1.0, c.with_bias, 12);
    for (const AttentionMode mode : modes) {
      CAPTURE(c.shape.queries, c.shape.tokens, c.shape.classes, static_cast<int>(mode));
      CircuitGradient<double> gradient(data, options_of<double>(mode));
      Circuits<double> along_u(c.shape, c.with_bias), along_v(c.shape, c.with_bias);
      gradient.tangent(w.view(), u.view(), along_u.map());
      gradient.tangent(w.view(), v.view(), along_v.map());
      const double size = 1 + std::abs(inner_product(along_u, v));
      CHECK(std::abs(inner_product(along_u, v) - inner_product(along_v, u)) <
            qkflow_test::tolerance<double>(Tol::state) * size);

      // In 50 digits against central differences of the gradient; and double against that.
      if (c.shape.classes > (is_sanitized ? 5 : 20)) continue;
      CircuitGradient<Precise> exact(data.cast<Precise>(), options_of<Precise>(mode));
      const auto w_exact = random_circuits<Precise>(c.shape, 1.0, c.with_bias, 10);
      const auto u_exact = random_circuits<Precise>(c.shape, 1.0, c.with_bias, 11);
      Circuits<Precise> tangent(c.shape, c.with_bias), up(c.shape, c.with_bias), down(c.shape, c.with_bias);
      exact.tangent(w_exact.view(), u_exact.view(), tangent.map());
      const Precise h(1e-16);
      exact(moved(w_exact, h, u_exact).view(), up.map());
      exact(moved(w_exact, Precise(-h), u_exact).view(), down.map());
      const auto sum = moved(up, Precise(-1), down);
      Circuits<Precise> numeric(c.shape, c.with_bias);
      numeric = moved(numeric, Precise(1 / (2 * h)), sum);
      CHECK(relative_difference(tangent, numeric) < 1e-28);
      CHECK(relative_difference(along_u, tangent) < qkflow_test::tolerance<double>(Tol::state));
    }
  }
}

TEST_CASE("rates multiply the parts of the gradient") {
  const DatasetShape shape{3, 7, 4};
  const Dataset<double> data = random_dataset({.shape = shape});
  const auto w = random_circuits<double>(shape, 1.0, true, 1), dw = random_circuits<double>(shape, 1.0, true, 2);
  for (const AttentionMode mode : modes) {
    CircuitGradient<double> gradient(data, options_of<double>(mode));
    Circuits<double> plain(shape, true), scaled(shape, true);
    const CircuitRates<double> rates{.qk = 4, .ov = 0.5, .bias = 8};  // powers of two: exact
    const auto check = [&] {
      plain.qk *= 4;
      plain.ov *= 0.5;
      plain.bias *= 8;
      CHECK(relative_difference(scaled, plain) < qkflow_test::tolerance<double>(Tol::rounding));
    };
    gradient(w.view(), plain.map());
    gradient(w.view(), scaled.map(), rates);
    check();
    gradient.tangent(w.view(), dw.view(), plain.map());
    gradient.tangent(w.view(), dw.view(), scaled.map(), rates);
    check();
  }
}

TEST_CASE("a bias is optional on either side") {
  const DatasetShape shape{3, 7, 4};
  const Dataset<double> data = random_dataset({.shape = shape});
  auto w = random_circuits<double>(shape, 1.0, false, 1);
  for (const AttentionMode mode : modes) {
    CircuitGradient<double> gradient(data, options_of<double>(mode));
    Circuits<double> without(shape), with(shape, true);
    // No bias in the weights is a bias of zero; its gradient can still be asked for.
    gradient(w.view(), without.map());
    gradient(w.view(), with.map());
    CHECK(without.ov == with.ov);
    CHECK(with.bias.cwiseAbs().maxCoeff() > 0);
    CHECK_THAT(with.bias.sum(), WithinAbs(0, 1e-15));
  }
}

TEST_CASE("on the line the gradient is the reduced flow's right-hand side") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double noise_tokens : {infinity, 6.0, 7.0}) {
    const BlockTask<double> task{
        .classes = 4, .block = 3, .informative = 2, .noise = 4, .noise_vocabulary = noise_tokens, .score_scale = 0.7};
    const Dataset<double> data = block_dataset(task);
    CircuitGradient<double> gradient(data, {.score_scale = task.score_scale});
    const auto d_ov = block_output_direction(task);
    const auto d_qk = block_attention_direction(task);
    for (const double mu_ov : {0.0, 0.3, 5.0, -2.0, 40.0}) {
      for (const double mu_qk : {0.0, 1.5, -2.0}) {
        CAPTURE(noise_tokens, mu_ov, mu_qk);
        const Caco<double> flow{.task = task, .rates = {.ov = 0.5, .qk = 3}};
        Circuits<double> w(data.shape()), g(data.shape());
        w.ov = mu_ov * d_ov;
        w.qk = mu_qk / task.score_scale * d_qk;
        const double loss = gradient(w.view(), g.map(), {.qk = 3, .ov = 0.5});
        CHECK_THAT(loss, WithinRel(flow.loss(mu_ov, mu_qk), qkflow_test::tolerance<double>(Tol::elementary)));
        const double ov = flow.output_velocity(mu_ov, mu_qk);
        const double qk = flow.attention_velocity(mu_ov, mu_qk) / task.score_scale;
        const double tolerance = qkflow_test::tolerance<double>(Tol::elementary);
        CHECK((g.ov - ov * d_ov).cwiseAbs().maxCoeff() <= tolerance * std::abs(ov));
        // Without noise tokens W_QK's part is as exact; a sum over noise tokens may cancel down to rounding.
        CHECK((g.qk - qk * d_qk).cwiseAbs().maxCoeff() <= tolerance * (std::abs(qk) + 1e-3 * std::abs(ov)));
      }
    }
  }
}

TEST_CASE("a loss far below rounding keeps its relative accuracy") {
  const BlockTask<double> task{.classes = 3, .block = 2, .informative = 1, .noise = 1};
  const Caco<double> flow{.task = task};
  const Dataset<double> data = block_dataset(task);
  CircuitGradient<double> gradient(data);
  for (const double mu_ov : {100.0, 400.0, 900.0}) {
    Circuits<double> w(data.shape()), g(data.shape());
    w.ov = mu_ov * block_output_direction(task);
    const double loss = gradient(w.view(), g.map());
    CAPTURE(mu_ov, loss);
    CHECK_THAT(loss, WithinRel(flow.loss(mu_ov, 0), qkflow_test::tolerance<double>(Tol::state)));
    CHECK_THAT(g.ov(0, 0),
               WithinRel(flow.output_velocity(mu_ov, 0) * 2 / 3, qkflow_test::tolerance<double>(Tol::state)));
  }
}

TEST_CASE("huge scores and hopeless predictions stay exact") {
  // Logits and scores of hundreds: exponentials that overflow unless measured from the right place.
  for (const auto& c : cases) {
    const Dataset<double> data = random_dataset(
        {.shape = c.shape, .sequences = c.sequences, .longest = c.longest, .null_tokens = c.null_tokens, .seed = 6});
    for (const AttentionMode mode : modes) {
      CAPTURE(c.shape.queries, c.shape.tokens, c.shape.classes, static_cast<int>(mode));
      const auto w = random_circuits<double>(c.shape, 700.0, c.with_bias, 13);
      CircuitGradient<double> gradient(data, options_of<double>(mode));
      CircuitGradient<Precise> exact(data.cast<Precise>(), options_of<Precise>(mode));
      Circuits<double> g(c.shape, c.with_bias);
      Circuits<Precise> g_exact(c.shape, c.with_bias);
      const double loss = gradient(w.view(), g.map());
      if (is_sanitized && c.shape.classes > 8) continue;
      const Precise loss_exact = exact(random_circuits<Precise>(c.shape, 700.0, c.with_bias, 13).view(), g_exact.map());
      // Rounding a score of 700 moves its exponential by 700 epsilon.
      const double tolerance = 1000 * qkflow_test::tolerance<double>(Tol::rounding);
      CHECK(abs(Precise(loss) - loss_exact) <= tolerance * (1 + abs(loss_exact)));
      CHECK(relative_difference(g, g_exact) < tolerance * 700);
      CHECK_THAT(reference_loss(data, options_of<double>(mode), w),
                 WithinRel(static_cast<double>(loss_exact), tolerance));
    }
  }
}

TEST_CASE("NaN in the weights is seen in loss and gradient and nothing is thrown") {
  const DatasetShape shape{3, 7, 4};
  const Dataset<double> data = random_dataset({.shape = shape, .sequences = 60});
  for (const AttentionMode mode : modes) {
    CircuitGradient<double> gradient(data, options_of<double>(mode));
    for (const bool in_qk : {true, false}) {
      if (in_qk && mode == AttentionMode::fixed) continue;  // W_QK is idle there
      CAPTURE(static_cast<int>(mode), in_qk);
      auto w = random_circuits<double>(shape, 1.0, true, 1);
      (in_qk ? w.qk(1, 2) : w.ov(1, 2)) = std::numeric_limits<double>::quiet_NaN();
      Circuits<double> g(shape, true);
      CHECK(std::isnan(gradient(w.view(), g.map())));
      CHECK(std::isnan(gradient.loss(w.view())));
      CHECK(std::isnan(g.ov.sum()));
    }
  }
}

TEST_CASE("another dataset can be set, smaller or larger") {
  const DatasetShape shape{3, 7, 4};
  const Dataset<double> small = random_dataset({.shape = shape, .sequences = 5, .seed = 1});
  const Dataset<double> large = random_dataset({.shape = shape, .sequences = 3000, .longest = 20, .seed = 2});
  const auto w = random_circuits<double>(shape, 1.0, true, 1);
  CircuitGradient<double> gradient(small);
  for (const auto* data : {&large, &small, &large}) {
    gradient.reset(*data);
    Circuits<double> reused(shape, true), fresh(shape, true);
    CHECK(gradient(w.view(), reused.map()) == CircuitGradient<double>(*data)(w.view(), fresh.map()));
    CHECK(reused.qk == fresh.qk);
    CHECK(reused.ov == fresh.ov);
  }
}

TEST_CASE("wrong shapes and options are refused by name and value") {
  const DatasetShape shape{3, 7, 4};
  const Dataset<double> data = random_dataset({.shape = shape});
  CircuitGradient<double> gradient(data);
  Circuits<double> right(shape), wrong({3, 8, 4}), g(shape);
  CHECK_THROWS_WITH(gradient(wrong.view(), g.map()), Catch::Contains("columns of W_QK = 8"));
  CHECK_THROWS_WITH(gradient.loss(Circuits<double>({2, 7, 4}).view()), Catch::Contains("rows of W_QK = 2"));
  CHECK_THROWS_WITH(gradient(right.view(), Circuits<double>({3, 7, 5}).map()), Catch::Contains("rows of W_OV = 5"));
  CHECK_THROWS_WITH(gradient.tangent(right.view(), wrong.view(), g.map()), Catch::Contains("direction"));
  right.bias.setZero(3);
  CHECK_THROWS_WITH(gradient.loss(right.view()), Catch::Contains("size of the bias = 3"));
  CHECK_THROWS_WITH(CircuitGradient<double>(data, {.score_scale = 0}), Catch::Contains("score_scale = 0"));
  CHECK_THROWS_WITH(CircuitGradient<double>(data, {.fixed_alpha = 1.5}), Catch::Contains("fixed_alpha = 1.5"));
  CHECK_THROWS_WITH(CircuitGradient<double>(data, {}, -2), Catch::Contains("threads = -2"));
}
