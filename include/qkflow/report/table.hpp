// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// How many columns of a terminal a UTF-8 text takes, counting one a code point.
inline std::size_t text_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char letter) { return (static_cast<unsigned char>(letter) & 0xC0U) != 0x80U; }));
}

/// An aligned table for the terminal: a header, a rule, rows. Columns are as wide as their widest cell, two spaces
/// apart.
///
///     r       tau_end
///     ----  ---------
///     0.01  2553944.1
///
/// Errors: `InvalidArgument` for a row of the wrong length.
class Table {
 public:
  enum class Align { left, right };

  struct Column {
    std::string name;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void row(std::vector<std::string> cells) {
    if (cells.size() != columns_.size()) {
      throw_invalid("Table::row", "number of cells", cells.size(),
                    "be the number of columns, " + to_text(columns_.size()));
    }
    rows_.push_back(std::move(cells));
  }

  std::size_t rows() const { return rows_.size(); }

  /// The whole table, each line ended by a line break and without trailing spaces.
  std::string text() const {
    std::vector<std::size_t> widths;
    std::vector<std::string> names;
    std::vector<std::string> rules;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      std::size_t width = text_width(columns_[i].name);
      for (const auto& cells : rows_) width = std::max(width, text_width(cells[i]));
      widths.push_back(width);
      names.push_back(columns_[i].name);
      rules.emplace_back(width, '-');
    }
    std::string result;
    append(result, names, widths);
    append(result, rules, widths);
    for (const auto& cells : rows_) append(result, cells, widths);
    return result;
  }

 private:
  void append(std::string& result, const std::vector<std::string>& cells,
              const std::vector<std::size_t>& widths) const {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string padding(widths[i] - text_width(cells[i]), ' ');
      if (i > 0) line += "  ";
      line += columns_[i].align == Align::left ? cells[i] + padding : padding + cells[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + '\n';
  }

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace qkflow
