// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, fourth question: stochastic gradients on the topic task. The dataset is a sample of the task, the
// flow is that of all its matrix entries, and runs differ by their seed alone.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "compare.hpp"
#include "qkflow/compare/batch_study.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/task/topic_task.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

constexpr double start_deviation = 0.02;
constexpr double loss_share = 0.1;  // the flow is followed until its loss is this share of the first

std::string batch_rows(const CompareOptions& options, const std::string& name) {
  const qkflow::TopicTask task{.length = options.length};
  const auto seed = static_cast<std::uint64_t>(options.seed);
  const auto dataset = task.dataset<double>(seed, static_cast<std::uint32_t>(options.sequences));
  const CompareModel model =
      dataset_model(name, dataset, 1 / std::sqrt(static_cast<double>(dataset.shape().tokens)), {.ov = 1, .qk = 1});
  const CompareObserver observe{&model};
  const State start = model.random_start(seed, start_deviation);
  const FieldFunction flow = [&](const State& x, State& v, const double& t) { model(x, v, t); };
  const double last_loss = loss_share * model.loss(start);
  const auto whole =
      solve_or_throw(flow, start, {.rtol = 1e-6, .save_every = 1},
                     {{.name = "loss",
                       .g = [&](const double&, const State& x) { return std::log(model.loss(x) / last_loss); },
                       .direction = qkflow::Direction::falling}});
  double largest = 0;
  const std::size_t stride = std::max<std::size_t>(1, whole.states.size() / 8);
  for (std::size_t i = 0; i < whole.states.size(); i += stride) {
    largest = std::max(largest, model.sharpness(whole.states[i]));
    qkflow::throw_if_interrupted();
  }
  // At least 100 steps, so that noise averages and the step is not what is seen.
  const double h = std::exp2(std::floor(std::log2(std::min(0.5 / largest, whole.t / 100))));
  const auto steps = static_cast<std::size_t>(std::ceil(whole.t / h));
  std::vector<std::size_t> saved;
  const std::size_t rows_kept = options.quick ? 4 : 12;
  for (std::size_t i = 1; i <= rows_kept; ++i) saved.push_back(i * steps / rows_kept);

  const auto descent = descend_field(model, start, {.step = h, .steps = steps, .save_steps = saved});
  const auto reference =
      solve_or_throw(flow, start, {.t_end = descent.t, .rtol = 1e-10, .save_times = descent.times}).states;

  Rows rows({"parameterization",
             "batch",
             "seeds",
             "step_size",
             "step",
             "t",
             "flow_loss",
             "flow_alpha",
             "descent_loss",
             "descent_alpha",
             "sgd_loss",
             "sgd_loss_low",
             "sgd_loss_high",
             "sgd_alpha",
             "sgd_alpha_low",
             "sgd_alpha_high",
             "spread",
             "chance",
             "distance",
             "systematic_square",
             "systematic_square_error",
             "flow_systematic_square",
             "descent_to_flow",
             "move"});
  for (const double batch : options.batches) {
    qkflow::EnsembleOptions sgd{.step = h,
                                .steps = steps,
                                .batch = static_cast<std::size_t>(batch),
                                .seeds = static_cast<std::size_t>(options.seeds),
                                .first_seed = seed,
                                .cancel = &qkflow::interrupt_flag()};
    sgd.save_steps.assign(saved.begin(), saved.end());
    const qkflow::Ensemble ensemble = model.sgd(start, sgd);
    qkflow::throw_if_interrupted();
    for (std::size_t row = 0; row < saved.size(); ++row) {
      const auto flow_seen = observe(reference[row]), descent_seen = observe(descent.states[row]);
      if (ensemble.seeds() < 3) continue;  // it diverged: there is nothing to say
      std::vector<double> losses, alphas;
      for (const State& state : ensemble.states[row]) {
        const auto seen = observe(state);
        losses.push_back(seen.loss);
        alphas.push_back(seen.alpha);
      }
      const auto loss = qkflow::sample_statistics(losses), alpha = qkflow::sample_statistics(alphas);
      const auto to_descent = qkflow::mean_distance(ensemble.states[row], descent.states[row]);
      const auto to_flow = qkflow::mean_distance(ensemble.states[row], reference[row]);
      rows.row(name, batch, ensemble.seeds(), h, saved[row], descent.times[row], flow_seen.loss, flow_seen.alpha,
               descent_seen.loss, descent_seen.alpha, loss.mean, loss.low(), loss.high(), alpha.mean, alpha.low(),
               alpha.high(), to_descent.spread, to_descent.chance, to_descent.distance, to_descent.systematic_square,
               to_descent.systematic_square_error, to_flow.systematic_square,
               (descent.states[row] - reference[row]).norm(), (reference[row] - start).norm());
    }
  }
  return rows.text();
}

