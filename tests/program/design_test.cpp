// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>

#include "qkflow/report/csv.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/tolerance.hpp"

using namespace qkflow_test;
using qkflow::CsvTable;

TEST_CASE("qkflow design: the ratios of golden states") {
  // alpha and loss of golden rows, whose ratio is known.
  for (const auto& [options, expected] :
       {std::pair{"--alpha 0.9220805868374168778776101 --loss 1e-4", 10.0},
        {"--alpha 0.09551720970017907661921821 --loss 1", 0.01},
        {"--alpha 0.9125559205276258816592543 --loss 1e-3 --classes 4 --block 8 --informative 2 --noise 6 --mu-ov0 0.3 "
         "--mu-qk0 -0.7",
         4.0},
        {"--alpha 0.9969271214749158393325857 --loss 1e-2 --parameterization FACO --mu-qk0 0.01", 1.0},
        {"--alpha 0.1801103657479590720789586 --loss 1e-4 --parameterization CAFO --mu-ov0 1e-6", 10.0}}) {
    const ProgramResult result = run_program(words(std::string("design ") + options));
    INFO(options << "\n" << result.err);
    REQUIRE(result.status == 0);
    const CsvTable table = CsvTable::parse(result.out, "output");
    CHECK_THAT(result.out, StartsWith("alpha,loss,ratio\n"));
    REQUIRE(table.rows() == 1);
    CHECK_THAT(table.number(0, "ratio"), WithinRel(expected, tolerance<double>(Tol::extreme)));
  }
}

TEST_CASE("qkflow design: flow at the designed ratio ends where it was designed to") {
  const std::string task =
      "--parameterization FAFO --mu-ov0 0.05 --mu-qk0 0.02 --classes 7 --noise 12 --stop-loss 0.02";
  const ProgramResult design = run_program(words(
      "design --alpha 0.75 --loss 0.02 --parameterization FAFO --mu-ov0 0.05 --mu-qk0 0.02 --classes 7 --noise 12"));
  REQUIRE(design.status == 0);
  const std::string ratio = CsvTable::parse(design.out, "design").text(0, "ratio");
  const ProgramResult flow = run_program(words("flow " + task + " --eta-qk " + ratio));
  REQUIRE(flow.status == 0);
  CHECK_THAT(CsvTable::parse(flow.out, "flow").number(0, "alpha"), WithinRel(0.75, tolerance<double>(Tol::extreme)));
}

TEST_CASE("qkflow design: the learning rates of flow are taken and do not enter") {
  const std::string line = "design --alpha 0.9 --loss 0.01";
  CHECK(run_program(words(line + " --eta-ov 3 --eta-qk 7")).out == run_program(words(line)).out);
}

TEST_CASE("qkflow design: what no ratio can give exits 2 with one line") {
  for (const auto& [options, expected] : {std::pair{"--alpha 0.05 --loss 0.01", "alpha = 0.05"},
                                          {"--alpha 1 --loss 0.01", "alpha = 1"},
                                          {"--alpha nan --loss 0.01", "alpha = nan"},
                                          {"--alpha 0.9 --loss 5", "loss = 5"},
                                          {"--alpha 0.9 --loss 0", "loss = 0"},
                                          {"--alpha 0.9 --loss inf", "loss = inf"},
                                          {"--alpha 0.9 --loss 0.01 --parameterization FACO", "mu_qk0 = 0"},
                                          {"--alpha 0.9 --loss 0.01 --classes 1", "classes = 1"},
                                          {"--alpha 0.9", "--loss"},
                                          {"--loss 0.01", "--alpha"}}) {
    const ProgramResult result = run_program(words(std::string("design ") + options));
    INFO(options << "\n" << result.err);
    CHECK(result.status == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, StartsWith("qkflow design: ") && Contains(expected));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}
