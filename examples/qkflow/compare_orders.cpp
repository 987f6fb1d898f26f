// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, second question: how does the error depend on the step? Once for the two numbers of the line, once
// for all matrix entries from a random start, far from the line.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "compare.hpp"
#include "qkflow/compare/modified_flow.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

constexpr double start_deviation = 0.1;  // of the entries of the random circuits
constexpr double rtol = 1e-12;

const std::vector<std::string> columns{"kind", "parameterization", "ratio",         "step_size", "steps",
                                       "t",    "flow_error",       "modified_error"};

// Errors at the end, relative to how far the flow has gone; lengths by `metric`.
void measure(Rows& rows, const std::string& kind, const Case& c, const CompareField& field, const State& start,
             const State& metric, double end, const std::vector<double>& steps) {
  const auto length = [&](const State& x) { return std::sqrt((metric.array() * x.array().square()).sum()); };
  const FieldFunction flow = [&](const State& x, State& v, const double& t) { field(x, v, t); };
  for (const double h : steps) {
    const auto count = static_cast<std::size_t>(std::max(1LL, std::llround(end / h)));
    const double t = h * static_cast<double>(count);
    const State reference = solve_or_throw(flow, start, {.t_end = t, .rtol = rtol}).x;
    qkflow::ModifiedFlow modified(field, h);
    const State corrected = solve_or_throw([&](const State& x, State& v, const double& s) { modified(x, v, s); }, start,
                                           {.t_end = t, .rtol = rtol})
                                .x;
    const auto run = descend_field(field, start, {.step = h, .steps = count});
    const double move = length(reference - start);
    const bool good = run.success();
    rows.row(kind, c.parameterization, c.ratio, h, count, t, good ? length(run.x - reference) / move : std::nan(""),
             good ? length(run.x - corrected) / move : std::nan(""));
  }
}

std::string line_rows(const CompareOptions& options, const std::string& name) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareLine line = c.line();
  Rows rows(columns);
  const double h = c.steps.front();
  measure(rows, "line", c, line, line.start, line.metric, h * static_cast<double>(c.step_count(h)), c.steps);
  return rows.text();
}

std::string matrix_rows(const CompareOptions& options, const std::string& name) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareModel model = c.model();
  const State start = model.random_start(static_cast<std::uint64_t>(options.seed), start_deviation);
  double end = c.end / 4;
  std::vector<double> steps = options.step_sizes;
  if (steps.empty()) {
    // The random start has a sharpness of its own.
    double largest = 0;
    const auto path = solve_or_throw([&](const State& x, State& v, const double& t) { model(x, v, t); }, start,
                                     {.t_end = end, .rtol = 1e-6, .save_times = {0, end / 8, end / 2, end}});
    for (const State& x : path.states) largest = std::max(largest, model.sharpness(x));
    double h = std::exp2(std::floor(std::log2(0.0625 / largest)));
    for (std::size_t i = 0; i < c.steps.size(); ++i, h /= 2) steps.push_back(h);
    end = steps.front() * std::ceil(end / steps.front());
  }
  Rows rows(columns);
  measure(rows, "matrix", c, model, start, State::Ones(start.size()), end, steps);
  return rows.text();
}

struct Fit {
  std::string kind, name;
  qkflow::OrderStudy flow, modified;
};

Fit fit(const qkflow::CsvTable& table, const std::string& kind, const std::string& name) {
  std::vector<double> steps, flow, modified;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "kind") != kind || table.text(row, "parameterization") != name) continue;
    steps.push_back(table.number(row, "step_size"));
    flow.push_back(table.number(row, "flow_error"));
    modified.push_back(table.number(row, "modified_error"));
  }
  return {kind, name, qkflow::fit_order(steps, flow, {.floor = 1e-11}),
          qkflow::fit_order(steps, modified, {.floor = 1e-11})};
}

double last_local(const qkflow::OrderStudy& study) {
  double slope = std::nan("");
  for (const auto& row : study.rows) {
    if (row.used == qkflow::OrderRow::used && !std::isnan(row.local_slope)) slope = row.local_slope;
  }
  return slope;
}

