// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
// The reduced flow integrated step by step against what is known of it exactly.
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::golden;
using qkflow_test::Golden;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

template <class Scalar>
using State = Eigen::Matrix<Scalar, 2, 1>;

template <class Scalar>
Scalar read(const char* text) {
  return static_cast<Scalar>(Precise(text));
}

/// Calls visit(flow, start state, row) with the flow of the row's parameterization.
template <class Scalar, class Visitor>
void with_flow(const Golden& row, Visitor&& visit) {
  const BlockTask<Scalar> task{.classes = read<Scalar>(row.classes),
                               .block = read<Scalar>(row.block),
                               .informative = read<Scalar>(row.informative),
                               .noise = read<Scalar>(row.noise)};
  const LearningRates<Scalar> rates{.ov = read<Scalar>(row.eta_ov), .qk = read<Scalar>(row.eta_qk)};
  const State<Scalar> start(read<Scalar>(row.mu_ov0), read<Scalar>(row.mu_qk0));
  const std::string_view name = row.parameterization;
  if (name == "CACO") visit(Caco<Scalar>{task, rates}, start);
  if (name == "CAFO") visit(Cafo<Scalar>{task, rates}, start);
  if (name == "FACO") visit(Faco<Scalar>{task, rates}, start);
  if (name == "FAFO") visit(Fafo<Scalar>{task, rates}, start);
}

template <class Scalar, class Flow>
Stop<State<Scalar>> at_loss(const Flow& flow, const Scalar& loss) {
  return stop_below<State<Scalar>>(
      "loss", [flow](const Scalar&, const State<Scalar>& x) { return flow.loss(x[0], x[1]); }, loss);
}

/// Relative errors only: factorized circuits start near their saddle at 0, or come ever closer to it.
template <class Scalar>
SolveOptions<State<Scalar>> tight(const Scalar& rtol) {
  return {.rtol = rtol, .atol = Scalar(0)};
}

template <class Scalar>
Scalar relative(const Scalar& value, const char* truth) {
  using std::abs;
  const Scalar expected = read<Scalar>(truth);
  return abs(value - expected) / abs(expected);
}

template <class Visitor>
void for_adaptive(Visitor&& visit) {
  visit(CashKarp54{});
  visit(DormandPrince5{});
  visit(DormandPrince5Dense{});
  visit(Fehlberg78{});
  visit(BulirschStoer{});
}

}  // namespace

TEST_CASE("every adaptive method agrees with the golden stopping states, time included") {
  for_adaptive([&](auto method) {
    for (const Golden& row : golden) {
      with_flow<double>(row, [&](const auto& flow, const State<double>& start) {
        const double loss = read<double>(row.stop_loss);
        const auto s = solve(flow, start, tight(1e-12), {at_loss(flow, loss)}, method);
        INFO(decltype(method)::name << " " << row.parameterization << " eta_qk " << row.eta_qk << " loss "
                                    << row.stop_loss << ": " << s.message);
        REQUIRE(s.status == Status::reached_stop);
        const double errors[] = {relative(s.x[0], row.mu_ov), relative(s.x[1], row.mu_qk),
                                 relative(flow.alpha(s.x[1]), row.alpha), relative(s.t, row.t)};
        for (const double error : errors) CHECK(error < tolerance<double>(Tol::solver));
        CHECK(flow.loss(s.x[0], s.x[1]) <= loss);
        CHECK_THAT(flow.loss(s.x[0], s.x[1]), WithinRel(loss, 1e-13));
        CHECK(s.statistics.steps < 20000);
      });
    }
  });
}

TEST_CASE("fifty digits: the golden stopping states to twenty") {
  for (const std::size_t index : {4, 15, 18, 20, 22}) {
    const Golden& row = golden[index];
    with_flow<Precise>(row, [&](const auto& flow, const State<Precise>& start) {
      const Precise loss(row.stop_loss);
      const auto s = solve(flow, start, tight(Precise("1e-24")), {at_loss(flow, loss)}, Fehlberg78{});
      INFO(row.parameterization << " eta_qk " << row.eta_qk << ": " << s.message);
      REQUIRE(s.status == Status::reached_stop);
      CHECK(relative(s.x[0], row.mu_ov) < Precise("1e-20"));
      CHECK(relative(s.x[1], row.mu_qk) < Precise("1e-20"));
      CHECK(relative(s.t, row.t) < Precise("1e-20"));
      CHECK(flow.loss(s.x[0], s.x[1]) <= loss);
      CHECK(flow.loss(s.x[0], s.x[1]) > loss * (1 - Precise("1e-45")));
    });
  }
}

TEMPLATE_TEST_CASE("single and extended precision keep to their own tolerance", "", float, long double) {
  using Scalar = TestType;
  const Scalar rtol = 64 * std::numeric_limits<Scalar>::epsilon();
  for (const std::size_t index : {4, 14, 18, 22}) {
    const Golden& row = golden[index];
    with_flow<Scalar>(row, [&](const auto& flow, const State<Scalar>& start) {
      const auto s = solve(flow, start, {.rtol = rtol, .atol = Scalar(rtol / 1000000)},
                           {at_loss(flow, read<Scalar>(row.stop_loss))}, Fehlberg78{});
      INFO(row.parameterization << ": " << s.message);
      REQUIRE(s.status == Status::reached_stop);
      CHECK(relative(s.x[0], row.mu_ov) < 100 * rtol);
      CHECK(relative(s.x[1], row.mu_qk) < 100 * rtol);
    });
  }
}

