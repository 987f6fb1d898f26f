// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The largest stable step, predicted from sharpness, against what gradient descent then does.
#include "qkflow/compare/stability.hpp"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/factor_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

using State = Eigen::VectorXd;
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};

/// The block dataset with a fifth of the labels wrong: its loss has a minimum at finite weights, so the flow ends in an
/// equilibrium, where linear stability is the whole story.
Dataset<double> noisy_labels() {
  const Dataset<double> clean = block_dataset(task);
  DatasetBuilder<double> builder(clean.shape());
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const auto from = clean[i];
    for (std::int32_t label = 0; label < 3; ++label) {
      Sequence<double> to{from.query, label, {}, from.null_count, label == from.label ? 0.8 : 0.1};
      for (std::size_t e = 0; e < from.tokens.size(); ++e) to.entries.push_back({from.tokens[e], from.counts[e], true});
      builder.add(to);
    }
  }
  return std::move(builder).build();
}

}  // namespace

TEST_CASE("at an equilibrium 2 / sharpness divides steps that settle from steps that do not", "[stability]") {
  const DatasetShape shape = BlockLayout::of(task).shape();
  const auto check = [&](const auto& parameters, const State& start) {
    MatrixFlow flow(parameters, noisy_labels());
    const auto run =
        solve(flow, start, {.t_end = 1e5, .rtol = 1e-10, .atol = 1e-13}, {stop_at_gradient_norm(flow, 1e-9)});
    REQUIRE(run.status == Status::reached_stop);
    const StabilityRow<double> row = stability(flow, run.t, run.x, {.lanczos = {.rtol = 1e-8}});
    CHECK(row.converged);
    CHECK_THAT(row.loss, WithinRel(flow.loss(run.x), 1e-14));
    CHECK(row.sharpness >= std::max(row.sharpness_qk, row.sharpness_ov) * (1 - 1e-6));
    const double limit = row.largest_step();
    REQUIRE(std::isfinite(limit));
    // From a point a little off the equilibrium, in all directions.
    State near = run.x;
    for (Eigen::Index i = 0; i < near.size(); ++i) near[i] += 1e-6 * std::cos(1.0 + 2.3 * static_cast<double>(i));
    const auto distance = [&](double h) {
      return (descend(flow, near, {.step = h, .steps = 1500, .largest_state = 1e6}).x - run.x).norm();
    };
    INFO("limit " << limit);
    CHECK(distance(0.98 * limit) < 1e-5);  // not smaller: minima are valleys, not points
    CHECK(distance(1.02 * limit) > 1e-2);
  };
  check(caco_parameters<double>(shape, {.qk = 2.5, .ov = 0.7}), State::Zero(9 * 9 + 3 * 9));
  const auto factors = fafo_parameters<double>(shape, 4, {.qk = 2.5, .ov = 0.7});
  check(factors, aligned_start(factors, task, {.mu_ov = 0.05, .mu_qk = 0.05}));
}

TEST_CASE("sharpness of two scalars: the eigenvalues of the Jacobian", "[stability]") {
  const LearningRates<double> rates{.ov = 0.7, .qk = 25};
  const auto check = [&](const auto& flow, const Eigen::Vector2d& x, const ReducedJacobian<double>& j) {
    Eigen::Matrix2d jacobian;
    jacobian << j.ov_ov, j.ov_qk, j.qk_ov, j.qk_qk;
    const Eigen::Vector2cd values = jacobian.eigenvalues();
    double sharpest = -values.real().minCoeff();  // what counts where all grow
    for (int i = 0; i < 2; ++i) {
      if (values[i].real() < 0) sharpest = std::max(sharpest, std::norm(values[i]) / -values[i].real());
    }
    const StabilityRow<double> row = stability(flow, 3.0, x);
    CHECK(row.t == 3);
    CHECK_THAT(row.sharpness, WithinRel(sharpest, 1e-9));
    CHECK(row.sharpness_ov == -j.ov_ov);
    CHECK(row.sharpness_qk == -j.qk_qk);
  };
  for (const double o : {0.1, 1.0, 4.0, 9.0}) {
    for (const double q : {-0.5, 0.1, 2.0}) {
      const Caco<double> caco{task, rates};
      check(caco, Eigen::Vector2d(o, q), caco.jacobian(o, q));
      const Fafo<double> fafo{task, rates};
      check(fafo, Eigen::Vector2d(o, q), fafo.jacobian(o, q));
      const FactorFlow<double> factors(fafo, {o, q});
      check(factors, factors.start(), factors.jacobian(factors.start()));
    }
  }
}

TEST_CASE("the line's sharpness is at most the matrices', and one of their eigenvalues", "[stability]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 3, {.qk = 2.5, .ov = 0.7});
  MatrixFlow flow(parameters, block_dataset(task));
  for (const auto& [o, q] : {std::pair{0.3, 0.2}, {2.0, 0.5}, {6.0, 2.0}}) {
    const FactorFlow<double> line(Fafo<double>{task, {.ov = 0.7, .qk = 2.5}}, {o, q});
    const State theta = aligned_start(parameters, task, {.mu_ov = o, .mu_qk = q});
    const auto all = stability(flow, 0.0, theta, {.lanczos = {.rtol = 1e-8}}),
               on_line = stability(line, 0.0, line.start());
    CHECK(on_line.sharpness <= all.sharpness * (1 + 1e-6));
    CHECK(all.sharpness > 0);
  }
}

