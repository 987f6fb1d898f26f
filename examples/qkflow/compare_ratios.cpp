// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, third question: attention at the same loss against the ratio of the learning rates, by the closed
// form, by gradient descent and by stochastic gradients; and what of the difference is understood.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "compare.hpp"
#include "qkflow/compare/modified_flow.hpp"
#include "qkflow/report/interrupt.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

std::vector<double> ratio_grid(const CompareOptions& options) { return log_spaced(0.01, 100, options.quick ? 3 : 9); }

// Attention where log loss, between two places, is that of `loss`.
double interpolate(double loss, double loss_before, double alpha_before, double loss_after, double alpha_after) {
  const double share = std::log(loss / loss_before) / std::log(loss_after / loss_before);
  return alpha_before + share * (alpha_after - alpha_before);
}

std::string ratio_rows(const CompareOptions& options, const std::string& name, double ratio) {
  const Case c = make_case(options, name, ratio);
  const CompareModel model = c.model();
  const double h = c.steps.front(), loss = options.loss;
  const auto closed = c.closed.at_loss(loss);

  // Gradient descent, every entry, until its loss is there.
  State before = model.on_line(c.start), here = before;
  const auto run = descend_field(model, before,
                                 {.step = h,
                                  .steps = 20 * c.step_count(h),
                                  .stop = [&](std::size_t, const State& x) { return model.loss(x) <= loss; },
                                  .on_step =
                                      [&](std::size_t, const State& x) {
                                        before.swap(here);
                                        here = x;
                                      }});
  double descent = std::nan("");
  if (run.status == qkflow::DescentStatus::stopped) {
    const CompareObserver observe{&model};
    const auto first = observe(before), second = observe(run.x);
    descent = interpolate(loss, first.loss, first.alpha, second.loss, second.alpha);
  }

  // What the modified flow of this step says.
  const CompareLine line = c.line();
  const CompareField& field = line;
  qkflow::ModifiedFlow modified(field, h);
  const auto corrected =
      solve_or_throw([&](const State& x, State& v, const double& t) { modified(x, v, t); }, line.start, {.rtol = 1e-10},
                     {{.name = "loss",
                       .g = [&](const double&, const State& x) { return std::log(line.point(x).loss / loss); },
                       .direction = qkflow::Direction::falling}});
  const double predicted = line.point(corrected.x).alpha;

  // Stochastic gradients with the same step: where each run's loss on all the data passes the value.
  const std::size_t steps = run.steps, rows_kept = 24;
  qkflow::EnsembleOptions sgd{.step = h,
                              .steps = 2 * steps,
                              .batch = static_cast<std::size_t>(options.batches.back()),
                              .seeds = static_cast<std::size_t>(options.seeds),
                              .first_seed = static_cast<std::uint64_t>(options.seed),
                              .cancel = &qkflow::interrupt_flag()};
  for (std::size_t i = 0; i < rows_kept; ++i) {
    const std::uint64_t step = steps / 2 + i * (sgd.steps - steps / 2) / (rows_kept - 1);
    if (sgd.save_steps.empty() || step > sgd.save_steps.back()) sgd.save_steps.push_back(step);
  }
  const qkflow::Ensemble ensemble = model.sgd(model.on_line(c.start), sgd);
  qkflow::throw_if_interrupted();
  std::vector<double> alphas;
  for (std::size_t seed = 0; seed < ensemble.seeds(); ++seed) {
    std::optional<qkflow::Observation<double>> last;
    for (std::size_t row = 0; row < ensemble.states.size(); ++row) {
      const auto now = model.observe_function(ensemble.states[row][seed]);
      if (last && last->loss > loss && now.loss <= loss) {
        alphas.push_back(interpolate(loss, last->loss, last->alpha, now.loss, now.alpha));
        break;
      }
      last = now;
    }
  }
  qkflow::SampleStatistics statistics;
  if (alphas.size() >= 2) statistics = qkflow::sample_statistics(alphas);

  Rows rows({"parameterization", "ratio", "loss", "step_size", "steps", "closed_alpha", "descent_alpha",
             "modified_alpha", "batch", "sgd_runs", "sgd_alpha", "sgd_low", "sgd_high", "descent_difference_1000",
             "modified_difference_1000", "sgd_difference_1000", "sgd_difference_1000_low", "sgd_difference_1000_high"});
  rows.row(name, ratio, loss, h, steps, closed.alpha, descent, predicted, sgd.batch, alphas.size(), statistics.mean,
           statistics.low(), statistics.high(), 1000 * (descent - closed.alpha), 1000 * (predicted - closed.alpha),
           1000 * (statistics.mean - closed.alpha), 1000 * (statistics.low() - closed.alpha),
           1000 * (statistics.high() - closed.alpha));
  return rows.text();
}

