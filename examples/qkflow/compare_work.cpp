// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

#include "compare_work.hpp"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"

namespace qkflow_program {

namespace {

// A kept piece is its identity in the first line, then its table, then a line that says it is whole: files appear whole
// or not at all, but somebody may have edited one.
constexpr std::string_view last_line = "# end\n";

std::string first_line(const Piece& piece) {
  std::string line = "# " + piece.identity;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

std::optional<std::string> kept(const Piece& piece, const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const std::string first = first_line(piece);
  if (!stream.is_open() || !text.starts_with(first) || !text.ends_with(last_line)) return std::nullopt;
  return text.substr(first.size(), text.size() - first.size() - last_line.size());
}

}  // namespace

Pieces make_pieces(const std::vector<Piece>& pieces, const std::filesystem::path& folder, int threads) {
  std::vector<std::string> texts(pieces.size());
  std::vector<std::size_t> missing;
  double total = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (auto text = kept(pieces[i], folder / (pieces[i].name + ".csv"))) {
      texts[i] = std::move(*text);
    } else {
      missing.push_back(i);
      total += pieces[i].weight;
    }
  }
  std::stable_sort(missing.begin(), missing.end(),
                   [&](std::size_t a, std::size_t b) { return pieces[a].weight > pieces[b].weight; });
  qkflow::Progress progress("compare", total, "parts");
  std::mutex finishing;
  double done = 0;
  qkflow::ThreadPool pool(threads);
  try {
    pool.for_each(missing.size(), [&](std::size_t m, std::size_t) {
      qkflow::throw_if_interrupted();
      const Piece& piece = pieces[missing[m]];
      std::string text = piece.make();
      qkflow::throw_if_interrupted();  // what a cancelled computation returns is not to be kept
      const std::lock_guard lock(finishing);
      qkflow::write_file(folder / (piece.name + ".csv"), first_line(piece) + text + std::string(last_line));
      texts[missing[m]] = std::move(text);
      done += piece.weight;
      progress.update(done);
    });
  } catch (const qkflow::Interrupted&) {
    throw qkflow::Interrupted("interrupted; the same command goes on with what is in " + folder.string());
  }
  Pieces tables;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    tables.emplace(pieces[i].name, qkflow::CsvTable::parse(texts[i], "piece " + pieces[i].name));
  }
  return tables;
}

std::string joined_text(const Pieces& pieces, const std::vector<Piece>& order, std::string_view prefix) {
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (const std::string& cell : cells) text += qkflow::csv_text(cell) + ",";
    text.back() = '\n';
  };
  for (const Piece& piece : order) {
    if (!piece.name.starts_with(prefix)) continue;
    const qkflow::CsvTable& table = pieces.at(piece.name);
    if (text.empty()) line(table.columns());
    for (std::size_t row = 0; row < table.rows(); ++row) {
      std::vector<std::string> cells;
      for (const std::string& column : table.columns()) cells.push_back(table.text(row, column));
      line(cells);
    }
  }
  return text;
}

}  // namespace qkflow_program
