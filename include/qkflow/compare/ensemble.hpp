// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/compare/layout_conversion.hpp"
#include "qkflow/compare/student_t.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/task/dataset.hpp"
#include "qkflow/train/dataset_sampler.hpp"
#include "qkflow/train/trainer.hpp"

namespace qkflow {

/// Some numbers of one kind: one a seed.
struct SampleStatistics {
  std::size_t count = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();       ///< standard deviation, over count - 1
  double standard_error = std::numeric_limits<double>::quiet_NaN();  ///< of the mean
  /// The mean of the population lies within mean +- half_width with the confidence asked for, if the numbers are
  /// normal and independent (Student t). Infinite below two numbers.
  double half_width = std::numeric_limits<double>::infinity();

  double low() const { return mean - half_width; }
  double high() const { return mean + half_width; }
};

/// Throws InvalidArgument for no numbers or a confidence that is not between 0 and 1.
inline SampleStatistics sample_statistics(const std::vector<double>& values, double confidence = 0.95) {
  constexpr const char* function = "sample_statistics";
  if (values.empty()) throw_invalid(function, "number of values", values.size(), "be at least 1");
  if (!(confidence > 0 && confidence < 1)) throw_invalid(function, "confidence", confidence, "be between 0 and 1");
  SampleStatistics result;
  result.count = values.size();
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  result.mean = sum / n;
  if (values.size() < 2) return result;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(squares / (n - 1));
  result.standard_error = result.deviation / std::sqrt(n);
  result.half_width = student_t_factor(confidence, values.size() - 1) * result.standard_error;
  return result;
}

/// How an ensemble of SGD runs is made.
struct EnsembleOptions {
  double step = 0;               ///< h: each learning rate is h times that of the parameters
  std::uint64_t steps = 0;       ///< of each run
  std::size_t batch = 32;        ///< sequences a step
  std::size_t seeds = 16;        ///< runs, at least 1
  std::uint64_t first_seed = 0;  ///< the runs draw with seeds first_seed, first_seed + 1, ...
  BatchOrder order = BatchOrder::replacement;
  OptimizerOptions optimizer{};
  std::vector<std::uint64_t> save_steps{};  ///< ascending; empty: the end alone
  int threads = 1;                          ///< runs at a time; 0: one a core. Never changes a bit of the result
  double diverged_above = 1e6;              ///< a run whose batch loss exceeds this has failed
  const std::atomic<bool>* cancel = nullptr;

  void validate(const char* function) const {
    require_positive(function, "step", step);
    if (seeds < 1) throw_invalid(function, "seeds", seeds, "be at least 1");
    for (std::size_t i = 0; i < save_steps.size(); ++i) {
      const std::uint64_t least = i == 0 ? 0 : save_steps[i - 1] + 1;
      if (save_steps[i] < least || save_steps[i] > steps) {
        throw_invalid(function, ("save_steps[" + to_text(i) + "]").c_str(), save_steps[i],
                      "be at least " + to_text(least) + " and at most steps = " + to_text(steps));
      }
    }
  }
};

/// An ensemble of runs that differ in their seed alone. `states[row][seed]` is a flat vector of the parameters.
struct Ensemble {
  std::vector<std::uint64_t> saved_steps;  ///< of each row
  std::vector<double> times;               ///< h * step
  std::vector<std::vector<Eigen::VectorXd>> states;
  std::vector<std::uint64_t> failed;  ///< seeds whose run diverged: in none of the states
  bool cancelled = false;             ///< runs not finished by then are missing

