// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/onehot_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "qkflow/math/random.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

struct Case {
  OneHotShape shape;
  std::vector<int> group_sizes;
  int tokens;  // a group
  bool nulls, weights, fixed;
  double size = 1;  // of the weights
};

/// Loss and -dL/dtheta of one batch by the formulas of the head, sequence by sequence, in long double: nothing is
/// shared with the kernel but the batch.
template <class T>
struct Reference {
  using Real = long double;
  using Matrix = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic>;
  Real loss = 0, total = 0;
  Matrix qk, ov, bias;

  Reference(const OneHotBatch<T>& batch, const OneHotLayout<T>& layout, const OneHotAttention<T>& attention,
            const std::vector<T>& theta) {
    const auto& shape = layout.shape();
    const auto real = [&](const OneHotBlock& block) {
      return Matrix(layout.matrix(theta, block).template cast<Real>());
    };
    const Matrix w_qk = layout.qk.present() ? real(layout.qk) : Matrix(real(layout.q).transpose() * real(layout.k));
    const Matrix w_ov = layout.o.present() ? Matrix(real(layout.o) * real(layout.v)) : real(layout.v);
    Matrix b = Matrix::Zero(shape.classes, 1);
    if (layout.bias.present()) b = real(layout.bias);
    qk = Matrix::Zero(shape.queries, shape.tokens);
    ov = Matrix::Zero(shape.classes, shape.tokens);
    bias = Matrix::Zero(shape.classes, 1);
    for (std::size_t i = 0; i < batch.size(); ++i) total += batch.weights.empty() ? Real(1) : Real(batch.weights[i]);
    for (const OneHotGroup& group : batch.groups) {
      for (int s = 0; s < group.sequences; ++s) one(batch, group, s, attention, w_qk, w_ov, b);
    }
    loss /= total;
  }

  void one(const OneHotBatch<T>& batch, const OneHotGroup& group, int s, const OneHotAttention<T>& attention,
           const Matrix& w_qk, const Matrix& w_ov, const Matrix& b) {
    const auto i = static_cast<std::size_t>(group.first + s);
    const Real weight = (batch.weights.empty() ? Real(1) : Real(batch.weights[i])) / total;
    const Real nulls = batch.null_counts.empty() ? Real(0) : Real(batch.null_counts[i]);
    std::vector<Real> a(static_cast<std::size_t>(group.tokens));
    Real high = nulls > 0 ? Real(0) : -std::numeric_limits<Real>::infinity(), on = 0, off = nulls;
    const auto token = [&](int t) { return batch.tokens[group.first_token + static_cast<std::size_t>(t)]; };
    const auto relevant = [&](int t) { return batch.relevant[group.first_token + static_cast<std::size_t>(t)] != 0; };
    const auto count = [&](int t) {
      return Real(batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch + s)]);
    };
    for (int t = 0; t < group.tokens; ++t) {
      if (count(t) > 0) high = std::max(high, Real(attention.score_scale) * w_qk(group.query, token(t)));
      (relevant(t) ? on : off) += count(t);
    }
    Real sum = nulls > 0 ? nulls * std::exp(-high) : Real(0);
    for (int t = 0; t < group.tokens; ++t) {
      Real& mass = a[static_cast<std::size_t>(t)];
      if (attention.fixed) {
        const Real alpha = attention.alpha;
        mass = count(t) * (on > 0 && off > 0 ? (relevant(t) ? alpha / on : (1 - alpha) / off) : 1 / (on + off));
      } else {
        mass = count(t) > 0 ? count(t) * std::exp(Real(attention.score_scale) * w_qk(group.query, token(t)) - high) : 0;
        sum += mass;
      }
    }
    if (!attention.fixed) {
      for (Real& mass : a) mass /= sum;
    }
    Matrix mean = Matrix::Zero(b.rows(), 1);
    for (int t = 0; t < group.tokens; ++t) mean += a[static_cast<std::size_t>(t)] * w_ov.col(token(t));
    const Matrix z = mean + b;
    const int label = batch.labels[i];
    Matrix x = (z.array() - z.maxCoeff()).exp();
    const Real own = x(label);
    x(label) = 0;
    const Real others = x.sum();
    loss += weight * total * std::log1p(others / own);
    Matrix e = -x / (own + others);
    e(label) = others / (own + others);
    e *= weight;
    bias += e;
    for (int t = 0; t < group.tokens; ++t) {
      const Real mass = a[static_cast<std::size_t>(t)];
      ov.col(token(t)) += mass * e;
      if (attention.fixed) continue;
      const Real pull = e.cwiseProduct(w_ov.col(token(t)) - mean).sum();
      qk(group.query, token(t)) += Real(attention.score_scale) * mass * pull;
    }
  }
};

