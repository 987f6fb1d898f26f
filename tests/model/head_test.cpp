// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/head.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;

namespace {

const double exact = qkflow_test::tolerance<double>(qkflow_test::Tol::rounding);

/// One query, three tokens, two classes; the sequence holds token 0 twice (relevant), token 2 once and one null token.
Dataset<double> one_sequence() {
  DatasetBuilder<double> builder({.queries = 1, .tokens = 3, .classes = 2});
  builder.add({.query = 0, .label = 1, .entries = {{0, 2, true}, {2, 1, false}}, .null_count = 1});
  return std::move(builder).build();
}

Circuits<double> weights() {
  Circuits<double> w(DatasetShape{1, 3, 2}, true);
  w.qk << std::log(3.0), 100, std::log(0.5);  // token 1 is not in the sequence
  w.ov << 0.5, 100, -1, 1.5, 100, 2;
  w.bias << 0.25, -0.25;
  return w;
}

// Unnormalized masses 2 * 3, 1 * 0.5 and 1: in all 7.5.
const double a0 = 6 / 7.5, a2 = 0.5 / 7.5, a_null = 1 / 7.5;

double cross_entropy(double gap) { return std::log1p(std::exp(-gap)); }  // gap: label's logit less the other's

}  // namespace

TEST_CASE("soft attention, by hand") {
  HeadForward<double> forward({});
  const Dataset<double> data = one_sequence();
  const Circuits<double> w = weights();
  const auto& result = forward(data[0], w.view());
  CHECK_THAT(result.attention[0], WithinRel(a0, exact));
  CHECK_THAT(result.attention[1], WithinRel(a2, exact));
  CHECK_THAT(result.null_attention, WithinRel(a_null, exact));
  CHECK_THAT(result.relevant_attention, WithinRel(a0, exact));
  // Positions: two of mass a0 / 2, one of a2, one of a_null.
  CHECK_THAT(result.entropy, WithinRel(-a0 * std::log(a0 / 2) - a2 * std::log(a2) - a_null * std::log(a_null), exact));
  const double gap = a0 * (1.5 - 0.5) + a2 * (2 + 1) - 0.5;
  CHECK_THAT(result.loss, WithinRel(cross_entropy(gap), exact));
  CHECK_THAT(result.probabilities[1], WithinRel(std::exp(-cross_entropy(gap)), exact));
  CHECK_THAT(result.probabilities.sum(), WithinRel(1.0, exact));
}

TEST_CASE("the score scale multiplies scores") {
  const Dataset<double> data = one_sequence();
  Circuits<double> w = weights();
  HeadForward<double> plain({}), scaled({.score_scale = 0.25});
  const double loss = plain(data[0], w.view()).loss;
  w.qk *= 4;
  CHECK_THAT(scaled(data[0], w.view()).loss, WithinRel(loss, exact));
}

TEST_CASE("hard and marginal attention, by hand") {
  const Dataset<double> data = one_sequence();
  const Circuits<double> w = weights();
  const double l0 = cross_entropy(0.5), l2 = cross_entropy(2.5), l_null = cross_entropy(-0.5);
  HeadForward<double> hard({.attention = AttentionMode::hard}), marginal({.attention = AttentionMode::marginal});
  CHECK_THAT(hard(data[0], w.view()).loss, WithinRel(a0 * l0 + a2 * l2 + a_null * l_null, exact));
  const double hit = a0 * std::exp(-l0) + a2 * std::exp(-l2) + a_null * std::exp(-l_null);
  CHECK_THAT(marginal(data[0], w.view()).loss, WithinRel(-std::log(hit), exact));
  CHECK_THAT(marginal(data[0], w.view()).probabilities[1], WithinRel(hit, exact));
  CHECK_THAT(hard(data[0], w.view()).probabilities[0], WithinRel(1 - hit, exact));
}

TEST_CASE("fixed attention spreads its mass by position") {
  HeadForward<double> forward({.attention = AttentionMode::fixed, .fixed_alpha = 0.75});
  const Circuits<double> w = weights();
  const Dataset<double> data = one_sequence();
  const auto& result = forward(data[0], w.view());
  CHECK_THAT(result.attention[0], WithinRel(0.75, exact));
  CHECK_THAT(result.attention[1], WithinRel(0.125, exact));
  CHECK_THAT(result.null_attention, WithinRel(0.125, exact));
  CHECK_THAT(result.relevant_attention, WithinRel(0.75, exact));

  // Only one kind: even attention.
  DatasetBuilder<double> builder({.queries = 1, .tokens = 3, .classes = 2});
  builder.add({.entries = {{0, 3, true}, {2, 1, true}}});
  builder.add({.entries = {{0, 3, false}}, .null_count = 1});
  const Dataset<double> one_kind = std::move(builder).build();
  CHECK_THAT(forward(one_kind[0], w.view()).attention[0], WithinRel(0.75, exact));
  CHECK_THAT(forward(one_kind[0], w.view()).relevant_attention, WithinRel(1.0, exact));
  CHECK_THAT(forward(one_kind[1], w.view()).attention[0], WithinRel(0.75, exact));
  CHECK_THAT(forward(one_kind[1], w.view()).null_attention, WithinRel(0.25, exact));
}

TEST_CASE("a sequence of null tokens alone predicts from the bias") {
  DatasetBuilder<double> builder({.queries = 1, .tokens = 3, .classes = 2});
  builder.add({.label = 1, .null_count = 5});
  const Dataset<double> data = std::move(builder).build();
  for (const auto mode : {AttentionMode::soft, AttentionMode::fixed, AttentionMode::hard, AttentionMode::marginal}) {
    HeadForward<double> forward({.attention = mode});
    const auto& result = forward(data[0], weights().view());
    CHECK_THAT(result.loss, WithinRel(cross_entropy(-0.5), exact));
    CHECK(result.null_attention == 1);
    CHECK_THAT(result.entropy, WithinRel(std::log(5.0), exact));
  }
}

TEST_CASE("NaN weights give NaN, and options are checked") {
  Circuits<double> w = weights();
  w.ov(0, 0) = std::numeric_limits<double>::quiet_NaN();
  const Dataset<double> data = one_sequence();
  CHECK(std::isnan(HeadForward<double>({})(data[0], w.view()).loss));
  CHECK_THROWS_WITH(HeadForward<double>({.score_scale = -1}), Catch::Contains("score_scale = -1"));
  CHECK_THROWS_WITH(HeadForward<double>({.fixed_alpha = 2}), Catch::Contains("fixed_alpha = 2"));
  CHECK_THROWS_AS(HeadForward<double>({.fixed_alpha = std::nan("")}), InvalidArgument);
}
