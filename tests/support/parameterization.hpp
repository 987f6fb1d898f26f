// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "qkflow/math/random.hpp"
#include "qkflow/model/concepts.hpp"
#include "support/catch.hpp"
#include "support/tolerance.hpp"

namespace qkflow_test {

template <class Scalar>
qkflow::ColumnVector<Scalar> normal_vector(Eigen::Index size, std::uint64_t seed) {
  qkflow::RandomStream random(seed);
  qkflow::ColumnVector<Scalar> x(size);
  for (Scalar& value : x) value = static_cast<Scalar>(random.normal());
  return x;
}

/// What every parameterization must do, checked against differences of `form` and of `pull_back` alone:
///   <G, form'(theta) u> = <pull_back at unit rates, u>,    both tangents,    conserved quantities are conserved.
template <class P>
void check_parameterization(const P& p) {
  using Scalar = typename P::scalar_type;
  using Matrix = qkflow::CircuitMatrix<Scalar, P::circuit>;
  using Flat = qkflow::ColumnVector<Scalar>;
  const Eigen::Index size = p.size();
  const Flat theta = normal_vector<Scalar>(size, 21), u = normal_vector<Scalar>(size, 22);
  Matrix gradient(p.shape().rows, p.shape().cols), gradient_direction = gradient;
  Eigen::Map<Flat>(gradient.data(), gradient.size()) = normal_vector<Scalar>(gradient.size(), 23);
  Eigen::Map<Flat>(gradient_direction.data(), gradient.size()) = normal_vector<Scalar>(gradient.size(), 24);
  const auto map = [](const Flat& x) { return qkflow::ConstVectorMap<Scalar>(x.data(), x.size()); };
  const auto view = [](const Matrix& x) {
    return qkflow::ConstCircuitMap<Scalar, P::circuit>(x.data(), x.rows(), x.cols());
  };
  const auto form = [&](const Flat& x) {
    Matrix buffer;
    return Matrix(p.form(map(x), buffer));
  };
  const auto pull_back = [&](const Flat& x, const Matrix& g) {
    Flat velocity(size);
    p.pull_back(map(x), view(g), qkflow::VectorMap<Scalar>(velocity.data(), size));
    return velocity;
  };
  const Scalar tight = tolerance<Scalar>(Tol::state), loose = tolerance<Scalar>(Tol::difference);
  const Scalar h = Scalar(1e-5);

  // Tangent of the circuit against central differences.
  Matrix buffer;
  const Matrix tangent = p.form_tangent(map(theta), map(u), buffer);
  const Matrix numeric = (form(theta + h * u) - form(theta - h * u)) / (2 * h);
  CHECK((tangent - numeric).cwiseAbs().maxCoeff() < loose * (1 + tangent.cwiseAbs().maxCoeff()));

  // The pull-back is the transpose of the tangent, times the rates.
  Flat rates(size);
  for (const auto& block : p.blocks()) rates.segment(block.offset, block.shape.size()).setConstant(block.rate);
  const Flat velocity = pull_back(theta, gradient);
  const Scalar one_way = gradient.cwiseProduct(tangent).sum();
  const Scalar other_way = velocity.cwiseQuotient(rates).dot(u);
  CHECK(std::abs(one_way - other_way) < tight * (1 + std::abs(one_way)));

  // Tangent of the pull-back.
  Flat pulled(size);
  p.pull_back_tangent(map(theta), map(u), view(gradient), view(gradient_direction),
                      qkflow::VectorMap<Scalar>(pulled.data(), size));
  const Flat difference = (pull_back(theta + h * u, Matrix(gradient + h * gradient_direction)) -
                           pull_back(theta - h * u, Matrix(gradient - h * gradient_direction))) /
                          (2 * h);
  CHECK((pulled - difference).cwiseAbs().maxCoeff() < loose * (1 + pulled.cwiseAbs().maxCoeff()));

  // Conserved: the derivative along the flow vanishes (central differences are exact for these quadratics).
  const auto up = p.conserved(map(Flat(theta + velocity))), down = p.conserved(map(Flat(theta - velocity)));
  REQUIRE(up.size() == down.size());
  for (std::size_t i = 0; i < up.size(); ++i) {
    const Scalar scale = up[i].value.cwiseAbs().maxCoeff();
    CHECK((up[i].value - down[i].value).cwiseAbs().maxCoeff() < tight * (1 + scale));
    CHECK(up[i].value.cwiseAbs().maxCoeff() > 0);
  }

  // Blocks cover the vector, each entry once.
  Flat covered = Flat::Zero(size);
  for (const auto& block : p.blocks()) {
    for (Eigen::Index r = 0; r < block.shape.rows; ++r) {
      for (Eigen::Index c = 0; c < block.shape.cols; ++c) covered[block.index(r, c)] += 1;
    }
  }
  CHECK((covered.array() == 1).all());
}

}  // namespace qkflow_test
