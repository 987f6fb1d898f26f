// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// A number as text that reads back as the same number: `max_digits10` significant digits (17 in double), never touched
/// by the locale; not-a-number is "nan", infinities "inf" and "-inf". Multiprecision scalars keep all their digits.
template <class T>
std::string csv_number(const T& value) {
  if constexpr (std::is_integral_v<T>) {
    return fmt::format("{}", value);
  } else {
    using std::isnan;
    if (isnan(value)) return "nan";
    constexpr int digits = std::numeric_limits<T>::max_digits10;
    if constexpr (std::is_floating_point_v<T>) {
      return fmt::format("{:.{}g}", value, digits);
    } else {
      return value.str(digits);
    }
  }
}

/// Text as a CSV cell: quoted if it holds a comma, a quote or a line break (RFC 4180).
inline std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"') quoted += '"';
    quoted += letter;
  }
  return quoted + "\"";
}

/// Writes a CSV table: a header line of column names, then rows of numbers and texts. The file is the caller's, who
/// commits it.
///
/// Errors: `InvalidArgument` for a row of the wrong length, `IoError` from the file.
class CsvWriter {
 public:
  CsvWriter(AtomicFile& file, const std::vector<std::string>& columns) : file_(file), columns_(columns.size()) {
    if (columns.empty()) throw_invalid("CsvWriter", "number of columns", columns.size(), "be at least 1");
    std::string line;
    for (const std::string& column : columns) append(line, column);
    end(line);
  }

  /// One row: as many cells as there are columns, each a number or a text.
  template <class... Cells>
  void row(const Cells&... cells) {
    if (sizeof...(cells) != columns_) throw_invalid("CsvWriter::row", "number of cells", sizeof...(cells), must());
    std::string line;
    (append(line, cells), ...);
    end(line);
  }

  /// One row from a list of numbers.
  template <class T>
  void row(const std::vector<T>& cells) {
    if (cells.size() != columns_) throw_invalid("CsvWriter::row", "number of cells", cells.size(), must());
    std::string line;
    for (const T& cell : cells) append(line, cell);
    end(line);
  }

 private:
  std::string must() const { return "be the number of columns, " + to_text(columns_); }

  template <class Cell>
  static void append(std::string& line, const Cell& cell) {
    if constexpr (std::is_convertible_v<Cell, std::string_view>) {
      line += csv_text(cell);
    } else {
      line += csv_number(cell);
    }
    line += ',';
  }

  void end(std::string& line) {
    line.back() = '\n';
    file_.write(line);
  }

  AtomicFile& file_;
  std::size_t columns_;
};

/// A CSV table in memory, as `CsvWriter` writes it: cells are kept as text and turned into numbers on demand.
///
/// Errors: `IoError` naming file, line and column for a file that cannot be read, has no header, has a row of the wrong
/// length, or holds something else where a number is asked for; `InvalidArgument` for a column or row that is not
/// there.
class CsvTable {
 public:
  /// Reads a file. Line ends may be LF or CRLF, empty lines are skipped, cells may be quoted but hold no line break.
  static CsvTable read(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (!stream.is_open() || stream.bad()) throw IoError("cannot read '" + path.string() + "'");
    return parse(text, "'" + path.string() + "'");
  }

  /// The same from text; `source` is what messages call it.
  static CsvTable parse(std::string_view text, std::string source) {
    CsvTable table;
    table.source_ = std::move(source);
    std::size_t number = 0;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      ++number;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty()) continue;
      std::vector<std::string> cells = table.split(line, number);
      if (table.columns_.empty()) {
        table.columns_ = std::move(cells);
        continue;
      }
      if (cells.size() != table.columns_.size()) {
        throw IoError(fmt::format("{}, line {}: {} cells, but the header has {}", table.source_, number, cells.size(),
                                  table.columns_.size()));
      }
      table.cells_.push_back(std::move(cells));
      table.lines_.push_back(number);
    }
    if (table.columns_.empty()) throw IoError(table.source_ + ": no header line");
    return table;
  }

  const std::vector<std::string>& columns() const { return columns_; }
  std::size_t rows() const { return cells_.size(); }

  const std::string& text(std::size_t row, std::string_view column) const { return cell(row, index(column)); }

  double number(std::size_t row, std::string_view column) const { return number_at(row, index(column)); }

  /// A whole column as numbers.
  std::vector<double> column(std::string_view name) const {
    const std::size_t at = index(name);
    std::vector<double> values(rows());
    for (std::size_t row = 0; row < rows(); ++row) values[row] = number_at(row, at);
    return values;
  }

 private:
  std::size_t index(std::string_view name) const {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i] == name) return i;
    }
    throw InvalidArgument(
        fmt::format("CsvTable: column = {}, but it must be one of {}'s: {}", name, source_, fmt::join(columns_, ", ")));
  }

  const std::string& cell(std::size_t row, std::size_t column) const {
    if (row >= rows()) throw_invalid("CsvTable", "row", row, "be below the number of rows, " + to_text(rows()));
    return cells_[row][column];
  }

  double number_at(std::size_t row, std::size_t column) const {
    const std::string& text = cell(row, column);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw IoError(
          fmt::format("{}, line {}: {} = '{}' is not a number", source_, lines_[row], columns_[column], text));
    }
    return value;
  }

  std::vector<std::string> split(std::string_view line, std::size_t number) const {
    std::vector<std::string> cells(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const char letter = line[i];
      if (quoted && letter == '"' && i + 1 < line.size() && line[i + 1] == '"') {
        cells.back() += line[i++];
      } else if (letter == '"') {
        quoted = !quoted;
      } else if (letter == ',' && !quoted) {
        cells.emplace_back();
      } else {
        cells.back() += letter;
      }
    }
    if (quoted) throw IoError(fmt::format("{}, line {}: a quote is not closed", source_, number));
    return cells;
  }

  std::string source_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<std::size_t> lines_;  // where each row stands in the file
};

}  // namespace qkflow
