// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/objectives.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "qkflow/flow/solve.hpp"
#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

using Column = Eigen::VectorXd;
using Square = Eigen::MatrixXd;

enum class Kind { soft, hard, latent };

/// The head in full, written from the model and from nothing else: sequences of `positions` tokens, of which one is the
/// one-hot token of the class and the others are zero vectors; scores u . x, values W x. The state is (W, u), flat.
struct FullModel {
  Kind kind;
  int classes, positions;
  double eta_ov, eta_qk;

  Eigen::Index size() const { return classes * classes + classes; }

  static Column softmax_of(const Column& z) {
    const Column e = (z.array() - z.maxCoeff()).exp();
    return e / e.sum();
  }
  /// Tokens of a sequence of class y, one a column.
  Square sequence(int y) const {
    Square x = Square::Zero(classes, positions);
    x(y, positions / 2) = 1;
    return x;
  }

  double loss(const Column& state) const {
    const Square w = Eigen::Map<const Square>(state.data(), classes, classes);
    const Column u = state.tail(classes);
    double sum = 0;
    for (int y = 0; y < classes; ++y) {
      const Square x = sequence(y);
      const Column a = softmax_of(x.transpose() * u);
      if (kind == Kind::soft) {
        sum -= std::log(softmax_of(w * (x * a))[y]);
        continue;
      }
      double hard = 0, likelihood = 0;
      for (int i = 0; i < positions; ++i) {
        const double p = softmax_of(w * x.col(i))[y];
        hard -= a[i] * std::log(p);
        likelihood += a[i] * p;
      }
      sum += kind == Kind::hard ? hard : -std::log(likelihood);
    }
    return sum / classes;
  }

  /// Minus the gradient, position by position, with the learning rates.
  void operator()(const Column& state, Column& velocity, double /*t*/) const {
    const Square w = Eigen::Map<const Square>(state.data(), classes, classes);
    const Column u = state.tail(classes);
    Square dw = Square::Zero(classes, classes);
    Column du = Column::Zero(classes);
    for (int y = 0; y < classes; ++y) {
      const Square x = sequence(y);
      const Column a = softmax_of(x.transpose() * u), label = Column::Unit(classes, y);
      Column da(positions);  // d loss / d attention
      if (kind == Kind::soft) {
        const Column mean = x * a, error = softmax_of(w * mean) - label;
        dw += error * mean.transpose();
        for (int i = 0; i < positions; ++i) da[i] = error.dot(w * x.col(i));
      } else {
        Square p(classes, positions);
        for (int i = 0; i < positions; ++i) p.col(i) = softmax_of(w * x.col(i));
        const double likelihood = p.row(y).dot(a);
        for (int i = 0; i < positions; ++i) {
          // Posterior weight of the position in the marginal likelihood, plain attention in hard attention.
          const double weight = kind == Kind::hard ? a[i] : a[i] * p(y, i) / likelihood;
          dw += weight * (p.col(i) - label) * x.col(i).transpose();
          da[i] = kind == Kind::hard ? -std::log(p(y, i)) : -p(y, i) / likelihood;
        }
      }
      const Column ds = a.array() * (da.array() - a.dot(da));
      du += x * ds;
    }
    velocity.resize(size());
    Eigen::Map<Square>(velocity.data(), classes, classes) = -eta_ov / classes * dw;
    velocity.tail(classes) = -eta_qk / classes * du;
  }
};

Column on_line(int classes, double mu, double nu) {
  Column state(classes * classes + classes);
  Eigen::Map<Square>(state.data(), classes, classes) =
      mu * (Square::Identity(classes, classes) - Square::Constant(classes, classes, 1.0 / classes));
  state.tail(classes).setConstant(nu);
  return state;
}

template <class Scalar, class Visitor>
void for_each_flow(const ForegroundTask<Scalar>& task, const LearningRates<Scalar>& rates, Visitor&& visit) {
  visit(Kind::soft, SoftFlow<Scalar>{task, rates});
  visit(Kind::hard, HardFlow<Scalar>{task, rates});
  visit(Kind::latent, LatentMarginalFlow<Scalar>{task, rates});
}

}  // namespace

