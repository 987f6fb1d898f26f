// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/initial_weights.hpp"

#include <cmath>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("With pytorch the weights are those of torch.nn.Linear after manual_seed(1234)", "[initial_weights]") {
  // Printed by PyTorch 1.13: Linear(5, 3, bias=False), then Linear(4, 2).
  const float first[] = {-0.421293765F, -0.0877445936F, -0.214801893F,  -0.119279608F, -0.395067841F,
                         0.179462105F,  -0.400884598F,  -0.0284971371F, 0.15545693F,   -0.150745004F,
                         0.253756166F,  0.0564054437F,  0.24583374F,    0.286934525F,  -0.197421059F};
  const OneHotLayout<float> layout(OneHotShape{3, 5, 2});
  const std::vector<float> theta = initial_weights(layout, {.pytorch = true, .seed = 1234});
  const auto qk = layout.matrix(theta, layout.qk);
  for (int i = 0; i < 15; ++i) CHECK(qk(i / 5, i % 5) == first[i]);

  // The next layer's draws follow the 15 of the first; its own 8, then the bias's. Fan 4 there, 5 here.
  const OneHotLayout<float> other(OneHotShape{3, 5, 2, 0, 0, true});
  const float second[] = {0.181711078F, -0.216325045F, 0.156730413F,  -0.261244178F,
                          0.231284499F, 0.101222634F,  -0.195671558F, -0.245247841F};
  const auto ov = other.matrix(initial_weights(other, {.pytorch = true, .seed = 1234}), other.v);
  const float stretch = std::sqrt(4.0F / 5.0F);
  for (int i = 0; i < 8; ++i) CHECK(std::abs(ov(i / 5, i % 5) - second[i] * stretch) <= 6e-8F);
}

TEST_CASE("Layers are drawn as key, query, value, output, and those that start otherwise consume their draws",
          "[initial_weights]") {
  const OneHotLayout<float> layout(OneHotShape{3, 3, 3, 3, 3, true});
  const MatrixStart identity{StartKind::identity, 1e-6};
  const auto all = initial_weights(layout, {.pytorch = true, .seed = 7});
  const auto some = initial_weights(layout, {.qk = identity, .pytorch = true, .seed = 7});
  CHECK(layout.matrix(some, layout.v) == layout.matrix(all, layout.v));
  CHECK(layout.matrix(some, layout.o) == layout.matrix(all, layout.o));
  CHECK(layout.matrix(some, layout.k) == OneHotLayout<float>::Matrix::Identity(3, 3) * 1e-6F);
  // Key comes first: the same as W_QK of a collapsed head.
  const OneHotLayout<float> collapsed(OneHotShape{3, 3, 3});
  const auto first = initial_weights(collapsed, {.pytorch = true, .seed = 7});
  CHECK(layout.matrix(all, layout.k) == collapsed.matrix(first, collapsed.qk));
  CHECK(layout.matrix(all, layout.q) == collapsed.matrix(first, collapsed.v));
}

TEST_CASE("Own starts: kinds, sizes, seeds", "[initial_weights]") {
  const OneHotLayout<double> layout(OneHotShape{40, 50, 60, 20, 0, true});
  const InitialWeights start{.qk = {StartKind::normal, 2}, .ov = {StartKind::uniform, 3}, .bias = {StartKind::zero}};
  const auto theta = initial_weights(layout, start);
  const auto q = layout.matrix(theta, layout.q), v = layout.matrix(theta, layout.v);
  // W_Q has 40 columns: standard deviation 2 / sqrt(40); 800 entries.
  CHECK(std::abs(q.array().square().mean() * 40 / 4 - 1) < 0.25);
  CHECK(v.array().abs().maxCoeff() <= 3 / std::sqrt(50.0));
  CHECK(v.array().abs().maxCoeff() > 0.99 * 3 / std::sqrt(50.0));
  CHECK(std::abs(v.mean()) < 0.03);
  CHECK(layout.matrix(theta, layout.bias).isZero(0));
  CHECK(initial_weights(layout, start) == theta);
  auto other = start;
  other.seed = 1;
  CHECK(initial_weights(layout, other) != theta);
  other.ov.size = -1;
  CHECK_THROWS_AS(initial_weights(layout, other), InvalidArgument);
}
