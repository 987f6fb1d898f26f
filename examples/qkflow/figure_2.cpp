// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow figure 2: the published training experiments on the topic task [Vashisht26], rerun: loss series, heat maps of
// attention against certainty, and the claim behind them as a table: at one loss, attention rises with the ratio.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "published.hpp"
#include "qkflow/compare/ensemble.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "qkflow/report/table.hpp"
#include "topic_run.hpp"

namespace qkflow_program {

namespace {

constexpr std::uint64_t first_seed = 1234;

struct Experiment {
  std::string key;    ///< in files and for --only
  std::string title;  ///< in the figure
  PublishedSettings settings;
  int seeds;      ///< published
  int own_seeds;  ///< beside them, from our own initialization
};

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> all{
      {"FAFO", "FAFO", {"FAFO", 'D', 'I', 0.01, 0.01, 1, 64, 250, 2500, true}, 1, 0},
      {"FACO", "FACO", {"FACO", 'I', 'I', 0.01, 0.01, 1, 64, 250, 2500, true}, 1, 0},
      {"CAFO", "CAFO", {"CAFO", 'I', 'I', 0.01, 0.01, 1, 64, 200, 5000, true}, 5, 0},
      {"CACO", "CACO", {"CACO", 'D', 'D', 0.01, 0.01, 1, 64, 200, 2500, false}, 3, 0},
      {"FAFO_faster", "FAFO, faster QK", {"FAFO", 'I', 'I', 0.2, 0.01, 1, 64, 100, 1000, false}, 5, 0},
      {"FAFO_increasing", "FAFO, increasing", {"FAFO", 'I', 'I', 0.01, 0.01, 40, 64, 100, 2000, false}, 5, 0},
      {"CACO_faster", "CACO, faster QK", {"CACO", 'D', 'D', 0.05, 0.01, 1, 128, 100, 2000, false}, 5, 20},
      {"CACO_increasing", "CACO, increasing", {"CACO", 'D', 'D', 0.01, 0.01, 10, 128, 100, 2000, false}, 5, 20}};
  return all;
}

struct Figure2Command {
  std::string out = "out";
  std::vector<std::string> only;
  std::optional<int> seeds{};
  int threads = 0;
  bool quick = false;
  bool no_own = false;
};

/// An experiment with its runs: the published seeds first, then those of our own initialization.
struct Done {
  Experiment experiment;
  std::vector<std::uint64_t> seeds;
  std::vector<bool> pytorch;
  std::vector<TopicRunResult> runs;

  double epoch(const qkflow::LossRecord& record) const {
    return static_cast<double>(record.step) / static_cast<double>(experiment.settings.steps_per_epoch);
  }
};

std::span<const double> published_losses(std::string_view experiment, std::uint64_t seed) {
  for (const PublishedSeries& series : published_series) {
    if (series.experiment == experiment && first_seed + static_cast<std::uint64_t>(series.run) == seed) {
      return series.losses;
    }
  }
  return {};
}

const PublishedHeatMap* published_heat_map(std::string_view experiment) {
  for (const PublishedHeatMap& map : published_heat_maps) {
    if (map.experiment == experiment) return &map;
  }
  return nullptr;
}

bool wanted(const Figure2Command& command, const std::string& key) {
  return command.only.empty() || std::find(command.only.begin(), command.only.end(), key) != command.only.end();
}

/// Of no runs: no mean.
qkflow::SampleStatistics sample_of(const std::vector<double>& values) {
  return values.empty() ? qkflow::SampleStatistics{} : qkflow::sample_statistics(values);
}

/// Heat map over the runs of the published initialization, percent.
std::array<std::array<double, 5>, 5> mean_heat_map(const Done& done) {
  std::array<std::array<double, 5>, 5> mean{};
  double runs = 0;
  for (std::size_t i = 0; i < done.runs.size(); ++i) {
    if (!done.pytorch[i]) continue;
    runs += 1;
    for (std::size_t p = 0; p < 5; ++p) {
      for (std::size_t a = 0; a < 5; ++a) mean[p][a] += 100 * done.runs[i].evaluation.heat_map[p][a];
    }
  }
  for (auto& row : mean) {
    for (double& value : row) value /= std::max(1.0, runs);
  }
  return mean;
}

void write_losses(const std::filesystem::path& path, const std::vector<Done>& all) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"experiment", "number", "own", "seed", "run", "epoch", "loss", "published"});
  for (std::size_t number = 0; number < all.size(); ++number) {
    const Done& done = all[number];
    for (std::size_t i = 0; i < done.runs.size(); ++i) {
      const auto published =
          done.pytorch[i] ? published_losses(done.experiment.key, done.seeds[i]) : std::span<const double>{};
      const auto& records = done.runs[i].training.records;
      for (std::size_t k = 0; k < records.size(); ++k) {
        const double other = k < published.size() ? published[k] : std::numeric_limits<double>::quiet_NaN();
        csv.row(done.experiment.key, number, done.pytorch[i] ? 0 : 1, done.seeds[i], i, done.epoch(records[k]),
                records[k].loss, other);
      }
    }
  }
  file.commit();
}

