// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <functional>
#include <string>
#include <vector>

#include "matrix.hpp"

namespace qkflow_program {

/// A matrix flow without its types, so that each stepper is compiled once and not once a parameterization. In a file of
/// its own because parameterizations and steppers each take a minute to compile.
struct ErasedMatrixFlow {
  using State = Eigen::VectorXd;

  State start{};
  std::function<void(const State&, State&, const double&)> field{};
  std::function<double(const State&)> loss{}, attention{};
  std::function<std::vector<double>(double, const State&)> row{};  ///< a table row at (t, theta)
  std::vector<std::string> columns{};                              ///< of that row
};

/// The flow and the start that the options name. Errors: qkflow::InvalidArgument, qkflow::IoError.
ErasedMatrixFlow make_matrix_flow(const MatrixRun& run);

}  // namespace qkflow_program
