// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/rate_factor.hpp"

#include <Eigen/Core>
#include <Eigen/SVD>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

using Factors = std::vector<double>;

double product(const Factors& w) {
  double value = 1;
  for (const double factor : w) value *= factor;
  return value;
}

/// What a gradient g of the product does to each factor: dw_i/dt = g prod_{j != i} w_j. Knows nothing of rates.
Factors pull_back(const Factors& w, double g) {
  Factors velocity(w.size(), g);
  for (std::size_t i = 0; i < w.size(); ++i) {
    for (std::size_t j = 0; j < w.size(); ++j) {
      if (j != i) velocity[i] *= w[j];
    }
  }
  return velocity;
}

/// The gradient as some function of time, of both signs.
double force(double t) { return std::cos(3 * t) + 0.3; }

/// One classical Runge-Kutta step of dx/dt = f(t, x).
template <class Field>
Factors runge_kutta_step(const Field& f, double t, const Factors& x, double h) {
  const auto moved = [&](const Factors& k, double by) {
    Factors y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += by * k[i];
    return y;
  };
  const Factors k1 = f(t, x), k2 = f(t + h / 2, moved(k1, h / 2)), k3 = f(t + h / 2, moved(k2, h / 2)),
                k4 = f(t + h, moved(k3, h));
  Factors y = x;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += h / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
  return y;
}

/// Integrates the factors, and beside them sigma mu by the rate factor; checks that the product is sigma mu throughout.
template <class Rate>
void check_against_factors(const Rate& rate, Factors w, double sigma) {
  const double h = 1.0 / 2048;
  const auto factors = [](double t, const Factors& x) { return pull_back(x, force(t)); };
  // The collapsed circuit's singular value sigma mu moves at the gradient itself.
  const auto reduced = [&](double t, const Factors& x) { return Factors{rate.rate(x[0] / sigma, sigma) * force(t)}; };
  Factors value{product(w)};
  for (int step = 0; step < 4096; ++step) {
    w = runge_kutta_step(factors, step * h, w, h);
    value = runge_kutta_step(reduced, step * h, value, h);
    REQUIRE_THAT(value[0], WithinRel(product(w), 1e-9));
  }
}

}  // namespace

TEST_CASE("Each rate factor is what gradient flow on that many scalar factors does to their product", "[rate_factor]") {
  for (const double sigma : {1.0, 0.3, 50.0}) {
    INFO("sigma " << sigma);
    check_against_factors(Collapsed{}, {0.7}, sigma);
    check_against_factors(Balanced{}, {0.7, 0.7}, sigma);
    check_against_factors(Balanced{}, {0.7, -0.7}, sigma);
    for (const int n : {1, 2, 3, 4, 5}) {
      check_against_factors(FactorProduct{n}, Factors(n, 0.8), sigma);
      Factors negative(n, 0.8);
      negative[0] = -0.8;
      check_against_factors(FactorProduct{n}, negative, sigma);
    }
    for (const auto& [w1, w2] : {std::pair{1.1, 0.4}, {0.4, 1.1}, {1.5, -0.2}, {0.9, 0.0}, {0.0, -0.9}}) {
      check_against_factors(Unbalanced<double>{w1 * w1 - w2 * w2}, {w1, w2}, sigma);
    }
  }
}

TEST_CASE("Balanced is what the pull-back of a matrix gradient does to aligned factors", "[rate_factor]") {
  // D_QK of three classes with two tokens each; W_Q' W_K = mu D with balanced factors on its singular vectors.
  Eigen::MatrixXd d = Eigen::MatrixXd::Zero(6, 6);
  for (int y = 0; y < 3; ++y) d.block(2 * y, 2 * y, 2, 2).setOnes();
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(d, Eigen::ComputeThinU | Eigen::ComputeThinV);
  const double mu = 0.37, sigma = 2;
  const Eigen::MatrixXd root = (mu * svd.singularValues()).cwiseSqrt().asDiagonal();
  const Eigen::MatrixXd w_q = root * svd.matrixU().transpose(), w_k = root * svd.matrixV().transpose();
  REQUIRE((w_q.transpose() * w_k - mu * d).norm() < 1e-14);
  const Eigen::MatrixXd g = -1.7 * d;  // a gradient along the line
  const Eigen::MatrixXd dw_q = w_k * g.transpose(), dw_k = w_q * g;
  const Eigen::MatrixXd circuit_velocity = dw_q.transpose() * w_k + w_q.transpose() * dw_k;
  CHECK((circuit_velocity - Balanced{}.rate(mu, sigma) * g).norm() < 1e-13);

  // The same with a constant of imbalance: W_Q W_Q' - W_K W_K' = lambda on the support.
  const double lambda = 0.9;
  const double square = (lambda + std::sqrt(lambda * lambda + 4 * sigma * sigma * mu * mu)) / 2;
  const double large = std::sqrt(square), small = sigma * mu / large;
  const Eigen::MatrixXd u = svd.matrixU().leftCols(3).transpose(), v = svd.matrixV().leftCols(3).transpose();
  const Eigen::MatrixXd unbalanced_velocity =
      g * (small * v).transpose() * (small * v) + (large * u).transpose() * (large * u) * g;
  CHECK((unbalanced_velocity - Unbalanced<double>{lambda}.rate(mu, sigma) * g).norm() < 1e-13);
}

