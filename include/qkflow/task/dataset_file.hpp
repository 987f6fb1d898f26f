// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// Datasets as tab-separated text. The first line names the columns, in any order:
///
///     label     the class to be predicted
///     query     the token whose row of W_QK asks
///     tokens    the tokens attended to, separated by spaces; the query is attended to only if it stands here too
///     relevant  optional: 0 or 1 for each of them, 1 for positions attention ought to find
///     counts    optional: how often each stands there (default 1; need not be whole)
///     null      optional: number of null tokens (score 0, value 0; default 0)
///     weight    optional: of the sequence in the loss (default 1)
///
/// Every further line is a sequence; blank lines are skipped. Labels, queries and tokens are words, numbered in order
/// of first appearance, or ids (`DatasetFileOptions::ids`). Numbers are read and written without regard to the locale.
struct DatasetFileOptions {
  /// Labels, queries and tokens are numbers from 0, to be taken as they are.
  bool ids = false;
  /// Queries and tokens are of one vocabulary, so that W_QK is square; else each has its own numbers.
  bool shared_vocabulary = true;
};

namespace detail {

/// Splits at every separator: "a\t\tb" has three fields.
inline std::vector<std::string_view> split_fields(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t end = line.find(separator);
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

/// Splits at runs of spaces; no empty words.
inline std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words = split_fields(text, ' ');
  std::erase_if(words, [](std::string_view word) { return word.empty(); });
  return words;
}

/// Words numbered in order of first appearance.
class WordList {
 public:
  std::int32_t id(std::string_view word) {
    const auto [place, is_new] = ids_.try_emplace(std::string(word), static_cast<std::int32_t>(words_.size()));
    if (is_new) words_.emplace_back(word);
    return place->second;
  }
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> words_;
};

template <class Scalar>
class DatasetReader {
 public:
  DatasetReader(const DatasetFileOptions& options, std::string name) : options_(options), name_(std::move(name)) {}

  Dataset<Scalar> read(std::istream& in) {
    std::string line;
    bool has_header = false;
    while (std::getline(in, line)) {
      ++line_;
      std::string_view text = line;
      if (line_ == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte order mark
      if (text.ends_with('\r')) text.remove_suffix(1);
      if (text.find_first_not_of(" \t") == std::string_view::npos) continue;
      if (has_header) {
        read_sequence(text);
      } else {
        read_header(text);
        has_header = true;
      }
    }
    if (in.bad()) throw IoError("cannot read " + name_ + " beyond line " + to_text(line_));
    if (!has_header) throw InvalidArgument(name_ + ": is empty; a header line with label, query, tokens is needed");
    if (builder_.size() == 0) throw InvalidArgument(name_ + ": holds a header but no sequences");
    finish();
    return std::move(builder_).build();
  }

 private:
  enum Column : std::size_t { label, query, tokens, relevant, counts, null, weight, columns };
  static constexpr std::array<std::string_view, columns> column_names{"label",  "query", "tokens", "relevant",
                                                                      "counts", "null",  "weight"};
  static constexpr std::size_t missing = static_cast<std::size_t>(-1);

  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument(name_ + ":" + to_text(line_) + ": " + what);
  }

  void read_header(std::string_view text) {
    place_.fill(missing);
    const auto fields = split_fields(text, '\t');
    fields_ = fields.size();
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const auto* const found = std::find(column_names.begin(), column_names.end(), fields[f]);
      if (found == column_names.end()) {
        fail("unknown column '" + std::string(fields[f]) +
             "'; columns are separated by tabs and may be label, query, tokens, relevant, counts, null, weight");
      }
      auto& place = place_[static_cast<std::size_t>(found - column_names.begin())];
      if (place != missing) fail("column '" + std::string(fields[f]) + "' appears twice");
      place = f;
    }
    for (const Column needed : {label, query, tokens}) {
      if (place_[needed] == missing) fail("the header has no column '" + std::string(column_names[needed]) + "'");
    }
  }

  void read_sequence(std::string_view text) {
    const auto fields = split_fields(text, '\t');
    if (fields.size() != fields_) {
      fail("has " + to_text(fields.size()) + " fields, the header has " + to_text(fields_));
    }
    const auto field = [&](Column column) { return fields[place_[column]]; };
    sequence_.label = id(field(label), labels_, "label");
    sequence_.query = id(field(query), options_.shared_vocabulary ? words_ : queries_, "query");
    sequence_.null_count = has(null) ? number(field(null), "null") : Scalar(0);
    sequence_.weight = has(weight) ? number(field(weight), "weight") : Scalar(1);
    sequence_.entries.clear();
    for (const auto word : split_words(field(tokens))) {
      sequence_.entries.push_back({id(word, words_, "token"), Scalar(1), false});
    }
    if (has(relevant)) {
      const auto flags = matching_words(field(relevant), relevant);
      for (std::size_t i = 0; i < flags.size(); ++i) {
        if (flags[i] != "0" && flags[i] != "1") fail("relevant holds '" + std::string(flags[i]) + "', not 0 or 1");
        sequence_.entries[i].relevant = flags[i] == "1";
      }
    }
    if (has(counts)) {
      const auto values = matching_words(field(counts), counts);
      for (std::size_t i = 0; i < values.size(); ++i) sequence_.entries[i].count = number(values[i], "counts");
    }
    try {
      builder_.add(sequence_);
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
  }

  bool has(Column column) const { return place_[column] != missing; }

  std::vector<std::string_view> matching_words(std::string_view text, Column column) const {
    auto words = split_words(text);
    if (words.size() != sequence_.entries.size()) {
      fail(std::string(column_names[column]) + " has " + to_text(words.size()) + " values for " +
           to_text(sequence_.entries.size()) + " tokens");
    }
    return words;
  }

  std::int32_t id(std::string_view word, WordList& list, const char* what) const {
    if (word.empty()) fail(std::string(what) + " is empty");
    if (!options_.ids) {
      if (word.find(' ') != std::string_view::npos)
        fail(std::string(what) + " '" + std::string(word) + "' has a space");
      return list.id(word);
    }
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 0) {
      fail(std::string(what) + " '" + std::string(word) + "' is not an id (a whole number from 0)");
    }
    return value;
  }

