// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "qkflow/report/csv.hpp"
#include "support/catch.hpp"
#include "support/golden.hpp"
#include "support/program.hpp"
#include "support/tolerance.hpp"

using namespace qkflow_test;
using qkflow::CsvTable;

namespace {

// A run that must succeed and say nothing on standard error.
CsvTable table_of(const std::string& line) {
  const ProgramResult result = run_program(words(line));
  INFO(line << "\n" << result.err);
  REQUIRE(result.status == 0);
  CHECK(result.err.empty());
  return CsvTable::parse(result.out, line);
}

bool near(double value, double expected, Tol tol) {
  return std::abs(value - expected) <= tolerance<double>(tol) * std::abs(expected);
}

std::string command_of(const Golden& row) {
  const std::pair<const char*, const char*> options[] = {{"--parameterization", row.parameterization},
                                                         {"--classes", row.classes},
                                                         {"--block", row.block},
                                                         {"--informative", row.informative},
                                                         {"--noise", row.noise},
                                                         {"--eta-ov", row.eta_ov},
                                                         {"--eta-qk", row.eta_qk},
                                                         {"--mu-ov0", row.mu_ov0},
                                                         {"--mu-qk0", row.mu_qk0},
                                                         {"--stop-loss", row.stop_loss}};
  std::string line = "flow";
  for (const auto& [name, value] : options) line += std::string(" ") + name + " " + value;
  return line;
}

}  // namespace

TEST_CASE("qkflow flow: the command of the documentation, letter by letter") {
  const std::string line =
      "flow --parameterization CACO --classes 20 --block 50 --informative 5 --noise 50 --eta-ov 1 --eta-qk 10 --mu-ov0 "
      "0 "
      "--mu-qk0 0 --stop-loss 1e-4 --method closed --points 0 --csv -";
  const ProgramResult result = run_program(words(line));
  REQUIRE(result.status == 0);
  CHECK_THAT(result.out, StartsWith("t,mu_ov,mu_qk,alpha,loss\n"));
  const CsvTable table = CsvTable::parse(result.out, "output");
  REQUIRE(table.rows() == 1);
  CHECK(near(table.number(0, "t"), 9319247.218037263295039043, Tol::time));
  CHECK(near(table.number(0, "mu_ov"), 13.18185148265040211594001, Tol::state));
  CHECK(near(table.number(0, "mu_qk"), 4.773542589085174437471705, Tol::state));
  CHECK(near(table.number(0, "alpha"), 0.9220805868374168778776101, Tol::state));
  CHECK(near(table.number(0, "loss"), 1e-4, Tol::state));
  // 17 significant digits: what printf would write for the number read.
  for (const std::string& column : table.columns()) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%.17g", table.number(0, column));
    CHECK(table.text(0, column) == digits);
  }
}

TEST_CASE("qkflow flow: golden values, by closed form and integrated") {
  for (const Golden& row : golden) {
    const std::string command = command_of(row);
    INFO(command);
    const CsvTable closed = table_of(command);
    const CsvTable integrated = table_of(command + " --method ode");
    const std::pair<const char*, const char*> expectations[] = {
        {"mu_ov", row.mu_ov}, {"mu_qk", row.mu_qk}, {"alpha", row.alpha}, {"t", row.t}};
    for (const auto& [column, text] : expectations) {
      const double expected = std::strtod(text, nullptr);
      INFO(column << ": closed " << closed.text(0, column) << ", integrated " << integrated.text(0, column)
                  << ", golden " << text);
      CHECK(near(closed.number(0, column), expected, std::string(column) == "t" ? Tol::time : Tol::state));
      CHECK(near(integrated.number(0, column), expected, Tol::solver));
    }
  }
}

TEST_CASE("qkflow flow: an output circuit below its saddle comes near to 0 and never crosses it") {
  const std::string line = "flow --parameterization CAFO --mu-ov0 -0.5 --until 1e6 --points 4";
  const CsvTable closed = table_of(line);
  const CsvTable integrated = table_of(line + " --method ode");
  for (std::size_t row = 0; row < 5; ++row) {
    CHECK(integrated.number(row, "mu_ov") < 0);
    CHECK_THAT(integrated.number(row, "mu_qk"), WithinRel(closed.number(row, "mu_qk"), 1e-9) || WithinAbs(0, 1e-300));
  }
  CHECK(closed.number(4, "mu_ov") > -1e-100);
}

TEST_CASE("qkflow flow: every stepper arrives at the same end") {
  for (const char* stepper : {"cash-karp", "dopri5", "dopri5-dense", "fehlberg78", "bulirsch-stoer"}) {
    const std::string line = "flow --eta-qk 10 --stop-loss 1e-2 --method ode --points 5 --stepper ";
    const CsvTable table = table_of(line + stepper);
    INFO(stepper);
    REQUIRE(table.rows() == 6);
    CHECK(near(table.number(5, "t"), 136545.1182601911205306464, Tol::solver));
    CHECK(near(table.number(5, "mu_qk"), 3.791384684173621709531694, Tol::solver));
  }
  const CsvTable fixed = table_of("flow --eta-qk 10 --stop-loss 1e-2 --method ode --stepper rk4 --step 10");
  CHECK(near(fixed.number(0, "t"), 136545.1182601911205306464, Tol::solver));
}