TEST_CASE("rows along a trajectory; a frozen circuit has no sharpness", "[stability]") {
  const auto parameters = caco_parameters<double>(BlockLayout::of(task).shape(), {.qk = 0, .ov = 1});
  MatrixFlow flow(parameters, block_dataset(task));
  const auto run = solve(flow, zero_start(parameters), {.t_end = 40, .save_times = {0, 20, 40}});
  const auto rows = stability_along(flow, run);
  REQUIRE(rows.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(rows[i].t == run.times[i]);
    CHECK(rows[i].sharpness_qk == 0);
    CHECK(rows[i].largest_step(SharpnessOf::qk) == std::numeric_limits<double>::infinity());
    CHECK_THAT(rows[i].sharpness_ov, WithinRel(rows[i].sharpness, 1e-3));
    CHECK(rows[i].sharper() == SharpnessOf::ov);
  }
  CHECK_THAT(largest_stable_step(rows),
             WithinRel(2 / std::max({rows[0].sharpness, rows[1].sharpness, rows[2].sharpness}), 1e-14));
  const auto quick = stability(flow, 0.0, run.x, {.per_circuit = false});
  CHECK(std::isnan(quick.sharpness_ov));
  CHECK(quick.sharpness > 0);
}

TEST_CASE("where a step becomes too large, and ceases to be: spans by hand", "[stability]") {
  const auto row = [](double t, double loss, double sharpness) {
    return StabilityRow<double>{t, loss, sharpness, sharpness / 2, sharpness / 4, true};
  };
  // Sharpness e^t up to t = 2, then down again, then negative.
  const double e = std::exp(1.0);
  const std::vector<StabilityRow<double>> rows{row(0, 1, 1), row(1, 0.1, e), row(2, 0.01, e * e), row(3, 1e-3, e),
                                               row(4, 1e-4, -e)};
  const auto spans = unstable_spans(rows, 2 / std::exp(1.5));
  REQUIRE(spans.size() == 1);
  CHECK_THAT(spans[0].from, WithinAbs(1.5, 1e-12));
  CHECK_THAT(spans[0].to, WithinAbs(2.5, 1e-12));
  CHECK_THAT(spans[0].loss, WithinRel(std::pow(10, -1.5), 1e-12));
  CHECK_FALSE(spans[0].at_start);
  CHECK_FALSE(spans[0].at_end);
  CHECK(spans[0].sharper == SharpnessOf::qk);
  CHECK(unstable_spans(rows, 2 / (e * e) * 0.99).empty());
  CHECK_FALSE(first_unstable(rows, 2 / (e * e) * 0.99));
  // Linear where a sharpness is not positive: e to -e passes 1/2 at (e - 1/2) / (2 e).
  const auto early = unstable_spans(rows, 4.0);
  REQUIRE(early.size() == 1);
  CHECK(early[0].at_start);
  CHECK(early[0].from == 0);
  CHECK_THAT(early[0].to, WithinAbs(3 + (e - 0.5) / (2 * e), 1e-12));
  // One circuit alone.
  CHECK_THAT(first_unstable(rows, 4 / std::exp(1.5), SharpnessOf::qk)->from, WithinAbs(1.5, 1e-12));
  CHECK_FALSE(first_unstable(rows, 4 / std::exp(1.5), SharpnessOf::ov));
  // To the end.
  const std::vector<StabilityRow<double>> rising{row(0, 1, 1), row(1, 1, 4)};
  CHECK(unstable_spans(rising, 1.0)[0].at_end);
  CHECK(unstable_spans(rising, 1.0)[0].to == 1);
  CHECK(unstable_spans(std::vector<StabilityRow<double>>{}, 1.0).empty());
  CHECK_THROWS_WITH(unstable_spans(rows, 0.0), Contains("unstable_spans: step = 0"));
  CHECK_THROWS_WITH(unstable_spans(std::vector{row(1, 1, 1), row(0, 1, 1)}, 1.0), Contains("time of row 1 = 0"));
  CHECK(std::string(to_string(SharpnessOf::qk)) == "QK");
}

TEST_CASE("a warning before: where the flow grows too sharp, training leaves it", "[stability]") {
  // Noisy labels, factors: sharpness grows along the flow, to its equilibrium. A step that is stable at the start and
  // not later follows the flow at first, and ends elsewhere.
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4);
  MatrixFlow flow(parameters, noisy_labels());
  const State start = balanced_random_start(parameters, 1, 0.5);
  std::vector<double> times;
  for (int i = 0; i <= 30; ++i) times.push_back(20.0 * i);
  const auto run = solve(flow, start, {.t_end = 600, .rtol = 1e-8, .save_times = times});
  const auto rows = stability_along(flow, run);
  const double h = 0.8 * rows.front().largest_step();
  const auto warning = first_unstable(rows, h);
  REQUIRE(warning);
  CHECK_FALSE(warning->at_start);
  CHECK(warning->at_end);
  CHECK(warning->from > 10);
  CHECK(warning->loss < rows.front().loss);
  std::vector<double> losses;
  DescentOptions<State> options{.step = h, .steps = 200};
  options.on_step = [&](std::size_t, const State& x) { losses.push_back(flow.loss(x)); };
  descend(flow, start, options);
  std::size_t first_rise = 0;
  for (std::size_t k = 1; k < losses.size() && first_rise == 0; ++k) first_rise = losses[k] > losses[k - 1] ? k : 0;
  REQUIRE(first_rise > 0);
  CHECK(h * static_cast<double>(first_rise) > warning->from);
  options.step = 0.9 * largest_stable_step(rows);
  losses.clear();
  descend(flow, start, options);
  for (std::size_t k = 1; k < losses.size(); ++k) CHECK(losses[k] <= losses[k - 1] * (1 + 1e-12));
}