  Scalar number(std::string_view text, const char* what) const {
    using Parsed = std::conditional_t<std::is_floating_point_v<Scalar>, Scalar, long double>;
    Parsed value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      fail(std::string(what) + " '" + std::string(text) + "' is not a number");
    }
    return static_cast<Scalar>(value);
  }

  void finish() {
    if (!options_.ids) {
      builder_.names({options_.shared_vocabulary ? words_.words() : queries_.words(), words_.words(), labels_.words()});
    }
    if (!options_.shared_vocabulary) return;
    const DatasetShape grown = builder_.shape();
    const std::int64_t size = std::max({grown.queries, grown.tokens, static_cast<std::int64_t>(words_.words().size())});
    builder_.at_least({size, size, 0});
  }

  DatasetFileOptions options_;
  std::string name_;
  std::size_t line_ = 0, fields_ = 0;
  std::array<std::size_t, columns> place_{};
  WordList labels_, queries_, words_;
  Sequence<Scalar> sequence_;
  DatasetBuilder<Scalar> builder_;
};

}  // namespace detail

/// Reads a dataset, line by line; `name` stands in messages. Errors in the text are InvalidArgument "name:line: what",
/// a stream that breaks is IoError.
template <class Scalar>
Dataset<Scalar> read_dataset(std::istream& in, const DatasetFileOptions& options = {},
                             const std::string& name = "input") {
  return detail::DatasetReader<Scalar>(options, name).read(in);
}

/// The same from a file. Throws IoError when it cannot be opened.
template <class Scalar>
Dataset<Scalar> read_dataset(const std::filesystem::path& path, const DatasetFileOptions& options = {}) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    throw IoError("cannot read '" + path.string() + "': is a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw IoError("cannot read '" + path.string() + "': no such file, or not allowed");
  return read_dataset<Scalar>(in, options, path.string());
}

/// The text of a dataset, as `read_dataset` takes it: words where the dataset has names, else ids; optional columns
/// only where they say something. Throws InvalidArgument for a name that is empty or holds a space, tab or line break.
template <class Scalar>
std::string dataset_text(const Dataset<Scalar>& data) {
  bool has_relevant = false, has_counts = false, has_null = false, has_weight = false;
  for (std::size_t s = 0; s < data.size(); ++s) {
    const auto sequence = data[s];
    has_null = has_null || sequence.null_count != Scalar(0);
    has_weight = has_weight || sequence.weight != Scalar(1);
    for (const auto flag : sequence.relevant) has_relevant = has_relevant || flag != 0;
    for (const Scalar& count : sequence.counts) has_counts = has_counts || count != Scalar(1);
  }
  const auto word = [](std::int32_t id, const std::vector<std::string>& names) {
    if (names.empty()) return to_text(id);
    const std::string& name = names[static_cast<std::size_t>(id)];
    if (name.empty() || name.find_first_of(" \t\r\n") != std::string::npos) {
      throw InvalidArgument("dataset_text: the name '" + name + "' is empty or holds a space, tab or line break");
    }
    return name;
  };
  std::string text = "label\tquery\ttokens";
  if (has_relevant) text += "\trelevant";
  if (has_counts) text += "\tcounts";
  if (has_null) text += "\tnull";
  if (has_weight) text += "\tweight";
  text += '\n';
  for (std::size_t s = 0; s < data.size(); ++s) {
    const auto sequence = data[s];
    const auto list = [&](auto&& value) {
      text += '\t';
      for (std::size_t i = 0; i < sequence.tokens.size(); ++i) text += (i == 0 ? "" : " ") + value(i);
    };
    text += word(sequence.label, data.names().classes) + '\t' + word(sequence.query, data.names().queries);
    list([&](std::size_t i) { return word(sequence.tokens[i], data.names().tokens); });
    if (has_relevant) list([&](std::size_t i) { return std::string(sequence.relevant[i] ? "1" : "0"); });
    if (has_counts) list([&](std::size_t i) { return to_text(sequence.counts[i]); });
    if (has_null) text += '\t' + to_text(sequence.null_count);
    if (has_weight) text += '\t' + to_text(sequence.weight);
    text += '\n';
  }
  return text;
}

/// Writes a dataset to a file, which appears whole or not at all. Throws as `dataset_text` does, and IoError.
template <class Scalar>
void write_dataset(const std::filesystem::path& path, const Dataset<Scalar>& data) {
  write_file(path, dataset_text(data));
}

}  // namespace qkflow
