// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow compare, sixth question: momentum and Adam have flows of their own. Do they follow them, and do they stay on
// the line on which the theory lives?

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "compare.hpp"
#include "qkflow/compare/continuous_limit.hpp"
#include "qkflow/report/interrupt.hpp"

namespace qkflow_program {

namespace {

using State = Eigen::VectorXd;

constexpr double beta = 0.9;
constexpr double adam_epsilon = 1e-6;  // above the rounding of gradients that vanish by symmetry

// Adam's second factor: the usual one, and one with a memory of ten steps.
constexpr std::array<double, 2> adam_factors{0.999, 0.9};

std::vector<double> adam_steps(const CompareOptions& options) {
  return options.quick ? std::vector<double>{3e-2, 1e-2} : std::vector<double>{3e-2, 1e-2, 3e-3, 1e-3};
}

// Heavy ball on the line against the flow with all rates divided by 1 - beta, and against its second-order limit.
std::string momentum_rows(const CompareOptions& options, const std::string& name) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareLine line = c.line();
  const CompareField& field = line;
  const auto length = [&](const State& x) { return std::sqrt((line.metric.array() * x.array().square()).sum()); };
  const qkflow::HeavyBall rule{beta};
  Rows rows({"parameterization", "ratio", "beta", "step_size", "steps", "t", "first_error", "second_error"});
  double h = c.steps.front() * (1 - beta) / 2;
  const double end = c.end * (1 - beta);
  for (std::size_t i = 0; i < c.steps.size(); ++i, h /= 2) {
    const auto count = static_cast<std::size_t>(std::max(1LL, std::llround(end / h)));
    const double t = h * static_cast<double>(count);
    qkflow::HeavyBallFlow first(field, rule, 0.0), second(field, rule, h);
    const auto solved = [&](auto& limit, const State& start) {
      return solve_or_throw([&](const State& x, State& v, const double& s) { limit(x, v, s); }, start,
                            {.t_end = t, .rtol = 1e-12})
          .x;
    };
    const State reference = solved(first, line.start), corrected = solved(second, second.start(line.start));
    const auto run =
        qkflow::descend(field, line.start, {.step = h, .steps = count, .cancel = &qkflow::interrupt_flag()}, rule);
    qkflow::throw_if_interrupted();
    const double move = length(reference - line.start);
    rows.row(name, c.ratio, beta, h, count, t, length(run.x - reference) / move, length(run.x - corrected) / move);
  }
  return rows.text();
}

// Adam with all matrix entries, and the flow of signs.
std::string adam_rows(const CompareOptions& options, const std::string& name) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareModel model = c.model();
  const CompareObserver observe{&model};
  const State start = model.on_line(c.start);
  const CompareField& field = model;
  qkflow::SignFlow sign(field, adam_epsilon, model.rates);
  const auto whole =
      solve_or_throw([&](const State& x, State& v, const double& t) { sign(x, v, t); }, start,
                     {.rtol = 1e-6, .atol = 1e-8, .save_every = 1},
                     {{.name = "loss",
                       .g = [&](const double&, const State& x) { return std::log(model.loss(x) / options.loss); },
                       .direction = qkflow::Direction::falling}});
  Rows rows({"parameterization", "beta2", "step_size", "step", "t", "loss", "alpha", "off_line", "error"});
  std::vector<double> times;
  constexpr int kept = 24;
  for (int i = 1; i <= kept; ++i) times.push_back(whole.t * i / kept);
  times.back() = whole.t;
  const auto flow = solve_or_throw([&](const State& x, State& v, const double& t) { sign(x, v, t); }, start,
                                   {.t_end = whole.t, .rtol = 1e-6, .atol = 1e-8, .save_times = times});
  for (std::size_t i = 0; i < flow.states.size(); ++i) {
    const auto seen = observe(flow.states[i]);
    rows.row(name, adam_factors[0], 0.0, 0, flow.times[i], seen.loss, seen.alpha, seen.off_line, 0.0);
  }
  for (const double beta2 : adam_factors)
    for (const double h : adam_steps(options)) {
      const auto last = static_cast<std::size_t>(std::ceil(whole.t / h));
      std::vector<std::size_t> saved;
      for (int i = 1; i <= kept; ++i) {
        const std::size_t step = std::max<std::size_t>(1, last * static_cast<std::size_t>(i) / kept);
        if (saved.empty() || step > saved.back()) saved.push_back(step);
      }
      const auto run = qkflow::descend(
          field, start, {.step = h, .steps = last, .save_steps = saved, .cancel = &qkflow::interrupt_flag()},
          qkflow::AdamRule{.beta2 = beta2, .epsilon = adam_epsilon, .rates = model.rates});
      qkflow::throw_if_interrupted();
      const auto beside = solve_or_throw([&](const State& x, State& v, const double& t) { sign(x, v, t); }, start,
                                         {.t_end = run.t, .rtol = 1e-6, .atol = 1e-8, .save_times = run.times});
      for (std::size_t i = 0; i < run.states.size(); ++i) {
        const auto seen = observe(run.states[i]);
        rows.row(name, beta2, h, run.saved_steps[i], run.times[i], seen.loss, seen.alpha, seen.off_line,
                 (run.states[i] - beside.states[i]).norm() / (beside.states[i] - start).norm());
      }
    }
  return rows.text();
}

