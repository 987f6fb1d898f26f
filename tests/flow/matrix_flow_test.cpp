// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The reduced flow as a theorem: every matrix entry of the head, integrated, against the two scalars.
#include "qkflow/flow/matrix_flow.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "support/catch.hpp"
#include "support/matrix_line.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using namespace qkflow_test;

namespace {

using State = Eigen::VectorXd;
const double matrix_tolerance = tolerance<double>(Tol::matrix_flow);
constexpr double line_tolerance = 1e-11;

const BlockTask<double> small{.classes = 3, .block = 4, .informative = 2, .noise = 3};
const LearningRates<double> slow_output{.ov = 0.7, .qk = 2.5};
const std::vector<double> times{0, 1, 10, 60, 300};

CircuitRates<double> rates_of(const LearningRates<double>& rates) { return {.qk = rates.qk, .ov = rates.ov}; }
DatasetShape shape_of(const BlockTask<double>& task) { return BlockLayout::of(task).shape(); }

void check(const Agreement& a) {
  INFO("mu_OV " << a.mu_ov << " mu_QK " << a.mu_qk << " alpha " << a.alpha << " loss " << a.loss << " off the line "
                << a.distance);
  CHECK(a.largest() < matrix_tolerance);
  CHECK(a.distance < line_tolerance);
}

template <class Scalar, Circuit which>
ProductCircuit<Scalar, which> product(const BlockTask<double>& task, std::vector<Eigen::Index> inner, double rate) {
  return {circuit_shape(shape_of(task), which), std::move(inner), {Scalar(rate)}};
}

}  // namespace

TEST_CASE("from zero the collapsed matrix flow is the reduced flow, and the closed form") {
  check(compare_with_reduced(caco_parameters<double>(shape_of(small), rates_of(slow_output)),
                             Caco<double>{small, slow_output}, {}, times));

  MatrixFlow flow(caco_parameters<double>(shape_of(small)), block_dataset(small));
  const State zero = State::Zero(flow.size());
  const Caco<double> reduced{.task = small};
  const ClosedForm closed(reduced, ReducedState<double>{});
  const auto run = solve(flow, zero, {.rtol = 1e-12, .atol = 1e-15}, {stop_at_loss(flow, 1e-3)}, Fehlberg78{});
  REQUIRE(run.status == Status::reached_stop);
  const auto end = closed.at_loss(1e-3);
  const OnLine line = on_line(small, flow.circuits(run.x));
  CHECK_THAT(run.t, WithinRel(closed.time(end), matrix_tolerance));
  CHECK_THAT(line.mu_ov, WithinRel(end.mu_ov, matrix_tolerance));
  CHECK_THAT(line.mu_qk, WithinRel(end.mu_qk, matrix_tolerance));
  CHECK(line.distance < line_tolerance);
}

TEST_CASE("from an aligned start all four parameterizations are the reduced flow") {
  const DatasetShape shape = shape_of(small);
  const CircuitRates<double> rates = rates_of(slow_output);
  const AlignedStart<double> start{.mu_ov = 0.2, .mu_qk = 0.1};
  check(compare_with_reduced(caco_parameters<double>(shape, rates), Caco<double>{small, slow_output}, start, times));
  check(compare_with_reduced(cafo_parameters<double>(shape, 3, rates), Cafo<double>{small, slow_output}, start, times));
  check(compare_with_reduced(faco_parameters<double>(shape, 3, rates), Faco<double>{small, slow_output}, start, times));
  check(compare_with_reduced(fafo_parameters<double>(shape, 5, rates), Fafo<double>{small, slow_output}, start, times));
}

TEST_CASE("below a saddle factorized circuits rise towards it and do not cross, in matrices as in scalars") {
  const AlignedStart<double> below{.mu_ov = -0.5, .mu_qk = 0.3};
  check(compare_with_reduced(fafo_parameters<double>(shape_of(small), 3), Fafo<double>{.task = small}, below, times));
}

TEST_CASE("unbalanced factors: lambda of either sign, from zero and from a point of the line") {
  using Lazy = ReducedFlow<double, Unbalanced<double>, Unbalanced<double>>;
  const Lazy reduced{small, slow_output, {0.8}, {-1.7}};
  const auto parameters = fafo_parameters<double>(shape_of(small), 4, rates_of(slow_output));
  check(compare_with_reduced(parameters, reduced, {.lambda_ov = -1.7, .lambda_qk = 0.8}, times));
  check(compare_with_reduced(parameters, reduced, {.mu_ov = 0.4, .mu_qk = -0.2, .lambda_ov = -1.7, .lambda_qk = 0.8},
                             times));
}

