// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// Every method keeps its order on the state of the matrix flow: dynamic size, factors, softmax.
#include <cmath>
#include <string>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/initialization.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"

using namespace qkflow;
using namespace qkflow_test;

namespace {

using Real = long double;  // room for an eighth-order method to show its slope
using State = ColumnVector<Real>;
using Flow = MatrixFlow<FafoParameters<Real>>;

Flow make_flow() {
  const auto dataset = random_dataset({.shape = {3, 5, 3}, .sequences = 12}).cast<Real>();
  return {fafo_parameters<Real>(dataset.shape(), 3, {.qk = 2, .ov = 3}), dataset};
}

/// Steps of one size: for adaptive methods through their stepper, with tolerances that never bind.
template <class Method>
State fixed_steps(Flow& flow, const State& start, Real end, int steps) {
  using Wrapped = detail::OdeState<State>;
  typename Method::template Stepper<State> stepper(Real(1e30), Real(1e30), Real(1000));
  std::size_t evaluations = 0;
  const detail::FieldRef<State> reference(flow, evaluations);
  Wrapped x{start}, f, x_new, f_new;
  const Real h = end / Real(steps);
  for (int k = 0; k < steps; ++k) {
    const Real t = Real(k) * h;
    reference(x, f, t);
    Real next = h;
    if (!stepper.try_step(reference, x, f, t, next, x_new, f_new)) FAIL("a step was refused");
    x.v.swap(x_new.v);
  }
  return x.v;
}

template <class Method>
double measured_order(Flow& flow, const State& start, Real end, const State& exact, int coarse) {
  const auto error = [&](int steps) {
    return (fixed_steps<Method>(flow, start, end, steps) - exact).cwiseAbs().maxCoeff();
  };
  const Real e1 = error(coarse), e2 = error(2 * coarse);
  INFO(std::string(Method::name) << ": errors " << double(e1) << " " << double(e2));
  CHECK(e2 < e1);
  return static_cast<double>(std::log2(e1 / e2));
}

}  // namespace

TEST_CASE("the order of every stepper on the matrix flow is the slope of its error over its step") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 4, 0.8);
  const Real end = 4;
  const State exact = fixed_steps<Fehlberg78>(flow, start, end, 400);
  const auto check = [&](auto method, int coarse) {
    using Method = decltype(method);
    CHECK_THAT(measured_order<Method>(flow, start, end, exact, coarse), WithinAbs(Method::order, 0.2));
  };
  check(RungeKutta4{}, 100);
  check(CashKarp54{}, 80);
  check(DormandPrince5{}, 150);
  check(Fehlberg78{}, 24);
  check(BulirschStoer{}, 60);  // without anything to ask for more it extrapolates two columns
}

TEST_CASE("controlled steppers are as exact as they are told, and the interpolant as exact as its order") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 4, 0.8);
  const State exact = fixed_steps<Fehlberg78>(flow, start, Real(4), 400);
  const auto error = [&](auto method, Real rtol) {
    const auto run = solve(flow, start, {.t_end = 4, .rtol = rtol, .atol = rtol / 100}, {}, method);
    REQUIRE(run.status == Status::reached_end);
    return double((run.x - exact).cwiseAbs().maxCoeff());
  };
  const auto check = [&](auto method) {
    INFO(std::string(decltype(method)::name));
    const double loose = error(method, 1e-6L), tight = error(method, 1e-10L);
    CHECK(loose < 1e-5);
    CHECK(tight < 1e-9);
    CHECK(tight < loose / 100);
  };
  check(CashKarp54{});
  check(DormandPrince5{});
  check(DormandPrince5Dense{});
  check(Fehlberg78{});
  check(BulirschStoer{});

  const State middle = fixed_steps<Fehlberg78>(flow, start, Real(1.7L), 170);
  const auto inside = [&](Real step) {
    const SolveOptions<State> options{
        .t_end = 4, .rtol = 1e-2L, .atol = 1e-2L, .first_step = step, .max_step = step, .save_times = {1.7L}};
    const auto run = solve(flow, start, options, {}, DormandPrince5Dense{});
    REQUIRE(run.states.size() == 2);
    return (run.states[0] - middle).cwiseAbs().maxCoeff();
  };
  // A quarter of the step: fourth order promises 1/256, and a little is lost to where in the step the time falls.
  const Real coarse = inside(0.4L), fine = inside(0.1L);
  CHECK(fine < coarse / 100);
}
