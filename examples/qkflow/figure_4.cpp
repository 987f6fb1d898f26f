// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow figure 4: the reduced flow at five ratios of the learning rates [Vashisht26]: four time series until the loss
// is 1e-4, and where the two circuits stand at 50 stopping losses. Lines are the closed form, symbols the integration.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "integrate.hpp"
#include "options.hpp"
#include "qkflow/flow/closed_form.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"
#include "qkflow/report/table.hpp"

namespace qkflow_program {

namespace {

using Row = qkflow::TimedPoint<double>;

constexpr std::array<double, 5> ratios{0.01, 0.1, 1, 10, 100};
constexpr double final_loss = 1e-4;
constexpr int time_rows = 200;  // intervals of a time series
constexpr int stopping_losses = 50;
// Rows from symbol to symbol; no divisors of the rows of a ratio, so that symbols of different curves stand apart.
constexpr std::size_t series_symbol_step = 19;
constexpr std::size_t stops_symbol_step = 7;

// The end of the published run, where it was printed: tau, mu_OV, mu_QK, alpha.
struct PublishedEnd {
  double ratio;
  std::array<const char*, 4> values;
};
constexpr std::array<PublishedEnd, 2> published_ends{
    {{0.01, {"2.55e6", "81.669", "0.559", "0.149"}}, {0.1, {"4.90e6", "42.282", "1.395", "0.287"}}}};

struct Figure4Command {
  std::string out = "out";
  IntegrationOptions integration{};
};

// Everything about one ratio, by both methods: the time series (its last row is the end) and the stopping states.
struct RatioResult {
  double ratio;
  double time_unit;  // tau = t * time_unit
  std::vector<Row> closed_series, integrated_series;
  std::vector<Row> closed_stops, integrated_stops;
};

// 1 to 1e-4, log-spaced.
std::vector<double> losses() {
  std::vector<double> values;
  for (int i = 0; i < stopping_losses; ++i) values.push_back(std::pow(final_loss, double(i) / (stopping_losses - 1)));
  values.back() = final_loss;
  return values;
}

qkflow::Caco<double> flow_at(double ratio) {
  return {.task = {.classes = 20, .block = 50, .informative = 5, .noise = 50}, .rates = {.ov = 1, .qk = ratio}};
}

void compute_closed(RatioResult& result) {
  const qkflow::ClosedForm closed(flow_at(result.ratio), qkflow::ReducedState<double>{});
  for (const double loss : losses()) {
    const auto point = closed.at_loss(loss);
    result.closed_stops.push_back({closed.time(point), point.mu_ov, point.mu_qk, point.alpha, point.loss});
  }
  const Row& end = result.closed_stops.back();
  std::vector<double> times;
  for (int k = 0; k < time_rows; ++k) {
    times.push_back(std::expm1(std::log1p(end.t * result.time_unit) * k / time_rows) / result.time_unit);
  }
  result.closed_series = closed.trajectory(times);
  result.closed_series.push_back(end);
}

void compute_integrated(RatioResult& result, const IntegrationOptions& options) {
  std::vector<double> times;
  for (const Row& row : result.closed_series) times.push_back(row.t);
  times.pop_back();  // the end is for the integration to find
  Integrated integrated = integrate(erase(flow_at(result.ratio)), {}, {.loss = final_loss}, times, options, losses());
  result.integrated_series = std::move(integrated.rows);
  result.integrated_stops = std::move(integrated.at_losses);
  // The last stopping loss and the end are the same crossing; whichever of the two conditions came first ended it.
  if (result.integrated_stops.size() + 1 == result.closed_stops.size()) {
    result.integrated_stops.push_back(result.integrated_series.back());
  }
  if (result.integrated_series.size() != result.closed_series.size() ||
      result.integrated_stops.size() != result.closed_stops.size()) {
    throw std::runtime_error(fmt::format("ratio {:g}: the integration met {} of {} times and {} of {} stopping losses",
                                         result.ratio, result.integrated_series.size(), result.closed_series.size(),
                                         result.integrated_stops.size(), result.closed_stops.size()));
  }
}

void write_series(const std::filesystem::path& path, const std::vector<RatioResult>& results) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"ratio", "t", "tau", "log10_1p_tau", "mu_ov", "mu_qk", "alpha", "loss", "integrated_t",
                               "integrated_mu_ov", "integrated_mu_qk", "integrated_alpha", "integrated_loss"});
  for (const RatioResult& result : results) {
    for (std::size_t i = 0; i < result.closed_series.size(); ++i) {
      const Row& c = result.closed_series[i];
      const Row& o = result.integrated_series[i];
      const double tau = c.t * result.time_unit;
      csv.row(result.ratio, c.t, tau, std::log1p(tau) / std::log(10.0), c.mu_ov, c.mu_qk, c.alpha, c.loss, o.t, o.mu_ov,
              o.mu_qk, o.alpha, o.loss);
    }
  }
  file.commit();
}

