// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/batch_study.hpp"

#include <Eigen/Core>
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

Eigen::VectorXd vector(std::initializer_list<double> values) {
  return Eigen::Map<const Eigen::VectorXd>(values.begin(), static_cast<Eigen::Index>(values.size()));
}
}  // namespace

TEST_CASE("distance of a mean, and its systematic part, by hand", "[batch_study]") {
  // d = (1, 1), (3, 1), (2, -1) from the reference: mean (2, 1/3), sum over pairs d_i . d_j = (4 + 1 + 5) 2 = 20.
  const MeanDistance m = mean_distance({vector({2, 1}), vector({4, 1}), vector({3, -1})}, vector({1, 0}));
  CHECK(m.seeds == 3);
  CHECK_THAT(m.distance, WithinRel(std::sqrt(4 + 1.0 / 9), 1e-14));
  CHECK_THAT(m.spread, WithinRel(std::sqrt((1 + 1 + 0 + (4.0 / 9) * 2 + 16.0 / 9) / 2), 1e-14));
  CHECK_THAT(m.chance, WithinRel(m.spread / std::sqrt(3.0), 1e-14));
  CHECK_THAT(m.systematic_square, WithinRel(20.0 / 6, 1e-14));
  CHECK_THAT(m.systematic_square, WithinRel(m.distance * m.distance - m.chance * m.chance, 1e-14));
  // Leaving one out: pairs (2, 3): 5, (1, 3): 1, (1, 2): 4; jackknife (2/3) sum of squares about their mean.
  const double mean = 10.0 / 3;
  const double squares = (5 - mean) * (5 - mean) + (1 - mean) * (1 - mean) + (4 - mean) * (4 - mean);
  CHECK_THAT(m.systematic_square_error, WithinRel(std::sqrt(2.0 / 3 * squares), 1e-13));
  CHECK_THROWS_WITH(mean_distance({vector({1}), vector({2})}, vector({0})), Contains("number of states = 2"));
  CHECK_THROWS_WITH(mean_distance({vector({1}), vector({2}), vector({1, 2})}, vector({0})),
                    Contains("size of a state"));
}

TEST_CASE("the systematic part is unbiased, its error honest, where the raw distance is not", "[batch_study]") {
  RandomStream random(3);
  const Eigen::Index size = 40;
  for (const double offset : {0.0, 0.05}) {
    double systematic = 0, raw = 0, variance = 0, stated = 0;
    const int trials = 400;
    for (int i = 0; i < trials; ++i) {
      std::vector<Eigen::VectorXd> states(20, Eigen::VectorXd(size));
      for (auto& state : states) {
        for (double& x : state) x = offset + random.normal();
      }
      const MeanDistance m = mean_distance(states, Eigen::VectorXd::Zero(size));
      const double error = m.systematic_square - offset * offset * size;
      systematic += error / trials;
      variance += error * error / trials;
      stated += m.systematic_square_error * m.systematic_square_error / trials;
      raw += m.distance * m.distance / trials;
    }
    INFO("offset " << offset);
    CHECK(std::abs(systematic) < 4 * std::sqrt(variance / trials));
    CHECK_THAT(raw, WithinAbs(offset * offset * size + size / 20.0, 0.15));
    // The jackknife counts the part that is pure chance twice: never too small, at most sqrt(2) too large.
    CHECK(std::sqrt(stated / variance) > 0.9);
    CHECK(std::sqrt(stated / variance) < 1.6);
  }
}

TEST_CASE("the mean of SGD approaches gradient descent as 1/B, its spread as 1/sqrt(B)", "[batch_study]") {
  const auto parameters = caco_parameters<double>(BlockLayout::of(task).shape(), {.qk = 2.5, .ov = 0.7});
  const Dataset<double> data = block_dataset(task);
  MatrixFlow flow(parameters, data);
  const Eigen::VectorXd start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  const auto study = [&](double h, const std::vector<std::size_t>& batches) {
    const auto steps = static_cast<std::size_t>(std::lround(64 / h));
    const auto descent = descend(flow, start, {.step = h, .steps = steps});
    const auto exact = solve(flow, start, {.t_end = 64, .rtol = 1e-11}, {}, Fehlberg78{});
    return batch_study(parameters, data, start, descent.x, exact.x, batches,
                       {.step = h, .steps = steps, .seeds = 3000, .threads = 2});
  };
  const BatchStudy one = study(1, {1, 2, 4});
  REQUIRE(one.rows.size() == 3);
  for (const auto& row : one.rows) CHECK(row.to_descent.resolved(3));
  CHECK_THAT(one.spread.slope, WithinAbs(0.5, 0.08));
  CHECK_THAT(one.systematic.slope, WithinAbs(1.0, 0.2));
  // Towards the flow only gradient descent's own distance remains.
  CHECK(one.descent_to_flow > 0.01);
  CHECK(one.rows[2].to_flow.systematic() < one.rows[0].to_flow.systematic());
  CHECK(one.rows[2].to_flow.systematic() > one.descent_to_flow * 0.5);
  // Twice the step over the same time: twice the systematic part.
  const BatchStudy two = study(2, {1});
  CHECK_THAT(two.rows[0].to_descent.systematic() / one.rows[0].to_descent.systematic(), WithinAbs(2.0, 0.35));
}

TEST_CASE("on a topic dataset the mean approaches the flow as the batch grows", "[batch_study]") {
  const Dataset<double> data = TopicTask{.length = 12}.dataset<double>(1, 64);
  const HeadOptions<double> head{.score_scale = TopicTask::score_scale()};
  const auto parameters = caco_parameters<double>(data.shape(), {.qk = 10, .ov = 1});
  MatrixFlow flow(parameters, data, head);
  const Eigen::VectorXd start = zero_start(parameters);
  const auto descent = descend(flow, start, {.step = 0.5, .steps = 60});
  const auto exact = solve(flow, start, {.t_end = 30, .rtol = 1e-9});
  const BatchStudy study = batch_study(parameters, data, start, descent.x, exact.x, {2, 8, 32},
                                       {.step = 0.5, .steps = 60, .seeds = 60, .threads = 2}, head);
  REQUIRE(study.rows.size() == 3);
  CHECK_THAT(study.spread.slope, WithinAbs(0.5, 0.1));
  for (std::size_t i = 1; i < 3; ++i) {
    CHECK(study.rows[i].to_flow.distance < study.rows[i - 1].to_flow.distance);
    CHECK(study.rows[i].to_descent.distance < study.rows[i - 1].to_descent.distance);
  }
  CHECK(study.rows[2].to_flow.distance < 2 * study.descent_to_flow + 3 * study.rows[2].to_flow.chance);
}

TEST_CASE("batches whose runs diverge are named; too few seeds are refused", "[batch_study]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4, {.qk = 2.5, .ov = 0.7});
  const Dataset<double> data = block_dataset(task);
  const Eigen::VectorXd start = balanced_random_start(parameters, 1, 0.5);
  const BatchStudy study =
      batch_study(parameters, data, start, start, start, {2}, {.step = 150, .steps = 60, .seeds = 3});
  CHECK(study.rows.empty());
  CHECK(study.diverged == std::vector<std::size_t>{2});
  CHECK_THROWS_WITH(batch_study(parameters, data, start, start, start, {2}, {.step = 1, .seeds = 2}),
                    Contains("batch_study: seeds = 2"));
}
