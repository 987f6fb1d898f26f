// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/objective_closed_form.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

template <class Scalar>
using State = Eigen::Matrix<Scalar, 2, 1>;

template <class Visitor>
void for_each_objective(Visitor&& visit) {
  visit(SoftAttention{});
  visit(HardAttention{});
  visit(LatentMarginal{});
}

template <class Scalar, class Objective>
ObjectiveClosedForm<Scalar, Objective> closed(Objective, double classes, double positions, double ratio, double mu0 = 0,
                                              double nu0 = 0) {
  return ObjectiveClosedForm<Scalar, Objective>({{Scalar(classes), Scalar(positions)}, {Scalar(1), Scalar(ratio)}},
                                                Scalar(mu0), Scalar(nu0));
}

/// |value - exact| in units of |exact|, or of 1 where that is smaller.
double error_of(double value, const Precise& exact) {
  const Precise size = abs(exact) < 1 ? Precise(1) : Precise(abs(exact));
  return static_cast<double>(abs(Precise(value) - exact) / size);
}
double relative_error(double value, const Precise& exact) {
  return static_cast<double>(abs(Precise(value) / exact - 1));
}

}  // namespace

TEST_CASE("the first integral is that of the printed equations, in fifty digits") {
  // d nu / d mu of the field, times g'(nu), integrated by quadrature: no formula for F goes in.
  for_each_objective([](auto objective) {
    for (const double classes : {2.0, 1000.0}) {
      for (const double mu0 : {-3.0, 0.0, 2.0}) {
        for (const double way : {0.3, 9.0}) {
          const auto form = closed<Precise>(objective, classes, 12, 3, mu0, -0.5);
          const auto& flow = form.flow();
          const Precise nu = Precise(1) / 3;  // the quotient times g' does not depend on it
          const auto slope = [&](const Precise& mu) {
            State<Precise> v;
            flow(State<Precise>(mu, nu), v, Precise(0));
            return Precise(v[1] / v[0] * (1 + exp(nu) / 11));
          };
          Precise integral(0);
          const int panels = 12;
          for (int k = 0; k < panels; ++k) {
            integral += integrate_panel(slope, Precise(mu0 + way * k / panels), Precise(mu0 + way * (k + 1) / panels));
          }
          const auto p = form.at_mu(Precise(mu0 + way));
          const Precise g0 = exp(Precise(-0.5)) / 11 - Precise(0.5), g = exp(p.nu) / 11 + p.nu;
          INFO(objective.name << " C " << classes << " from " << mu0 << " by " << way);
          CHECK(abs(g - g0 - integral) < Precise("1e-40") * (1 + abs(integral)));
          CHECK(abs(form.first_integral_residual(p.mu, p.nu)) < Precise("1e-45") * (1 + abs(integral)));
        }
      }
    }
  });
}

TEST_CASE("the first integral from zero is the published one for soft and the explicit one for the marginal") {
  const Precise c = 999, m = 100;
  for (const double at : {0.01, 1.0, 8.0}) {
    const Precise mu(at);
    const auto rise = [&](const auto& form) {
      const Precise nu = form.at_mu(mu).nu;
      return Precise(exp(nu) / (m - 1) + nu - 1 / (m - 1));
    };
    CHECK(abs(rise(closed<Precise>(SoftAttention{}, 1000, 100, 1)) / (c / 1000 * mu * mu / 2) - 1) < Precise("1e-45"));
    const Precise bracket = exp(mu) - 1 + 998 * mu + c * (exp(-mu) - 1);
    CHECK(abs(rise(closed<Precise>(LatentMarginal{}, 1000, 100, 1)) / (c / 1000 / 1000 * bracket) - 1) <
          Precise("1e-42"));
  }
}

TEST_CASE("states agree with integration, and the first integral stays along it") {
  for_each_objective([](auto objective) {
    for (const double mu0 : {0.0, -1.0, 2.0}) {
      const auto form = closed<double>(objective, 10, 20, 5, mu0, 0.5);
      double worst = 0, last_loss = form.start().loss;
      int rises = 0;
      SolveOptions<State<double>> options{
          .t_end = 1e4, .rtol = 1e-12, .atol = 0, .save_times = {1, 10, 100, 1000, 1e4}};
      options.on_step = [&](double, const State<double>& x, const SolveStatistics&) {
        const double slope = std::exp(x[1]) / 19 + 1;
        worst = std::max(worst, std::abs(form.first_integral_residual(x[0], x[1])) / slope / (1 + std::abs(x[1])));
        const double loss = form.flow().loss(x[0], x[1]);
        rises += loss > last_loss;
        last_loss = loss;
      };
      const auto s = solve(form.flow(), State<double>(mu0, 0.5), options, {}, DormandPrince5{});
      REQUIRE(s.success());
      INFO(objective.name << " from " << mu0);
      CHECK(worst < tolerance<double>(Tol::solver));
      CHECK(rises == 0);
      for (std::size_t k = 0; k < s.times.size(); ++k) {
        const auto p = form.at_time(s.times[k]);
        CHECK_THAT(p.mu, WithinRel(s.states[k][0], tolerance<double>(Tol::solver)));
        CHECK_THAT(p.nu, WithinRel(s.states[k][1], tolerance<double>(Tol::solver)));
        CHECK_THAT(form.at_mu(s.states[k][0]).nu, WithinRel(s.states[k][1], tolerance<double>(Tol::solver)));
        CHECK_THAT(form.time(p), WithinRel(s.times[k], tolerance<double>(Tol::time)));
      }
    }
  });
}