  std::size_t seeds() const { return states.empty() ? 0 : states.front().size(); }
  /// The mean over seeds at a row.
  Eigen::VectorXd mean(std::size_t row) const {
    const auto& all = states.at(row);
    Eigen::VectorXd sum = all.front();
    for (std::size_t s = 1; s < all.size(); ++s) sum += all[s];
    return sum / static_cast<double>(all.size());
  }
  /// Any number read off a state, over seeds, at a row: mean, deviation, band.
  template <class Quantity>
  SampleStatistics statistics(std::size_t row, const Quantity& quantity, double confidence = 0.95) const {
    std::vector<double> values;
    for (const auto& state : states.at(row)) values.push_back(static_cast<double>(quantity(state)));
    return sample_statistics(values, confidence);
  }
};

/// Mini-batch SGD on a finite dataset, once for every seed, with the Trainer in double, from one start. Runs share
/// nothing and are spread over threads; the result is the same bits for any number of them. With BatchOrder::full all
/// seeds are gradient descent.
///
/// Memory: seeds x rows x parameters doubles.
///
/// Throws InvalidArgument for options or parameters that are not allowed, or a dataset whose sequences differ in
/// weight unless `order` is full: the mean gradient of a batch would not be that of the dataset.
template <class Qk, class Ov>
Ensemble sgd_ensemble(const HeadParameters<Qk, Ov>& parameters, const Dataset<double>& dataset,
                      const Eigen::VectorXd& start, const EnsembleOptions& options,
                      const HeadOptions<double>& head = {}) {
  constexpr const char* function = "sgd_ensemble";
  options.validate(function);
  if (options.order != BatchOrder::full) {
    for (std::size_t i = 1; i < dataset.size(); ++i) {
      if (dataset[i].weight != dataset[0].weight) {
        throw_invalid(function, ("weight of sequence " + to_text(i)).c_str(), dataset[i].weight,
                      "be that of sequence 0, " + to_text(dataset[0].weight));
      }
    }
  }
  const OneHotLayout<double> layout = training_layout<double>(parameters);
  const std::vector<double> flat = to_training(parameters, layout, start);
  TrainingOptions<double> training;
  training.steps = options.steps;
  training.head = head;
  training.rates = training_rates(parameters, options.step);
  training.optimizer = options.optimizer;
  training.diverged_above = options.diverged_above;
  DatasetSamplerOptions sampling{options.order, options.batch, options.first_seed};
  { const DatasetSampler<double> checked(dataset, sampling); }  // refuses a bad batch before any thread starts

  Ensemble ensemble;
  ensemble.saved_steps = options.save_steps;
  if (ensemble.saved_steps.empty()) ensemble.saved_steps.push_back(options.steps);
  for (const auto step : ensemble.saved_steps) ensemble.times.push_back(options.step * static_cast<double>(step));

  enum class Fate { missing, done, failed };
  std::vector<Fate> fate(options.seeds, Fate::missing);
  std::vector<std::vector<Eigen::VectorXd>> rows(options.seeds);
  const auto cancelled = [&] { return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed); };
  const auto run = [&](std::size_t i) {
    if (cancelled()) return;
    DatasetSamplerOptions own = sampling;
    own.seed = options.first_seed + i;
    Trainer<double, DatasetSampler<double>> trainer(layout, training, DatasetSampler<double>(dataset, own), flat);
    for (const std::uint64_t until : ensemble.saved_steps) {
      while (trainer.step() < until && trainer.status() == TrainingStatus::running) {
        if (trainer.step() % 256 == 255 && cancelled()) return;
        trainer.advance();
      }
      Eigen::VectorXd theta;
      from_training(parameters, layout, trainer.theta(), theta);
      if (trainer.step() < until || !theta.allFinite()) {
        fate[i] = Fate::failed;
        return;
      }
      rows[i].push_back(std::move(theta));
    }
    fate[i] = Fate::done;
  };
  ThreadPool pool(options.threads);
  pool.for_each(options.seeds, [&](std::size_t i, std::size_t) { run(i); });

  ensemble.states.resize(ensemble.saved_steps.size());
  for (std::size_t i = 0; i < options.seeds; ++i) {
    if (fate[i] == Fate::failed) ensemble.failed.push_back(options.first_seed + i);
    ensemble.cancelled = ensemble.cancelled || fate[i] == Fate::missing;
    if (fate[i] != Fate::done) continue;
    for (std::size_t r = 0; r < rows[i].size(); ++r) ensemble.states[r].push_back(std::move(rows[i][r]));
  }
  return ensemble;
}

}  // namespace qkflow
