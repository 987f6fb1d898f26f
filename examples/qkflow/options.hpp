// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow_program {

/// What the program is told about the task, the head and the start: shared by every command on the reduced flow.
struct FlowOptions {
  std::string parameterization = "CACO";
  qkflow::BlockTask<double> task{};
  qkflow::LearningRates<double> rates{};
  qkflow::ReducedState<double> start{};
  std::optional<double> lambda_qk{}, lambda_ov{};  // imbalance of the factors
  std::optional<int> factors_qk{}, factors_ov{};   // how many factors
};

/// A number of the command line. CLI11 would read it through the C locale and take 1e400 for infinity.
double parse_number(const std::string& option, const std::string& text);
int parse_count(const std::string& option, const std::string& text);

/// Adds options whose values are checked by `parse_number`; a default is shown in the help, an optional has none.
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, const std::string& symbol,
                        const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<double>& value, const std::string& symbol,
                        const std::string& description);
CLI::Option* add_count(CLI::App& app, const std::string& name, int& value, const std::string& symbol,
                       const std::string& description);
CLI::Option* add_count(CLI::App& app, const std::string& name, std::optional<int>& value, const std::string& symbol,
                       const std::string& description);
/// One of some names, compared without regard to case and stored as listed.
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, std::vector<std::string> choices,
                        const std::string& description);

void add_task_options(CLI::App& app, FlowOptions& options);
void add_parameterization_options(CLI::App& app, FlowOptions& options);
void add_rate_options(CLI::App& app, FlowOptions& options, const std::string& group = "Learning rates");
void add_start_options(CLI::App& app, FlowOptions& options);
void add_csv_option(CLI::App& app, std::string& csv);

/// Calls `callback(qk, ov)` with the rate factors a parameterization's name and the factor options stand for: the one
/// place where names become types.
template <class Callback>
auto with_parameterization(const FlowOptions& options, Callback&& callback) {
  // The name reads <C|F>A<C|F>O.
  const auto with_factor = [](bool factorized, const char* circuit, const std::optional<double>& lambda,
                              const std::optional<int>& factors, const auto& next) {
    const auto refuse = [&](const char* option, const auto& value, const std::string& must) {
      qkflow::throw_invalid("options", (std::string(option) + circuit).c_str(), value, must);
    };
    if (!factorized) {
      if (lambda) refuse("lambda-", *lambda, "be left out: this circuit is collapsed in this parameterization");
      if (factors) refuse("factors-", *factors, "be left out: this circuit is collapsed in this parameterization");
      return next(qkflow::Collapsed{});
    }
    if (lambda && factors) refuse("lambda-", *lambda, "be left out where the number of factors is given");
    if (lambda) return next(qkflow::Unbalanced<double>{*lambda});
    if (factors) return next(qkflow::FactorProduct{*factors});
    return next(qkflow::Balanced{});
  };
  return with_factor(options.parameterization.at(0) == 'F', "qk", options.lambda_qk, options.factors_qk,
                     [&](const auto& qk) {
                       return with_factor(options.parameterization.at(2) == 'F', "ov", options.lambda_ov,
                                          options.factors_ov, [&](const auto& ov) { return callback(qk, ov); });
                     });
}

/// Calls `callback(flow)` with the `ReducedFlow` the options describe, checked.
template <class Callback>
auto with_reduced_flow(const FlowOptions& options, Callback&& callback) {
  return with_parameterization(options, [&]<class Qk, class Ov>(const Qk& qk, const Ov& ov) {
    const qkflow::ReducedFlow<double, Qk, Ov> flow{options.task, options.rates, qk, ov};
    flow.validate("options");
    return callback(flow);
  });
}

/// Says on standard error where the two scalars are not the whole truth.
template <class Flow>
void note_if_approximate(const Flow& flow) {
  if (flow.is_exact()) return;
  fmt::print(stderr,
             "note: with factorized attention and a finite noise vocabulary the two scalars approximate the head\n");
}

}  // namespace qkflow_program
