// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/departure.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

namespace {

using Losses = std::vector<double>;
using Reference = std::vector<std::pair<std::size_t, double>>;
constexpr DescentStatus done = DescentStatus::finished;

StabilityRow<double> row(double t, double sharpness, double qk, double ov) { return {t, 0, sharpness, qk, ov, true}; }

}  // namespace

TEST_CASE("a run that follows the flow, and one that drifts off", "[departure]") {
  const Losses losses{1, 0.8, 0.6, 0.5, 0.4};
  const auto near = departure(losses, 0.5, done, Reference{{0, 1}, {2, 0.62}, {4, 0.41}});
  CHECK(near.kind == DepartureKind::none);
  CHECK_FALSE(near.left);
  CHECK_FALSE(near.first_rise);
  CHECK(near.jump == 1);
  CHECK(near.rises == 0);
  CHECK(std::isnan(near.hover));
  CHECK_THAT(near.message, Contains("follows the flow"));

  const auto off =
      departure(losses, 0.5, done, Reference{{0, 1}, {2, 0.7}, {4, 0.41}}, {row(0, 1, 2, 1), row(1, 1, 1, 2)});
  CHECK(off.kind == DepartureKind::drift);
  REQUIRE(off.left);
  CHECK(off.left->step == 2);
  CHECK(off.left->t == 1);
  CHECK(off.left->loss == 0.6);
  CHECK(off.circuit == SharpnessOf::ov);
  CHECK_THAT(off.message, Contains("from step 2"));
  CHECK(departure(losses, 0.5, done, Reference{{2, 0.7}}, {}, {.tolerance = 0.5}).kind == DepartureKind::none);
}

TEST_CASE("oscillation, and the edge of stability where sharpness stays about 2 / h", "[departure]") {
  const Losses losses{1, 0.5, 0.55, 0.4, 0.45, 0.3, 0.35, 0.25};
  const auto plain = departure(losses, 0.1, done);
  CHECK(plain.kind == DepartureKind::oscillation);
  CHECK(plain.rises == 3);
  REQUIRE(plain.first_rise);
  CHECK(plain.first_rise->step == 2);
  CHECK(plain.first_rise->loss == 0.55);
  CHECK_FALSE(plain.peak);
  CHECK_FALSE(plain.recovered);

  const std::vector<StabilityRow<double>> hovering{row(0, 5, 1, 2), row(0.2, 19, 15, 3), row(0.4, 22, 18, 3),
                                                   row(0.6, 20.5, 16, 3)};
  const auto edge = departure(losses, 0.1, done, {}, hovering);
  CHECK(edge.kind == DepartureKind::edge_of_stability);
  CHECK_THAT(edge.hover, WithinRel((1.9 + 2.2 + 2.05) / 3, 1e-12));
  CHECK_THAT(edge.hover_largest, WithinRel(2.2, 1e-12));
  CHECK(edge.circuit == SharpnessOf::qk);
  const std::vector<StabilityRow<double>> flat{row(0.2, 2, 1, 2), row(0.6, 1, 1, 2)};
  CHECK(departure(losses, 0.1, done, {}, flat).kind == DepartureKind::oscillation);
}

TEST_CASE("a catapult: far up, then below where it came from", "[departure]") {
  const Losses losses{1, 0.8, 3, 20, 7, 2, 0.9, 0.7, 0.3};
  const auto report = departure(losses, 1.0, done);
  CHECK(report.kind == DepartureKind::catapult);
  REQUIRE(report.peak);
  CHECK(report.peak->step == 3);
  CHECK_THAT(report.jump, WithinRel(25.0, 1e-14));
  REQUIRE(report.recovered);
  CHECK(report.recovered->step == 7);
  CHECK(report.rises == 2);
  // The same, but it has not come back yet.
  CHECK(departure(Losses{1, 0.8, 3, 20, 7, 0.9}, 1.0, done).kind == DepartureKind::oscillation);
  CHECK(departure(losses, 1.0, done, {}, {}, {.jump = 30}).kind == DepartureKind::oscillation);
}

TEST_CASE("divergence: by status, by a loss that is none, by ending above the start", "[departure]") {
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK(departure(Losses{1, 0.5, 0.4}, 1.0, DescentStatus::non_finite).kind == DepartureKind::divergence);
  CHECK(departure(Losses{1, 0.5, 0.4}, 1.0, DescentStatus::blew_up).kind == DepartureKind::divergence);
  CHECK(departure(Losses{1, 0.5, infinity}, 1.0, done).kind == DepartureKind::divergence);
  CHECK(departure(Losses{1, 0.5, std::nan("")}, 1.0, done).kind == DepartureKind::divergence);
  const auto above = departure(Losses{1, 0.5, 1.1}, 1.0, done);
  CHECK(above.kind == DepartureKind::divergence);
  CHECK(above.first_rise->step == 2);
}

TEST_CASE("rounding is no rise", "[departure]") {
  CHECK(departure(Losses{1, 0.5, 0.5 * (1 + 1e-12)}, 1.0, done).kind == DepartureKind::none);
  CHECK(departure(Losses{1, 0.5, 0.5 * (1 + 1e-12)}, 1.0, done, {}, {}, {.rounding = 0}).rises == 1);
  CHECK(departure(Losses{1}, 1.0, done).kind == DepartureKind::none);
  CHECK(departure(Losses{1, 0.5}, 1.0, done).message == "never raises the loss");  // of the flow it knows nothing
}

TEST_CASE("what is no run is refused", "[departure]") {
  CHECK_THROWS_WITH(departure(Losses{}, 1.0, done), Contains("departure: number of losses = 0"));
  CHECK_THROWS_WITH(departure(Losses{1}, 0.0, done), Contains("step = 0"));
  CHECK_THROWS_WITH(departure(Losses{1}, 1.0, done, Reference{{1, 1}}), Contains("step of the reference = 1"));
  CHECK_THROWS_WITH(departure(Losses{1}, 1.0, done, {}, {}, {.tolerance = 0}), Contains("tolerance = 0"));
  CHECK_THROWS_WITH(departure(Losses{1}, 1.0, done, {}, {}, {.jump = 0.5}), Contains("jump = 0.5"));
  CHECK(std::string(to_string(DepartureKind::catapult)) == "catapult");
}
