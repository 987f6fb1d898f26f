// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>

#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/tolerance.hpp"

namespace fs = std::filesystem;
using namespace qkflow_test;
using qkflow::CsvTable;

TEST_CASE("qkflow figure 4: data of five ratios, both methods agreeing, and the published digits") {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(words("figure 4 --out deep/out"), folder.path());
  const bool gnuplot = !qkflow::detail::find_program("gnuplot").empty();
  INFO(result.out << result.err);
  CHECK(result.status == (gnuplot ? 0 : 1));
  const fs::path out = folder / "deep" / "out";

  const CsvTable series = CsvTable::read(out / "figure4_series.csv");
  CHECK(series.rows() == 5 * 201);
  const CsvTable stops = CsvTable::read(out / "figure4_stops.csv");
  REQUIRE(stops.rows() == 5 * 50);
  const auto agree = [](const CsvTable& table, const std::string& column, std::size_t row) {
    const double closed = table.number(row, column);
    const double integrated = table.number(row, "integrated_" + column);
    INFO(column << ", row " << row << ": " << closed << " " << integrated);
    // Absolute where the value is small: the first rows are at 0.
    CHECK(std::abs(integrated - closed) <= tolerance<double>(Tol::solver) * std::max(1.0, std::abs(closed)));
  };
  for (std::size_t row = 0; row < series.rows(); ++row) {
    for (const char* column : {"t", "mu_ov", "mu_qk", "alpha", "loss"}) agree(series, column, row);
  }
  for (std::size_t row = 0; row < stops.rows(); ++row) {
    for (const char* column : {"t", "mu_ov", "mu_qk", "alpha"}) agree(stops, column, row);
  }
  CHECK(stops.number(0, "stopping_loss") == 1);
  CHECK(stops.number(49, "stopping_loss") == 1e-4);

  // Independent ends: mu_OV at 1e-4 of the golden file, at the five ratios.
  const double ends[] = {81.66869863298372318790632, 42.2815241600517860548561, 20.56256670892542472054463,
                         13.18185148265040211594001, 12.24454993892740832452097};
  for (std::size_t i = 0; i < 5; ++i) {
    const double mu_ov = stops.number(50 * i + 49, "mu_ov");
    CHECK(std::abs(mu_ov - ends[i]) <= tolerance<double>(Tol::state) * ends[i]);
    CHECK(series.number(201 * i + 200, "mu_ov") == mu_ov);
  }

  // The printed table: what is published stands under what is computed.
  for (const char* text : {"closed form", "integrated", "relative difference", "2.55e6", "81.669", "0.559", "0.149",
                           "4.90e6", "42.282", "1.395", "0.287", "255394", "12.2445499"}) {
    CHECK_THAT(result.out, Contains(text));
  }
  for (const char* name : {"figure4_series", "figure4_stops"}) {
    CHECK(fs::exists(out / (std::string(name) + ".gp")));
    if (!gnuplot) continue;
    CHECK_THAT(result.out, Contains("deep/out/" + std::string(name) + ".svg"));
    CHECK(read_text(out / (std::string(name) + ".png")).substr(1, 3) == "PNG");
    CHECK_THAT(read_text(out / (std::string(name) + ".svg")), Contains("</svg>"));
  }
}

TEST_CASE("qkflow figure 4: without gnuplot it exits 1, says what to install, and keeps data and scripts") {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(words("figure 4"), folder.path(), {{"PATH", "/nowhere"}});
  CHECK(result.status == 1);
  CHECK_THAT(result.err, StartsWith("qkflow figure 4: gnuplot is not installed") && Contains("out/figure4_series.gp"));
  CHECK_THAT(result.out, Contains("closed form"));
  for (const char* name : {"figure4_series.csv", "figure4_stops.csv", "figure4_series.gp", "figure4_stops.gp"}) {
    CHECK(fs::exists(folder.path() / "out" / name));
  }
}

TEST_CASE("qkflow figure 4: a folder that cannot be made exits 1") {
  const TemporaryFolder folder;
  qkflow::write_file(folder / "out", "a file\n");
  const ProgramResult result = run_program(words("figure 4"), folder.path());
  CHECK(result.status == 1);
  CHECK_THAT(result.err, StartsWith("qkflow figure 4: cannot create the folder 'out'"));
}
