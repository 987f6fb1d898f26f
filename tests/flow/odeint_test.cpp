// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/odeint.hpp"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;

namespace {

template <class Scalar>
using Dynamic = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

/// A nonlinear problem with a known solution, two circles coupled through their radii, which stay 1 and 2:
///   x' = -w y, y' = w x with w = |(x, y)|^2: the angle turns at rate 1 and 4. Plus an explicitly time-dependent
///   component.
template <class Vector>
void rings(const Vector& x, Vector& dxdt, const typename Vector::Scalar& t) {
  using std::cos;
  const auto w = x[0] * x[0] + x[1] * x[1];
  dxdt[0] = -w * x[1];
  dxdt[1] = w * x[0];
  dxdt[2] = x[2] * cos(t);
}
template <class Vector>
Vector rings_start() {
  using Scalar = typename Vector::Scalar;
  Vector x(3);
  x << Scalar(1), Scalar(0), Scalar(1);
  return x;
}
template <class Vector>
typename Vector::Scalar rings_error(const Vector& x, const typename Vector::Scalar& t) {
  using Scalar = typename Vector::Scalar;
  using std::abs;
  using std::cos;
  using std::exp;
  using std::sin;
  const Scalar errors[] = {Scalar(abs(x[0] - cos(t))), Scalar(abs(x[1] - sin(t))), Scalar(abs(x[2] - exp(sin(t))))};
  return std::max(errors[0], std::max(errors[1], errors[2]));
}

/// Steps of fixed size through the very stepper `solve` uses: tolerances so loose that the control never binds.
template <class Method, class Vector>
typename Vector::Scalar fixed_step_error(int steps, int* refused = nullptr) {
  using Scalar = typename Vector::Scalar;
  using State = detail::OdeState<Vector>;
  const Scalar loose(1e30);
  typename Method::template Stepper<Vector> stepper(loose, loose, Scalar(1000));
  std::size_t evaluations = 0;
  auto field = rings<Vector>;
  const detail::FieldRef<Vector> reference(field, evaluations);
  State x{rings_start<Vector>()}, f, x_new, f_new;
  const Scalar end(2), h = end / Scalar(steps);
  for (int k = 0; k < steps; ++k) {
    const Scalar t = Scalar(k) * h;
    reference(x, f, t);
    Scalar next = h;
    const bool accepted = stepper.try_step(reference, x, f, t, next, x_new, f_new);
    if (!accepted && refused) ++*refused;
    x.v.swap(x_new.v);
  }
  return rings_error(x.v, end);
}

template <class Method>
double measured_order(int coarse) {
  using std::log;
  int refused = 0;
  const Precise e1 = fixed_step_error<Method, Dynamic<Precise>>(coarse, &refused);
  const Precise e2 = fixed_step_error<Method, Dynamic<Precise>>(2 * coarse, &refused);
  const Precise e4 = fixed_step_error<Method, Dynamic<Precise>>(4 * coarse, &refused);
  REQUIRE(refused == 0);
  // In the asymptotic regime the slope has settled.
  const double s1 = double(Precise(log(e1 / e2) / log(Precise(2))));
  const double s2 = double(Precise(log(e2 / e4) / log(Precise(2))));
  INFO("slopes " << s1 << " " << s2);
  REQUIRE(std::abs(s2 - s1) < 0.2);
  return s2;
}

}  // namespace

TEST_CASE("the order of every stepper is the slope of its error over its step") {
  CHECK_THAT(measured_order<RungeKutta4>(40), WithinAbs(RungeKutta4::order, 0.2));
  CHECK_THAT(measured_order<CashKarp54>(40), WithinAbs(CashKarp54::order, 0.2));
  CHECK_THAT(measured_order<DormandPrince5>(400), WithinAbs(DormandPrince5::order, 0.2));
  CHECK_THAT(measured_order<Fehlberg78>(40), WithinAbs(Fehlberg78::order, 0.2));
  // Without anything to ask for more, Bulirsch-Stoer extrapolates two columns.
  CHECK_THAT(measured_order<BulirschStoer>(40), WithinAbs(BulirschStoer::order, 0.2));
}

TEST_CASE("the order holds in double on dynamic and on fixed size") {
  const auto slope = [](double coarse, double fine) { return std::log2(coarse / fine); };
  using Fixed = Eigen::Matrix<double, 3, 1>;
  CHECK_THAT(
      slope(fixed_step_error<RungeKutta4, Dynamic<double>>(100), fixed_step_error<RungeKutta4, Dynamic<double>>(200)),
      WithinAbs(4, 0.2));
  CHECK_THAT(slope(fixed_step_error<RungeKutta4, Fixed>(100), fixed_step_error<RungeKutta4, Fixed>(200)),
             WithinAbs(4, 0.2));
  CHECK_THAT(slope(fixed_step_error<CashKarp54, Fixed>(50), fixed_step_error<CashKarp54, Fixed>(100)),
             WithinAbs(5, 0.2));
  CHECK_THAT(slope(fixed_step_error<DormandPrince5, Fixed>(150), fixed_step_error<DormandPrince5, Fixed>(300)),
             WithinAbs(5, 0.2));
  CHECK_THAT(slope(fixed_step_error<BulirschStoer, Fixed>(50), fixed_step_error<BulirschStoer, Fixed>(100)),
             WithinAbs(4, 0.2));
}