void write_means(const std::filesystem::path& path, const std::vector<Done>& all) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"experiment", "number", "epoch", "seeds", "mean_loss", "deviation", "published_mean",
                               "published_deviation"});
  for (std::size_t number = 0; number < all.size(); ++number) {
    const Done& done = all[number];
    for (std::size_t k = 0;; ++k) {
      std::vector<double> own, published;
      double epoch = 0;
      for (std::size_t i = 0; i < done.runs.size(); ++i) {
        const auto& records = done.runs[i].training.records;
        if (!done.pytorch[i] && k < records.size()) {
          own.push_back(records[k].loss);
          epoch = done.epoch(records[k]);
        }
        const auto other = published_losses(done.experiment.key, done.seeds[i]);
        if (done.pytorch[i] && k < other.size()) published.push_back(other[k]);
      }
      if (own.empty()) break;
      const qkflow::SampleStatistics a = sample_of(own), b = sample_of(published);
      csv.row(done.experiment.key, number, epoch, own.size(), a.mean, a.deviation, b.mean, b.deviation);
    }
  }
  file.commit();
}

void write_heat_maps(const std::filesystem::path& path, const std::vector<Done>& all) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"experiment", "number", "probability_low", "attention_low", "percent", "published"});
  for (std::size_t number = 0; number < all.size(); ++number) {
    const auto map = mean_heat_map(all[number]);
    const PublishedHeatMap* published = published_heat_map(all[number].experiment.key);
    for (std::size_t p = 0; p < 5; ++p) {
      for (std::size_t a = 0; a < 5; ++a) {
        const double other = published == nullptr ? std::numeric_limits<double>::quiet_NaN()
                             : p == 4             ? published->percent[a]
                                                  : 0;
        csv.row(all[number].experiment.key, number, 0.2 * static_cast<double>(p), 0.2 * static_cast<double>(a),
                map[p][a], other);
      }
    }
  }
  file.commit();
}

std::string series_table(const std::vector<Done>& all) {
  using Align = qkflow::Table::Align;
  qkflow::Table table({{"experiment", Align::left},
                       {"seed"},
                       {"steps"},
                       {"end", Align::left},
                       {"seconds"},
                       {"last loss"},
                       {"entries"},
                       {"worst difference"},
                       {"outside"}});
  for (const Done& done : all) {
    for (std::size_t i = 0; i < done.runs.size(); ++i) {
      if (!done.pytorch[i]) continue;
      const TopicRunResult& run = done.runs[i];
      const auto published = published_losses(done.experiment.key, done.seeds[i]);
      const auto& records = run.training.records;
      double worst = 0;
      int outside = 0;
      const std::size_t entries = std::min(published.size(), records.size());
      for (std::size_t k = 0; k < entries; ++k) {
        const double difference = std::abs(records[k].loss - published[k]);
        worst = std::max(worst, difference);
        outside += difference > std::max(0.002, 0.01 * published[k]) ? 1 : 0;
      }
      table.row({done.experiment.key, fmt::format("{}", done.seeds[i]), fmt::format("{}", run.training.steps),
                 qkflow::to_text(run.training.status), fmt::format("{:.1f}", run.seconds),
                 records.empty() ? "" : fmt::format("{:.4f}", records.back().loss), fmt::format("{}", entries),
                 entries > 0 ? fmt::format("{:.4f}", worst) : "", entries > 0 ? fmt::format("{}", outside) : ""});
    }
  }
  return table.text();
}