template <class T>
OneHotBatch<T> random_batch(const Case& c, RandomStream& random) {
  OneHotBatch<T> batch;
  std::int32_t query = 0;
  for (std::size_t g = 0; g < c.group_sizes.size(); ++g) {
    if (g % 2 == 0) query = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(c.shape.queries)));
    const OneHotGroup group = batch.open_group(query, c.group_sizes[g], c.tokens);
    for (int t = 0; t < c.tokens; ++t) {
      batch.tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(c.shape.tokens))));
      batch.relevant.push_back(random.below(2) == 0 ? 1 : 0);
    }
    for (int s = 0; s < c.group_sizes[g]; ++s) {
      batch.labels.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(c.shape.classes))));
      const bool nulls = c.nulls && random.below(2) == 0;
      if (c.nulls) batch.null_counts.push_back(nulls ? static_cast<T>(1 + random.below(9)) : T(0));
      if (c.weights) batch.weights.push_back(static_cast<T>(random.below(5)) / T(2) + T(s == 0));
      for (int t = 0; t < c.tokens; ++t) {
        const bool needed = t == s % c.tokens && !nulls;
        const auto count = static_cast<T>(random.below(3) + (needed ? 1 : 0));
        batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch + s)] = count;
      }
    }
  }
  return batch;
}

template <class T>
std::vector<T> random_theta(const OneHotLayout<T>& layout, double size, RandomStream& random) {
  std::vector<T> theta(layout.size(), T(0));
  for (const OneHotBlock& block : layout.blocks()) {
    for (std::ptrdiff_t i = 0; i < block.count; ++i) {
      for (std::ptrdiff_t j = 0; j < block.length; ++j) {
        theta[static_cast<std::size_t>(block.offset + i * block.stride + j)] = static_cast<T>(size * random.normal());
      }
    }
  }
  return theta;
}

/// The largest difference over the largest entry, which counts as 1/100 at least: where exact gradients cancel to
/// nothing, rounding is all there is.
template <class A, class B>
double relative(const A& found, const B& expected) {
  const double scale = std::max(0.01, static_cast<double>(expected.cwiseAbs().maxCoeff()));
  return static_cast<double>((found.template cast<long double>() - expected).cwiseAbs().maxCoeff()) / scale;
}

