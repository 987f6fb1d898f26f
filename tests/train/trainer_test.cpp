// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/trainer.hpp"

#include <atomic>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/model/head_parameters.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"
#include "support/temporary_folder.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::random_dataset;
using qkflow_test::read_text;
using qkflow_test::TemporaryFolder;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

using TopicTrainer = Trainer<float, TopicSampler<float>>;

TopicTrainer topic_trainer(const TrainingOptions<float>& options, std::int64_t inner = 0, std::uint64_t seed = 1) {
  const TopicSamplerOptions topic{.length = 20, .batch = 8, .seed = seed};
  const OneHotLayout<float> layout(topic.shape(inner, inner));
  return {layout, options, TopicSampler<float>(topic), initial_weights(layout, {.seed = seed})};
}

TrainingOptions<float> topic_options(std::uint64_t steps) {
  TrainingOptions<float> options{.steps = steps, .head = {.score_scale = 0.14F}, .record_every = 10};
  options.rates.qk.value = 0.5;
  options.rates.ov.value = 0.2;
  return options;
}

}  // namespace

TEST_CASE("Plain descent on a full dataset is Euler's method on the model's flow", "[trainer]") {
  const Dataset<double> data = random_dataset({.shape = {3, 7, 5}, .sequences = 30, .longest = 6, .seed = 2});
  for (const std::int64_t inner : {0, 4}) {
    const OneHotLayout<double> layout(OneHotShape{3, 7, 5, inner, inner, false});
    const MatrixStart normal{StartKind::normal, 1};
    const std::vector<double> start = initial_weights(layout, {.qk = normal, .ov = normal});
    TrainingOptions<double> options{.steps = 50, .head = {.score_scale = 0.75}};
    options.rates.qk.value = 0.3;
    options.rates.ov.value = 0.1;
    Trainer<double, DatasetSampler<double>> trainer(layout, options, DatasetSampler<double>(data, {}), start);
    const TrainingResult result = trainer.run();
    CHECK(result.status == TrainingStatus::finished);

    // The same steps by the model's parameterizations and gradient.
    const auto euler = [&](const auto& parameters) {
      ColumnVector<double> theta(parameters.size());
      const auto copy = [&](const OneHotBlock& block, auto&& body) { body(parameters.block(block.name), block); };
      for (const OneHotBlock& each : layout.blocks()) {
        copy(each, [&](const auto& to, const OneHotBlock& from) { block_map(theta, to) = layout.matrix(start, from); });
      }
      CircuitGradient<double> gradient(data, options.head);
      Circuits<double> w(data.shape()), g(data.shape());
      ColumnVector<double> velocity;
      for (int k = 0; k < 50; ++k) {
        gradient(parameters.circuits(theta, w), g.map());
        parameters.pull_back(theta, g.view(), velocity);
        theta += velocity;
      }
      for (const OneHotBlock& each : layout.blocks()) {
        copy(each, [&](const auto& from, const OneHotBlock& to) {
          const DenseMatrix<double> expected = block_map(std::as_const(theta), from);
          INFO(layout.shape().parameterization() << " " << to.name);
          CHECK((layout.matrix(trainer.theta(), to) - expected).cwiseAbs().maxCoeff() <= tolerance<double>(Tol::state));
        });
      }
    };
    const CircuitRates<double> rates{.qk = 0.3, .ov = 0.1};
    if (inner == 0) {
      euler(caco_parameters<double>(data.shape(), rates));
    } else {
      euler(fafo_parameters<double>(data.shape(), inner, rates));
    }
  }
}

TEST_CASE("Every optimizer and parameterization lowers the loss, on fresh samples", "[trainer]") {
  using Kind = OptimizerOptions::Kind;
  for (const Kind kind : {Kind::sgd, Kind::momentum, Kind::nesterov, Kind::adam, Kind::adamw}) {
    for (const std::int64_t inner : {0, 50}) {
      TrainingOptions<float> options = topic_options(300);
      options.optimizer = {.kind = kind, .weight_decay = 1e-4, .clip_norm = 10};
      const bool adaptive = options.optimizer.is_adaptive();
      options.rates.qk.value = options.rates.ov.value = adaptive ? 0.01 : kind == Kind::sgd ? 0.5 : 0.05;
      const TrainingResult result = topic_trainer(options, inner).run();
      REQUIRE(result.records.size() == 30);
      INFO(static_cast<int>(kind) << " inner " << inner << ": " << result.message);
      CHECK(result.records.back().loss < 0.8 * result.records.front().loss);
    }
  }
}

