// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/compare/student_t.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// Whether a row of an order study counts, and why not.
enum class OrderRow {
  used,
  plateau,  ///< the error no longer falls, or is not far enough above where it stays: round-off, solver tolerance
  failed    ///< no positive number: the run did not reach its end, or agrees to the last bit
};

constexpr const char* to_string(OrderRow row) {
  switch (row) {
    case OrderRow::used:
      return "used";
    case OrderRow::plateau:
      return "plateau";
    case OrderRow::failed:
      return "failed";
  }
  return "unknown";
}

struct OrderStudyOptions {
  double confidence = 0.95;  ///< of the interval slope +- half_width
  /// An error level known not to come from the step (the reference's tolerance, say); 0: none known.
  double floor = 0;
  double margin = 30;  ///< errors count where they exceed the plateau, or the floor, this many times
  bool find_plateau = true;
  /// A plateau is where the error falls at less than this share of the slope found before it, down to the last step.
  double stall = 0.5;

  void validate(const char* function) const {
    if (!(confidence > 0 && confidence < 1)) throw_invalid(function, "confidence", confidence, "be between 0 and 1");
    require_non_negative(function, "floor", floor);
    require_at_least(function, "margin", margin, 1.0);
    if (!(stall > 0 && stall < 1)) throw_invalid(function, "stall", stall, "be between 0 and 1");
  }
};

/// How an error depends on a step: error ~ C step^slope.
struct OrderStudy {
  struct Row {
    double step, error;
    OrderRow used;
    double local_slope;  ///< from the row before to this one; NaN for the first and beside a failed row
  };
  std::vector<Row> rows;  ///< by descending step

  double slope = std::numeric_limits<double>::quiet_NaN();      ///< least squares of log error over log step
  double half_width = std::numeric_limits<double>::infinity();  ///< of its confidence interval (Student t)
  double constant = std::numeric_limits<double>::quiet_NaN();   ///< C
  double plateau = 0;                                           ///< the error that stays; 0: none seen
  std::size_t used = 0;                                         ///< rows that count

  bool contains(double order) const { return std::abs(slope - order) <= half_width; }
};

/// Fits an order to measured errors. Rows on the plateau and failed rows are marked and left out. The interval tells
/// how well the rows lie on one line: where the step is too large for the order to show, it is wide or off its mark.
/// With fewer than three rows there is no interval, with fewer than two no slope.
///
/// Throws InvalidArgument for lists of different lengths, steps that are not positive, or a step given twice.
inline OrderStudy fit_order(const std::vector<double>& steps, const std::vector<double>& errors,
                            const OrderStudyOptions& options = {}) {
  constexpr const char* function = "fit_order";
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  options.validate(function);
  if (steps.size() != errors.size()) {
    throw_invalid(function, "number of errors", errors.size(), "be that of steps, " + to_text(steps.size()));
  }
  OrderStudy study;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    require_positive(function, ("steps[" + to_text(i) + "]").c_str(), steps[i]);
    const bool good = std::isfinite(errors[i]) && errors[i] > 0;
    study.rows.push_back({steps[i], errors[i], good ? OrderRow::used : OrderRow::failed, nan});
  }
  auto& rows = study.rows;
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.step > b.step; });

  std::vector<double> slopes;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].step == rows[i - 1].step) throw_invalid(function, "step", rows[i].step, "be given once");
    if (rows[i].used == OrderRow::failed || rows[i - 1].used == OrderRow::failed) continue;
    rows[i].local_slope = std::log(rows[i - 1].error / rows[i].error) / std::log(rows[i - 1].step / rows[i].step);
  }
  // A plateau begins after a row if no later one falls below the line of `stall` times the usual slope through it. A
  // stall that is made up for at smaller steps is none.
  for (std::size_t i = 1; options.find_plateau && i < rows.size(); ++i) {
    const auto& before = rows[i - 1];
    if (std::isfinite(before.local_slope)) slopes.push_back(before.local_slope);
    if (slopes.empty() || before.used == OrderRow::failed) continue;
    const auto middle = slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2);
    std::nth_element(slopes.begin(), middle, slopes.end());
    const double lowest = options.stall * *middle;
    const bool stays =
        lowest > 0 && std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(i), rows.end(), [&](auto& row) {
          return row.used == OrderRow::used && row.error > before.error * std::pow(row.step / before.step, lowest);
        });
    if (!stays) continue;
    for (std::size_t j = i; j < rows.size(); ++j) {
      rows[j].used = OrderRow::plateau;
      study.plateau = std::max(study.plateau, rows[j].error);
    }
    break;
  }
  const double least = options.margin * std::max(options.floor, study.plateau);
  for (auto& row : rows) {
    if (row.used == OrderRow::used && row.error <= least) row.used = OrderRow::plateau;
  }

  double n = 0, x_mean = 0, y_mean = 0;
  for (const auto& row : rows) {
    if (row.used != OrderRow::used) continue;
    n += 1;
    x_mean += (std::log(row.step) - x_mean) / n;
    y_mean += (std::log(row.error) - y_mean) / n;
  }
  study.used = static_cast<std::size_t>(n);
  if (study.used < 2) return study;
  double xx = 0, xy = 0, residual = 0;
  const auto sum = [&](auto&& body) {
    for (const auto& row : rows) {
      if (row.used == OrderRow::used) body(std::log(row.step) - x_mean, std::log(row.error) - y_mean);
    }
  };
  sum([&](double x, double y) {
    xx += x * x;
    xy += x * y;
  });
  study.slope = xy / xx;
  study.constant = std::exp(y_mean - study.slope * x_mean);
  sum([&](double x, double y) { residual += (y - study.slope * x) * (y - study.slope * x); });
  if (study.used > 2) {
    study.half_width = student_t_factor(options.confidence, study.used - 2) * std::sqrt(residual / (n - 2) / xx);
  }
  return study;
}

/// Measures an order: calls `error(step)` for `first_step` and `halvings` halvings of it, largest first, and fits. An
/// error that is NaN marks a failed run. To compare at one time T let first_step be T over a whole number.
template <class Error>
OrderStudy order_study(Error&& error, double first_step, int halvings, const OrderStudyOptions& options = {}) {
  require_positive("order_study", "first_step", first_step);
  if (halvings < 1) throw_invalid("order_study", "halvings", halvings, "be at least 1");
  std::vector<double> steps, errors;
  double step = first_step;
  for (int i = 0; i <= halvings; ++i) {
    steps.push_back(step);
    errors.push_back(static_cast<double>(error(step)));
    step /= 2;
  }
  return fit_order(steps, errors, options);
}

}  // namespace qkflow
