// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/solution.hpp"

#include <Eigen/Core>
#include <set>
#include <string>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("every status has a text of its own, and three of them are success") {
  std::set<std::string> texts;
  int successes = 0;
  for (int k = 0; k <= static_cast<int>(Status::cancelled); ++k) {
    Solution<Eigen::VectorXd> solution;
    solution.status = static_cast<Status>(k);
    texts.insert(std::string(to_string(solution.status)));
    successes += solution.success();
  }
  CHECK(texts.size() == 9);
  CHECK(texts.count("unknown") == 0);
  CHECK(successes == 3);
}

TEST_CASE("a new solution is empty") {
  const Solution<Eigen::VectorXd> solution;
  CHECK(solution.times.empty());
  CHECK(solution.events.empty());
  CHECK(!solution.stop);
  CHECK(solution.statistics.steps == 0);
}
