// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/first_integral.hpp"

#include <boost/math/quadrature/gauss_kronrod.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/precise.hpp"
#include "support/tolerance.hpp"

using namespace qkflow;
using qkflow_test::Precise;
using qkflow_test::Tol;
using qkflow_test::tolerance;

namespace {

// The witnesses integrate the definitions S = int o / rho do and T = int (odds + 1) / (s^2 rho) dq in 50 digits, by
// adaptive Gauss-Kronrod quadrature in x, and in log|x| towards 0: nothing is shared with the header. All starts, ends
// and parameters of these tests are binary fractions, so that one witness serves every scalar type.

template <class Function>
Precise integral(const Function& f, const Precise& from, const Precise& to) {
  if (!(from < to)) return 0;
  return boost::math::quadrature::gauss_kronrod<Precise, 31>::integrate(f, from, to, 25, Precise(1e-20));
}

/// int f over [from, to] where f has one scale near 0 (`inner`; 0 if 0 is not inside), is a power beyond, and may grow
/// like e^x from 1 on (what lies 60 e-foldings below the top is then left out).
template <class Function>
Precise scale_free_integral(const Function& f, Precise from, const Precise& to, const Precise& inner, bool grows) {
  if (from > to) return -scale_free_integral(f, to, from, inner, grows);
  if (grows && to > 60 && from < to - 60) from = to - 60;
  const auto clamp = [&](const Precise& x) { return x < from ? from : x > to ? to : x; };
  const auto in_log = [&](const Precise& low, const Precise& high, int sign) -> Precise {
    if (!(low < high)) return 0;
    const auto g = [&](const Precise& u) -> Precise { return f(sign * exp(u)) * exp(u); };
    return integral(g, log(low), log(high));
  };
  const Precise edge = inner > 1 ? inner : Precise(1);
  return integral(f, from, clamp(-60)) + integral(f, clamp(-60), clamp(-edge)) +
         in_log(-clamp(-inner), -clamp(-edge), -1) + integral(f, clamp(-inner), clamp(inner)) +
         in_log(clamp(inner), clamp(edge), 1) + integral(f, clamp(edge), to);
}

/// A witness is computed once for all scalar types.
template <class Compute>
const Precise& once(const std::string& key, const Compute& compute) {
  static std::map<std::string, Precise> known;
  const auto found = known.find(key);
  return found != known.end() ? found->second : known.emplace(key, compute()).first->second;
}

template <class Scalar>
BlockTask<Precise> precise(const BlockTask<Scalar>& task) {
  return {Precise(task.classes),          Precise(task.block),      Precise(task.informative), Precise(task.noise),
          Precise(task.noise_vocabulary), Precise(task.score_scale)};
}
inline Collapsed precise(Collapsed rate) { return rate; }
inline Balanced precise(Balanced rate) { return rate; }
inline FactorProduct precise(FactorProduct rate) { return rate; }
template <class Scalar>
Unbalanced<Precise> precise(Unbalanced<Scalar> rate) {
  return {Precise(rate.lambda)};
}

/// Where rho leaves its value at 0, in units of mu sigma; 0 for a saddle.
inline Precise knee(Collapsed) { return 1; }
inline Precise knee(Balanced) { return 0; }
inline Precise knee(FactorProduct rate) { return rate.factors == 1 ? 1 : 0; }
inline Precise knee(Unbalanced<Precise> rate) { return abs(rate.lambda) / 2; }

template <class Rate>
Precise exact_gain(const Rate& rate, const std::string& name, const Precise& sigma, const Precise& from,
                   const Precise& to) {
  const auto integrand = [&](const Precise& o) -> Precise { return o / rate.rate(o, sigma); };
  return once("gain " + name + sigma.str() + " " + from.str() + " " + to.str(),
              [&] { return scale_free_integral(integrand, from, to, knee(rate) / sigma, false); });
}

/// T'(q)
template <class Rate>
Precise exact_rise_rate(const BlockTask<Precise>& task, const Rate& rate, const Precise& q) {
  const Precise s = task.score_scale;
  return (task.informative / task.noise * exp(q) + 1) /
         (s * s * rate.rate(Precise(q / s), task.query_key_singular_value()));
}

template <class Rate>
Precise exact_rise(const BlockTask<Precise>& task, const Rate& rate, const std::string& name, const Precise& from,
                   const Precise& to) {
  const Precise inner = knee(rate) * task.score_scale / task.query_key_singular_value();
  return once("rise " + name + task.block.str() + " " + from.str() + " " + to.str(), [&] {
    return scale_free_integral([&](const Precise& q) { return exact_rise_rate(task, rate, q); }, from, to, inner, true);
  });
}

/// Calls visit(rate, name) for one rate factor of every kind.
template <class Scalar, class Visitor>
void for_each_rate(const Visitor& visit) {
  visit(Collapsed{}, "collapsed");
  visit(Balanced{}, "balanced");
  for (const double lambda : {1.0 / 1024, -0.5, 40.0}) {
    visit(Unbalanced<Scalar>{static_cast<Scalar>(lambda)}, "unbalanced " + to_text(lambda));
  }
  for (const int factors : {1, 2, 3, 5}) visit(FactorProduct{factors}, std::to_string(factors) + " factors");
}

template <class Scalar>
std::vector<BlockTask<Scalar>> tasks() {
  return {{},
          {.classes = 4,
           .block = 3,
           .informative = 8,
           .noise = Scalar(0.25),
           .noise_vocabulary = 9,
           .score_scale = Scalar(0.25)}};
}

template <class Scalar>
Scalar relative_error(const Scalar& value, const Precise& exact) {
  if (exact == 0) return value == Scalar(0) ? Scalar(0) : Scalar(1);
  return static_cast<Scalar>(abs((Precise(value) - exact) / exact));
}

}  // namespace

