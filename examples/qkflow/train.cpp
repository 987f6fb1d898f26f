// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow train: discrete training on the topic task or the block task, loss as CSV.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"
#include "qkflow/report/table.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/evaluation.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/topic_sampler.hpp"
#include "qkflow/train/trainer.hpp"

namespace qkflow_program {

namespace {

struct TrainCommand {
  std::string task = "topic", parameterization = "CACO", scalar = "float";
  int length = 64, batch = 32, steps = 10000, seed = 1, seeds = 1, record = 100, threads = 0;
  std::string order = "full";
  qkflow::BlockTask<double> block{.classes = 20, .block = 50, .informative = 5, .noise = 50};
  std::optional<double> score_scale{}, fixed_attention{};
  std::string attention = "soft", init = "own", start_qk = "uniform", start_ov = "uniform";
  double start_size = 1;
  bool bias = false;
  std::string optimizer = "sgd", schedule = "constant";
  double eta_qk = 0.01, eta_ov = 0.01, schedule_end = 1, schedule_factor = 0.5;
  int schedule_every = 1000, warm_up = 0;
  double momentum = 0.9, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, clip = 0;
  double stop_loss = 0;
  int stop_every = 100, stop_restart = 1;
  std::string csv = "-", heat_map, checkpoint;
  int checkpoint_every = 100000;
};

template <class T>
qkflow::TrainingOptions<T> training_options(const TrainCommand& c, int vocabulary) {
  using Kind = qkflow::OptimizerOptions::Kind;
  const auto count = [](const char* name, int value, int least) {
    if (value < least) qkflow::throw_invalid("options", name, value, "be at least " + qkflow::to_text(least));
    return static_cast<std::uint64_t>(value);
  };
  qkflow::TrainingOptions<T> options;
  options.steps = count("steps", c.steps, 0);
  options.record_every = count("record", c.record, 1);
  options.checkpoint_every = count("checkpoint-every", c.checkpoint_every, 1);
  const std::array<const char*, 3> modes{"soft", "hard", "marginal"};
  for (std::size_t i = 0; i < modes.size(); ++i) {
    constexpr std::array<qkflow::AttentionMode, 3> values{qkflow::AttentionMode::soft, qkflow::AttentionMode::hard,
                                                          qkflow::AttentionMode::marginal};
    if (c.attention == modes[i]) options.head.attention = values[i];
  }
  options.head.score_scale = static_cast<T>(
      c.score_scale.value_or(c.task == "topic" ? 1 / std::sqrt(static_cast<double>(vocabulary)) : c.block.score_scale));
  if (c.fixed_attention) {
    options.head.attention = qkflow::AttentionMode::fixed;
    options.head.fixed_alpha = static_cast<T>(*c.fixed_attention);
  }
  const std::array<const char*, 5> optimizers{"sgd", "momentum", "nesterov", "adam", "adamw"};
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    if (c.optimizer == optimizers[i]) options.optimizer.kind = static_cast<Kind>(i);
  }
  options.optimizer.momentum = c.momentum;
  options.optimizer.beta1 = c.beta1;
  options.optimizer.beta2 = c.beta2;
  options.optimizer.epsilon = c.epsilon;
  options.optimizer.weight_decay = c.weight_decay;
  options.optimizer.clip_norm = c.clip;
  // The schedule is the attention circuit's: the ratio of the rates is what matters. Warm-up is for both.
  qkflow::Schedule schedule;
  const std::array<const char*, 4> schedules{"constant", "linear", "step", "cosine"};
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    if (c.schedule == schedules[i]) schedule.kind = static_cast<qkflow::Schedule::Kind>(i);
  }
  schedule.end = c.schedule_end;
  schedule.factor = c.schedule_factor;
  schedule.every = count("schedule-every", c.schedule_every, 1);
  schedule.warm_up = count("warm-up", c.warm_up, 0);
  options.rates.qk = {c.eta_qk, schedule};
  options.rates.ov = {c.eta_ov, {.warm_up = schedule.warm_up}};
  options.early_stop = {c.stop_loss, count("stop-every", c.stop_every, 1), count("stop-restart", c.stop_restart, 1)};
  options.cancel = &qkflow::interrupt_flag();
  return options;
}

qkflow::InitialWeights start_of(const TrainCommand& c, std::uint64_t seed) {
  const auto kind = [&](const std::string& name) {
    const std::array<const char*, 4> names{"zero", "identity", "uniform", "normal"};
    const auto at = std::find(names.begin(), names.end(), name) - names.begin();
    const auto which = static_cast<qkflow::StartKind>(at);
    // The published identity start is 1e-6 times the identity; --start-size multiplies it.
    return qkflow::MatrixStart{which, which == qkflow::StartKind::identity ? 1e-6 * c.start_size : c.start_size};
  };
  return {.qk = kind(c.start_qk), .ov = kind(c.start_ov), .bias = {}, .pytorch = c.init == "pytorch", .seed = seed};
}

