// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/closed_form.hpp"

#include <boost/math/special_functions/expint.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/reduced_flow_cases.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::for_each_golden;
using qkflow_test::Golden;
using qkflow_test::Precise;
using qkflow_test::read;
using qkflow_test::relative_error;
using qkflow_test::Tol;
using qkflow_test::tolerance;

TEMPLATE_TEST_CASE("Closed form agrees with the golden values", "[closed_form]", float, double, long double) {
  // The first integral and the clock lose a few bits to the size of their exponents; float has none to spare.
  const TestType state =
      std::is_same_v<TestType, float> ? tolerance<float>(Tol::elementary) : tolerance<TestType>(Tol::state);
  for_each_golden<TestType>([&](const auto& flow, const auto& start, const Golden& row) {
    INFO(row.parameterization << " eta_QK " << row.eta_qk << " loss " << row.stop_loss);
    const ClosedForm closed(flow, start);
    const auto point = closed.at_loss(read<TestType>(row.stop_loss));
    CHECK(relative_error(point.mu_ov, Precise(row.mu_ov)) < state);
    CHECK(relative_error(point.mu_qk, Precise(row.mu_qk)) < state);
    CHECK(relative_error(point.alpha, Precise(row.alpha)) < state);
    CHECK(relative_error(closed.time(point), Precise(row.t)) < tolerance<TestType>(Tol::time));
  });
}

TEST_CASE("Closed form in 50 digits gives all 25 golden digits", "[closed_form]") {
  const Precise half_a_digit("5e-25");  // the file rounds to 25 significant digits
  for_each_golden<Precise>([&](const auto& flow, const auto& start, const Golden& row) {
    INFO(row.parameterization << " eta_QK " << row.eta_qk << " loss " << row.stop_loss);
    const ClosedForm closed(flow, start);
    const auto point = closed.at_loss(Precise(row.stop_loss));
    CHECK(relative_error(point.mu_ov, Precise(row.mu_ov)) < half_a_digit);
    CHECK(relative_error(point.mu_qk, Precise(row.mu_qk)) < half_a_digit);
    CHECK(relative_error(point.alpha, Precise(row.alpha)) < half_a_digit);
    CHECK(relative_error(closed.time(point), Precise(row.t)) < half_a_digit);
  });
}

namespace {

// The published form of the first integrals, written out row by row and with Boost's special functions: nothing here
// comes from the library.
Precise textbook_residual(const Golden& row, const Precise& o, const Precise& q) {
  const Precise M(row.classes), b(row.block), m(row.informative), n(row.noise);
  const Precise r = Precise(row.eta_qk) / Precise(row.eta_ov), c0 = (M - 1) / (M * b);
  const Precise o0(row.mu_ov0), q0(row.mu_qk0);
  const auto g = [&](const Precise& x) -> Precise { return m / n * exp(x) + x; };
  const auto h = [&](const Precise& x) -> Precise { return m / n * boost::math::expint(x) + log(abs(x)); };
  const std::string_view name = row.parameterization;
  if (name == "CACO") return g(q) - g(q0) - r * c0 * (o * o - o0 * o0) / 2;
  if (name == "CAFO") return g(q) - g(q0) - r * c0 * (o - o0) / (2 * sqrt(b));
  if (name == "FACO") return h(q) - h(q0) - r * c0 * b * (o * o - o0 * o0);
  return h(q) - h(q0) - r * c0 * sqrt(b) * (o - o0);
}

}  // namespace

TEST_CASE("In 50 digits the published first integrals hold below 1e-45", "[closed_form]") {
  for_each_golden<Precise>([&](const auto& flow, const auto& start, const Golden& row) {
    const ClosedForm closed(flow, start);
    const auto point = closed.at_loss(Precise(row.stop_loss));
    INFO(row.parameterization << " eta_QK " << row.eta_qk << " loss " << row.stop_loss);
    CHECK(abs(textbook_residual(row, point.mu_ov, point.mu_qk)) < Precise("1e-45"));
    CHECK(abs(closed.first_integral_residual(point.mu_ov, point.mu_qk)) < Precise("1e-45"));
  });
}

