// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, first question: does training with a finite step go where the flow goes? The flow is the closed form,
// training is gradient descent of every matrix entry.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compare.hpp"
#include "qkflow/compare/modified_flow.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

// The flow as a line: many points, no training.
std::string flow_rows(const CompareOptions& options, const std::string& name, double ratio) {
  const Case c = make_case(options, name, ratio);
  Rows rows({"parameterization", "ratio", "t", "mu_ov", "mu_qk", "alpha", "loss"});
  for (const auto& p : c.closed.trajectory(log_spaced(c.steps.front(), c.end, 120))) {
    rows.row(name, ratio, p.t, p.mu_ov, p.mu_qk, p.alpha, p.loss);
  }
  return rows.text();
}

std::string training_rows(const CompareOptions& options, const std::string& name, double ratio) {
  const Case c = make_case(options, name, ratio);
  const CompareModel model = c.model();
  const CompareObserver observe{&model};
  const double h = c.steps.front();
  const std::size_t last = c.step_count(h);
  const std::vector<std::size_t> steps = log_steps(last, options.quick ? 12 : 30);
  const auto run = descend_field(model, model.on_line(c.start), {.step = h, .steps = last, .save_steps = steps});

  // Beside it: the flow at the same times, the modified flow of this step, and training of the two numbers of the line.
  const auto flow = c.closed.trajectory(run.times);
  const CompareLine line = c.line();
  const CompareField& field = line;
  qkflow::ModifiedFlow modified(field, h);
  const auto corrected = solve_or_throw([&](const State& x, State& v, const double& t) { modified(x, v, t); },
                                        line.start, {.t_end = run.t, .rtol = 1e-10, .save_times = run.times});
  const auto two = descend_field(line, line.start, {.step = h, .steps = last, .save_steps = steps});

  Rows rows({"parameterization",
             "ratio",
             "step_size",
             "step",
             "t",
             "mu_ov",
             "mu_qk",
             "alpha",
             "loss",
             "flow_mu_ov",
             "flow_mu_qk",
             "flow_alpha",
             "flow_loss",
             "modified_alpha",
             "modified_loss",
             "same_loss_t",
             "same_loss_mu_ov",
             "same_loss_mu_qk",
             "same_loss_alpha",
             "error_mu_ov",
             "error_mu_qk",
             "error_alpha",
             "error_loss",
             "modified_error_loss",
             "same_loss_error_alpha",
             "off_line",
             "line_difference"});
  for (std::size_t i = 0; i < run.states.size(); ++i) {
    const auto seen = observe(run.states[i]);
    const auto& at = flow[i];
    const auto better = line.point(corrected.states[i]);
    const auto same = c.closed.at_loss(seen.loss);
    const auto on_line = line.point(two.states[i]);
    rows.row(name, ratio, h, run.saved_steps[i], run.times[i], seen.mu_ov, seen.mu_qk, seen.alpha, seen.loss, at.mu_ov,
             at.mu_qk, at.alpha, at.loss, better.alpha, better.loss, c.closed.time(same), same.mu_ov, same.mu_qk,
             same.alpha, std::abs(seen.mu_ov - at.mu_ov), std::abs(seen.mu_qk - at.mu_qk),
             std::abs(seen.alpha - at.alpha), std::abs(seen.loss / at.loss - 1), std::abs(seen.loss / better.loss - 1),
             std::abs(seen.alpha - same.alpha), seen.off_line,
             std::max(std::abs(seen.mu_ov - on_line.mu_ov), std::abs(seen.mu_qk - on_line.mu_qk)));
  }
  return rows.text();
}

const qkflow::Axis time_axis{.label = "time&{i}{/:Italic t}&{i}= step ×&{i}{/:Italic h}", .logarithmic = true};