std::string heat_table(const std::vector<Done>& all) {
  using Align = qkflow::Table::Align;
  qkflow::Table table({{"experiment", Align::left},
                       {"", Align::left},
                       {"0-.2"},
                       {".2-.4"},
                       {".4-.6"},
                       {".6-.8"},
                       {".8-1"},
                       {"below .8"},
                       {"accuracy"},
                       {"attention"}});
  for (const Done& done : all) {
    const auto map = mean_heat_map(done);
    double uncertain = 0, accuracy = 0, attention = 0, runs = 0;
    for (std::size_t p = 0; p < 4; ++p) {
      for (const double percent : map[p]) uncertain += percent;
    }
    for (std::size_t i = 0; i < done.runs.size(); ++i) {
      if (!done.pytorch[i]) continue;
      runs += 1;
      accuracy += done.runs[i].evaluation.accuracy;
      attention += done.runs[i].evaluation.relevant_attention;
    }
    std::vector<std::string> cells{done.experiment.key, "computed"};
    for (const double percent : map[4]) cells.push_back(fmt::format("{:.1f}", percent));
    cells.push_back(fmt::format("{:.1f}", uncertain));
    cells.push_back(fmt::format("{:.4f}", accuracy / runs));
    cells.push_back(fmt::format("{:.4f}", attention / runs));
    table.row(cells);
    if (const PublishedHeatMap* published = published_heat_map(done.experiment.key)) {
      cells = {"", "published"};
      for (const double percent : published->percent) cells.push_back(fmt::format("{:.1f}", percent));
      cells.insert(cells.end(), {"0.0", "1.000", ""});
      table.row(cells);
    }
  }
  return table.text();
}

std::string own_table(const std::vector<Done>& all) {
  using Align = qkflow::Table::Align;
  std::vector<qkflow::Table::Column> columns{{"experiment", Align::left}, {"", Align::left}};
  for (const int epoch : {100, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000})
    columns.push_back({fmt::format("{}", epoch)});
  qkflow::Table table(columns);
  for (const Done& done : all) {
    for (const bool own : {true, false}) {
      std::vector<std::string> cells{own ? done.experiment.key : "", own ? "" : "published"};
      std::size_t count = 0;
      for (const std::size_t k : {0, 1, 2, 3, 4, 5, 7, 9, 14, 19}) {
        std::vector<double> values;
        for (std::size_t i = 0; i < done.runs.size(); ++i) {
          if (own && !done.pytorch[i] && k < done.runs[i].training.records.size()) {
            values.push_back(done.runs[i].training.records[k].loss);
          }
          const auto series = published_losses(done.experiment.key, done.seeds[i]);
          if (!own && done.pytorch[i] && k < series.size()) values.push_back(series[k]);
        }
        count = std::max(count, values.size());
        const qkflow::SampleStatistics sample = sample_of(values);
        cells.push_back(values.empty() ? "" : fmt::format("{:.3f} ({:.3f})", sample.mean, sample.deviation));
      }
      if (own) cells[1] = fmt::format("own, {} seeds", count);
      if (own && count == 0) break;
      table.row(cells);
    }
  }
  return table.rows() == 0
             ? ""
             : "\nMean (deviation) of the loss by epoch, our own initialization beside the published seeds:\n\n" +
                   table.text();
}

