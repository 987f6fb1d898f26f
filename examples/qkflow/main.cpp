// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
//
// The qkflow program: the library's answers without writing C++. Exit status 0: done; 1: a file could not be read or
// written, or a computation failed; 2: the command line asks for something impossible; 130: interrupted.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.hpp"
#include "qkflow/io/atomic_file.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/report/interrupt.hpp"
#include "qkflow/version.hpp"

namespace {

// "qkflow figure 4": the program and the subcommands as far as they were understood.
std::string invoked_name(const CLI::App& app) {
  std::string name = app.get_name();
  const CLI::App* level = &app;
  while (!level->get_subcommands().empty()) {
    level = level->get_subcommands().front();
    name += " " + level->get_name();
  }
  return name;
}

// Every failure is one line on standard error.
int fail(const CLI::App& app, std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "{}: {}\n", invoked_name(app), message);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How a self-attention head learns: gradient flow of the QK and OV circuits", "qkflow"};
  app.set_version_flag("--version", std::string("qkflow ") + qkflow::version_text, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.get_formatter()->column_width(38);
  app.require_subcommand(1);
  app.footer("Every command has a help of its own with a worked example: qkflow flow --help");
  qkflow_program::add_flow(app);
  qkflow_program::add_design(app);
  qkflow_program::add_train(app);
  qkflow_program::add_figure(app);
  qkflow_program::add_compare(app);

  const qkflow::InterruptGuard guard;
  try {
    app.parse(argc, argv);  // runs the subcommand's callback
    return 0;
  } catch (const CLI::RequiredError& error) {
    // "A subcommand is required" helps nobody who has misspelled one.
    const std::vector<std::string> unknown = app.remaining(true);
    return fail(app, unknown.empty() ? error.what() : "not understood: " + unknown.front(), 2);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help and version
    return fail(app, error.what(), 2);
  } catch (const qkflow::InvalidArgument& error) {
    return fail(app, error.what(), 2);
  } catch (const qkflow::Interrupted& error) {
    return fail(app, error.what(), 130);
  } catch (const std::exception& error) {
    return fail(app, error.what(), 1);
  }
}
