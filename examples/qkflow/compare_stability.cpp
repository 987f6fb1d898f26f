// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, fifth question: where does training leave the flow? Sharpness along the flow says which step is too
// large, and when; runs with such steps show what happens.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "compare.hpp"
#include "qkflow/compare/departure.hpp"
#include "qkflow/compare/stability.hpp"
#include "qkflow/math/random.hpp"
#include "qkflow/report/interrupt.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

constexpr std::array<double, 4> multiples{0.03125, 0.5, 2, 16};  // of the largest stable step
constexpr double push = 1e-5;  // random, so that what is unstable off the line has something to grow from

std::vector<qkflow::StabilityRow<double>> sharpness_of(const CompareOptions& options, const Case& c, double ratio_end) {
  const CompareModel model = c.model();
  std::vector<qkflow::StabilityRow<double>> rows;
  for (const auto& p : c.closed.trajectory(log_spaced(c.end / 300, ratio_end * c.end, options.quick ? 8 : 20))) {
    rows.push_back(model.stability(p.t, model.on_line({p.mu_ov, p.mu_qk})));
    qkflow::throw_if_interrupted();
  }
  return rows;
}

std::string sharpness_rows(const CompareOptions& options, const std::string& name, double ratio) {
  const Case c = make_case(options, name, ratio);
  Rows rows({"parameterization", "ratio", "t", "loss", "sharpness", "sharpness_qk", "sharpness_ov", "largest_step"});
  for (const auto& row : sharpness_of(options, c, 1)) {
    rows.row(name, ratio, row.t, row.loss, row.sharpness, row.sharpness_qk, row.sharpness_ov, row.largest_step());
  }
  return rows.text();
}

std::string departure_rows(const CompareOptions& options, const std::string& name, double multiple) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareModel model = c.model();
  const double h = multiple * c.stable_step;
  const std::size_t steps = std::max<std::size_t>(c.step_count(h), 60);
  State start = model.on_line(c.start);
  qkflow::RandomStream random(static_cast<std::uint64_t>(options.seed));
  for (Eigen::Index i = 0; i < start.size(); ++i) start[i] += push * random.normal();
  std::vector<double> losses;
  const auto run = descend_field(model, start,
                                 {.step = h,
                                  .steps = steps,
                                  .save_every = std::max<std::size_t>(1, steps / (options.quick ? 6 : 16)),
                                  .largest_state = 1e6,
                                  .on_step = [&](std::size_t, const State& x) { losses.push_back(model.loss(x)); }});
  std::vector<double> times;
  for (std::size_t k = 0; k < losses.size(); ++k) times.push_back(h * static_cast<double>(k));
  const auto flow = c.closed.trajectory(times);
  Rows rows({"parameterization", "ratio", "multiple", "step_size", "step", "t", "loss", "flow_loss", "sharpness",
             "sharpness_qk", "sharpness_ov", "status"});
  std::size_t saved = 0;
  for (std::size_t k = 0; k < losses.size(); ++k) {
    qkflow::StabilityRow<double> here;
    here.sharpness = here.sharpness_qk = here.sharpness_ov = std::nan("");
    if (saved < run.saved_steps.size() && run.saved_steps[saved] == k) {
      if (std::isfinite(losses[k])) here = model.stability(times[k], run.states[saved]);
      ++saved;
      qkflow::throw_if_interrupted();
    }
    rows.row(name, c.ratio, multiple, h, k, times[k], losses[k], flow[k].loss, here.sharpness, here.sharpness_qk,
             here.sharpness_ov, static_cast<int>(run.status));
  }
  return rows.text();
}