// The heat maps, one panel an experiment: gnuplot's image style, which the figures of curves do not need.
std::string heat_map_script(const std::vector<Done>& all, const std::string& name, const std::string& data) {
  const std::size_t columns = std::min<std::size_t>(4, all.size()), rows = (all.size() + columns - 1) / columns;
  const double cell = 4.25, width = cell * static_cast<double>(columns) + 0.6,
               height = (cell + 0.15) * static_cast<double>(rows) + 0.5;
  std::string panels;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double left = (0.6 + cell * static_cast<double>(i % columns) + 0.55) / width;
    const double bottom = (height - 0.5 - (cell + 0.15) * static_cast<double>(i / columns) - cell + 0.95) / height;
    const bool published = published_heat_map(all[i].experiment.key) != nullptr;
    panels += fmt::format(
        "  set lmargin at screen {:.4f}; set rmargin at screen {:.4f}; set bmargin at screen {:.4f}; set tmargin at "
        "screen {:.4f}\n  set title {}\n  set ylabel \"{}\"\n  set xlabel \"{}\"\n"
        "  plot data using ($2 == {} ? $4 + 0.1 : NaN):($3 + 0.1):5 with image notitle, \\\n"
        "    data using ($2 == {} ? $4 + 0.1 : NaN):($3 + {}):(shown($5)):($5 > 50 ? white : black) with labels "
        "font \",\".small textcolor rgb variable notitle",
        left, left + (cell - 0.8) / width, bottom, bottom + (cell - 1.4) / height,
        qkflow::gnuplot_quoted(all[i].experiment.title), i % columns == 0 ? "probability of the label" : "",
        i / columns + 1 == rows ? "attention on distinct tokens" : "", i, i, published ? "0.125" : "0.1");
    if (published) {
      panels += fmt::format(
          ", \\\n    data using ($2 == {} && ($5 > 0.05 || $6 > 0.05) ? $4 + 0.1 : NaN):($3 + 0.055):(\"(\" . "
          "sprintf(\"%.1f\", $6) . \")\"):($5 > 50 ? white : black) with labels font \",\".small textcolor rgb "
          "variable notitle",
          i);
    }
    panels += i == 0 ? "\n  unset label 1\n" : "\n";
  }
  return fmt::format(
      R"(# Attention mass on distinct tokens against probability of the label, 6,400 fresh sequences a run, percent
# Made by qkflow. To draw it again, in this folder: gnuplot {name}.gp
width_cm = {width:g}
height_cm = {height:g}
font_points = 7
data = {data}
set encoding utf8
set datafile separator comma
set datafile missing NaN
black = 0x000000; white = 0xffffff
shown(x) = x < 0.05 ? "" : sprintf("%.1f", x)
do for [form in "svg png"] {{
  if (form eq "svg") {{
    small = "7"
    set terminal svg size width_cm*96/2.54, height_cm*96/2.54 fixed enhanced \
        font sprintf("DejaVu Sans,Verdana,sans-serif,%g", font_points*96/72.0) background "white"
  }} else {{
    small = "5.5"
    set terminal pngcairo size width_cm*300/2.54, height_cm*300/2.54 enhanced \
        font sprintf("DejaVu Sans,%g", font_points) fontscale 300/96.0 linewidth 300/96.0 background "white"
  }}
  set output "{name}." . form
  set multiplot
  set label 1 "percent of 6,400 fresh sequences a run; in brackets: published" at screen 0.5, screen 0.975 center
  set palette defined (0 "#ffffff", 1 "#d6e6f2", 50 "#5aa0cc", 100 "#0b3c66")
  set cbrange [0:100]; unset colorbox; unset key
  set xrange [0:1]; set yrange [0:1]
  set xtics 0.2 nomirror scale 0.5 offset 0,0.3; set ytics 0.2 nomirror scale 0.5 offset 0.5,0
  set border 15 linewidth 0.6
  set title offset 0,-0.6; set xlabel offset 0,0.8; set ylabel offset 1.2,0
{panels}  unset multiplot
  unset output
}}
)",
      fmt::arg("name", name), fmt::arg("width", width), fmt::arg("height", height),
      fmt::arg("data", qkflow::gnuplot_quoted(data)), fmt::arg("panels", panels));
}