TEMPLATE_TEST_CASE("Rate factors are the published formulas", "[rate_factor]", float, double, long double, Precise) {
  using std::abs;
  const TestType allowed = tolerance<TestType>(Tol::rounding);
  for (const double m : {-7.5, -1.0, -1e-3, 0.0, 1e-9, 0.25, 3.0, 1e4}) {
    for (const double s : {1.0, 0.5, 50.0}) {
      const TestType mu(static_cast<TestType>(m)), sigma(static_cast<TestType>(s));
      const Precise x = abs(Precise(sigma) * Precise(mu));
      INFO("mu = " << mu << ", sigma = " << sigma);
      const auto near = [&](const TestType& value, const Precise& exact) {
        CHECK(abs(Precise(value) - exact) <= Precise(allowed) * exact);
      };
      CHECK(Collapsed{}.rate(mu, sigma) == 1);
      near(Balanced{}.rate(mu, sigma), 2 * x);
      for (const double l : {0.01, -0.5, 3.0, 1e5}) {
        const TestType lambda(static_cast<TestType>(l));
        near(Unbalanced<TestType>{lambda}.rate(mu, sigma), sqrt(Precise(lambda) * Precise(lambda) + 4 * x * x));
      }
      for (const int n : {3, 4, 5, 10, 100}) {
        const Precise exact = x == 0 ? Precise(0) : Precise(n * exp((2 - Precise(2) / n) * log(x)));
        CHECK(abs(Precise(FactorProduct{n}.rate(mu, sigma)) - exact) <=
              Precise(tolerance<TestType>(Tol::elementary)) * exact);
      }
    }
  }
}

TEMPLATE_TEST_CASE("One factor is collapsed, two are balanced", "[rate_factor]", float, double, long double, Precise) {
  using std::abs;
  for (const double m : {-2.5, 0.0, 1e-6, 1.0, 40.0}) {
    const TestType mu(static_cast<TestType>(m)), sigma(7);
    CHECK(FactorProduct{1}.rate(mu, sigma) == Collapsed{}.rate(mu, sigma));
    const TestType two = FactorProduct{2}.rate(mu, sigma), balanced = Balanced{}.rate(mu, sigma);
    CHECK(abs(two - balanced) <= tolerance<TestType>(Tol::rounding) * balanced);
  }
  CHECK(FactorProduct{2}.exponent<TestType>() == 1);
  CHECK(FactorProduct{1}.exponent<TestType>() == 0);
  CHECK(FactorProduct{4}.exponent<TestType>() == TestType(1.5));
}

TEST_CASE("Little imbalance is rich, much of it is lazy", "[rate_factor]") {
  const double sigma = 5;
  for (const double mu : {-3.0, -0.1, 0.1, 3.0}) {
    const double balanced = Balanced{}.rate(mu, sigma);
    double last = std::numeric_limits<double>::infinity();
    for (const double lambda : {1.0, 0.1, 1e-3, 1e-6}) {  // quadratically close
      const double rate = Unbalanced<double>{lambda}.rate(mu, sigma);
      CHECK(rate >= balanced);
      CHECK(rate <= last);
      CHECK(rate - balanced <= lambda * lambda / (2 * balanced) * (1 + 1e-9) + 1e-15 * balanced);
      last = rate;
    }
    for (const double lambda : {1e4, -1e4, 1e9}) {  // a constant rate: collapsed at |lambda| times its speed
      CHECK_THAT(Unbalanced<double>{lambda}.rate(mu, sigma), WithinRel(std::abs(lambda), 1e-4));
    }
    CHECK(Unbalanced<double>{-0.7}.rate(mu, sigma) == Unbalanced<double>{0.7}.rate(mu, sigma));
    CHECK(Unbalanced<double>{0.7}.rate(mu, sigma) == Unbalanced<double>{0.7}.rate(-mu, sigma));
  }
}