TEST_CASE("the full model's gradient agrees with central differences of its loss") {
  for (const Kind kind : {Kind::soft, Kind::hard, Kind::latent}) {
    const FullModel model{kind, 3, 4, 1, 1};
    Column state(model.size());
    for (Eigen::Index i = 0; i < state.size(); ++i)
      state[i] = std::sin(3.0 * static_cast<double>(i) + 1);  // no symmetry
    Column velocity;
    model(state, velocity, 0);
    for (Eigen::Index i = 0; i < state.size(); ++i) {
      const double h = 1e-5;
      Column up = state, down = state;
      up[i] += h;
      down[i] -= h;
      CHECK_THAT(velocity[i],
                 WithinAbs(-(model.loss(up) - model.loss(down)) / (2 * h), tolerance<double>(Tol::difference)));
    }
  }
}

TEST_CASE("the two scalars follow the full matrices to 1e-9, for every objective") {
  struct Setting {
    int classes, positions;
    double eta_ov, eta_qk, mu, nu, t_end;
  };
  for (const Setting& k : {Setting{5, 7, 1, 1, 0, 0, 60}, Setting{2, 2, 0.5, 3, 0, 0, 40},
                           Setting{7, 30, 1, 40, 0.5, -1, 800}, Setting{4, 5, 2, 0.3, -0.7, 1.5, 50}}) {
    const LearningRates<double> rates{k.eta_ov, k.eta_qk};
    for_each_flow<double>({double(k.classes), double(k.positions)}, rates, [&](Kind kind, const auto& flow) {
      const FullModel model{kind, k.classes, k.positions, k.eta_ov, k.eta_qk};
      const SolveOptions<Column> options{
          .t_end = k.t_end, .rtol = 1e-12, .atol = 1e-12, .save_times = {1, 5, k.t_end / 2}};
      const auto full = solve(model, on_line(k.classes, k.mu, k.nu), options, {}, Fehlberg78{});
      const auto reduced = solve(flow, Column(Eigen::Vector2d(k.mu, k.nu)), options, {}, Fehlberg78{});
      REQUIRE(full.success());
      REQUIRE(reduced.success());
      INFO("kind " << static_cast<int>(kind) << " C " << k.classes << " m " << k.positions);
      for (std::size_t row = 0; row < full.states.size(); ++row) {
        const double mu = reduced.states[row][0], nu = reduced.states[row][1];
        CHECK((full.states[row] - on_line(k.classes, mu, nu)).cwiseAbs().maxCoeff() <
              tolerance<double>(Tol::matrix_flow));
        CHECK_THAT(model.loss(full.states[row]), WithinRel(flow.loss(mu, nu), tolerance<double>(Tol::matrix_flow)));
      }
      // The state has moved: the agreement is not that of two starts.
      CHECK(std::abs(reduced.x[0] - k.mu) > 0.1);
      CHECK(std::abs(reduced.x[1] - k.nu) > 0.01);
    });
  }
}

TEST_CASE("loss, gain and point agree with the model off the flow, too") {
  for (const double mu : {-3.0, -0.1, 0.0, 1e-9, 0.4, 6.0}) {
    for (const double nu : {-4.0, 0.0, 3.0}) {
      for_each_flow<double>({4, 6}, {1, 1}, [&](Kind kind, const auto& flow) {
        const FullModel model{kind, 4, 6, 1, 1};
        const auto p = flow.point(mu, nu);
        CHECK_THAT(p.loss, WithinRel(model.loss(on_line(4, mu, nu)), 1e-14));
        CHECK_THAT(flow.gain(mu, nu), WithinAbs(std::log(4) - p.loss, 1e-14));
        CHECK_THAT(p.alpha, WithinRel(std::exp(nu) / (std::exp(nu) + 5), 1e-14));
        CHECK_THAT(p.beta, WithinRel(std::exp(mu) / (std::exp(mu) + 3), 1e-14));
      });
    }
  }
}