void draw_script(const std::string& name, const std::string& script, const std::filesystem::path& out) {
  qkflow::write_file(out / (name + ".gp"), script);
  const std::filesystem::path gnuplot = qkflow::detail::find_program("gnuplot");
  if (gnuplot.empty()) {
    throw qkflow::IoError("gnuplot is not installed; data and script are kept: " + (out / (name + ".gp")).string());
  }
  const auto result = qkflow::detail::run_process({gnuplot.string(), name + ".gp"}, out);
  if (result.status != 0) throw qkflow::IoError("gnuplot failed: " + result.output);
  fmt::print("heat maps: {0}.svg {0}.png (script {0}.gp, data {0}.csv)\n", (out / name).string());
}

qkflow::Figure loss_figure(const std::vector<Done>& all, const std::string& data) {
  qkflow::Figure figure{.name = "figure2_loss",
                        .description = "Training loss of the published experiments, rerun with the published seeds",
                        .columns = all.size() > 1 ? 2U : 1U,
                        .width_cm = all.size() > 1 ? 13.0 : 6.5,
                        .legend = qkflow::Figure::Legend::above};
  for (std::size_t number = 0; number < all.size(); ++number) {
    const Done& done = all[number];
    qkflow::Panel panel{.title = done.experiment.title + ": loss [nats]",
                        .x = {.label = "epoch", .low = 0},
                        .y = {.logarithmic = true, .low = 1e-3, .high = 4}};
    std::uint64_t longest = 0;
    for (std::size_t i = 0; i < done.runs.size(); ++i) {
      longest = std::max(longest, done.runs[i].training.steps / done.experiment.settings.steps_per_epoch);
      if (!done.pytorch[i]) continue;
      qkflow::Curve curve{.data = data,
                          .x = "epoch",
                          .y = "loss",
                          .where = fmt::format("column(\"number\") == {} && column(\"run\") == {}", number, i),
                          .title = "computed",
                          .style = 0};
      panel.curves.push_back(curve);
      curve.y = "published";
      curve.mark = qkflow::Curve::Mark::points;
      curve.title = "published";
      curve.style = 1;
      panel.curves.push_back(curve);
    }
    panel.x.high = 1.03 * static_cast<double>((longest + 499) / 500 * 500);  // room for the last tic
    panel.x.step = longest > 1500 ? 1000 : 500;
    figure.panels.push_back(panel);
  }
  return figure;
}