/// Compares kernel and reference; returns the largest error in units of epsilon.
template <class T>
double error_of(const Case& c, std::uint64_t seed) {
  RandomStream random(seed);
  const OneHotLayout<T> layout(c.shape);
  const OneHotAttention<T> attention{T(0.75), c.fixed, T(0.625)};
  const OneHotBatch<T> batch = random_batch<T>(c, random);
  const std::vector<T> theta = random_theta(layout, c.size, random);
  const Reference<T> reference(batch, layout, attention, theta);
  OneHotKernel<T> kernel(layout, attention);
  std::vector<T> gradient(layout.size(), T(99));
  const double loss = kernel(batch, theta.data(), gradient.data());
  CHECK(kernel.loss(batch, theta.data()) == loss);
  double worst = std::abs(loss - static_cast<double>(reference.loss)) / (0.01 + static_cast<double>(reference.loss));
  const auto real = [&](const OneHotBlock& block) {
    return typename Reference<T>::Matrix(layout.matrix(theta, block).template cast<long double>());
  };
  const auto compare = [&](const OneHotBlock& block, const typename Reference<T>::Matrix& expected) {
    worst = std::max(worst, relative(layout.matrix(gradient, block), expected));
  };
  if (layout.qk.present()) {
    compare(layout.qk, reference.qk);
  } else {
    compare(layout.q, real(layout.k) * reference.qk.transpose());
    compare(layout.k, real(layout.q) * reference.qk);
  }
  if (layout.o.present()) {
    compare(layout.o, reference.ov * real(layout.v).transpose());
    compare(layout.v, real(layout.o).transpose() * reference.ov);
  } else {
    compare(layout.v, reference.ov);
  }
  if (layout.bias.present()) compare(layout.bias, reference.bias);
  // Padding stays zero, or the next step's would not be.
  double padding = 0;
  for (const OneHotBlock& block : layout.blocks()) {
    for (std::ptrdiff_t i = 0; i < block.count; ++i) {
      for (std::ptrdiff_t j = block.length; j < block.stride; ++j) {
        padding +=
            std::abs(static_cast<double>(gradient[static_cast<std::size_t>(block.offset + i * block.stride + j)]));
      }
    }
  }
  CHECK(padding == 0);
  return worst / static_cast<double>(std::numeric_limits<T>::epsilon());
}

}  // namespace

TEMPLATE_TEST_CASE("Loss and gradient against long double, on awkward shapes", "[onehot_kernel]", float, double) {
  const std::vector<Case> cases{
      {{1, 1, 1}, {1}, 1, true, false, false},
      {{1, 3, 2}, {1, 1}, 2, false, false, false},
      {{3, 7, 5}, {1, 7, 3}, 4, true, true, false},
      {{2, 13, 15, 0, 0, true}, {8, 9, 2}, 5, false, true, false},
      {{5, 11, 16, 3, 0, false}, {17, 1, 1, 33}, 6, true, false, false},
      {{4, 37, 17, 0, 5, true}, {4, 16, 15}, 19, false, false, false},
      {{3, 19, 61, 16, 17, false}, {5, 2, 31}, 20, true, true, false},
      {{3, 19, 70, 1, 1, true}, {5, 2, 3}, 20, false, true, false},
      {{2, 9, 5, 0, 0, true}, {7, 16, 17}, 5, true, true, true},
      {{2, 9, 5, 3, 6, false}, {7, 1, 2}, 5, false, false, true},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      INFO("case " << i << ", seed " << seed);
      CHECK(error_of<TestType>(cases[i], seed) <= 100);
    }
  }
}

TEMPLATE_TEST_CASE("Scores too far apart for one shift a group do not lose a sequence", "[onehot_kernel]", float,
                   double) {
  Case c{{2, 9, 4}, {7, 5}, 4, true, false, false};
  c.size = sizeof(TestType) == 4 ? 200 : 3000;
  RandomStream random(5);
  const OneHotLayout<TestType> layout(c.shape);
  const OneHotBatch<TestType> batch = random_batch<TestType>(c, random);
  std::vector<TestType> theta = random_theta(layout, 1, random);
  for (std::ptrdiff_t i = 0; i < layout.qk.size(); ++i)
    theta[static_cast<std::size_t>(i)] *= static_cast<TestType>(c.size);
  OneHotKernel<TestType> kernel(layout, {});
  std::vector<TestType> gradient(layout.size());
  const double loss = kernel(batch, theta.data(), gradient.data());
  const Reference<TestType> reference(batch, layout, {}, theta);
  CHECK(std::abs(loss - static_cast<double>(reference.loss)) <=
        1e3 * static_cast<double>(std::numeric_limits<TestType>::epsilon()));
  CHECK(relative(layout.matrix(gradient, layout.v), reference.ov) <=
        1e3 * static_cast<double>(std::numeric_limits<TestType>::epsilon()));
}