TEMPLATE_TEST_CASE("Output gain is the integral of o / rho", "[first_integral]", float, double, long double, Precise) {
  for (const double sigma_value : {7.0, 0.3125}) {
    const TestType sigma = static_cast<TestType>(sigma_value);
    for_each_rate<TestType>([&](const auto& rate, const std::string& name) {
      for (const double start : {-3.0, -0x1p-7, 0.0, 0x1p-20, 0.5, 40.0}) {
        if (start == 0 && rate.saddle_at_zero()) continue;
        const TestType o = static_cast<TestType>(start);
        const OutputSide<TestType, std::decay_t<decltype(rate)>> side(rate, sigma, o);
        CHECK(side.gain(TestType(0)) == 0);
        for (const double step : {0x1p-40, 0x1p-10, 0x1p-7 - 0x1p-12, 0.75, 2.875, 3.5, 100.0}) {
          const TestType delta = static_cast<TestType>(step);
          const Precise from(o), to = from + Precise(delta);
          if (rate.saddle_at_zero() && o < 0 && to >= 0) continue;
          const Precise exact = exact_gain(precise(rate), name, Precise(sigma), from, to);
          // Across 0 the gain first falls, then rises: errors count on the scale of the fall.
          Precise size = abs(exact);
          if (o < 0 && to > 0) size += abs(exact_gain(precise(rate), name, Precise(sigma), from, Precise(0)));
          INFO(name << ", sigma " << sigma << ", from " << o << " by " << delta << ", exact " << exact);
          const Precise allowed = Precise(tolerance<TestType>(Tol::elementary)) + Precise(1e-20);
          CHECK(abs(Precise(side.gain(delta)) - exact) <= allowed * size);
        }
      }
    });
  }
}

