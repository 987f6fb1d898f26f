// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/observables.hpp"

#include <cmath>
#include <limits>

#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/model/circuit_gradient.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;

namespace {
const double tight = qkflow_test::tolerance<double>(qkflow_test::Tol::elementary);
}

TEST_CASE("on the line the observables are the reduced flow's") {
  for (const double noise_tokens : {std::numeric_limits<double>::infinity(), 6.0}) {
    const BlockTask<double> task{
        .classes = 4, .block = 3, .informative = 2, .noise = 4, .noise_vocabulary = noise_tokens, .score_scale = 0.7};
    const Dataset<double> data = block_dataset(task);
    Circuits<double> w(data.shape());
    w.ov = 1.5 * block_output_direction(task);
    w.qk = 0.8 / 0.7 * block_attention_direction(task);
    const Caco<double> flow{.task = task};
    HeadObserver<double> observe(data, {.score_scale = 0.7});
    const auto seen = observe(w.view());
    const double alpha = flow.alpha(0.8);
    CHECK_THAT(seen.loss, WithinRel(flow.loss(1.5, 0.8), tight));
    CHECK(seen.accuracy == 1);
    CHECK_THAT(seen.label_probability, WithinRel(std::exp(-flow.loss(1.5, 0.8)), tight));
    CHECK_THAT(seen.relevant_attention, WithinRel(alpha, tight));
    // Two informative positions share alpha, four noise positions the rest.
    CHECK_THAT(seen.attention_entropy,
               WithinRel(-alpha * std::log(alpha / 2) - (1 - alpha) * std::log((1 - alpha) / 4), tight));

    const auto position = LineObserver<double>(task)(w.view());
    CHECK_THAT(position.mu_ov, WithinRel(1.5, tight));
    CHECK_THAT(position.mu_qk, WithinRel(0.8, tight));
    CHECK(position.ov_distance < tight);
    CHECK(position.qk_distance < tight);
    // Off the line by one entry of the null noise's W_QK and W_OV: distance is what is left after projecting.
    w.ov(0, 0) += 0.25;
    const auto off = LineObserver<double>(task)(w.view());
    CHECK(off.ov_distance < 0.25);
    CHECK(off.ov_distance > 0.2);
    CHECK(off.mu_ov > 1.5);
    CHECK(off.qk_distance < tight);
  }
}

TEST_CASE("observables agree with the gradient's loss, for any number of threads, and know ties") {
  const DatasetShape shape{5, 11, 4};
  const Dataset<double> data = qkflow_test::random_dataset({.shape = shape, .sequences = 1000});
  const auto w = qkflow_test::random_circuits<double>(shape, 1.0, true, 3);
  for (const auto mode : {AttentionMode::soft, AttentionMode::fixed, AttentionMode::hard, AttentionMode::marginal}) {
    const HeadOptions<double> options{.attention = mode, .fixed_alpha = 0.3};
    HeadObserver<double> one(data, options), three(data, options, 3);
    const auto a = one(w.view()), b = three(w.view());
    CHECK_THAT(a.loss, WithinRel(CircuitGradient<double>(data, options).loss(w.view()), tight));
    CHECK(a.loss == b.loss);
    CHECK(a.accuracy == b.accuracy);
    CHECK(a.attention_entropy == b.attention_entropy);
    CHECK(a.accuracy > 0.1);
    CHECK(a.accuracy < 0.9);
    const auto flat = one(Circuits<double>(shape).view());
    CHECK_THAT(flat.accuracy, WithinRel(0.25, tight));  // four equal classes
    CHECK_THAT(flat.loss, WithinRel(std::log(4.0), tight));
  }
  HeadObserver<double> observe(data);
  CHECK_THROWS_WITH(observe(Circuits<double>({5, 11, 3}).view()), Catch::Contains("rows of W_OV = 3"));
  Circuits<double> broken(shape);
  broken.ov.setConstant(std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(observe(broken.view()).loss));
  CHECK(observe(broken.view()).accuracy < 0.1);  // sequences of null tokens alone predict from the bias still
}

TEST_CASE("leading singular values descend, and no more than there are") {
  const BlockTask<double> task{.classes = 4, .block = 3, .informative = 2, .noise = 4};
  const auto values = leading_singular_values(block_output_direction(task), 10);
  REQUIRE(values.size() == 4);
  CHECK_THAT(values[0], WithinRel(std::sqrt(3.0), tight));
  CHECK_THAT(values[2], WithinRel(std::sqrt(3.0), tight));
  CHECK(values[3] < tight);
  CHECK(leading_singular_values(block_output_direction(task), 2).size() == 2);
  CHECK_THROWS_WITH(leading_singular_values(block_output_direction(task), 0), Catch::Contains("count = 0"));
}

TEST_CASE("imbalance and drift of conserved quantities") {
  const BlockTask<double> task{.classes = 4, .block = 3, .informative = 2, .noise = 4};
  const auto fafo = fafo_parameters<double>({12, 12, 4}, 4);
  const ColumnVector<double> theta =
      aligned_start(fafo, task, {.mu_ov = 1, .mu_qk = 1, .lambda_ov = 0.5, .lambda_qk = -0.25});
  const auto values = imbalances(fafo, theta);
  REQUIRE(values.size() == 2);
  CHECK(values[0].name == "W_Q W_Q' - W_K W_K'");
  CHECK_THAT(values[0].value, WithinRel(0.25 * 2, tight));              // four directions
  CHECK_THAT(values[1].value, WithinRel(0.5 * std::sqrt(3.0), tight));  // three
  const auto before = fafo.conserved(theta);
  CHECK(conserved_drift(before, before) == 0);
  CHECK(conserved_drift(before, fafo.conserved(2 * theta)) > 0.7);
  CHECK(imbalances(caco_parameters<double>({12, 12, 4}), ColumnVector<double>::Zero(144 + 48)).empty());
  CHECK_THROWS_WITH(conserved_drift(before, {}), Catch::Contains("number of quantities after = 0"));
}
