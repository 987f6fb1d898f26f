// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "qkflow/flow/stop.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow::detail {

/// Internal to `solve`, where it becomes Status::non_finite.
struct NotFiniteError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A condition met inside a step, at t + fraction h.
template <class Scalar>
struct Crossing {
  std::size_t stop;
  Scalar fraction;
};

/// The conditions of one solve, with their values at the start of the current step.
template <class State>
class StopSearch {
 public:
  using Scalar = typename State::Scalar;

  explicit StopSearch(const std::vector<Stop<State>>& stops) : stops_(stops), before_(stops.size()) {}

  bool empty() const { return stops_.empty(); }
  const Stop<State>& operator[](std::size_t index) const { return stops_[index]; }
  const std::vector<Crossing<Scalar>>& crossings() const { return crossings_; }

  /// Values at t0. Returns the conditions that hold there already.
  std::vector<std::size_t> start(const Scalar& t, const State& x) {
    std::vector<std::size_t> holding;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      before_[i] = value(i, t, x);
      const bool holds = rises(i)                                    ? before_[i] >= Scalar(0)
                         : stops_[i].direction == Direction::falling ? before_[i] <= Scalar(0)
                                                                     : before_[i] == Scalar(0);
      if (holds) holding.push_back(i);
    }
    return holding;
  }

  /// Finds what is met in the step from t to t_end = t + h, in the order of time (then of the list); true if anything.
  ///   exact(fraction)  the state inside the step to the accuracy of the method (const State&, until the next call)
  ///   peek(fraction)   the same, cheaply, to see whether there is anything to locate
  template <class Exact, class Peek>
  bool search(const Scalar& t, const Scalar& h, const Scalar& t_end, const State& x_end, int checks, const Exact& exact,
              const Peek& peek) {
    crossings_.clear();
    if (stops_.empty()) return false;
    ends_.resize(stops_.size());
    for (std::size_t i = 0; i < stops_.size(); ++i) ends_[i] = value(i, t_end, x_end);
    if (anything(t, h, checks, peek)) locate_all(t, h, checks, exact);
    before_.swap(ends_);
    std::stable_sort(crossings_.begin(), crossings_.end(),
                     [](const auto& a, const auto& b) { return a.fraction < b.fraction; });
    return !crossings_.empty();
  }

 private:
  bool rises(std::size_t i) const { return stops_[i].predicate || stops_[i].direction == Direction::rising; }

  Scalar value(std::size_t i, const Scalar& t, const State& x) const {
    using std::isnan;
    Scalar g(0);
    try {
      g = stops_[i].predicate ? Scalar(stops_[i].predicate(t, x) ? 1 : -1) : stops_[i].g(t, x);
    } catch (const std::exception& error) {
      throw std::runtime_error("stop condition '" + stops_[i].name + "' threw: " + error.what());
    } catch (...) {
      throw std::runtime_error("stop condition '" + stops_[i].name + "' threw something that is no std::exception");
    }
    if (isnan(g)) throw NotFiniteError("stop condition '" + stops_[i].name + "' is not a number");
    return g;
  }

  /// Strictly on the near side before: a crossing that ended exactly on 0 is not counted again.
  bool crossed(std::size_t i, const Scalar& before, const Scalar& after) const {
    const bool up = before < Scalar(0) && after >= Scalar(0);
    const bool down = before > Scalar(0) && after <= Scalar(0);
    if (rises(i)) return up;
    return stops_[i].direction == Direction::falling ? down : up || down;
  }

  template <class Peek>
  bool anything(const Scalar& t, const Scalar& h, int checks, const Peek& peek) {
    inner_ = before_;
    for (int check = 1; check <= checks; ++check) {
      const Scalar fraction = Scalar(check) / Scalar(checks);
      const State* x = check < checks ? &peek(fraction) : nullptr;
      for (std::size_t i = 0; i < stops_.size(); ++i) {
        const Scalar after = x ? value(i, Scalar(t + fraction * h), *x) : ends_[i];
        if (crossed(i, inner_[i], after)) return true;
        inner_[i] = after;
      }
    }
    return false;
  }

  template <class Exact>
  void locate_all(const Scalar& t, const Scalar& h, int checks, const Exact& exact) {
    inner_ = before_;
    Scalar from(0);
    for (int check = 1; check <= checks; ++check) {
      const Scalar to = check < checks ? Scalar(Scalar(check) / Scalar(checks)) : Scalar(1);
      for (std::size_t i = 0; i < stops_.size(); ++i) {
        const Scalar after = check < checks ? value(i, Scalar(t + to * h), exact(to)) : ends_[i];
        if (crossed(i, inner_[i], after)) {
          const auto g = [&](const Scalar& fraction) { return value(i, Scalar(t + fraction * h), exact(fraction)); };
          crossings_.push_back({i, stops_[i].predicate ? bisect(g, from, to) : locate(g, from, to, inner_[i], after)});
        }
        inner_[i] = after;
      }
      from = to;
    }
  }

  /// The far end of a bracket as narrow as fractions of a step can be.
  template <class Function>
  static Scalar locate(const Function& g, const Scalar& from, const Scalar& to, const Scalar& before,
                       const Scalar& after) {
    using std::abs;
    if (after == Scalar(0)) return to;
    // An infinite value has a sign, and toms748 interpolates values: give it a large one.
    const Scalar limit = std::numeric_limits<Scalar>::max() / Scalar(1024);
    const auto bounded = [&](const Scalar& v) { return v > limit ? limit : v < -limit ? Scalar(-limit) : v; };
    const auto function = [&](const Scalar& fraction) { return bounded(g(fraction)); };
    const auto narrow = [](const Scalar& a, const Scalar& b) {
      return abs(b - a) <= Scalar(2) * std::numeric_limits<Scalar>::epsilon();
    };
    std::uintmax_t iterations = 4 * std::numeric_limits<Scalar>::digits;
    return boost::math::tools::toms748_solve(function, from, to, bounded(before), bounded(after), narrow, iterations)
        .second;
  }

  template <class Function>
  static Scalar bisect(const Function& g, Scalar from, Scalar to) {
    while (to - from > Scalar(2) * std::numeric_limits<Scalar>::epsilon()) {
      const Scalar middle = from + (to - from) / Scalar(2);
      (g(middle) > Scalar(0) ? to : from) = middle;
    }
    return to;
  }

  const std::vector<Stop<State>>& stops_;
  std::vector<Scalar> before_, ends_, inner_;
  std::vector<Crossing<Scalar>> crossings_;
};

}  // namespace qkflow::detail
