// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/lanczos.hpp"

#include <Eigen/QR>
#include <cmath>
#include <limits>

#include "support/catch.hpp"

using namespace qkflow;
using Matrix = Eigen::MatrixXd;

namespace {

/// A symmetric matrix with these eigenvalues.
Matrix with_spectrum(const Eigen::VectorXd& values) {
  RandomStream random(3);
  Matrix square(values.size(), values.size());
  for (Eigen::Index i = 0; i < square.size(); ++i) square.data()[i] = random.normal();
  const Matrix q = Eigen::HouseholderQR<Matrix>(square).householderQ();
  return q * values.asDiagonal() * q.transpose();
}

ExtremeEigenvalues<double> ends(const Matrix& a, const LanczosOptions& options) {
  return extreme_eigenvalues<double>(
      a.rows(), [&](const Eigen::VectorXd& v, Eigen::VectorXd& out) { out = a * v; }, options);
}

}  // namespace

TEST_CASE("both ends of a known spectrum") {
  // Clustered, repeated, with a gap, indefinite.
  Eigen::VectorXd values = Eigen::VectorXd::LinSpaced(120, -1.0, 2.0);
  values[119] = 3.5;
  values[118] = 3.5;
  values[0] = -7;
  const Matrix a = with_spectrum(values);
  const auto result = ends(a, {.rtol = 1e-10, .largest_only = false});
  CHECK(result.converged);
  CHECK(result.steps < 120);
  CHECK_THAT(result.largest, WithinAbs(3.5, 1e-8));
  CHECK_THAT(result.smallest, WithinAbs(-7, 1e-8));
  CHECK(std::abs(result.largest - 3.5) <= result.largest_error + 1e-12);
  // Many more steps than orthogonality lasts: the ends stay.
  const auto longer = ends(with_spectrum(Eigen::VectorXd::LinSpaced(400, 0, 1)), {.max_steps = 350, .rtol = 0});
  CHECK_THAT(longer.largest, WithinAbs(1, 1e-10));
  CHECK(longer.largest < 1 + 1e-12);
}

TEST_CASE("one dimension, a multiple of the identity, zero") {
  CHECK(ends(Matrix::Constant(1, 1, -4.0), {}).largest == -4);
  const auto multiple = ends(2.5 * Matrix::Identity(30, 30), {});
  CHECK(multiple.converged);
  CHECK(multiple.steps == 1);
  CHECK_THAT(multiple.largest, WithinAbs(2.5, 1e-14));
  const auto zero = ends(Matrix::Zero(30, 30), {});
  CHECK(zero.converged);
  CHECK(zero.largest == 0);
}

TEST_CASE("too few steps are reported as unconverged, NaN is NaN, bad options are refused") {
  const Matrix a = with_spectrum(Eigen::VectorXd::LinSpaced(200, 0, 1));
  const auto early = ends(a, {.max_steps = 3});
  CHECK_FALSE(early.converged);
  CHECK(early.steps == 3);
  CHECK(early.largest < 1);
  CHECK(early.largest + early.largest_error > 0.9);
  Matrix broken = a;
  broken(3, 5) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(ends(broken, {}).converged);
  CHECK(std::isnan(ends(broken, {}).largest));
  CHECK_THROWS_WITH(ends(a, {.max_steps = 0}), Catch::Contains("max_steps = 0"));
  CHECK_THROWS_WITH(ends(a, {.rtol = -1}), Catch::Contains("rtol = -1"));
  CHECK_THROWS_WITH(ends(Matrix(), {}), Catch::Contains("n = 0"));
}