// How far from the line each rule is, against the loss it has reached.
std::string line_rows(const CompareOptions& options, const std::string& name) {
  const Case c = make_case(options, name, options.middle_ratio());
  const CompareModel model = c.model();
  const CompareObserver observe{&model};
  const CompareField& field = model;
  const State start = model.on_line(c.start);
  Rows rows({"parameterization", "rule", "step", "loss", "mu_ov", "mu_qk", "off_line"});
  const auto add = [&](const char* rule, const auto& steps, const auto& states) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto seen = observe(states[i]);
      rows.row(name, rule, steps[i], seen.loss, seen.mu_ov, seen.mu_qk, seen.off_line);
    }
  };
  const double h = c.steps.front();
  const auto run = [&](const char* name_of_rule, const auto& rule, double step, std::size_t limit) {
    // Twice: once for the number of steps until the loss is there, once to keep rows evenly on the way.
    const auto count =
        qkflow::descend(field, start,
                        {.step = step,
                         .steps = limit,
                         .stop = [&](std::size_t, const State& x) { return model.loss(x) <= options.loss; },
                         .cancel = &qkflow::interrupt_flag()},
                        rule)
            .steps;
    const auto saved = log_steps(std::max<std::size_t>(1, count), 16);
    const auto kept = qkflow::descend(
        field, start, {.step = step, .steps = count, .save_steps = saved, .cancel = &qkflow::interrupt_flag()}, rule);
    qkflow::throw_if_interrupted();
    add(name_of_rule, kept.saved_steps, kept.states);
    return count;
  };
  const std::size_t steps = run("gradient descent", qkflow::GradientDescent{}, h, 10 * c.step_count(h));
  run("momentum", qkflow::HeavyBall{beta}, h * (1 - beta), 10 * c.step_count(h));
  run("Adam", qkflow::AdamRule{.epsilon = adam_epsilon, .rates = model.rates}, 1e-2, 20000);
  qkflow::EnsembleOptions sgd{.step = h,
                              .steps = steps,
                              .batch = 32,
                              .seeds = 1,
                              .first_seed = static_cast<std::uint64_t>(options.seed),
                              .cancel = &qkflow::interrupt_flag()};
  for (const std::size_t step : log_steps(std::max<std::size_t>(1, steps), 16)) sgd.save_steps.push_back(step);
  const auto ensemble = model.sgd(start, sgd);
  qkflow::throw_if_interrupted();
  std::vector<State> states;
  for (const auto& row : ensemble.states) {
    if (!row.empty()) states.push_back(row.front());
  }
  add("stochastic gradients", sgd.save_steps, states);
  return rows.text();
}

qkflow::OrderStudy fit(const qkflow::CsvTable& table, const std::string& name, const char* column) {
  std::vector<double> steps, errors;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    if (table.text(row, "parameterization") != name) continue;
    steps.push_back(table.number(row, "step_size"));
    errors.push_back(table.number(row, column));
  }
  return qkflow::fit_order(steps, errors, {.floor = 1e-11});
}

