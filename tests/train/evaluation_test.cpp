// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/evaluation.hpp"

#include <cmath>
#include <vector>

#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("An untrained head attends uniformly: the share of distinct tokens, in the bins it belongs to",
          "[evaluation]") {
  const TopicSamplerOptions topic{.length = 64, .batch = 100, .seed = 3};
  TopicSampler<double> source(topic);
  const OneHotLayout<double> layout(topic.shape());
  OneHotKernel<double> kernel(layout, {});
  const Evaluation result = evaluate(kernel, std::vector<double>(layout.size(), 0.0), source, evaluation_step, 100);
  CHECK(result.sequences == 10000);
  CHECK(std::abs(result.loss - std::log(50.0)) < 1e-12);
  // 62 tokens, each distinct with probability 5.5 / 15.5, and the query, which is not.
  CHECK(std::abs(result.relevant_attention - 62.0 / 63 * 5.5 / 15.5) < 0.003);
  // The query's own token is one of ten common ones, and stands at the end.
  CHECK(std::abs(result.query_attention - (1 + 62 / 15.5) / 63) < 0.002);
  double total = 0, likely = 0, middle = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 5; ++j) {
      total += result.heat_map[i][j];
      if (i > 0) likely += result.heat_map[i][j];
      if (j == 1) middle += result.heat_map[i][j];
    }
  }
  CHECK(std::abs(total - 1) < 1e-12);
  CHECK(likely == 0);           // every label has probability 1/50
  CHECK(middle > 0.7);          // 0.35 on average, deviation 0.06
  CHECK(result.accuracy == 1);  // all classes tie
}

TEST_CASE("A head that knows its labels is right and sure", "[evaluation]") {
  const TopicSamplerOptions topic{.length = 64, .batch = 10, .seed = 3};
  TopicSampler<double> source(topic);
  const OneHotLayout<double> layout(topic.shape());
  std::vector<double> theta(layout.size(), 0.0);
  auto ov = layout.matrix(theta, layout.v);
  for (int k = 0; k < 4; ++k) ov.row(k + 1).segment(10 + 10 * k, 10).setConstant(60);
  layout.set_matrix(theta, layout.v, ov);
  OneHotKernel<double> kernel(layout, {});
  const Evaluation result = evaluate(kernel, theta, source, evaluation_step, 20);
  CHECK(result.accuracy == 1);
  double sure = 0;
  for (const double share : result.heat_map[4]) sure += share;
  CHECK(std::abs(sure - 1) < 1e-12);
  CHECK(result.loss < 0.01);
}

TEST_CASE("Values on and beyond the edges fall into the outer bins", "[evaluation]") {
  CHECK(Evaluation::bin(0) == 0);
  CHECK(Evaluation::bin(0.2) == 1);
  CHECK(Evaluation::bin(0.999) == 4);
  CHECK(Evaluation::bin(1) == 4);
  CHECK(Evaluation::bin(1.0000001) == 4);
  CHECK(Evaluation::bin(-1e-9) == 0);
}
