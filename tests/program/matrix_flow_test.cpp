// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "qkflow/report/csv.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/tolerance.hpp"

using namespace qkflow_test;
using qkflow::CsvTable;

namespace {

const std::string small = " --classes 3 --block 4 --informative 2 --noise 3";

CsvTable table_of(const std::string& line, const std::filesystem::path& folder = ".") {
  const ProgramResult result = run_program(words(line), folder);
  INFO(line << "\n" << result.err);
  REQUIRE(result.status == 0);
  return CsvTable::parse(result.out, line);
}

void write_text(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

const std::string who_lives_where =
    "label\tquery\ttokens\trelevant\n"
    "Paris\twhere?\tEve lives there now\t1 0 0 0\n"
    "Paris\twhere?\tso Eve said\t0 1 0\n"
    "Rome\twhere?\tAda lives there now\t1 0 0 0\n"
    "Rome\twhere?\tso Ada said\t0 1 0\n";

}  // namespace

TEST_CASE("qkflow flow --method matrix: the reduced flow's columns, and its numbers, in every parameterization") {
  for (const char* options :
       {"--parameterization CACO --eta-qk 8", "--parameterization CAFO --mu-ov0 0.1 --threads 2",
        "--parameterization FACO --lambda-qk 0.5 --dim 4", "--parameterization FAFO --mu-ov0 0.1 --mu-qk0 0.2",
        "--parameterization FAFO --mu-ov0 0.2 --mu-qk0 0.3 --factors-qk 3", "--noise-vocabulary 6 --score-scale 0.5"}) {
    const std::string line = "flow --stop-loss 1e-2 --points 3 " + std::string(options) + small;
    const CsvTable closed = table_of(line), matrix = table_of(line + " --method matrix");
    REQUIRE(matrix.rows() == closed.rows());
    for (std::size_t c = 0; c < closed.columns().size(); ++c) {
      const std::string& column = closed.columns()[c];
      CHECK(matrix.columns()[c] == column);
      for (std::size_t row = 0; row < closed.rows(); ++row) {
        INFO(options << " " << column << " row " << row);
        const double expected = closed.number(row, column);
        CHECK_THAT(matrix.number(row, column),
                   WithinAbs(expected, tolerance<double>(Tol::matrix_flow) * (1e-3 + std::abs(expected))));
      }
    }
    for (std::size_t row = 0; row < matrix.rows(); ++row) {
      CHECK(matrix.number(row, "line_ov") < 1e-11);
      CHECK(matrix.number(row, "line_qk") < 1e-11);
      CHECK(matrix.number(row, "balance_drift") < 1e-10);
    }
  }
}

TEST_CASE("qkflow flow --method matrix: ends by attention and by time, and steppers by name") {
  const CsvTable by_alpha = table_of("flow --method matrix --stop-alpha 0.6 --eta-qk 10" + small);
  CHECK_THAT(by_alpha.number(0, "alpha"), WithinAbs(0.6, 1e-12));
  const std::string t = by_alpha.text(0, "t");
  for (const char* stepper : {"dopri5", "cash-karp", "bulirsch-stoer", "dopri5-dense"}) {
    const CsvTable by_time = table_of("flow --method matrix --eta-qk 10 --rtol 1e-11 --stepper " +
                                      std::string(stepper) + " --until " + t + small);
    CHECK_THAT(by_time.number(0, "alpha"), WithinAbs(0.6, 1e-8));
  }
}

TEST_CASE("qkflow flow --data: a trajectory on a file, random start, optional observables") {
  const TemporaryFolder folder;
  write_text(folder / "data.tsv", who_lives_where);
  const std::string line =
      "flow --method matrix --data data.tsv --parameterization FAFO --eta-qk 5 --stop-loss 0.01 --points 4 --seed 3 "
      "--singular-values 2 --sharpness --rtol 1e-8";
  const CsvTable table = table_of(line, folder.path());
  REQUIRE(table.rows() == 5);
  CHECK(std::isnan(table.number(0, "mu_ov")));
  CHECK(std::isnan(table.number(0, "line_qk")));
  CHECK(table.number(0, "t") == 0);
  CHECK_THAT(table.number(4, "loss"), WithinRel(0.01, 1e-9));
  CHECK(table.number(4, "accuracy") == 1);
  CHECK(table.number(4, "alpha") > table.number(0, "alpha"));
  CHECK(table.number(4, "balance_drift") < 1e-6);
  CHECK(table.number(4, "singular_qk_1") >= table.number(4, "singular_qk_2"));
  CHECK(table.number(4, "singular_ov_1") <= table.number(4, "norm_ov") * (1 + 1e-12));
  CHECK(std::isfinite(table.number(4, "sharpness")));
  for (std::size_t row = 1; row < 5; ++row) CHECK(table.number(row, "loss") < table.number(row - 1, "loss"));
  for (const char* init : {"gaussian", "balanced", "pytorch", "uniform", "identity"}) {
    const std::string start = "flow --method matrix --data data.tsv --until 1 --init " + std::string(init);
    CHECK(table_of(start, folder.path()).rows() == 1);
  }
}

TEST_CASE("qkflow flow --checkpoint: interrupted by the step cap, taken up, the bits of one run") {
  const TemporaryFolder folder;
  const std::string line = "flow --method matrix --eta-qk 10 --stop-loss 1e-3 --points 5" + small;
  const CsvTable whole = table_of(line);
  const std::string kept = line + " --checkpoint run.qkf";
  for (int piece = 0; piece < 3; ++piece) {
    const ProgramResult part = run_program(words(kept + " --max-steps 4"), folder.path());
    CHECK(part.status == 1);
    CHECK_THAT(part.err, Contains("goes on from there"));
  }
  const CsvTable pieces = table_of(kept, folder.path());
  REQUIRE(pieces.rows() == whole.rows());
  for (std::size_t row = 0; row < whole.rows(); ++row) {
    for (const std::string& column : whole.columns()) CHECK(pieces.text(row, column) == whole.text(row, column));
  }
  const ProgramResult other = run_program(words(kept + " --eta-ov 2"), folder.path());
  CHECK(other.status == 1);
  CHECK_THAT(other.err, Contains("another run"));
}

TEST_CASE("qkflow flow --method matrix: what it refuses") {
  const TemporaryFolder folder;
  write_text(folder / "data.tsv", who_lives_where);
  write_text(folder / "broken.tsv", "label\tquery\n1\t2\n");
  const auto refused = [&](const std::string& options, const std::string& says, int status = 2) {
    const ProgramResult result = run_program(words("flow --method matrix " + options), folder.path());
    INFO(options << "\n" << result.err);
    CHECK(result.status == status);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Contains(says));
  };
  refused("--until 1 --data broken.tsv", "tokens");
  refused("--until 1 --data missing.tsv", "missing.tsv", 1);
  refused("--until 1 --data data.tsv --init aligned", "aligned");
  refused("--until 1 --data data.tsv --mu-ov0 1", "--mu-ov0");
  refused("--until 1 --data data.tsv --classes 3", "block task");
  refused("--until 1 --init zero --init-file x", "--init-file");
  refused("--until 1 --dim -1", "dim");
  refused("--until 1 --block 2.5", "block");
  refused("--until 1 --parameterization FAFO --mu-ov0 1 --mu-qk0 1 --dim 2" + small, "inner dimension");
  refused("--stop-loss 0.1 --data data.tsv --points 3 --checkpoint a.qkf", "--until");
  refused("--stop-loss 1e-3 --parameterization FAFO" + small, "saddle");
  const ProgramResult idle = run_program(words("flow --until 1 --data data.tsv"), folder.path());
  CHECK(idle.status == 2);
  CHECK_THAT(idle.err, Contains("--data") && Contains("--method matrix"));
}
