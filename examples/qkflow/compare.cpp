// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare: how well does the flow predict training? Tables, data, figures, and one report.

#include "compare.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "topic_run.hpp"

namespace qkflow_program {

namespace {

using StudyMaker = Study (*)(const CompareOptions&);
constexpr std::pair<const char*, StudyMaker> all_studies[] = {
    {"trajectories", trajectories_study}, {"orders", orders_study},       {"ratios", ratios_study},
    {"batches", batches_study},           {"stability", stability_study}, {"optimizers", optimizers_study}};

void check(const CompareOptions& options) {
  const auto at_least = [](const char* name, int value, int least) {
    if (value >= least) return;
    throw qkflow::InvalidArgument(fmt::format("--{} = {}, but it must be at least {}", name, value, least));
  };
  const auto refuse = [](const std::string& option, const std::string& value, const std::string& must) {
    throw qkflow::InvalidArgument(option + " = " + value + ", but it must " + must);
  };
  at_least("seeds", options.seeds, 3);
  at_least("seed", options.seed, 0);
  at_least("threads", options.threads, 0);
  at_least("steps", options.steps, 0);
  at_least("length", options.length, 3);
  at_least("sequences", options.sequences, 1);
  for (const double ratio : options.ratios) {
    if (!(ratio > 0) || !std::isfinite(ratio)) refuse("--ratios", qkflow::to_text(ratio), "be finite and above 0");
  }
  for (std::size_t i = 0; i < options.step_sizes.size(); ++i) {
    const double h = options.step_sizes[i];
    if (!(h > 0) || !std::isfinite(h)) refuse("--step-sizes", qkflow::to_text(h), "be finite and above 0");
    if (i > 0 && !(h < options.step_sizes[i - 1]))
      refuse("--step-sizes", qkflow::to_text(h), "be below the one before");
  }
  for (const double batch : options.batches) {
    if (!(batch >= 1 && batch <= 1 << 20) || std::floor(batch) != batch) {
      refuse("--batches", qkflow::to_text(batch), "be a whole number from 1 to 2^20");
    }
  }
  if (!(options.loss > 0) || !(options.loss < std::log(options.task.classes))) {
    refuse("--loss", qkflow::to_text(options.loss), "be above 0 and below the loss at the start, log(classes)");
  }
  if (!(options.start > 0) || !std::isfinite(options.start)) {
    refuse("--start", qkflow::to_text(options.start), "be finite and above 0");
  }
  options.task.validate("block task");
  const auto layout = qkflow::BlockLayout::of(options.task, "block task");
  if (layout.noise_vocabulary > 0) {
    refuse("--noise-vocabulary", qkflow::to_text(options.task.noise_vocabulary),
           "be left out: the comparison needs the task in which everything is closed form");
  }
}

void head_of_report(qkflow::HtmlReport& report, const CompareOptions& options) {
  report.lead(
      "How well does a differential equation predict the training of a self-attention head? Gradient flow of its "
      "query-key "
      "and output-value circuits, in closed form, beside training step by step: gradient descent, stochastic "
      "gradients, "
      "momentum and Adam.");
  report.section("about", "What is compared, and how to run it again");
  report.facts(
      {{"program", fmt::format("qkflow {}", qkflow::version_text)},
       {"command", "`" + options.command + "`"},
       {"block task",
        fmt::format("*M* = {} classes, *b* = {} informative and as many query tokens a class; a sequence has "
                    "*m* = {} informative and *n* = {} noise tokens",
                    options.task.classes, options.task.block, options.task.informative, options.task.noise)},
       {"dataset of it", fmt::format("{} sequences, whose mean gradient is that of the task",
                                     options.task.classes * options.task.block * options.task.block)},
       {"heads", fmt::format("{} (C: one matrix, F: a product of two; A: attention, O: output)",
                             fmt::join(options.parameterizations, ", "))},
       {"ratios *r* = *η*_{QK} / *η*_{OV}", fmt::format("{}, with *η*_{{OV}} = 1", fmt::join(options.ratios, ", "))},
       {"start", fmt::format("collapsed circuits at 0; factorized ones balanced on the line, *μ* = {}", options.start)},
       {"end", options.steps > 0 ? fmt::format("{} steps of the largest size", options.steps)
                                 : fmt::format("where the flow has a loss of {} nats", options.loss)},
       {"topic task",
        fmt::format("{} sequences of length {}, drawn with seed {}", options.sequences, options.length, options.seed)},
       {"seeds of stochastic runs",
        fmt::format("{} runs, seeds {} to {}", options.seeds, options.seed, options.seed + options.seeds - 1)},
       {"batch sizes", fmt::format("{}", fmt::join(options.batches, ", "))}});
  report.paragraph(
      "The same command gives the same numbers to the last bit, whatever the number of threads. Finished parts are "
      "kept "
      "in `compare_work`: an interrupted command goes on where it was, and a changed option computes anew only what "
      "depends on it. Every figure is also there as SVG, PNG and gnuplot script, every number as CSV.");
  report.code(options.command);
}

void run(CompareOptions options) {
  if (options.quick) {
    options.seeds = std::min(options.seeds, 6);
    if (options.batches.size() > 3) options.batches.resize(3);
  }
  check(options);
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path out = options.out;
  make_folder(out);
  make_folder(out / "compare_work");

  std::vector<Study> studies;
  std::vector<Piece> pieces;
  for (const auto& [name, make] : all_studies) {
    if (!options.only.empty() && std::find(options.only.begin(), options.only.end(), name) == options.only.end())
      continue;
    studies.push_back(make(options));
    pieces.insert(pieces.end(), studies.back().pieces.begin(), studies.back().pieces.end());
  }
  const Pieces tables = make_pieces(pieces, out / "compare_work", options.threads);

  qkflow::HtmlReport report("Flow against training");
  head_of_report(report, options);
  Presentation presentation(options, tables, pieces, report);
  for (const Study& study : studies) {
    qkflow::throw_if_interrupted();
    report.section(study.name, study.title);
    study.present(presentation);
  }
  report.summary(presentation.findings());
  report.section("files", "Files");
  std::vector<std::string> links;
  for (const std::string& file : presentation.files()) {
    if (file.ends_with(".csv")) links.push_back(fmt::format("[{0}]({0})", file));
  }
  report.list(links);
  report.write(out / "report.html");

  fmt::print("{}", presentation.terminal());
  fmt::print("report: {}\ndata and figures: {} ({} files)\n", (out / "report.html").string(), out.string(),
             presentation.files().size());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(stderr, "{}\n", qkflow::duration_text(seconds));
  if (!presentation.failure().empty()) throw qkflow::IoError(presentation.failure());
}

// "0.1,1,10" or "0.1 1 10": the values of a list option.
std::vector<std::string> split(const CLI::results_t& results) {
  std::vector<std::string> values;
  for (const std::string& result : results) {
    std::string value;
    for (const char letter : result + ",") {
      if (letter != ',') {
        value += letter;
      } else if (!value.empty()) {
        values.push_back(std::exchange(value, ""));
      }
    }
  }
  return values;
}

template <class Value, class Parse>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<Value>& values, const std::string& symbol,
                      const std::string& description, const std::string& shown, Parse parse) {
  CLI::Option* option = app.add_option(
      name,
      [name, &values, parse](const CLI::results_t& results) {
        values.clear();
        for (const std::string& text : split(results)) values.push_back(parse(name, text));
        if (values.empty()) throw qkflow::InvalidArgument(name + " must have at least one value");
        return true;
      },
      description);
  option->type_name(symbol)->expected(1, -1)->default_str(shown);
  return option;
}

std::string one_of(const std::string& option, const std::string& text, const std::vector<std::string>& choices) {
  for (const std::string& choice : choices) {
    if (CLI::detail::to_lower(choice) == CLI::detail::to_lower(text)) return choice;
  }
  throw qkflow::InvalidArgument(
      fmt::format("{} = {}, but it must be one of {}", option, text, fmt::join(choices, ", ")));
}

// The command as it could be typed again: only what was given.
std::string command_of(const CLI::App& app) {
  std::string command = "qkflow compare";
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_name() == "--help") continue;
    command += " " + option->get_name();
    if (option->get_name() == "--quick") continue;
    for (const std::string& value : option->results()) {
      const bool simple =
          value.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,_-/+") ==
          std::string::npos;
      command += simple ? " " + value : " '" + value + "'";
    }
  }
  return command;
}

}  // namespace

