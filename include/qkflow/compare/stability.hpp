// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "qkflow/compare/factor_flow.hpp"
#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/sharpness.hpp"

namespace qkflow {

/// What gradient descent may dare at one state. Sharpness is the largest eigenvalue of P^(1/2) H P^(1/2), rates
/// included; a step h is linearly stable while h * sharpness < 2. Each circuit's own is with the other held still; that
/// of both together is at least as large.
template <class Scalar>
struct StabilityRow {
  Scalar t = 0, loss = 0;
  Scalar sharpness = 0, sharpness_qk = 0, sharpness_ov = 0;
  bool converged = true;  ///< whether Lanczos has found all of them

  Scalar of(SharpnessOf which) const {
    return which == SharpnessOf::all ? sharpness : which == SharpnessOf::qk ? sharpness_qk : sharpness_ov;
  }
  /// 2 / sharpness: the largest linearly stable step; infinite where nothing curves upwards.
  Scalar largest_step(SharpnessOf which = SharpnessOf::all) const {
    const Scalar s = of(which);
    return s > Scalar(0) ? Scalar(Scalar(2) / s) : std::numeric_limits<Scalar>::infinity();
  }
  /// The circuit that is sharper by itself.
  SharpnessOf sharper() const { return sharpness_qk > sharpness_ov ? SharpnessOf::qk : SharpnessOf::ov; }
};

constexpr const char* to_string(SharpnessOf which) {
  switch (which) {
    case SharpnessOf::all:
      return "both circuits";
    case SharpnessOf::qk:
      return "QK";
    case SharpnessOf::ov:
      return "OV";
  }
  return "unknown";
}

struct StabilityOptions {
  LanczosOptions lanczos{.rtol = 1e-4};
  bool per_circuit = true;  ///< three eigenvalues a row instead of one; else those of the circuits are NaN
};

/// At one state of a matrix flow: over all parameters, whatever the data. A circuit whose rates are 0 has sharpness 0.
template <class Parameters>
StabilityRow<typename Parameters::scalar_type> stability(MatrixFlow<Parameters>& flow,
                                                         const typename Parameters::scalar_type& t,
                                                         const ColumnVector<typename Parameters::scalar_type>& theta,
                                                         const StabilityOptions& options = {}) {
  using Scalar = typename Parameters::scalar_type;
  StabilityRow<Scalar> row;
  row.t = t;
  row.loss = flow.loss(theta);
  const ColumnVector<Scalar> rates = flow.parameters().rates();
  const Eigen::Index attention = flow.parameters().qk().size();
  const auto measure = [&](SharpnessOf which) {
    const bool frozen = which == SharpnessOf::qk   ? (rates.head(attention).array() == Scalar(0)).all()
                        : which == SharpnessOf::ov ? (rates.tail(rates.size() - attention).array() == Scalar(0)).all()
                                                   : (rates.array() == Scalar(0)).all();
    if (frozen) return Scalar(0);
    const auto ends = sharpness(flow.field(), theta, which, options.lanczos);
    row.converged = row.converged && ends.converged;
    return ends.largest;
  };
  const Scalar nan = std::numeric_limits<Scalar>::quiet_NaN();
  row.sharpness = measure(SharpnessOf::all);
  row.sharpness_qk = options.per_circuit ? measure(SharpnessOf::qk) : nan;
  row.sharpness_ov = options.per_circuit ? measure(SharpnessOf::ov) : nan;
  return row;
}

namespace detail {
/// With sharpness = max |lambda|^2 / -Re lambda over the eigenvalues of the Jacobian that decay: |1 + h lambda| < 1
/// while h * sharpness < 2.
template <class Scalar>
StabilityRow<Scalar> planar_stability(const ReducedJacobian<Scalar>& j, const Scalar& t, const Scalar& loss) {
  using std::sqrt;
  StabilityRow<Scalar> row;
  row.t = t;
  row.loss = loss;
  row.sharpness_ov = -j.ov_ov;
  row.sharpness_qk = -j.qk_qk;
  const Scalar half_trace = (j.ov_ov + j.qk_qk) / Scalar(2), half_gap = (j.ov_ov - j.qk_qk) / Scalar(2);
  const Scalar discriminant = half_gap * half_gap + j.ov_qk * j.qk_ov;
  if (discriminant >= Scalar(0)) {
    row.sharpness = sqrt(discriminant) - half_trace;
  } else {
    const Scalar square = half_trace * half_trace - discriminant;
    row.sharpness = half_trace < Scalar(0) ? Scalar(square / -half_trace) : Scalar(-half_trace);
  }
  return row;
}
}  // namespace detail

/// At one state of two scalars: of the two coordinates alone. Euler's method on them is linearly stable while
/// h * sharpness < 2. FactorFlow gives the sharpness of training along the line; the matrices may be sharper in a
/// direction off it, which only their own sharpness tells.
template <class Scalar, class QkRate, class OvRate, class State>
StabilityRow<Scalar> stability(const ReducedFlow<Scalar, QkRate, OvRate>& flow, const std::type_identity_t<Scalar>& t,
                               const State& x, const StabilityOptions& /*options*/ = {}) {
  return detail::planar_stability(flow.jacobian(x[0], x[1]), t, flow.loss(x[0], x[1]));
}
template <class Scalar>
StabilityRow<Scalar> stability(const FactorFlow<Scalar>& flow, const std::type_identity_t<Scalar>& t,
                               const typename FactorFlow<Scalar>::State& x, const StabilityOptions& /*options*/ = {}) {
  return detail::planar_stability(flow.jacobian(x), t, flow.loss(x));
}

/// The same for every row of a trajectory (`times` and `states`: a Solution, a DiscreteRun).
template <class Flow, class Run>
auto stability_along(Flow& flow, const Run& run, const StabilityOptions& options = {}) {
  using Scalar = typename Flow::scalar_type;
  std::vector<StabilityRow<Scalar>> rows;
  for (std::size_t i = 0; i < run.states.size(); ++i) {
    rows.push_back(stability(flow, run.times[i], run.states[i], options));
  }
  return rows;
}

/// A stretch of a trajectory on which a step is too large: h * sharpness >= 2.
template <class Scalar>
struct UnstableSpan {
  Scalar from = 0, to = 0;                 ///< times
  Scalar loss = 0;                         ///< where it begins
  bool at_start = false;                   ///< begins with the first row: the step was never stable
  bool at_end = false;                     ///< goes on to the last row
  SharpnessOf sharper = SharpnessOf::all;  ///< the circuit that is sharper by itself where it begins
};

/// Where a step is too large along a trajectory, in the order of time: the warning to give before anything is trained.
/// Between rows the logarithm of sharpness is taken as linear in t (sharpness itself where one is not positive): rows
/// must be close enough for that. The largest step that is stable throughout is the least `largest_step` of the rows.
///
/// On the flow these are predictions: training with the step follows the flow as far as the first span, and begins to
/// leave it there - as fast as |1 - h sharpness| per step, from whatever there is in that direction.
///
/// Throws InvalidArgument for a step that is not positive, or rows whose times do not ascend.
template <class Scalar>
std::vector<UnstableSpan<Scalar>> unstable_spans(const std::vector<StabilityRow<Scalar>>& rows,
                                                 const std::type_identity_t<Scalar>& step,
                                                 SharpnessOf which = SharpnessOf::all) {
  using std::exp;
  using std::log;
  constexpr const char* function = "unstable_spans";
  require_positive(function, "step", step);
  std::vector<UnstableSpan<Scalar>> spans;
  const Scalar limit = Scalar(2) / step;
  bool inside = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && !(rows[i].t >= rows[i - 1].t)) {
      throw_invalid(function, ("time of row " + to_text(i)).c_str(), rows[i].t, "be at least the time before");
    }
    const bool unstable = rows[i].of(which) >= limit;
    if (unstable == inside) continue;
    Scalar share(1);  // of the way from the row before to this one
    if (i > 0) {
      const Scalar before = rows[i - 1].of(which), after = rows[i].of(which);
      share = before > Scalar(0) && after > Scalar(0)
                  ? Scalar(log(Scalar(limit / before)) / log(Scalar(after / before)))
                  : Scalar((limit - before) / (after - before));
    }
    const auto between = [&](const Scalar& a, const Scalar& b) { return Scalar(a + share * (b - a)); };
    const StabilityRow<Scalar>& row = rows[i];
    const StabilityRow<Scalar>& last = rows[i > 0 ? i - 1 : 0];
    const Scalar t = between(last.t, row.t);
    if (unstable) {
      const bool logs = last.loss > Scalar(0) && row.loss > Scalar(0);
      const Scalar loss =
          logs ? Scalar(exp(between(Scalar(log(last.loss)), Scalar(log(row.loss))))) : between(last.loss, row.loss);
      spans.push_back({t, t, loss, i == 0, false, row.sharper()});
    } else {
      spans.back().to = t;
    }
    inside = unstable;
  }
  if (inside) {
    spans.back().to = rows.back().t;
    spans.back().at_end = true;
  }
  return spans;
}

/// The first of them: when, and at which loss, a step becomes unstable; none if it never does.
template <class Scalar>
std::optional<UnstableSpan<Scalar>> first_unstable(const std::vector<StabilityRow<Scalar>>& rows,
                                                   const std::type_identity_t<Scalar>& step,
                                                   SharpnessOf which = SharpnessOf::all) {
  const auto spans = unstable_spans(rows, step, which);
  if (spans.empty()) return std::nullopt;
  return spans.front();
}

/// The largest step that is stable at every row: 2 / the largest sharpness.
template <class Scalar>
Scalar largest_stable_step(const std::vector<StabilityRow<Scalar>>& rows, SharpnessOf which = SharpnessOf::all) {
  Scalar least = std::numeric_limits<Scalar>::infinity();
  for (const auto& row : rows) least = std::min(least, row.largest_step(which));
  return least;
}

}  // namespace qkflow
