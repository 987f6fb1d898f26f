// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <istream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// Parameters as text, to start from or to look at. For each matrix a line `name rows columns`, then its rows, entries
/// separated by tabs in the shortest form that reads back to the same number. The first line is `qkflow parameters 1`.
template <class Parameters>
std::string parameter_text(const Parameters& parameters, const ColumnVector<typename Parameters::scalar_type>& theta) {
  if (theta.size() != parameters.size()) {
    throw_invalid("parameter_text", "size of theta", theta.size(), "be " + to_text(parameters.size()));
  }
  std::string text = "qkflow parameters 1\n";
  for (const auto& block : parameters.blocks()) {
    text += block.name + ' ' + to_text(block.shape.rows) + ' ' + to_text(block.shape.cols) + '\n';
    for (Eigen::Index r = 0; r < block.shape.rows; ++r) {
      for (Eigen::Index c = 0; c < block.shape.cols; ++c) {
        if (c > 0) text += '\t';
        text += to_text(theta[block.index(r, c)]);
      }
      text += '\n';
    }
  }
  return text;
}

/// Writes them to a file, which appears whole or not at all. Throws IoError.
template <class Parameters>
void write_parameters(const std::filesystem::path& path, const Parameters& parameters,
                      const ColumnVector<typename Parameters::scalar_type>& theta) {
  write_file(path, parameter_text(parameters, theta));
}

/// Reads them back, for parameters with the same matrices in the same order and shapes. `name` stands in messages.
/// Throws InvalidArgument "name:line: what" for any other text, and for numbers that are not finite.
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> read_parameters(std::istream& in, const Parameters& parameters,
                                                               const std::string& name = "input") {
  using Scalar = typename Parameters::scalar_type;
  using Parsed = std::conditional_t<std::is_floating_point_v<Scalar>, Scalar, long double>;
  std::size_t number = 0;
  std::string line;
  const auto fail = [&](const std::string& what) -> void {
    throw InvalidArgument(name + ":" + to_text(number) + ": " + what);
  };
  const auto next = [&](const std::string& wanted) {
    ++number;
    if (!std::getline(in, line)) fail("ends where " + wanted + " should be");
    if (!line.empty() && line.back() == '\r') line.pop_back();
  };
  next("the line 'qkflow parameters 1'");
  if (line != "qkflow parameters 1") fail("is not a parameter file: its first line is not 'qkflow parameters 1'");
  ColumnVector<Scalar> theta(parameters.size());
  for (const auto& block : parameters.blocks()) {
    const std::string title = block.name + ' ' + to_text(block.shape.rows) + ' ' + to_text(block.shape.cols);
    next("'" + title + "'");
    if (line != title) fail("'" + line + "' where these parameters have '" + title + "'");
    for (Eigen::Index r = 0; r < block.shape.rows; ++r) {
      next("row " + to_text(r) + " of " + block.name);
      const char* at = line.data();
      const char* const end = at + line.size();
      for (Eigen::Index c = 0; c < block.shape.cols; ++c) {
        Parsed value = 0;
        const auto [rest, error] = std::from_chars(at, end, value);
        const bool is_last = c + 1 == block.shape.cols;
        if (error != std::errc() || (is_last ? rest != end : rest == end || *rest != '\t')) {
          fail("row " + to_text(r) + " of " + block.name + " is not " + to_text(block.shape.cols) +
               " numbers separated by tabs");
        }
        using std::isfinite;
        if (!isfinite(value)) fail("row " + to_text(r) + " of " + block.name + " holds a number that is not finite");
        theta[block.index(r, c)] = static_cast<Scalar>(value);
        at = rest + (is_last ? 0 : 1);
      }
    }
  }
  ++number;
  while (std::getline(in, line)) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) fail("more follows after the last matrix");
  }
  return theta;
}

template <class Parameters>
ColumnVector<typename Parameters::scalar_type> read_parameters(const std::filesystem::path& path,
                                                               const Parameters& parameters) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw IoError("cannot read '" + path.string() + "': no such file, or not allowed");
  return read_parameters(in, parameters, path.string());
}

}  // namespace qkflow