qkflow::Figure trajectory_figure(const CompareOptions& options, const std::string& name) {
  qkflow::Figure figure{.name = "compare_trajectories_" + name,
                        .description = "Flow (closed form, lines) and gradient descent (symbols), " + name,
                        .columns = 4,
                        .width_cm = 17.5,
                        .panel_height_cm = 4.3,
                        .note = "lines: flow, closed form; symbols: gradient descent of all matrix entries"};
  const auto panel = [&](const char* title, const char* column, qkflow::Axis y) {
    qkflow::Panel result{.title = title, .x = time_axis, .y = std::move(y)};
    for (std::size_t i = 0; i < options.ratios.size(); ++i) {
      const std::string where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && {}", name,
                                            qkflow::where_equal("ratio", options.ratios[i]));
      const std::string title_text = fmt::format("{{/:Italic r}}&{{i}}= {:g}", options.ratios[i]);
      const std::size_t style = i % qkflow::figure_styles.size();
      result.curves.push_back(
          {.data = "compare_flow.csv", .x = "t", .y = column, .where = where, .title = title_text, .style = style});
      result.curves.push_back({.data = "compare_training.csv",
                               .x = "t",
                               .y = column,
                               .where = where,
                               .title = title_text,
                               .style = style,
                               .mark = qkflow::Curve::Mark::points,
                               .every = options.quick ? std::size_t{1} : std::size_t{2}});
    }
    return result;
  };
  figure.panels = {panel("output strength", "mu_ov", {.label = "{/:Italic μ}_{OV}", .low = 0}),
                   panel("attention score", "mu_qk", {.label = "{/:Italic μ}_{QK}", .low = 0}),
                   panel("attention mass", "alpha", {.label = "{/:Italic α}", .low = 0, .high = 1, .step = 0.2}),
                   panel("loss", "loss", {.label = "loss [nats]", .logarithmic = true})};
  return figure;
}

qkflow::Figure error_figure(const CompareOptions& options) {
  qkflow::Figure figure{.name = "compare_errors",
                        .description = "How far gradient descent is from the flow, in time and at the same loss",
                        .columns = 3,
                        .width_cm = 17.5,
                        .panel_height_cm = 4.8};
  const auto panel = [&](const char* title, const char* x, qkflow::Axis x_axis, const char* y, const char* label) {
    qkflow::Panel result{.title = title, .x = std::move(x_axis), .y = {.label = label, .logarithmic = true}};
    for (std::size_t i = 0; i < options.parameterizations.size(); ++i) {
      const std::string& name = options.parameterizations[i];
      result.curves.push_back({.data = "compare_training.csv",
                               .x = x,
                               .y = y,
                               .where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\" && {}", name,
                                                    qkflow::where_equal("ratio", options.middle_ratio())),
                               .title = name,
                               .style = i % qkflow::figure_styles.size(),
                               .mark = qkflow::Curve::Mark::line_and_points});
    }
    return result;
  };
  const qkflow::Axis loss{.label = "loss of training [nats]", .logarithmic = true, .reversed = true};
  figure.panels = {
      panel("(a) at the same time", "t", time_axis, "error_loss", "relative error of the loss"),
      panel("(b) the modified flow instead", "t", time_axis, "modified_error_loss", "relative error of the loss"),
      panel("(c) at the same loss", "loss", loss, "same_loss_error_alpha", "error of&{i}{/:Italic α}")};
  return figure;
}

