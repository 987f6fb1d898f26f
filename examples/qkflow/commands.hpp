// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>

namespace qkflow_program {

// One function a subcommand, each in a file of its own. It adds its options and, as the subcommand's callback, its
// work, which reports failure by an exception: qkflow::InvalidArgument for what the user asked for, qkflow::IoError for
// the outside world, qkflow::Interrupted for Ctrl-C.
void add_flow(CLI::App& app);
void add_design(CLI::App& app);
void add_train(CLI::App& app);
void add_figure(CLI::App& app);
void add_compare(CLI::App& app);

// The figures: subcommands of `figure`.
void add_figure_2(CLI::App& figure);
void add_figure_3(CLI::App& figure);
void add_figure_4(CLI::App& figure);

}  // namespace qkflow_program