void present(Presentation& to) {
  const CompareOptions& options = to.options;
  const qkflow::CsvTable momentum = to.joined("momentum");
  const qkflow::CsvTable adam = to.joined("adam");
  const qkflow::CsvTable line = to.joined("line");
  const auto head = [](const std::string& name) {
    return fmt::format("stringcolumn(\"parameterization\") eq \"{}\"", name);
  };
  using Mark = qkflow::Curve::Mark;
  const std::size_t columns = options.parameterizations.size() > 2 ? std::size_t{4} : options.parameterizations.size();
  to.report.paragraph(fmt::format(
      "*Momentum* (heavy ball, *β* = {}) follows the flow with all rates divided by 1 − *β*, to first order in *h*; "
      "the "
      "equation and the start that make up for the way lost while momentum builds up are right to second order. *Adam* "
      "with "
      "fixed factors tends to the flow of signs as *h* falls: every entry moves at its learning rate, whatever its "
      "gradient, so the equation is another, and it does not keep the line: an output matrix proportional to the signs "
      "of "
      "*D*_{{OV}} is not one proportional to *D*_{{OV}}. Its memory is 1/(1 − *β*_{{2}}) steps, 1000 in its usual "
      "form: the limit shows only where that is short against the run, which the usual form at the usual steps is not. "
      "With *β*_{{2}} = 0.9 it does where the output is one matrix. Heads with a factorized output meet the loss of "
      "the flow, but end elsewhere among their entries; why is not examined here.",
      beta));

  qkflow::Figure orders{.name = "compare_momentum",
                        .description = "Momentum against its continuous limits",
                        .columns = columns,
                        .width_cm = 17.5,
                        .panel_height_cm = 5.2};
  qkflow::HtmlTable shown{
      .caption =
          "Momentum against its limits, on the line: slope of the error over the step, and the error "
          "at the smallest step (relative to the way gone).",
      .columns = {{"head", false},
                  {"flow with rates / (1 − *β*): slope"},
                  {"error"},
                  {"second-order limit: slope"},
                  {"error"}}};
  for (const std::string& name : options.parameterizations) {
    const auto first = fit(momentum, name, "first_error"), second = fit(momentum, name, "second_error");
    shown.rows.push_back({name, slope_text(first), number_text(first.rows.back().error, 2), slope_text(second),
                          number_text(second.rows.back().error, 2)});
    orders.panels.push_back({.title = name,
                             .x = {.label = "step&{i}{/:Italic h}", .logarithmic = true},
                             .y = {.label = "relative error", .logarithmic = true},
                             .curves = {{.data = "compare_momentum.csv",
                                         .x = "step_size",
                                         .y = "first_error",
                                         .where = head(name),
                                         .title = "flow with rates / (1 −&{i}{/:Italic β})",
                                         .style = 0,
                                         .mark = Mark::line_and_points},
                                        {.data = "compare_momentum.csv",
                                         .x = "step_size",
                                         .y = "second_error",
                                         .where = head(name),
                                         .title = "second-order limit",
                                         .style = 1,
                                         .mark = Mark::line_and_points}}});
  }
  to.table(shown);
  to.figure(orders, "Error of the two continuous limits of momentum against the step: slopes 1 and 2.",
            "Momentum against its continuous limits. Data: [compare_momentum.csv](compare_momentum.csv).");

  qkflow::Figure paths{.name = "compare_adam",
                       .description = "Adam against the flow of signs",
                       .columns = columns,
                       .width_cm = 17.5,
                       .panel_height_cm = 5.2};
  const std::vector<double> steps = adam_steps(options);
  qkflow::HtmlTable distances{
      .caption =
          "Adam against the flow of signs: distance over all entries at the end, relative to the "
          "way gone.",
      .columns = {{"head", false}, {"*β*_{2}"}}};
  for (const double h : steps) distances.columns.push_back({"*h* = " + number_text(h, 1)});
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{.title = name,
                        .x = {.label = "time&{i}{/:Italic t}&{i}= step ×&{i}{/:Italic h}", .low = 0},
                        .y = {.label = "loss [nats]", .logarithmic = true}};
    panel.curves.push_back({.data = "compare_adam.csv",
                            .x = "t",
                            .y = "loss",
                            .where = head(name) + " && " + qkflow::where_equal("step_size", 0),
                            .title = "flow of signs",
                            .style = 4});
    for (const double beta2 : adam_factors) {
      std::vector<std::string> cells{name, fmt::format("{:g}", beta2)};
      for (std::size_t i = 0; i < steps.size(); ++i) {
        double error = std::nan("");
        for (std::size_t row = 0; row < adam.rows(); ++row) {
          if (adam.text(row, "parameterization") == name && adam.number(row, "step_size") == steps[i] &&
              adam.number(row, "beta2") == beta2) {
            error = adam.number(row, "error");
          }
        }
        cells.push_back(number_text(error, 2));
        const bool first = beta2 == adam_factors[0];
        if (i != (first ? 0 : steps.size() - 1) && i != steps.size() - 1) continue;  // the ends are enough to look at
        panel.curves.push_back({.data = "compare_adam.csv",
                                .x = "t",
                                .y = "loss",
                                .where = head(name) + " && " + qkflow::where_equal("step_size", steps[i]) + " && " +
                                         qkflow::where_equal("beta2", beta2),
                                .title = "{/:Italic h}&{i}= " + number_text(steps[i], 1) +
                                         fmt::format(",&{{i}}{{/:Italic β}}_{{2}}&{{i}}= {:g}", beta2),
                                .style = first ? (i == 0 ? std::size_t{0} : std::size_t{1}) : std::size_t{2},
                                .mark = Mark::line_and_points});
      }
      distances.rows.push_back(cells);
    }
    paths.panels.push_back(panel);
  }
  to.table(distances);
  to.figure(paths, "Loss against time for Adam at several steps, beside the flow of signs.",
            "Adam with all matrix entries, and the flow of signs (black), its limit. Time is step number times "
            "learning rate. Data: "
            "[compare_adam.csv](compare_adam.csv).");

  const std::array<const char*, 4> rules{"gradient descent", "momentum", "stochastic gradients", "Adam"};
  qkflow::Figure off{.name = "compare_line",
                     .description = "How far from the line of the theory each rule is",
                     .columns = columns,
                     .width_cm = 17.5,
                     .panel_height_cm = 5.2,
                     .note = "gradient descent and momentum: rounding"};
  qkflow::HtmlTable places{
      .caption = fmt::format("Distance from the line (largest matrix entry) where the loss is {} nats, and "
                             "the place on it.",
                             options.loss),
      .columns = {{"head", false}, {"rule", false}, {"steps"}, {"*μ*_{OV}"}, {"*μ*_{QK}"}, {"off the line"}}};
  double adam_least = 1e300, rounding = 0;
  for (const std::string& name : options.parameterizations) {
    qkflow::Panel panel{.title = name,
                        .x = {.label = "loss [nats]", .logarithmic = true, .reversed = true},
                        .y = {.label = "distance from the line", .logarithmic = true}};
    for (std::size_t i = 0; i < rules.size(); ++i) {
      panel.curves.push_back({.data = "compare_line.csv",
                              .x = "loss",
                              .y = "off_line",
                              .where = head(name) + fmt::format(" && stringcolumn(\"rule\") eq \"{}\"", rules[i]),
                              .title = rules[i],
                              .style = i,
                              .mark = Mark::line_and_points});
      std::optional<std::size_t> last;
      for (std::size_t row = 0; row < line.rows(); ++row) {
        if (line.text(row, "parameterization") == name && line.text(row, "rule") == rules[i]) last = row;
      }
      if (!last) continue;
      const double distance = line.number(*last, "off_line");
      places.rows.push_back({name, rules[i], line.text(*last, "step"), number_text(line.number(*last, "mu_ov")),
                             number_text(line.number(*last, "mu_qk")), number_text(distance, 2)});
      if (i == 3) adam_least = std::min(adam_least, distance);
      if (i < 2) rounding = std::max(rounding, distance);
    }
    off.panels.push_back(panel);
  }
  to.table(places, false);
  to.finding(fmt::format(
      "Gradient descent and momentum stay on the line to {}; Adam leaves it with its first step and ends at "
      "least {} away.",
      number_text(rounding, 2), number_text(adam_least, 2)));
  to.figure(off,
            "Distance from the line against the loss: rounding for gradient descent and momentum, small for stochastic "
            "gradients, of order one for Adam.",
            "How far training is from the line on which the two numbers tell everything. Data: "
            "[compare_line.csv](compare_line.csv).");
}

}  // namespace

Study optimizers_study(const CompareOptions& options) {
  Study study{.name = "optimizers", .title = "Momentum and Adam: flows of their own", .present = present};
  for (const std::string& name : options.parameterizations) {
    const std::string identity = fmt::format("{}, {}, ratio {}", options.task_identity(), name, options.middle_ratio());
    study.pieces.push_back(
        {"momentum_" + name, "momentum: " + identity, 1, [&options, name] { return momentum_rows(options, name); }});
    study.pieces.push_back(
        {"adam_" + name, "adam: " + identity, 20, [&options, name] { return adam_rows(options, name); }});
    study.pieces.push_back({"line_" + name, fmt::format("line: {}, seed {}", identity, options.seed), 4,
                            [&options, name] { return line_rows(options, name); }});
  }
  return study;
}

}  // namespace qkflow_program
