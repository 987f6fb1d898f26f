// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/task/dataset_file.hpp"

#include <clocale>
#include <locale>
#include <sstream>

#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/random_dataset.hpp"

using namespace qkflow;

namespace {

Dataset<double> parse(const std::string& text, const DatasetFileOptions& options = {}) {
  std::istringstream in(text);
  return read_dataset<double>(in, options, "data.tsv");
}

void refuses(const std::string& text, const std::string& message, const DatasetFileOptions& options = {}) {
  CHECK_THROWS_WITH(parse(text, options), Catch::Contains(message));
}

/// Everything but names.
void check_equal(const Dataset<double>& a, const Dataset<double>& b) {
  REQUIRE(a.size() == b.size());
  CHECK(a.total_weight() == b.total_weight());
  for (std::size_t s = 0; s < a.size(); ++s) {
    const auto x = a[s], y = b[s];
    CHECK(x.query == y.query);
    CHECK(x.label == y.label);
    CHECK(x.null_count == y.null_count);
    CHECK(x.weight == y.weight);
    REQUIRE(x.tokens.size() == y.tokens.size());
    for (std::size_t i = 0; i < x.tokens.size(); ++i) {
      CHECK(x.tokens[i] == y.tokens[i]);
      CHECK(x.counts[i] == y.counts[i]);
      CHECK(x.relevant[i] == y.relevant[i]);
    }
  }
}

}  // namespace

TEST_CASE("words are numbered in order of first appearance") {
  const Dataset<double> data = parse(
      "label\tquery\ttokens\n"
      "animal\tthe\tthe cat the\n"
      "\n"
      "plant\ta\toak the  cat\n");
  REQUIRE(data.size() == 2);
  CHECK(data.names().tokens == std::vector<std::string>{"the", "cat", "a", "oak"});
  CHECK(data.names().queries == data.names().tokens);  // one vocabulary
  CHECK(data.names().classes == std::vector<std::string>{"animal", "plant"});
  CHECK(data.shape() == DatasetShape{4, 4, 2});
  CHECK(data[0].tokens.size() == 2);
  CHECK(data[0].counts[0] == 2);
  CHECK(data[1].query == 2);
  CHECK(data[1].tokens[0] == 3);
}

TEST_CASE("separate vocabularies, any order of columns, all optional ones, DOS line ends, a byte order mark") {
  const Dataset<double> data = parse(
      "\xEF\xBB\xBFtokens\tweight\tquery\trelevant\tlabel\tcounts\tnull\r\n"
      "b a b\t0.5\tq\t1 0 1\ty\t1 2.5 1\t3\r\n"
      "\t2\tr\t\ty\t\t1.5\r\n"
      "a\t1\tq\t0\tx\t1e-3\t0",  // no line end at the end
      {.shared_vocabulary = false});
  REQUIRE(data.size() == 3);
  CHECK(data.shape() == DatasetShape{2, 2, 2});
  CHECK(data.names().queries == std::vector<std::string>{"q", "r"});
  CHECK(data[0].counts[0] == 2);
  CHECK(data[0].relevant[0] == 1);
  CHECK(data[0].counts[1] == 2.5);
  CHECK(data[0].null_count == 3);
  CHECK(data[0].weight == 0.5);
  CHECK(data[1].tokens.empty());
  CHECK(data[2].counts[0] == 1e-3);
}

TEST_CASE("ids are taken as they are") {
  const std::string text = "label\tquery\ttokens\n1\t0\t7 3\n";
  CHECK(parse(text, {.ids = true}).shape() == DatasetShape{8, 8, 2});
  CHECK(parse(text, {.ids = true, .shared_vocabulary = false}).shape() == DatasetShape{1, 8, 2});
  CHECK(parse(text, {.ids = true}).names().tokens.empty());
  // As words they are words.
  CHECK(parse(text).shape() == DatasetShape{3, 3, 1});
}

