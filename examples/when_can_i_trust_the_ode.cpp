// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// When can I trust the ODE? Every number of docs/when_can_i_trust_the_ode.md.

#include <Eigen/Core>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/compare/alignment.hpp"
#include "qkflow/compare/batch_study.hpp"
#include "qkflow/compare/continuous_limit.hpp"
#include "qkflow/compare/departure.hpp"
#include "qkflow/compare/descend.hpp"
#include "qkflow/compare/modified_flow.hpp"
#include "qkflow/compare/order_study.hpp"
#include "qkflow/compare/stability.hpp"
#include "qkflow/model/aligned_start.hpp"
#include "qkflow/task/block_dataset.hpp"

namespace {

using namespace qkflow;
using State = Eigen::VectorXd;

const BlockTask<double> task{.classes = 3, .block = 3, .informative = 2, .noise = 4};
const CircuitRates<double> rates{.qk = 2.5, .ov = 0.7};
const DatasetShape shape = BlockLayout::of(task).shape();

std::size_t steps(double end, double h) { return static_cast<std::size_t>(std::lround(end / h)); }

template <class Field>
State flow_at(Field& field, const State& start, double end) {
  return solve(field, start, {.t_end = end, .rtol = 1e-12, .atol = 1e-15}, {}, Fehlberg78{}).x;
}

// The block task with a fifth of the labels wrong: a minimum at finite weights.
Dataset<double> noisy_labels() {
  const auto clean = block_dataset(task);
  DatasetBuilder<double> builder(clean.shape());
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const auto from = clean[i];
    for (std::int32_t label = 0; label < 3; ++label) {
      Sequence<double> to{from.query, label, {}, from.null_count, label == from.label ? 0.8 : 0.1};
      for (std::size_t e = 0; e < from.tokens.size(); ++e) to.entries.push_back({from.tokens[e], from.counts[e], true});
      builder.add(to);
    }
  }
  return std::move(builder).build();
}

template <class Parameters>
void print_orders(const char* name, const Parameters& parameters) {
  MatrixFlow flow(parameters, block_dataset(task));
  const State start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  const State exact = flow_at(flow, start, 8);
  const auto descent = [&](double h) { return descend(flow, start, {.step = h, .steps = steps(8, h)}).x; };
  const OrderStudy one = order_study([&](double h) { return (descent(h) - exact).norm(); }, 1.0 / 8, 7);
  // [modified]
  const OrderStudy two = order_study(
      [&](double h) {
        ModifiedFlow modified(flow, h);
        return (descent(h) - flow_at(modified, start, 8)).norm();
      },
      1.0 / 8, 7);
  // [/modified]
  std::printf("%s   %.3f +- %.3f   %.1e    %.3f +- %.3f   %.1e\n", name, one.slope, one.half_width, one.rows[0].error,
              two.slope, two.half_width, two.rows[0].error);
}

void orders() {
  std::puts("orders: steps 1/8 to 1/1024, time 8");
  std::puts("       flow            error, 1/8   modified flow   error, 1/8");
  print_orders("CACO", caco_parameters<double>(shape, rates));
  print_orders("CAFO", cafo_parameters<double>(shape, 4, rates));
  print_orders("FACO", faco_parameters<double>(shape, 4, rates));
  print_orders("FAFO", fafo_parameters<double>(shape, 4, rates));
}

// Gradient descent with some steps, beside what sharpness along the flow says of them.
template <class Parameters>
void print_stability(const char* name, const Parameters& parameters, const Dataset<double>& data, const State& start,
                     double end, const std::vector<double>& shares) {
  MatrixFlow flow(parameters, data);
  // [warn]
  std::vector<double> times;
  for (int i = 0; i <= 40; ++i) times.push_back(end * i / 40);
  const auto path = solve(flow, start, {.t_end = end, .rtol = 1e-8, .save_times = times});
  const auto rows = stability_along(flow, path);
  const double largest = largest_stable_step(rows);
  // [/warn]
  std::printf("%s: sharpness %.3g at the start, %.3g at the end; largest stable step %.3g\n", name,
              rows.front().sharpness, rows.back().sharpness, largest);
  for (const double share : shares) {
    const double h = share * largest;
    const auto warning = first_unstable(rows, h);
    std::vector<double> losses;
    DescentOptions<State> options{.step = h, .steps = steps(end, h), .save_every = 1};
    options.on_step = [&](std::size_t, const State& x) { losses.push_back(flow.loss(x)); };
    const auto run = descend(flow, start, options);
    const auto along = stability_along(flow, run, {.per_circuit = false});
    const auto beside = solve(flow, start, {.t_end = run.t, .rtol = 1e-8, .save_times = run.times});
    std::vector<std::pair<std::size_t, double>> reference;
    for (std::size_t k = 0; k < run.saved_steps.size(); ++k) {
      reference.emplace_back(run.saved_steps[k], flow.loss(beside.states[k]));
    }
    const auto report = departure(losses, h, run.status, reference, along);
    std::printf("  %4.2f x: ", share);
    if (warning) {
      std::printf("unstable from t = %-5.3g", warning->from);
    } else {
      std::printf("stable                 ");
    }
    std::printf(" loss at the end %-8.2g (flow %.2g) %s", losses.back(), reference.back().second,
                to_string(report.kind));
    if (report.kind == DepartureKind::drift) std::printf(" at t = %.3g", report.left->t);
    if (report.first_rise) std::printf(", first rise at t = %.3g", report.first_rise->t);
    if (report.kind == DepartureKind::edge_of_stability) std::printf(", then h * sharpness = %.2f", report.hover);
    std::puts("");
  }
}

