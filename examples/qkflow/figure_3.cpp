// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow figure 3: attention held at mass alpha on the distinct tokens of the topic task, only the output circuit
// learns [Vashisht26]: the loss, and what a little more attention would gain, along training.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "published.hpp"
#include "qkflow/flow/fixed_attention.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"
#include "qkflow/report/table.hpp"
#include "topic_run.hpp"

namespace qkflow_program {

namespace {

constexpr std::uint64_t steps_per_epoch = 250;
constexpr double delta = 0.005;  // of the marginal benefit, as published
constexpr double rate = 0.01;

struct Figure3Command {
  std::string out = "out";
  std::vector<std::string> only;
  int seeds = 1;
  int evaluation_batches = 1000;
  int threads = 0;
  bool quick = false;
};

struct FixedRun {
  bool factorized;
  double alpha;
  std::uint64_t seed, epochs;
  int evaluation_batches;

  std::string name() const {
    return fmt::format("{}_{:g}_seed_{}_epochs_{}_batches_{}", factorized ? "factorized" : "collapsed", alpha, seed,
                       epochs, evaluation_batches);
  }
};

struct FixedRow {
  double epoch, loss, more_loss, training_loss;
  double benefit() const { return (loss - more_loss) / delta; }
};

qkflow::TopicSamplerOptions task_of(const FixedRun& run) {
  return {.length = 64, .batch = 128, .balanced = true, .seed = run.seed + 1'000'003};
}

/// Trains one head, and after every epoch estimates the loss at alpha and at alpha + delta on the same fresh batches.
std::vector<FixedRow> train(const FixedRun& run, const std::function<void(std::uint64_t)>& progress) {
  using Sampler = qkflow::TopicSampler<float>;
  const qkflow::TopicSamplerOptions task = task_of(run);
  const qkflow::OneHotLayout<float> layout(task.shape(0, run.factorized ? task.vocabulary() : 0, !run.factorized));
  qkflow::TrainingOptions<float> options;
  options.steps = run.epochs * steps_per_epoch;
  options.head = {.attention = qkflow::AttentionMode::fixed, .fixed_alpha = static_cast<float>(run.alpha)};
  options.rates.ov.value = rate;
  options.rates.qk.value = 0;
  options.record_every = steps_per_epoch;
  options.cancel = &qkflow::interrupt_flag();
  std::vector<FixedRow> rows;
  qkflow::OneHotKernel<float> kernel(layout, {});
  Sampler fresh(task);
  qkflow::OneHotBatch<float> batch;
  options.hooks.push_back({steps_per_epoch, [&](const qkflow::TrainingView<float>& view) {
                             if (view.step() == 0) return;
                             const std::uint64_t epoch = view.step() / steps_per_epoch;
                             const auto batches = static_cast<std::uint64_t>(run.evaluation_batches);
                             double loss = 0, more = 0;
                             for (std::uint64_t i = 0; i < batches; ++i) {
                               fresh(qkflow::evaluation_step + epoch * batches + i, batch);
                               kernel.set_attention({1, true, static_cast<float>(run.alpha)});
                               loss += kernel.loss(batch, view.theta().data());
                               kernel.set_attention({1, true, static_cast<float>(run.alpha + delta)});
                               more += kernel.loss(batch, view.theta().data());
                             }
                             const auto count = static_cast<double>(batches);
                             rows.push_back({static_cast<double>(epoch), loss / count, more / count, 0});
                             progress(view.step());
                           }});
  qkflow::InitialWeights start{.pytorch = true, .seed = run.seed};
  // A head whose attention is given has no attention layer to draw.
  start.qk = {qkflow::StartKind::zero};
  std::vector<float> theta = qkflow::initial_weights(layout, start);
  qkflow::Trainer<float, Sampler> trainer(layout, options, Sampler(task), std::move(theta));
  const qkflow::TrainingResult result = trainer.run();
  if (result.status == qkflow::TrainingStatus::cancelled) return {};
  for (std::size_t i = 0; i < rows.size() && i < result.records.size(); ++i) {
    rows[i].training_loss = result.records[i].loss;
  }
  return rows;
}

void write_rows(const std::filesystem::path& path, const std::vector<FixedRow>& rows) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"epoch", "loss", "more_loss", "training_loss"});
  for (const FixedRow& row : rows) csv.row(row.epoch, row.loss, row.more_loss, row.training_loss);
  file.commit();
}

std::vector<FixedRow> read_rows(const std::filesystem::path& path) {
  const qkflow::CsvTable table = qkflow::CsvTable::read(path);
  std::vector<FixedRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    rows.push_back({table.number(i, "epoch"), table.number(i, "loss"), table.number(i, "more_loss"),
                    table.number(i, "training_loss")});
  }
  return rows;
}

