// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/reduced_flow.hpp"

#include <Eigen/Core>
#include <boost/multiprecision/eigen.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

template <class Scalar>
void check_near(const Scalar& value, const Precise& exact, Tol tol, double scale = 1) {
  // A subnormal has fewer digits to give.
  const Precise allowed =
      Precise(tolerance<Scalar>(tol)) * scale * abs(exact) + 4 * Precise(std::numeric_limits<Scalar>::denorm_min());
  INFO("value " << value << ", exact " << exact);
  CHECK(abs(Precise(value) - exact) <= allowed);
}

/// The published equations [Vashisht26] written down in 50 digits, with nothing rearranged but 1 - alpha.
struct Textbook {
  Precise alpha, noise_mass, loss, output_velocity, attention_velocity;

  template <class Scalar>
  Textbook(const BlockTask<Scalar>& task, const LearningRates<Scalar>& rates, const Scalar& mu_ov,
           const Scalar& mu_qk) {
    const Precise m(task.informative), n(task.noise), b(task.block), classes(task.classes);
    const Precise o(mu_ov), q(mu_qk);
    alpha = m * exp(q) / (m * exp(q) + n);
    noise_mass = n / (m * exp(q) + n);
    const Precise e = exp(alpha * o);
    loss = log1p((classes - 1) / e);
    output_velocity = Precise(rates.ov) * alpha / (b * (e + classes - 1));
    attention_velocity =
        Precise(rates.qk) * (classes - 1) * alpha * noise_mass * o / (classes * b * b * (e + classes - 1));
  }
};

/// The head itself on the block task, with weights as tables: the mean cross entropy over all queries and windows. A
/// sequence holds each of N noise tokens n/N times, which by symmetry is the mean over draws.
struct DenseHead {
  int classes, block, informative, noise_tokens;
  Precise noise, scale;
  bool null_noise;  // noise tokens have no embedding: score and value stay 0

  using Table = Eigen::Matrix<Precise, Eigen::Dynamic, Eigen::Dynamic>;
  int tokens() const { return classes * block + noise_tokens; }

  Precise loss(const Table& w_qk, const Table& w_ov) const {
    Precise total(0);
    for (int y = 0; y < classes; ++y) {
      for (int query = 0; query < block; ++query) {
        for (int window = 0; window < block; ++window) total += sequence_loss(w_qk, w_ov, y, query, window);
      }
    }
    return total / (classes * block * block);
  }

  Precise sequence_loss(const Table& w_qk, const Table& w_ov, int y, int query, int window) const {
    std::vector<Precise> count(tokens(), Precise(0));
    for (int i = 0; i < informative; ++i) count[y * block + (window + i) % block] += 1;
    for (int i = 0; i < noise_tokens; ++i) count[classes * block + i] = noise / noise_tokens;
    Precise normalizer(0);
    std::vector<Precise> logits(classes, Precise(0));
    for (int token = 0; token < tokens(); ++token) {
      if (count[token] == 0) continue;
      const bool null = null_noise && token >= classes * block;
      const Precise weight = null ? count[token] : count[token] * exp(scale * w_qk(y * block + query, token));
      normalizer += weight;
      for (int k = 0; k < classes && !null; ++k) logits[k] += weight * w_ov(k, token);
    }
    Precise sum(0);
    for (int k = 0; k < classes; ++k) sum += exp(logits[k] / normalizer);
    return log(sum) - logits[y] / normalizer;
  }