TEST_CASE("products of one, two, three and four factors") {
  using Deep = ReducedFlow<double, FactorProduct, FactorProduct>;
  const AlignedStart<double> start{.mu_ov = 0.3, .mu_qk = 0.15};
  const auto compare = [&](std::vector<Eigen::Index> qk, std::vector<Eigen::Index> ov) {
    const int qk_factors = static_cast<int>(qk.size()) + 1, ov_factors = static_cast<int>(ov.size()) + 1;
    const HeadParameters parameters(product<double, Circuit::qk>(small, std::move(qk), 2.5),
                                    product<double, Circuit::ov>(small, std::move(ov), 0.7));
    check(compare_with_reduced(parameters, Deep{small, slow_output, {qk_factors}, {ov_factors}}, start, times));
  };
  compare({3, 4}, {5, 3, 3});
  compare({3}, {3, 3});
  compare({}, {3});
}

TEST_CASE("finite noise vocabulary with collapsed attention, laid as windows and spread, and a score scale") {
  BlockTask<double> task = small;
  task.noise_vocabulary = 6;  // 4 windows of 3 noise tokens: each of 6 is met twice
  const AlignedStart<double> start{.mu_ov = 0.1, .mu_qk = -0.3};
  const auto compare = [&] {
    check(compare_with_reduced(caco_parameters<double>(shape_of(task), rates_of(slow_output)),
                               Caco<double>{task, slow_output}, start, times));
    check(compare_with_reduced(cafo_parameters<double>(shape_of(task), 2, rates_of(slow_output)),
                               Cafo<double>{task, slow_output}, start, times));
  };
  compare();
  task.score_scale = 0.4;
  compare();
  task.noise_vocabulary = 7;  // windows do not balance: spread
  compare();
}

TEST_CASE("a score scale with factorized attention and null noise") {
  BlockTask<double> task = small;
  task.score_scale = 2.5;
  check(compare_with_reduced(faco_parameters<double>(shape_of(task), 3), Faco<double>{.task = task},
                             {.mu_ov = 0.1, .mu_qk = 0.2}, times));
}

TEST_CASE("factorized attention with a finite noise vocabulary leaves the line, the less the larger the vocabulary") {
  // The mean direction, which all classes share through the noise, has a larger singular value than the others and so
  // learns faster. How far: docs/matrix_flow.md has the table.
  const auto farthest = [](double noise_vocabulary) {
    BlockTask<double> task = small;
    task.noise_vocabulary = noise_vocabulary;
    const auto parameters = faco_parameters<double>(shape_of(task), 3);
    MatrixFlow flow(parameters, block_dataset(task));
    const State theta = aligned_start(parameters, task, {.mu_ov = 0, .mu_qk = 0.1});
    const auto run = solve(flow, theta, {.rtol = 1e-11, .atol = 1e-14}, {stop_at_loss(flow, 1e-2)}, Fehlberg78{});
    REQUIRE(run.success());
    const OnLine line = on_line(task, flow.circuits(run.x));
    return line.distance / line.mu_qk;
  };
  const double at_6 = farthest(6), at_60 = farthest(60), at_600 = farthest(600);
  INFO(at_6 << " " << at_60 << " " << at_600);
  CHECK(at_6 > 0.1);
  CHECK(at_60 < at_6 / 2);
  CHECK(at_600 < at_60 / 5);
  CHECK(at_600 > 1e-3);
}

