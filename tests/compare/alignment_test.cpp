// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/compare/alignment.hpp"

#include <Eigen/Core>
#include <cmath>
#include <limits>
#include <vector>

#include "qkflow/compare/descend.hpp"
#include "qkflow/flow/closed_form.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};
const LearningRates<double> rates{.ov = 0.7, .qk = 2.5};
}  // namespace

TEST_CASE("aligned in time: the error of each observable, and of all parameters", "[alignment]") {
  const Caco<double> flow{task, rates};
  const Eigen::Vector2d start(0, 0);
  const auto run = descend(flow, start, {.step = 2, .steps = 50, .save_every = 10});
  const auto reference = solve(flow, start, {.t_end = run.t, .rtol = 1e-12, .save_times = run.times}, {}, Fehlberg78{});
  const auto rows = align_in_time(run, reference, ReducedObserver(flow));
  REQUIRE(rows.size() == 6);
  const ClosedForm closed(flow, ReducedState<double>{});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto exact = closed.at_time(20.0 * static_cast<double>(i));
    CHECK(rows[i].t == 20.0 * static_cast<double>(i));
    CHECK(rows[i].reference_t == rows[i].t);
    CHECK_THAT(rows[i].reference.mu_ov, WithinAbs(exact.mu_ov, 1e-10));
    CHECK_THAT(rows[i].reference.loss, WithinAbs(exact.loss, 1e-10));
    CHECK_THAT(rows[i].run.alpha, WithinAbs(flow.alpha(run.states[i][1]), 1e-15));
    CHECK_THAT(rows[i].distance, WithinAbs((run.states[i] - reference.states[i]).norm(), 1e-15));
    CHECK_THAT(rows[i].reference_move, WithinAbs(reference.states[i].norm(), 1e-15));
    CHECK(rows[i].run.off_line == 0);
  }
  CHECK(rows[0].distance == 0);
  CHECK(rows[5].distance > 1e-3);
  const auto largest = largest_errors(rows);
  CHECK(largest.distance >= rows[5].distance);
  CHECK(largest.mu_ov > 0);
}

TEST_CASE("a matrix run beside the scalars' observables, on and off the line", "[alignment]") {
  const auto parameters = caco_parameters<double>(BlockLayout::of(task).shape(), {.qk = 2.5, .ov = 0.7});
  MatrixFlow flow(parameters, block_dataset(task));
  const Caco<double> reduced{task, rates};
  const MatrixObserver on_line(flow, task), anywhere(flow);
  const auto run = descend(flow, zero_start(parameters), {.step = 2, .steps = 40, .save_every = 20});
  const auto scalars = descend(reduced, Eigen::Vector2d(0, 0), {.step = 2, .steps = 40, .save_every = 20});
  for (std::size_t i = 0; i < run.states.size(); ++i) {
    const auto seen = on_line(run.states[i]), same = ReducedObserver(reduced)(scalars.states[i]);
    CHECK_THAT(seen.mu_ov, WithinAbs(same.mu_ov, 1e-13));
    CHECK_THAT(seen.mu_qk, WithinAbs(same.mu_qk, 1e-13));
    CHECK_THAT(seen.alpha, WithinAbs(same.alpha, 1e-13));
    CHECK_THAT(seen.loss, WithinAbs(same.loss, 1e-13));
    CHECK(seen.off_line < 1e-14);
    CHECK(on_line.loss(run.states[i]) == seen.loss);
    const auto bare = anywhere(run.states[i]);
    CHECK(bare.loss == seen.loss);
    CHECK(std::isnan(bare.mu_ov));
    CHECK(std::isnan(bare.off_line));
  }
  Eigen::VectorXd off = run.x;
  off[0] += 0.25;
  CHECK(on_line(off).off_line > 0.1);
}

TEST_CASE("aligned in loss: what is left when the clock is taken out", "[alignment]") {
  const Caco<double> flow{task, rates};
  const Eigen::Vector2d start(0, 0);
  const ReducedObserver observe(flow);
  const auto run = descend(flow, start, {.step = 4, .steps = 60, .save_every = 6});
  const auto aligned = align_in_loss(run, flow, start, observe, {.t_end = 1e4, .rtol = 1e-12});
  CHECK(aligned.status == Status::reached_stop);
  REQUIRE(aligned.rows.size() == run.states.size());
  const ClosedForm closed(flow, ReducedState<double>{});
  for (std::size_t i = 1; i < aligned.rows.size(); ++i) {
    const auto& row = aligned.rows[i];
    const auto exact = closed.at_loss(observe.loss(run.states[i]));
    CHECK_THAT(row.reference.loss, WithinRel(row.run.loss, 1e-10));
    CHECK_THAT(row.reference.mu_qk, WithinAbs(exact.mu_qk, 1e-9));
    CHECK_THAT(row.reference_t, WithinRel(closed.time(exact), 1e-9));
  }
  // Not the clock alone: at one loss the product alpha mu_OV is one, but training's attention lags, as a step from
  // mu_OV = 0 gives it nothing, and its output makes up for that.
  const auto& last = aligned.rows.back();
  CHECK_THAT(last.run.alpha * last.run.mu_ov, WithinRel(last.reference.alpha * last.reference.mu_ov, 1e-9));
  CHECK(last.run.mu_qk < last.reference.mu_qk - 1e-4);
  CHECK(last.run.mu_ov > last.reference.mu_ov + 1e-4);
  CHECK(std::abs(last.t - last.reference_t) > 0.01);
}

TEST_CASE("aligned in loss a row that raised the loss is left out, an unreachable one ends it", "[alignment]") {
  const Caco<double> flow{task, rates};
  struct Rows {
    std::vector<double> times;
    std::vector<Eigen::Vector2d> states;
  };
  const Rows run{{0, 1, 2, 3}, {{0, 0}, {1, 0.1}, {0.5, 0}, {4, 0.2}}};
  const auto aligned = align_in_loss(run, flow, Eigen::Vector2d(0, 0), ReducedObserver(flow), {.t_end = 1e5});
  REQUIRE(aligned.rows.size() == 3);
  CHECK(aligned.rows[1].t == 1);
  CHECK(aligned.rows[2].t == 3);
  const auto short_of = align_in_loss(run, flow, Eigen::Vector2d(0, 0), ReducedObserver(flow), {.t_end = 60});
  CHECK(short_of.status == Status::reached_end);
  CHECK(short_of.rows.size() < 3);
  CHECK_FALSE(short_of.message.empty());
}

TEST_CASE("rows at other times are refused, shorter ones end the rows, NaN stays NaN", "[alignment]") {
  const Caco<double> flow;
  const Eigen::Vector2d start(0, 0);
  auto a = descend(flow, start, {.step = 1, .steps = 4, .save_every = 1});
  auto b = descend(flow, start, {.step = 1, .steps = 3, .save_every = 1});
  CHECK(align_in_time(a, b, ReducedObserver(flow)).size() == 4);
  b.times[2] += 1e-6;
  CHECK_THROWS_WITH(align_in_time(a, b, ReducedObserver(flow)), Contains("align_in_time: time of row 2"));
  std::vector<AlignedRow<double>> rows(3);
  for (auto& row : rows) row.run = row.reference = {1, 1, 1, 1, 0};
  rows[1].run.mu_ov = std::numeric_limits<double>::quiet_NaN();
  rows[2].run.loss = 3;
  const auto largest = largest_errors(rows);
  CHECK(std::isnan(largest.mu_ov));
  CHECK(largest.loss == 2);
  CHECK(largest.alpha == 0);
}
