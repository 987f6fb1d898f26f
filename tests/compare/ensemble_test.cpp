// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/ensemble.hpp"

#include <Eigen/Core>
#include <atomic>
#include <cmath>
#include <vector>

#include "qkflow/compare/descend.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/task/topic_task.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};
const CircuitRates<double> rates{.qk = 2.5, .ov = 0.7};
}  // namespace

TEST_CASE("mean, deviation and band by hand", "[ensemble]") {
  // 2, 4, 4, 6: mean 4, squares 8, deviation sqrt(8/3), t(0.95, 3) = 3.182446.
  const SampleStatistics s = sample_statistics({2, 4, 4, 6});
  CHECK(s.count == 4);
  CHECK(s.mean == 4);
  CHECK_THAT(s.deviation, WithinRel(std::sqrt(8.0 / 3), 1e-15));
  CHECK_THAT(s.standard_error, WithinRel(std::sqrt(8.0 / 3) / 2, 1e-15));
  CHECK_THAT(s.half_width, WithinRel(3.182446305 * std::sqrt(8.0 / 3) / 2, 1e-9));
  CHECK(s.low() == 4 - s.half_width);
  CHECK(s.high() == 4 + s.half_width);
  CHECK(sample_statistics({2, 4, 4, 6}, 0.5).half_width < s.half_width);
  const SampleStatistics one = sample_statistics({3});
  CHECK(one.mean == 3);
  CHECK(std::isinf(one.half_width));
  CHECK(std::isnan(one.deviation));
  CHECK_THROWS_WITH(sample_statistics({}), Contains("sample_statistics: number of values = 0"));
  CHECK_THROWS_WITH(sample_statistics({1}, 1.0), Contains("confidence = 1"));
}

TEST_CASE("the band covers the mean as often as it says", "[ensemble]") {
  // Five normal numbers at a time: without Student's t the band would be 40 % too narrow and cover 88 %.
  RandomStream random(7);
  int covered = 0;
  const int trials = 4000;
  for (int i = 0; i < trials; ++i) {
    std::vector<double> values(5);
    for (double& value : values) value = 3 + 2 * random.normal();
    const SampleStatistics s = sample_statistics(values);
    covered += s.low() <= 3 && 3 <= s.high() ? 1 : 0;
  }
  CHECK_THAT(covered / static_cast<double>(trials), WithinAbs(0.95, 0.012));
}

TEST_CASE("SGD on the full batch is gradient descent, whatever the seed", "[ensemble]") {
  const DatasetShape shape = BlockLayout::of(task).shape();
  const auto check = [&](const auto& parameters, const Dataset<double>& data, double scale) {
    const Eigen::VectorXd start = balanced_random_start(parameters, 2, 0.3);
    MatrixFlow flow(parameters, data, {.score_scale = scale});
    const auto descent = descend(flow, start, {.step = 0.5, .steps = 40, .save_steps = {0, 20, 40}});
    const Ensemble ensemble =
        sgd_ensemble(parameters, data, start,
                     {.step = 0.5, .steps = 40, .seeds = 3, .order = BatchOrder::full, .save_steps = {0, 20, 40}},
                     {.score_scale = scale});
    REQUIRE(ensemble.seeds() == 3);
    CHECK(ensemble.times == std::vector<double>{0, 10, 20});
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK((ensemble.mean(r) - descent.states[r]).cwiseAbs().maxCoeff() < 1e-13);
      CHECK(ensemble.states[r][1] == ensemble.states[r][0]);
    }
    CHECK(ensemble.states[0][2] == start);
    const auto statistics = ensemble.statistics(2, [&](const Eigen::VectorXd& theta) { return flow.loss(theta); });
    CHECK_THAT(statistics.mean, WithinRel(flow.loss(descent.x), 1e-12));
    CHECK(statistics.deviation < 1e-15);
  };
  check(caco_parameters<double>(shape, rates), block_dataset(task), 1);
  check(cafo_parameters<double>(shape, 2, rates), block_dataset(task), 1);
  check(faco_parameters<double>(shape, 3, rates), block_dataset(task), 0.5);
  check(fafo_parameters<double>(shape, 4, {.qk = 2.5, .ov = 0.7, .bias = 0.1}, true), block_dataset(task), 1);
  const Dataset<double> topics = TopicTask{.length = 12}.dataset<double>(3, 40);
  check(fafo_parameters<double>(topics.shape(), 6, rates), topics, TopicTask::score_scale());
}

