// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/concepts.hpp"

#include "support/catch.hpp"

using namespace qkflow;

namespace {

/// A collapsed circuit of fixed sign that forgets one duty: what a user may write by mistake.
struct WithoutPullBack {
  using scalar_type = double;
  static constexpr Circuit circuit = Circuit::qk;
  MatrixShape shape() const { return {1, 1}; }
  Eigen::Index size() const { return 1; }
  std::vector<ParameterBlock<double>> blocks() const { return {}; }
  ConstCircuitMap<double, Circuit::qk> form(ConstVectorMap<double> theta,
                                            CircuitMatrix<double, Circuit::qk>& /*buffer*/) const {
    return {theta.data(), 1, 1};
  }
  std::vector<ConservedQuantity<double>> conserved(ConstVectorMap<double> /*theta*/) const { return {}; }
};

struct FirstOrderOnly : WithoutPullBack {
  void pull_back(ConstVectorMap<double> /*theta*/, ConstCircuitMap<double, Circuit::qk> gradient,
                 VectorMap<double> velocity) const {
    velocity[0] = gradient(0, 0);
  }
};

}  // namespace

TEST_CASE("concepts tell what a type lacks") {
  STATIC_REQUIRE_FALSE(CircuitParameterization<int>);
  STATIC_REQUIRE_FALSE(CircuitParameterization<WithoutPullBack>);
  STATIC_REQUIRE(CircuitParameterization<FirstOrderOnly>);
  STATIC_REQUIRE_FALSE(DifferentiableParameterization<FirstOrderOnly>);
  STATIC_REQUIRE_FALSE(DirectParameterization<FirstOrderOnly>);
  STATIC_REQUIRE_FALSE(DirectParameterization<FactorizedCircuit<double, Circuit::qk>>);
  STATIC_REQUIRE(DirectParameterization<CollapsedCircuit<double, Circuit::ov>>);
}