TEMPLATE_TEST_CASE("Advance inverts gain on either side of zero", "[first_integral]", float, double, long double,
                   Precise) {
  using std::abs;
  const TestType sigma = TestType(5) / 2;
  for_each_rate<TestType>([&](const auto& rate, const std::string& name) {
    for (const double start : {-3.0, -0.01, 0.0, 1e-6, 0.5, 40.0}) {
      if (start == 0 && rate.saddle_at_zero()) continue;
      const TestType o = static_cast<TestType>(start);
      const OutputSide<TestType, std::decay_t<decltype(rate)>> side(rate, sigma, o);
      CHECK(side.advance(TestType(0)) == 0);
      if (start >= 0) CHECK(side.advance_across(TestType(0)) == 0);
      for (const double step : {1e-20, 1e-9, 1e-3, 0.006, 0.7, 2.5, 3.5, 100.0, 1e6}) {
        const TestType delta = static_cast<TestType>(step);
        const TestType end = o + delta;
        if (end == 0 || (rate.saddle_at_zero() && o < 0 && end > 0)) continue;
        const TestType gain = side.gain(delta);
        if (abs(gain) < std::numeric_limits<TestType>::min()) continue;  // a subnormal has fewer digits to give
        const TestType back = o < 0 && end > 0 ? side.advance_across(gain) : side.advance(gain);
        // What an error of the gain means to delta: dS/do = o / rho. A gain across 0 was itself a difference.
        TestType size = abs(gain);
        if (o < 0) size += abs(side.gain(TestType(-o)));
        const TestType condition = size * rate.rate(end, sigma) / (abs(end) * delta);
        INFO(name << ", from " << o << " by " << delta << ", gain " << gain << ", back " << back);
        CHECK(abs(back - delta) <= tolerance<TestType>(Tol::elementary) * (1 + condition) * delta);
      }
      if (rate.saddle_at_zero() || start == 0) continue;
      // A gain is taken twice by a path that crosses 0: at o and at -o.
      if (o < 0) {
        CHECK(abs(side.advance_across(TestType(0)) + 2 * o) <= tolerance<TestType>(Tol::rounding) * -o);
        const TestType gain = side.gain(TestType(-o / 2));
        CHECK(abs(o + side.advance(gain) - o / 2) <= tolerance<TestType>(Tol::elementary) * -o);
        CHECK(abs(o + side.advance_across(gain) + o / 2) <= tolerance<TestType>(Tol::elementary) * -o);
      }
    }
  });
}

TEST_CASE("Output circuits of one and two factors are the collapsed and the balanced one", "[first_integral]") {
  const double sigma = 7;
  for (const double start : {-2.0, 0.3, 5.0}) {
    const OutputSide<double, FactorProduct> one({1}, sigma, start), two({2}, sigma, start);
    const OutputSide<double, Collapsed> collapsed({}, sigma, start);
    const OutputSide<double, Balanced> balanced({}, sigma, start);
    for (const double delta : {1e-9, 0.1, 1.5}) {
      CHECK(one.gain(delta) == collapsed.gain(delta));
      CHECK(one.advance(delta) == collapsed.advance(delta));
      CHECK(one.advance_across(delta) == collapsed.advance_across(delta));
      CHECK_THAT(two.gain(delta), WithinRel(balanced.gain(delta), tolerance<double>(Tol::rounding)));
      const double gain = balanced.gain(delta);
      CHECK_THAT(two.advance(gain), WithinRel(balanced.advance(gain), tolerance<double>(Tol::rounding)));
    }
  }
}

TEMPLATE_TEST_CASE("Attention rise is the integral of (odds + 1) / rho", "[first_integral]", float, double,
                   long double) {
  constexpr bool narrow = std::numeric_limits<TestType>::max_exponent10 < 100;
  const Precise epsilon(std::numeric_limits<TestType>::epsilon());
  Precise worst(0);
  for (const BlockTask<TestType>& task : tasks<TestType>()) {
    const bool first = task.score_scale == 1;
    for_each_rate<TestType>([&](const auto& rate, const std::string& name) {
      using Side = AttentionSide<TestType, std::decay_t<decltype(rate)>>;
      for (const double start : {-448.0, -3.0, -0x1p-10, 0.0, 0.375, 30.0}) {
        if ((start == 0 && rate.saddle_at_zero()) || (narrow && start < -60) || (!first && std::abs(start) > 20))
          continue;
        const TestType q0 = static_cast<TestType>(start);
        const Side side(task, rate, q0);
        const AttentionStep<TestType> here = side.at(TestType(0));
        CHECK(here.score == q0);
        CHECK(here.rise == 0);
        for (const double target : {-40.0, -3.125, -0x1.fp-11, 0x1p-80, 0x1.8p-30, 0.40625, 5.0, 31.0, 80.0, 500.0}) {
          if ((rate.saddle_at_zero() && start * target < 0) || (narrow && target > 80)) continue;
          if (!first && std::abs(target) > 20) continue;
          const TestType q = static_cast<TestType>(target);
          const TestType v = side.displacement_of_score(q);
          const AttentionStep<TestType> step = side.at(v);
          const Precise exact = exact_rise(precise(task), precise(rate), name, Precise(q0), Precise(q));
          const Precise slope = exact_rise_rate(precise(task), precise(rate), Precise(q));
          // The rise belongs to v, and v, rounded, is worth so much of the score.
          const Precise blur = 4 * Precise(step.score_slope) * abs(Precise(v)) * epsilon;
          INFO(name << ", from " << q0 << " to " << q << ", v = " << v << ", score " << step.score << ", rise "
                    << step.rise << ", exact " << exact);
          CHECK(abs(Precise(step.score) - Precise(q)) <=
                blur + Precise(tolerance<TestType>(Tol::rounding)) * (abs(Precise(q)) + abs(Precise(q0))));
          const Precise error = (abs(Precise(step.rise) - exact) - blur * slope) / abs(exact);
          if (error > worst) worst = error;
          CHECK(error <= Precise(tolerance<TestType>(Tol::elementary)));
          const Precise odds = Precise(task.informative) / Precise(task.noise) * exp(Precise(step.score));
          CHECK(abs(Precise(step.odds) / odds - 1) <= epsilon * (16 + abs(Precise(q)) + abs(Precise(q0))));
          const Precise slope_there = exact_rise_rate(precise(task), precise(rate), Precise(step.score));
          CHECK(abs(Precise(step.rise_slope) / Precise(step.score_slope) / slope_there - 1) <=
                Precise(tolerance<TestType>(Tol::state)));
        }
      }
    });
  }
  INFO("worst error of a rise in epsilon: " << worst / epsilon);
  CHECK(worst < Precise(tolerance<TestType>(Tol::elementary)));
}