std::vector<qkflow::StabilityRow<double>> along(const qkflow::CsvTable& table, const std::string& name,
                                                const char* column, double value) {
  std::vector<qkflow::StabilityRow<double>> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    if (table.text(i, "parameterization") != name || table.number(i, column) != value) continue;
    if (std::isnan(table.number(i, "sharpness"))) continue;
    rows.push_back({table.number(i, "t"), table.number(i, "loss"), table.number(i, "sharpness"),
                    table.number(i, "sharpness_qk"), table.number(i, "sharpness_ov")});
  }
  return rows;
}

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  const qkflow::CsvTable sharpness = to.joined("sharpness");
  const qkflow::CsvTable departures = to.joined("departures");
  to.report.paragraph(
      "Gradient descent with step *h* is linearly stable where *h* times the sharpness is below 2; sharpness is the "
      "largest "
      "eigenvalue of *P*^{1/2} *H* *P*^{1/2}, *H* the Hessian over all parameters and *P* their learning rates. Along "
      "the "
      "flow of the block task it needs no integration: the closed form names the states. The first figure shows it for "
      "every ratio; the runs below it take steps of 1/32, 1/2, 2 and 16 times the largest step that is stable along "
      "the "
      "whole flow, from the flow's start and a random push of 10^{-5} in every entry.");
  using Mark = qkflow::Curve::Mark;
  const std::size_t columns = options.parameterizations.size() > 2 ? std::size_t{4} : options.parameterizations.size();
  const qkflow::Axis time{.label = "time&{i}{/:Italic t}", .logarithmic = true};
  qkflow::Figure curves{.name = "compare_sharpness",
                        .description = "Sharpness along the flow",
                        .columns = columns,
                        .width_cm = 17.5,
                        .panel_height_cm = 5.2};
  Rows limits({"parameterization", "multiple", "step_size", "t", "limit"});
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{.title = name, .x = time, .y = {.label = "sharpness", .logarithmic = true}};
    for (std::size_t i = 0; i < options.ratios.size(); ++i) {
      panel.curves.push_back({.data = "compare_sharpness.csv",
                              .x = "t",
                              .y = "sharpness",
                              .where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && {}", name,
                                                   qkflow::where_equal("ratio", options.ratios[i])),
                              .title = fmt::format("{{/:Italic r}}&{{i}}= {:g}", options.ratios[i]),
                              .style = i % qkflow::figure_styles.size(),
                              .mark = Mark::line_and_points});
    }
    // The limits 2/h of the runs below, across the panel.
    for (std::size_t m = 1; m < multiples.size(); ++m) {
      double h = 0, from = 1e300, until = 0;
      for (std::size_t row = 0; row < departures.rows(); ++row) {
        if (departures.text(row, "parameterization") == name && departures.number(row, "multiple") == multiples[m]) {
          h = departures.number(row, "step_size");
        }
      }
      for (std::size_t row = 0; row < sharpness.rows(); ++row) {
        if (sharpness.text(row, "parameterization") != name) continue;
        from = std::min(from, sharpness.number(row, "t"));
        until = std::max(until, sharpness.number(row, "t"));
      }
      limits.row(name, multiples[m], h, from, 2 / h);
      limits.row(name, multiples[m], h, until, 2 / h);
      panel.curves.push_back({.data = "compare_stability_limits.csv",
                              .x = "t",
                              .y = "limit",
                              .where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && {}", name,
                                                   qkflow::where_equal("multiple", multiples[m])),
                              .title = m == 1 ? "2/{/:Italic h} of the runs" : "",
                              .style = 6});
    }
    curves.panels.push_back(panel);
  }
  to.data("compare_stability_limits", limits.text());
  to.figure(
      curves,
      "Sharpness along the flow against time, one panel a head and one curve a ratio, with the limits 2/h of the "
      "runs in the next figure.",
      fmt::format("Sharpness along the flow. Fine dots: 2/*h* for the steps 1/2, 2 and 16 times the largest stable "
                  "one at *r* = {:g} (from above); where a curve of that ratio is above such a line, the step is too "
                  "large. Data: [compare_sharpness.csv](compare_sharpness.csv).",
                  options.middle_ratio()));

  qkflow::HtmlTable shown{
      .caption = fmt::format("Steps that are too large, at *r* = {:g}: what the sharpness along the flow "
                             "predicts before anything is trained, and what training does.",
                             options.middle_ratio()),
      .columns = {{"head", false},
                  {"*h* / stable"},
                  {"step *h*"},
                  {"predicted unstable from loss"},
                  {"sharper circuit", false},
                  {"first rise of the loss at loss"},
                  {"steps that raise it"},
                  {"largest *h* × sharpness"},
                  {"what happens", false}}};
  std::size_t stable = 0, quiet = 0, too_large = 0, raising = 0, left = 0;
  for (const std::string& name : options.parameterizations) {
    const auto flow = along(sharpness, name, "ratio", options.middle_ratio());
    for (const double multiple : multiples) {
      std::vector<double> losses;
      std::vector<std::pair<std::size_t, double>> reference;
      double h = 0;
      auto status = qkflow::DescentStatus::finished;
      for (std::size_t row = 0; row < departures.rows(); ++row) {
        if (departures.text(row, "parameterization") != name || departures.number(row, "multiple") != multiple)
          continue;
        h = departures.number(row, "step_size");
        losses.push_back(departures.number(row, "loss"));
        reference.emplace_back(losses.size() - 1, departures.number(row, "flow_loss"));
        status = static_cast<qkflow::DescentStatus>(static_cast<int>(departures.number(row, "status")));
      }
      const auto run_along = along(departures, name, "multiple", multiple);
      const auto report = qkflow::departure(losses, h, status, reference, run_along);
      const auto predicted = qkflow::first_unstable(flow, h);
      double product = 0;
      for (const auto& row : run_along) product = std::max(product, h * row.sharpness);
      shown.rows.push_back({name, fmt::format("{:g}", multiple), number_text(h),
                            predicted ? number_text(predicted->loss) : "never",
                            predicted ? qkflow::to_string(predicted->sharper) : "",
                            report.first_rise ? number_text(report.first_rise->loss) : "never",
                            std::to_string(report.rises), number_text(product), qkflow::to_string(report.kind)});
      if (multiple < 1) {
        ++stable;
        if (report.rises == 0) ++quiet;
      } else {
        ++too_large;
        if (report.rises > 0) ++raising;
        if (report.kind != qkflow::DepartureKind::none) ++left;
      }
    }
  }
  to.table(shown);
  to.finding(
      fmt::format("Below the limit {} of {} runs never raise the loss. Above it {} of {} leave the flow, and {} of "
                  "them raise the loss.",
                  quiet, stable, left, too_large, raising));
  to.report.paragraph(
      "The limit 2/*h* is one of linear stability: it says from where on the flow is no guide, not that the loss must "
      "rise. "
      "The data of the block task are separable and the flow's start is symmetric: where a step is too large it "
      "overshoots "
      "towards still smaller loss, at a place where sharpness has fallen, and training is ahead of the flow rather "
      "than "
      "oscillating. \"Drifts off\" means more than 10 % from the flow's loss without a rise.");

  qkflow::Figure runs{.name = "compare_departures",
                      .description = "Loss of gradient descent with steps below and above the stable one",
                      .columns = columns,
                      .width_cm = 17.5,
                      .panel_height_cm = 5.2};
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{
        .title = name,
        .x = {.label = "time&{i}{/:Italic t}&{i}= step ×&{i}{/:Italic h}", .logarithmic = true, .step = 100},
        .y = {.label = "loss [nats]", .logarithmic = true}};
    const std::string head = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && column(\"t\") > 0", name);
    for (std::size_t m = 0; m < 2; ++m) {  // the second goes further
      panel.curves.push_back({.data = "compare_departures.csv",
                              .x = "t",
                              .y = "flow_loss",
                              .where = head + " && " + qkflow::where_equal("multiple", multiples[m]),
                              .title = "flow",
                              .style = 4});
    }
    for (std::size_t m = 0; m < multiples.size(); ++m) {
      panel.curves.push_back(
          {.data = "compare_departures.csv",
           .x = "t",
           .y = "loss",
           .where = head + " && " + qkflow::where_equal("multiple", multiples[m]),
           .title = "{/:Italic h}&{i}= " + std::string(std::array<const char*, 4>{"1/32", "1/2", "2", "16"}[m]) +
                    " × stable",
           .style = std::array<std::size_t, 4>{0, 2, 1, 3}[m],
           .mark = m == 0 ? Mark::line : Mark::line_and_points});
    }
    runs.panels.push_back(panel);
  }
  to.figure(
      runs,
      "Loss against time for steps of 1/32, one half, two and sixteen times the largest stable one, beside "
      "the flow: the larger the step, the earlier training leaves the flow.",
      "Loss of gradient descent with steps below and above the largest stable one. Time is step number times *h*, so "
      "runs that follow the flow lie on its line. Data: [compare_departures.csv](compare_departures.csv).");
}

}  // namespace

Study stability_study(const CompareOptions& options) {
  Study study{.name = "stability", .title = "Stability: where training leaves the flow", .present = present};
  for (const std::string& name : options.parameterizations) {
    for (const double ratio : options.ratios) {
      study.pieces.push_back({fmt::format("sharpness_{}_{}", name, ratio),
                              fmt::format("sharpness: {}, {}, ratio {}", options.task_identity(), name, ratio), 6,
                              [&options, name, ratio] { return sharpness_rows(options, name, ratio); }});
    }
    for (const double multiple : multiples) {
      study.pieces.push_back(
          {fmt::format("departures_{}_{}", name, multiple),
           fmt::format("departures: {}, {}, ratio {}, {} times the stable step, seed {}", options.task_identity(), name,
                       options.middle_ratio(), multiple, options.seed),
           6, [&options, name, multiple] { return departure_rows(options, name, multiple); }});
    }
  }
  return study;
}

}  // namespace qkflow_program
