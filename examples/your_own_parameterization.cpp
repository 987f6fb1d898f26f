// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// What does weight normalization do to attention? A parameterization written outside the library: W = gain V / |V|.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/model/sharpness.hpp"
#include "qkflow/task/block_dataset.hpp"

// [duties]
/// W = gain u with u = V / |V|, |V| the Frobenius norm. In the flat vector: the gain, then V in the order of W.
template <class Scalar, qkflow::Circuit which>
class NormalizedCircuit {
 public:
  using scalar_type = Scalar;
  static constexpr qkflow::Circuit circuit = which;
  using Flat = qkflow::ColumnVector<Scalar>;
  using Theta = qkflow::ConstVectorMap<Scalar>;                // this circuit's part of the flat vector
  using Velocity = qkflow::VectorMap<Scalar>;                  // the same, to write
  using CircuitView = qkflow::ConstCircuitMap<Scalar, which>;  // W or G = -dL/dW
  using CircuitBuffer = qkflow::CircuitMatrix<Scalar, which>;  // memory for W, kept by the caller
  using Conserved = std::vector<qkflow::ConservedQuantity<Scalar>>;

  NormalizedCircuit(const qkflow::MatrixShape& shape, Scalar rate) : shape_(shape), rate_(rate) {}

  // 1. Its parameters.
  qkflow::MatrixShape shape() const { return shape_; }
  Eigen::Index size() const { return 1 + shape_.size(); }
  std::vector<qkflow::ParameterBlock<Scalar>> blocks() const {
    const bool is_qk = which == qkflow::Circuit::qk;
    return {{is_qk ? "gain_QK" : "gain_OV", 0, {1, 1}, is_qk, rate_},
            {is_qk ? "V_QK" : "V_OV", 1, shape_, is_qk, rate_}};
  }
  // 2. The circuit they form.
  CircuitView form(Theta theta, CircuitBuffer& buffer) const {
    return as_circuit(theta[0] / theta.tail(shape_.size()).norm() * theta.tail(shape_.size()), buffer);
  }
  // 3. The pull-back: gain' = rate <G, u>, V' = rate gain / |V| (G - <G, u> u).
  void pull_back(Theta theta, CircuitView gradient, Velocity velocity) const {
    const auto v = theta.tail(shape_.size());
    const Theta g(gradient.data(), gradient.size());
    const Scalar norm = v.norm(), along = g.dot(v) / norm;
    velocity[0] = rate_ * along;
    velocity.tail(shape_.size()) = rate_ * theta[0] / norm * (g - along / norm * v);
  }
  // 4. What its flow conserves: V only turns.
  Conserved conserved(Theta theta) const {
    return {{"|V|^2", qkflow::DenseMatrix<Scalar>::Constant(1, 1, theta.tail(shape_.size()).squaredNorm())}};
  }
  // [/duties]

  // [derivatives]
  // Moving theta along d: u' = (V' - <u, V'> u) / |V|.
  CircuitView form_tangent(Theta theta, Theta d, CircuitBuffer& buffer) const {
    const Scalar norm = theta.tail(shape_.size()).norm();
    const Flat u = theta.tail(shape_.size()) / norm, turn = turning(u, d, norm);
    return as_circuit(d[0] * u + theta[0] * turn, buffer);
  }
  // The product rule on the pull-back, the gradient moving along dG besides.
  void pull_back_tangent(Theta theta, Theta d, CircuitView gradient, CircuitView gradient_tangent,
                         Velocity tangent) const {
    const Scalar norm = theta.tail(shape_.size()).norm();
    const Flat u = theta.tail(shape_.size()) / norm, turn = turning(u, d, norm);
    const Theta g(gradient.data(), gradient.size()), dg(gradient_tangent.data(), gradient_tangent.size());
    const Scalar along = g.dot(u), along_rate = dg.dot(u) + g.dot(turn);
    const Scalar lever = theta[0] / norm, lever_rate = (d[0] - lever * u.dot(d.tail(shape_.size()))) / norm;
    tangent[0] = rate_ * along_rate;
    tangent.tail(shape_.size()) = rate_ * (lever_rate * (g - along * u) + lever * (dg - along_rate * u - along * turn));
  }
  // [/derivatives]

 private:
  Flat turning(const Flat& u, Theta d, Scalar norm) const {
    const auto dv = d.tail(shape_.size());
    return (dv - u.dot(dv) * u) / norm;
  }
  CircuitView as_circuit(const Flat& entries, CircuitBuffer& buffer) const {
    buffer.resize(shape_.rows, shape_.cols);
    Velocity(buffer.data(), buffer.size()) = entries;
    return {buffer.data(), shape_.rows, shape_.cols};
  }