TEST_CASE("a stop at a loss agrees with integration") {
  for_each_objective([](auto objective) {
    const auto form = closed<double>(objective, 50, 30, 10);
    for (const double loss : {3.0, 1.0, 1e-2}) {
      const auto stop = stop_below<State<double>>(
          "loss", [&](double, const State<double>& x) { return form.flow().loss(x[0], x[1]); }, loss);
      const auto s = solve(form.flow(), State<double>(0, 0), {.rtol = 1e-12, .atol = 0}, {stop}, BulirschStoer{});
      REQUIRE(s.status == Status::reached_stop);
      const auto p = form.at_loss(loss);
      INFO(objective.name << " loss " << loss);
      CHECK_THAT(p.mu, WithinRel(s.x[0], tolerance<double>(Tol::solver)));
      CHECK_THAT(p.nu, WithinRel(s.x[1], tolerance<double>(Tol::solver)));
      CHECK_THAT(form.time(p), WithinRel(s.t, tolerance<double>(Tol::solver)));
    }
  });
}

TEST_CASE("states at a given mu agree with fifty digits over the whole range") {
  for_each_objective([](auto objective) {
    double worst_score = 0, worst_loss = 0;
    for (const double classes : {2.0, 10.0, 1e6}) {
      for (const double positions : {2.0, 100.0, 1e6}) {
        for (const double ratio : {1e-6, 1.0, 1e6}) {
          for (const double mu0 : {0.0, -2.0, 20.0}) {
            const auto form = closed<double>(objective, classes, positions, ratio, mu0, -1);
            const auto exact = closed<Precise>(objective, classes, positions, ratio, mu0, -1);
            for (const double way : {1e-9, 1e-3, 0.99, 1.01, 12.0, 150.0, 900.0}) {
              const auto p = form.at_mu(mu0 + way);
              const auto q = exact.at_mu(Precise(mu0 + way));
              INFO(objective.name << " C " << classes << " m " << positions << " r " << ratio << " from " << mu0
                                  << " by " << way);
              CHECK(error_of(p.nu, q.nu) < tolerance<double>(Tol::state));
              worst_score = std::max(worst_score, error_of(p.nu, q.nu));
              if (q.loss < 1e-290) continue;
              CHECK(relative_error(p.loss, q.loss) < tolerance<double>(Tol::state) * std::max(1.0, std::abs(p.nu)));
              worst_loss = std::max(worst_loss, relative_error(p.loss, q.loss));
            }
          }
        }
      }
    }
    CHECK(worst_score > 0);
    CHECK(worst_loss > 0);
  });
}

TEST_CASE("states at a given loss agree with fifty digits from chance to 1e-300") {
  for_each_objective([](auto objective) {
    for (const double classes : {2.0, 1e6}) {
      for (const double positions : {2.0, 1e6}) {
        for (const double ratio : {1e-6, 1.0, 1e6}) {
          for (const double mu0 : {0.0, 3.0}) {
            const auto form = closed<double>(objective, classes, positions, ratio, mu0);
            const auto exact = closed<Precise>(objective, classes, positions, ratio, mu0);
            const double first = form.start().loss;
            for (const double loss : {first * (1 - 1e-6), first * 0.8, first * 0.1, 1e-8, 1e-100, 1e-300}) {
              const auto p = form.at_loss(loss);
              const auto q = exact.at_loss(Precise(loss));
              INFO(objective.name << " C " << classes << " m " << positions << " r " << ratio << " from " << mu0
                                  << " loss " << loss);
              CHECK(relative_error(p.mu, q.mu) < tolerance<double>(Tol::time));
              CHECK(error_of(p.nu, q.nu) < tolerance<double>(Tol::time));
              CHECK_THAT(p.loss, WithinRel(loss, 1e-11));
            }
          }
        }
      }
    }
  });
}

