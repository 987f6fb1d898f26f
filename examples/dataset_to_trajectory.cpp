// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// How does attention develop on data of my own? From a file to a trajectory.

#include <cstdio>
#include <sstream>

#include "qkflow/flow/matrix_flow.hpp"
#include "qkflow/flow/solve.hpp"
#include "qkflow/model/initialization.hpp"
#include "qkflow/task/dataset_file.hpp"

int main(int argc, char** argv) {
  // Without a file: who lives where, and the name among filler words tells.
  std::istringstream built_in(
      "label\tquery\ttokens\trelevant\n"
      "Paris\twhere?\tEve lives there now\t1 0 0 0\n"
      "Paris\twhere?\tso Eve said\t0 1 0\n"
      "Rome\twhere?\tAda lives there now\t1 0 0 0\n"
      "Rome\twhere?\tso Ada said\t0 1 0\n");
  // [trajectory]
  const auto data = argc > 1 ? qkflow::read_dataset<double>(argv[1]) : qkflow::read_dataset<double>(built_in);
  const auto parameters = qkflow::fafo_parameters<double>(data.shape(), 4, {.qk = 10, .ov = 1});
  qkflow::MatrixFlow flow(parameters, data);
  const auto run = qkflow::solve(flow, qkflow::uniform_start(parameters, 1), {.save_every = 6},
                                 {qkflow::stop_at_loss(flow, 1e-3)}, qkflow::Fehlberg78{});
  std::printf("%10s %10s %10s %10s\n", "t", "loss", "attention", "accuracy");
  for (std::size_t i = 0; i < run.times.size(); ++i) {
    const auto seen = flow.observe(run.states[i]);
    std::printf("%10.3f %10.6f %10.6f %10.3f\n", run.times[i], seen.loss, seen.relevant_attention, seen.accuracy);
  }
  // [/trajectory]
  if (!run.success()) std::printf("%s\n", run.message.c_str());
  return run.success() ? 0 : 1;
}
