// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdlib>
#include <string_view>
#include <type_traits>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "support/golden.hpp"
#include "support/precise.hpp"

namespace qkflow_test {

/// A golden text as a number of the wanted type, all its digits.
template <class Scalar>
Scalar read(const char* text) {
  if constexpr (std::is_same_v<Scalar, long double>) return std::strtold(text, nullptr);
  if constexpr (std::is_floating_point_v<Scalar>) return static_cast<Scalar>(std::strtod(text, nullptr));
  if constexpr (!std::is_floating_point_v<Scalar>) return Scalar(text);
}

template <class Scalar, class Flow>
Flow flow_of(const Golden& row) {
  Flow flow;
  flow.task.classes = read<Scalar>(row.classes);
  flow.task.block = read<Scalar>(row.block);
  flow.task.informative = read<Scalar>(row.informative);
  flow.task.noise = read<Scalar>(row.noise);
  flow.rates.ov = read<Scalar>(row.eta_ov);
  flow.rates.qk = read<Scalar>(row.eta_qk);
  return flow;
}

/// Calls `action(flow, start, row)` for every golden row with the flow type of its parameterization.
template <class Scalar, class Action>
void for_each_golden(const Action& action) {
  for (const Golden& row : golden) {
    const qkflow::ReducedState<Scalar> start{read<Scalar>(row.mu_ov0), read<Scalar>(row.mu_qk0)};
    const std::string_view name = row.parameterization;
    if (name == "CACO") action(flow_of<Scalar, qkflow::Caco<Scalar>>(row), start, row);
    if (name == "CAFO") action(flow_of<Scalar, qkflow::Cafo<Scalar>>(row), start, row);
    if (name == "FACO") action(flow_of<Scalar, qkflow::Faco<Scalar>>(row), start, row);
    if (name == "FAFO") action(flow_of<Scalar, qkflow::Fafo<Scalar>>(row), start, row);
  }
}

/// |value / exact - 1| formed in 50 digits.
template <class Scalar>
Scalar relative_error(const Scalar& value, const Precise& exact) {
  if (exact == 0) return value == Scalar(0) ? Scalar(0) : Scalar(1);
  return static_cast<Scalar>(abs((Precise(value) - exact) / exact));
}

}  // namespace qkflow_test