TEST_CASE("The published table of the reduced flow, to every printed digit", "[closed_form]") {
  struct Row {
    double ratio, tau, mu_ov, mu_qk, alpha;
  };
  // Source: [Vashisht26], figure 4 (tau to three digits, the others to three decimals).
  for (const Row& row : {Row{0.01, 2.55e6, 81.669, 0.559, 0.149}, Row{0.1, 4.90e6, 42.282, 1.395, 0.287}}) {
    Caco<double> flow;
    flow.rates = {1.0, row.ratio};
    const ClosedForm closed(flow, ReducedState<double>{});
    const auto point = closed.at_loss(1e-4);
    CHECK_THAT(point.mu_ov, WithinAbs(row.mu_ov, 5e-4));
    CHECK_THAT(point.mu_qk, WithinAbs(row.mu_qk, 5e-4));
    CHECK_THAT(point.alpha, WithinAbs(row.alpha, 5e-4));
    CHECK_THAT(closed.time(point) * std::min(1.0, row.ratio), WithinAbs(row.tau, 0.005e6));
  }
}

namespace {

/// All pairs of rate factors on one moderate task, with the starts each admits.
template <class Action>
void for_each_pair(const Action& action) {
  const BlockTask<double> task{7, 12, 3, 20, std::numeric_limits<double>::infinity(), 0.7};
  const LearningRates<double> rates{0.8, 3.0};
  const auto with = [&](auto qk, auto ov, double mu_ov, double mu_qk) {
    const ReducedFlow<double, decltype(qk), decltype(ov)> flow{task, rates, qk, ov};
    action(flow, ReducedState<double>{mu_ov, mu_qk});
  };
  const auto outputs = [&](auto qk, double mu_qk) {
    with(qk, Collapsed{}, 0.0, mu_qk);
    with(qk, Collapsed{}, -1.5, mu_qk);
    with(qk, Collapsed{}, 2.0, mu_qk);
    with(qk, Balanced{}, 0.01, mu_qk);
    with(qk, Unbalanced<double>{0.5}, -0.7, mu_qk);
    with(qk, FactorProduct{3}, 0.2, mu_qk);
  };
  outputs(Collapsed{}, 0.0);
  outputs(Collapsed{}, -3.0);
  outputs(Balanced{}, 0.05);
  outputs(Balanced{}, -0.4);
  outputs(Unbalanced<double>{0.3}, 0.0);
  outputs(Unbalanced<double>{-2.0}, -0.5);
  outputs(FactorProduct{1}, 0.0);
  outputs(FactorProduct{3}, 0.1);
}

}  // namespace

TEST_CASE("Closed form of time inverts closed form of state", "[closed_form]") {
  const double state = tolerance<double>(Tol::time);
  for_each_pair([&](const auto& flow, const auto& start) {
    const ClosedForm closed(flow, start);
    for (double fraction : {0.999, 0.6, 0.1, 1e-3, 1e-8}) {
      const double loss = fraction * closed.start().loss;
      const auto at_loss = closed.at_loss(loss);
      INFO("start " << start.mu_ov << ", " << start.mu_qk << ", loss " << loss);
      CHECK_THAT(flow.loss(at_loss.mu_ov, at_loss.mu_qk), WithinRel(loss, state));
      // A time is known to epsilon of itself: what the flow covers in that long is not an error of the inverse.
      const double t = closed.time(at_loss);
      const auto by_time = closed.at_time(t);
      const double blur_ov = t * flow.output_velocity(at_loss.mu_ov, at_loss.mu_qk);
      CHECK_THAT(closed.time(by_time), WithinRel(t, state));
      CHECK_THAT(by_time.mu_ov, WithinAbs(at_loss.mu_ov, state * (std::abs(at_loss.mu_ov) + blur_ov)));
      CHECK_THAT(by_time.mu_qk,
                 WithinAbs(closed.at_output(by_time.mu_ov).mu_qk, state * (1 + std::abs(by_time.mu_qk))));
      const auto by_output = closed.at_output(at_loss.mu_ov);
      CHECK_THAT(by_output.mu_qk, WithinRel(at_loss.mu_qk, state) || WithinAbs(at_loss.mu_qk, state));
      CHECK_THAT(std::exp(closed.log_time_at_output(at_loss.mu_ov)), WithinRel(closed.time(at_loss), state));
      // Factorized attention below 0 saturates: there attention does not tell the state.
      const bool saturates = flow.qk.saddle_at_zero() && start.mu_qk < 0;
      if (at_loss.mu_ov > std::abs(start.mu_ov) && !saturates) {
        CHECK_THAT(closed.at_attention(at_loss.alpha).mu_ov, WithinRel(at_loss.mu_ov, 100 * state));
      }
    }
  });
}