qkflow::Figure attention_figure(const CompareOptions& options, bool difference) {
  const qkflow::Axis ratio{.label = "ratio&{i}{/:Italic r}&{i}=&{i}{/:Italic η}_{QK} /&{i}{/:Italic η}_{OV}",
                           .logarithmic = true,
                           .low = 0.008,
                           .high = 125,
                           .step = 10};
  qkflow::Figure figure{
      .name = difference ? "compare_attention_difference" : "compare_attention",
      .description =
          difference ? "Attention at the same loss: training minus flow" : "Attention at the same loss against r",
      .columns = options.parameterizations.size() > 2 ? std::size_t{4} : options.parameterizations.size(),
      .width_cm = 17.5,
      .panel_height_cm = 5.2};
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{.title = name, .x = ratio};
    panel.y = difference ? qkflow::Axis{.label = "1000 × difference in&{i}{/:Italic α}"}
                         : qkflow::Axis{.label = "attention mass&{i}{/:Italic α}", .low = 0, .high = 1, .step = 0.2};
    const std::string where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\"", name);
    using Mark = qkflow::Curve::Mark;
    // Differences are against the flow, so there the modified flow is the line.
    panel.curves = {{.data = difference ? "compare_ratios.csv" : "compare_attention_line.csv",
                     .x = "ratio",
                     .y = difference ? "modified_difference_1000" : "alpha",
                     .where = where,
                     .title = difference ? "modified flow" : "flow, closed form",
                     .style = 0},
                    {.data = "compare_ratios.csv",
                     .x = "ratio",
                     .y = difference ? "descent_difference_1000" : "descent_alpha",
                     .where = where,
                     .title = "gradient descent",
                     .style = 1,
                     .mark = Mark::points},
                    {.data = "compare_ratios.csv",
                     .x = "ratio",
                     .y = difference ? "sgd_difference_1000" : "sgd_alpha",
                     .where = where,
                     .title = "stochastic gradients, mean and 95 %",
                     .style = 2,
                     .mark = Mark::bars,
                     .low = difference ? "sgd_difference_1000_low" : "sgd_low",
                     .high = difference ? "sgd_difference_1000_high" : "sgd_high"}};
    figure.panels.push_back(panel);
  }
  return figure;
}

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  const qkflow::CsvTable table = to.joined("ratios");
  Rows line({"parameterization", "ratio", "alpha", "mu_ov", "mu_qk", "t"});
  for (const std::string& name : options.parameterizations) {
    for (const double ratio : log_spaced(0.01, 100, 81)) {
      const auto closed = closed_form(name, options.task, CompareOptions::rates(ratio), options.start_of(name));
      const auto point = closed.at_loss(options.loss);
      line.row(name, ratio, point.alpha, point.mu_ov, point.mu_qk, closed.time(point));
    }
  }
  to.data("compare_attention_line", line.text());
  to.report.paragraph(fmt::format(
      "Training is stopped where the loss on all the data is {} nats, and attention is read off: faster query-key "
      "learning "
      "means sharper attention at the same loss. The line is the closed form, one root and no clock. Symbols are "
      "training "
      "of every matrix entry: gradient descent, and stochastic gradients (batch {}, {} seeds) with the same step, both "
      "interpolated to the loss between steps.",
      options.loss, options.batches.back(), options.seeds));
  to.figure(
      attention_figure(options, false),
      "Attention mass at the same loss against the ratio of learning rates, one panel a head: it rises with the "
      "ratio; gradient descent and stochastic gradients lie on the line of the closed form.",
      fmt::format("Attention mass where the loss is {} nats. Line: closed form. Squares and triangles: training. Data: "
                  "[compare_ratios.csv](compare_ratios.csv), "
                  "[compare_attention_line.csv](compare_attention_line.csv).",
                  options.loss));
  qkflow::HtmlTable shown{
      .caption = fmt::format("Attention at a loss of {} nats: the closed form, and how far training is "
                             "from it. The modified flow says what the step alone does; what stochastic "
                             "gradients add is in the last column (mean over seeds, 95 % interval).",
                             options.loss),
      .columns = {{"head", false},
                  {"*r*"},
                  {"step *h*"},
                  {"steps"},
                  {"*α*, closed form"},
                  {"gradient descent"},
                  {"modified flow"},
                  {"stochastic gradients"}}};
  double worst = 0, worst_rest = 0, worst_sgd = 0;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const auto number = [&](const char* column) { return table.number(row, column); };
    const double descent = number("descent_difference_1000") / 1000,
                 modified = number("modified_difference_1000") / 1000;
    const double half = (number("sgd_high") - number("sgd_low")) / 2;
    shown.rows.push_back(
        {table.text(row, "parameterization"), fmt::format("{:.3g}", number("ratio")),
         number_text(number("step_size"), 4), table.text(row, "steps"), fmt::format("{:.4f}", number("closed_alpha")),
         fmt::format("{:+.5f}", descent), fmt::format("{:+.5f}", modified),
         std::isnan(half) ? std::string("–")
                          : fmt::format("{:+.4f} ± {:.4f}", number("sgd_difference_1000") / 1000, half)});
    worst = std::max(worst, std::abs(descent));
    worst_rest = std::max(worst_rest, std::abs(descent - modified));
    if (!std::isnan(half)) worst_sgd = std::max(worst_sgd, std::abs(number("sgd_difference_1000") / 1000));
  }
  to.table(shown);
  to.finding(
      fmt::format("At the same loss gradient descent has the closed form's attention to {}; the modified flow, which "
                  "knows the step, "
                  "explains all but {} of that. Stochastic gradients deviate by up to {}.",
                  number_text(worst, 2), number_text(worst_rest, 2), number_text(worst_sgd, 2)));
  to.figure(
      attention_figure(options, true),
      "Training minus closed form in attention mass: gradient descent lies on the line of the modified flow; "
      "stochastic gradients deviate further.",
      "What is left of the figure before: attention of training minus that of the closed form. Gradient descent is "
      "where the modified flow says. Stochastic gradients differ further for a reason that is no error of the flow: "
      "noise moves the weights in directions off the line, which adds to the loss on all the data; when that loss "
      "is reached, training has gone on for longer. It shrinks with the batch size and the step, see the next "
      "section.");
}

}  // namespace

Study ratios_study(const CompareOptions& options) {
  Study study{.name = "ratios", .title = "Attention at the same loss, against the ratio", .present = present};
  for (const std::string& name : options.parameterizations) {
    for (const double ratio : ratio_grid(options)) {
      study.pieces.push_back(
          {fmt::format("ratios_{}_{:.4g}", name, ratio),
           fmt::format("ratios: {}, {}, ratio {}, batch {}, seeds {} from {}", options.task_identity(), name, ratio,
                       options.batches.back(), options.seeds, options.seed),
           8, [&options, name, ratio] { return ratio_rows(options, name, ratio); }});
    }
  }
  return study;
}

}  // namespace qkflow_program
