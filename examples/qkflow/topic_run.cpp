// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

#include "topic_run.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <utility>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"

namespace qkflow_program {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw qkflow::IoError("cannot create the folder '" + folder.string() + "': " + error.message());
}

TopicRun topic_run(const PublishedSettings& settings, std::uint64_t seed, bool pytorch) {
  TopicRun run;
  run.name = fmt::format("seed_{}{}", seed, pytorch ? "" : "_own");
  // Any data seed will do; this one keeps data and weights of our own initialization apart.
  run.task = {.length = settings.length, .seed = seed + 1'000'003};
  const int inner = run.task.vocabulary();
  run.shape = run.task.shape(settings.parameterization.at(0) == 'F' ? inner : 0,
                             settings.parameterization.at(2) == 'F' ? inner : 0);
  auto& training = run.training;
  training.steps = settings.steps_per_epoch * settings.epochs;
  training.record_every = 100 * settings.steps_per_epoch;
  training.head.score_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(inner)));
  training.rates.qk = {settings.rate_qk, {}};
  if (settings.rate_qk_end != 1) {
    training.rates.qk.schedule = {.kind = qkflow::Schedule::Kind::linear, .end = settings.rate_qk_end};
  }
  training.rates.ov = {settings.rate_ov, {}};
  if (settings.early_stop) training.early_stop = {0.001, settings.steps_per_epoch, 100};
  const auto start = [](char kind) {
    return kind == 'I' ? qkflow::MatrixStart{qkflow::StartKind::identity, 1e-6} : qkflow::MatrixStart{};
  };
  run.start = {
      .qk = start(settings.start_qk), .ov = start(settings.start_ov), .bias = {}, .pytorch = pytorch, .seed = seed};
  return run;
}

namespace {

// What a checkpoint has to agree on beside the training options.
std::string identity(const TopicRun& run) {
  const auto start = [](const qkflow::MatrixStart& how) {
    return fmt::format("{} {}", static_cast<int>(how.kind), qkflow::to_text(how.size));
  };
  const auto& task = run.task;
  return fmt::format("topic task {} {} {} length {} batch {}{} seed {}; start {} {} {}{} seed {}", task.classes,
                     task.common, task.distinct, task.length, task.batch, task.balanced ? " balanced" : "", task.seed,
                     start(run.start.qk), start(run.start.ov), start(run.start.bias),
                     run.start.pytorch ? " pytorch" : "", run.start.seed);
}

}  // namespace

std::vector<TopicRunResult> run_all(const std::vector<TopicRun>& runs, int threads, const std::filesystem::path& folder,
                                    const std::string& label) {
  using Clock = std::chrono::steady_clock;
  using Sampler = qkflow::TopicSampler<float>;
  if (!folder.empty()) make_folder(folder);
  std::uint64_t total = 0;
  for (const TopicRun& run : runs) total += run.training.steps;
  qkflow::Progress progress(label, static_cast<double>(total));
  std::mutex showing;
  std::atomic<std::uint64_t> done{0};
  std::vector<TopicRunResult> results(runs.size());
  qkflow::ThreadPool pool(threads);
  pool.for_each(runs.size(), [&](std::size_t i, std::size_t) {
    const TopicRun& run = runs[i];
    qkflow::TrainingOptions<float> options = run.training;
    options.cancel = &qkflow::interrupt_flag();
    options.identity = identity(run);
    std::uint64_t shown = 0;
    options.hooks.push_back({500, [&](const qkflow::TrainingView<float>& view) {
                               done += view.step() - shown;
                               shown = view.step();
                               if (showing.try_lock()) {
                                 progress.update(static_cast<double>(done.load()));
                                 showing.unlock();
                               }
                             }});
    if (!folder.empty()) options.checkpoint = folder / (run.name + ".checkpoint");
    const qkflow::OneHotLayout<float> layout(run.shape);
    qkflow::Trainer<float, Sampler> trainer(layout, options, Sampler(run.task),
                                            qkflow::initial_weights(layout, run.start));
    if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint)) trainer.resume();
    const auto start = Clock::now();
    results[i].training = trainer.run();
    results[i].seconds = std::chrono::duration<double>(Clock::now() - start).count();
    done += options.steps - shown;  // of a run that stopped early, too
    if (results[i].training.status == qkflow::TrainingStatus::cancelled) return;
    qkflow::OneHotKernel<float> kernel(
        layout,
        {options.head.score_scale, options.head.attention == qkflow::AttentionMode::fixed, options.head.fixed_alpha});
    Sampler fresh(run.task);
    results[i].evaluation =
        qkflow::evaluate(kernel, trainer.theta(), fresh, qkflow::evaluation_step, run.evaluation_batches);
  });
  if (qkflow::interrupted()) {
    throw qkflow::Interrupted(folder.empty() ? std::string("interrupted")
                                             : "interrupted; the same command takes up the runs in " + folder.string());
  }
  return results;
}

}  // namespace qkflow_program
