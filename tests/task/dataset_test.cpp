// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/task/dataset.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"

using namespace qkflow;

namespace {

Dataset<double> small_dataset() {
  DatasetBuilder<double> builder({.queries = 4, .tokens = 5, .classes = 3});
  builder.add({.query = 3, .label = 2, .entries = {{4}, {0, 2.0, true}, {4}}, .null_count = 1.5});
  builder.add({.query = 1, .label = 0, .entries = {{2}, {2, 3.0, true}, {2, 0.25}}, .weight = 2.0});
  builder.add({.query = 3, .label = 1, .null_count = 7.0, .weight = 0.5});
  builder.names({.queries = {}, .tokens = {"a", "b", "c", "d", "e"}, .classes = {"x", "y", "z"}});
  return std::move(builder).build();
}

}  // namespace

TEST_CASE("a dataset gives back what was put in, with equal tokens merged") {
  const Dataset<double> data = small_dataset();
  REQUIRE(data.size() == 3);
  CHECK(data.entry_count() == 4);
  CHECK(data.total_weight() == 3.5);
  CHECK(data.shape() == DatasetShape{4, 5, 3});
  CHECK(data.names().tokens[3] == "d");
  CHECK(data.names().queries.empty());

  const auto first = data[0];
  CHECK(first.query == 3);
  CHECK(first.label == 2);
  CHECK(first.null_count == 1.5);
  CHECK(first.weight == 1.0);
  REQUIRE(first.tokens.size() == 2);
  CHECK(first.tokens[0] == 4);
  CHECK(first.counts[0] == 2.0);
  CHECK(first.relevant[0] == 0);
  CHECK(first.tokens[1] == 0);
  CHECK(first.counts[1] == 2.0);
  CHECK(first.relevant[1] == 1);

  // The same token at a relevant and an irrelevant position stays two entries.
  const auto second = data[1];
  REQUIRE(second.tokens.size() == 2);
  CHECK(second.counts[0] == 1.25);
  CHECK(second.relevant[0] == 0);
  CHECK(second.counts[1] == 3.0);
  CHECK(second.relevant[1] == 1);

  CHECK(data[2].tokens.empty());
  CHECK(data[2].null_count == 7.0);
}

TEST_CASE("without a shape the dataset takes the shape its ids need") {
  DatasetBuilder<float> builder;
  builder.add({.query = 2, .label = 0, .entries = {{6}}});
  CHECK(builder.size() == 1);
  CHECK(std::move(builder).build().shape() == DatasetShape{3, 7, 1});
  DatasetBuilder<float> nulls;
  nulls.add({.null_count = 1});
  CHECK(std::move(nulls).build().shape() == DatasetShape{1, 1, 1});
}

TEST_CASE("sorting by query is stable and keeps everything else") {
  const Dataset<double> sorted = small_dataset().sorted_by_query();
  CHECK(sorted[0].query == 1);
  CHECK(sorted[1].label == 2);
  CHECK(sorted[2].label == 1);
  CHECK(sorted[1].counts[0] == 2.0);
  CHECK(sorted.total_weight() == 3.5);
  CHECK(sorted.names().classes[1] == "y");
}

TEST_CASE("a subset may repeat sequences") {
  const std::vector<std::size_t> picks{1, 1, 0};
  const Dataset<double> part = small_dataset().subset(picks);
  REQUIRE(part.size() == 3);
  CHECK(part.total_weight() == 5.0);
  CHECK(part[1].counts[1] == 3.0);
  CHECK(part[2].query == 3);
  CHECK(part.shape() == DatasetShape{4, 5, 3});
}

TEST_CASE("a cast keeps values") {
  const auto precise = small_dataset().cast<qkflow_test::Precise>();
  CHECK(precise[1].counts[0] == qkflow_test::Precise(1.25));
  CHECK(precise.total_weight() == qkflow_test::Precise(3.5));
  CHECK(precise.names().tokens.size() == 5);
}

TEST_CASE("bad sequences are refused with their number, the field and its value") {
  DatasetBuilder<double> builder({.queries = 4, .tokens = 5, .classes = 3});
  builder.add({.entries = {{0}}});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto refuses = [&](const Sequence<double>& sequence, const char* text) {
    CHECK_THROWS_WITH(builder.add(sequence), Catch::Contains("sequence 1") && Catch::Contains(text));
  };
  refuses({.query = 4, .entries = {{0}}}, "query = 4");
  refuses({.query = -1, .entries = {{0}}}, "query = -1");
  refuses({.label = 3, .entries = {{0}}}, "label = 3");
  refuses({.entries = {{0}, {5}}}, "token = 5");
  refuses({.entries = {{-2}}}, "token = -2");
  refuses({.entries = {{1, 0.0}}}, "count = 0");
  refuses({.entries = {{1, nan}}}, "count = nan");
  refuses({.entries = {{1}}, .null_count = -1}, "null_count = -1");
  refuses({.entries = {{1}}, .weight = infinity}, "weight = inf");
  refuses({}, "has no tokens");
  CHECK(builder.size() == 1);
  CHECK(std::move(builder).build().size() == 1);  // a refused sequence leaves nothing behind
}

TEST_CASE("bad datasets are refused") {
  CHECK_THROWS_WITH(DatasetBuilder<double>({.queries = 0, .tokens = 1, .classes = 1}), Catch::Contains("queries = 0"));
  CHECK_THROWS_WITH(DatasetBuilder<double>().build(), Catch::Contains("no sequences"));
  DatasetBuilder<double> weightless;
  weightless.add({.entries = {{0}}, .weight = 0.0});
  CHECK_THROWS_WITH(std::move(weightless).build(), Catch::Contains("weights = 0"));
  DatasetBuilder<double> misnamed;
  misnamed.add({.entries = {{0}}});
  misnamed.names({.tokens = {"a", "b"}});
  CHECK_THROWS_WITH(std::move(misnamed).build(), Catch::Contains("names of tokens = 2"));
  const Dataset<double> data = small_dataset();
  CHECK_THROWS_WITH(data.subset(std::vector<std::size_t>{3}), Catch::Contains("index = 3"));
  CHECK_THROWS_AS(data.subset({}), InvalidArgument);
}