struct SeedResult {
  std::uint64_t seed = 0;
  qkflow::TrainingResult training;
  qkflow::Evaluation evaluation;
};

template <class T, class MakeSource>
std::vector<SeedResult> train_all(const TrainCommand& c, const qkflow::OneHotShape& shape,
                                  const MakeSource& make_source) {
  const qkflow::TrainingOptions<T> common = training_options<T>(c, static_cast<int>(shape.tokens));
  const auto seeds = static_cast<std::size_t>(c.seeds);
  std::vector<SeedResult> results(seeds);
  qkflow::Progress progress("train", static_cast<double>(common.steps * seeds));
  std::mutex showing;
  std::atomic<std::uint64_t> done{0};
  // One seed: threads may help within a batch. Several: one each.
  qkflow::ThreadPool pool(seeds > 1 ? c.threads : 1);
  pool.for_each(seeds, [&](std::size_t i, std::size_t) {
    const std::uint64_t seed = static_cast<std::uint64_t>(c.seed) + i;
    qkflow::TrainingOptions<T> options = common;
    if (seeds == 1) options.threads = c.threads;
    auto source = make_source(seed);
    using Source = decltype(source);
    options.identity =
        fmt::format("task {} {} {} {} {} {} {} {} {} {} seed {}; start {} {} {} {}", c.task, c.length, c.batch, c.order,
                    c.block.classes, c.block.block, c.block.informative, c.block.noise, c.block.noise_vocabulary,
                    c.block.score_scale, seed, c.init, c.start_qk, c.start_ov, c.start_size);
    if (!c.checkpoint.empty()) {
      options.checkpoint = seeds == 1 ? c.checkpoint : fmt::format("{}.{}", c.checkpoint, seed);
    }
    std::uint64_t shown = 0;
    options.hooks.push_back({500, [&](const qkflow::TrainingView<T>& view) {
                               done += view.step() - shown;
                               shown = view.step();
                               if (showing.try_lock()) {
                                 progress.update(static_cast<double>(done.load()));
                                 showing.unlock();
                               }
                             }});
    const qkflow::OneHotLayout<T> layout(shape);
    qkflow::Trainer<T, Source> trainer(layout, options, source, qkflow::initial_weights(layout, start_of(c, seed)));
    if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint)) trainer.resume();
    results[i].seed = seed;
    results[i].training = trainer.run();
    const bool evaluable =
        options.head.attention == qkflow::AttentionMode::soft || options.head.attention == qkflow::AttentionMode::fixed;
    if (!evaluable || qkflow::interrupted()) return;
    qkflow::OneHotKernel<T> kernel(
        layout,
        {options.head.score_scale, options.head.attention == qkflow::AttentionMode::fixed, options.head.fixed_alpha});
    const bool full = c.task == "block" && c.order == "full";
    const std::uint64_t batches = full ? 1 : 6400 / static_cast<std::uint64_t>(std::max(1, c.batch)) + 1;
    results[i].evaluation = qkflow::evaluate(kernel, trainer.theta(), source, qkflow::evaluation_step, batches);
  });
  progress.finish();
  return results;
}

template <class T>
std::vector<SeedResult> train_task(const TrainCommand& c) {
  const bool factor_qk = c.parameterization.at(0) == 'F', factor_ov = c.parameterization.at(2) == 'F';
  if (c.task == "topic") {
    qkflow::TopicSamplerOptions task{.length = c.length, .batch = c.batch};
    const int inner = task.vocabulary();
    task.validate("options");
    return train_all<T>(c, task.shape(factor_qk ? inner : 0, factor_ov ? inner : 0, c.bias), [&](std::uint64_t seed) {
      auto with_seed = task;
      with_seed.seed = seed + 1'000'003;
      return qkflow::TopicSampler<T>(with_seed);
    });
  }
  const qkflow::Dataset<T> data = qkflow::block_dataset(c.block).template cast<T>();
  qkflow::DatasetSamplerOptions sampling{.batch = static_cast<std::size_t>(std::max(0, c.batch))};
  const std::array<const char*, 3> orders{"full", "epochs", "replacement"};
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (c.order == orders[i]) sampling.order = static_cast<qkflow::BatchOrder>(i);
  }
  const auto shape = data.shape();
  const std::int64_t inner_qk = std::min(shape.queries, shape.tokens), inner_ov = std::min(shape.classes, shape.tokens);
  const qkflow::OneHotShape head{
      shape.queries, shape.tokens, shape.classes, factor_qk ? inner_qk : 0, factor_ov ? inner_ov : 0, c.bias};
  return train_all<T>(c, head, [&](std::uint64_t seed) {
    auto with_seed = sampling;
    with_seed.seed = seed + 1'000'003;
    return qkflow::DatasetSampler<T>(data, with_seed);
  });
}

