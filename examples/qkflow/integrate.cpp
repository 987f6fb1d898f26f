// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "integrate.hpp"

#include <cmath>
#include <cstddef>
#include <stdexcept>

#include "options.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/report/progress.hpp"

namespace qkflow_program {

namespace {

using State = ErasedFlow::State;

// The one place where steppers' names become types.
template <class Callback>
auto with_stepper(const std::string& name, Callback&& callback) {
  if (name == qkflow::RungeKutta4::name) return callback(qkflow::RungeKutta4{});
  if (name == qkflow::CashKarp54::name) return callback(qkflow::CashKarp54{});
  if (name == qkflow::DormandPrince5::name) return callback(qkflow::DormandPrince5{});
  if (name == qkflow::DormandPrince5Dense::name) return callback(qkflow::DormandPrince5Dense{});
  if (name == qkflow::BulirschStoer::name) return callback(qkflow::BulirschStoer{});
  return callback(qkflow::Fehlberg78{});
}

qkflow::TimedPoint<double> row(const ErasedFlow& flow, double t, const State& x) {
  const qkflow::ReducedPoint<double> point = flow.point(x[0], x[1]);
  return {t, point.mu_ov, point.mu_qk, point.alpha, point.loss};
}

}  // namespace

void add_integration_options(CLI::App& app, IntegrationOptions& options) {
  const auto in_group = [](CLI::Option* option) { option->group("Integration"); };
  in_group(add_choice(app, "--stepper", options.stepper,
                      {"rk4", "cash-karp", "dopri5", "dopri5-dense", "fehlberg78", "bulirsch-stoer"},
                      "Boost.Odeint stepper; all but rk4 choose their steps"));
  in_group(add_number(app, "--rtol", options.rtol, "x", "relative error allowed in a step"));
  in_group(add_number(app, "--atol", options.atol, "x", "absolute error allowed in a step"));
  in_group(
      add_number(app, "--step", options.step, "dt", "step of rk4, first step of the others; 0: chosen (not by rk4)"));
  in_group(add_count(app, "--max-steps", options.max_steps, "k", "give up after so many steps"));
}

Integrated integrate(const ErasedFlow& flow, const qkflow::ReducedState<double>& start, const End& end,
                     const std::vector<double>& times, const IntegrationOptions& options,
                     const std::vector<double>& losses) {
  if (options.max_steps < 1) qkflow::throw_invalid("options", "max-steps", options.max_steps, "be at least 1");
  qkflow::Progress progress("integrating", 0);
  qkflow::SolveOptions<State> solve_options{.rtol = options.rtol,
                                            .atol = options.atol,
                                            .first_step = options.step,
                                            .max_steps = static_cast<std::size_t>(options.max_steps),
                                            .save_times = times,
                                            .cancel = &qkflow::interrupt_flag()};
  if (progress.visible()) {
    solve_options.on_step = [&progress](const double&, const State&, const qkflow::SolveStatistics& statistics) {
      progress.update(static_cast<double>(statistics.steps));
    };
  }
  std::vector<qkflow::Stop<State>> stops;
  if (end.time) solve_options.t_end = *end.time;
  // The logarithm of the loss varies evenly where the loss itself spans decades.
  const auto falls_to = [&flow](double loss, bool terminal) {
    return qkflow::Stop<State>{
        .name = "loss",
        .g = [&flow, loss](const double&, const State& x) { return std::log(flow.point(x[0], x[1]).loss / loss); },
        .direction = qkflow::Direction::falling,
        .terminal = terminal};
  };
  for (const double loss : losses) stops.push_back(falls_to(loss, false));
  if (end.loss) stops.push_back(falls_to(*end.loss, true));
  if (end.alpha) {
    stops.push_back({.name = "alpha",
                     .g = [&](const double&, const State& x) { return flow.point(x[0], x[1]).alpha - *end.alpha; }});
  }
  const State x0(start.mu_ov, start.mu_qk);
  const qkflow::Solution<State> solution = with_stepper(
      options.stepper, [&](auto method) { return qkflow::solve(flow.field, x0, solve_options, stops, method); });
  progress.finish();
  if (solution.status == qkflow::Status::cancelled) {
    throw qkflow::Interrupted("interrupted at t = " + qkflow::to_text(solution.t) + "; nothing was written");
  }
  if (!solution.success()) throw std::runtime_error("integration: " + solution.message);

  Integrated result{{}, {}, solution.statistics};
  for (std::size_t i = 0; i < solution.times.size(); ++i) {
    if (solution.times[i] < solution.t) result.rows.push_back(row(flow, solution.times[i], solution.states[i]));
  }
  result.rows.push_back(row(flow, solution.t, solution.x));
  for (const auto& event : solution.events) result.at_losses.push_back(row(flow, event.t, event.x));
  return result;
}

}  // namespace qkflow_program