TEST_CASE("the same bits for any number of threads, other bits for other seeds", "[ensemble]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4, rates);
  const Eigen::VectorXd start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  EnsembleOptions options{.step = 0.5, .steps = 30, .batch = 4, .seeds = 7, .save_steps = {10, 30}, .threads = 1};
  const Ensemble one = sgd_ensemble(parameters, block_dataset(task), start, options);
  options.threads = 3;
  const Ensemble three = sgd_ensemble(parameters, block_dataset(task), start, options);
  CHECK(one.states == three.states);
  CHECK(one.failed.empty());
  CHECK(one.states[1][0] != one.states[1][1]);
  options.first_seed = 2;
  options.seeds = 5;
  const Ensemble later = sgd_ensemble(parameters, block_dataset(task), start, options);
  CHECK(later.states[1][0] == one.states[1][2]);
  options.order = BatchOrder::epochs;
  CHECK(sgd_ensemble(parameters, block_dataset(task), start, options).states[1][0] != later.states[1][0]);
}

TEST_CASE("runs that diverge are named, and left out; cancelled runs are missing", "[ensemble]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4, rates);
  const Eigen::VectorXd start = balanced_random_start(parameters, 1, 0.5);
  const Ensemble wild = sgd_ensemble(parameters, block_dataset(task), start,
                                     {.step = 150, .steps = 60, .batch = 2, .seeds = 4, .first_seed = 10});
  CHECK_FALSE(wild.failed.empty());
  CHECK(wild.failed.front() >= 10);
  CHECK(wild.seeds() + wild.failed.size() == 4);
  std::atomic<bool> flag{true};
  const Ensemble none = sgd_ensemble(parameters, block_dataset(task), start,
                                     {.step = 0.1, .steps = 5, .batch = 2, .seeds = 4, .cancel = &flag});
  CHECK(none.cancelled);
  CHECK(none.seeds() == 0);
}

TEST_CASE("ensembles that would not mean anything are refused", "[ensemble]") {
  const auto parameters = caco_parameters<double>(BlockLayout::of(task).shape());
  const Dataset<double> data = block_dataset(task);
  const Eigen::VectorXd start = zero_start(parameters);
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, start, {.steps = 1}), Contains("sgd_ensemble: step = 0"));
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, start, {.step = 1, .seeds = 0}), Contains("seeds = 0"));
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, start, {.step = 1, .batch = 0}), Contains("batch = 0"));
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, start, {.step = 1, .steps = 2, .save_steps = {3}}),
                    Contains("save_steps[0] = 3"));
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, start, {.step = 1, .steps = 2, .save_steps = {1, 1}}),
                    Contains("save_steps[1] = 1"));
  CHECK_THROWS_WITH(sgd_ensemble(parameters, data, Eigen::VectorXd::Zero(3), {.step = 1}),
                    Contains("size of theta = 3"));
  DatasetBuilder<double> builder(data.shape());
  builder.add({0, 0, {{0, 1, true}}, 1, 1}).add({1, 0, {{0, 1, true}}, 1, 2});
  const Dataset<double> weighted = std::move(builder).build();
  CHECK_THROWS_WITH(sgd_ensemble(parameters, weighted, start, {.step = 1, .batch = 1}),
                    Contains("weight of sequence 1 = 2"));
  CHECK_NOTHROW(sgd_ensemble(parameters, weighted, start, {.step = 1, .steps = 1, .order = BatchOrder::full}));
}