TEST_CASE("along every integrated trajectory the first integral stays and the loss falls") {
  for_adaptive([&](auto method) {
    for (const Golden& row : golden) {
      with_flow<double>(row, [&](const auto& flow, const State<double>& start) {
        const ClosedForm closed(flow, {start[0], start[1]});
        double last_loss = flow.loss(start[0], start[1]), worst = 0;
        int rises = 0;
        SolveOptions<State<double>> options = tight(1e-12);
        options.on_step = [&](double, const State<double>& x, const SolveStatistics&) {
          using std::abs;
          // The residual in units of the score: what mu_QK would have to move by.
          const double slope = 1e-6 * (1 + abs(x[1]));
          const double residual = closed.first_integral_residual(x[0], x[1]);
          const double change = (closed.first_integral_residual(x[0], x[1] + slope) - residual) / slope;
          worst = std::max(worst, abs(residual / change) / (abs(x[1]) + 1e-3));
          const double loss = flow.loss(x[0], x[1]);
          rises += loss > last_loss;
          last_loss = loss;
        };
        const auto s = solve(flow, start, options, {at_loss(flow, read<double>(row.stop_loss))}, method);
        INFO(decltype(method)::name << " " << row.parameterization << " eta_qk " << row.eta_qk << ": " << worst);
        REQUIRE(s.status == Status::reached_stop);
        CHECK(worst < tolerance<double>(Tol::solver));
        CHECK(rises == 0);
      });
    }
  });
}

TEST_CASE("states at given times agree with the closed form, every parameterization and method") {
  std::vector<double> times{0};
  for (int k = 0; k < 25; ++k) times.push_back(std::pow(10.0, 1 + 0.25 * k));
  const BlockTask<double> task{.classes = 12, .block = 6, .informative = 3, .noise = 20};
  const LearningRates<double> rates{.ov = 0.5, .qk = 3};
  const auto check = [&](const auto& flow, double mu_ov, double mu_qk) {
    const auto exact = ClosedForm(flow, {mu_ov, mu_qk}).trajectory(times);
    for_adaptive([&](auto method) {
      // The interpolant of the dense method has fourth order: it is held to less.
      const double allowed = decltype(method)::dense ? 1e-7 : tolerance<double>(Tol::matrix_flow);
      SolveOptions<State<double>> options = tight(1e-12);
      options.t_end = times.back();
      options.save_times = times;
      const auto s = solve(flow, State<double>(mu_ov, mu_qk), options, {}, method);
      INFO(decltype(method)::name << " from " << mu_ov << ", " << mu_qk);
      REQUIRE(s.status == Status::reached_end);
      REQUIRE(s.times == times);
      for (std::size_t k = 0; k < times.size(); ++k) {
        CHECK_THAT(s.states[k][0], WithinRel(exact[k].mu_ov, allowed) || WithinAbs(exact[k].mu_ov, 1e-12));
        CHECK_THAT(s.states[k][1], WithinRel(exact[k].mu_qk, allowed) || WithinAbs(exact[k].mu_qk, 1e-12));
      }
    });
  };
  check(Caco<double>{task, rates}, 0, 0);
  check(Caco<double>{task, rates}, -1, 2);
  check(Caco<double>{task, rates}, 3, -4);
  check(Cafo<double>{task, rates}, 0.01, 0);
  check(Cafo<double>{task, rates}, 2, -3);
  check(Faco<double>{task, rates}, 0, 0.01);
  check(Faco<double>{task, rates}, 0, -0.5);
  check(Fafo<double>{task, rates}, 0.1, 0.2);
  check(Fafo<double>{task, rates}, 0.1, -0.2);
  check(ReducedFlow<double, Unbalanced<double>, Unbalanced<double>>{task, rates, {0.3}, {-2}}, 0, 0);
  check(ReducedFlow<double, FactorProduct, FactorProduct>{task, rates, {3}, {4}}, 0.1, 0.1);
}

TEST_CASE("a balanced circuit below zero comes to its saddle and never crosses it") {
  const Cafo<double> flow{BlockTask<double>{}, {}};
  for_adaptive([&](auto method) {
    SolveOptions<State<double>> options = tight(1e-9);
    options.t_end = 1e6;
    const auto s = solve(flow, State<double>(-1, 0), options, {at_loss(flow, 1.0)}, method);
    INFO(decltype(method)::name << " " << s.x.transpose());
    CHECK(s.status == Status::reached_end);
    CHECK(s.x[0] < 0);
    CHECK(s.x[0] > -1e-9);
  });
}

TEST_CASE("a flow started below the loss says so") {
  const Caco<double> flow{BlockTask<double>{}, {}};
  const auto s = solve(flow, State<double>(50, 5), {.t_end = 1e8}, {at_loss(flow, 1.0)});
  CHECK(s.status == Status::already_true);
}

TEST_CASE("the published procedure gives the published numbers") {
  // Classical Runge-Kutta with step 10 in normalized time t min(eta_OV, eta_QK), from zero until loss 1e-4
  // [Vashisht26].
  struct Row {
    double ratio, tau, mu_ov, mu_qk, alpha;
  };
  for (const Row& row : {Row{0.01, 2.55e6, 81.669, 0.559, 0.149}, Row{0.1, 4.90e6, 42.282, 1.395, 0.287}}) {
    const Caco<double> flow{BlockTask<double>{}, {.ov = 1, .qk = row.ratio}};
    const auto s =
        solve(flow, State<double>(0, 0), {.first_step = 10 / row.ratio}, {at_loss(flow, 1e-4)}, RungeKutta4{});
    REQUIRE(s.status == Status::reached_stop);
    CHECK_THAT(s.t * row.ratio, WithinAbs(row.tau, 0.005e6));
    CHECK_THAT(s.x[0], WithinAbs(row.mu_ov, 0.0005));
    CHECK_THAT(s.x[1], WithinAbs(row.mu_qk, 0.0005));
    CHECK_THAT(flow.alpha(s.x[1]), WithinAbs(row.alpha, 0.0005));
  }
}