TEST_CASE("States at many losses are the states at each", "[closed_form]") {
  const auto check = [](const auto& flow, const auto& start) {
    const ClosedForm closed(flow, start);
    const double top = closed.start().loss;
    const std::vector<double> losses{0.9 * top, 0.9 * top, 0.5 * top, 0.1 * top, 1e-3, 0.3 * top, 1e-3, 1e-12};
    const auto points = closed.at_losses(losses);
    REQUIRE(points.size() == losses.size());
    for (std::size_t k = 0; k < losses.size(); ++k) {
      const auto alone = closed.at_loss(losses[k]);
      INFO("loss " << losses[k] << ", start " << start.mu_ov << ", " << start.mu_qk);
      CHECK_THAT(points[k].mu_ov, WithinRel(alone.mu_ov, tolerance<double>(Tol::state)));
      CHECK_THAT(points[k].mu_qk,
                 WithinRel(alone.mu_qk, tolerance<double>(Tol::state)) || WithinAbs(alone.mu_qk, 1e-300));
    }
  };
  for_each_pair(check);
  // The attention circuit hardly moves: its displacement is below the last digits of the score.
  for (const double ratio : {1e-15, 1e-12, 1e-9}) {
    Caco<double> flow;
    flow.rates.qk = ratio;
    check(flow, ReducedState<double>{0.0, 5.0});
  }
}

TEST_CASE("The closed clock runs at the speed of the field", "[closed_form]") {
  // Central differences of at_time against the velocity: a check that does not know how either is computed.
  for_each_pair([&](const auto& flow, const auto& start) {
    const ClosedForm closed(flow, start);
    for (double t : {0.5, 40.0}) {
      const double h = 3e-5 * t;
      const auto before = closed.at_time(t - h), here = closed.at_time(t), after = closed.at_time(t + h);
      INFO("start " << start.mu_ov << ", " << start.mu_qk << ", t " << t);
      // Truncation of the difference, and the rounding of the states it is formed from.
      const auto close_to = [h](double velocity, double state) {
        return WithinAbs(velocity,
                         1e-6 * std::abs(velocity) + tolerance<double>(Tol::elementary) * std::abs(state) / h);
      };
      CHECK_THAT((after.mu_ov - before.mu_ov) / (2 * h),
                 close_to(flow.output_velocity(here.mu_ov, here.mu_qk), here.mu_ov));
      CHECK_THAT((after.mu_qk - before.mu_qk) / (2 * h),
                 close_to(flow.attention_velocity(here.mu_ov, here.mu_qk), here.mu_qk));
    }
  });
}

TEST_CASE("The loss falls monotonically along the trajectory, and mu_OV rises", "[closed_form]") {
  for_each_pair([&](const auto& flow, const auto& start) {
    const ClosedForm closed(flow, start);
    std::vector<double> times;
    for (int k = 0; k <= 120; ++k) times.push_back(std::pow(1e9, k / 120.0) - 1);
    const auto points = closed.trajectory(times);
    REQUIRE(points.size() == times.size());
    CHECK(points.front().mu_ov == start.mu_ov);
    CHECK(points.front().t == 0.0);
    for (std::size_t k = 1; k < points.size(); ++k) {
      CHECK(points[k].loss < points[k - 1].loss);
      CHECK(points[k].mu_ov > points[k - 1].mu_ov);
    }
  });
}

