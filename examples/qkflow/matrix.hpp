// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "integrate.hpp"
#include "options.hpp"

namespace qkflow_program {

/// What `--method matrix` knows beyond the reduced flow.
struct MatrixOptions {
  std::string data{};  ///< a dataset file; empty: the block task
  bool ids = false;    ///< of that file: words are ids
  std::string init{};  ///< empty: aligned for the block task, uniform for a file
  std::string init_file{};
  double init_size = 0.01;
  int seed = 1;
  int dim = 0;  ///< inner dimension of factors; 0: as large as the circuit's rank can be
  int threads = 1;
  std::string checkpoint{};
  double checkpoint_seconds = 60;
  int singular_values = 0;
  bool sharpness = false;
};

void add_matrix_options(CLI::App& app, MatrixOptions& options);

/// A matrix trajectory as a table.
struct MatrixTable {
  std::vector<std::string> columns;
  std::vector<std::vector<double>> rows;
  qkflow::SolveStatistics statistics;
};

struct MatrixRun {
  FlowOptions flow{};
  IntegrationOptions integration{};
  MatrixOptions matrix{};
  End end{};
  int points = 0;
  /// The end time where theory knows it: from zero or aligned start of the block task.
  std::optional<double> predicted_end{};
};

/// Whether the matrix flow of these options is the reduced flow's line, as far as start and data go.
bool starts_on_line(const MatrixOptions& options);

/// Integrates every entry of both circuits. Errors: qkflow::InvalidArgument, qkflow::IoError, qkflow::Interrupted,
/// std::runtime_error with the solver's message where it does not get to the end.
MatrixTable integrate_matrices(const MatrixRun& run);

/// Row times: t_k = (1 + T)^(k / K) - 1 for k = 0 ... K-1, log-spaced in 1 + t.
std::vector<double> save_times(double end, int points);

}  // namespace qkflow_program