TEST_CASE("A saddle at zero is where the rate is zero", "[rate_factor]") {
  CHECK_FALSE(Collapsed::saddle_at_zero());
  CHECK(Balanced::saddle_at_zero());
  CHECK(Balanced{}.rate(0.0, 5.0) == 0);
  CHECK_FALSE(Unbalanced<double>::saddle_at_zero());
  CHECK(Unbalanced<double>{-0.25}.rate(0.0, 5.0) == 0.25);
  CHECK_FALSE(FactorProduct{1}.saddle_at_zero());
  for (const int n : {2, 3, 10}) {
    CHECK(FactorProduct{n}.saddle_at_zero());
    CHECK(FactorProduct{n}.rate(0.0, 5.0) == 0);
  }
}

TEMPLATE_TEST_CASE("A slope is the derivative of its rate", "[rate_factor]", double, long double, Precise) {
  using std::abs;
  const auto check = [](const auto& rate, const auto& precise) {
    static_assert(DifferentiableRate<std::decay_t<decltype(rate)>, TestType>);
    const Precise h("1e-17"), sigma("0.7");
    for (const double m : {-7.5, -0.3, -1e-3, 1e-3, 0.25, 3.0, 400.0}) {
      const Precise numeric = (precise.rate(Precise(m + h), sigma) - precise.rate(Precise(m - h), sigma)) / (2 * h);
      const TestType slope = rate.slope(TestType(m), TestType(sigma));
      INFO("mu " << m);
      CHECK(abs(Precise(slope) - numeric) <= abs(numeric) * 1e-14 + 1e-14);
    }
  };
  check(Collapsed{}, Collapsed{});
  check(Balanced{}, Balanced{});
  check(Unbalanced<TestType>{TestType(-0.5)}, Unbalanced<Precise>{Precise(-0.5)});
  for (const int n : {1, 2, 3, 5}) check(FactorProduct{n}, FactorProduct{n});
}

TEST_CASE("At a kink the slope is 0, and NaN passes through", "[rate_factor]") {
  CHECK(Balanced{}.slope(0.0, 5.0) == 0);
  CHECK(FactorProduct{2}.slope(0.0, 5.0) == 0);
  CHECK(FactorProduct{3}.slope(0.0, 5.0) == 0);
  CHECK(Unbalanced<double>{1}.slope(0.0, 5.0) == 0);
  CHECK(std::isnan(Balanced{}.slope(std::nan(""), 5.0)));
  struct Plain {
    double rate(double, double) const { return 1; }
  };
  static_assert(!DifferentiableRate<Plain, double>);
}

TEST_CASE("Rate factors refuse parameters that mean nothing", "[rate_factor]") {
  CHECK_NOTHROW(Collapsed{}.validate("f"));
  CHECK_NOTHROW(Balanced{}.validate("f"));
  for (const double lambda : {1e-3, -2.0, 1e6}) CHECK_NOTHROW(Unbalanced<double>{lambda}.validate("f"));
  for (const double lambda : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_WITH(Unbalanced<double>{lambda}.validate("f"), Contains("f: lambda = " + to_text(lambda)));
  }
  CHECK_THROWS_WITH(Unbalanced<double>{0.0}.validate("f"), Contains("lambda = 0,") && Contains("Balanced"));
  // Where lambda^2 leaves the range of the type, rate(0) would be 0 after all.
  CHECK_THROWS_WITH(Unbalanced<double>{1e-200}.validate("f"), Contains("lambda = 1e-200"));
  CHECK_THROWS_WITH(Unbalanced<double>{-1e200}.validate("f"), Contains("lambda = -1e+200"));
  CHECK_NOTHROW(Unbalanced<Precise>{Precise(1e-200)}.validate("f"));
  CHECK_NOTHROW(FactorProduct{1}.validate("f"));
  CHECK_NOTHROW(FactorProduct{64}.validate("f"));
  CHECK_THROWS_WITH(FactorProduct{0}.validate("f"), Contains("f: factors = 0,"));
  CHECK_THROWS_WITH(FactorProduct{-3}.validate("f"), Contains("factors = -3"));
}
