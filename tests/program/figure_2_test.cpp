// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <cmath>
#include <filesystem>
#include <string>

#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"

namespace fs = std::filesystem;
using namespace qkflow_test;
using qkflow::CsvTable;

TEST_CASE("qkflow figure 2: a quick run of one experiment meets the published series, and is kept") {
  const TemporaryFolder folder;
  const std::string command = "figure 2 --quick --no-own --only CACO_faster --out out";
  const ProgramResult result = run_program(words(command), folder.path());
  const bool gnuplot = !qkflow::detail::find_program("gnuplot").empty();
  INFO(result.out << result.err);
  CHECK(result.status == (gnuplot ? 0 : 1));
  const fs::path out = folder / "out";
  const CsvTable loss = CsvTable::read(out / "figure2_loss.csv");
  REQUIRE(loss.rows() == 2);
  // Published for this seed: 3.284 and 2.212. The initialization decides; fresh data hardly show.
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(std::abs(loss.number(i, "loss") - loss.number(i, "published")) < 0.002);
  }
  const CsvTable map = CsvTable::read(out / "figure2_attention.csv");
  double percent = 0;
  for (std::size_t i = 0; i < map.rows(); ++i) percent += map.number(i, "percent");
  CHECK(std::abs(percent - 100) < 1e-9);
  if (gnuplot) {
    for (const char* name : {"figure2_loss", "figure2_attention"}) {
      CHECK_THAT(read_text(out / (std::string(name) + ".svg")), Contains("</svg>"));
      CHECK(read_text(out / (std::string(name) + ".png")).substr(1, 3) == "PNG");
    }
  }
  CHECK(fs::exists(out / "figure2_runs" / "CACO_faster_seed_1234_quick.checkpoint"));
  const ProgramResult again = run_program(words(command), folder.path());
  CHECK_THAT(again.out, Contains("0.0  "));  // seconds
  CHECK(CsvTable::read(out / "figure2_loss.csv").number(1, "loss") == loss.number(1, "loss"));
}

TEST_CASE("qkflow figure 3: quick, one output circuit") {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(words("figure 3 --quick --evaluation-batches 3 --only collapsed --out out"), folder.path());
  const bool gnuplot = !qkflow::detail::find_program("gnuplot").empty();
  INFO(result.out << result.err);
  CHECK(result.status == (gnuplot ? 0 : 1));
  const CsvTable rows = CsvTable::read(folder / "out" / "figure3.csv");
  REQUIRE(rows.rows() == 5 * 20);
  for (std::size_t i = 0; i < 5; ++i) {
    const std::size_t last = 20 * i + 19;
    CHECK(rows.number(last, "loss") < rows.number(20 * i, "loss"));
    // More attention helps, and by how much is the benefit.
    CHECK(rows.number(last, "marginal_benefit") > 0);
    if (i > 0) CHECK(rows.number(last, "loss") < rows.number(last - 20, "loss"));
  }
}

TEST_CASE("qkflow figure 2 and 3: names that are none are refused") {
  const TemporaryFolder folder;
  CHECK(run_program(words("figure 2 --only CACA"), folder.path()).status == 2);
  CHECK(run_program(words("figure 3 --only CACA"), folder.path()).status == 2);
  CHECK(run_program(words("figure 2 --seeds 0"), folder.path()).status == 2);
}
