// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/aligned_start.hpp"

#include <limits>

#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/model/gradient_field.hpp"
#include "support/catch.hpp"
#include "support/parameterization.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Tol;

namespace {

const double infinity = std::numeric_limits<double>::infinity();
const double tight = qkflow_test::tolerance<double>(Tol::elementary);

BlockTask<double> task_with(double noise_tokens) {
  return {.classes = 4, .block = 3, .informative = 2, .noise = 4, .noise_vocabulary = noise_tokens, .score_scale = 0.7};
}

template <class Matrix>
void check_form(const SingularForm<double>& form, const Matrix& w) {
  const Eigen::Index k = form.values.size();
  CHECK((form.left.transpose() * form.left - DenseMatrix<double>::Identity(k, k)).cwiseAbs().maxCoeff() < tight);
  CHECK((form.right.transpose() * form.right - DenseMatrix<double>::Identity(k, k)).cwiseAbs().maxCoeff() < tight);
  CHECK((form.left * form.values.asDiagonal() * form.right.transpose() - w).cwiseAbs().maxCoeff() < tight);
}

/// The field of the parameters at a point of the line is the reduced flow's velocity, spread over the same line.
template <class Parameters, class Reduced>
void check_on_line(const Parameters& parameters, const Reduced& flow, const AlignedStart<double>& start) {
  const BlockTask<double>& task = flow.task;
  const ColumnVector<double> theta = aligned_start(parameters, task, start);
  Circuits<double> buffers;
  const auto w = parameters.circuits(theta, buffers);
  const auto d_ov = block_output_direction(task);
  const auto d_qk = block_attention_direction(task);
  CHECK((w.ov - start.mu_ov * d_ov).cwiseAbs().maxCoeff() < tight);
  CHECK((w.qk - start.mu_qk / task.score_scale * d_qk).cwiseAbs().maxCoeff() < tight);

  GradientField<Parameters> field(parameters, block_dataset(task), {.score_scale = task.score_scale});
  ColumnVector<double> velocity;
  CHECK_THAT(field.velocity(theta, velocity), WithinRel(flow.loss(start.mu_ov, start.mu_qk), tight));
  Circuits<double> tangents;
  const auto dw = parameters.circuit_tangents(theta, velocity, tangents);
  CHECK((dw.ov - flow.output_velocity(start.mu_ov, start.mu_qk) * d_ov).cwiseAbs().maxCoeff() < tight);
  CHECK((dw.qk - flow.attention_velocity(start.mu_ov, start.mu_qk) / task.score_scale * d_qk).cwiseAbs().maxCoeff() <
        tight);
}

}  // namespace

TEST_CASE("the line's directions by their singular vectors") {
  for (const double noise_tokens : {infinity, 1.0, 6.0}) {
    const BlockTask<double> task = task_with(noise_tokens);
    check_form(block_output_form(task, 1.5), 1.5 * block_output_direction(task));
    check_form(block_attention_form(task, -2.0), -2.0 * block_attention_direction(task));
    CHECK(block_output_form(task, 1.0).values.size() == 3);
  }
  check_form(singular_form(block_output_direction(task_with(infinity)), 1e-10),
             block_output_direction(task_with(infinity)));
}

TEST_CASE("on the line every parameterization moves as its reduced flow says") {
  const BlockTask<double> task = task_with(infinity);
  const DatasetShape shape = BlockLayout::of(task).shape();
  const CircuitRates<double> rates{.qk = 3, .ov = 0.5};
  const LearningRates<double> reduced_rates{.ov = 0.5, .qk = 3};
  for (const AlignedStart<double> start :
       {AlignedStart<double>{.mu_ov = 1.5, .mu_qk = 0.8}, AlignedStart<double>{.mu_ov = 0.01, .mu_qk = -0.3},
        AlignedStart<double>{.mu_ov = -2, .mu_qk = 0}}) {
    CAPTURE(start.mu_ov, start.mu_qk);
    check_on_line(caco_parameters<double>(shape, rates), Caco<double>{task, reduced_rates}, start);
    // Inner dimensions: just enough, and more than that.
    check_on_line(cafo_parameters<double>(shape, 3, rates), Cafo<double>{task, reduced_rates}, start);
    check_on_line(faco_parameters<double>(shape, 4, rates), Faco<double>{task, reduced_rates}, start);
    check_on_line(fafo_parameters<double>(shape, 7, rates), Fafo<double>{task, reduced_rates}, start);

    AlignedStart<double> unbalanced = start;
    for (const double lambda : {0.3, -2.0}) {
      unbalanced.lambda_ov = lambda;
      unbalanced.lambda_qk = 2 * lambda;
      const auto fafo = fafo_parameters<double>(shape, 5, rates);
      check_on_line(
          fafo,
          ReducedFlow<double, Unbalanced<double>, Unbalanced<double>>{task, reduced_rates, {2 * lambda}, {lambda}},
          unbalanced);
      const ColumnVector<double> theta = aligned_start(fafo, task, unbalanced);
      // The conserved matrix is lambda on the occupied directions.
      const DenseMatrix<double> balance = fafo.conserved(theta).at(0).value;
      CHECK((balance.topLeftCorner(4, 4) - 2 * lambda * DenseMatrix<double>::Identity(4, 4)).cwiseAbs().maxCoeff() <
            tight);
      CHECK(balance(4, 4) == 0);
    }
    for (const int factors : {1, 2, 3, 4}) {
      const std::vector<Eigen::Index> inner(static_cast<std::size_t>(factors - 1), 6);
      const HeadParameters product(ProductCircuit<double, Circuit::qk>({12, 12}, inner, {3.0}),
                                   ProductCircuit<double, Circuit::ov>({4, 12}, inner, {0.5}));
      check_on_line(
          product, ReducedFlow<double, FactorProduct, FactorProduct>{task, reduced_rates, {factors}, {factors}}, start);
    }
  }
}

