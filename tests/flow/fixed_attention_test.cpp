// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/fixed_attention.hpp"

#include <boost/math/special_functions/expint.hpp>
#include <cmath>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

TEST_CASE("Fixed attention satisfies the published implicit solutions in 50 digits", "[fixed_attention]") {
  const Precise M = 4, b = 10, alpha("0.4"), eta("0.01");
  for (const char* text : {"1e-3", "10", "1e4", "1e9"}) {
    const Precise t(text);
    INFO("t = " << text);
    const FixedAttention<Precise> collapsed({M, b, alpha, eta, 0, {}});
    const Precise z = collapsed.logit_gap(t);
    CHECK(abs((expm1(z) + (M - 1) * z) / (eta * alpha * alpha * t / b) - 1) < Precise("1e-45"));
    const Precise start("1e-3");
    const FixedAttention<Precise, Balanced> balanced({M, b, alpha, eta, start, {}});
    const Precise mu = balanced.output(t);
    const Precise grown = boost::math::expint(Precise(alpha * mu)) - boost::math::expint(Precise(alpha * start)) +
                          (M - 1) * log(mu / start);
    CHECK(abs(grown / (2 * eta * alpha * t / sqrt(b)) - 1) < Precise("1e-40"));
  }
}

namespace {

template <class OvRate>
void check_against_field(OvRate rate, double mu_ov0) {
  const typename FixedAttention<double, OvRate>::Options options{6, 9, 0.3, 0.7, mu_ov0, rate};
  const FixedAttention<double, OvRate> fixed(options);
  // Classical Runge-Kutta, written here: d mu/dt = eta rho alpha / (b (E + M - 1)).
  const auto velocity = [&](double mu) {
    return options.learning_rate * rate.rate(mu, std::sqrt(options.block)) * options.alpha /
           (options.block * (std::exp(options.alpha * mu) + options.classes - 1));
  };
  double mu = mu_ov0, t = 0;
  const double h = 0.25;
  for (int step = 0; step < 4000; ++step) {
    const double k1 = velocity(mu), k2 = velocity(mu + h / 2 * k1), k3 = velocity(mu + h / 2 * k2);
    mu += h / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(mu + h * k3));
    t += h;
    if (step % 800 != 0) continue;
    INFO("t = " << t);
    CHECK_THAT(fixed.output(t), WithinRel(mu, 1e-9));
    CHECK_THAT(fixed.time_at_loss(fixed.loss(t)), WithinRel(t, tolerance<double>(Tol::extreme)));
    // -dL/dalpha at fixed weights, by central differences of the cross entropy written out.
    const auto loss = [&](double alpha) { return std::log1p((options.classes - 1) * std::exp(-alpha * mu)); };
    const double e = 1e-5;
    CHECK_THAT(fixed.marginal_benefit(t),
               WithinRel((loss(options.alpha - e) - loss(options.alpha + e)) / (2 * e), 1e-6));
    CHECK_THAT(fixed.marginal_benefit(t, 0.005),
               WithinRel((loss(options.alpha) - loss(options.alpha + 0.005)) / 0.005, 1e-8));
  }
}

}  // namespace

TEST_CASE("Fixed attention follows its own field for every rate factor", "[fixed_attention]") {
  check_against_field(Collapsed{}, 0.0);
  check_against_field(Collapsed{}, -1.0);
  check_against_field(Balanced{}, 0.02);
  check_against_field(Unbalanced<double>{0.4}, 0.0);
  check_against_field(FactorProduct{3}, 0.1);
}

TEST_CASE("The marginal benefit of attention rises, then falls", "[fixed_attention]") {
  const FixedAttention<double> fixed({4, 10, 0.4, 0.01, 0, {}});
  double peak = 0, peak_time = 0;
  for (double t = 1; t < 1e9; t *= 1.1) {
    if (fixed.marginal_benefit(t) > peak) {
      peak = fixed.marginal_benefit(t);
      peak_time = t;
    }
  }
  CHECK(peak_time > 100);
  CHECK(peak_time < 1e8);
  CHECK(fixed.marginal_benefit(1.0) < 0.01 * peak);
  CHECK(fixed.marginal_benefit(1e9) < 0.1 * peak);
}

TEST_CASE("Fixed attention refuses bad options by name", "[fixed_attention]") {
  CHECK_THROWS_WITH(FixedAttention<double>({1, 9, 0.3, 1, 0, {}}), Contains("classes = 1"));
  CHECK_THROWS_WITH(FixedAttention<double>({4, 0, 0.3, 1, 0, {}}), Contains("block"));
  CHECK_THROWS_WITH(FixedAttention<double>({4, 9, 1.5, 1, 0, {}}), Contains("alpha = 1.5"));
  CHECK_THROWS_WITH(FixedAttention<double>({4, 9, 0.5, -1, 0, {}}), Contains("learning_rate = -1"));
  CHECK_THROWS_WITH((FixedAttention<double, Balanced>({4, 9, 0.5, 1, 0, {}})), Contains("mu_ov0 = 0"));
  const FixedAttention<double> fixed({4, 9, 0.5, 1, 0, {}});
  CHECK_THROWS_WITH(fixed.loss(-1.0), Contains("t = -1"));
  CHECK_THROWS_WITH(fixed.time_at_loss(2.0), Contains("loss = 2"));
}