TEST_CASE("times agree with fifty digits, and states at a time are their inverse") {
  for_each_objective([](auto objective) {
    for (const double ratio : {1e-6, 1e6}) {
      for (const double mu0 : {0.0, 3.0}) {
        const auto form = closed<double>(objective, 10, 100, ratio, mu0);
        const auto exact = closed<Precise>(objective, 10, 100, ratio, mu0);
        for (const double way : {1e-6, 6.0}) {
          const double t = form.time_at_mu(mu0 + way);
          INFO(objective.name << " r " << ratio << " from " << mu0 << " by " << way);
          CHECK(relative_error(t, exact.time_at_mu(Precise(mu0 + way))) < tolerance<double>(Tol::time));
          CHECK_THAT(form.at_time(t).mu, WithinRel(mu0 + way, tolerance<double>(Tol::state)));
        }
      }
    }
  });
}

TEST_CASE("the published setting: m = 100, C = 1000, 400,000 units of time from zero") {
  for_each_objective([](auto objective) {
    const auto form = closed<double>(objective, 1000, 100, 1);
    const auto p = form.at_time(4e5);
    const auto s = solve(form.flow(), State<double>(0, 0), {.t_end = 4e5, .rtol = 1e-11, .atol = 0}, {}, Fehlberg78{});
    INFO(objective.name);
    CHECK_THAT(p.mu, WithinRel(s.x[0], 1e-8));
    CHECK_THAT(p.nu, WithinRel(s.x[1], 1e-8));
    CHECK(p.loss < std::log(1000));
  });
}

TEMPLATE_TEST_CASE("every scalar type", "", float, long double) {
  using Scalar = TestType;
  for_each_objective([](auto objective) {
    const auto form = closed<Scalar>(objective, 10, 20, 5);
    const auto exact = closed<Precise>(objective, 10, 20, 5);
    const auto p = form.at_loss(Scalar(0.125));
    const auto q = exact.at_loss(Precise(0.125));
    CHECK(abs(Precise(p.mu) / q.mu - 1) < Precise(tolerance<Scalar>(Tol::state)));
    CHECK(abs(Precise(p.nu) / q.nu - 1) < Precise(tolerance<Scalar>(Tol::state)));
    CHECK(abs(Precise(form.time(p)) / exact.time(q) - 1) < Precise(tolerance<Scalar>(Tol::time)));
  });
}

TEST_CASE("a larger ratio attends more at one loss") {
  for_each_objective([](auto objective) {
    double last = 0;
    for (const double ratio : {0.01, 0.1, 1.0, 10.0, 100.0}) {
      const auto p = closed<double>(objective, 100, 50, ratio).at_loss(1.0);
      CHECK(p.alpha > last);
      last = p.alpha;
    }
  });
}

TEST_CASE("a start below zero lets attention sink, then rise again") {
  for_each_objective([](auto objective) {
    const auto form = closed<double>(objective, 10, 20, 5, -1);
    CHECK(form.at_mu(0).nu < 0);
    CHECK(form.at_mu(3).nu > form.at_mu(0).nu);
    const auto p = form.at_loss(0.5);
    CHECK_THAT(p.loss, WithinRel(0.5, 1e-13));
  });
  // Soft attention is even in mu: back at -mu0 the score is that of the start.
  CHECK(std::abs(closed<double>(SoftAttention{}, 10, 20, 5, -1).at_mu(1).nu) < 1e-15);
}

TEST_CASE("what the trajectory never reaches is refused by name and value") {
  const auto form = closed<double>(HardAttention{}, 10, 20, 5);
  CHECK_THROWS_AS(form.at_mu(-1), InvalidArgument);
  CHECK_THROWS_WITH(form.at_mu(-1), Contains("mu = -1"));
  CHECK_THROWS_WITH(form.time_at_mu(-0.5), Contains("mu = -0.5"));
  CHECK_THROWS_WITH(form.at_loss(3), Contains("loss = 3") && Contains("at the start"));
  CHECK_THROWS_WITH(form.at_loss(0), Contains("loss = 0"));
  CHECK_THROWS_WITH(form.at_loss(std::nan("")), Contains("loss = nan"));
  CHECK_THROWS_WITH(form.at_time(-1), Contains("t = -1"));
  CHECK_THROWS_WITH(closed<double>(HardAttention{}, 1, 20, 5), Contains("classes = 1"));
  CHECK_THROWS_WITH(closed<double>(HardAttention{}, 10, 20, -5), Contains("qk = -5"));
  CHECK_THROWS_WITH(closed<double>(HardAttention{}, 10, 20, 5, 500), Contains("mu0 = 500"));
  CHECK_THROWS_WITH(closed<double>(HardAttention{}, 10, 20, 5, 0, std::nan("")), Contains("nu0 = nan"));
  CHECK(form.at_loss(form.start().loss).mu == 0);
  CHECK(form.at_time(0).mu == 0);
  CHECK(form.time_at_mu(0) == 0);
  CHECK(form.time_at_mu(2000) == std::numeric_limits<double>::infinity());
}