void write_stops(const std::filesystem::path& path, const std::vector<RatioResult>& results) {
  qkflow::AtomicFile file(path);
  qkflow::CsvWriter csv(file, {"ratio", "stopping_loss", "t", "tau", "mu_ov", "mu_qk", "alpha", "integrated_t",
                               "integrated_mu_ov", "integrated_mu_qk", "integrated_alpha"});
  const std::vector<double> stops = losses();
  for (const RatioResult& result : results) {
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const Row& c = result.closed_stops[i];
      const Row& o = result.integrated_stops[i];
      csv.row(result.ratio, stops[i], c.t, c.t * result.time_unit, c.mu_ov, c.mu_qk, c.alpha, o.t, o.mu_ov, o.mu_qk,
              o.alpha);
    }
  }
  file.commit();
}

// One line and the symbols on it for every ratio.
qkflow::Panel panel(const std::string& title, const std::string& data, const std::string& x, const std::string& y,
                    qkflow::Axis x_axis, qkflow::Axis y_axis, std::size_t every) {
  qkflow::Panel result{.title = title, .x = std::move(x_axis), .y = std::move(y_axis)};
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    const qkflow::Curve line{.data = data,
                             .x = x,
                             .y = y,
                             .where = qkflow::where_equal("ratio", ratios[i]),
                             .title = fmt::format("{{/:Italic r}}&{{i}}= {:g}", ratios[i]),
                             .style = i};
    qkflow::Curve symbols = line;
    symbols.y = "integrated_" + y;
    symbols.mark = qkflow::Curve::Mark::points;
    symbols.every = every;
    result.curves.push_back(line);
    result.curves.push_back(symbols);
  }
  return result;
}

const char* const mu_ov_label = "{/:Italic μ}_{OV}";
const char* const mu_qk_label = "{/:Italic μ}_{QK}";
const char* const alpha_label = "attention mass&{i}{/:Italic α}";

qkflow::Figure series_figure(const std::string& data) {
  const qkflow::Axis time{.label = "log_{10}(1 +&{i}{/:Italic τ})", .low = 0, .high = 7.5, .step = 2};
  const std::string x = "log10_1p_tau";
  qkflow::Figure figure{
      .name = "figure4_series",
      .description = "The reduced flow at five ratios r of the learning rates, against normalized time",
      .note = "lines: closed form, symbols: integrated"};
  figure.panels = {panel("(a) output strength", data, x, "mu_ov", time, {.label = mu_ov_label, .low = 0, .step = 20},
                         series_symbol_step),
                   panel("(b) attention score", data, x, "mu_qk", time, {.label = mu_qk_label, .low = 0, .step = 2},
                         series_symbol_step),
                   panel("(c) loss", data, x, "loss", time, {.label = "loss [nats]", .low = 0, .high = 3.2, .step = 1},
                         series_symbol_step),
                   panel("(d) attention", data, x, "alpha", time,
                         {.label = alpha_label, .low = 0, .high = 1, .step = 0.2}, series_symbol_step)};
  return figure;
}

qkflow::Figure stops_figure(const std::string& data) {
  // Reversed: training goes to the right, as in the time series.
  const qkflow::Axis loss{
      .label = "loss when stopped [nats]", .logarithmic = true, .reversed = true, .low = final_loss, .high = 1};
  const std::string x = "stopping_loss";
  qkflow::Figure figure{.name = "figure4_stops",
                        .description = "Where the circuits stand when training is stopped at a loss, at five ratios r",
                        .legend = qkflow::Figure::Legend::last_cell,
                        .note = "lines: closed form\nsymbols: integrated"};
  figure.panels = {panel("(a) output strength", data, x, "mu_ov", loss, {.label = mu_ov_label, .low = 0, .step = 20},
                         stops_symbol_step),
                   panel("(b) attention score", data, x, "mu_qk", loss, {.label = mu_qk_label, .low = 0, .step = 2},
                         stops_symbol_step),
                   panel("(c) attention", data, x, "alpha", loss,
                         {.label = alpha_label, .low = 0, .high = 1, .step = 0.2}, stops_symbol_step)};
  return figure;
}