TEMPLATE_TEST_CASE("A loss far below rounding keeps its digits, and its gradient", "[onehot_kernel]", float, double) {
  OneHotBatch<TestType> batch;
  batch.open_group(0, 1, 1);
  batch.labels = {0};
  batch.tokens = {0};
  batch.relevant = {1};
  batch.counts[0] = TestType(1);
  const OneHotLayout<TestType> layout(OneHotShape{1, 1, 3});
  std::vector<TestType> theta(layout.size(), TestType(0)), gradient(layout.size());
  theta[static_cast<std::size_t>(layout.v.offset)] = TestType(40);
  OneHotKernel<TestType> kernel(layout, {});
  const double expected = std::log1p(2 * std::exp(-40.0));
  CHECK(std::abs(kernel(batch, theta.data(), gradient.data()) / expected - 1) <= 1e-5);
  CHECK(std::abs(static_cast<double>(gradient[static_cast<std::size_t>(layout.v.offset)]) / expected - 1) <= 1e-5);
  // The other way about: certainly wrong.
  theta[static_cast<std::size_t>(layout.v.offset)] = TestType(-300);
  CHECK(std::abs(kernel.loss(batch, theta.data()) - 300 - std::log(2.0)) <= 1e-4);
  CHECK(kernel.label_is_likeliest(0) == false);
}

TEMPLATE_TEST_CASE("NaN in the weights shows in the loss", "[onehot_kernel]", float, double) {
  const Case c{{2, 9, 5, 0, 3, true}, {7, 16}, 5, false, false, false};
  const OneHotLayout<TestType> layout(c.shape);
  for (const auto& block : layout.blocks()) {
    RandomStream random(8);
    const OneHotBatch<TestType> batch = random_batch<TestType>(c, random);
    std::vector<TestType> theta = random_theta(layout, 1, random), gradient(layout.size());
    auto matrix = layout.matrix(theta, block);
    matrix.setConstant(std::numeric_limits<TestType>::quiet_NaN());
    layout.set_matrix(theta, block, matrix);
    OneHotKernel<TestType> kernel(layout, {});
    INFO(block.name);
    CHECK(std::isnan(kernel(batch, theta.data(), gradient.data())));
  }
}

TEST_CASE("Probabilities and attention by sequence", "[onehot_kernel]") {
  OneHotBatch<double> batch;
  const OneHotGroup group = batch.open_group(1, 2, 2);
  batch.labels = {0, 1};
  batch.tokens = {0, 2};
  batch.relevant = {0, 1};
  const auto pitch = static_cast<std::size_t>(group.pitch);
  batch.counts[0] = 3;  // sequence 0: 3 of token 0, 1 of token 2
  batch.counts[pitch] = 1;
  batch.counts[1] = 1;  // sequence 1: 1 and 2
  batch.counts[pitch + 1] = 2;
  const OneHotLayout<double> layout(OneHotShape{2, 3, 2});
  std::vector<double> theta(layout.size(), 0.0);
  OneHotLayout<double>::Matrix qk(2, 3), ov(2, 3);
  qk << 9, 9, 9, 0, 9, std::log(2.0);
  ov << 0, 9, 0, 0, 9, 1;
  layout.set_matrix(theta, layout.qk, qk);
  layout.set_matrix(theta, layout.v, ov);
  OneHotKernel<double> kernel(layout, {});
  const double loss = kernel.loss(batch, theta.data());
  const double a0 = 2.0 / 5, a1 = 4.0 / 5;
  CHECK(std::abs(kernel.relevant_attention(batch, group, 0) - (a0)) <= 1e-14);
  CHECK(std::abs(kernel.relevant_attention(batch, group, 1) - (a1)) <= 1e-14);
  const double p0 = 1 / (1 + std::exp(a0)), p1 = 1 / (1 + std::exp(-a1));
  CHECK(std::abs(kernel.label_probability(0) - (p0)) <= 1e-14);
  CHECK(std::abs(kernel.label_probability(1) - (p1)) <= 1e-14);
  CHECK_FALSE(kernel.label_is_likeliest(0));
  CHECK(kernel.label_is_likeliest(1));
  CHECK(std::abs(loss + (std::log(p0) + std::log(p1)) / 2) <= 1e-14);
}
