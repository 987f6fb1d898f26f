// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow flow --method matrix: every entry of the circuits, on the block task or on a dataset of the user's.

#include "matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "matrix_model.hpp"
#include "qkflow/flow/matrix_checkpoint.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"

namespace qkflow_program {

namespace {

using State = ErasedMatrixFlow::State;

std::vector<qkflow::Stop<State>> stops_of(const End& end, const ErasedMatrixFlow& flow) {
  std::vector<qkflow::Stop<State>> stops;
  if (end.loss) {
    stops.push_back(
        {.name = "loss",
         .g = [&flow, loss = *end.loss](const double&, const State& x) { return std::log(flow.loss(x) / loss); },
         .direction = qkflow::Direction::falling});
  }
  if (end.alpha) {
    stops.push_back(
        {.name = "alpha",
         .g = [&flow, alpha = *end.alpha](const double&, const State& x) { return flow.attention(x) - alpha; },
         .direction = qkflow::Direction::rising});
  }
  return stops;
}

// Everything that must be the same for a run to be the continuation of another.
std::string identity(const MatrixRun& run, const ErasedMatrixFlow& flow, const std::vector<double>& times) {
  const auto& f = run.flow;
  std::string text = fmt::format(
      "{} eta_ov {} eta_qk {} scale {} factors {} {} stepper {} rtol {} atol {} step {} parameters {} start {} {} {}",
      f.parameterization, f.rates.ov, f.rates.qk, f.task.score_scale, f.factors_ov.value_or(2),
      f.factors_qk.value_or(2), run.integration.stepper, run.integration.rtol, run.integration.atol,
      run.integration.step, flow.start.size(), flow.start.sum(), flow.start.norm(), flow.loss(flow.start));
  if (!times.empty()) text += fmt::format(" rows {} to {}", times.size(), times.back());
  return text;
}

void check(const MatrixRun& run) {
  const MatrixOptions& m = run.matrix;
  const auto at_least = [](const char* option, auto value, auto least) {
    if (value < least) {
      qkflow::throw_invalid("options", option, value, "be at least " + qkflow::to_text(least));
    }
  };
  at_least("max-steps", run.integration.max_steps, 1);
  at_least("dim", m.dim, 0);
  at_least("threads", m.threads, 0);
  at_least("seed", m.seed, 0);
  at_least("singular-values", m.singular_values, 0);
  at_least("checkpoint-seconds", m.checkpoint_seconds, 0.0);
  if (!m.data.empty() && m.init == "aligned") {
    throw qkflow::InvalidArgument("options: --init aligned is a start of the block task, not of --data");
  }
  if (!m.init_file.empty() && !m.init.empty()) {
    throw qkflow::InvalidArgument("options: --init and --init-file cannot both be given");
  }
  if (!starts_on_line(m)) {
    const auto refuse = [](const char* option) {
      throw qkflow::InvalidArgument(fmt::format("options: {} belongs to the start --init aligned", option));
    };
    if (run.flow.lambda_qk) refuse("--lambda-qk");
    if (run.flow.lambda_ov) refuse("--lambda-ov");
    if (run.flow.start.mu_ov != 0) refuse("--mu-ov0");
    if (run.flow.start.mu_qk != 0) refuse("--mu-qk0");
  }
}

}  // namespace

bool starts_on_line(const MatrixOptions& options) {
  return options.data.empty() && options.init_file.empty() && (options.init.empty() || options.init == "aligned");
}

std::vector<double> save_times(double end, int points) {
  if (points > 0 && !std::isfinite(end)) {
    qkflow::throw_invalid("options", "points", points, "be 0 where the end time exceeds the range of double");
  }
  std::vector<double> times;
  for (int k = 0; k < points; ++k) times.push_back(std::expm1(std::log1p(end) * k / points));
  return times;
}

void add_matrix_options(CLI::App& app, MatrixOptions& options) {
  const auto in_group = [](CLI::Option* option) { option->group("Matrix flow (--method matrix)"); };
  in_group(app.add_option("--data", options.data,
                          "learn this file instead of the block task: tab-separated label, query, tokens, ...")
               ->type_name("FILE"));
  in_group(app.add_flag("--ids", options.ids, "labels, queries and tokens of the file are numbers from 0, not words"));
  in_group(add_choice(app, "--init", options.init,
                      {"aligned", "zero", "identity", "uniform", "gaussian", "balanced", "pytorch"},
                      "start; default: aligned (at --mu-ov0, --mu-qk0) for the block task, uniform for a file"));
  in_group(app.add_option("--init-file", options.init_file, "start from a parameter file")->type_name("FILE"));
  in_group(add_number(app, "--init-size", options.init_size, "x",
                      "diagonal of --init identity, standard deviation of gaussian and balanced"));
  in_group(add_count(app, "--seed", options.seed, "k", "of random starts"));
  in_group(add_count(app, "--dim", options.dim, "d", "inner dimension of factors; 0: the rank the circuit can use"));
  in_group(add_count(app, "--threads", options.threads, "k", "threads of the gradient; 0: one a core. Same bits"));
  in_group(
      app.add_option("--checkpoint", options.checkpoint, "keep the run in this file, and go on from it if it is there")
          ->type_name("FILE"));
  in_group(add_number(app, "--checkpoint-seconds", options.checkpoint_seconds, "s", "write it at most this often"));
  in_group(add_count(app, "--singular-values", options.singular_values, "k",
                     "columns with the k largest singular values of each circuit"));
  in_group(app.add_flag("--sharpness", options.sharpness, "a column with the largest eigenvalue of the Hessian"));
}

MatrixTable integrate_matrices(const MatrixRun& requested) {
  MatrixRun run = requested;
  check(run);
  // A relative error alone would chase the rounding of entries that are zero by symmetry.
  if (run.integration.atol == 0) run.integration.atol = run.integration.rtol / 1000;
  if (run.matrix.init.empty() && !run.matrix.data.empty()) run.matrix.init = "uniform";
  const ErasedMatrixFlow flow = make_matrix_flow(run);
  MatrixTable table{flow.columns, {}, {}};

  const bool keeps = !run.matrix.checkpoint.empty();
  const std::optional<double> known_end = run.end.time ? run.end.time : run.predicted_end;
  if (run.points > 0 && keeps && !known_end) {
    throw qkflow::InvalidArgument(
        "options: --points with --checkpoint needs an end time known beforehand: give --until instead");
  }
  qkflow::Progress progress("integrating", 0);
  std::vector<double> notes;  // the table's rows, one after the other
  qkflow::SolveOptions<State> options{.rtol = run.integration.rtol,
                                      .atol = run.integration.atol,
                                      .first_step = run.integration.step,
                                      .max_steps = static_cast<std::size_t>(run.integration.max_steps),
                                      .save_end = false,
                                      .cancel = &qkflow::interrupt_flag()};
  if (run.end.time) options.t_end = *run.end.time;
  options.on_save = [&](double t, const State& x) {
    const std::vector<double> row = flow.row(t, x);
    notes.insert(notes.end(), row.begin(), row.end());
  };
  options.on_step = [&progress](double, const State&, const qkflow::SolveStatistics& statistics) {
    progress.update(static_cast<double>(statistics.steps));
  };
  const std::vector<qkflow::Stop<State>> stops = stops_of(run.end, flow);
  const auto integrate = [&](const std::vector<double>& times) {
    notes.clear();
    options.save_times = times;
    const qkflow::CheckpointOptions keep{.file = run.matrix.checkpoint,
                                         .identity = identity(run, flow, times),
                                         .seconds = run.matrix.checkpoint_seconds,
                                         .notes = &notes};
    qkflow::Solution<State> solution = qkflow::with_method(run.integration.stepper, [&](auto method) {
      return keeps ? qkflow::solve_with_checkpoints(flow.field, flow.start, options, stops, keep, method)
                   : qkflow::solve(flow.field, flow.start, options, stops, method);
    });
    progress.finish();
    const std::string fate = keeps ? "; the same command goes on from there" : "; nothing was written";
    if (solution.status == qkflow::Status::cancelled) {
      throw qkflow::Interrupted("interrupted at t = " + qkflow::to_text(solution.t) + fate);
    }
    if (!solution.success()) throw std::runtime_error("integration: " + solution.message + (keeps ? fate : ""));
    return solution;
  };

  qkflow::Solution<State> solution = integrate(known_end ? save_times(*known_end, run.points) : std::vector<double>{});
  if (run.points > 0 && !known_end) solution = integrate(save_times(solution.t, run.points));
  table.statistics = solution.statistics;
  const std::size_t width = table.columns.size();
  for (std::size_t i = 0; i + width <= notes.size(); i += width) {
    const auto first = notes.begin() + static_cast<std::ptrdiff_t>(i);
    if (*first < solution.t) table.rows.emplace_back(first, first + static_cast<std::ptrdiff_t>(width));
  }
  table.rows.push_back(flow.row(solution.t, solution.x));
  return table;
}

}  // namespace qkflow_program