std::string comparison(const std::vector<RatioResult>& results) {
  using Align = qkflow::Table::Align;
  qkflow::Table table({{"r"}, {"", Align::left}, {"tau_end"}, {"mu_OV"}, {"mu_QK"}, {"alpha"}});
  for (const RatioResult& result : results) {
    const auto values = [&](const Row& row) {
      return std::array<double, 4>{row.t * result.time_unit, row.mu_ov, row.mu_qk, row.alpha};
    };
    const auto closed = values(result.closed_series.back());
    const auto integrated = values(result.integrated_series.back());
    const auto add = [&](const std::string& ratio, const std::string& what, const auto& text_of) {
      table.row({ratio, what, text_of(0), text_of(1), text_of(2), text_of(3)});
    };
    const auto digits = [](double value) { return fmt::format("{:#.13g}", value); };
    add(fmt::format("{:g}", result.ratio), "closed form", [&](std::size_t i) { return digits(closed[i]); });
    add("", "integrated", [&](std::size_t i) { return digits(integrated[i]); });
    add("", "relative difference",
        [&](std::size_t i) { return fmt::format("{:.1e}", std::abs(integrated[i] / closed[i] - 1)); });
    for (const PublishedEnd& published : published_ends) {
      if (published.ratio != result.ratio) continue;
      add("", "published", [&](std::size_t i) { return std::string(published.values[i]); });
    }
  }
  return table.text();
}

// Draws all figures and names their files. Without gnuplot every script is still written before the error is thrown.
void draw(const std::vector<std::pair<qkflow::Figure, std::string>>& figures, const std::filesystem::path& out) {
  std::exception_ptr failure;
  for (const auto& [figure, what] : figures) {
    qkflow::throw_if_interrupted();
    try {
      const qkflow::FigureFiles files = qkflow::draw_figure(figure, out);
      fmt::print("{}: {} {} (script {}, data {})\n", what, files.svg.string(), files.png.string(),
                 files.script.string(), (out / (figure.name + ".csv")).string());
    } catch (const qkflow::IoError&) {
      // Ctrl-C at a terminal reaches gnuplot, too, and makes it fail.
      if (qkflow::interrupted()) throw qkflow::Interrupted("interrupted; the data are in " + out.string());
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const Figure4Command& command) {
  namespace fs = std::filesystem;
  const fs::path out = command.out;
  std::error_code error;
  fs::create_directories(out, error);
  if (error) throw qkflow::IoError("cannot create the folder '" + out.string() + "': " + error.message());

  std::vector<RatioResult> results;
  for (const double ratio : ratios) results.push_back({ratio, std::min(1.0, ratio), {}, {}, {}, {}});
  const auto closed_start = std::chrono::steady_clock::now();
  for (RatioResult& result : results) compute_closed(result);
  const double closed_seconds = seconds_since(closed_start);
  const auto integrated_start = std::chrono::steady_clock::now();
  for (RatioResult& result : results) compute_integrated(result, command.integration);
  const double integrated_seconds = seconds_since(integrated_start);

  fmt::print(
      "Reduced flow, CACO, M = 20, b = 50, m = 5, n = 50, eta_OV = 1, eta_QK = r, from 0 until the loss is 1e-4;\n"
      "tau = t min(eta_OV, eta_QK). Closed form ({:.1f} ms) against Boost.Odeint ({}, {:.0f} ms):\n\n{}\n",
      1e3 * closed_seconds, command.integration.stepper, 1e3 * integrated_seconds, comparison(results));
  std::fflush(stdout);

  const fs::path series = out / "figure4_series.csv";
  const fs::path stops = out / "figure4_stops.csv";
  write_series(series, results);
  write_stops(stops, results);
  draw({{series_figure(series.filename().string()), "time series"},
        {stops_figure(stops.filename().string()), "stopping states"}},
       out);
}

}  // namespace

void add_figure_4(CLI::App& figure) {
  const auto command = std::make_shared<Figure4Command>();
  CLI::App* sub = figure.add_subcommand("4", "The reduced flow at five ratios of the learning rates");
  sub->add_option("--out", command->out, "folder of data, scripts and pictures, made if need be")
      ->type_name("FOLDER")
      ->capture_default_str();
  add_integration_options(*sub, command->integration);
  sub->footer(R"(Example: computes and draws everything in a second or two, and names the files.

  $ qkflow figure 4 --out out

It prints the ends of the five trajectories by closed form and integrated, beside what is published, and writes
out/figure4_series.{csv,gp,svg,png} (four time series) and out/figure4_stops.{csv,gp,svg,png} (three stopping curves).
Change a script and run gnuplot on it to restyle a figure.)");
  sub->callback([command] { run(*command); });
}

}  // namespace qkflow_program
