// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/stability.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// How training with a finite step left the flow.
enum class DepartureKind {
  none,               ///< its loss never rises, and stays within the tolerance of the flow's, where that is given
  drift,              ///< leaves the tolerance without ever raising the loss: the step is coarse, not unstable
  oscillation,        ///< raises the loss now and then
  edge_of_stability,  ///< oscillates with h * sharpness about 2 along the run [Cohen21]
  catapult,           ///< one large rise, then below where it came from, at a place less sharp [Lewkowycz20]
  divergence          ///< a loss or state that is not finite, blows up, or ends above its start
};

constexpr const char* to_string(DepartureKind kind) {
  switch (kind) {
    case DepartureKind::none:
      return "follows the flow";
    case DepartureKind::drift:
      return "drifts off";
    case DepartureKind::oscillation:
      return "oscillates";
    case DepartureKind::edge_of_stability:
      return "edge of stability";
    case DepartureKind::catapult:
      return "catapult";
    case DepartureKind::divergence:
      return "diverges";
  }
  return "unknown";
}

struct DepartureOptions {
  double tolerance = 0.1;  ///< relative deviation of the loss from the flow's that counts as having left it
  double jump = 1.5;       ///< a catapult's peak is at least this many times the loss it came from
  double hover = 0.2;      ///< at the edge h * sharpness is 2 to within this share, in the mean over its rows
  /// A rise is one of more than this share of the loss: rounding is none.
  double rounding = 1e-9;

  void validate(const char* function) const {
    require_positive(function, "tolerance", tolerance);
    require_at_least(function, "jump", jump, 1.0);
    require_positive(function, "hover", hover);
    require_non_negative(function, "rounding", rounding);
  }
};

/// What became of a run.
template <class Scalar>
struct DepartureReport {
  struct Place {
    std::size_t step = 0;
    Scalar t = 0, loss = 0;  ///< of the run
  };
  DepartureKind kind = DepartureKind::none;
  std::optional<Place> left;        ///< the first reference row at which the loss is off by more than the tolerance
  std::optional<Place> first_rise;  ///< the first step that raised the loss (the place is after it)
  std::size_t rises = 0;            ///< steps that raised it
  std::optional<Place> peak;        ///< the top of the largest rise, if that is a jump
  Scalar jump = 1;                  ///< the largest rise: the loss over the lowest before it
  std::optional<Place> recovered;   ///< the first step after the peak below the loss before it
  /// Mean and largest h * sharpness over the rows along the run from its first rise on; NaN without such rows.
  Scalar hover = std::numeric_limits<Scalar>::quiet_NaN(), hover_largest = std::numeric_limits<Scalar>::quiet_NaN();
  std::optional<SharpnessOf> circuit;  ///< the sharper circuit at the row nearest to the first rise, or to `left`
  std::string message;
};

/// Looks at what a run did.
///
/// `losses` are those of the run after 0, 1, 2, ... steps; `reference` pairs of step and the flow's loss at that time,
/// may be empty; `along` the stability rows of the run itself (stability_along of its saved states), may be empty.
/// `status` is how the run ended.
///
/// Throws InvalidArgument for a step that is not positive, no losses, or a reference step beyond them.
template <class Scalar>
DepartureReport<Scalar> departure(const std::vector<Scalar>& losses, const std::type_identity_t<Scalar>& step,
                                  DescentStatus status,
                                  const std::vector<std::pair<std::size_t, Scalar>>& reference = {},
                                  const std::vector<StabilityRow<Scalar>>& along = {},
                                  const DepartureOptions& options = {}) {
  constexpr const char* function = "departure";
  using std::abs;
  using std::isfinite;
  using Place = typename DepartureReport<Scalar>::Place;
  require_positive(function, "step", step);
  options.validate(function);
  if (losses.empty()) throw_invalid(function, "number of losses", losses.size(), "be at least 1");
  DepartureReport<Scalar> report;
  const auto place = [&](std::size_t k) { return Place{k, Scalar(k) * step, losses[k]}; };

  for (const auto& [k, loss] : reference) {
    if (k >= losses.size()) throw_invalid(function, "step of the reference", k, "be below the number of losses");
    if (abs(Scalar(losses[k] - loss)) <= Scalar(options.tolerance) * loss) continue;
    report.left = place(k);
    break;
  }
  // One pass: the lowest loss so far, the largest jump above it, and when the run is below that again.
  Scalar lowest = losses[0], before_peak = losses[0];
  std::size_t peak = 0;
  for (std::size_t k = 1; k < losses.size(); ++k) {
    if (!(losses[k] <= losses[k - 1] * (Scalar(1) + Scalar(options.rounding)))) {
      ++report.rises;
      if (!report.first_rise) report.first_rise = place(k);
    }
    if (losses[k] > report.jump * lowest) {
      report.jump = losses[k] / lowest;
      before_peak = lowest;
      peak = k;
      report.recovered.reset();
    }
    if (peak > 0 && !report.recovered && losses[k] < before_peak) report.recovered = place(k);
    if (losses[k] < lowest) lowest = losses[k];
  }
  if (report.jump >= Scalar(options.jump)) {
    report.peak = place(peak);
  } else {
    report.recovered.reset();
  }

  const std::optional<Place> event = report.first_rise ? report.first_rise : report.left;
  if (event && !along.empty()) {
    const auto nearest = std::min_element(along.begin(), along.end(), [&](const auto& a, const auto& b) {
      return abs(Scalar(a.t - event->t)) < abs(Scalar(b.t - event->t));
    });
    report.circuit = nearest->sharper();
    Scalar sum(0);
    std::size_t count = 0;
    for (const auto& row : along) {
      if (!report.first_rise || row.t < report.first_rise->t) continue;
      const Scalar product = step * row.sharpness;
      if (count == 0 || product > report.hover_largest) report.hover_largest = product;
      sum += product;
      ++count;
    }
    if (count > 0) report.hover = sum / Scalar(count);
  }

  const bool failed = status == DescentStatus::non_finite || status == DescentStatus::blew_up ||
                      !isfinite(losses.back()) || losses.back() > losses.front();
  if (failed) {
    report.kind = DepartureKind::divergence;
  } else if (report.peak && report.recovered) {
    report.kind = DepartureKind::catapult;
  } else if (report.rises > 0) {
    const bool at_edge = abs(Scalar(report.hover - Scalar(2))) <= Scalar(2 * options.hover);
    report.kind = at_edge ? DepartureKind::edge_of_stability : DepartureKind::oscillation;
  } else if (report.left) {
    report.kind = DepartureKind::drift;
  }
  report.message = to_string(report.kind);
  if (report.kind == DepartureKind::none && reference.empty()) report.message = "never raises the loss";
  if (report.left) report.message += "; off the flow's loss from step " + to_text(report.left->step);
  if (report.first_rise) {
    report.message += "; raises the loss at step " + to_text(report.first_rise->step) + " for the first of " +
                      to_text(report.rises) + " times";
  }
  return report;
}

}  // namespace qkflow
