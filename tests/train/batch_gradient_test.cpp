// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/batch_gradient.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "qkflow/model/head.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::random_dataset;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

OneHotBatch<double> batch_of(const Dataset<double>& data) {
  std::vector<std::size_t> all(data.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  OneHotBatch<double> batch;
  BatchAssembler<double> assemble;
  assemble(data, all, batch);
  return batch;
}

}  // namespace

TEST_CASE("In every parameterization and attention mode the gradient is the derivative of the model's loss",
          "[batch_gradient]") {
  const DatasetShape shape{3, 7, 5};
  const Dataset<double> data = random_dataset({.shape = shape, .sequences = 25, .longest = 6, .seed = 2});
  const OneHotBatch<double> batch = batch_of(data);
  for (const AttentionMode mode :
       {AttentionMode::soft, AttentionMode::fixed, AttentionMode::hard, AttentionMode::marginal}) {
    const HeadOptions<double> head{.attention = mode, .score_scale = 0.75, .fixed_alpha = 0.625};
    for (const std::int64_t inner_qk : {0, 2}) {
      for (const std::int64_t inner_ov : {0, 4}) {
        const OneHotLayout<double> layout(OneHotShape{3, 7, 5, inner_qk, inner_ov, inner_ov == 0});
        const MatrixStart normal{StartKind::normal, 1.5};
        std::vector<double> theta = initial_weights(layout, {.qk = normal, .ov = normal, .bias = normal, .seed = 4});
        BatchGradient<double> gradient(layout, head);
        std::vector<double> g;
        const double loss = gradient(batch, theta, g);
        // The model's plain reference, one sequence at a time.
        HeadForward<double> forward(head);
        const auto reference = [&] {
          Circuits<double> w(shape, layout.shape().bias);
          w.qk = layout.w_qk(theta);
          w.ov = layout.w_ov(theta);
          if (layout.bias.present()) w.bias = layout.matrix(theta, layout.bias);
          double sum = 0;
          for (std::size_t s = 0; s < data.size(); ++s) sum += data[s].weight * forward(data[s], w.view()).loss;
          return sum / data.total_weight();
        };
        INFO(layout.shape().parameterization() << ", mode " << static_cast<int>(mode));
        CHECK(std::abs(loss - reference()) <= tolerance<double>(Tol::elementary));
        double worst = 0;
        const double h = 1e-5;
        for (const OneHotBlock& block : layout.blocks()) {
          for (std::ptrdiff_t i = 0; i < block.count; ++i) {
            for (std::ptrdiff_t j = 0; j < block.length; ++j) {
              double& w = theta[static_cast<std::size_t>(block.offset + i * block.stride + j)];
              const double kept = w;
              w = kept + h;
              const double up = reference();
              w = kept - h;
              const double down = reference();
              w = kept;
              const double found = -g[static_cast<std::size_t>(block.offset + i * block.stride + j)];
              worst = std::max(worst, std::abs((up - down) / (2 * h) - found));
            }
          }
        }
        CHECK(worst <= tolerance<double>(Tol::difference));
      }
    }
  }
}

TEST_CASE("Large batches are cut into parts: the same sum, and the same bits for any number of threads",
          "[batch_gradient]") {
  const Dataset<double> data = random_dataset({.shape = {40, 30, 6}, .sequences = 1500, .longest = 8, .seed = 6});
  const OneHotBatch<double> batch = batch_of(data);
  const OneHotLayout<double> layout(OneHotShape{40, 30, 6, 0, 5, false});
  const std::vector<double> theta =
      initial_weights(layout, {.qk = {StartKind::normal, 3}, .ov = {StartKind::normal, 3}});
  const HeadOptions<double> head{.score_scale = 2};
  std::vector<double> one, three, whole(layout.size());
  BatchGradient<double> alone(layout, head, 1), together(layout, head, 3);
  CHECK(together.threads() == 3);
  const double loss = alone(batch, theta, one);
  CHECK(together(batch, theta, three) == loss);
  CHECK(one == three);
  CHECK(together(batch, theta, three) == loss);  // and again, the buffers being used ones
  CHECK(one == three);
  OneHotKernel<double> kernel(layout, {2});
  CHECK(std::abs(kernel(batch, theta.data(), whole.data()) - loss) <= tolerance<double>(Tol::elementary));
  double worst = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) worst = std::max(worst, std::abs(whole[i] - one[i]));
  CHECK(worst <= tolerance<double>(Tol::elementary));
}

TEST_CASE("Head options that are not allowed are refused", "[batch_gradient]") {
  const OneHotLayout<float> layout(OneHotShape{3, 7, 5});
  CHECK_THROWS_AS(BatchGradient<float>(layout, {.score_scale = 0}), InvalidArgument);
  CHECK_THROWS_AS(BatchGradient<float>(layout, {.fixed_alpha = 1.5F}), InvalidArgument);
  CHECK_THROWS_AS(BatchGradient<float>(layout, {}, -1), InvalidArgument);
}
