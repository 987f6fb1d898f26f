// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// How do I bring my own task, rate factor and stepper? One of each, written outside the library and used by it.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/math/random.hpp"
#include "qkflow/task/dataset.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/initial_weights.hpp"
#include "qkflow/train/trainer.hpp"

// [dataset]
/// A sequence is a coloured shape, one token for each and three fillers; the query asks for the colour (0) or the shape
/// (1), and the answer is that token. All 18 cases.
qkflow::Dataset<double> questions() {
  qkflow::DatasetBuilder<double> builder;  // a shape can be given; here it becomes what the ids need
  for (std::int32_t query = 0; query < 2; ++query) {
    for (std::int32_t colour = 0; colour < 3; ++colour) {
      for (std::int32_t shape = 3; shape < 6; ++shape) {
        builder.add({.query = query,
                     .label = query == 0 ? colour : shape,
                     .entries = {{.token = colour, .count = 1, .relevant = query == 0},
                                 {.token = shape, .count = 1, .relevant = query == 1},
                                 {.token = 6, .count = 3}}});
      }
    }
  }
  return std::move(builder).build();
}
// [/dataset]

// [source]
/// The same task as a stream of batches for training: four random sequences a step, a function of the step alone.
struct Questions {
  qkflow::Dataset<double> data = questions();
  qkflow::BatchAssembler<double> assemble{};

  void operator()(std::uint64_t step, qkflow::OneHotBatch<double>& batch) {
    qkflow::RandomStream random(7, step);
    std::array<std::size_t, 4> drawn{};
    for (auto& i : drawn) i = static_cast<std::size_t>(random.uniform() * static_cast<double>(data.size()));
    assemble(data, drawn, batch);
  }
};
// [/source]

// [rate]
/// A circuit tied to itself, W = A^T A: along a direction with singular value sigma, sigma mu = w^2 and
/// w' = 2 w (sigma-th part of G), hence (sigma mu)' = 4 sigma mu times what a collapsed circuit does.
struct Tied {
  template <class Scalar>
  Scalar rate(const Scalar& mu, const Scalar& sigma) const {
    using std::abs;
    return Scalar(4) * sigma * abs(mu);
  }
  static constexpr bool saddle_at_zero() { return true; }
  void validate(const char* /*function*/) const {}
};
// [/rate]

// [stepper]
/// Heun's method, second order, fixed step.
struct Heun {
  static constexpr const char* name = "heun";
  static constexpr int order = 2;
  static constexpr bool adaptive = false, dense = false;

  template <class Vector>
  struct Stepper {
    using Scalar = typename Vector::Scalar;
    static constexpr bool first_same_as_last = false, remembers_step = false;
    Stepper(const Scalar& /*rtol*/, const Scalar& /*atol*/, const Scalar& /*max_step*/) {}

    /// One step of h from (t, x), where the velocity is f; true: accepted. A state's vector is its member v.
    bool try_step(const auto& field, const auto& x, const auto& f, const Scalar& t, Scalar& h, auto& x_new,
                  auto& f_new) {
      restep(field, x, f, t, h, x_new, f_new);
      return true;
    }
    /// The same inside a step already accepted: for saved times and stops.
    void restep(const auto& field, const auto& x, const auto& f, const Scalar& t, const Scalar& h, auto& out,
                auto& scratch) {
      out.v = x.v + h * f.v;
      field(out, scratch, t + h);
      out.v = x.v + h / 2 * (f.v + scratch.v);
    }
  };
};
static_assert(qkflow::OdeMethod<Heun>);
// [/stepper]

int main() {
  bool is_right = true;

  // [use-task]
  const qkflow::Dataset<double> data = questions();
  qkflow::MatrixFlow flow(qkflow::caco_parameters<double>(data.shape()), data);
  const Eigen::VectorXd zero = Eigen::VectorXd::Zero(flow.size());
  const auto run = qkflow::solve(flow, zero, {}, {qkflow::stop_at_loss(flow, 0.01)});
  std::printf("flow:     loss %.4f at time %.2f, attention on the answer %.4f\n", flow.loss(run.x), run.t,
              flow.attention(run.x));

  const auto shape = data.shape();
  const qkflow::OneHotLayout<double> layout({shape.queries, shape.tokens, shape.classes});
  qkflow::TrainingOptions<double> options{.steps = 3000};
  options.rates.qk.value = options.rates.ov.value = 0.2;
  qkflow::Trainer<double, Questions> trainer(layout, options, {}, std::vector<double>(layout.size()));
  const auto trained = trainer.run();
  std::printf("training: %s, loss of the last 100 steps %.4f\n", qkflow::to_text(trained.status),
              trained.records.back().loss);
  // [/use-task]
  is_right = is_right && run.success() && trained.records.back().loss < 0.1;

  // [use-rate]
  // Tied factors are balanced ones learning twice as fast.
  const Eigen::Vector2d start(0.01, 0.01);
  const qkflow::ReducedFlow<double, Tied, Tied> tied{.rates = {.ov = 1, .qk = 10}};
  const qkflow::Fafo<double> balanced{.rates = {.ov = 2, .qk = 20}};
  const auto a = qkflow::solve(tied, start, {.t_end = 2e4, .rtol = 1e-12, .atol = 1e-14});
  const auto b = qkflow::solve(balanced, start, {.t_end = 2e4, .rtol = 1e-12, .atol = 1e-14});
  std::printf("tied:     loss %.5f, balanced at twice the rates %.5f\n", tied.loss(a.x[0], a.x[1]),
              balanced.loss(b.x[0], b.x[1]));
  // [/use-rate]
  is_right = is_right && (a.x - b.x).norm() < 1e-9 * b.x.norm();

  // [use-stepper]
  // Half the step, a quarter of the error.
  double error[2];
  for (int i = 0; i < 2; ++i) {
    const auto heun = qkflow::solve(tied, start, {.t_end = 2e4, .first_step = i == 0 ? 2.0 : 1.0}, {}, Heun{});
    error[i] = (heun.x - a.x).norm();
  }
  std::printf("Heun:     error falls by %.1f when the step is halved\n", error[0] / error[1]);
  // [/use-stepper]
  is_right = is_right && std::abs(error[0] / error[1] - 4) < 0.3;
  if (!is_right) std::fprintf(stderr, "something is wrong\n");
  return is_right ? 0 : 1;
}