void run(const TrainCommand& c) {
  if (c.seeds < 1) qkflow::throw_invalid("options", "seeds", c.seeds, "be at least 1");
  if (c.seed < 0) qkflow::throw_invalid("options", "seed", c.seed, "be at least 0");
  if (c.threads < 0) qkflow::throw_invalid("options", "threads", c.threads, "be at least 0");
  if (c.fixed_attention && c.attention != "soft") {
    throw qkflow::InvalidArgument("--fixed-attention and --attention " + c.attention + " exclude each other");
  }
  qkflow::AtomicFile file(c.csv);  // before the work: a file that cannot be written is better known now
  const std::vector<SeedResult> results = c.scalar == "double" ? train_task<double>(c) : train_task<float>(c);

  qkflow::CsvWriter csv(file, {"seed", "step", "loss"});
  for (const SeedResult& result : results) {
    for (const qkflow::LossRecord& record : result.training.records) csv.row(result.seed, record.step, record.loss);
  }
  file.commit();
  if (!c.heat_map.empty()) {
    qkflow::AtomicFile map(c.heat_map);
    qkflow::CsvWriter rows(map, {"seed", "probability_low", "attention_low", "percent"});
    for (const SeedResult& result : results) {
      for (std::size_t p = 0; p < 5; ++p) {
        for (std::size_t a = 0; a < 5; ++a) {
          rows.row(result.seed, 0.2 * static_cast<double>(p), 0.2 * static_cast<double>(a),
                   100 * result.evaluation.heat_map[p][a]);
        }
      }
    }
    map.commit();
  }
  std::string diverged;
  for (const SeedResult& result : results) {
    fmt::print(stderr, "seed {}: {}", result.seed, result.training.message);
    if (result.evaluation.sequences > 0) {
      fmt::print(stderr, "; on {} fresh sequences: loss {:.6g}, accuracy {:.4f}, relevant attention {:.4f}",
                 result.evaluation.sequences, result.evaluation.loss, result.evaluation.accuracy,
                 result.evaluation.relevant_attention);
    }
    fmt::print(stderr, "\n");
    if (result.training.status == qkflow::TrainingStatus::diverged && diverged.empty()) {
      diverged = fmt::format("seed {} {}", result.seed, result.training.message);
    }
  }
  if (qkflow::interrupted()) {
    throw qkflow::Interrupted(c.checkpoint.empty() ? "interrupted; with --checkpoint a run can be taken up again"
                                                   : "interrupted; the same command takes it up again");
  }
  if (!diverged.empty()) throw std::runtime_error(diverged);
}

}  // namespace