/// The block task's closed form with the topic task's numbers: four labels compete once the others have died out, and
/// 1/b, the overlap of two sequences' attention, is the sum of the squared probabilities of the distinct tokens.
qkflow::FixedAttention<double> closed_form(double alpha) {
  const qkflow::TopicSamplerOptions task;
  double sum = 0, squares = 0;
  for (int j = 1; j <= task.distinct; ++j) {
    sum += j;
    squares += double(j) * j;
  }
  return qkflow::FixedAttention<double>(
      {.classes = double(task.classes), .block = sum * sum / squares, .alpha = alpha, .learning_rate = rate});
}

struct Curves {
  FixedRun run;
  std::vector<FixedRow> rows;
  double seconds = 0;
};

void write_all(const std::filesystem::path& path, const std::vector<Curves>& all) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"factorized", "alpha", "seed", "epoch", "loss", "loss_at_more_attention",
                               "marginal_benefit", "training_loss", "closed_form_loss", "closed_form_benefit"});
  for (const Curves& curves : all) {
    for (const FixedRow& row : curves.rows) {
      double loss = std::nan(""), benefit = std::nan("");
      if (!curves.run.factorized) {
        const auto form = closed_form(curves.run.alpha);
        const double t = row.epoch * static_cast<double>(steps_per_epoch), z = form.logit_gap(t);
        loss = form.loss(t);
        benefit = z / curves.run.alpha * 3 / (std::exp(z) + 3);
      }
      csv.row(curves.run.factorized ? 1 : 0, curves.run.alpha, curves.run.seed, row.epoch, row.loss, row.more_loss,
              row.benefit(), row.training_loss, loss, benefit);
    }
  }
  file.commit();
}

std::string final_table(const std::vector<Curves>& all) {
  using Align = qkflow::Table::Align;
  qkflow::Table table({{"output", Align::left},
                       {"alpha"},
                       {"seed"},
                       {"final loss"},
                       {"published"},
                       {"difference"},
                       {"closed form"},
                       {"benefit: highest"},
                       {"at epoch"},
                       {"last"},
                       {"seconds"}});
  for (const Curves& curves : all) {
    if (curves.rows.empty()) continue;
    const FixedRun& run = curves.run;
    double published = std::nan("");
    for (const PublishedFixedAttention& each : published_fixed_attention) {
      if (std::abs(each.alpha - run.alpha) < 1e-9) published = run.factorized ? each.factorized : each.collapsed;
    }
    const FixedRow& last = curves.rows.back();
    const auto highest =
        std::max_element(curves.rows.begin(), curves.rows.end(),
                         [](const FixedRow& a, const FixedRow& b) { return a.benefit() < b.benefit(); });
    const bool whole = run.epochs == 500;
    const double t = last.epoch * static_cast<double>(steps_per_epoch);
    table.row({run.factorized ? "factorized" : "collapsed", fmt::format("{:g}", run.alpha), fmt::format("{}", run.seed),
               fmt::format("{:.6g}", last.loss), whole ? fmt::format("{:.6g}", published) : "",
               whole ? fmt::format("{:+.2f} %", 100 * (last.loss / published - 1)) : "",
               run.factorized ? "" : fmt::format("{:.4g}", closed_form(run.alpha).loss(t)),
               fmt::format("{:.3f}", highest->benefit()), fmt::format("{:.0f}", highest->epoch),
               fmt::format("{:.3f}", last.benefit()),
               curves.seconds > 0 ? fmt::format("{:.1f}", curves.seconds) : "kept"});
  }
  return table.text();
}

qkflow::Figure figure_of(const Figure3Command& command, const std::string& data, std::uint64_t epochs,
                         const std::vector<bool>& kinds, const std::vector<double>& alphas) {
  qkflow::Figure figure{.name = "figure3",
                        .description = "Attention held at alpha: marginal benefit of attention, and loss",
                        .columns = 2,
                        .width_cm = 13,
                        .panel_height_cm = 4.4,
                        .note = "lines: trained, symbols: closed form of the block task (collapsed output only)"};
  const qkflow::Axis epoch{.label = "epoch", .low = 0, .high = 1.03 * static_cast<double>(epochs)};
  char letter = 'a';
  for (const bool benefit : {true, false}) {
    for (const bool factorized : kinds) {
      qkflow::Panel panel{
          .title = fmt::format("({}) {}, {} output", letter++, benefit ? "marginal benefit" : "loss [nats]",
                               factorized ? "factorized" : "collapsed"),
          .x = epoch,
          .y = benefit ? qkflow::Axis{.label = "-d{/:Italic L}/d{/:Italic α}", .low = 0, .high = 3.5, .step = 1}
                       : qkflow::Axis{.logarithmic = true, .low = 3e-4, .high = 4}};
      for (std::size_t i = 0; i < alphas.size(); ++i) {
        qkflow::Curve curve{.data = data,
                            .x = "epoch",
                            .y = benefit ? "marginal_benefit" : "loss",
                            .where = fmt::format("column(\"factorized\") == {} && {} && column(\"seed\") == 1234",
                                                 factorized ? 1 : 0, qkflow::where_equal("alpha", alphas[i])),
                            .title = fmt::format("{{/:Italic α}}&{{i}}= {:g}", alphas[i]),
                            .style = i};
        panel.curves.push_back(curve);
        if (factorized) continue;
        curve.y = benefit ? "closed_form_benefit" : "closed_form_loss";
        curve.mark = qkflow::Curve::Mark::points;
        curve.every = command.quick ? 3 : 37;
        panel.curves.push_back(curve);
      }
      figure.panels.push_back(panel);
    }
  }
  return figure;
}

