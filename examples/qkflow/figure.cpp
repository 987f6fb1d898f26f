// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// qkflow figure: the published figures, computed anew.

#include <CLI/CLI.hpp>

#include "commands.hpp"

namespace qkflow_program {

void add_figure(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("figure", "A published figure computed anew: data, pictures, and a comparison");
  sub->require_subcommand(1);
  sub->footer("Example: qkflow figure 4 --out out");
  add_figure_2(*sub);
  add_figure_3(*sub);
  add_figure_4(*sub);
}

}  // namespace qkflow_program
