// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/task/block_dataset.hpp"

#include <Eigen/SVD>
#include <limits>
#include <map>
#include <tuple>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;

namespace {

/// Counts how often each token is met with each query, and in each sequence.
struct Statistics {
  std::map<std::pair<int, int>, double> by_query;  // (query, token) -> count over all sequences
  double least_total = 1e300, most_total = 0;      // tokens a sequence, null tokens included
};

Statistics statistics(const Dataset<double>& data) {
  Statistics result;
  for (std::size_t s = 0; s < data.size(); ++s) {
    const auto sequence = data[s];
    double total = sequence.null_count;
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
      result.by_query[{sequence.query, sequence.tokens[i]}] += sequence.counts[i];
      total += sequence.counts[i];
    }
    result.least_total = std::min(result.least_total, total);
    result.most_total = std::max(result.most_total, total);
  }
  return result;
}

}  // namespace

TEST_CASE("null noise: every informative token meets every query of its class m times in b sequences") {
  const BlockTask<double> task{.classes = 3, .block = 5, .informative = 2, .noise = 7.5};
  const Dataset<double> data = block_dataset(task);
  CHECK(data.size() == 3 * 5 * 5);
  CHECK(data.entry_count() == 3 * 5 * 5 * 2);
  CHECK(data.shape() == DatasetShape{15, 15, 3});
  const Statistics found = statistics(data);
  CHECK(found.by_query.size() == 3 * 5 * 5);
  for (const auto& [pair, count] : found.by_query) {
    CHECK(pair.first / 5 == pair.second / 5);  // never a token of another class
    CHECK(count == 2);
  }
  CHECK(found.least_total == 9.5);
  CHECK(found.most_total == 9.5);
  for (std::size_t s = 0; s < data.size(); ++s) {
    CHECK(data[s].label == data[s].query / 5);
    CHECK(data[s].relevant[0] == 1);
  }
}

TEST_CASE("one-hot noise: every noise token meets every query equally often, in windows or spread") {
  // (b, n, N): n below, at, above N; windows balance where N divides b n.
  struct Case {
    int b, n, noise_tokens;
    bool windows;
  };
  const Case c = GENERATE(Case{6, 4, 8, true}, Case{6, 4, 4, true}, Case{6, 11, 3, true}, Case{5, 4, 7, false},
                          Case{1, 1, 1, true});
  const int b = c.b, n = c.n, noise_tokens = c.noise_tokens;
  CAPTURE(b, n, noise_tokens);
  const BlockTask<double> task{.classes = 2,
                               .block = static_cast<double>(b),
                               .informative = 1,
                               .noise = static_cast<double>(n),
                               .noise_vocabulary = static_cast<double>(noise_tokens)};
  const auto check = [&](const Dataset<double>& data) {
    CHECK(data.size() == static_cast<std::size_t>(2 * b * b));
    CHECK(data.shape() == DatasetShape{2 * b, 2 * b + noise_tokens, 2});
    const Statistics found = statistics(data);
    CHECK_THAT(found.least_total, WithinRel(1.0 + n, 1e-14));
    CHECK_THAT(found.most_total, WithinRel(1.0 + n, 1e-14));
    for (int query = 0; query < 2 * b; ++query) {
      for (int l = 0; l < noise_tokens; ++l) {
        CHECK_THAT(found.by_query.at({query, 2 * b + l}), WithinRel(double(b) * n / noise_tokens, 1e-14));
      }
    }
  };
  check(block_dataset(task));
  check(block_dataset(task, NoisePlacement::spread));
  if (c.windows) {
    const Dataset<double> data = block_dataset(task, NoisePlacement::windows);
    check(data);
    for (std::size_t s = 0; s < data.size(); ++s) {
      for (const double count : data[s].counts) CHECK(count == std::floor(count));
    }
  } else {
    CHECK_THROWS_WITH(block_dataset(task, NoisePlacement::windows), Catch::Contains("multiple of noise_vocabulary"));
  }
}

TEST_CASE("the directions have the singular values of the theory") {
  for (const double noise_tokens : {std::numeric_limits<double>::infinity(), 6.0}) {
    const BlockTask<double> task{
        .classes = 4, .block = 3, .informative = 2, .noise = 4, .noise_vocabulary = noise_tokens};
    const Eigen::MatrixXd ov = block_output_direction(task);
    const Eigen::MatrixXd qk = block_attention_direction(task);
    CHECK(ov(1, 3) == 0.75);
    CHECK(ov(0, 3) == -0.25);
    const Eigen::VectorXd ov_values = Eigen::JacobiSVD<Eigen::MatrixXd>(ov).singularValues();
    const Eigen::VectorXd qk_values = Eigen::JacobiSVD<Eigen::MatrixXd>(qk).singularValues();
    const double tolerance = qkflow_test::tolerance<double>(qkflow_test::Tol::elementary);
    CHECK((ov_values.head(3).array() - task.output_value_singular_value()).abs().maxCoeff() < tolerance);
    CHECK(ov_values(3) < tolerance);
    // With one-hot noise the shared noise columns lift one singular value; the other M - 1 are sigma_QK sqrt(...).
    if (std::isinf(noise_tokens)) {
      CHECK((qk_values.head(4).array() - 3.0).abs().maxCoeff() < tolerance);
    } else {
      const double sigma = task.query_key_singular_value();
      CHECK(std::abs(qk_values(0) - sigma * std::sqrt(1.0 + 4.0 * 3.0 / noise_tokens)) < tolerance);
      CHECK((qk_values.segment(1, 3).array() - sigma).abs().maxCoeff() < tolerance);
      // A unit score gap, and rows that sum to zero.
      CHECK_THAT(qk(0, 0) - qk(0, 12), WithinRel(1.0, 1e-14));
      CHECK(qk.rowwise().sum().cwiseAbs().maxCoeff() < tolerance);
      CHECK(qk(0, 3) == 0);
      CHECK(ov.rightCols(6).cwiseAbs().maxCoeff() == 0);
    }
  }
}

TEST_CASE("what cannot be a finite dataset is refused by name and value") {
  BlockTask<double> task{.classes = 3, .block = 4, .informative = 2, .noise = 5};
  const auto refuses = [](const BlockTask<double>& bad, const char* text) {
    CHECK_THROWS_WITH(block_dataset(bad), Catch::Contains("block_dataset") && Catch::Contains(text));
  };
  task.informative = 5;
  refuses(task, "informative = 5");
  task.informative = 1.5;
  refuses(task, "informative = 1.5");
  task.informative = 2;
  task.classes = 2.5;
  refuses(task, "classes = 2.5");
  task.classes = 1;
  refuses(task, "classes = 1");
  task.classes = 3;
  task.block = std::numeric_limits<double>::quiet_NaN();
  refuses(task, "block = nan");
  task.block = 1e9;
  refuses(task, "number of tokens = 3000000000");
  task.block = 4;
  task.noise_vocabulary = 2.5;
  refuses(task, "noise_vocabulary = 2.5");
}
