// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/task/block_task.hpp"

#include <Eigen/Core>
#include <Eigen/SVD>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

/// D_QK, queries x tokens: a score gap of 1 between the informative tokens of the query's class and the noise tokens.
Eigen::MatrixXd attention_direction(int classes, int block, int noise_vocabulary) {
  const double total = block + noise_vocabulary;
  const double informative = noise_vocabulary > 0 ? noise_vocabulary / total : 1.0;
  Eigen::MatrixXd d = Eigen::MatrixXd::Zero(classes * block, classes * block + noise_vocabulary);
  for (int y = 0; y < classes; ++y) d.block(y * block, y * block, block, block).setConstant(informative);
  d.rightCols(noise_vocabulary).setConstant(-block / total);
  return d;
}

/// D_OV, classes x informative tokens: [k = y] - 1/M.
Eigen::MatrixXd output_direction(int classes, int block) {
  Eigen::MatrixXd d = Eigen::MatrixXd::Constant(classes, classes * block, -1.0 / classes);
  for (int y = 0; y < classes; ++y) d.block(y, y * block, 1, block).array() += 1.0;
  return d;
}

Eigen::VectorXd singular_values(const Eigen::MatrixXd& m) {
  return Eigen::JacobiSVD<Eigen::MatrixXd>(m).singularValues();
}

}  // namespace

TEST_CASE("The block task defaults to the setting of the published figure", "[block_task]") {
  const BlockTask<double> task;
  CHECK(task.classes == 20);
  CHECK(task.block == 50);
  CHECK(task.informative == 5);
  CHECK(task.noise == 50);
  CHECK(std::isinf(task.noise_vocabulary));
  CHECK(task.score_scale == 1);
  CHECK_NOTHROW(task.validate("test"));
}

TEST_CASE("Singular values are those of the directions written out", "[block_task]") {
  for (const int classes : {2, 3, 7}) {
    for (const int block : {1, 2, 5}) {
      INFO("M = " << classes << ", b = " << block);
      BlockTask<double> task{.classes = double(classes), .block = double(block)};

      const Eigen::VectorXd attention = singular_values(attention_direction(classes, block, 0));
      CHECK_THAT(attention[0], WithinRel(task.query_key_singular_value(), 1e-13));
      CHECK_THAT(attention[classes - 1], WithinRel(task.query_key_singular_value(), 1e-13));
      if (block > 1) CHECK(attention[classes] < 1e-13);

      const Eigen::VectorXd output = singular_values(output_direction(classes, block));
      CHECK_THAT(output[0], WithinRel(task.output_value_singular_value(), 1e-13));
      CHECK_THAT(output[classes - 2], WithinRel(task.output_value_singular_value(), 1e-13));
      CHECK(output[classes - 1] < 1e-13);

      for (const int noise_vocabulary : {1, 4, 30}) {
        task.noise_vocabulary = noise_vocabulary;
        const double sigma = task.query_key_singular_value();
        const Eigen::VectorXd noisy = singular_values(attention_direction(classes, block, noise_vocabulary));
        // The mean of all classes is steeper; what tells the classes apart has sigma_QK.
        CHECK_THAT(noisy[0], WithinRel(sigma * std::sqrt(1.0 + double(classes * block) / noise_vocabulary), 1e-13));
        CHECK_THAT(noisy[1], WithinRel(sigma, 1e-13));
        CHECK_THAT(noisy[classes - 1], WithinRel(sigma, 1e-13));
      }
    }
  }
}

TEMPLATE_TEST_CASE("A large noise vocabulary approaches null noise", "[block_task]", float, double, long double,
                   Precise) {
  using std::abs;
  BlockTask<TestType> task;
  const TestType limit = task.query_key_singular_value();
  CHECK(limit == task.block);
  TestType last = 0;
  for (TestType noise_vocabulary(1); noise_vocabulary < TestType(1e12); noise_vocabulary *= 10) {
    task.noise_vocabulary = noise_vocabulary;
    const TestType sigma = task.query_key_singular_value();
    CHECK(sigma >= last);
    CHECK(sigma <= limit);
    CHECK(abs(1 / sigma - (1 / task.block + 1 / noise_vocabulary)) <= tolerance<TestType>(Tol::rounding) / sigma);
    last = sigma;
  }
  task.noise_vocabulary = std::numeric_limits<TestType>::max();
  CHECK(abs(task.query_key_singular_value() / limit - 1) <= std::numeric_limits<TestType>::epsilon());
}

TEMPLATE_TEST_CASE("The coupling is (M - 1) / (M sigma_QK)", "[block_task]", float, double, long double, Precise) {
  using std::abs;
  BlockTask<TestType> task{.classes = 20, .block = 50};
  CHECK(abs(task.coupling() * 1000 - 19) <= 19 * tolerance<TestType>(Tol::rounding));
  task = {.classes = 2, .block = 4, .noise_vocabulary = 12};
  CHECK(abs(task.coupling() * 6 - 1) <= tolerance<TestType>(Tol::rounding));
  // M and b past the square root of the largest number: nothing overflows on the way.
  task = {.classes = std::numeric_limits<TestType>::max() / 4, .block = std::numeric_limits<TestType>::max() / 4};
  CHECK(task.coupling() > 0);
}

TEST_CASE("The block task refuses counts that make no task, by name and value", "[block_task]") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const BlockTask<double>& task, const std::string& argument, double value) {
    INFO(argument << " = " << value);
    CHECK_THROWS_WITH(task.validate("somewhere"), Contains("somewhere: " + argument + " = " + to_text(value) + ","));
  };
  for (const double bad : {0.0, -1.0, infinity, -infinity, nan}) {
    refused({.classes = bad}, "classes", bad);
    refused({.block = bad}, "block", bad);
    refused({.informative = bad}, "informative", bad);
    refused({.noise = bad}, "noise", bad);
    refused({.score_scale = bad}, "score_scale", bad);
  }
  for (const double bad : {0.0, -1.0, -infinity, nan}) refused({.noise_vocabulary = bad}, "noise_vocabulary", bad);
  refused({.classes = 1}, "classes", 1);
  refused({.classes = std::nextafter(2.0, 0.0)}, "classes", std::nextafter(2.0, 0.0));
}

TEST_CASE("The block task allows what the equations allow", "[block_task]") {
  CHECK_NOTHROW(BlockTask<double>{.classes = 2}.validate("f"));
  CHECK_NOTHROW(BlockTask<double>{.classes = 2.5, .block = 0.5, .informative = 7, .noise = 1e-3}.validate("f"));
  CHECK_NOTHROW(BlockTask<double>{.noise_vocabulary = 1, .score_scale = 1e-3}.validate("f"));
  CHECK_NOTHROW(BlockTask<Precise>{.classes = Precise("1e1000")}.validate("f"));
}
