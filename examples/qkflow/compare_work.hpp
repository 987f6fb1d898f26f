// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/report/csv.hpp"

namespace qkflow_program {

/// A CSV table on its way: rows as text, as `qkflow::CsvWriter` writes them.
class Rows {
 public:
  explicit Rows(const std::vector<std::string>& columns) {
    for (const std::string& column : columns) append(column);
    end();
  }
  template <class... Cells>
  void row(const Cells&... cells) {
    (append(cells), ...);
    end();
  }
  const std::string& text() const { return text_; }

 private:
  template <class Cell>
  void append(const Cell& cell) {
    if constexpr (std::is_convertible_v<Cell, std::string_view>) {
      text_ += qkflow::csv_text(cell);
    } else {
      text_ += qkflow::csv_number(cell);
    }
    text_ += ',';
  }
  void end() { text_.back() = '\n'; }

  std::string text_;
};

/// A part of the work that is done by one thread from beginning to end: what it makes is a CSV table, which depends on
/// nothing but `identity`.
struct Piece {
  std::string name;      ///< of its file; letters, digits, '_', '-', '.'
  std::string identity;  ///< everything its table depends on
  double weight = 1;     ///< how long it takes, roughly: long ones begin first
  std::function<std::string()> make{};
};

using Pieces = std::map<std::string, qkflow::CsvTable>;

/// Makes all pieces, as many at a time as there are threads (0: one a core), and keeps each in `folder` as soon as it
/// is there; a piece that is there already, with the same identity, is not made again. Shows progress on a terminal.
///
/// Errors: what a piece throws; qkflow::Interrupted, with word of what is kept.
Pieces make_pieces(const std::vector<Piece>& pieces, const std::filesystem::path& folder, int threads);

/// The tables of the pieces whose names begin with `prefix`, one after the other, as one CSV text.
std::string joined_text(const Pieces& pieces, const std::vector<Piece>& order, std::string_view prefix);

}  // namespace qkflow_program