TEST_CASE("qkflow flow: rows log-spaced in 1 + t, the first at the start, the last at the end") {
  const CsvTable closed = table_of("flow --stop-loss 1e-2 --points 8 --mu-qk0 0.5");
  const CsvTable integrated = table_of("flow --stop-loss 1e-2 --points 8 --mu-qk0 0.5 --method ode");
  REQUIRE(closed.rows() == 9);
  REQUIRE(integrated.rows() == 9);
  const double end = closed.number(8, "t");
  CHECK(closed.number(0, "t") == 0);
  CHECK(closed.number(0, "mu_qk") == 0.5);
  for (std::size_t row = 0; row < 9; ++row) {
    const double time = std::expm1(std::log1p(end) * double(row) / 8);
    INFO("row " << row);
    CHECK(std::abs(closed.number(row, "t") - time) <= 1e-12 * (1 + time));
    for (const char* column : {"mu_ov", "mu_qk", "alpha", "loss"}) {
      const double expected = closed.number(row, column);
      CHECK(std::abs(integrated.number(row, column) - expected) <= 1e-10 * std::max(1.0, std::abs(expected)));
    }
    if (row > 0) CHECK(closed.number(row, "loss") < closed.number(row - 1, "loss"));
  }
}

TEST_CASE("qkflow flow: --until and --stop-alpha find the same point as --stop-loss") {
  const CsvTable by_loss = table_of("flow --eta-qk 3 --stop-loss 0.1");
  for (const char* method : {"closed", "ode"}) {
    const std::string common = "flow --eta-qk 3 --method " + std::string(method);
    const CsvTable by_time = table_of(common + " --until " + by_loss.text(0, "t"));
    const CsvTable by_alpha = table_of(common + " --stop-alpha " + by_loss.text(0, "alpha"));
    CHECK(by_time.text(0, "t") == by_loss.text(0, "t"));
    for (const std::string& column : by_loss.columns()) {
      INFO(method << " " << column);
      CHECK(near(by_time.number(0, column), by_loss.number(0, column), Tol::solver));
      CHECK(near(by_alpha.number(0, column), by_loss.number(0, column), Tol::solver));
    }
  }
}

TEST_CASE("qkflow flow: unbalanced factors, products of N, noise vocabulary and score scale by both methods") {
  for (const char* options : {"--parameterization FACO --lambda-qk 0.3", "--parameterization CAFO --lambda-ov -2",
                              "--parameterization FAFO --mu-ov0 0.1 --mu-qk0 0.2 --factors-qk 3 --factors-ov 4",
                              "--noise-vocabulary 30", "--score-scale 0.25 --eta-qk 20"}) {
    const std::string line = "flow --stop-loss 1e-2 " + std::string(options);
    const CsvTable closed = table_of(line);
    const CsvTable integrated = table_of(line + " --method ode");
    for (const std::string& column : closed.columns()) {
      INFO(line << " " << column);
      CHECK(near(integrated.number(0, column), closed.number(0, column), Tol::solver));
    }
  }
}

TEST_CASE("qkflow flow: one factor is a collapsed circuit, two are a balanced one") {
  const std::string end = " --mu-ov0 0.1 --mu-qk0 0.2 --stop-loss 1e-2";
  const auto same = [&](const std::string& a, const std::string& b) {
    const CsvTable first = table_of("flow --parameterization " + a + end);
    const CsvTable second = table_of("flow --parameterization " + b + end);
    for (const std::string& column : first.columns()) {
      INFO(a << " and " << b << ": " << column);
      CHECK(near(first.number(0, column), second.number(0, column), Tol::time));
    }
  };
  same("FAFO --factors-qk 1 --factors-ov 1", "CACO");
  same("FAFO --factors-qk 2 --factors-ov 2", "FAFO");
}

TEST_CASE("qkflow flow: a finite noise vocabulary with factorized attention is called what it is, an approximation") {
  const ProgramResult result =
      run_program(words("flow --parameterization FACO --mu-qk0 0.1 --noise-vocabulary 30 --stop-loss 1e-2"));
  CHECK(result.status == 0);
  CHECK_THAT(result.err, Contains("approximate"));
}

TEST_CASE("qkflow flow: --statistics says what the integration cost, on standard error") {
  const ProgramResult result = run_program(words("flow --stop-loss 0.1 --method ode --statistics"));
  CHECK(result.status == 0);
  CHECK_THAT(result.err, StartsWith("fehlberg78: ") && Contains("steps") && Contains("evaluations"));
}

TEST_CASE("qkflow flow: --csv writes a file, and a file that cannot be written exits 1") {
  const TemporaryFolder folder;
  const ProgramResult written = run_program(words("flow --stop-loss 0.1 --csv a.csv"), folder.path());
  CHECK(written.status == 0);
  CHECK(written.out.empty());
  CHECK(CsvTable::read(folder / "a.csv").rows() == 1);
  CHECK(folder.count() == 1);
  const ProgramResult refused = run_program(words("flow --stop-loss 0.1 --csv missing/a.csv"), folder.path());
  CHECK(refused.status == 1);
  CHECK_THAT(refused.err, StartsWith("qkflow flow: cannot write 'missing/a.csv': No such file") && EndsWith("\n"));
  if (std::filesystem::exists("/dev/full")) {
    CHECK(run_program(words("flow --stop-loss 0.1 --csv /dev/full"), folder.path()).status == 1);
  }
}

TEST_CASE("qkflow flow: what an integration cannot finish exits 1 and says where it got") {
  const ProgramResult result = run_program(words("flow --stop-loss 1e-4 --method ode --max-steps 5"));
  CHECK(result.status == 1);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, StartsWith("qkflow flow: integration: ") && Contains("t = "));
}