double largest(const qkflow::CsvTable& table, const std::string& name, double ratio, const char* column) {
  double result = 0;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "parameterization") != name || table.number(row, "ratio") != ratio) continue;
    result = std::max(result, table.number(row, column));
  }
  return result;
}

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  to.joined("flow");
  const qkflow::CsvTable training = to.joined("training");
  to.report.paragraph(
      "The flow moves parameters by d*θ*/d*t* = −*P* ∇*L*; gradient descent with step *h* moves them by *h* times the "
      "same velocity. So *k* steps of training are to be compared with the flow at time *t* = *h* *k*. Both start at "
      "the "
      "same point. The flow is the closed form: no equation is integrated. Training steps every entry of every matrix "
      "on the finite dataset of the task. The step is the largest power of two that is at most 1/32 of the largest "
      "stable one (2 / sharpness along the flow), unless step sizes were given.");
  for (const std::string& name : options.parameterizations) {
    to.figure(trajectory_figure(options, name),
              name +
                  ": output strength, attention score, attention mass and loss against time; the points of gradient "
                  "descent lie on or close to the lines of the closed form at every ratio of learning rates.",
              fmt::format("{}. Lines: the flow in closed form. Symbols: gradient descent. Data: "
                          "[compare_flow.csv](compare_flow.csv), [compare_training.csv](compare_training.csv).",
                          name));
  }
  qkflow::HtmlTable table{
      .caption =
          "Gradient descent against the flow: the largest error along the run. In time: both at the same *t*. At "
          "the same loss: both where they have the same loss, which takes out that training may be merely faster "
          "or slower.",
      .columns = {{"head", false},
                  {"*r*"},
                  {"step *h*"},
                  {"steps"},
                  {"loss at the end"},
                  {"loss, in time"},
                  {"loss, modified flow"},
                  {"*α*, in time"},
                  {"*α*, at the same loss"}}};
  double worst = 0, worst_modified = 0, worst_alpha = 0, worst_line = 0;
  for (const std::string& name : options.parameterizations) {
    for (const double ratio : options.ratios) {
      const auto over = [&](const char* column) { return largest(training, name, ratio, column); };
      std::string step, steps, loss;
      for (std::size_t row = 0; row < training.rows(); ++row) {
        if (training.text(row, "parameterization") != name || training.number(row, "ratio") != ratio) continue;
        step = number_text(training.number(row, "step_size"), 4);
        steps = training.text(row, "step");
        loss = number_text(training.number(row, "loss"));
      }
      table.rows.push_back({name, fmt::format("{:g}", ratio), step, steps, loss,
                            fmt::format("{:.2f} %", 100 * over("error_loss")),
                            fmt::format("{:.3f} %", 100 * over("modified_error_loss")),
                            number_text(over("error_alpha")), number_text(over("same_loss_error_alpha"))});
      worst = std::max(worst, over("error_loss"));
      worst_modified = std::max(worst_modified, over("modified_error_loss"));
      worst_alpha = std::max(worst_alpha, over("same_loss_error_alpha"));
      worst_line = std::max({worst_line, over("line_difference"), over("off_line")});
    }
  }
  to.table(table);
  to.finding(
      fmt::format("{} the flow predicts the loss to {:.1f} % at "
                  "every moment; the "
                  "modified flow, which knows the step, to {:.2f} %. At the same loss attention is predicted to {}. "
                  "Training of all "
                  "matrix entries and training of the two numbers on the line agree to {}.",
                  options.step_sizes.empty() ? "With steps of 1/64 to 1/32 of the largest stable one"
                                             : "With the largest step given",
                  100 * worst, 100 * worst_modified, number_text(worst_alpha, 2), number_text(worst_line, 2)));
  to.figure(error_figure(options),
            "Errors against time and loss for each parameterization: the modified flow's are an order of magnitude or "
            "more below the flow's.",
            fmt::format("Errors along the run at *r* = {:g}: (a) of the flow, at the same time; (b) of the modified "
                        "flow, at the same time; (c) of the attention mass, both at the same loss.",
                        options.middle_ratio()));
}

}  // namespace

Study trajectories_study(const CompareOptions& options) {
  Study study{.name = "trajectories", .title = "Trajectories: flow and gradient descent", .present = present};
  for (const std::string& name : options.parameterizations) {
    for (const double ratio : options.ratios) {
      const std::string end = fmt::format("{}_{}", name, ratio);
      const std::string identity = fmt::format("{}, {}, ratio {}", options.task_identity(), name, ratio);
      study.pieces.push_back({"flow_" + end, "flow: " + identity, 0.5,
                              [&options, name, ratio] { return flow_rows(options, name, ratio); }});
      study.pieces.push_back({"training_" + end, "training: " + identity, 2,
                              [&options, name, ratio] { return training_rows(options, name, ratio); }});
    }
  }
  return study;
}

}  // namespace qkflow_program
