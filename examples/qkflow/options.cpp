// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

namespace qkflow_program {

namespace {

template <class Number>
Number parse(const std::string& option, const std::string& text, const char* kind) {
  const char* first = text.data();
  const char* last = first + text.size();
  if (first != last && *first == '+') ++first;
  Number value{};
  const auto [end, error] = std::from_chars(first, last, value);
  if (error == std::errc::result_out_of_range) {
    throw qkflow::InvalidArgument(option + " = " + text + ", but it must be within the range of " + kind);
  }
  if (error != std::errc() || end != last) {
    throw qkflow::InvalidArgument(option + " = " + text + ", but it must be " + kind);
  }
  return value;
}

template <class Value, class Parse>
CLI::Option* add(CLI::App& app, const std::string& name, Value& value, const std::string& symbol,
                 const std::string& description, Parse parse_text) {
  CLI::Option* option = app.add_option(
      name,
      [name, &value, parse_text](const CLI::results_t& results) {
        value = parse_text(name, results.back());
        return true;
      },
      description);
  option->type_name(symbol);
  return option;
}

}  // namespace

double parse_number(const std::string& option, const std::string& text) {
  return parse<double>(option, text, "a number");
}

int parse_count(const std::string& option, const std::string& text) {
  return parse<int>(option, text, "a whole number");
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, const std::string& symbol,
                        const std::string& description) {
  return add(app, name, value, symbol, description, parse_number)->default_str(qkflow::to_text(value));
}

CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<double>& value, const std::string& symbol,
                        const std::string& description) {
  return add(app, name, value, symbol, description, parse_number);
}

CLI::Option* add_count(CLI::App& app, const std::string& name, int& value, const std::string& symbol,
                       const std::string& description) {
  return add(app, name, value, symbol, description, parse_count)->default_str(qkflow::to_text(value));
}

CLI::Option* add_count(CLI::App& app, const std::string& name, std::optional<int>& value, const std::string& symbol,
                       const std::string& description) {
  return add(app, name, value, symbol, description, parse_count);
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, std::vector<std::string> choices,
                        const std::string& description) {
  const std::string symbol = fmt::format("{}", fmt::join(choices, "|"));
  const auto lower = [](std::string text) { return CLI::detail::to_lower(std::move(text)); };
  const auto choose = [choices = std::move(choices), lower](const std::string& option, const std::string& text) {
    for (const std::string& choice : choices) {
      if (lower(choice) == lower(text)) return choice;
    }
    throw qkflow::InvalidArgument(
        fmt::format("{} = {}, but it must be one of {}", option, text, fmt::join(choices, ", ")));
  };
  return add(app, name, value, symbol, description, choose)->default_str(value);
}

void add_task_options(CLI::App& app, FlowOptions& options) {
  auto& task = options.task;
  const auto in_group = [](CLI::Option* option) { option->group("Block task"); };
  in_group(add_number(app, "--classes", task.classes, "M", "classes"));
  in_group(add_number(app, "--block", task.block, "b", "informative tokens, and query tokens, of a class"));
  in_group(add_number(app, "--informative", task.informative, "m", "informative tokens in a sequence"));
  in_group(add_number(app, "--noise", task.noise, "n", "noise tokens in a sequence"));
  in_group(add_number(app, "--noise-vocabulary", task.noise_vocabulary, "N",
                      "one-hot noise tokens to draw from; inf: noise has a null embedding"));
  in_group(add_number(app, "--score-scale", task.score_scale, "s", "factor on the attention scores"));
}

void add_parameterization_options(CLI::App& app, FlowOptions& options) {
  const auto in_group = [](CLI::Option* option) { option->group("Parameterization"); };
  in_group(add_choice(app, "--parameterization", options.parameterization, {"CACO", "CAFO", "FACO", "FAFO"},
                      "C: one matrix, F: a product of two; A: attention (QK), O: output (OV)"));
  in_group(add_number(app, "--lambda-qk", options.lambda_qk, "lambda",
                      "imbalance w_1^2 - w_2^2 of the attention factors (default: balanced)"));
  in_group(add_number(app, "--lambda-ov", options.lambda_ov, "lambda", "the same of the output factors"));
  in_group(add_count(app, "--factors-qk", options.factors_qk, "N", "number of attention factors (default: two)"));
  in_group(add_count(app, "--factors-ov", options.factors_ov, "N", "number of output factors (default: two)"));
}

void add_rate_options(CLI::App& app, FlowOptions& options, const std::string& group) {
  const auto in_group = [&](CLI::Option* option) { option->group(group); };
  in_group(add_number(app, "--eta-ov", options.rates.ov, "eta_OV", "learning rate of the output circuit"));
  in_group(add_number(app, "--eta-qk", options.rates.qk, "eta_QK", "learning rate of the attention circuit"));
}

void add_start_options(CLI::App& app, FlowOptions& options) {
  const auto in_group = [](CLI::Option* option) { option->group("Start"); };
  in_group(add_number(app, "--mu-ov0", options.start.mu_ov, "mu_OV", "output strength at the start"));
  in_group(add_number(app, "--mu-qk0", options.start.mu_qk, "mu_QK",
                      "informative score at the start (a factorized circuit never leaves 0)"));
}

void add_csv_option(CLI::App& app, std::string& csv) {
  app.add_option("--csv", csv, "file to write; -: standard output")->type_name("FILE")->capture_default_str();
}

}  // namespace qkflow_program
