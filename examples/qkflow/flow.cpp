// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow flow: one trajectory as CSV: the reduced flow by closed form or integrated, or every matrix entry integrated.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "integrate.hpp"
#include "matrix.hpp"
#include "options.hpp"
#include "qkflow/flow/closed_form.hpp"
#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/csv.hpp"

namespace qkflow_program {

namespace {

using Row = qkflow::TimedPoint<double>;

struct FlowCommand {
  FlowOptions flow{};
  IntegrationOptions integration{};
  MatrixOptions matrix{};
  End end{};
  std::string method = "closed";
  int points = 0;
  std::string csv = "-";
  bool statistics = false;
};

// The end of the trajectory by closed form. Also where an end that is never reached is found out, for both methods.
template <class Closed>
Row end_row(const Closed& closed, const End& end) {
  const auto point = end.loss    ? closed.at_loss(*end.loss)
                     : end.alpha ? closed.at_attention(*end.alpha)
                                 : closed.at_time(*end.time);
  const double t = end.time ? *end.time : closed.time(point);
  return {t, point.mu_ov, point.mu_qk, point.alpha, point.loss};
}

void print_statistics(const FlowCommand& command, const qkflow::SolveStatistics& s) {
  if (!command.statistics) return;
  fmt::print(stderr, "{}: {} steps, {} rejections, {} evaluations\n", command.integration.stepper, s.steps,
             s.rejections, s.evaluations);
}

std::vector<Row> integrated_rows(const FlowCommand& command, const ErasedFlow& flow) {
  Integrated result = integrate(flow, command.flow.start, command.end, {}, command.integration);
  if (command.points > 0) {
    // The end time is known now, and saving rows does not change the steps.
    const std::vector<double> times = save_times(result.rows.back().t, command.points);
    result = integrate(flow, command.flow.start, command.end, times, command.integration);
  }
  print_statistics(command, result.statistics);
  return result.rows;
}

// Options that would be silently without effect.
void refuse_idle_options(const FlowCommand& command) {
  const MatrixOptions& m = command.matrix;
  const auto refuse = [](const char* option, const char* reason) {
    throw qkflow::InvalidArgument(fmt::format("options: {} is for {}", option, reason));
  };
  if (command.method != "matrix") {
    if (!m.data.empty()) refuse("--data", "--method matrix");
    if (!m.init.empty()) refuse("--init", "--method matrix");
    if (!m.init_file.empty()) refuse("--init-file", "--method matrix");
    if (!m.checkpoint.empty()) refuse("--checkpoint", "--method matrix");
    return;
  }
  const qkflow::BlockTask<double>& task = command.flow.task;
  const qkflow::BlockTask<double> unset;
  if (!m.data.empty() &&
      (task.classes != unset.classes || task.block != unset.block || task.informative != unset.informative ||
       task.noise != unset.noise || task.noise_vocabulary != unset.noise_vocabulary)) {
    refuse("the block task's size", "runs without --data");
  }
}

void run_matrix(const FlowCommand& command, qkflow::AtomicFile& file) {
  MatrixRun run{command.flow, command.integration, command.matrix, command.end, command.points, {}};
  if (starts_on_line(command.matrix)) {
    // There theory knows the end, and whether it is ever reached.
    with_reduced_flow(command.flow, [&](const auto& flow) {
      const double end = end_row(qkflow::ClosedForm(flow, command.flow.start), command.end).t;
      if (flow.is_exact()) run.predicted_end = end;
    });
  }
  const MatrixTable table = integrate_matrices(run);
  print_statistics(command, table.statistics);
  qkflow::CsvWriter csv(file, table.columns);
  for (const std::vector<double>& row : table.rows) csv.row(row);
  file.commit();
}

void run(const FlowCommand& command) {
  const int ends =
      int(command.end.loss.has_value()) + int(command.end.alpha.has_value()) + int(command.end.time.has_value());
  if (ends != 1) {
    throw qkflow::InvalidArgument(
        fmt::format("exactly one of --stop-loss, --stop-alpha and --until must be given, not {}", ends));
  }
  if (command.points < 0) qkflow::throw_invalid("options", "points", command.points, "be at least 0");
  refuse_idle_options(command);

  qkflow::AtomicFile file(command.csv);  // before the work: a file that cannot be written is better known now
  if (command.method == "matrix") return run_matrix(command, file);
  const std::vector<Row> rows = with_reduced_flow(command.flow, [&](const auto& flow) {
    const qkflow::ClosedForm closed(flow, command.flow.start);
    const Row last = end_row(closed, command.end);
    note_if_approximate(flow);
    if (command.method == "ode") return integrated_rows(command, erase(flow));
    std::vector<Row> result = closed.trajectory(save_times(last.t, command.points));
    result.push_back(last);
    return result;
  });

  qkflow::CsvWriter csv(file, {"t", "mu_ov", "mu_qk", "alpha", "loss"});
  for (const Row& row : rows) csv.row(row.t, row.mu_ov, row.mu_qk, row.alpha, row.loss);
  file.commit();
}

}  // namespace

void add_flow(CLI::App& app) {
  const auto command = std::make_shared<FlowCommand>();
  CLI::App* sub = app.add_subcommand("flow", "One trajectory as CSV, by closed form or integrated");
  add_number(*sub, "--stop-loss", command->end.loss, "L", "end where the loss falls to L");
  add_number(*sub, "--stop-alpha", command->end.alpha, "A",
             "end where attention puts the mass A on informative tokens");
  add_number(*sub, "--until", command->end.time, "T", "end at time T");
  add_choice(*sub, "--method", command->method, {"closed", "ode", "matrix"},
             "closed form; integrated through Boost.Odeint; or every matrix entry integrated, on any data");
  add_count(*sub, "--points", command->points, "K",
            "rows before the last, log-spaced in 1 + t: t_k = (1 + T)^(k/K) - 1, the first at t = 0");
  add_csv_option(*sub, command->csv);
  sub->add_flag("--statistics", command->statistics, "print what the integration cost on standard error");
  add_parameterization_options(*sub, command->flow);
  add_rate_options(*sub, command->flow);
  add_start_options(*sub, command->flow);
  add_task_options(*sub, command->flow);
  add_integration_options(*sub, command->integration);
  add_matrix_options(*sub, command->matrix);
  sub->footer(R"(Example: where does training end if the attention circuit learns ten times as fast?

  $ qkflow flow --eta-qk 10 --stop-loss 1e-4
  t,mu_ov,mu_qk,alpha,loss
  9319247.2180372626,13.181851482650402,4.7735425890851744,0.92208058683741685,0.0001

The last row is the end; --points adds rows before it. --method ode gives the same by integration,
--method matrix by integrating every entry of both circuits (with --data FILE on data of your own), with more columns.)");
  sub->callback([command] { run(*command); });
}

}  // namespace qkflow_program