  /// -dL/dW by central differences, exact to some 24 digits.
  Table descent(Table& varied, const Table& w_qk, const Table& w_ov) const {
    const Precise h("1e-13");
    Table g(varied.rows(), varied.cols());
    for (Eigen::Index i = 0; i < g.rows(); ++i) {
      for (Eigen::Index j = 0; j < g.cols(); ++j) {
        const Precise here = varied(i, j);
        varied(i, j) = here + h;
        const Precise above = loss(w_qk, w_ov);
        varied(i, j) = here - h;
        g(i, j) = (loss(w_qk, w_ov) - above) / (2 * h);
        varied(i, j) = here;
      }
    }
    return g;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("Attention mass, gap and loss against 50 digits", "[reduced_flow]", float, double, long double) {
  for (const double classes : {2.0, 20.0, 1000.0}) {
    for (const double ratio : {0.1, 1.0, 30.0}) {
      const Caco<TestType> flow{
          .task = {.classes = TestType(classes), .informative = TestType(ratio * 7), .noise = TestType(7)}};
      for (const double o : {-9.0, -1.0, 0.0, 1e-6, 0.5, 3.0, 25.0}) {
        for (const double q : {-30.0, -2.0, 0.0, 1e-7, 1.0, 5.0, 40.0}) {
          const TestType mu_ov = TestType(o), mu_qk = TestType(q);
          const Textbook exact(flow.task, flow.rates, mu_ov, mu_qk);
          INFO("M = " << classes << ", m/n = " << ratio << ", mu_ov = " << o << ", mu_qk = " << q);
          check_near(flow.alpha(mu_qk), exact.alpha, Tol::rounding);
          check_near(flow.noise_mass(mu_qk), exact.noise_mass, Tol::rounding);
          CHECK(std::abs(flow.alpha(mu_qk) + flow.noise_mass(mu_qk) - 1) <= tolerance<TestType>(Tol::rounding));
          check_near(flow.logit_gap(mu_ov, mu_qk), exact.alpha * Precise(mu_ov), Tol::rounding);
          // Below log M an error of the gap is a relative error of the loss.
          check_near(flow.loss(mu_ov, mu_qk), exact.loss, Tol::rounding, 1 + std::abs(o));
          const auto point = flow.point(mu_ov, mu_qk);
          CHECK(point.mu_ov == mu_ov);
          CHECK(point.mu_qk == mu_qk);
          CHECK(point.alpha == flow.alpha(mu_qk));
          CHECK(point.loss == flow.loss(mu_ov, mu_qk));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("The velocity field is the published one", "[reduced_flow]", float, double, long double, Precise) {
  // The witness in 50 digits has errors of its own.
  const Tol tol = std::is_same_v<TestType, Precise> ? Tol::elementary : Tol::rounding;
  const BlockTask<TestType> task{.classes = 20, .block = 50, .informative = 5, .noise = 40};
  const LearningRates<TestType> rates{.ov = TestType(0.5), .qk = TestType(3)};
  for (const double o : {-9.0, -1.0, 0.0, 1e-6, 0.5, 3.0, 25.0, 60.0}) {
    for (const double q : {-30.0, -2.0, 0.0, 1e-7, 1.0, 5.0, 40.0}) {
      const TestType mu_ov = TestType(o), mu_qk = TestType(q);
      INFO("mu_ov = " << o << ", mu_qk = " << q);
      const Textbook exact(task, rates, mu_ov, mu_qk);
      const double scale = 1 + std::abs(o);
      const Caco<TestType> caco{task, rates};
      check_near(caco.output_velocity(mu_ov, mu_qk), exact.output_velocity, tol, scale);
      check_near(caco.attention_velocity(mu_ov, mu_qk), exact.attention_velocity, tol, scale);
      // Factorization rescales: 2 sqrt(b) |mu_OV| and 2 b |mu_QK|.
      const Fafo<TestType> fafo{task, rates};
      check_near(fafo.output_velocity(mu_ov, mu_qk),
                 exact.output_velocity * 2 * sqrt(Precise(task.block)) * abs(Precise(mu_ov)), tol, scale);
      check_near(fafo.attention_velocity(mu_ov, mu_qk),
                 exact.attention_velocity * 2 * Precise(task.block) * abs(Precise(mu_qk)), tol, scale);
      CHECK(Cafo<TestType>{task, rates}.output_velocity(mu_ov, mu_qk) == fafo.output_velocity(mu_ov, mu_qk));
      CHECK(Cafo<TestType>{task, rates}.attention_velocity(mu_ov, mu_qk) == caco.attention_velocity(mu_ov, mu_qk));
      CHECK(Faco<TestType>{task, rates}.output_velocity(mu_ov, mu_qk) == caco.output_velocity(mu_ov, mu_qk));
      CHECK(Faco<TestType>{task, rates}.attention_velocity(mu_ov, mu_qk) == fafo.attention_velocity(mu_ov, mu_qk));

      TestType x[2] = {mu_ov, mu_qk}, velocity[2];
      caco(x, velocity, TestType(123));
      CHECK(velocity[0] == caco.output_velocity(mu_ov, mu_qk));
      CHECK(velocity[1] == caco.attention_velocity(mu_ov, mu_qk));
    }
  }
}

namespace {

/// F'(x) v by the exact derivative, against central differences in 50 digits.
template <class Scalar, template <class> class Flow>
void check_derivative(const Flow<Scalar>& flow, const Flow<Precise>& precise, double allowed) {
  using State = Eigen::Matrix<Scalar, 2, 1>;
  using PreciseState = Eigen::Matrix<Precise, 2, 1>;
  const Precise h("1e-17");
  for (const double o : {-3.0, -0.2, 0.1, 1.5, 12.0}) {
    for (const double q : {-2.0, -0.1, 0.3, 4.0}) {
      const PreciseState x{Precise(o), Precise(q)}, v{Precise(0.75), Precise(-1.5)};
      PreciseState up, down;
      precise(PreciseState(x + h * v), up, Precise(0));
      precise(PreciseState(x - h * v), down, Precise(0));
      const PreciseState exact = (up - down) / (2 * h);
      State result;
      flow.derivative(State(Scalar(o), Scalar(q)), State(Scalar(0.75), Scalar(-1.5)), result);
      INFO("mu_ov = " << o << ", mu_qk = " << q << ": " << result[0] << " " << exact[0] << ", " << result[1] << " "
                      << exact[1]);
      // Terms of both signs add up: the size is that of the terms.
      const auto j = precise.jacobian(x[0], x[1]);
      const Precise size_ov = abs(j.ov_ov * v[0]) + abs(j.ov_qk * v[1]);
      const Precise size_qk = abs(j.qk_ov * v[0]) + abs(j.qk_qk * v[1]);
      CHECK(abs(Precise(result[0]) - exact[0]) <= allowed * size_ov);
      CHECK(abs(Precise(result[1]) - exact[1]) <= allowed * size_qk);
      State in_place{Scalar(0.75), Scalar(-1.5)};
      flow.derivative(State(Scalar(o), Scalar(q)), in_place, in_place);
      CHECK(in_place == result);
    }
  }
}

template <class Scalar>
using DeepFlow = ReducedFlow<Scalar, FactorProduct, FactorProduct>;
template <class Scalar>
using LazyFlow = ReducedFlow<Scalar, Unbalanced<Scalar>, Unbalanced<Scalar>>;

}  // namespace

TEMPLATE_TEST_CASE("The derivative of the field is exact", "[reduced_flow]", double, long double, Precise) {
  const auto task = [](auto one) {
    using T = decltype(one);
    return BlockTask<T>{.classes = T(7), .block = T(5), .informative = T(3), .noise = T(4), .score_scale = T(0.5)};
  };
  const auto rates = [](auto one) {
    using T = decltype(one);
    return LearningRates<T>{.ov = T(0.5), .qk = T(3)};
  };
  const TestType one(1);
  const Precise exact(1);
  const double allowed = std::is_same_v<TestType, Precise> ? 1e-30 : 200 * std::numeric_limits<double>::epsilon();
  check_derivative<TestType, Caco>({task(one), rates(one)}, {task(exact), rates(exact)}, allowed);
  check_derivative<TestType, Cafo>({task(one), rates(one)}, {task(exact), rates(exact)}, allowed);
  check_derivative<TestType, Faco>({task(one), rates(one)}, {task(exact), rates(exact)}, allowed);
  check_derivative<TestType, Fafo>({task(one), rates(one)}, {task(exact), rates(exact)}, allowed);
  check_derivative<TestType, DeepFlow>({task(one), rates(one), {3}, {5}}, {task(exact), rates(exact), {3}, {5}},
                                       allowed);
  check_derivative<TestType, LazyFlow>({task(one), rates(one), {TestType(0.25)}, {TestType(-2)}},
                                       {task(exact), rates(exact), {Precise(0.25)}, {Precise(-2)}}, allowed);
}

TEST_CASE("The derivative against central differences in double, and symmetric in the metric of the line",
          "[reduced_flow]") {
  const Caco<double> flow{.task = {.classes = 7, .block = 5, .informative = 3, .noise = 4},
                          .rates = {.ov = 2, .qk = 3}};
  for (const auto& [o, q] : {std::pair{0.7, -0.4}, {3.0, 1.0}, {-2.0, 0.5}}) {
    const auto j = flow.jacobian(o, q);
    const double h = 1e-5;
    CHECK_THAT(j.ov_ov, WithinAbs((flow.output_velocity(o + h, q) - flow.output_velocity(o - h, q)) / (2 * h), 1e-10));
    CHECK_THAT(j.ov_qk, WithinAbs((flow.output_velocity(o, q + h) - flow.output_velocity(o, q - h)) / (2 * h), 1e-10));
    CHECK_THAT(j.qk_ov,
               WithinAbs((flow.attention_velocity(o + h, q) - flow.attention_velocity(o - h, q)) / (2 * h), 1e-10));
    CHECK_THAT(j.qk_qk,
               WithinAbs((flow.attention_velocity(o, q + h) - flow.attention_velocity(o, q - h)) / (2 * h), 1e-10));
    // The field is a gradient: |D_OV|^2 / eta_OV of one mixed derivative is |D_QK|^2 / eta_QK of the other.
    CHECK_THAT(j.ov_qk * 5 * 6 / 2, WithinRel(j.qk_ov * 7 * 25 / 3, 1e-13));
  }
}

TEST_CASE("The velocity descends the loss in the metric of the line", "[reduced_flow]") {
  // On the line W = mu D gradient flow is d mu/dt = -eta (dL/d mu) / |D|^2, and |D_OV|^2 = b (M - 1), |D_QK|^2 = M b^2.
  const Caco<Precise> flow{.task = {.classes = 7, .block = 5, .informative = 3, .noise = 4},
                           .rates = {.ov = 2, .qk = Precise(1) / 3}};
  const Precise h("1e-15"), classes(flow.task.classes), b(flow.task.block);
  for (const double o : {-3.0, 0.0, 0.7, 12.0}) {
    for (const double q : {-4.0, 0.0, 0.3, 6.0}) {
      const Precise mu_ov(o), mu_qk(q);
      const Precise slope_ov = (flow.loss(mu_ov + h, mu_qk) - flow.loss(mu_ov - h, mu_qk)) / (2 * h);
      const Precise slope_qk = (flow.loss(mu_ov, mu_qk + h) - flow.loss(mu_ov, mu_qk - h)) / (2 * h);
      INFO("mu_ov = " << o << ", mu_qk = " << q);
      CHECK(abs(flow.output_velocity(mu_ov, mu_qk) + flow.rates.ov * slope_ov / (b * (classes - 1))) < 1e-28);
      CHECK(abs(flow.attention_velocity(mu_ov, mu_qk) + flow.rates.qk * slope_qk / (classes * b * b)) < 1e-28);
    }
  }
}

TEST_CASE("The reduced flow is the gradient flow of the whole head on its line", "[reduced_flow]") {
  struct Setting {
    int classes, block, informative, noise_tokens;
    double noise, scale;
    bool null_noise;
  };
  for (const Setting& s : {Setting{3, 2, 1, 1, 2.0, 1.0, true}, Setting{2, 3, 2, 1, 5.0, 0.5, true},
                           Setting{3, 2, 1, 3, 4.0, 1.0, false}, Setting{2, 2, 2, 5, 3.0, 2.0, false}}) {
    const DenseHead head{s.classes,        s.block,          s.informative, s.noise_tokens,
                         Precise(s.noise), Precise(s.scale), s.null_noise};
    Caco<Precise> flow{.task = {.classes = s.classes,
                                .block = s.block,
                                .informative = s.informative,
                                .noise = Precise(s.noise),
                                .score_scale = Precise(s.scale)},
                       .rates = {.ov = 1, .qk = 1}};
    if (!s.null_noise) flow.task.noise_vocabulary = s.noise_tokens;
    for (const auto& [o, q] : {std::pair{0.0, 0.0}, {1.5, -0.7}, {-2.0, 1.25}}) {
      INFO("M = " << s.classes << ", N = " << s.noise_tokens << (s.null_noise ? " (null)" : "") << ", mu_ov = " << o
                  << ", mu_qk = " << q);
      const int learned = s.classes * s.block;
      DenseHead::Table w_ov = DenseHead::Table::Zero(s.classes, head.tokens());
      DenseHead::Table w_qk = DenseHead::Table::Zero(learned, head.tokens());
      for (int y = 0; y < s.classes; ++y) {
        for (int j = 0; j < s.block; ++j) {
          for (int k = 0; k < s.classes; ++k) {
            w_ov(k, y * s.block + j) = Precise(o) * (Precise(k == y ? 1 : 0) - Precise(1) / s.classes);
          }
          for (int i = 0; i < s.block; ++i) w_qk(y * s.block + i, y * s.block + j) = Precise(q) / s.scale;
        }
      }
      CHECK(abs(head.loss(w_qk, w_ov) - flow.loss(Precise(o), Precise(q))) < 1e-45);

      const DenseHead::Table g_ov = head.descent(w_ov, w_qk, w_ov);
      const Precise output = flow.output_velocity(Precise(o), Precise(q));
      for (int k = 0; k < s.classes; ++k) {
        for (int token = 0; token < learned; ++token) {
          const Precise direction = Precise(token / s.block == k ? 1 : 0) - Precise(1) / s.classes;
          CHECK(abs(g_ov(k, token) - output * direction) < 1e-22);
        }
        for (int token = learned; token < head.tokens(); ++token) CHECK(abs(g_ov(k, token)) < 1e-22);
      }
      const DenseHead::Table g_qk = head.descent(w_qk, w_qk, w_ov);
      const Precise attention = flow.attention_velocity(Precise(o), Precise(q));
      for (int query = 0; query < learned; ++query) {
        for (int token = 0; token < learned; ++token) {
          const Precise noise_velocity = g_qk(query, learned);
          const Precise gap_velocity = head.scale * (g_qk(query, token) - noise_velocity);
          // Tokens of other classes never meet this query.
          if (token / s.block == query / s.block) CHECK(abs(gap_velocity - attention) < 1e-22);
          if (token / s.block != query / s.block) CHECK(g_qk(query, token) == 0);
        }
        for (int token = learned; token < head.tokens(); ++token) {
          CHECK(abs(g_qk(query, token) - g_qk(query, learned)) < 1e-22);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("Everything stays finite far out", "[reduced_flow]", float, double, long double, Precise) {
  using std::abs;
  using std::isfinite;
  using std::log;
  const Caco<TestType> flow{.task = {.classes = 20}};
  const TestType others = log(TestType(19));
  CHECK(abs(flow.loss_at_gap(TestType(-1e4)) - (TestType(1e4) + others)) <= tolerance<TestType>(Tol::rounding) * 10000);
  CHECK(flow.loss_at_gap(TestType(1e4)) >= 0);
  CHECK(flow.loss_at_gap(TestType(1e4)) < TestType(1e-30));
  CHECK(flow.miss_probability(TestType(-1e4)) == 1);
  CHECK(flow.miss_probability(TestType(1e4)) >= 0);
  CHECK(flow.miss_probability(TestType(1e4)) < TestType(1e-30));
  for (const double q : {-1e4, -700.0, -89.0, 89.0, 700.0, 1e4}) {
    const TestType mu_qk = TestType(q);
    const TestType alpha = flow.alpha(mu_qk), noise_mass = flow.noise_mass(mu_qk);
    CHECK(alpha >= 0);
    CHECK(noise_mass >= 0);
    CHECK(abs(alpha + noise_mass - 1) <= tolerance<TestType>(Tol::rounding));
    for (const double o : {-1e4, -700.0, 700.0, 1e4}) {
      const TestType mu_ov = TestType(o);
      CHECK(isfinite(flow.loss(mu_ov, mu_qk)));
      CHECK(flow.output_velocity(mu_ov, mu_qk) >= 0);
      CHECK(isfinite(flow.output_velocity(mu_ov, mu_qk)));
      CHECK(isfinite(flow.attention_velocity(mu_ov, mu_qk)));
      CHECK(flow.attention_velocity(mu_ov, mu_qk) * mu_ov >= 0);
    }
  }
}

TEMPLATE_TEST_CASE("Small probabilities keep their digits to the end of the range", "[reduced_flow]", float, double,
                   long double) {
  // e^z alone overflows before (M - 1) e^-z has left the range; so does e^-q before (m/n) e^q.
  const TestType top = std::log(std::numeric_limits<TestType>::max());
  for (const double classes : {2.0, 20.0, 1e6}) {
    const Caco<TestType> flow{.task = {.classes = TestType(classes), .informative = TestType(1e6), .noise = 1}};
    for (const double offset : {-20.0, -5.0, -1.0, -0.1, 0.1, 1.0, 3.0, 5.0, 10.0}) {
      const TestType z = top + TestType(offset);
      const Precise exact = 1 / (1 + exp(Precise(z)) / (Precise(flow.task.classes) - 1));
      INFO("M = " << classes << ", z = " << z);
      if (exact > Precise(4 * std::numeric_limits<TestType>::min())) {
        check_near(flow.miss_probability(z), exact, Tol::rounding);
      }
      const Precise alpha = 1 / (1 + exp(Precise(z)) / Precise(1e6));
      if (alpha > Precise(4 * std::numeric_limits<TestType>::min()))
        check_near(flow.alpha(TestType(-z)), alpha, Tol::rounding);
    }
  }
  const Caco<TestType> noisy{.task = {.informative = 1, .noise = TestType(1e6)}};
  const TestType q = top + TestType(3);
  check_near(noisy.noise_mass(q), 1 / (1 + exp(Precise(q)) / Precise(1e6)), Tol::rounding);
}

TEST_CASE("Loss falls as either circuit grows, from log M at nothing learned", "[reduced_flow]") {
  const Caco<double> flow;
  CHECK_THAT(flow.loss(0.0, 0.0), WithinRel(std::log(20.0), 1e-15));
  CHECK_THAT(flow.loss(0.0, 7.0), WithinRel(std::log(20.0), 1e-15));
  double last = std::numeric_limits<double>::infinity();
  for (double o = -50; o < 700; o += 7.3) {
    CHECK(flow.loss(o, 0.5) < last);
    last = flow.loss(o, 0.5);
  }
  last = std::numeric_limits<double>::infinity();
  for (double q = -8; q < 8; q += 0.31) {
    CHECK(flow.loss(3.0, q) < last);
    last = flow.loss(3.0, q);
  }
  // With a wrong output circuit attention does harm, and is unlearned.
  CHECK(flow.loss(-1.0, 1.0) > flow.loss(-1.0, 0.0));
  CHECK(flow.attention_velocity(-1.0, 0.0) < 0);
  CHECK(flow.attention_velocity(0.0, 0.0) == 0);
}

TEST_CASE("A score scale multiplies the collapsed rate by its square, a factorized one by itself", "[reduced_flow]") {
  const double s = 0.25, o = 1.5, q = 0.8;
  const Caco<double> caco, scaled_caco{.task = {.score_scale = s}};
  const Faco<double> faco, scaled_faco{.task = {.score_scale = s}};
  CHECK_THAT(scaled_caco.attention_velocity(o, q), WithinRel(s * s * caco.attention_velocity(o, q), 1e-15));
  CHECK_THAT(scaled_faco.attention_velocity(o, q), WithinRel(s * faco.attention_velocity(o, q), 1e-15));
  CHECK(scaled_caco.output_velocity(o, q) == caco.output_velocity(o, q));
  CHECK(scaled_caco.loss(o, q) == caco.loss(o, q));
  CHECK_THAT(scaled_faco.attention_rate_factor(q), WithinRel(2 * 50 * s * q, 1e-15));
}

TEST_CASE("A large noise vocabulary approaches null noise, a small one learns faster", "[reduced_flow]") {
  const Caco<double> null_noise;
  const double limit = null_noise.attention_velocity(1.0, 0.5);
  for (const double n : {1.0, 50.0, 1e3, 1e6, 1e9}) {
    const Caco<double> flow{.task = {.noise_vocabulary = n}};
    CHECK_THAT(flow.attention_velocity(1.0, 0.5), WithinRel(limit * (1 + 50 / n), 1e-14));
    CHECK(flow.output_velocity(1.0, 0.5) == null_noise.output_velocity(1.0, 0.5));
  }
}

TEST_CASE("The reduced flow says where it only approximates", "[reduced_flow]") {
  CHECK(Caco<double>{}.is_exact());
  CHECK(Fafo<double>{}.is_exact());
  const BlockTask<double> finite{.noise_vocabulary = 100};
  CHECK(Caco<double>{.task = finite}.is_exact());
  CHECK(Cafo<double>{.task = finite}.is_exact());
  CHECK_FALSE(Faco<double>{.task = finite}.is_exact());
  CHECK_FALSE(Fafo<double>{.task = finite}.is_exact());
  CHECK_FALSE(ReducedFlow<double, Unbalanced<double>, Collapsed>{.task = finite, .qk = {0.1}}.is_exact());
  CHECK(ReducedFlow<double, FactorProduct, Collapsed>{.task = finite, .qk = {1}}.is_exact());
  CHECK_FALSE(ReducedFlow<double, FactorProduct, Collapsed>{.task = finite, .qk = {2}}.is_exact());
}

TEST_CASE("The reduced flow refuses bad parameters by name and value", "[reduced_flow]") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_NOTHROW(Caco<double>{}.validate("f"));
  CHECK_THROWS_WITH(Caco<double>{.task = {.classes = 1}}.validate("f"), Contains("f: classes = 1,"));
  CHECK_THROWS_WITH(Caco<double>{.task = {.noise = 0}}.validate("f"), Contains("f: noise = 0,"));
  for (const double bad : {0.0, -1.0, infinity, nan}) {
    CHECK_THROWS_WITH(Caco<double>{.rates = {.ov = bad}}.validate("f"), Contains("learning rate ov = " + to_text(bad)));
    CHECK_THROWS_WITH(Caco<double>{.rates = {.qk = bad}}.validate("f"), Contains("learning rate qk = " + to_text(bad)));
  }
  // Each rate is a number, their ratio is none.
  CHECK_THROWS_WITH((Caco<double>{.rates = {.ov = 1e-200, .qk = 1e200}}.validate("f")),
                    Contains("ratio qk / ov = inf"));
  CHECK_THROWS_WITH((Caco<double>{.rates = {.ov = 1e200, .qk = 1e-200}}.validate("f")), Contains("ratio qk / ov = 0"));
  using Lazy = ReducedFlow<double, Unbalanced<double>, Collapsed>;
  CHECK_THROWS_WITH(Lazy{.qk = {0.0}}.validate("f"), Contains("f: lambda = 0"));
  using Deep = ReducedFlow<double, Collapsed, FactorProduct>;
  CHECK_THROWS_WITH(Deep{.ov = {0}}.validate("f"), Contains("f: factors = 0"));
}