TEST_CASE("the interpolant of Dormand-Prince has fourth order and meets the step ends") {
  using Vector = Dynamic<Precise>;
  using State = detail::OdeState<Vector>;
  std::size_t evaluations = 0;
  auto field = rings<Vector>;
  const detail::FieldRef<Vector> reference(field, evaluations);
  const auto error = [&](const Precise& h) {
    DormandPrince5::Stepper<Vector> stepper(Precise(1e30), Precise(1e30), Precise(1));
    State x{rings_start<Vector>()}, f, x_new, f_new, inside;
    reference(x, f, Precise(0));
    Precise next = h;
    REQUIRE(stepper.try_step(reference, x, f, Precise(0), next, x_new, f_new));
    using std::abs;
    stepper.interpolate(Precise(0), h, x, f, x_new, f_new, inside);
    CHECK((inside.v - x.v).cwiseAbs().maxCoeff() == Precise(0));
    stepper.interpolate(Precise(1), h, x, f, x_new, f_new, inside);
    CHECK((inside.v - x_new.v).cwiseAbs().maxCoeff() < Precise("1e-48"));
    const Precise middle = Precise(3) / Precise(10);
    stepper.interpolate(middle, h, x, f, x_new, f_new, inside);
    return rings_error(inside.v, Precise(middle * h));
  };
  using std::log;
  const Precise h = Precise(1) / Precise(100);
  const double slope = double(Precise(log(error(h) / error(Precise(h / 2))) / log(Precise(2))));
  CHECK_THAT(slope, WithinAbs(5, 0.2));  // local error, one above the order
}

TEST_CASE("NaN in an error estimate refuses the step (Odeint alone would accept it)") {
  using Vector = Dynamic<double>;
  const auto poisoned = [](const Vector& x, Vector& dxdt, double t) {
    rings(x, dxdt, t);
    if (t > 0) dxdt[1] = std::nan("");
  };
  std::size_t evaluations = 0;
  const detail::FieldRef<Vector> reference(poisoned, evaluations);
  const auto refused = [&](auto method) {
    using Method = decltype(method);
    typename Method::template Stepper<Vector> stepper(1e-6, 1e-6, 1.0);
    detail::OdeState<Vector> x{rings_start<Vector>()}, f, x_new, f_new;
    reference(x, f, 0.0);
    double next = 0.1;
    const bool accepted = stepper.try_step(reference, x, f, 0.0, next, x_new, f_new);
    CHECK(next < 0.1);
    CHECK(next > 0);
    return !accepted;
  };
  CHECK(refused(CashKarp54{}));
  CHECK(refused(DormandPrince5{}));
  CHECK(refused(Fehlberg78{}));
  CHECK(refused(BulirschStoer{}));
}

TEST_CASE("norm_inf finds NaN wherever it stands") {
  detail::OdeState<Dynamic<double>> x{Dynamic<double>::Constant(5, -2.0)};
  CHECK(detail::FlatAlgebra::norm_inf(x) == 2);
  for (int i = 0; i < 5; ++i) {
    auto y = x;
    y.v[i] = std::nan("");
    CHECK(detail::FlatAlgebra::norm_inf(y) == std::numeric_limits<double>::infinity());
  }
}

TEST_CASE("a stepper reused for a longer state advances all of it") {
  using Vector = Dynamic<double>;
  const auto grow = [](const Vector& x, Vector& dxdt, double) { dxdt = x; };
  std::size_t evaluations = 0;
  const detail::FieldRef<Vector> reference(grow, evaluations);
  const auto check = [&](auto method) {
    using Method = decltype(method);
    typename Method::template Stepper<Vector> stepper(1e-9, 1e-9, 1.0);
    for (const int size : {2, 7, 3}) {
      detail::OdeState<Vector> x{Vector::Ones(size)}, f, x_new, f_new, inside, scratch;
      reference(x, f, 0.0);
      double next = 1e-3;
      REQUIRE(stepper.try_step(reference, x, f, 0.0, next, x_new, f_new));
      REQUIRE(x_new.v.size() == size);
      CHECK_THAT(x_new.v.minCoeff(), WithinAbs(std::exp(1e-3), 1e-12));
      CHECK_THAT(x_new.v.maxCoeff(), WithinAbs(std::exp(1e-3), 1e-12));
      stepper.restep(reference, x, f, 0.0, 5e-4, inside, scratch);
      CHECK_THAT(inside.v.minCoeff(), WithinAbs(std::exp(5e-4), 1e-12));
      CHECK_THAT(inside.v.maxCoeff(), WithinAbs(std::exp(5e-4), 1e-12));
    }
  };
  check(RungeKutta4{});
  check(CashKarp54{});
  check(DormandPrince5{});
  check(Fehlberg78{});
  check(BulirschStoer{});
}

TEST_CASE("a field that changes the length of the velocity is refused before memory is") {
  using Vector = Dynamic<double>;
  const auto wrong = [](const Vector&, Vector& dxdt, double) { dxdt = Vector::Ones(1); };
  std::size_t evaluations = 0;
  const detail::FieldRef<Vector> reference(wrong, evaluations);
  detail::OdeState<Vector> x{rings_start<Vector>()}, f;
  CHECK_THROWS_AS(reference(x, f, 0.0), std::length_error);
}

TEST_CASE("methods are found by name") {
  std::set<std::string> names;
  for (const char* name : {"rk4", "cash-karp", "dopri5", "dopri5-dense", "fehlberg78", "bulirsch-stoer"}) {
    CHECK(with_method(name, [](auto method) { return std::string(decltype(method)::name); }) == name);
    CHECK(with_method(name, [](auto method) { return decltype(method)::order; }) >= 4);
    names.insert(name);
  }
  CHECK(names.size() == 6);
  CHECK_THROWS_AS(with_method("euler", [](auto method) { return decltype(method)::order; }), InvalidArgument);
  CHECK_THROWS_WITH(with_method("euler", [](auto method) { return decltype(method)::order; }),
                    Contains("euler") && Contains("bulirsch-stoer"));
}