/// At one loss, how much attention falls on distinct tokens at several ratios of the learning rates?
void ratio_table(const Figure2Command& command, const std::filesystem::path& folder) {
  const std::array<double, 5> ratios{0.2, 1, 2, 5, 25};
  const int seeds = command.seeds.value_or(command.quick ? 2 : 5);
  const double stop = command.quick ? 0.5 : 0.05;
  const std::vector<PublishedSettings> heads{{.parameterization = "CACO"},
                                             {.parameterization = "CAFO", .start_qk = 'I', .start_ov = 'I'},
                                             {.parameterization = "FACO", .start_qk = 'I', .start_ov = 'I'},
                                             {.parameterization = "FAFO", .start_qk = 'D', .start_ov = 'I'}};
  std::vector<TopicRun> runs;
  for (const PublishedSettings& head : heads) {
    for (const double ratio : ratios) {
      for (int i = 0; i < seeds; ++i) {
        PublishedSettings settings = head;
        settings.rate_qk = ratio * settings.rate_ov;
        settings.steps_per_epoch = 500;
        settings.epochs = 2000;
        TopicRun run = topic_run(settings, first_seed + static_cast<std::uint64_t>(i), true);
        run.name =
            fmt::format("ratio_{}_{:g}_{}{}", head.parameterization, ratio, run.name, command.quick ? "_quick" : "");
        run.training.early_stop = {stop, 500, 1};
        runs.push_back(run);
      }
    }
  }
  const auto results = run_all(runs, command.threads, folder, "ratios");
  qkflow::AtomicFile file(std::filesystem::path(command.out) / "figure2_ratio.csv");
  qkflow::CsvWriter csv(
      file, {"parameterization", "ratio", "seed", "steps", "loss", "distinct_attention", "query_attention"});
  qkflow::Table table({{"", qkflow::Table::Align::left},
                       {"r"},
                       {"steps"},
                       {"loss"},
                       {"on distinct"},
                       {"95 %"},
                       {"more than before"},
                       {"on the query's"},
                       {"on both"},
                       {"95 %"},
                       {"more than before"}});
  std::size_t at = 0;
  for (const PublishedSettings& head : heads) {
    std::vector<double> distinct_before, both_before;
    for (const double ratio : ratios) {
      std::vector<double> distinct, query, both, loss, steps;
      int missed = 0;
      for (int i = 0; i < seeds; ++i, ++at) {
        const TopicRunResult& run = results[at];
        distinct.push_back(run.evaluation.relevant_attention);
        query.push_back(run.evaluation.query_attention);
        both.push_back(distinct.back() + query.back());
        loss.push_back(run.evaluation.loss);
        steps.push_back(static_cast<double>(run.training.steps));
        missed += run.training.status != qkflow::TrainingStatus::stopped ? 1 : 0;
        csv.row(head.parameterization, ratio, first_seed + static_cast<std::uint64_t>(i), run.training.steps,
                run.evaluation.loss, run.evaluation.relevant_attention, run.evaluation.query_attention);
      }
      const auto interval = [](const std::vector<double>& values) {
        return fmt::format("± {:.4f}", sample_of(values).half_width);
      };
      const auto gain = [](const std::vector<double>& now, const std::vector<double>& before) {
        if (before.empty()) return std::string();
        std::vector<double> more;
        for (std::size_t i = 0; i < now.size(); ++i) more.push_back(now[i] - before[i]);
        const qkflow::SampleStatistics sample = sample_of(more);
        return fmt::format("{:+.4f} ± {:.4f}", sample.mean, sample.half_width);
      };
      table.row(
          {ratio == ratios.front() ? head.parameterization : "", fmt::format("{:g}", ratio),
           fmt::format("{:.0f}", sample_of(steps).mean), fmt::format("{:.4f}", sample_of(loss).mean),
           fmt::format("{:.4f}", sample_of(distinct).mean), interval(distinct),
           missed > 0 ? fmt::format("{} of {} did not get there", missed, seeds) : gain(distinct, distinct_before),
           fmt::format("{:.4f}", sample_of(query).mean), fmt::format("{:.4f}", sample_of(both).mean), interval(both),
           missed > 0 ? std::string() : gain(both, both_before)});
      distinct_before = distinct;
      both_before = both;
    }
  }
  file.commit();
  fmt::print(
      "\nAttention mass where the loss (mean of 500 steps) falls to {:g}, r = eta_QK / eta_OV, {} seeds each; "
      "intervals\n"
      "of 95 % confidence, differences to the ratio before paired by seed. The query's token tells the class, too: a "
      "fast\n"
      "enough QK circuit settles on it, so the mass on both is what r must raise:\n\n{}\n",
      stop, seeds, table.text());
}