TEST_CASE("Records are means of step losses; hooks see step and parameters", "[trainer]") {
  TrainingOptions<float> options = topic_options(25);
  std::vector<std::uint64_t> steps;
  std::vector<float> at_ten;
  options.hooks.push_back({5, [&](const TrainingView<float>& view) {
                             steps.push_back(view.step());
                             CHECK(std::isnan(view.loss()) == (view.step() == 0));
                             if (view.step() == 10) at_ten = view.theta();
                           }});
  TopicTrainer trainer = topic_trainer(options);
  const TrainingResult result = trainer.run();
  CHECK(steps == std::vector<std::uint64_t>{0, 5, 10, 15, 20, 25});
  TopicTrainer by_hand = topic_trainer(topic_options(25));
  double sum = 0;
  for (int k = 0; k < 10; ++k) sum += by_hand.advance();
  CHECK(by_hand.theta() == at_ten);
  REQUIRE(result.records.size() == 2);
  CHECK(result.records[0] == LossRecord{10, sum / 10});
  CHECK(result.records[1].step == 20);
  CHECK(result.message == "finished after 25 steps, loss " + to_text(result.loss));
}

TEST_CASE("Early stop: the mean of a window, or the published sum since a restart over one window", "[trainer]") {
  TrainingOptions<float> options = topic_options(2000);
  options.early_stop = {.loss = 2, .every = 20};
  const TrainingResult mean = topic_trainer(options).run();
  CHECK(mean.status == TrainingStatus::stopped);
  CHECK(mean.steps % 20 == 0);
  CHECK(mean.steps > 20);
  REQUIRE(mean.records.size() == mean.steps / 10);
  const auto window = [&](std::uint64_t end) {
    return (mean.records[end / 10 - 1].loss + mean.records[end / 10 - 2].loss) / 2;
  };
  CHECK(window(mean.steps) <= 2);
  CHECK(window(mean.steps - 20) > 2);

  // With a restart every 3 windows only the first window after one can be low enough, unless losses are tiny.
  options.early_stop.restart = 3;
  const TrainingResult sum = topic_trainer(options).run();
  CHECK(sum.status == TrainingStatus::stopped);
  CHECK(sum.steps % 60 == 20);
  CHECK(sum.steps >= mean.steps);
}

TEST_CASE("A run that was interrupted and resumed is the run that was not, bit by bit", "[trainer]") {
  using Kind = OptimizerOptions::Kind;
  for (const Kind kind : {Kind::sgd, Kind::nesterov, Kind::adam}) {
    const TemporaryFolder folder;
    TrainingOptions<float> options = topic_options(100);
    options.optimizer.kind = kind;
    options.rates.qk.value = options.rates.ov.value = 0.02;
    options.rates.qk.schedule = {.kind = Schedule::Kind::cosine, .end = 0.1};
    options.early_stop = {.loss = 1e-9, .every = 15, .restart = 4};
    TopicTrainer whole = topic_trainer(options, 50);
    const TrainingResult expected = whole.run();

    options.checkpoint = folder / "run.checkpoint";
    options.checkpoint_every = 17;
    std::atomic<bool> cancel{false};
    options.cancel = &cancel;
    options.hooks.push_back({1, [&](const TrainingView<float>& view) { cancel = view.step() == 43; }});
    TopicTrainer first = topic_trainer(options, 50);
    const TrainingResult cancelled = first.run();
    CHECK(cancelled.status == TrainingStatus::cancelled);
    CHECK(cancelled.steps == 43);
    CHECK(cancelled.checkpoint_step == 43);
    options.hooks.clear();
    cancel = false;
    {
      TopicTrainer second = topic_trainer(options, 50);
      second.resume();
      CHECK(second.step() == 43);
      const TrainingResult resumed = second.run();
      CHECK(resumed.status == TrainingStatus::finished);
      CHECK(resumed.records == expected.records);
      CHECK(second.theta() == whole.theta());
    }
    // Killed at step 60, that is, left without a word: the file holds step 51.
    TopicTrainer killed = topic_trainer(options, 50);
    for (int k = 0; k < 60; ++k) killed.advance();
    TopicTrainer third = topic_trainer(options, 50);
    third.resume();
    CHECK(third.step() == 51);
    CHECK(third.run().records == expected.records);
    CHECK(third.theta() == whole.theta());
    // A finished run resumed is finished.
    TopicTrainer fourth = topic_trainer(options, 50);
    fourth.resume();
    CHECK(fourth.step() == 100);
    CHECK(fourth.run().records == expected.records);
  }
}