void add_train(CLI::App& app) {
  const auto c = std::make_shared<TrainCommand>();
  CLI::App* sub = app.add_subcommand("train", "Train a head step by step: SGD and friends, loss as CSV");
  const auto in = [](const char* group, CLI::Option* option) { option->group(group); };
  const char* const task = "Task";
  in(task, add_choice(*sub, "--task", c->task, {"topic", "block"},
                      "topic: fresh sequences of the published experiments; block: the theory's dataset"));
  in(task, add_count(*sub, "--length", c->length, "L", "topic: L - 2 context tokens, query, label"));
  in(task, add_count(*sub, "--batch", c->batch, "B", "sequences a step"));
  in(task, add_choice(*sub, "--order", c->order, {"full", "epochs", "replacement"},
                      "block: all sequences every step, or batches by epochs or drawn"));
  in(task, add_number(*sub, "--classes", c->block.classes, "M", "block: classes"));
  in(task, add_number(*sub, "--block", c->block.block, "b", "block: informative tokens, and queries, of a class"));
  in(task, add_number(*sub, "--informative", c->block.informative, "m", "block: informative tokens in a sequence"));
  in(task, add_number(*sub, "--noise", c->block.noise, "n", "block: noise tokens in a sequence"));
  in(task, add_number(*sub, "--noise-vocabulary", c->block.noise_vocabulary, "N", "block: one-hot noise tokens"));
  const char* const head = "Head";
  in(head, add_choice(*sub, "--parameterization", c->parameterization, {"CACO", "CAFO", "FACO", "FAFO"},
                      "C: one matrix, F: a product of two; A: attention (QK), O: output (OV)"));
  in(head,
     add_choice(*sub, "--attention", c->attention, {"soft", "hard", "marginal"}, "how attention enters the loss"));
  in(head, add_number(*sub, "--fixed-attention", c->fixed_attention, "alpha",
                      "hold attention at this mass on relevant tokens; only the output circuit learns"));
  in(head, add_number(*sub, "--score-scale", c->score_scale, "s",
                      "factor on the scores (default: topic 1/sqrt(50), block 1)"));
  sub->add_flag("--bias", c->bias, "a bias of the logits")->group(head);
  in(head, add_choice(*sub, "--scalar", c->scalar, {"float", "double"}, "precision"));
  const char* const start = "Start";
  in(start, add_choice(*sub, "--init", c->init, {"own", "pytorch"},
                       "own random numbers, or the weights of torch.nn.Linear after the same seed"));
  in(start, add_choice(*sub, "--start-qk", c->start_qk, {"zero", "identity", "uniform", "normal"},
                       "attention circuit; identity: times 1e-6, uniform: on +-1/sqrt(fan-in)"));
  in(start, add_choice(*sub, "--start-ov", c->start_ov, {"zero", "identity", "uniform", "normal"}, "output circuit"));
  in(start, add_number(*sub, "--start-size", c->start_size, "x", "factor on the starts"));
  in(start, add_count(*sub, "--seed", c->seed, "N", "first seed"));
  in(start, add_count(*sub, "--seeds", c->seeds, "N", "number of seeds, run side by side"));
  const char* const steps = "Steps";
  in(steps, add_count(*sub, "--steps", c->steps, "K", "steps"));
  in(steps, add_number(*sub, "--eta-qk", c->eta_qk, "eta_QK", "learning rate of the attention circuit"));
  in(steps, add_number(*sub, "--eta-ov", c->eta_ov, "eta_OV", "learning rate of the output circuit"));
  in(steps, add_choice(*sub, "--schedule", c->schedule, {"constant", "linear", "step", "cosine"},
                       "of the attention circuit's rate"));
  in(steps, add_number(*sub, "--schedule-end", c->schedule_end, "x", "linear, cosine: factor at the last step"));
  in(steps, add_number(*sub, "--schedule-factor", c->schedule_factor, "x", "step: factor each time"));
  in(steps, add_count(*sub, "--schedule-every", c->schedule_every, "K", "step: steps from time to time"));
  in(steps, add_count(*sub, "--warm-up", c->warm_up, "K", "steps in which both rates rise from 0"));
  in(steps, add_choice(*sub, "--optimizer", c->optimizer, {"sgd", "momentum", "nesterov", "adam", "adamw"}, "method"));
  in(steps, add_number(*sub, "--momentum", c->momentum, "mu", "of momentum and nesterov"));
  in(steps, add_number(*sub, "--beta1", c->beta1, "b", "of adam and adamw"));
  in(steps, add_number(*sub, "--beta2", c->beta2, "b", "of adam and adamw"));
  in(steps, add_number(*sub, "--epsilon", c->epsilon, "eps", "of adam and adamw"));
  in(steps, add_number(*sub, "--weight-decay", c->weight_decay, "x", "weight decay"));
  in(steps, add_number(*sub, "--clip", c->clip, "x", "largest norm of the gradient; 0: any"));
  const char* const stop = "Early stop";
  in(stop, add_number(*sub, "--stop-loss", c->stop_loss, "L", "stop when the mean loss falls to L; 0: never"));
  in(stop, add_count(*sub, "--stop-every", c->stop_every, "K", "steps the mean is over"));
  in(stop, add_count(*sub, "--stop-restart", c->stop_restart, "N",
                     "published rule: losses are added up over N times K steps, and divided by K"));
  const char* const output = "Output";
  CLI::Option* csv = sub->add_option("--csv", c->csv, "loss series; -: standard output")->type_name("FILE");
  csv->capture_default_str()->group(output);
  in(output, add_count(*sub, "--record", c->record, "K", "steps a row is the mean of"));
  sub->add_option("--heat-map", c->heat_map, "CSV of relevant attention against probability of the label")
      ->type_name("FILE")
      ->group(output);
  sub->add_option("--checkpoint", c->checkpoint, "save to this file, and resume from it if it is there")
      ->type_name("FILE")
      ->group(output);
  in(output, add_count(*sub, "--checkpoint-every", c->checkpoint_every, "K", "steps from save to save"));
  in(output, add_count(*sub, "--threads", c->threads, "N", "0: one a core. Never changes results"));
  sub->footer(R"(Example: a head whose attention learns five times as fast, from PyTorch's weights of seed 1234.

  $ qkflow train --eta-qk 0.05 --length 128 --init pytorch --seed 1234 --steps 50000 --record 10000

The rows are mean losses; a line on standard error says how training ended and what the head does on fresh sequences.)");
  sub->callback([c] { run(*c); });
}

}  // namespace qkflow_program
