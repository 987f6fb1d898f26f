// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow design: how much faster the attention circuit must learn for a wanted attention at a wanted loss.

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands.hpp"
#include "options.hpp"
#include "qkflow/flow/inverse_design.hpp"
#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/csv.hpp"

namespace qkflow_program {

namespace {

struct DesignCommand {
  FlowOptions flow{};
  double alpha = 0;
  double loss = 0;
  std::string csv = "-";
};

void run(const DesignCommand& command) {
  const double ratio = with_reduced_flow(command.flow, [&](const auto& flow) {
    note_if_approximate(flow);
    return qkflow::ratio_for_attention(flow, command.flow.start, command.alpha, command.loss);
  });
  qkflow::AtomicFile file(command.csv);
  qkflow::CsvWriter csv(file, {"alpha", "loss", "ratio"});
  csv.row(command.alpha, command.loss, ratio);
  file.commit();
}

}  // namespace

void add_design(CLI::App& app) {
  const auto command = std::make_shared<DesignCommand>();
  CLI::App* sub =
      app.add_subcommand("design", "The ratio eta_QK / eta_OV that gives a wanted attention at a wanted loss");
  add_number(*sub, "--alpha", command->alpha, "A", "attention mass wanted on informative tokens")
      ->required()
      ->default_str("");
  add_number(*sub, "--loss", command->loss, "L", "loss at which it is wanted")->required()->default_str("");
  add_csv_option(*sub, command->csv);
  add_parameterization_options(*sub, command->flow);
  add_start_options(*sub, command->flow);
  add_rate_options(*sub, command->flow, "Learning rates (taken from a command line of flow; they do not enter)");
  add_task_options(*sub, command->flow);
  sub->footer(R"(Example: how much faster must attention learn to hold 0.9 of its mass at loss 0.01?

  $ qkflow design --alpha 0.9 --loss 0.01
  alpha,loss,ratio
  0.90000000000000002,0.01,20.071832739698685

The ratio times eta_OV is the --eta-qk with which qkflow flow ends there.)");
  sub->callback([command] { run(*command); });
}

}  // namespace qkflow_program
