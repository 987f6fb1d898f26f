// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/order_study.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

namespace {
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

int count(const OrderStudy& study, OrderRow kind) {
  int rows = 0;
  for (const auto& row : study.rows) rows += row.used == kind ? 1 : 0;
  return rows;
}
}  // namespace

TEST_CASE("an exact power is its order, with no doubt left", "[order_study]") {
  for (const double order : {0.5, 1.0, 2.0, 7.0}) {
    const OrderStudy study = order_study([&](double h) { return 3 * std::pow(h, order); }, 0.5, 6);
    CHECK(study.rows.size() == 7);
    CHECK(study.used == 7);
    CHECK_THAT(study.slope, WithinAbs(order, 1e-12));
    CHECK_THAT(study.constant, WithinRel(3.0, 1e-12));
    CHECK(study.half_width < 1e-12);
    CHECK(study.plateau == 0);
    CHECK(std::isnan(study.rows[0].local_slope));
    CHECK_THAT(study.rows[3].local_slope, WithinAbs(order, 1e-12));
    CHECK(study.rows[0].step == 0.5);
    CHECK(study.rows[6].step == 0.5 / 64);
  }
}

TEST_CASE("slope and interval by hand", "[order_study]") {
  // log2 errors 0, -1, -1, -2 at log2 steps 0, -1, -2, -3: slope 0.6, residuals -0.1, -0.5 + ..., S_xx = 5.
  // Means x = -1.5, y = -1; S_xy = 1.5 + 0 + 0 + 1.5 = 3; residual squares 0.01 + 0.09 + 0.09 + 0.01 = 0.2.
  const OrderStudy study = fit_order({1, 0.5, 0.25, 0.125}, {1, 0.5, 0.5, 0.25}, {.find_plateau = false});
  CHECK_THAT(study.slope, WithinAbs(0.6, 1e-14));
  CHECK_THAT(study.half_width, WithinAbs(4.302652729749464 * std::sqrt(0.2 / 2 / 5), 1e-9));  // t(0.95, 2)
  CHECK(study.contains(1.0));
  CHECK_FALSE(study.contains(1.3));
  const OrderStudy loose =
      fit_order({1, 0.5, 0.25, 0.125}, {1, 0.5, 0.5, 0.25}, {.confidence = 0.5, .find_plateau = false});
  CHECK_THAT(loose.half_width, WithinAbs(0.816496580927726 * std::sqrt(0.2 / 2 / 5), 1e-9));
}

TEST_CASE("a plateau is recognized and left out, not fitted", "[order_study]") {
  // Round-off that jitters about 1e-13, under an error of second order.
  const auto error = [](double h) { return 0.1 * h * h + 1e-13 * (1 + 0.5 * std::sin(1e4 * std::log(h))); };
  const OrderStudy study = order_study(error, 0.5, 30);
  CHECK_THAT(study.slope, WithinAbs(2.0, 0.01));
  CHECK(study.plateau < 3e-13);
  CHECK(study.plateau > 5e-14);
  CHECK(count(study, OrderRow::plateau) > 8);
  CHECK(study.used > 14);
  CHECK(study.rows[10].used == OrderRow::used);
  CHECK(study.rows[30].used == OrderRow::plateau);
  // Fitted with everything it would be far off.
  CHECK(order_study(error, 0.5, 30, {.margin = 1, .find_plateau = false}).slope < 1.8);
}

TEST_CASE("a floor that is known is kept away from", "[order_study]") {
  const auto error = [](double h) { return h + 1e-6; };
  const OrderStudy study = order_study(error, 1e-2, 9, {.floor = 1e-6});
  CHECK(count(study, OrderRow::plateau) == 1);  // 1e-2/256 is 39 times the floor, 1e-2/512 less than 30
  CHECK(order_study(error, 1e-2, 9, {.floor = 1e-6, .margin = 1000}).used == 4);
}

TEST_CASE("a stall that is made up for later is no plateau", "[order_study]") {
  const std::vector<double> steps{64, 32, 16, 8, 4, 2, 1};
  const OrderStudy study = fit_order(steps, {6.4, 3.2, 3.1, 3.0, 0.4, 0.2, 0.1});
  CHECK(count(study, OrderRow::plateau) == 0);
  CHECK(study.half_width > 0.1);
  // Nor is what never fell at all, where nothing says how it should: the slope says 0.
  const OrderStudy flat = fit_order(steps, {1, 1, 1, 1, 1, 1, 1});
  CHECK(flat.used == 7);
  CHECK(flat.slope == 0);
}

TEST_CASE("failed runs and zero errors are marked and do not count", "[order_study]") {
  const OrderStudy study = fit_order({8, 4, 2, 1, 0.5, 0.25}, {not_a_number, 4, 2, 1, 0.5, 0});
  CHECK(study.rows[0].used == OrderRow::failed);
  CHECK(study.rows[5].used == OrderRow::failed);
  CHECK(study.used == 4);
  CHECK_THAT(study.slope, WithinAbs(1.0, 1e-12));
  CHECK(std::isnan(study.rows[1].local_slope));
  const OrderStudy none = fit_order({2, 1}, {not_a_number, 1});
  CHECK(none.used == 1);
  CHECK(std::isnan(none.slope));
  const OrderStudy two = fit_order({2, 1}, {2, 1});
  CHECK_THAT(two.slope, WithinAbs(1.0, 1e-12));
  CHECK(std::isinf(two.half_width));
  CHECK(std::isnan(fit_order({}, {}).slope));
}

TEST_CASE("rows are sorted by step", "[order_study]") {
  const OrderStudy study = fit_order({1, 4, 2}, {1, 4, 2});
  CHECK(study.rows[0].step == 4);
  CHECK(study.rows[2].step == 1);
}

TEST_CASE("lists that make no study are refused", "[order_study]") {
  CHECK_THROWS_WITH(fit_order({1, 2}, {1}), Contains("fit_order: number of errors = 1"));
  CHECK_THROWS_WITH(fit_order({1, 0}, {1, 1}), Contains("steps[1] = 0"));
  CHECK_THROWS_WITH(fit_order({1, 1}, {1, 1}), Contains("step = 1,") && Contains("given once"));
  CHECK_THROWS_WITH(fit_order({1}, {1}, {.confidence = 1}), Contains("confidence = 1"));
  CHECK_THROWS_WITH(fit_order({1}, {1}, {.floor = -1}), Contains("floor = -1"));
  CHECK_THROWS_WITH(fit_order({1}, {1}, {.margin = 0.5}), Contains("margin = 0.5"));
  CHECK_THROWS_WITH(fit_order({1}, {1}, {.stall = 1}), Contains("stall = 1"));
  const auto one = [](double) { return 1.0; };
  CHECK_THROWS_WITH(order_study(one, 0, 3), Contains("order_study: first_step = 0"));
  CHECK_THROWS_WITH(order_study(one, 1, 0), Contains("halvings = 0"));
  CHECK(std::string(to_string(OrderRow::plateau)) == "plateau");
}
