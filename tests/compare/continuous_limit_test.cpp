// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Optimizers against their own continuous limits, by measured order.
#include "qkflow/compare/continuous_limit.hpp"

#include <Eigen/Core>
#include <cmath>
#include <vector>

#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/order_study.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"

using namespace qkflow;

namespace {

using State = Eigen::VectorXd;
const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};
const CircuitRates<double> rates{.qk = 2.5, .ov = 0.7};

std::vector<double> list(const State& x) { return {x.data(), x.data() + x.size()}; }
std::size_t steps(double end, double h) { return static_cast<std::size_t>(std::lround(end / h)); }

}  // namespace

TEST_CASE("heavy ball follows its first-order limit to order 1, the second-order ones to order 2",
          "[continuous_limit]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4, rates);
  MatrixFlow flow(parameters, block_dataset(task));
  const State start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  const HeavyBall rule{.beta = 0.8};
  const double end = 8;
  const SolveOptions<State> options{.t_end = end, .rtol = 1e-11, .atol = 1e-14};
  const auto ball = [&](double h) { return descend(flow, start, {.step = h, .steps = steps(end, h)}, rule).x; };

  HeavyBallFlow first(flow, rule, 0.0);
  CHECK(first.start(start) == start);
  const State limit = solve(first, start, options, {}, Fehlberg78{}).x;
  const OrderStudy one = order_study([&](double h) { return (ball(h) - limit).norm(); }, end / 512, 6);
  CHECK(one.used == 7);
  CHECK_THAT(one.slope, WithinAbs(1.0, 0.05));

  const OrderStudy two = order_study(
      [&](double h) {
        HeavyBallFlow second(flow, rule, h);
        return (ball(h) - solve(second, second.start(start), options, {}, Fehlberg78{}).x).norm();
      },
      end / 512, 6);
  CHECK(two.used == 7);
  CHECK_THAT(two.slope, WithinAbs(2.0, 0.1));

  const OrderStudy inertia = order_study(
      [&](double h) {
        HeavyBallInertia second(flow, rule, h);
        const auto run = solve(second, second.start(start), options, {}, Fehlberg78{});
        return (ball(h) - HeavyBallInertia<decltype(flow)>::position(run.x)).norm();
      },
      end / 128, 4);
  CHECK_THAT(inertia.slope, WithinAbs(2.0, 0.1));
  // The start matters: from x0 itself the second-order flow is first order.
  HeavyBallFlow second(flow, rule, end / 4096);
  const double unshifted = (ball(end / 4096) - solve(second, start, options, {}, Fehlberg78{}).x).norm();
  CHECK(unshifted > 10 * two.rows[3].error);
}

TEST_CASE("without momentum heavy ball's second order is the modified flow", "[continuous_limit]") {
  const Caco<double> flow{task, {.ov = 0.7, .qk = 2.5}};
  const Eigen::Vector2d x(0.4, 0.3);
  Eigen::Vector2d a, b;
  HeavyBallFlow ball(flow, HeavyBall{.beta = 0}, 0.7);
  ModifiedFlow modified(flow, 0.7);
  ball(x, a, 0.0);
  modified(x, b, 0.0);
  CHECK((a - b).norm() < 1e-16);
  CHECK(ball.start(x) == x);
}

TEST_CASE("heavy ball on a line: the limits by hand", "[continuous_limit]") {
  // F = -a x. Heavy ball's two factors are the roots of z^2 - (1 + beta - h a) z + beta; the slow one is exp(-h rate).
  struct Line {
    using State = Eigen::Matrix<double, 1, 1>;
    void operator()(const State& x, State& dxdt, double) const { dxdt = -3 * x; }
    void derivative(const State&, const State& v, State& result) const { result = -3 * v; }
  };
  const Line line;
  const double beta = 0.6, h = 1e-3;
  const double b = 1 + beta - 3 * h, slow = (b + std::sqrt(b * b - 4 * beta)) / 2, rate = -std::log(slow) / h;
  Line::State velocity;
  HeavyBallFlow flow(line, HeavyBall{.beta = beta}, h);
  flow(Line::State::Ones(), velocity, 0.0);
  CHECK_THAT(-velocity[0], WithinRel(rate, 1e-3));
  HeavyBallFlow first(line, HeavyBall{.beta = beta}, 0.0);
  first(Line::State::Ones(), velocity, 0.0);
  CHECK_THAT(-velocity[0], WithinRel(3 / (1 - beta), 1e-15));
  CHECK(std::abs(-velocity[0] - rate) > 1e-2);
  HeavyBallInertia inertia(line, HeavyBall{.beta = beta}, h);
  const State start = inertia.start(Line::State::Ones());
  CHECK_THAT(start[1], WithinRel(-3 / (1 + beta), 1e-15));
}

