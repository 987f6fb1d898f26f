// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/task/topic_task.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("the weights of a topic's tokens are those of the published task") {
  for (std::int32_t k = 0; k < 4; ++k) {
    const auto table = TopicTask::token_table(k);
    for (std::int32_t token = 0; token < 50; ++token) {
      const auto tenths = std::count(table.begin(), table.end(), token);
      if (token < 10) {
        CHECK(tenths == 10);
      } else if (token / 10 == k + 1) {
        CHECK(tenths == token % 10 + 1);
      } else {
        CHECK(tenths == 0);
      }
    }
  }
}

TEST_CASE("sequences have the published form and statistics") {
  const TopicTask task{.length = 64};
  CHECK(task.tokens() == 63);
  std::vector<std::int32_t> tokens(task.tokens());
  std::vector<double> topics(4, 0.0), distinct(10, 0.0);
  double relevant = 0, common = 0;
  const std::uint32_t sequences = 4000;
  for (std::uint32_t s = 0; s < sequences; ++s) {
    const std::int32_t k = task.sample(7, 3, s, tokens);
    REQUIRE((k >= 0 && k < 4));
    ++topics[static_cast<std::size_t>(k)];
    REQUIRE(tokens.back() == 5 + k);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::int32_t token = tokens[i];
      REQUIRE((token >= 0 && (token < 10 || token / 10 == k + 1)));
      if (TopicTask::is_relevant(token)) {
        ++relevant;
        ++distinct[static_cast<std::size_t>(token % 10)];
      } else {
        common += token;
      }
    }
  }
  const double draws = 62.0 * sequences;
  const auto near = [](double count, double trials, double p) {
    return std::abs(count - trials * p) < 4 * std::sqrt(trials * p * (1 - p));
  };
  for (const double count : topics) CHECK(near(count, sequences, 0.25));
  CHECK(near(relevant, draws, 5.5 / 15.5));
  for (int j = 0; j < 10; ++j) CHECK(near(distinct[static_cast<std::size_t>(j)], draws, (j + 1) / 155.0));
  CHECK(std::abs(common / (draws - relevant) - 4.5) < 0.05);
}

TEST_CASE("a sequence depends on seed, step and number alone, by the documented words") {
  const TopicTask task{.length = 12};
  std::vector<std::int32_t> tokens(task.tokens()), again(task.tokens());
  const std::int32_t k = task.sample(9, 5, 77, tokens);
  RandomStream random(9, 5, 77);
  CHECK(k == static_cast<std::int32_t>(random.next32() >> 30));
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
    const auto place = std::uint64_t{random.next32()} * 155 >> 32;
    CHECK(tokens[i] == TopicTask::token_table(k)[static_cast<std::size_t>(place)]);
  }
  task.sample(9, 5, 78, again);
  CHECK(again != tokens);
  CHECK(task.sample(9, 5, 77, again) == k);
  CHECK(again == tokens);
}

TEST_CASE("topics by turn, and label and query in each other's place") {
  const TopicTask task{.length = 5, .topic = TopicChoice::by_turn, .swapped = true};
  std::vector<std::int32_t> tokens(task.tokens());
  for (std::uint32_t s = 0; s < 9; ++s) {
    const auto k = static_cast<std::int32_t>(s % 4);
    CHECK(task.sample(1, 0, s, tokens) == k);
    CHECK(tokens.back() == 1 + k);
    CHECK(task.label(k) == 5 + k);
  }
}

TEST_CASE("a sampled dataset counts its tokens") {
  const TopicTask task{.length = 64};
  const Dataset<double> data = task.dataset<double>(1, 50, 4);
  CHECK(data.size() == 50);
  CHECK(data.shape() == DatasetShape{50, 50, 50});
  for (std::size_t s = 0; s < data.size(); ++s) {
    const auto sequence = data[s];
    double total = 0;
    bool has_query = false;
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
      total += sequence.counts[i];
      CHECK((sequence.relevant[i] == 1) == (sequence.tokens[i] >= 10));
      has_query = has_query || sequence.tokens[i] == sequence.query;
    }
    CHECK(total == 63);
    CHECK(has_query);
    CHECK(sequence.label == sequence.query - 4);
  }
}

TEST_CASE("bad lengths are refused") {
  std::vector<std::int32_t> tokens(3);
  CHECK_THROWS_WITH(TopicTask{.length = 2}.dataset<double>(1, 5), Catch::Contains("length = 2"));
  CHECK_THROWS_WITH(TopicTask{.length = 6}.sample(1, 0, 0, tokens), Catch::Contains("room for tokens = 3"));
  CHECK_THROWS_AS(TopicTask{}.dataset<double>(1, 0), InvalidArgument);
}