struct BatchFit {
  qkflow::OrderStudy spread, systematic;
  std::size_t resolved = 0;
};

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  const qkflow::CsvTable table = to.joined("batches");
  to.report.paragraph(fmt::format(
      "The topic task has no closed form: the flow is integrated, every entry of every matrix, on a dataset of {} "
      "sampled "
      "sequences, from a small random start, until its loss is a tenth of the first. Stochastic gradients draw batches "
      "of "
      "that dataset with replacement; the mean over {} seeds is compared with gradient descent of the same step, and "
      "with "
      "the flow. Two things are kept apart. *Spread*: how far one run is from the mean of all; a step adds noise of "
      "covariance ~ *h*^{{2}}/*B*, so it falls as *B*^{{−1/2}}. *Systematic distance*: how far the mean of all "
      "possible "
      "runs is from gradient descent, estimated without the chance that the mean of few runs still has; noise acts on "
      "it "
      "through the curvature of the velocity, so it falls as 1/*B*.",
      options.sequences, options.seeds));

  Rows ends({"parameterization", "batch", "spread", "systematic", "systematic_low", "systematic_high", "resolved",
             "chance", "spread_fit", "systematic_fit", "descent_to_flow"});
  qkflow::HtmlTable shown{
      .caption =
          "How the mean of stochastic gradients approaches gradient descent as the batch grows, at the end of the "
          "run: slopes over 1/*B* with 95 % intervals. Distances are relative to the way the flow has gone.",
      .columns = {{"head", false},
                  {"steps"},
                  {"spread: slope"},
                  {"systematic: slope"},
                  {"batches resolved"},
                  {"systematic, smallest batch"},
                  {"largest batch"},
                  {"gradient descent to flow"}}};
  double low = 1e9, high = -1e9, spread_low = 1e9, spread_high = -1e9;
  for (const std::string& name : options.parameterizations) {
    std::map<double, std::size_t> last;  // the end of each batch size
    for (std::size_t row = 0; row < table.rows(); ++row) {
      if (table.text(row, "parameterization") == name) last[table.number(row, "batch")] = row;
    }
    std::vector<double> inverse, spread, resolved_inverse, systematic;
    for (const auto& [batch, row] : last) {
      const double move = table.number(row, "move"), square = table.number(row, "systematic_square");
      inverse.push_back(1 / batch);
      spread.push_back(table.number(row, "spread") / move);
      if (square > 2 * table.number(row, "systematic_square_error")) {
        resolved_inverse.push_back(1 / batch);
        systematic.push_back(std::sqrt(square) / move);
      }
    }
    const BatchFit fit{qkflow::fit_order(inverse, spread, {.margin = 1}),
                       qkflow::fit_order(resolved_inverse, systematic, {.margin = 1}), systematic.size()};
    double first_systematic = std::nan(""), last_systematic = std::nan(""), to_flow = 0;
    std::string steps;
    for (const auto& [batch, row] : last) {
      const double move = table.number(row, "move"), square = table.number(row, "systematic_square");
      const double error = table.number(row, "systematic_square_error");
      const bool resolved = square > 2 * error;
      const double value = std::sqrt(std::max(0.0, square)) / move;
      to_flow = table.number(row, "descent_to_flow") / move;
      steps = table.text(row, "step");
      ends.row(name, batch, table.number(row, "spread") / move, resolved ? value : std::nan(""),
               resolved ? std::sqrt(std::max(square - 2 * error, square * 1e-2)) / move : std::nan(""),
               resolved ? std::sqrt(square + 2 * error) / move : std::nan(""), resolved ? 1 : 0,
               table.number(row, "chance") / move, fit.spread.constant * std::pow(1 / batch, fit.spread.slope),
               fit.systematic.constant * std::pow(1 / batch, fit.systematic.slope), to_flow);
      if (std::isnan(first_systematic)) first_systematic = value;
      last_systematic = value;
    }
    shown.rows.push_back({name, steps, slope_text(fit.spread), slope_text(fit.systematic),
                          fmt::format("{} of {}", fit.resolved, last.size()), number_text(first_systematic, 2),
                          number_text(last_systematic, 2), number_text(to_flow, 2)});
    if (std::isfinite(fit.systematic.slope)) {
      low = std::min(low, fit.systematic.slope);
      high = std::max(high, fit.systematic.slope);
    }
    spread_low = std::min(spread_low, fit.spread.slope);
    spread_high = std::max(spread_high, fit.spread.slope);
  }
  to.data("compare_batch_ends", ends.text());
  to.table(shown);
  to.finding(fmt::format("Single runs approach their mean as *B* to the power −{:.2f} to −{:.2f} (expected: −1/2)",
                         spread_low, spread_high) +
             (low <= high ? fmt::format("; the mean approaches gradient descent as *B* to the power −{:.2f} to −{:.2f} "
                                        "(expected: −1), where the seeds resolve it.",
                                        low, high)
                          : std::string("; too few seeds resolve how the mean approaches gradient descent.")));

  using Mark = qkflow::Curve::Mark;
  const qkflow::Axis time{.label = "time&{i}{/:Italic t}&{i}= step ×&{i}{/:Italic h}", .low = 0};
  const std::string first = options.parameterizations.front();
  qkflow::Figure paths{.name = "compare_batches_paths",
                       .description = "Topic task: the flow and the mean of stochastic gradients",
                       .columns = 2,
                       .width_cm = 17.5,
                       .panel_height_cm = 5.6,
                       .note = "bars: 95 % interval of the mean over seeds"};
  for (const auto& [title, flow, mean, axis] :
       {std::tuple{"loss on all the data", "flow_loss", "sgd_loss", qkflow::Axis{.label = "loss [nats]", .low = 0}},
        std::tuple{"attention on relevant tokens", "flow_alpha", "sgd_alpha",
                   qkflow::Axis{.label = "attention mass"}}}) {
    qkflow::Panel panel{.title = title, .x = time, .y = axis};
    const std::string head = fmt::format("stringcolumn(\"parameterization\") eq \"{}\"", first);
    panel.curves.push_back({.data = "compare_batches.csv",
                            .x = "t",
                            .y = flow,
                            .where = head + " && " + qkflow::where_equal("batch", options.batches.front()),
                            .title = "flow",
                            .style = 4});
    for (std::size_t i = 0; i < std::min<std::size_t>(options.batches.size(), 4); ++i) {
      panel.curves.push_back({.data = "compare_batches.csv",
                              .x = "t",
                              .y = mean,
                              .where = head + " && " + qkflow::where_equal("batch", options.batches[i]),
                              .title = fmt::format("batch {:g}", options.batches[i]),
                              .style = i,
                              .mark = Mark::bars,
                              .low = std::string(mean) + "_low",
                              .high = std::string(mean) + "_high"});
    }
    paths.panels.push_back(panel);
  }
  to.figure(paths,
            "Loss and attention against time: the means of stochastic gradients lie on the line of the flow, the "
            "closer the larger the batch.",
            first +
                " on the topic task. Line: the flow of the dataset, all matrix entries integrated. Symbols: mean over "
                "seeds of stochastic gradients. Data: [compare_batches.csv](compare_batches.csv).");

  qkflow::Figure rates{
      .name = "compare_batches_rates",
      .description = "Spread and systematic distance of stochastic gradients against the batch size",
      .columns = options.parameterizations.size() > 2 ? std::size_t{4} : options.parameterizations.size(),
      .width_cm = 17.5,
      .panel_height_cm = 5.2,
      .note = "bars: two standard errors; lines: least squares"};
  for (const std::string& name : options.parameterizations) {
    const std::string where = fmt::format("stringcolumn(\"parameterization\") eq \"{}\"", name);
    const std::string data = "compare_batch_ends.csv";
    rates.panels.push_back({.title = name,
                            .x = {.label = "batch size&{i}{/:Italic B}", .logarithmic = true},
                            .y = {.label = "relative distance", .logarithmic = true},
                            .curves = {{.data = data,
                                        .x = "batch",
                                        .y = "spread",
                                        .where = where,
                                        .title = "spread of single runs",
                                        .style = 0,
                                        .mark = Mark::points},
                                       {.data = data,
                                        .x = "batch",
                                        .y = "spread_fit",
                                        .where = where,
                                        .title = "spread of single runs",
                                        .style = 0},
                                       {.data = data,
                                        .x = "batch",
                                        .y = "systematic",
                                        .where = where,
                                        .title = "systematic distance of the mean",
                                        .style = 1,
                                        .mark = Mark::bars,
                                        .low = "systematic_low",
                                        .high = "systematic_high"},
                                       {.data = data,
                                        .x = "batch",
                                        .y = "systematic_fit",
                                        .where = where,
                                        .title = "systematic distance of the mean",
                                        .style = 1},
                                       {.data = data,
                                        .x = "batch",
                                        .y = "descent_to_flow",
                                        .where = where,
                                        .title = "gradient descent to flow",
                                        .style = 2}}});
  }
  to.figure(
      rates,
      "Distances against batch size on logarithmic axes: the spread falls as the root of the batch size, the "
      "systematic distance as the batch size.",
      "At the end of the run, relative to the way the flow has gone. The systematic distance is from gradient "
      "descent of the same step; what gradient descent itself is from the flow (dots and dashes) is the step's, and "
      "does not depend on the batch. Data: [compare_batch_ends.csv](compare_batch_ends.csv).");
}

}  // namespace

Study batches_study(const CompareOptions& options) {
  Study study{.name = "batches", .title = "Stochastic gradients: the mean approaches the flow", .present = present};
  for (const std::string& name : options.parameterizations) {
    study.pieces.push_back(
        {"batches_" + name,
         fmt::format("batches: qkflow {}, topic task, length {}, sequences {}, {}, batches {}, seeds {} from {}{}",
                     qkflow::version_text, options.length, options.sequences, name, fmt::join(options.batches, " "),
                     options.seeds, options.seed, options.quick ? ", quick" : ""),
         40, [&options, name] { return batch_rows(options, name); }});
  }
  return study;
}

}  // namespace qkflow_program