TEST_CASE("with finite noise collapsed attention is on the line") {
  const BlockTask<double> task = task_with(6);
  const DatasetShape shape = BlockLayout::of(task).shape();
  const AlignedStart<double> start{.mu_ov = 1.5, .mu_qk = 0.8};
  check_on_line(caco_parameters<double>(shape), Caco<double>{task}, start);
  check_on_line(cafo_parameters<double>(shape, 3), Cafo<double>{task}, start);
}

TEST_CASE("balanced starts form the circuits they are given") {
  const DatasetShape shape{6, 5, 4};
  Circuits<double> w(shape, true);
  w.qk.setRandom();
  w.ov.setRandom();
  w.bias.setRandom();
  const auto check = [&](const auto& parameters) {
    const ColumnVector<double> theta = balanced_start(parameters, w.view());
    Circuits<double> buffers;
    const auto formed = parameters.circuits(theta, buffers);
    CHECK((formed.qk - w.qk).cwiseAbs().maxCoeff() < tight);
    CHECK((formed.ov - w.ov).cwiseAbs().maxCoeff() < tight);
    CHECK(formed.bias == w.bias);
    for (const auto& quantity : parameters.conserved(theta)) CHECK(quantity.value.cwiseAbs().maxCoeff() < tight);
  };
  check(caco_parameters<double>(shape, {}, true));
  check(fafo_parameters<double>(shape, 5, {}, true));
  check(fafo_parameters<double>(shape, 9, {}, true));
  check(HeadParameters(ProductCircuit<double, Circuit::qk>({6, 5}, {5, 7}),
                       ProductCircuit<double, Circuit::ov>({4, 5}, {4}), {true}));
  CHECK_THROWS_WITH(balanced_start(fafo_parameters<double>(shape, 3), w.view()),
                    Catch::Contains("inner dimension = 3") && Catch::Contains("rank 5"));
}

TEST_CASE("balanced random starts are balanced, random and of the size asked for") {
  const DatasetShape shape{40, 50, 30};
  const auto wide = fafo_parameters<double>(shape, 60);
  const ColumnVector<double> theta = balanced_random_start(wide, 5, 0.1);
  for (const auto& quantity : wide.conserved(theta)) CHECK(quantity.value.cwiseAbs().maxCoeff() < tight);
  Circuits<double> buffers;
  const auto w = wide.circuits(theta, buffers);
  CHECK(std::abs(w.qk.squaredNorm() / 20.0 - 1) < 4 * std::sqrt(2.0 / 2000));
  CHECK(balanced_random_start(wide, 5, 0.1) == theta);
  CHECK(balanced_random_start(wide, 6, 0.1) != theta);
  // Collapsed: the same circuits. Narrow: their leading part.
  const auto caco = caco_parameters<double>(shape);
  Circuits<double> caco_buffers, narrow_buffers;
  const ColumnVector<double> collapsed = balanced_random_start(caco, 5, 0.1);
  CHECK((caco.circuits(collapsed, caco_buffers).ov - w.ov).cwiseAbs().maxCoeff() < tight);
  const auto narrow = fafo_parameters<double>(shape, 2);
  const ColumnVector<double> cut = balanced_random_start(narrow, 5, 0.1);
  const auto best = singular_form(w.qk, 0.0);
  CHECK((narrow.circuits(cut, narrow_buffers).qk -
         best.left.leftCols(2) * best.values.head(2).asDiagonal() * best.right.leftCols(2).transpose())
            .cwiseAbs()
            .maxCoeff() < tight);
}

TEST_CASE("what cannot be aligned is refused by name") {
  const BlockTask<double> task = task_with(infinity);
  const DatasetShape shape = BlockLayout::of(task).shape();
  CHECK_THROWS_WITH(aligned_start(fafo_parameters<double>(shape, 3), task, {}), Catch::Contains("inner dimension = 3"));
  CHECK_THROWS_WITH(aligned_start(caco_parameters<double>({3, 3, 3}), task, {}), Catch::Contains("shape"));
  CHECK_THROWS_WITH(aligned_start(caco_parameters<double>(shape), task, {.mu_qk = infinity}),
                    Catch::Contains("mu_qk = inf"));
  const HeadParameters product(ProductCircuit<double, Circuit::qk>({12, 12}, {5, 5}),
                               CollapsedCircuit<double, Circuit::ov>({4, 12}));
  CHECK_THROWS_WITH(aligned_start(product, task, {.mu_qk = 1, .lambda_qk = 1}), Catch::Contains("lambda = 1"));
}
