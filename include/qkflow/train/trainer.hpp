// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/io/checkpoint.hpp"
#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/train/batch_gradient.hpp"
#include "qkflow/train/optimizer.hpp"
#include "qkflow/train/schedule.hpp"

namespace qkflow {

/// Where batches come from: `source(step, batch)` fills the batch of a step, and must depend on the step alone (and on
/// how the source was made). TopicSampler and DatasetSampler are such sources; so is a lambda.
template <class Source, class T>
concept BatchSource = requires(Source source, std::uint64_t step, OneHotBatch<T>& batch) {
  source(step, batch);
};

/// Stops training once the loss is low: after every `every` steps the losses since the last restart, added up and
/// divided by `every`, are compared with `loss`. With `restart` = 1 that is the mean loss of the last `every` steps.
/// The published runs add up over 100 epochs and divide by one: in practice only the first epoch after a restart can
/// stop them [Vashisht26].
struct EarlyStop {
  double loss = 0;  ///< 0: never
  std::uint64_t every = 100;
  std::uint64_t restart = 1;  ///< in units of `every`
};

/// A mean of step losses over the steps up to (and without) `step`, since the record before.
struct LossRecord {
  std::uint64_t step = 0;
  double loss = 0;
  friend bool operator==(const LossRecord&, const LossRecord&) = default;
};

enum class TrainingStatus {
  running,   ///< not at the end yet
  finished,  ///< all steps done
  stopped,   ///< the loss is low enough: EarlyStop
  diverged,  ///< a loss that is not a number, or above the limit
  cancelled  ///< `cancel` was raised
};

inline const char* to_text(TrainingStatus status) {
  switch (status) {
    case TrainingStatus::finished:
      return "finished";
    case TrainingStatus::stopped:
      return "stopped early";
    case TrainingStatus::diverged:
      return "diverged";
    case TrainingStatus::cancelled:
      return "cancelled";
    default:
      return "running";
  }
}

template <class T>
class TrainingView;

/// Everything about a run but its data and its start.
template <class T>
struct TrainingOptions {
  std::uint64_t steps = 1000;
  HeadOptions<T> head{};
  TrainingRates rates{};
  OptimizerOptions optimizer{};
  EarlyStop early_stop{};
  std::uint64_t record_every = 100;  ///< steps a LossRecord is the mean of
  double diverged_above = 1e6;       ///< a loss above this, or none, ends the run
  int threads = 1;                   ///< for large batches (see BatchGradient); 0: one a core. Never changes results.

  std::filesystem::path checkpoint{};  ///< file to save to; empty: none
  std::uint64_t checkpoint_every = 100000;
  std::string identity{};  ///< what the caller adds to say which run this is: task, seed, start

  const std::atomic<bool>* cancel = nullptr;  ///< `&interrupt_flag()` in a program

  /// Called with a TrainingView at step 0 and after every `every` steps.
  struct Hook {
    std::uint64_t every = 1000;
    std::function<void(const TrainingView<T>&)> call{};
  };
  std::vector<Hook> hooks{};

  void validate(const char* function) const {
    head.validate(function);
    rates.validate(function);
    optimizer.validate(function);
    require_positive(function, "diverged_above", diverged_above);
    require_non_negative(function, "early_stop.loss", early_stop.loss);
    const auto at_least_one = [function](const char* what, std::uint64_t value) {
      if (value == 0) throw_invalid(function, what, value, "be at least 1");
    };
    at_least_one("record_every", record_every);
    at_least_one("checkpoint_every", checkpoint_every);
    at_least_one("early_stop.every", early_stop.every);
    at_least_one("early_stop.restart", early_stop.restart);
    for (const Hook& hook : hooks) at_least_one("every of a hook", hook.every);
  }
};

/// What a hook sees.
template <class T>
class TrainingView {
 public:
  TrainingView(const OneHotLayout<T>& layout, const std::vector<T>& theta, std::uint64_t step, double loss)
      : layout_(layout), theta_(theta), step_(step), loss_(loss) {}
  const OneHotLayout<T>& layout() const { return layout_; }
  const std::vector<T>& theta() const { return theta_; }
  std::uint64_t step() const { return step_; }  ///< steps done
  double loss() const { return loss_; }         ///< of the last step; NaN before the first