  qkflow::MatrixShape shape_;
  Scalar rate_;
};

// [concepts]
using NormalizedQk = NormalizedCircuit<double, qkflow::Circuit::qk>;
using CollapsedOv = qkflow::CollapsedCircuit<double, qkflow::Circuit::ov>;
static_assert(qkflow::DifferentiableParameterization<NormalizedQk>);
// [/concepts]

// [check]
/// The largest difference of the flow's velocity from central differences of its loss.
template <class Parameters>
double gradient_error(qkflow::MatrixFlow<Parameters>& flow, Eigen::VectorXd theta) {
  Eigen::VectorXd velocity;
  flow(theta, velocity, 0);
  const Eigen::VectorXd rates = flow.parameters().rates();
  double worst = 0;
  for (Eigen::Index i = 0; i < theta.size(); ++i) {
    const double h = 1e-5, at = theta[i];
    theta[i] = at + h;
    const double up = flow.loss(theta);
    theta[i] = at - h;
    const double down = flow.loss(theta);
    theta[i] = at;
    worst = std::max(worst, std::abs(velocity[i] + rates[i] * (up - down) / (2 * h)));
  }
  return worst;
}
// [/check]
/// The largest difference of the field's derivative from central differences of its velocity, along a direction.
template <class Parameters>
double derivative_error(qkflow::MatrixFlow<Parameters>& flow, const Eigen::VectorXd& theta) {
  const double h = 1e-5;
  const Eigen::VectorXd d = Eigen::VectorXd::LinSpaced(theta.size(), -1, 1);
  Eigen::VectorXd derivative, up, down;
  flow.field().derivative(theta, d, derivative);
  flow(theta + h * d, up, 0);
  flow(theta - h * d, down, 0);
  return (derivative - (up - down) / (2 * h)).cwiseAbs().maxCoeff();
}

int main() {
  // [use]
  const auto data =
      qkflow::block_dataset(qkflow::BlockTask<double>{.classes = 3, .block = 4, .informative = 2, .noise = 8});
  const auto shape = data.shape();
  const qkflow::HeadParameters parameters(NormalizedQk(qkflow::circuit_shape(shape, qkflow::Circuit::qk), 1.0),
                                          CollapsedOv(qkflow::circuit_shape(shape, qkflow::Circuit::ov), 1.0));
  qkflow::MatrixFlow flow(parameters, data);
  const Eigen::VectorXd start = qkflow::gaussian_start(parameters, 1, 0.3);
  const auto run = qkflow::solve(flow, start, {.rtol = 1e-10, .atol = 1e-12}, {qkflow::stop_at_loss(flow, 0.01)});

  // The same circuits at the start, without normalization.
  const auto plain = qkflow::caco_parameters<double>(shape);
  qkflow::MatrixFlow plain_flow(plain, data);
  Eigen::VectorXd plain_start(plain.size());
  const auto circuits = flow.circuits(start);
  plain_start << Eigen::Map<const Eigen::VectorXd>(circuits.qk.data(), circuits.qk.size()),
      Eigen::Map<const Eigen::VectorXd>(circuits.ov.data(), circuits.ov.size());
  const auto plain_run =
      qkflow::solve(plain_flow, plain_start, {.rtol = 1e-10, .atol = 1e-12}, {qkflow::stop_at_loss(plain_flow, 0.01)});
  // [/use]
  if (!run.success() || !plain_run.success()) {
    std::fprintf(stderr, "%s\n%s\n", run.message.c_str(), plain_run.message.c_str());
    return 1;
  }
  const double before = parameters.conserved(start)[0].value(0, 0), after = parameters.conserved(run.x)[0].value(0, 0);
  const bool is_right = gradient_error(flow, start) < 1e-9 && derivative_error(flow, start) < 1e-7,
             is_conserved = std::abs(after / before - 1) < 1e-8;
  std::printf("gradient and derivative against central differences: %s\n", is_right ? "right" : "WRONG");
  std::printf("|V|^2 along the run: %.6f, %s\n", after, is_conserved ? "conserved to 1e-8" : "NOT conserved");
  std::printf("at loss 0.01       time   attention   sharpness\n");
  std::printf("collapsed    %10.3f  %10.4f  %10.6f\n", plain_run.t, plain_flow.attention(plain_run.x),
              qkflow::sharpness(plain_flow.field(), plain_run.x).largest);
  std::printf("normalized   %10.3f  %10.4f  %10.6f\n", run.t, flow.attention(run.x),
              qkflow::sharpness(flow.field(), run.x).largest);
  return is_right && is_conserved ? 0 : 1;
}
