// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qkflow/flow/solve.hpp"
#include "qkflow/io/checkpoint.hpp"
#include "qkflow/model/circuit.hpp"

namespace qkflow {

/// Where a run stands: enough to go on from.
template <class Scalar>
struct FlowCheckpoint {
  Scalar t = 0;
  ColumnVector<Scalar> theta;
  SolveStatistics statistics;  ///< of everything so far, earlier parts included
  std::vector<double> notes;   ///< the caller's own numbers, such as rows written so far
};

/// Writes it to a file, which appears whole or not at all. `identity` says what run this is (task, parameters, method,
/// tolerances); reading asks for the same. Throws IoError.
template <class Scalar>
void write_checkpoint(const std::filesystem::path& path, const std::string& identity,
                      const FlowCheckpoint<Scalar>& checkpoint) {
  static_assert(std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>, "checkpoints keep float or double");
  CheckpointWriter file(identity);
  file.number(checkpoint.t);
  file.integer(static_cast<std::uint64_t>(checkpoint.theta.size()));
  for (const Scalar& value : checkpoint.theta) file.number(value);
  const SolveStatistics& s = checkpoint.statistics;
  for (const std::size_t count : {s.steps, s.rejections, s.evaluations, s.resteps}) file.integer(count);
  file.number(s.next_step);
  file.integer(checkpoint.notes.size());
  for (const double note : checkpoint.notes) file.number(note);
  file.write(path);
}

/// Reads it back, for a state of `size` entries. Throws IoError, naming the file, when it cannot be read, is damaged,
/// or is another run's.
template <class Scalar>
FlowCheckpoint<Scalar> read_checkpoint(const std::filesystem::path& path, const std::string& identity,
                                       Eigen::Index size) {
  CheckpointReader file(path, identity);
  FlowCheckpoint<Scalar> checkpoint;
  file.number(checkpoint.t);
  if (file.integer() != static_cast<std::uint64_t>(size)) file.damaged("its state has another size");
  checkpoint.theta.resize(size);
  for (Scalar& value : checkpoint.theta) file.number(value);
  SolveStatistics& s = checkpoint.statistics;
  for (std::size_t* count : {&s.steps, &s.rejections, &s.evaluations, &s.resteps}) *count = file.integer();
  file.number(s.next_step);
  for (auto left = file.integer(); left > 0; --left) file.number(checkpoint.notes.emplace_back());
  file.finish();
  return checkpoint;
}

/// What to tell `solve` so that it goes on from (checkpoint.t, checkpoint.theta) as if it had never stopped: save times
/// up to there are left out (save_every counts anew), and the step is the next one. To the last bit for every method
/// but BulirschStoer, which forgets the order it has found and agrees to its tolerance. A run that ended within a step
/// (at a stop, or at an end time that is no multiple of a fixed step) goes on from there with new steps.
template <OdeMethod Method, class State>
SolveOptions<State> resume_options(SolveOptions<State> options,
                                   const FlowCheckpoint<typename State::Scalar>& checkpoint, Method /*method*/ = {}) {
  using Scalar = typename State::Scalar;
  auto& times = options.save_times;
  times.erase(times.begin(), std::upper_bound(times.begin(), times.end(), checkpoint.t));
  if constexpr (!Method::adaptive) {
    options.steps_before = checkpoint.statistics.steps;
    if (options.start_time() == checkpoint.t) return options;
    options.steps_before = 0;
  } else if (checkpoint.statistics.next_step > 0) {
    options.first_step = static_cast<Scalar>(checkpoint.statistics.next_step);
  }
  options.t0 = checkpoint.t;
  return options;
}

/// Where and how often to keep a run.
struct CheckpointOptions {
  std::filesystem::path file{};
  std::string identity{};                ///< what run this is: whatever must be the same to go on
  double seconds = 60;                   ///< at most this often, by the clock; 0: after every step
  std::vector<double>* notes = nullptr;  ///< kept with the state, and filled from the file
};

/// `solve`, kept in a file: goes on from the file if it is there, writes it every now and then and wherever the run
/// ends
/// - reached, cancelled, failed - so that it can be continued, also to a later end. Statistics count earlier parts,
/// too. A file that cannot be written ends the run with Status::threw. Throws IoError for a file that cannot be read or
/// belongs to another run, and where the last write fails.
template <OdeMethod Method = DormandPrince5, class Field, class Scalar>
Solution<ColumnVector<Scalar>> solve_with_checkpoints(
    Field&& field, const ColumnVector<Scalar>& start,
    const std::type_identity_t<SolveOptions<ColumnVector<Scalar>>>& options,
    const std::type_identity_t<std::vector<Stop<ColumnVector<Scalar>>>>& stops, const CheckpointOptions& keep,
    Method method = {}) {
  using State = ColumnVector<Scalar>;
  using Clock = std::chrono::steady_clock;
  SolveOptions<State> part = options;
  FlowCheckpoint<Scalar> checkpoint{options.t0, start, {}, {}};
  if (std::filesystem::exists(keep.file)) {
    checkpoint = read_checkpoint<Scalar>(keep.file, keep.identity, start.size());
    part = resume_options(std::move(part), checkpoint, method);
    if (keep.notes) *keep.notes = checkpoint.notes;
  }
  const SolveStatistics before = checkpoint.statistics;
  const auto together = [&](SolveStatistics s) {
    if (part.steps_before == 0) s.steps += before.steps;
    s.rejections += before.rejections;
    s.evaluations += before.evaluations;
    s.resteps += before.resteps;
    if (!(s.next_step > 0)) s.next_step = before.next_step;
    return s;
  };
  const auto write = [&](const Scalar& t, const SolveStatistics& s) {
    checkpoint.t = t;
    checkpoint.statistics = s;
    if (keep.notes) checkpoint.notes = *keep.notes;
    write_checkpoint(keep.file, keep.identity, checkpoint);
  };
  Clock::time_point written = Clock::now();
  part.on_step = [&](const Scalar& t, const State& x, const SolveStatistics& s) {
    const SolveStatistics all = together(s);
    if (options.on_step) options.on_step(t, x, all);
    if (std::chrono::duration<double>(Clock::now() - written).count() < keep.seconds) return;
    checkpoint.theta = x;
    write(t, all);
    written = Clock::now();
  };
  const State from = checkpoint.theta;
  Solution<State> solution = solve(field, from, part, stops, method);
  solution.statistics = together(solution.statistics);
  checkpoint.theta = solution.x;
  write(solution.t, solution.statistics);
  return solution;
}

}  // namespace qkflow