TEST_CASE("velocities are finite for every finite state and agree with fifty digits") {
  double worst = 0;
  const double counts[] = {2, 3, 1000, 1e6}, states[] = {-700, -50, -1, -1e-8, 0, 1e-12, 1e-3, 1, 13, 14, 50, 300, 700};
  for (const double classes : counts) {
    for (const double positions : counts) {
      for (const double mu : states) {
        for (const double nu : states) {
          const auto check = [&](const auto& flow, const auto& precise) {
            Eigen::Vector2d v;
            flow(Eigen::Vector2d(mu, nu), v, 0.0);
            Eigen::Matrix<Precise, 2, 1> exact;
            precise(Eigen::Matrix<Precise, 2, 1>(Precise(mu), Precise(nu)), exact, Precise(0));
            INFO("C " << classes << " m " << positions << " mu " << mu << " nu " << nu);
            REQUIRE(v.allFinite());
            for (int i = 0; i < 2; ++i) {
              if (abs(exact[i]) < Precise(1e-290)) {
                CHECK(std::abs(v[i]) < 1e-280);
                continue;
              }
              const double error = static_cast<double>(abs(Precise(v[i]) / exact[i] - 1));
              CHECK(error < 1e-12);  // exponentials of arguments up to 700 lose as many epsilon
              worst = std::max(worst, error);
            }
            const Precise loss = precise.loss(Precise(mu), Precise(nu));
            if (loss > Precise(1e-290)) CHECK(abs(Precise(flow.loss(mu, nu)) / loss - 1) < Precise(1e-12));
          };
          const ForegroundTask<double> task{classes, positions};
          const ForegroundTask<Precise> exact_task{Precise(classes), Precise(positions)};
          check(SoftFlow<double>{task, {1, 2}}, SoftFlow<Precise>{exact_task, {1, 2}});
          check(HardFlow<double>{task, {1, 2}}, HardFlow<Precise>{exact_task, {1, 2}});
          check(LatentMarginalFlow<double>{task, {1, 2}}, LatentMarginalFlow<Precise>{exact_task, {1, 2}});
        }
      }
    }
  }
  CHECK(worst > 0);
}

TEST_CASE("fifty digits agree with the equations as they are printed") {
  // The stable forms against the plain ones, where digits abound.
  for (const char* mu_text : {"-2.5", "0.3", "9"}) {
    for (const char* nu_text : {"-1.25", "4"}) {
      const Precise c = 11, m = 23, mu(mu_text), nu(nu_text);
      const Precise alpha = exp(nu) / (exp(nu) + m - 1), beta = exp(mu) / (exp(mu) + c - 1);
      const Precise z = alpha * beta + (1 - alpha) / c;
      const auto check = [&](const auto& flow, const Precise& mu_velocity, const Precise& nu_velocity,
                             const Precise& loss) {
        Eigen::Matrix<Precise, 2, 1> v;
        flow(Eigen::Matrix<Precise, 2, 1>(mu, nu), v, Precise(0));
        CHECK(abs(v[0] / mu_velocity - 1) < Precise("1e-46"));
        CHECK(abs(v[1] / (3 * nu_velocity) - 1) < Precise("1e-46"));
        CHECK(abs(flow.loss(mu, nu) / loss - 1) < Precise("1e-46"));
        CHECK(abs(flow.gain(mu, nu) - (log(c) - loss)) < Precise("1e-46"));
      };
      const ForegroundTask<Precise> task{c, m};
      const LearningRates<Precise> rates{1, 3};
      const Precise e = exp(alpha * mu);
      check(SoftFlow<Precise>{task, rates}, alpha / (e + c - 1), alpha * (1 - alpha) * (c - 1) * mu / (c * (e + c - 1)),
            log(1 + (c - 1) / e));
      check(HardFlow<Precise>{task, rates}, alpha / (exp(mu) + c - 1), alpha * (1 - alpha) * log(c * beta) / c,
            -alpha * log(beta) + (1 - alpha) * log(c));
      check(LatentMarginalFlow<Precise>{task, rates}, alpha * beta / ((exp(mu) + c - 1) * z),
            alpha / c * (beta / z - 1), -log(z));
    }
  }
}

TEST_CASE("bad tasks are refused by name") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH((SoftFlow<double>{{1, 10}, {1, 1}}.validate("f")), Contains("classes = 1"));
  CHECK_THROWS_WITH((SoftFlow<double>{{10, 1}, {1, 1}}.validate("f")), Contains("positions = 1"));
  CHECK_THROWS_WITH((HardFlow<double>{{nan, 10}, {1, 1}}.validate("f")), Contains("classes = nan"));
  CHECK_THROWS_WITH((HardFlow<double>{{10, 10}, {0, 1}}.validate("f")), Contains("ov = 0"));
  CHECK_NOTHROW((LatentMarginalFlow<double>{{2, 2}, {1, 1}}.validate("f")));
}