TEST_CASE("Attention at a fixed loss increases with the ratio of the rates", "[closed_form]") {
  for_each_pair([&](auto flow, const auto& start) {
    // (Factorized attention below 0 saturates at m / (m + n), the same for every large ratio.)
    if (start.mu_ov < 0 || (flow.qk.saddle_at_zero() && start.mu_qk < 0)) return;
    double last_alpha = 0, last_qk = -1e300, last_ov = 1e300;
    for (double r = 1e-3; r < 1e4; r *= 3) {
      flow.rates = {1.0, r};
      const auto point = ClosedForm(flow, start).at_loss(1e-2);
      CHECK(point.alpha > last_alpha);
      CHECK(point.mu_qk > last_qk);
      CHECK(point.mu_ov < last_ov);
      last_alpha = point.alpha;
      last_qk = point.mu_qk;
      last_ov = point.mu_ov;
    }
  });
}

TEST_CASE("Limits: many noise tokens, small imbalance, one and two factors", "[closed_form]") {
  const double loss = 1e-3;
  Caco<double> caco;
  caco.rates = {1.0, 5.0};
  const auto reference = ClosedForm(caco, ReducedState<double>{}).at_loss(loss);
  SECTION("N -> infinity: the finite noise vocabulary differs by O(1/N)") {
    double last = 1;
    for (double noise_vocabulary : {1e2, 1e4, 1e6, 1e8}) {
      Caco<double> flow = caco;
      flow.task.noise_vocabulary = noise_vocabulary;
      const auto point = ClosedForm(flow, ReducedState<double>{}).at_loss(loss);
      const double difference = std::abs(point.mu_qk / reference.mu_qk - 1);
      CHECK(difference < last);
      CHECK(difference < 100 / noise_vocabulary);
      last = difference;
    }
  }
  SECTION("a large noise vocabulary speeds up what is learned by 1 + b / N") {
    Caco<double> finite = caco, faster = caco;
    finite.task.noise_vocabulary = 25;
    faster.rates.qk *= 1 + faster.task.block / 25;
    const auto a = ClosedForm(finite, ReducedState<double>{}).at_loss(loss);
    const auto b = ClosedForm(faster, ReducedState<double>{}).at_loss(loss);
    CHECK_THAT(a.mu_qk, WithinRel(b.mu_qk, tolerance<double>(Tol::state)));
  }
  SECTION("lambda -> 0: unbalanced factors become balanced ones") {
    const Fafo<double> balanced{caco.task, caco.rates, {}, {}};
    const ReducedState<double> start{0.05, 0.02};
    const auto exact = ClosedForm(balanced, start).at_loss(loss);
    const double exact_time = ClosedForm(balanced, start).time(exact);
    double last = 1;
    for (double lambda : {1e-1, 1e-2, 1e-3, 1e-6}) {
      const ReducedFlow<double, Unbalanced<double>, Unbalanced<double>> flow{caco.task, caco.rates, {lambda}, {lambda}};
      const ClosedForm closed(flow, start);
      const auto point = closed.at_loss(loss);
      const double difference = std::abs(point.alpha / exact.alpha - 1) + std::abs(closed.time(point) / exact_time - 1);
      CHECK(difference < last);
      last = difference;
    }
    CHECK(last < 1e-9);
  }
  SECTION("lambda large: a collapsed circuit at |lambda| times the rate") {
    const double lambda = 1e7;
    const ReducedFlow<double, Unbalanced<double>, Unbalanced<double>> lazy{
        caco.task, {1 / lambda, 5 / lambda}, {lambda}, {-lambda}};
    const ClosedForm closed(lazy, ReducedState<double>{});
    const ClosedForm collapsed(caco, ReducedState<double>{});
    CHECK_THAT(closed.at_loss(loss).mu_qk, WithinRel(reference.mu_qk, 1e-7));
    CHECK_THAT(closed.time(closed.at_loss(loss)), WithinRel(collapsed.time(reference), 1e-7));
  }
  SECTION("N = 1 is collapsed, N = 2 is balanced, for states and times") {
    const ReducedState<double> start{0.05, 0.02};
    const double close = tolerance<double>(Tol::time);
    const ReducedFlow<double, FactorProduct, FactorProduct> one{caco.task, caco.rates, {1}, {1}};
    const ReducedFlow<double, FactorProduct, FactorProduct> two{caco.task, caco.rates, {2}, {2}};
    const Fafo<double> balanced{caco.task, caco.rates, {}, {}};
    const ClosedForm c1(one, start), c2(two, start);
    const ClosedForm collapsed(caco, start);
    const ClosedForm factorized(balanced, start);
    CHECK_THAT(c1.at_loss(loss).mu_qk, WithinRel(collapsed.at_loss(loss).mu_qk, close));
    CHECK_THAT(c2.at_loss(loss).mu_qk, WithinRel(factorized.at_loss(loss).mu_qk, close));
    CHECK_THAT(c1.time(c1.at_loss(loss)), WithinRel(collapsed.time(collapsed.at_loss(loss)), close));
    CHECK_THAT(c2.time(c2.at_loss(loss)), WithinRel(factorized.time(factorized.at_loss(loss)), close));
  }
}