TEST_CASE("stop conditions: loss, attention, time, gradient norm, a predicate, and which comes first") {
  MatrixFlow flow(caco_parameters<double>(shape_of(small), {.qk = 8}), block_dataset(small));
  const Caco<double> reduced{small, {.ov = 1, .qk = 8}};
  const ClosedForm closed(reduced, ReducedState<double>{});
  const State zero = State::Zero(flow.size());
  const SolveOptions<State> tight{.rtol = 1e-12, .atol = 1e-15};

  const auto at_alpha = solve(flow, zero, tight, {stop_at_attention(flow, 0.6)}, Fehlberg78{});
  CHECK_THAT(at_alpha.t, WithinRel(closed.time(closed.at_attention(0.6)), matrix_tolerance));
  CHECK_THAT(flow.attention(at_alpha.x), WithinAbs(0.6, 1e-14));

  const auto at_time = solve(flow, zero, {.t_end = 25, .rtol = 1e-12, .atol = 1e-15}, {}, Fehlberg78{});
  CHECK(at_time.t == 25);
  CHECK_THAT(flow.loss(at_time.x), WithinRel(closed.at_time(25.0).loss, matrix_tolerance));

  const auto at_norm = solve(flow, zero, tight, {stop_at_gradient_norm(flow, 0.01)}, Fehlberg78{});
  REQUIRE(at_norm.success());
  // The norm as the theory has it: |dL/d mu| over the length of the line's direction, squares added.
  const OnLine line = on_line(small, flow.circuits(at_norm.x));
  const double slope_ov = reduced.output_velocity(line.mu_ov, line.mu_qk) * block_output_direction(small).norm();
  const double slope_qk =
      reduced.attention_velocity(line.mu_ov, line.mu_qk) / 8 * block_attention_direction(small).norm();
  CHECK_THAT(std::hypot(slope_ov, slope_qk), WithinRel(0.01, 1e-9));

  const Stop<State> strong{.name = "strong", .predicate = [&](double, const State& theta) {
                             return flow.circuits(theta).ov.cwiseAbs().maxCoeff() >= 1;
                           }};
  const auto by_predicate = solve(flow, zero, tight, {strong, stop_at_loss(flow, 1e-6)}, Fehlberg78{});
  REQUIRE(by_predicate.status == Status::reached_stop);
  CHECK(by_predicate.stop == 0U);
  CHECK_THAT(flow.circuits(by_predicate.x).ov.cwiseAbs().maxCoeff(), WithinRel(1, 1e-12));

  const auto already = solve(flow, at_alpha.x, tight, {stop_at_attention(flow, 0.5)}, Fehlberg78{});
  CHECK(already.status == Status::already_true);
}

TEST_CASE("a saddle is where it stays: factors at zero have no gradient") {
  MatrixFlow flow(fafo_parameters<double>(shape_of(small), 3), block_dataset(small));
  const State zero = State::Zero(flow.size());
  const auto run = solve(flow, zero, {.t_end = 1e6}, {stop_at_gradient_norm(flow, 1e-9)});
  CHECK(run.status == Status::already_true);
  CHECK(flow.gradient_norm(zero) == 0);
}

TEST_CASE("circuits that do not learn are left out of the gradient norm, and stay") {
  MatrixFlow flow(caco_parameters<double>(shape_of(small), {.qk = 0}), block_dataset(small));
  const State start = aligned_start(flow.parameters(), small, {.mu_ov = 0.5, .mu_qk = 0.7});
  const auto run = solve(flow, start, {.t_end = 5});
  CHECK(flow.parameters().qk_part(run.x) == flow.parameters().qk_part(start));
  State velocity;
  flow(start, velocity, 0);
  CHECK_THAT(flow.gradient_norm(start), WithinRel(flow.parameters().ov_part(velocity).norm(), 1e-14));
}

TEST_CASE("a trajectory has the same bits with one thread and with three") {
  const auto end = [](int threads) {
    MatrixFlow flow(fafo_parameters<double>(shape_of(small), 3), block_dataset(small), {}, threads);
    const State start = aligned_start(flow.parameters(), small, {.mu_ov = 0.1, .mu_qk = 0.2});
    return solve(flow, start, {.t_end = 40}).x;
  };
  CHECK(end(1) == end(3));
}

TEST_CASE("the matrix flow in float keeps to the line as well as floats can") {
  const BlockTask<float> task{.classes = 3, .block = 4, .informative = 2, .noise = 3};
  MatrixFlow flow(caco_parameters<float>(BlockLayout::of(task).shape()), block_dataset(task));
  const Eigen::VectorXf zero = Eigen::VectorXf::Zero(flow.size());
  const auto run = solve(flow, zero, {}, {stop_at_loss(flow, 0.1F)});
  REQUIRE(run.success());
  const Caco<double> reduced{.task = small};
  CHECK_THAT(double(flow.attention(run.x)),
             WithinRel(ClosedForm(reduced, ReducedState<double>{}).at_loss(0.1).alpha, 1e-4));
}

TEST_CASE("a matrix flow refuses parameters of another shape and stops that mean nothing") {
  const auto other = caco_parameters<double>({3, 4, 5});
  CHECK_THROWS_AS(MatrixFlow(other, block_dataset(small)), InvalidArgument);
  MatrixFlow flow(caco_parameters<double>(shape_of(small)), block_dataset(small));
  CHECK_THROWS_AS(stop_at_loss(flow, 0), InvalidArgument);
  CHECK_THROWS_AS(stop_at_attention(flow, 1), InvalidArgument);
  CHECK_THROWS_AS(stop_at_attention(flow, std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
  CHECK_THROWS_AS(stop_at_gradient_norm(flow, -1), InvalidArgument);
  State velocity;
  CHECK_THROWS_AS(flow(State::Zero(3), velocity, 0), InvalidArgument);
}