 private:
  const OneHotLayout<T>& layout_;
  const std::vector<T>& theta_;
  std::uint64_t step_;
  double loss_;
};

/// How a run went.
struct TrainingResult {
  TrainingStatus status = TrainingStatus::running;
  std::uint64_t steps = 0;  ///< done; the step that diverged is not
  double loss = 0;          ///< of the last batch met
  std::vector<LossRecord> records{};
  std::uint64_t checkpoint_step = 0;  ///< of the last good checkpoint, 0: none
  std::string message{};              ///< what to tell a person
};

/// Discrete training of the one-hot head: theta moves along the gradient of one batch a step. For plain gradient
/// descent on a full dataset this is Euler's method on the gradient flow with the learning rates as steps.
///
/// A run is determined by shape, start, options and source; neither threads nor interruptions change a bit of it. With
/// a checkpoint file it saves itself every so many steps, when it is cancelled, and at the end; `resume` takes it up
/// again.
template <simd::KernelScalar T, BatchSource<T> Source>
class Trainer {
 public:
  /// Throws InvalidArgument for options that are not allowed, or a start of another size than the layout's.
  Trainer(const OneHotLayout<T>& layout, const TrainingOptions<T>& options, Source source, std::vector<T> start)
      : layout_(layout),
        options_((options.validate("Trainer"), options)),
        source_(std::move(source)),
        theta_(std::move(start)),
        gradient_(layout, options.head, options.threads),
        optimizer_(layout, options.optimizer, options.rates) {
    if (theta_.size() != layout.size()) {
      throw_invalid("Trainer", "size of the start", theta_.size(), "be " + to_text(layout.size()));
    }
    loss_ = std::nan("");
  }

  const OneHotLayout<T>& layout() const { return layout_; }
  const TrainingOptions<T>& options() const { return options_; }
  const std::vector<T>& theta() const { return theta_; }
  std::uint64_t step() const { return step_; }
  TrainingStatus status() const { return status_; }
  const std::vector<LossRecord>& records() const { return records_; }

  /// Trains to the end, or until something else ends it. May be called again after it was cancelled.
  TrainingResult run() {
    if (status_ == TrainingStatus::cancelled) status_ = TrainingStatus::running;
    if (step_ == 0) call_hooks();
    while (status_ == TrainingStatus::running) {
      if (step_ >= options_.steps) {
        status_ = TrainingStatus::finished;
      } else if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        status_ = TrainingStatus::cancelled;
      } else {
        advance();
      }
    }
    if (status_ != TrainingStatus::diverged) save();
    return result();
  }

  /// One step. Returns the loss of its batch, before the step; see `status` for what it led to.
  double advance() {
    source_(step_, batch_);
    loss_ = gradient_(batch_, theta_, direction_);
    if (!(loss_ <= options_.diverged_above)) {
      status_ = TrainingStatus::diverged;
      return loss_;
    }
    optimizer_(theta_, direction_, step_, options_.steps);
    ++step_;
    record_sum_ += loss_;
    if (++record_steps_ == options_.record_every) close_record();
    check_early_stop();
    call_hooks();
    if (!options_.checkpoint.empty() && step_ % options_.checkpoint_every == 0) save();
    return loss_;
  }

  TrainingResult result() const {
    TrainingResult result{status_, step_, loss_, records_, checkpoint_step_, {}};
    result.message = std::string(to_text(status_)) + " after " + to_text(step_) + " steps, loss " + to_text(loss_);
    if (status_ == TrainingStatus::diverged) {
      result.message += checkpoint_step_ > 0 ? "; last good checkpoint: step " + to_text(checkpoint_step_) + " in " +
                                                   options_.checkpoint.string()
                                             : std::string("; no checkpoint");
    }
    return result;
  }

  /// Saves to options.checkpoint, if that is set. Throws IoError.
  void save() {
    if (options_.checkpoint.empty()) return;
    CheckpointWriter file(identity());
    file.integer(step_);
    file.integer(static_cast<std::uint64_t>(status_ == TrainingStatus::stopped));
    file.number(loss_);
    file.number(record_sum_);
    file.integer(record_steps_);
    file.number(early_sum_);
    file.integer(records_.size());
    for (const LossRecord& record : records_) {
      file.integer(record.step);
      file.number(record.loss);
    }
    for_vectors(
        [&](const std::vector<T>& vector) { for_numbers(vector, [&](const T& value) { file.number(value); }); });
    file.write(options_.checkpoint);
    checkpoint_step_ = step_;
  }