TEST_CASE("what is written reads back the same") {
  const Dataset<double> random = qkflow_test::random_dataset({.sequences = 50});
  check_equal(parse(dataset_text(random), {.ids = true, .shared_vocabulary = false}), random);
  const BlockTask<double> task{.classes = 3, .block = 4, .informative = 2, .noise = 4, .noise_vocabulary = 7};
  const Dataset<double> block = block_dataset(task);  // counts of 4/7
  check_equal(parse(dataset_text(block), {.ids = true, .shared_vocabulary = false}), block);
  // Plain data need three columns only.
  const Dataset<double> words = parse("label\tquery\ttokens\ny\tq\ta b\n");
  CHECK(dataset_text(words) == "label\tquery\ttokens\ny\tq\ta b\n");
}

TEST_CASE("a file appears under its name, and reads back") {
  const auto path = std::filesystem::temp_directory_path() / "qkflow_dataset_file_test.tsv";
  const Dataset<double> random = qkflow_test::random_dataset({.sequences = 20});
  write_dataset(path, random);
  check_equal(read_dataset<double>(path, {.ids = true, .shared_vocabulary = false}), random);
  const auto precise = read_dataset<qkflow_test::Precise>(path, {.ids = true});
  CHECK(precise.size() == 20);
  CHECK(read_dataset<float>(path, {.ids = true}).size() == 20);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(read_dataset<double>(path), IoError);
  CHECK_THROWS_WITH(read_dataset<double>(std::filesystem::temp_directory_path()), Catch::Contains("is a directory"));
}

TEST_CASE("a locale with a decimal comma changes nothing") {
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  const std::string text = "label\tquery\ttokens\tweight\n0\t0\t0 1234\t1234.5\n";
  const Dataset<double> data = parse(text, {.ids = true, .shared_vocabulary = false});
  CHECK(data[0].weight == 1234.5);
  CHECK(dataset_text(data) == text);
  std::locale::global(before);
  std::setlocale(LC_ALL, "C");
}

TEST_CASE("errors name file, line and value") {
  const std::string header = "label\tquery\ttokens\n";
  refuses("", "data.tsv: is empty");
  refuses("\n\n", "data.tsv: is empty");
  refuses(header, "data.tsv: holds a header but no sequences");
  refuses("label query tokens\n", "data.tsv:1: unknown column 'label query tokens'");
  refuses("label\tquery\n", "data.tsv:1: the header has no column 'tokens'");
  refuses("label\tquery\ttokens\tlabel\n", "data.tsv:1: column 'label' appears twice");
  refuses(header + "a\tb\tc\nd\te\n", "data.tsv:3: has 2 fields, the header has 3");
  refuses(header + "a\tb\tc\n\n\tb\tc\n", "data.tsv:4: label is empty");
  refuses(header + "a\tb b\tc\n", "data.tsv:2: query 'b b' has a space");
  refuses(header + "a\tb\t\n", "data.tsv:2: DatasetBuilder: sequence 0 has no tokens");
  refuses(header + "0\t0\t1x\n", "data.tsv:2: token '1x' is not an id", {.ids = true});
  refuses(header + "0\t-1\t1\n", "data.tsv:2: query '-1' is not an id", {.ids = true});
  refuses(header + "99999999999\t1\t1\n", "label '99999999999' is not an id", {.ids = true});
  refuses("label\tquery\ttokens\trelevant\na\tb\tc d\t1\n", "data.tsv:2: relevant has 1 values for 2 tokens");
  refuses("label\tquery\ttokens\trelevant\na\tb\tc d\t1 2\n", "data.tsv:2: relevant holds '2', not 0 or 1");
  refuses("label\tquery\ttokens\tcounts\na\tb\tc\t-1\n", "data.tsv:2: DatasetBuilder: sequence 0: count = -1");
  refuses("label\tquery\ttokens\tcounts\na\tb\tc\tnan\n", "count = nan");
  refuses("label\tquery\ttokens\tweight\na\tb\tc\t1,5\n", "data.tsv:2: weight '1,5' is not a number");
  refuses("label\tquery\ttokens\tweight\na\tb\tc\t0\n", "weights = 0");
  DatasetBuilder<double> builder;
  builder.add({.entries = {{0}}});
  builder.names({.tokens = {"two words"}});
  const Dataset<double> spaced = std::move(builder).build();
  CHECK_THROWS_WITH(dataset_text(spaced), Catch::Contains("'two words'"));
}
