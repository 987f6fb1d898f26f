// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// What a training step costs, in all and by parts, and how that grows. The published setting is CACO, batch 32, length
// 128 (FAFO: 64), 50 tokens, fresh data every step. The same step in PyTorch: benchmarks/peers/trainer_pytorch.py.
//
//   cmake -S . -B build/release -DCMAKE_BUILD_TYPE=Release -DQKFLOW_NATIVE=ON -DQKFLOW_BUILD_BENCHMARKS=ON
//   cmake --build build/release --target trainer_benchmark
//   build/release/benchmarks/trainer_benchmark --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "qkflow/kernel/simd.hpp"
#include "qkflow/kernel/vector_exp.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "qkflow/train/trainer.hpp"

namespace {

using Sampler = qkflow::TopicSampler<float>;
using Trainer = qkflow::Trainer<float, Sampler>;

struct Setting {
  int length = 128, batch = 32, classes = 4, distinct = 10;
  bool factorized = false;
  int threads = 1;

  qkflow::TopicSamplerOptions task() const {
    return {.classes = classes, .common = 10, .distinct = distinct, .length = length, .batch = batch, .seed = 7};
  }
  qkflow::OneHotLayout<float> layout() const {
    const int inner = factorized ? task().vocabulary() : 0;
    return qkflow::OneHotLayout<float>(task().shape(inner, inner));
  }
  qkflow::TrainingOptions<float> options() const {
    qkflow::TrainingOptions<float> options{.steps = std::uint64_t{1} << 40, .threads = threads};
    options.head.score_scale = 1 / std::sqrt(static_cast<float>(task().vocabulary()));
    options.rates.qk.value = 0.05;
    options.record_every = 1'000'000;
    return options;
  }
};

const Setting caco{};
const Setting fafo{.length = 64, .factorized = true};

void whole_step(benchmark::State& state, const Setting& setting) {
  const auto layout = setting.layout();
  Trainer trainer(layout, setting.options(), Sampler(setting.task()), qkflow::initial_weights(layout, {}));
  for (int i = 0; i < 100; ++i) trainer.advance();
  for (auto _ : state) benchmark::DoNotOptimize(trainer.advance());
  state.SetLabel(qkflow::simd::instruction_set());
}

void sampling(benchmark::State& state, const Setting& setting) {
  Sampler sampler(setting.task());
  qkflow::OneHotBatch<float> batch;
  std::uint64_t step = 0;
  for (auto _ : state) {
    sampler(step++, batch);
    benchmark::DoNotOptimize(batch.counts.data());
  }
}

void loss_and_gradient(benchmark::State& state, const Setting& setting, bool gradient) {
  Sampler sampler(setting.task());
  const auto layout = setting.layout();
  std::vector<qkflow::OneHotBatch<float>> batches(64);  // varied, so that no branch is learned by heart
  for (std::size_t i = 0; i < batches.size(); ++i) sampler(i, batches[i]);
  const std::vector<float> theta = qkflow::initial_weights(layout, {});
  std::vector<float> g(layout.size());
  qkflow::OneHotKernel<float> kernel(layout, {setting.options().head.score_scale});
  std::size_t at = 0;
  for (auto _ : state) {
    const auto& batch = batches[at++ % batches.size()];
    const double loss = gradient ? kernel(batch, theta.data(), g.data()) : kernel.loss(batch, theta.data());
    benchmark::DoNotOptimize(loss);
    benchmark::DoNotOptimize(g.data());
  }
}

// The exponentials of a step: one a token of each query, and one a class of each sequence (padded).
void exponentials(benchmark::State& state, const Setting& setting) {
  const auto layout = setting.layout();
  const auto count = static_cast<std::size_t>(4 * 32 + setting.batch * layout.v.stride);
  std::vector<float> x(count, -0.5F), y(count);
  for (auto _ : state) {
    qkflow::vector_exp(x.data(), y.data(), static_cast<Eigen::Index>(count));
    benchmark::DoNotOptimize(y.data());
  }
}

void update(benchmark::State& state, const Setting& setting) {
  const auto layout = setting.layout();
  std::vector<float> theta = qkflow::initial_weights(layout, {}), g(layout.size(), 1e-6F);
  qkflow::Optimizer<float> optimizer(layout, {}, setting.options().rates);
  for (auto _ : state) {
    optimizer(theta, g, 0, 1);
    benchmark::DoNotOptimize(theta.data());
  }
}

BENCHMARK_CAPTURE(whole_step, CACO_batch_32_length_128, caco);
BENCHMARK_CAPTURE(sampling, CACO, caco);
BENCHMARK_CAPTURE(loss_and_gradient, CACO_forward, caco, false);
BENCHMARK_CAPTURE(loss_and_gradient, CACO_both, caco, true);
BENCHMARK_CAPTURE(exponentials, CACO, caco);
BENCHMARK_CAPTURE(update, CACO, caco);
BENCHMARK_CAPTURE(whole_step, FAFO_batch_32_length_64, fafo);
BENCHMARK_CAPTURE(sampling, FAFO, fafo);
BENCHMARK_CAPTURE(loss_and_gradient, FAFO_forward, fafo, false);
BENCHMARK_CAPTURE(loss_and_gradient, FAFO_both, fafo, true);
BENCHMARK_CAPTURE(update, FAFO, fafo);

void by_length(benchmark::State& state) { whole_step(state, {.length = static_cast<int>(state.range(0))}); }
void by_batch(benchmark::State& state) { whole_step(state, {.batch = static_cast<int>(state.range(0))}); }
void by_distinct_tokens(benchmark::State& state) { whole_step(state, {.distinct = static_cast<int>(state.range(0))}); }
void by_classes(benchmark::State& state) { whole_step(state, {.classes = static_cast<int>(state.range(0))}); }
void by_threads(benchmark::State& state) {
  whole_step(state, {.batch = 8192, .threads = static_cast<int>(state.range(0))});
}
BENCHMARK(by_length)->RangeMultiplier(4)->Range(32, 2048);
BENCHMARK(by_batch)->RangeMultiplier(4)->Range(8, 2048);
BENCHMARK(by_distinct_tokens)->RangeMultiplier(2)->Range(5, 80);
BENCHMARK(by_classes)->RangeMultiplier(2)->Range(2, 32);
BENCHMARK(by_threads)->DenseRange(1, 2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