void run(const Figure3Command& command) {
  for (const std::string& name : command.only) {
    if (name != "collapsed" && name != "factorized") {
      throw qkflow::InvalidArgument("--only = " + name + ", but it must be one of collapsed, factorized");
    }
  }
  if (command.seeds < 1) qkflow::throw_invalid("options", "seeds", command.seeds, "be at least 1");
  if (command.threads < 0) qkflow::throw_invalid("options", "threads", command.threads, "be at least 0");
  if (command.evaluation_batches < 1) {
    qkflow::throw_invalid("options", "evaluation-batches", command.evaluation_batches, "be at least 1");
  }
  const std::filesystem::path out = command.out, folder = out / "figure3_runs";
  make_folder(folder);
  const std::vector<double> alphas{0.2, 0.4, 0.6, 0.8, 1.0};
  const std::uint64_t epochs = command.quick ? 20 : 500;
  std::vector<bool> kinds;
  for (const bool factorized : {false, true}) {
    const std::string name = factorized ? "factorized" : "collapsed";
    if (command.only.empty() || std::find(command.only.begin(), command.only.end(), name) != command.only.end()) {
      kinds.push_back(factorized);
    }
  }
  std::vector<Curves> all;
  for (const bool factorized : kinds) {
    for (const double alpha : alphas) {
      for (int i = 0; i < command.seeds; ++i) {
        const int batches = command.quick ? std::min(command.evaluation_batches, 50) : command.evaluation_batches;
        all.push_back({{factorized, alpha, 1234 + static_cast<std::uint64_t>(i), epochs, batches}, {}, 0});
      }
    }
  }
  qkflow::Progress progress("figure 3", static_cast<double>(all.size() * epochs * steps_per_epoch));
  std::mutex showing;
  std::atomic<std::uint64_t> done{0};
  qkflow::ThreadPool pool(command.threads);
  pool.for_each(all.size(), [&](std::size_t i, std::size_t) {
    Curves& curves = all[i];
    const std::filesystem::path kept = folder / (curves.run.name() + ".csv");
    if (std::filesystem::exists(kept)) {
      curves.rows = read_rows(kept);
      done += epochs * steps_per_epoch;
      return;
    }
    if (qkflow::interrupted()) return;
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t shown = 0;
    curves.rows = train(curves.run, [&](std::uint64_t step) {
      done += step - shown;
      shown = step;
      if (showing.try_lock()) {
        progress.update(static_cast<double>(done.load()));
        showing.unlock();
      }
    });
    curves.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!curves.rows.empty()) write_rows(kept, curves.rows);
  });
  progress.finish();
  if (qkflow::interrupted()) {
    throw qkflow::Interrupted("interrupted; the same command keeps the finished runs in " + folder.string());
  }
  fmt::print("Attention held at alpha, only the output circuit learns; losses on {} fresh batches of 128:\n\n{}\n",
             all.front().run.evaluation_batches, final_table(all));
  std::fflush(stdout);
  write_all(out / "figure3.csv", all);
  const qkflow::FigureFiles files = qkflow::draw_figure(figure_of(command, "figure3.csv", epochs, kinds, alphas), out);
  fmt::print("curves: {} {} (script {}, data {})\n", files.svg.string(), files.png.string(), files.script.string(),
             (out / "figure3.csv").string());
}

}  // namespace

void add_figure_3(CLI::App& figure) {
  const auto command = std::make_shared<Figure3Command>();
  CLI::App* sub = figure.add_subcommand("3", "Attention held fixed: loss, and what more attention would gain");
  sub->add_option("--out", command->out, "folder of data, scripts and pictures, made if need be")
      ->type_name("FOLDER")
      ->capture_default_str();
  sub->add_option("--only", command->only, "collapsed or factorized output circuit (default: both)")->type_name("NAME");
  add_count(*sub, "--seeds", command->seeds, "N", "seeds 1234, 1235, ... of each run; the first is drawn");
  add_count(*sub, "--evaluation-batches", command->evaluation_batches, "N",
            "fresh batches of 128 an epoch is judged on");
  sub->add_flag("--quick", command->quick, "20 epochs on 50 batches each: to see that it works");
  add_count(*sub, "--threads", command->threads, "N", "runs at a time; 0: one a core. Never changes results");
  sub->footer(R"(Example: both output circuits at five attention masses, in about a minute.

  $ qkflow figure 3 --out out

Finished runs are kept in out/figure3_runs and not done again.)");
  sub->callback([command] { run(*command); });
}

}  // namespace qkflow_program