TEST_CASE("sign descent and Adam follow the sign flow to order 1", "[continuous_limit]") {
  const auto parameters = fafo_parameters<double>(BlockLayout::of(task).shape(), 4, rates);
  MatrixFlow flow(parameters, block_dataset(task));
  const State start = balanced_random_start(parameters, 3, 0.3);
  const double end = 0.5, epsilon = 1e-2;
  const std::vector<double> rate = list(parameters.rates());
  SignFlow limit(flow, epsilon, rate);
  const auto exact = solve(limit, start, {.t_end = end, .rtol = 1e-9, .atol = 1e-12});
  REQUIRE(exact.success());
  const OrderStudy sign = order_study(
      [&](double h) {
        return (descend(flow, start, {.step = h, .steps = steps(end, h)}, SignDescent{epsilon, rate}).x - exact.x)
            .norm();
      },
      end / 64, 6);
  CHECK(sign.used == 7);
  CHECK_THAT(sign.slope, WithinAbs(1.0, 0.05));
  // Adam's memory is 1/(1 - beta2) steps: it must be short against the whole way first.
  const AdamRule rule{.beta1 = 0.8, .beta2 = 0.9, .epsilon = epsilon, .rates = rate};
  const OrderStudy adam = order_study(
      [&](double h) { return (descend(flow, start, {.step = h, .steps = steps(end, h)}, rule).x - exact.x).norm(); },
      end / 1024, 4);
  CHECK_THAT(adam.slope, WithinAbs(1.0, 0.1));
}

TEST_CASE("the sign flow by hand, with rates and a frozen entry", "[continuous_limit]") {
  struct Constant {
    using State = Eigen::Vector3d;
    void operator()(const State&, State& dxdt, double) const { dxdt << 4, -0.5, 0; }
  };
  const Constant field;
  Eigen::Vector3d velocity;
  SignFlow exact(field, 0.0, {2, 0.25, 0});
  exact(Eigen::Vector3d::Zero(), velocity, 0.0);
  CHECK(velocity == Eigen::Vector3d(2, -0.25, 0));
  SignFlow soft(field, 2.0, {2, 0.25, 0});
  soft(Eigen::Vector3d::Zero(), velocity, 0.0);
  CHECK(velocity == Eigen::Vector3d(1, -0.125, 0));
  SignFlow plain(field, 0.0);
  plain(Eigen::Vector3d::Zero(), velocity, 0.0);
  CHECK(velocity == Eigen::Vector3d(1, -1, 0));
}

TEST_CASE("limits refuse what they cannot work with", "[continuous_limit]") {
  const Caco<double> flow;
  CHECK_THROWS_WITH(HeavyBallFlow(flow, HeavyBall{.beta = 1}, 0.1), Contains("HeavyBallFlow: beta = 1"));
  CHECK_THROWS_WITH(HeavyBallFlow(flow, HeavyBall{}, -0.1), Contains("step = -0.1"));
  CHECK_THROWS_WITH(HeavyBallInertia(flow, HeavyBall{}, 0.0), Contains("HeavyBallInertia: step = 0"));
  CHECK_THROWS_WITH(SignFlow(flow, -1.0), Contains("SignFlow: epsilon = -1"));
  struct Plain {
    using State = Eigen::Vector2d;
    void operator()(const State& x, State& dxdt, double) const { dxdt = -x; }
  };
  const Plain plain;
  CHECK_NOTHROW(HeavyBallFlow(plain, HeavyBall{}, 0.0));
  CHECK_THROWS_WITH(HeavyBallFlow(plain, HeavyBall{}, 0.1), Contains("the field has no derivative"));
  SignFlow wrong(plain, 0.0, {1, 2, 3});
  Eigen::Vector2d velocity;
  CHECK_THROWS_WITH(wrong(Eigen::Vector2d(1, 1), velocity, 0.0), Contains("number of rates = 3"));
}
