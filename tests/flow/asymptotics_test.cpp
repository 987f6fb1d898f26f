// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/asymptotics.hpp"

#include <cmath>
#include <string>

#include "qkflow/flow/closed_form.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

struct LawErrors {
  double mu_ov, noise_mass, loss;
};

template <class Flow, class Closed>
LawErrors law_errors(const Flow& flow, const Closed& closed, double t) {
  const auto law = late_time(flow, t);
  const auto exact = closed.at_time(t);
  return {std::abs(law.mu_ov / exact.mu_ov - 1), std::abs(law.noise_mass / flow.noise_mass(exact.mu_qk) - 1),
          std::abs(law.loss / exact.loss - 1)};
}

/// The laws are leading orders with errors like 1 / log t: smaller at the end than at the start, and small there.
template <class QkRate, class OvRate>
void check_laws(QkRate qk, OvRate ov, ReducedState<double> start, LawErrors bound) {
  ReducedFlow<double, QkRate, OvRate> flow{{}, {}, qk, ov};
  flow.rates = {1.0, 20.0};
  const ClosedForm closed(flow, start);
  const LawErrors early = law_errors(flow, closed, 1e8), late = law_errors(flow, closed, 1e280);
  INFO("early " << early.mu_ov << ", " << early.noise_mass << ", " << early.loss);
  INFO("late " << late.mu_ov << ", " << late.noise_mass << ", " << late.loss);
  CHECK(late.mu_ov < early.mu_ov);
  CHECK(late.noise_mass < early.noise_mass);
  CHECK(late.loss < early.loss);
  CHECK(late.mu_ov < bound.mu_ov);
  CHECK(late.noise_mass < bound.noise_mass);
  CHECK(late.loss < bound.loss);
}

}  // namespace

TEST_CASE("Late-time laws are approached by the exact trajectory", "[asymptotics]") {
  check_laws(Collapsed{}, Collapsed{}, {0.0, 0.0}, {1e-3, 0.06, 0.01});
  check_laws(Collapsed{}, Balanced{}, {0.1, 0.0}, {0.1, 0.2, 0.1});
  check_laws(Balanced{}, Collapsed{}, {0.0, 0.1}, {1e-3, 0.06, 0.01});
  check_laws(Unbalanced<double>{0.2}, Collapsed{}, {0.0, 0.0}, {1e-3, 0.06, 0.01});
}

TEST_CASE("The collapsed loss falls like (M - 1) b / (eta t)", "[asymptotics]") {
  const Caco<double> flow;
  CHECK_THAT(late_time(flow, 1e100).loss, WithinRel(19 * 50 / 1e100, 1e-12));
  CHECK_THAT(late_time(flow, 1e100).mu_ov, WithinRel(std::log(1e100 / 50), 1e-12));
}

TEST_CASE("Late-time laws refuse early times", "[asymptotics]") {
  CHECK_THROWS_WITH(late_time(Caco<double>{}, 10.0), Contains("t = 10"));
  CHECK_THROWS_WITH(late_time(Caco<double>{}, -1.0), Contains("t = -1"));
}
