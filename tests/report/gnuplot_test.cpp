// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/gnuplot.hpp"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace qkflow;
using qkflow_test::read_text;
using qkflow_test::TemporaryFolder;

namespace {
Figure parabola(const std::string& y = "y") {
  Figure figure{.name = "parabola", .description = "y = x^2"};
  Panel panel{.title = "(a)", .x = {.label = "x"}, .y = {.label = "y"}};
  panel.curves.push_back({.data = "parabola.csv", .x = "x", .y = y, .title = "y"});
  figure.panels.push_back(panel);
  return figure;
}

class NoPath {
 public:
  NoPath() : path_(std::getenv("PATH")) { ::setenv("PATH", "/nowhere:", 1); }
  ~NoPath() { ::setenv("PATH", path_.c_str(), 1); }

 private:
  std::string path_;
};

bool gnuplot_is_there() {
  if (!detail::find_program("gnuplot").empty()) return true;
  std::cerr << "gnuplot is not installed: the drawing itself is not tested\n";
  return false;
}
}  // namespace

TEST_CASE("draw_figure: script, SVG and PNG appear beside the data, in a folder it makes") {
  if (!gnuplot_is_there()) return;
  const TemporaryFolder folder;
  const fs::path out = folder / "with space" / "out";
  fs::create_directories(out);
  write_file(out / "parabola.csv", "x,y\n0,0\n1,1\n2,4\n");
  const FigureFiles files = draw_figure(parabola(), out);
  CHECK(read_text(files.png).substr(1, 3) == "PNG");
  CHECK_THAT(read_text(files.svg), Contains("</svg>"));
  CHECK(files.script == out / "parabola.gp");
  CHECK(std::distance(fs::directory_iterator(out), fs::directory_iterator()) == 4);

  // The kept script draws the same pictures by hand.
  fs::remove(files.png);
  const detail::ProcessResult again =
      detail::run_process({detail::find_program("gnuplot").string(), "parabola.gp"}, out);
  INFO(again.output);  // in a C locale gnuplot may warn of a sign it cannot convert, and draws all the same
  CHECK(again.status == 0);
  CHECK(fs::exists(files.png));
}

TEST_CASE("draw_figure: gnuplot's own message is passed on, the script is kept, no half picture stays") {
  if (!gnuplot_is_there()) return;
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(draw_figure(parabola(), folder.path()), Contains("gnuplot failed") && Contains("parabola.csv"));
  CHECK(folder.count() == 1);
  write_file(folder / "parabola.csv", "x,y\n0,0\n");
  CHECK_THROWS_AS(draw_figure(parabola("no_such_column"), folder.path()), IoError);
  CHECK(folder.count() == 2);
}

TEST_CASE("draw_figure: without gnuplot the message says what to install and what is kept") {
  const TemporaryFolder folder;
  const NoPath no_path;
  CHECK_THROWS_WITH(draw_figure(parabola(), folder.path()),
                    Contains("gnuplot is not installed") && Contains("parabola.gp"));
  CHECK(fs::exists(folder / "parabola.gp"));
}

TEST_CASE("draw_figure: a folder that cannot be made is an error") {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  CHECK_THROWS_WITH(draw_figure(parabola(), folder / "file" / "out"), Contains("cannot create the folder"));
}

TEST_CASE("run_process: exit status, both outputs, and a program that is not there") {
  const detail::ProcessResult result = detail::run_process({"/bin/sh", "-c", "echo out; echo err >&2; exit 5"}, ".");
  CHECK(result.status == 5);
  CHECK(result.output == "out\nerr\n");
  CHECK(detail::run_process({"/no/such/program"}, ".").status == 127);
  CHECK(detail::run_process({"/bin/sh", "-c", "kill -9 $$"}, ".").status == 137);
}