TEST_CASE("Attention rise in 50 digits is the integral of (odds + 1) / rho", "[first_integral]") {
  const BlockTask<Precise> task;
  for_each_rate<Precise>([&](const auto& rate, const std::string& name) {
    const auto integrand = [&](const Precise& u) -> Precise {  // q = -+e^u
      const Precise q = exp(u);
      return exact_rise_rate(task, rate, q) * q;
    };
    const auto mirrored = [&](const Precise& u) -> Precise {
      const Precise q = -exp(u);
      return exact_rise_rate(task, rate, q) * q;
    };
    using Side = AttentionSide<Precise, std::decay_t<decltype(rate)>>;
    using boost::math::quadrature::gauss_kronrod;
    for (const auto& [from, to] : {std::pair{Precise(1) / 8, Precise(4)}, {Precise(3), Precise(2)}}) {
      INFO(name << ", between " << from << " and " << to);
      const Side above(task, rate, from), below(task, rate, -from);
      const Precise up = gauss_kronrod<Precise, 61>::integrate(integrand, log(from), log(to), 20, Precise(1e-44));
      CHECK(relative_error(above.at(above.displacement_of_score(to)).rise, up) < tolerance<Precise>(Tol::elementary));
      const Precise down = gauss_kronrod<Precise, 61>::integrate(mirrored, log(from), log(to), 20, Precise(1e-44));
      CHECK(relative_error(below.at(below.displacement_of_score(-to)).rise, down) <
            tolerance<Precise>(Tol::elementary));
    }
  });
}

TEST_CASE("Slopes are the derivatives", "[first_integral]") {
  const Precise h("1e-16");
  for (const BlockTask<Precise>& task : tasks<Precise>()) {
    for_each_rate<Precise>([&](const auto& rate, const std::string& name) {
      using Side = AttentionSide<Precise, std::decay_t<decltype(rate)>>;
      for (const double start : {-2.0, 0.7}) {
        const Side side(task, rate, Precise(start));
        for (const double v : {-2.5, -0.3, 0.2, 1.75}) {
          const AttentionStep<Precise> below = side.at(Precise(v) - h), here = side.at(Precise(v)),
                                       above = side.at(Precise(v) + h);
          INFO(name << ", start " << start << ", v " << v);
          CHECK(relative_error(Precise((above.rise - below.rise) / (2 * h)), here.rise_slope) < 1e-28);
          CHECK(relative_error(Precise((above.score - below.score) / (2 * h)), here.score_slope) < 1e-28);
          CHECK(here.score_slope > 0);
          CHECK(here.rise_slope > 0);
        }
      }
    });
  }
}