void steps_against_sharpness() {
  std::puts("\nsteps against sharpness");
  const auto factors = fafo_parameters<double>(shape, 4);
  const auto collapsed = caco_parameters<double>(shape, {.qk = 30, .ov = 1});
  print_stability("FAFO, wrong labels", factors, noisy_labels(), balanced_random_start(factors, 1, 0.5), 600,
                  {0.05, 0.2, 0.9, 1.1, 1.6, 2, 3});
  print_stability("FAFO, right labels", factors, block_dataset(task), balanced_random_start(factors, 1, 0.5), 600,
                  {0.05, 0.2, 0.9, 1.1, 1.6, 2, 3});
  print_stability("CACO, r = 30, right labels", collapsed, block_dataset(task), zero_start(collapsed), 600,
                  {0.05, 0.2, 0.9, 1.1, 2, 5});
}

void noise() {
  const auto parameters = caco_parameters<double>(shape, rates);
  MatrixFlow flow(parameters, block_dataset(task));
  const State start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  const State exact = flow_at(flow, start, 64);
  std::printf(
      "\nmini-batches: CACO, time 64, 4000 seeds; distances in parameters (the flow moves by %.2f)\n    h  batch  one "
      "run  systematic     chance  gradient descent - flow\n",
      (exact - start).norm());
  for (const double h : {0.5, 1.0, 2.0}) {
    const State descent = descend(flow, start, {.step = h, .steps = steps(64, h)}).x;
    const BatchStudy study = batch_study(parameters, block_dataset(task), start, descent, exact, {1, 2, 4},
                                         {.step = h, .steps = steps(64, h), .seeds = 4000, .threads = 0});
    for (const auto& row : study.rows) {
      const MeanDistance& d = row.to_descent;
      std::printf("%5.1f %6zu %8.2f %11.3f %10.3f %10.3f\n", h, row.batch, d.spread, d.systematic(), d.chance,
                  study.descent_to_flow);
    }
    std::printf("      slopes in 1/batch: one run %.2f, systematic %.2f\n", study.spread.slope, study.systematic.slope);
  }
}

void optimizers() {
  std::puts("\noptimizers: FAFO; distance from the flow they follow, and from the block task's line");
  const auto parameters = fafo_parameters<double>(shape, 4, rates);
  MatrixFlow flow(parameters, block_dataset(task));
  const State start = aligned_start(parameters, task, {.mu_ov = 0.3, .mu_qk = 0.2});
  const State rate = parameters.rates();
  const std::vector<double> each(rate.data(), rate.data() + rate.size());
  const MatrixObserver observe(flow, task);
  const auto line = [&](const char* name, double end, const auto& error, const auto& run, double h) {
    const OrderStudy study = order_study(error, h, 6);
    const auto seen = observe(run(h / 64));
    std::printf("%-34s order %.3f +- %.3f, error %.1e at h = %.1e, off the line by %.1e\n", name, study.slope,
                study.half_width, study.rows.back().error, end > 0 ? h / 64 : 0, seen.off_line);
  };
  const HeavyBall ball{.beta = 0.8};
  const auto roll = [&](double h) { return descend(flow, start, {.step = h, .steps = steps(8, h)}, ball).x; };
  HeavyBallFlow first(flow, ball, 0.0);
  const State limit = flow_at(first, start, 8);
  line(
      "heavy ball, F/(1 - beta)", 8, [&](double h) { return (roll(h) - limit).norm(); }, roll, 8.0 / 512);
  const auto second_order = [&](double h) {
    HeavyBallFlow second(flow, ball, h);
    return (roll(h) - flow_at(second, second.start(start), 8)).norm();
  };
  line("heavy ball, second order", 8, second_order, roll, 8.0 / 512);

  const double epsilon = 1e-3;
  const auto signs = [&](double h) {
    return descend(flow, start, {.step = h, .steps = steps(1, h)}, SignDescent{epsilon, each}).x;
  };
  const auto adam = [&](double h) {
    const AdamRule rule{.beta1 = 0.9, .beta2 = 0.99, .epsilon = epsilon, .rates = each};
    return descend(flow, start, {.step = h, .steps = steps(1, h)}, rule).x;
  };
  SignFlow sign_flow(flow, epsilon, each);
  const State sign_limit = solve(sign_flow, start, {.t_end = 1, .rtol = 1e-9, .atol = 1e-12, .max_steps = 200000}).x;
  line(
      "sign descent, sign flow", 1, [&](double h) { return (signs(h) - sign_limit).norm(); }, signs, 1.0 / 64);
  line(
      "Adam (0.9, 0.99), sign flow", 1, [&](double h) { return (adam(h) - sign_limit).norm(); }, adam, 1.0 / 1024);
}

void saddle() {
  std::puts("\nthe saddle: FAFO from mu = mu0 on the line, h = 1; time to loss 0.5");
  std::puts("     mu0     flow   training  difference");
  const auto parameters = fafo_parameters<double>(shape, 4);
  for (const double mu : {1e-1, 1e-2, 1e-4, 1e-6, 1e-8}) {
    MatrixFlow flow(parameters, block_dataset(task));
    const State start = aligned_start(parameters, task, {.mu_ov = mu, .mu_qk = mu});
    const auto exact = solve(flow, start, {.t_end = 1e5, .rtol = 1e-11, .atol = 1e-20}, {stop_at_loss(flow, 0.5)});
    DescentOptions<State> options{.step = 1, .steps = 100000};
    options.stop = [&](std::size_t, const State& x) { return flow.loss(x) <= 0.5; };
    const auto run = descend(flow, start, options);
    std::printf("%8.0e %8.1f %10.0f %10.2f\n", mu, exact.t, run.t, run.t - exact.t);
  }
}

}  // namespace

int main() {
  orders();
  steps_against_sharpness();
  noise();
  optimizers();
  saddle();
}