TEST_CASE("A balanced circuit below zero rises towards it and never crosses", "[closed_form]") {
  Cafo<double> flow;
  const ClosedForm closed(flow, ReducedState<double>{-1.0, 0.3});
  double last = -1.0;
  for (double t : {1.0, 10.0, 100.0, 1e3}) {
    const auto point = closed.at_time(t);
    CHECK(point.mu_ov > last);
    CHECK(point.mu_ov <= 0);
    CHECK(point.loss >= std::log(20.0));
    last = point.mu_ov;
  }
  CHECK_THROWS_WITH(closed.at_loss(1.0), Contains("loss = 1") && Contains("never crosses"));
  CHECK_THROWS_WITH(closed.at_output(0.5), Contains("mu_ov") && Contains("0.5"));
}

TEST_CASE("Closed form refuses what it cannot answer, naming argument and value", "[closed_form]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Caco<double> flow;
  const ReducedState<double> zero{};
  const auto refused = [](auto bad, ReducedState<double> start, const char* argument, const char* value) {
    INFO(argument << " " << value);
    CHECK_THROWS_AS(ClosedForm(bad, start), InvalidArgument);
    CHECK_THROWS_WITH(ClosedForm(bad, start), Contains(argument) && Contains(value));
  };
  Caco<double> bad = flow;
  bad.task.classes = 1;
  refused(bad, zero, "classes", "1");
  bad = flow;
  bad.task.noise = -3;
  refused(bad, zero, "noise", "-3");
  bad = flow;
  bad.rates.qk = 0;
  refused(bad, zero, "qk", "0");
  bad = flow;
  bad.task.informative = nan;
  refused(bad, zero, "informative", "nan");
  refused(flow, {nan, 0}, "mu_ov0", "nan");
  refused(flow, {0, 1000}, "mu_qk0", "1000");
  refused(Faco<double>{}, zero, "mu_qk0", "0");
  refused(Cafo<double>{}, zero, "mu_ov0", "0");

  const ClosedForm closed(flow, zero);
  CHECK_THROWS_WITH(closed.at_loss(3.5), Contains("loss") && Contains("3.5"));
  CHECK_THROWS_WITH(closed.at_loss(0.0), Contains("loss") && Contains("0"));
  CHECK_THROWS_WITH(closed.at_loss(nan), Contains("loss") && Contains("nan"));
  CHECK_THROWS_WITH(closed.at_attention(0.01), Contains("alpha") && Contains("0.01"));
  CHECK_THROWS_WITH(closed.at_attention(1.0), Contains("alpha"));
  CHECK_THROWS_WITH(closed.at_time(-1.0), Contains("t") && Contains("-1"));
  CHECK_THROWS_WITH(closed.at_output(-0.5), Contains("mu_ov") && Contains("-0.5"));
  CHECK_THROWS_WITH(closed.trajectory({2.0, 1.0}), Contains("times"));
  CHECK(closed.at_loss(std::log(20.0)).mu_ov < 1e-14);
}