  /// Takes up the run saved in options.checkpoint. Throws IoError if the file cannot be read, is no checkpoint, is
  /// damaged, or is of another run; the trainer is then as it was.
  void resume() {
    CheckpointReader file(options_.checkpoint, identity());
    Trainer saved(layout_, options_, source_, theta_);
    saved.step_ = file.integer();
    saved.status_ = file.integer() != 0 ? TrainingStatus::stopped : TrainingStatus::running;
    file.number(saved.loss_);
    file.number(saved.record_sum_);
    saved.record_steps_ = file.integer();
    file.number(saved.early_sum_);
    const std::uint64_t count = file.integer();
    for (std::uint64_t i = 0; i < count; ++i) {
      LossRecord record{file.integer(), 0};
      file.number(record.loss);
      saved.records_.push_back(record);
    }
    saved.for_vectors([&](std::vector<T>& vector) { for_numbers(vector, [&](T& value) { file.number(value); }); });
    file.finish();
    step_ = saved.step_;
    status_ = saved.status_;
    loss_ = saved.loss_;
    record_sum_ = saved.record_sum_;
    record_steps_ = saved.record_steps_;
    early_sum_ = saved.early_sum_;
    records_ = std::move(saved.records_);
    theta_ = std::move(saved.theta_);
    optimizer_.state() = std::move(saved.optimizer_.state());
    checkpoint_step_ = step_;
  }

  /// What a checkpoint has to be of, to be this run's.
  std::string identity() const {
    const auto& shape = layout_.shape();
    std::string text = sizeof(T) == 4 ? "float " : "double ";
    text += shape.parameterization();
    for (const std::int64_t size : {shape.queries, shape.tokens, shape.classes, shape.inner_qk, shape.inner_ov}) {
      text += " " + to_text(size);
    }
    text += shape.bias ? " bias" : "";
    text += " attention " + to_text(static_cast<int>(options_.head.attention)) + " scale " +
            to_text(options_.head.score_scale) + " alpha " + to_text(options_.head.fixed_alpha);
    const OptimizerOptions& o = options_.optimizer;
    text += " optimizer " + to_text(static_cast<int>(o.kind));
    for (const double value : {o.momentum, o.beta1, o.beta2, o.epsilon, o.weight_decay, o.clip_norm}) {
      text += " " + to_text(value);
    }
    for (const OneHotBlock& block : layout_.blocks()) {
      const LearningRate& rate = options_.rates.of(block.name);
      const Schedule& s = rate.schedule;
      text += " " + block.name + " " + to_text(rate.value) + " " + to_text(static_cast<int>(s.kind)) + " " +
              to_text(s.end) + " " + to_text(s.factor) + " " + to_text(s.every) + " " + to_text(s.warm_up);
      if (s.kind != Schedule::Kind::constant) text += " of " + to_text(options_.steps);
    }
    text += " record " + to_text(options_.record_every) + " stop " + to_text(options_.early_stop.loss) + " " +
            to_text(options_.early_stop.every) + " " + to_text(options_.early_stop.restart);
    return options_.identity.empty() ? text : text + "; " + options_.identity;
  }

 private:
  void close_record() {
    records_.push_back({step_, record_sum_ / static_cast<double>(record_steps_)});
    record_sum_ = 0;
    record_steps_ = 0;
  }

  void check_early_stop() {
    const EarlyStop& rule = options_.early_stop;
    if (!(rule.loss > 0)) return;
    early_sum_ += loss_;
    if (step_ % rule.every != 0) return;
    if (early_sum_ / static_cast<double>(rule.every) <= rule.loss) {
      status_ = TrainingStatus::stopped;
      if (record_steps_ > 0) close_record();
    }
    if (step_ / rule.every % rule.restart == 0) early_sum_ = 0;
  }

  void call_hooks() {
    for (const auto& hook : options_.hooks) {
      if (step_ % hook.every == 0) hook.call(TrainingView<T>(layout_, theta_, step_, loss_));
    }
  }

  template <class Body>
  void for_vectors(const Body& body) {
    body(theta_);
    if (!optimizer_.state().first.empty()) body(optimizer_.state().first);
    if (!optimizer_.state().second.empty()) body(optimizer_.state().second);
  }
  /// The numbers of a vector in layout order, without padding: files must not depend on the instruction set.
  template <class AnyVector, class Body>
  void for_numbers(AnyVector& vector, const Body& body) const {
    for (const OneHotBlock& block : layout_.blocks()) {
      for (std::ptrdiff_t i = 0; i < block.count; ++i) {
        for (std::ptrdiff_t j = 0; j < block.length; ++j) {
          body(vector[static_cast<std::size_t>(block.offset + i * block.stride + j)]);
        }
      }
    }
  }

  OneHotLayout<T> layout_;
  TrainingOptions<T> options_;
  Source source_;
  std::vector<T> theta_, direction_;
  BatchGradient<T> gradient_;
  Optimizer<T> optimizer_;
  OneHotBatch<T> batch_;
  std::uint64_t step_ = 0, record_steps_ = 0, checkpoint_step_ = 0;
  double loss_ = 0, record_sum_ = 0, early_sum_ = 0;
  TrainingStatus status_ = TrainingStatus::running;
  std::vector<LossRecord> records_;
};

}  // namespace qkflow