TEMPLATE_TEST_CASE("Displacement inverts rises of every size and sign", "[first_integral]", float, double,
                   long double) {
  const bool narrow = std::numeric_limits<TestType>::max_exponent10 < 100;
  const bool wide = std::numeric_limits<TestType>::max_exponent10 > 1000;
  const int reach = narrow ? 30 : 285;
  for (const BlockTask<TestType>& task : tasks<TestType>()) {
    for_each_rate<TestType>([&](const auto& rate, const std::string& name) {
      using Side = AttentionSide<TestType, std::decay_t<decltype(rate)>>;
      for (const double start : {-500.0, -30.0, -1.0, -1e-8, 0.0, 1e-8, 1e-3, 0.3, 5.0, 80.0, 500.0}) {
        if (start == 0 && rate.saddle_at_zero()) continue;
        if (narrow && std::abs(start) > 80) continue;
        const TestType q0 = static_cast<TestType>(start);
        const Side side(task, rate, q0);
        CHECK(side.displacement(TestType(0)) == 0);
        TestType last_positive = 0, last_negative = 0;
        for (int exponent = -reach; exponent <= reach; exponent += reach / (wide ? 5 : 15)) {
          for (const int sign : {1, -1}) {
            // With three factors or more a score below 0 rushes away: its negative rises are bounded.
            if (sign < 0 && start < 0 && name >= "3") {
              if constexpr (std::is_same_v<std::decay_t<decltype(rate)>, FactorProduct>) continue;
            }
            const TestType rise = TestType(sign) * std::pow(TestType(10), TestType(exponent));
            const TestType v = side.displacement(rise);
            const AttentionStep<TestType> step = side.at(v);
            INFO(name << ", start " << q0 << ", rise " << rise << ", v " << v << ", rise there " << step.rise
                      << ", score " << step.score);
            if (std::abs(v) < std::numeric_limits<TestType>::min()) continue;  // a subnormal has fewer digits to give
            // Newton's step that would be left, relative to v, and the rounding of v and of the score.
            const TestType error = std::abs(step.rise - rise);
            // |q| over dq/dv, which is 1 for powers, whose q itself may leave the range of the type.
            const bool ordinary = std::isfinite(step.score) && step.score_slope > 0;
            const TestType fold = ordinary ? std::abs(step.score / step.score_slope) : TestType(1);
            const TestType blur = step.rise_slope * (std::abs(v) + fold);
            const TestType epsilon = std::numeric_limits<TestType>::epsilon();
            CHECK(error <= 16 * epsilon * (std::abs(rise) + blur));
            CHECK((v > 0) == (rise > 0));
            TestType& last = sign > 0 ? last_positive : last_negative;
            CHECK(std::abs(v) >= std::abs(last));
            last = v;
          }
        }
      }
    });
  }
}

TEST_CASE("Displacement inverts rises in 50 digits", "[first_integral]") {
  const BlockTask<Precise> task;
  for_each_rate<Precise>([&](const auto& rate, const std::string& name) {
    using Side = AttentionSide<Precise, std::decay_t<decltype(rate)>>;
    for (const double start : {-2.0, 0.6}) {
      const Side side(task, rate, Precise(start));
      for (const double v : {-1.5, -1e-20, 1e-30, 0.01, 1.8}) {
        const Precise rise = side.at(Precise(v)).rise;
        INFO(name << ", start " << start << ", v " << v);
        CHECK(relative_error(side.displacement(rise), Precise(v)) < tolerance<Precise>(Tol::state));
      }
    }
  });
}

TEMPLATE_TEST_CASE("The displacement of a score keeps its digits however near", "[first_integral]", float, double,
                   long double) {
  const BlockTask<TestType> task;
  for_each_rate<TestType>([&](const auto& rate, const std::string& name) {
    using Side = AttentionSide<TestType, std::decay_t<decltype(rate)>>;
    for (const double start : {-7.0, -0.02, 0.3, 4.0}) {
      const TestType q0 = static_cast<TestType>(start);
      const Side side(task, rate, q0);
      CHECK(side.displacement_of_score(q0) == 0);
      for (const double factor : {1 + 1e-6, 1 - 1e-5, 1.01, 0.9, 2.0, 0.3, 50.0}) {
        const TestType q = q0 * static_cast<TestType>(factor);
        // int dq / (dq/dv): v is log q for powers, asinh(k q / a) for imbalance, q if collapsed.
        const Precise s(task.score_scale), sigma = precise(task).query_key_singular_value();
        const Precise scale = 2 * knee(precise(rate)) * s / (2 * sigma);
        Precise exact = Precise(q) - Precise(q0);
        if (rate.saddle_at_zero()) exact = abs(log(Precise(q) / Precise(q0))) * (q > q0 ? 1 : -1);
        if (std::is_same_v<std::decay_t<decltype(rate)>, Unbalanced<TestType>>) {
          exact = asinh(Precise(q) / scale) - asinh(Precise(q0) / scale);
        }
        INFO(name << ", from " << q0 << " to " << q);
        CHECK(relative_error(side.displacement_of_score(q), exact) < tolerance<TestType>(Tol::elementary));
      }
    }
  });
}

