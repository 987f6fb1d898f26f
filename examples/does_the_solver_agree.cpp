// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// Does the solver agree with the closed form? Both circuits factorized, until the loss is 1e-4.

#include <Eigen/Core>
#include <cstdio>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/flow/reduced_flow.hpp"
#include "qkflow/flow/solve.hpp"

int main() {
  // [solve]
  using State = Eigen::Vector2d;  // (mu_OV, mu_QK)
  const qkflow::Fafo<double> flow{.rates = {.ov = 1, .qk = 10}};
  const State start(0.01, 0.01);  // not 0: that is a saddle of factorized circuits
  const auto loss = [&](double, const State& x) { return flow.loss(x[0], x[1]); };
  const auto run =
      qkflow::solve(flow, start, {.rtol = 1e-12, .atol = 1e-15}, {qkflow::stop_below<State>("loss", loss, 1e-4)});
  // [/solve]
  if (!run.success()) {
    std::fprintf(stderr, "%s\n", run.message.c_str());
    return 1;
  }

  // [compare]
  const qkflow::ClosedForm closed(flow, {.mu_ov = start[0], .mu_qk = start[1]});
  const auto end = closed.at_loss(1e-4);
  std::printf("mu_OV  integrated %.9f  closed %.9f\n", run.x[0], end.mu_ov);
  std::printf("mu_QK  integrated %.9f  closed %.9f\n", run.x[1], end.mu_qk);
  std::printf("t      integrated %.3f  closed %.3f\n", run.t, closed.time(end));
  // [/compare]
}