void run(const Figure2Command& command) {
  for (const std::string& key : command.only) {
    bool known = key == "ratio";
    for (const Experiment& experiment : experiments()) known = known || experiment.key == key;
    if (!known) {
      throw qkflow::InvalidArgument("--only = " + key +
                                    ", but it must be one of FAFO, FACO, CAFO, CACO, FAFO_faster, FAFO_increasing, "
                                    "CACO_faster, CACO_increasing, ratio");
    }
  }
  if (command.seeds && *command.seeds < 1) qkflow::throw_invalid("options", "seeds", *command.seeds, "be at least 1");
  if (command.threads < 0) qkflow::throw_invalid("options", "threads", command.threads, "be at least 0");
  const std::filesystem::path out = command.out, folder = out / "figure2_runs";
  make_folder(folder);

  std::vector<Done> all;
  std::vector<TopicRun> runs;
  for (const Experiment& experiment : experiments()) {
    if (!wanted(command, experiment.key)) continue;
    Done done{experiment, {}, {}, {}};
    // Quick: a tenth of the epochs, one seed; enough to see that everything works.
    if (command.quick) done.experiment.settings.epochs /= 10;
    const int seeds = command.seeds.value_or(command.quick ? 1 : experiment.seeds);
    const int own = command.no_own || experiment.own_seeds == 0 ? 0 : command.quick ? 2 : experiment.own_seeds;
    for (int i = 0; i < seeds + own; ++i) {
      const bool pytorch = i < seeds;
      const auto seed = (pytorch ? first_seed : 1) + static_cast<std::uint64_t>(pytorch ? i : i - seeds);
      TopicRun run = topic_run(done.experiment.settings, seed, pytorch);
      run.name = fmt::format("{}_{}{}", experiment.key, run.name, command.quick ? "_quick" : "");
      runs.push_back(run);
      done.seeds.push_back(seed);
      done.pytorch.push_back(pytorch);
    }
    all.push_back(std::move(done));
  }
  if (!all.empty()) {
    const auto results = run_all(runs, command.threads, folder, "figure 2");
    std::size_t at = 0;
    for (Done& done : all) {
      for (std::size_t i = 0; i < done.seeds.size(); ++i) done.runs.push_back(results[at++]);
    }
    fmt::print(
        "Loss, mean of each 100 epochs, against what is published (differences; outside 0.002 and 1 %: how many):\n\n"
        "{}\nPercent of sequences with a label probability of 0.8 and more, by attention mass on distinct "
        "tokens:\n\n{}{}",
        series_table(all), heat_table(all), own_table(all));
    std::fflush(stdout);
    write_losses(out / "figure2_loss.csv", all);
    write_means(out / "figure2_loss_own.csv", all);
    write_heat_maps(out / "figure2_attention.csv", all);
  }
  if (wanted(command, "ratio")) {
    ratio_table(command, folder);
    std::fflush(stdout);
  }
  if (all.empty()) return;
  const qkflow::FigureFiles files = qkflow::draw_figure(loss_figure(all, "figure2_loss.csv"), out);
  fmt::print("loss series: {} {} (script {}, data {})\n", files.svg.string(), files.png.string(), files.script.string(),
             (out / "figure2_loss.csv").string());
  draw_script("figure2_attention", heat_map_script(all, "figure2_attention", "figure2_attention.csv"), out);
}

}  // namespace

void add_figure_2(CLI::App& figure) {
  const auto command = std::make_shared<Figure2Command>();
  CLI::App* sub = figure.add_subcommand("2", "Training on the topic task: loss series, heat maps of attention");
  sub->add_option("--out", command->out, "folder of data, scripts, pictures and checkpoints, made if need be")
      ->type_name("FOLDER")
      ->capture_default_str();
  sub->add_option("--only", command->only,
                  "experiments to run: FAFO FACO CAFO CACO FAFO_faster FAFO_increasing CACO_faster CACO_increasing "
                  "ratio (default: all)")
      ->type_name("NAME");
  add_count(*sub, "--seeds", command->seeds, "N", "seeds 1234, 1235, ... of each experiment (default: as published)");
  sub->add_flag("--no-own", command->no_own, "leave out the 20 seeds of our own initialization");
  sub->add_flag("--quick", command->quick, "a tenth of the epochs and one seed: to see that it works");
  add_count(*sub, "--threads", command->threads, "N", "runs at a time; 0: one a core. Never changes results");
  sub->footer(R"(Example: one published experiment, five seeds, compared entry by entry.

  $ qkflow figure 2 --only CACO_faster

Everything takes a few minutes; interrupt it, and the same command takes up where it was. "ratio" is the claim behind
the figure as a table: at one loss, attention on distinct tokens rises with the ratio of the learning rates.)");
  sub->callback([command] { run(*command); });
}

}  // namespace qkflow_program