TEST_CASE("Attention circuits of one and two factors are the collapsed and the balanced one", "[first_integral]") {
  for (const BlockTask<double>& task : tasks<double>()) {
    for (const double start : {-2.0, 0.3, 5.0}) {
      const AttentionSide<double, FactorProduct> one(task, {1}, start), two(task, {2}, start);
      const AttentionSide<double, Collapsed> collapsed(task, {}, start);
      const AttentionSide<double, Balanced> balanced(task, {}, start);
      for (const double v : {-3.0, -1e-9, 0.1, 1.5}) {
        CHECK(one.at(v).rise == collapsed.at(v).rise);
        CHECK(one.at(v).odds == collapsed.at(v).odds);
        CHECK(one.displacement(v) == collapsed.displacement(v));
        CHECK_THAT(two.at(v).rise, WithinRel(balanced.at(v).rise, tolerance<double>(Tol::rounding)));
        CHECK_THAT(two.at(v).rise_slope, WithinRel(balanced.at(v).rise_slope, tolerance<double>(Tol::rounding)));
        CHECK_THAT(two.displacement(v), WithinRel(balanced.displacement(v), tolerance<double>(Tol::elementary)));
      }
      CHECK(one.highest() == collapsed.highest());
      CHECK(two.highest() == balanced.highest());
    }
  }
}

TEST_CASE("Little imbalance approaches balanced circuits, much of it collapsed ones", "[first_integral]") {
  const BlockTask<double> task{.score_scale = 0.5};
  const auto rise_between = [&](const auto& rate, double from, double to) {
    const AttentionSide<double, std::decay_t<decltype(rate)>> side(task, rate, from);
    return side.at(side.displacement_of_score(to)).rise;
  };
  for (const auto& [from, to] : {std::pair{0.2, 3.0}, {-4.0, -0.3}, {1.0, 20.0}}) {
    const double balanced = rise_between(Balanced{}, from, to);
    // rho differs by lambda^2 / (2 (2 sigma mu)^2), at most at the smaller score.
    const double nearest = std::min(std::abs(from), std::abs(to)) / task.score_scale;
    for (const double lambda : {1.0, 1e-2, 1e-4}) {
      const double bound = lambda * lambda / (2 * std::pow(2 * 50 * nearest, 2));
      INFO("lambda " << lambda);
      CHECK_THAT(rise_between(Unbalanced<double>{lambda}, from, to), WithinRel(balanced, bound + 1e-13));
      CHECK(rise_between(Unbalanced<double>{lambda}, from, to) <= balanced * (1 + 1e-13));
    }
    const double collapsed = rise_between(Collapsed{}, from, to);
    for (const double lambda : {1e5, -1e7}) {
      const double bound = 0.5 * std::pow(2 * 50 * 20 / task.score_scale / lambda, 2);
      CHECK_THAT(std::abs(lambda) * rise_between(Unbalanced<double>{lambda}, from, to),
                 WithinRel(collapsed, bound + 1e-13));
    }
  }
}

TEST_CASE("An unbalanced circuit crosses zero without losing digits", "[first_integral]") {
  // Down to scales at which the circuit is all but balanced, and its crossing all but a stop.
  const BlockTask<double> task;
  for (const double lambda : {10.0, 1e-2, 1e-5, 1e-9}) {
    const Unbalanced<double> rate{lambda};
    const AttentionSide<double, Unbalanced<double>> side(task, rate, -1.0);
    for (const double target : {-1e-3, 0.0, 1e-3, 1.0, 4.0}) {
      const double v = side.displacement_of_score(target);
      const AttentionStep<double> step = side.at(v);
      INFO("lambda " << lambda << ", to " << target << ", score " << step.score);
      CHECK_THAT(step.score, WithinAbs(target, 1e-14 * (1 + std::abs(v) * step.score_slope)));
      const Precise exact =
          exact_rise(precise(task), precise(rate), "unbalanced " + to_text(lambda), Precise(-1), Precise(target));
      CHECK(relative_error(step.rise, exact) < tolerance<double>(Tol::state));
      CHECK_THAT(side.displacement(step.rise), WithinRel(v, tolerance<double>(Tol::state)));
    }
  }
}