TEST_CASE("A checkpoint of another run, or a damaged one, leaves the trainer as it was", "[trainer]") {
  const TemporaryFolder folder;
  TrainingOptions<float> options = topic_options(20);
  options.checkpoint = folder / "run.checkpoint";
  options.identity = "seed 1";
  topic_trainer(options).run();

  const auto refuses = [&](const TrainingOptions<float>& other, std::int64_t inner, const std::string& why) {
    TopicTrainer trainer = topic_trainer(other, inner);
    const std::vector<float> theta = trainer.theta();
    CHECK_THROWS_WITH(trainer.resume(), Contains(why));
    CHECK(trainer.step() == 0);
    CHECK(trainer.theta() == theta);
  };
  TrainingOptions<float> other = options;
  other.identity = "seed 2";
  refuses(other, 0, "another run");
  other = options;
  other.rates.ov.value = 0.3;
  refuses(other, 0, "another run");
  refuses(options, 50, "another run");
  const std::string whole = read_text(options.checkpoint);
  write_file(options.checkpoint, whole.substr(0, whole.size() / 2));
  refuses(options, 0, "damaged");
  std::filesystem::remove(options.checkpoint);
  refuses(options, 0, "cannot read");
}

TEST_CASE("Divergence ends the run with the step and the last good checkpoint", "[trainer]") {
  const TemporaryFolder folder;
  TrainingOptions<float> options = topic_options(1000);
  options.rates.ov.schedule = {.kind = Schedule::Kind::user,
                               .callable = [](std::uint64_t k, std::uint64_t) { return k < 25 ? 1.0 : 1e9; }};
  const TrainingResult bare = topic_trainer(options).run();
  CHECK(bare.status == TrainingStatus::diverged);
  CHECK(bare.steps >= 26);
  CHECK(bare.steps <= 28);
  CHECK_THAT(bare.message, Contains("diverged after") && Contains("no checkpoint"));

  options.checkpoint = folder / "run.checkpoint";
  options.checkpoint_every = 10;
  const TrainingResult saved = topic_trainer(options).run();
  CHECK(saved.status == TrainingStatus::diverged);
  CHECK(saved.steps == bare.steps);
  CHECK(saved.checkpoint_step == 20);
  CHECK_THAT(saved.message, Contains("last good checkpoint: step 20 in " + options.checkpoint.string()));
  TopicTrainer back = topic_trainer(options);
  back.resume();
  CHECK(back.step() == 20);

  // Not a number from the start.
  const TopicSamplerOptions topic{.length = 20, .batch = 8};
  const OneHotLayout<float> layout(topic.shape());
  std::vector<float> start(layout.size(), std::nanf(""));
  TopicTrainer nan(layout, topic_options(10), TopicSampler<float>(topic), start);
  CHECK(nan.run().status == TrainingStatus::diverged);
  CHECK(nan.step() == 0);
}

TEST_CASE("Threads change no bit of a run on large batches", "[trainer]") {
  const Dataset<double> data =
      block_dataset(BlockTask<double>{.classes = 5, .block = 12, .informative = 3, .noise = 4});
  const auto run = [&](int threads) {
    TrainingOptions<double> options{.steps = 20, .threads = threads};
    options.rates.qk.value = options.rates.ov.value = 5;
    DatasetSampler<double> source(data, {.order = BatchOrder::epochs, .batch = 600, .seed = 3});
    const OneHotLayout<double> layout(source.shape());
    Trainer<double, DatasetSampler<double>> trainer(layout, options, source, initial_weights(layout, {}));
    trainer.run();
    return trainer.theta();
  };
  CHECK(run(1) == run(3));
}

TEST_CASE("A trainer refuses options that make no sense", "[trainer]") {
  TrainingOptions<float> options = topic_options(10);
  options.record_every = 0;
  CHECK_THROWS_WITH(topic_trainer(options), Contains("record_every = 0"));
  options = topic_options(10);
  options.early_stop.restart = 0;
  CHECK_THROWS_WITH(topic_trainer(options), Contains("early_stop.restart = 0"));
  options = topic_options(10);
  const TopicSamplerOptions topic{};
  const OneHotLayout<float> layout(topic.shape());
  using Sampler = TopicSampler<float>;
  CHECK_THROWS_WITH(TopicTrainer(layout, options, Sampler(topic), std::vector<float>(3)),
                    Contains("size of the start"));
}
