// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/flow/matrix_checkpoint.hpp"

#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/task/block_dataset.hpp"
#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace qkflow;
using namespace qkflow_test;

namespace {

using State = Eigen::VectorXd;
using Flow = MatrixFlow<FafoParameters<double>>;

Flow make_flow() {
  const BlockTask<double> task{.classes = 3, .block = 2, .informative = 1, .noise = 2};
  return {fafo_parameters<double>(BlockLayout::of(task).shape(), 3), block_dataset(task)};
}

struct Rows {
  std::vector<double> times;
  std::vector<State> states;
  void record(SolveOptions<State>& options) {
    options.on_save = [this](double t, const State& x) {
      times.push_back(t);
      states.push_back(x);
    };
  }
};

const std::vector<double> save_times{0, 0.35, 1.1, 2.05, 3.3, 7};

SolveOptions<State> common() {
  // A step whose multiples are not exact: their sums would differ from their products.
  return {.t_end = 10, .rtol = 1e-9, .atol = 1e-12, .first_step = 0.1, .save_times = save_times, .save_end = false};
}

/// Runs, interrupted after every few steps and taken up again by a new process (as far as the file is concerned).
template <class Method>
Solution<State> in_pieces(const State& start, const CheckpointOptions& keep, Rows& rows, int steps_a_piece) {
  for (int piece = 0; piece < 1000; ++piece) {
    Flow flow = make_flow();
    std::atomic<bool> cancel = false;
    int steps = 0;
    SolveOptions<State> options = common();
    rows.record(options);
    options.cancel = &cancel;
    options.on_step = [&](double, const State&, const SolveStatistics&) { cancel = ++steps == steps_a_piece; };
    const auto part = solve_with_checkpoints(flow, start, options, {stop_at_loss(flow, 0.02)}, keep, Method{});
    if (part.status != Status::cancelled) return part;
  }
  FAIL("never ends");
  return {};
}

template <class Method>
void check_same_bits() {
  INFO(std::string(Method::name));
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  SolveOptions<State> options = common();
  Rows whole_rows, piece_rows;
  whole_rows.record(options);
  const auto whole = solve(flow, start, options, {stop_at_loss(flow, 0.02)}, Method{});
  const auto pieces = in_pieces<Method>(start, {.file = folder / "run.qkf", .identity = "a run"}, piece_rows, 3);
  CHECK(whole.status == pieces.status);
  CHECK(whole.t == pieces.t);
  CHECK(whole.x == pieces.x);
  CHECK(whole.statistics.steps == pieces.statistics.steps);
  CHECK(whole.statistics.steps > 3);  // so that it was taken up at least once
  CHECK(whole_rows.times == piece_rows.times);
  CHECK(whole_rows.times.size() == save_times.size());
  CHECK(whole_rows.states == piece_rows.states);
  CHECK(folder.count() == 1);  // no temporary file is left
}

}  // namespace

TEST_CASE("a run taken up again and again has the bits of one that never stopped") {
  check_same_bits<RungeKutta4>();
  check_same_bits<CashKarp54>();
  check_same_bits<DormandPrince5>();
  check_same_bits<DormandPrince5Dense>();
  check_same_bits<Fehlberg78>();
}

TEST_CASE("Bulirsch-Stoer forgets its order when taken up: the same trajectory to its tolerance") {
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  Rows rows;
  const auto whole = solve(flow, start, common(), {}, BulirschStoer{});
  SolveOptions<State> first = common();
  first.max_steps = 3;
  const CheckpointOptions keep{.file = folder / "run.qkf", .identity = "a run"};
  CHECK(solve_with_checkpoints(flow, start, first, {}, keep, BulirschStoer{}).status == Status::step_limit);
  const auto rest = solve_with_checkpoints(flow, start, common(), {}, keep, BulirschStoer{});
  REQUIRE(rest.status == Status::reached_end);
  CHECK((whole.x - rest.x).cwiseAbs().maxCoeff() < 1e-7);
}

