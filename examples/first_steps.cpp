// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

#include <cstdio>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/inverse_design.hpp"

int main() {
  const qkflow::BlockTask<double> task{.classes = 20, .block = 50, .informative = 5, .noise = 50};
  const qkflow::ReducedState<double> zero{.mu_ov = 0, .mu_qk = 0};
  for (const double ratio : {0.1, 1.0, 10.0}) {
    const qkflow::Caco<double> flow{.task = task, .rates = {.ov = 1, .qk = ratio}};
    const auto end = qkflow::ClosedForm(flow, zero).at_loss(1e-4);
    std::printf("ratio %4.1f: attention %.3f, output %.2f\n", ratio, end.alpha, end.mu_ov);
  }
  const double ratio = qkflow::ratio_for_attention(qkflow::Caco<double>{.task = task}, zero, 0.9, 1e-4);
  std::printf("attention 0.9 takes a ratio of %.3f\n", ratio);
}