void add_compare(CLI::App& app) {
  const auto c = std::make_shared<CompareOptions>();
  CLI::App* sub = app.add_subcommand("compare", "Flow against training: tables, data, figures and one HTML report");
  const auto number = parse_number;
  const char* const what = "What is compared";
  std::vector<std::string> names;
  for (const auto& [name, make] : all_studies) names.emplace_back(name);
  add_list(*sub, "--parameterizations", c->parameterizations, "NAME,...", "heads", "CACO,CAFO,FACO,FAFO",
           [](const std::string& option, const std::string& text) {
             return one_of(option, text, {"CACO", "CAFO", "FACO", "FAFO"});
           })
      ->group(what);
  add_list(*sub, "--ratios", c->ratios, "r,...", "ratios eta_QK / eta_OV, with eta_OV = 1", "0.1,1,10", number)
      ->group(what);
  add_list(*sub, "--only", c->only, "NAME,...", fmt::format("some of {}", fmt::join(names, ", ")), "all",
           [names](const std::string& option, const std::string& text) { return one_of(option, text, names); })
      ->group(what);
  sub->add_flag("--quick", c->quick, "fewer points, seeds and batch sizes: a look in some seconds")->group(what);
  const char* const task = "Block task";
  add_number(*sub, "--classes", c->task.classes, "M", "classes")->group(task);
  add_number(*sub, "--block", c->task.block, "b", "informative tokens, and query tokens, of a class")->group(task);
  add_number(*sub, "--informative", c->task.informative, "m", "informative tokens in a sequence")->group(task);
  add_number(*sub, "--noise", c->task.noise, "n", "noise tokens in a sequence")->group(task);
  add_number(*sub, "--score-scale", c->task.score_scale, "s", "factor on the attention scores")->group(task);
  add_number(*sub, "--start", c->start, "mu", "where factorized circuits start (collapsed ones start at 0)")
      ->group(task);
  const char* const training = "Training";
  add_number(*sub, "--loss", c->loss, "L", "the flow is followed until it has this loss")->group(training);
  add_count(*sub, "--steps", c->steps, "K", "instead: for K of the largest steps")->group(training);
  add_list(*sub, "--step-sizes", c->step_sizes, "h,...", "of gradient descent, largest first",
           "powers of two from 1/32 of the largest stable step", number)
      ->group(training);
  const char* const topic = "Stochastic gradients";
  add_count(*sub, "--seed", c->seed, "S", "first seed, and that of the topic task's dataset")->group(topic);
  add_count(*sub, "--seeds", c->seeds, "N", "runs of an ensemble")->group(topic);
  add_list(*sub, "--batches", c->batches, "B,...", "batch sizes", "8,16,32,64,128", number)->group(topic);
  add_count(*sub, "--length", c->length, "L", "topic task: L - 2 context tokens, query, label")->group(topic);
  add_count(*sub, "--sequences", c->sequences, "N", "topic task: sequences of the dataset")->group(topic);
  sub->add_option("--out", c->out, "folder of report, data and figures, made if need be")
      ->type_name("FOLDER")
      ->capture_default_str();
  add_count(*sub, "--threads", c->threads, "T", "0: one a core; never changes a result");
  sub->footer(R"(Example: a first look in some seconds, then everything in about a minute.

  $ qkflow compare --quick --out look
  $ qkflow compare --out out

It prints the tables and writes out/report.html, a report in one file, beside its data (CSV) and figures (SVG, PNG,
gnuplot scripts). Interrupted and started again, it goes on with what is in out/compare_work.)");
  sub->callback([c, sub] {
    c->command = command_of(*sub);
    run(*c);
  });
}

}  // namespace qkflow_program