TEST_CASE("a finished run goes on to a later end, and statistics and notes go with it") {
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  std::vector<double> notes{1, 2.5};
  const CheckpointOptions keep{.file = folder / "run.qkf", .identity = "a run", .notes = &notes};
  const SolveOptions<State> tight{.rtol = 1e-11, .atol = 1e-13};
  const auto near = solve_with_checkpoints(flow, start, tight, {stop_at_loss(flow, 0.5)}, keep, Fehlberg78{});
  REQUIRE(near.status == Status::reached_stop);
  notes.clear();
  const auto far = solve_with_checkpoints(flow, start, tight, {stop_at_loss(flow, 0.05)}, keep, Fehlberg78{});
  CHECK(notes == std::vector<double>{1, 2.5});
  CHECK(far.statistics.steps > near.statistics.steps);
  CHECK(far.statistics.evaluations > near.statistics.evaluations);
  const auto at_once = solve(flow, start, tight, {stop_at_loss(flow, 0.05)}, Fehlberg78{});
  CHECK_THAT(far.t, WithinRel(at_once.t, 1e-8));
  CHECK((far.x - at_once.x).cwiseAbs().maxCoeff() < 1e-8);
  // Asked for what it has reached already, it stays there.
  const auto again = solve_with_checkpoints(flow, start, tight, {stop_at_loss(flow, 0.5)}, keep, Fehlberg78{});
  CHECK(again.status == Status::already_true);
  CHECK(again.x == far.x);
}

TEST_CASE("a fixed-step run that ended off its grid goes on from there") {
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  const CheckpointOptions keep{.file = folder / "run.qkf", .identity = "a run"};
  SolveOptions<State> options{.t_end = 1.05, .first_step = 0.1};
  CHECK(solve_with_checkpoints(flow, start, options, {}, keep, RungeKutta4{}).t == 1.05);
  options.t_end = 2;
  const auto rest = solve_with_checkpoints(flow, start, options, {}, keep, RungeKutta4{});
  CHECK(rest.t == 2);
  const auto exact = solve(flow, start, {.t_end = 2, .rtol = 1e-12, .atol = 1e-13}, {}, Fehlberg78{});
  CHECK((rest.x - exact.x).cwiseAbs().maxCoeff() < 1e-6);
}

TEST_CASE("a failed run keeps its last good state in the file") {
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  const CheckpointOptions keep{.file = folder / "run.qkf", .identity = "a run", .seconds = 0};
  const Stop<State> broken{.predicate = [](double t, const State&) -> bool {
    if (t > 1) throw std::runtime_error("broken");
    return false;
  }};
  const auto run = solve_with_checkpoints(flow, start, {.t_end = 5, .max_step = 0.1}, {broken}, keep);
  CHECK(run.status == Status::threw);
  const auto kept = read_checkpoint<double>(keep.file, "a run", start.size());
  CHECK(kept.t == run.t);
  CHECK(kept.theta == run.x);
}

TEST_CASE("checkpoints that cannot be used say why") {
  const TemporaryFolder folder;
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  const CheckpointOptions keep{.file = folder / "run.qkf", .identity = "a run"};
  CHECK(solve_with_checkpoints(flow, start, {.t_end = 1}, {}, keep).success());
  const CheckpointOptions other{.file = keep.file, .identity = "another"};
  CHECK_THROWS_WITH(solve_with_checkpoints(flow, start, {.t_end = 1}, {}, other), Contains("another"));
  const State longer = State::Zero(start.size() + 1);
  CHECK_THROWS_WITH(read_checkpoint<double>(keep.file, "a run", longer.size()), Contains("another size"));
  {
    std::fstream file(keep.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('!');
  }
  CHECK_THROWS_WITH(solve_with_checkpoints(flow, start, {.t_end = 1}, {}, keep), Contains("damaged"));
  // A folder that is not there: the last write fails.
  CHECK_THROWS_AS(solve_with_checkpoints(flow, start, {.t_end = 1}, {}, {.file = folder / "no" / "run.qkf"}), IoError);
  const auto every =
      solve_with_checkpoints(flow, start, {.t_end = 1}, {}, {.file = folder / "every.qkf", .seconds = 0});
  CHECK(every.success());
}

TEST_CASE("rows can go to a callback instead of the memory") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  SolveOptions<State> options = common();
  options.save_end = true;
  const auto kept = solve(flow, start, options);
  Rows rows;
  rows.record(options);
  const auto handed = solve(flow, start, options);
  CHECK(handed.times.empty());
  CHECK(handed.states.empty());
  CHECK(rows.times == kept.times);
  CHECK(rows.states == kept.states);
}

TEST_CASE("steps_before is refused where it means nothing") {
  Flow flow = make_flow();
  const State start = gaussian_start(flow.parameters(), 1, 0.5);
  CHECK_THROWS_AS(solve(flow, start, {.t_end = 1, .steps_before = 3}), InvalidArgument);
  CHECK_THROWS_AS(solve(flow, start, {.t_end = 1, .steps_before = 30, .first_step = 0.1}, {}, RungeKutta4{}),
                  InvalidArgument);
}