qkflow::Figure orders_figure(const CompareOptions& options) {
  qkflow::Figure figure{
      .name = "compare_orders",
      .description = "Error of the flow and of the modified flow against the step",
      .columns = options.parameterizations.size() > 2 ? std::size_t{4} : options.parameterizations.size(),
      .width_cm = 17.5,
      .panel_height_cm = 5.4,
      .note = "all matrix entries: from a random start, off the line"};
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{.title = name,
                        .x = {.label = "step&{i}{/:Italic h}", .logarithmic = true},
                        .y = {.label = "relative error", .logarithmic = true}};
    std::size_t style = 0;
    for (const auto& [kind, column, title] : {std::tuple{"line", "flow_error", "flow, on the line"},
                                              std::tuple{"matrix", "flow_error", "flow, all entries"},
                                              std::tuple{"line", "modified_error", "modified flow, on the line"},
                                              std::tuple{"matrix", "modified_error", "modified flow, all entries"}}) {
      panel.curves.push_back(
          {.data = "compare_orders.csv",
           .x = "step_size",
           .y = column,
           .where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && stringcolumn(\"kind\") eq \"{}\"",
                                name, kind),
           .title = title,
           .style = style++,
           .mark = qkflow::Curve::Mark::line_and_points});
    }
    figure.panels.push_back(panel);
  }
  return figure;
}

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  const qkflow::CsvTable table = to.joined("orders");
  to.report.paragraph(
      "Gradient descent is Euler's method on the flow, so its error over a fixed time falls as *h*. The modified flow "
      "d*θ*/d*t* = *F* − (*h*/2) *F*′ *F*, with *F* = −*P* ∇*L*, is the equation that gradient descent solves to "
      "second "
      "order (Barrett and Dherin): its error falls as *h*^{2}. Both are measured twice: for the two numbers of the "
      "line, "
      "and for every matrix entry from a random start, where no closed form helps. Distances are Euclidean, over all "
      "parameters, divided by the way the flow has gone. References are integrated with a relative tolerance of "
      "10^{-12}.");
  qkflow::HtmlTable shown{.caption =
                              "Orders: the slope of log error over log step, with its 95 % interval (Student *t*); "
                              "\"last\" is the slope between the two smallest steps that count, \"error\" that at "
                              "the smallest step.",
                          .columns = {{"head", false},
                                      {"what steps", false},
                                      {"flow: slope"},
                                      {"last"},
                                      {"error"},
                                      {"modified flow: slope"},
                                      {"last"},
                                      {"error"}}};
  Rows fits({"kind", "parameterization", "flow_slope", "flow_half_width", "flow_last_slope", "modified_slope",
             "modified_half_width", "modified_last_slope"});
  double flow_worst = 0, modified_worst = 0;
  for (const std::string& name : options.parameterizations) {
    for (const char* kind : {"line", "matrix"}) {
      const Fit f = fit(table, kind, name);
      shown.rows.push_back({name, std::string(kind) == "line" ? "two numbers" : "all entries", slope_text(f.flow),
                            number_text(last_local(f.flow)), number_text(f.flow.rows.back().error, 2),
                            slope_text(f.modified), number_text(last_local(f.modified)),
                            number_text(f.modified.rows.back().error, 2)});
      fits.row(kind, name, f.flow.slope, f.flow.half_width, last_local(f.flow), f.modified.slope, f.modified.half_width,
               last_local(f.modified));
      flow_worst = std::max(flow_worst, std::abs(last_local(f.flow) - 1));
      modified_worst = std::max(modified_worst, std::abs(last_local(f.modified) - 2));
    }
  }
  to.data("compare_order_fits", fits.text());
  to.table(shown);
  to.finding(
      fmt::format("At the smallest steps the flow's error has order 1 to within {}, the modified flow's order 2 to "
                  "within {}, in every head, on the line and off it.",
                  number_text(flow_worst, 2), number_text(modified_worst, 2)));
  to.figure(
      orders_figure(options),
      "Error against step on logarithmic axes, one panel a head: the flow's errors fall with slope 1, the modified "
      "flow's with slope 2.",
      fmt::format("Relative error at the end against the step, at *r* = {:g}. A tenth of the step: a tenth of the "
                  "flow's error, a hundredth of the modified flow's. Data: [compare_orders.csv](compare_orders.csv), "
                  "fits: [compare_order_fits.csv](compare_order_fits.csv).",
                  options.middle_ratio()));
}

}  // namespace

Study orders_study(const CompareOptions& options) {
  Study study{.name = "orders", .title = "Order study: error against step", .present = present};
  for (const std::string& name : options.parameterizations) {
    const std::string identity = fmt::format("{}, {}, ratio {}", options.task_identity(), name, options.middle_ratio());
    study.pieces.push_back({"orders_line_" + name, "orders on the line: " + identity, 1,
                            [&options, name] { return line_rows(options, name); }});
    study.pieces.push_back({"orders_matrix_" + name,
                            fmt::format("orders of matrices: {}, seed {}", identity, options.seed), 6,
                            [&options, name] { return matrix_rows(options, name); }});
  }
  return study;
}

}  // namespace qkflow_program
