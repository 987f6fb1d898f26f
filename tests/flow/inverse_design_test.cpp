// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/inverse_design.hpp"

#include <cmath>

#include "qkflow/flow/closed_form.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

template <class Scalar, class QkRate, class OvRate>
void check_inverse(QkRate qk, OvRate ov, ReducedState<Scalar> start) {
  ReducedFlow<Scalar, QkRate, OvRate> flow{{}, {}, qk, ov};
  for (double loss : {1.0, 1e-3, 1e-8}) {
    for (double ratio : {1e-3, 0.2, 7.0, 400.0}) {
      flow.rates = {Scalar(0.5), Scalar(0.5) * Scalar(ratio)};
      const auto point = ClosedForm(flow, start).at_loss(Scalar(loss));
      // alpha determines the ratio badly near 1 (by its distance from 1), and near the start's (by the score's way).
      using std::abs;
      const double condition =
          static_cast<double>((1 + 1 / abs(Scalar(point.mu_qk - start.mu_qk))) / (1 - point.alpha));
      const double found = static_cast<double>(ratio_for_attention(flow, start, point.alpha, Scalar(loss)));
      INFO("ratio " << ratio << ", loss " << loss << ", start " << start.mu_ov << ", " << start.mu_qk);
      CHECK_THAT(found, WithinRel(ratio, condition * tolerance<double>(Tol::state)));
    }
  }
}

}  // namespace

TEST_CASE("Inverse design is the inverse: the ratio that made the attention comes back", "[inverse_design]") {
  check_inverse<double>(Collapsed{}, Collapsed{}, {0.0, 0.0});
  check_inverse<double>(Collapsed{}, Collapsed{}, {-1.0, 0.4});
  check_inverse<double>(Collapsed{}, Balanced{}, {0.01, -0.3});
  check_inverse<double>(Balanced{}, Collapsed{}, {0.0, 0.2});
  check_inverse<double>(Balanced{}, Balanced{}, {0.01, 0.01});
  check_inverse<double>(Unbalanced<double>{0.7}, Unbalanced<double>{0.1}, {0.0, 0.0});
  check_inverse<double>(FactorProduct{3}, FactorProduct{4}, {0.02, 0.1});
  check_inverse<Precise>(Collapsed{}, Collapsed{}, {0, 0});
}

TEST_CASE("Inverse design from zero is 2 (g(q) - g(0)) / (c0 o^2)", "[inverse_design]") {
  const Caco<Precise> flow;
  const Precise alpha("0.7"), loss("1e-2");
  const Precise M = 20, b = 50, m = 5, n = 50;
  const Precise o = log((M - 1) / (exp(loss) - 1)) / alpha;
  const Precise q = log(alpha * n / (m * (1 - alpha)));
  const Precise expected = 2 * (m / n * (exp(q) - 1) + q) / ((M - 1) / (M * b) * o * o);
  const Precise found = ratio_for_attention(flow, ReducedState<Precise>{}, alpha, loss);
  CHECK(abs(found / expected - 1) < Precise("1e-45"));
}

TEST_CASE("Inverse design says which targets no ratio reaches", "[inverse_design]") {
  const Caco<double> flow;
  const ReducedState<double> zero{};
  CHECK_THROWS_WITH(ratio_for_attention(flow, zero, 0.05, 1e-2), Contains("alpha") && Contains("0.05"));
  CHECK_THROWS_WITH(ratio_for_attention(flow, zero, 1.0, 1e-2), Contains("alpha = 1"));
  CHECK_THROWS_WITH(ratio_for_attention(flow, zero, -0.2, 1e-2), Contains("alpha") && Contains("-0.2"));
  CHECK_THROWS_WITH(ratio_for_attention(flow, zero, 0.5, 4.0), Contains("loss") && Contains("4"));
  CHECK_THROWS_WITH(ratio_for_attention(flow, zero, 0.5, -1.0), Contains("loss") && Contains("-1"));
  CHECK_THROWS_WITH(ratio_for_attention(Faco<double>{}, {0.0, -0.1}, 0.9, 1e-2), Contains("mu_qk0"));
  CHECK_THROWS_WITH(ratio_for_attention(Cafo<double>{}, zero, 0.9, 1e-2), Contains("mu_ov0"));
}
