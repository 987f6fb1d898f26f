// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <cmath>
#include <filesystem>
#include <string>

#include "qkflow/report/csv.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"

using namespace qkflow_test;
using qkflow::CsvTable;

TEST_CASE("qkflow train: rows of mean losses, and a line on how it ended") {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      words(
          "train --steps 300 --record 100 --eta-qk 0.5 --eta-ov 0.5 --seeds 2 --seed 5 --heat-map map.csv --csv a.csv"),
      folder.path());
  INFO(result.err);
  REQUIRE(result.status == 0);
  CHECK_THAT(result.err, Contains("seed 5: finished after 300 steps") && Contains("seed 6: finished") &&
                             Contains("fresh sequences: loss"));
  const CsvTable rows = CsvTable::read(folder / "a.csv");
  REQUIRE(rows.rows() == 6);
  CHECK(rows.number(2, "step") == 300);
  CHECK(rows.number(0, "loss") < 4);
  CHECK(rows.number(2, "loss") < rows.number(0, "loss"));
  const CsvTable map = CsvTable::read(folder / "map.csv");
  double percent = 0;
  for (std::size_t i = 0; i < 25; ++i) percent += map.number(i, "percent");
  CHECK(std::abs(percent - 100) < 1e-9);

  // Threads change nothing; neither does stopping half-way.
  const ProgramResult one = run_program(
      words("train --steps 300 --record 100 --eta-qk 0.5 --eta-ov 0.5 --seeds 2 --seed 5 --threads 1"), folder.path());
  CHECK(one.out == read_text(folder / "a.csv"));
}

TEST_CASE("qkflow train: every parameterization, the block task, optimizers, fixed and hard attention") {
  const TemporaryFolder folder;
  for (const std::string options :
       {"--parameterization FAFO --start-qk identity", "--parameterization CAFO --optimizer adam",
        "--parameterization FACO --optimizer nesterov --weight-decay 1e-4 --clip 1", "--fixed-attention 0.5 --bias",
        "--scalar double --schedule cosine --warm-up 10", "--attention hard --batch 4",
        "--task block --classes 3 --block 4 --informative 2 --noise 3",
        "--task block --classes 3 --block 4 --informative 2 --noise 3 --order epochs --batch 7 --init pytorch"}) {
    const ProgramResult result =
        run_program(words("train --steps 40 --record 20 --length 16 " + options), folder.path());
    INFO(options << "\n" << result.err);
    CHECK(result.status == 0);
    CHECK(CsvTable::parse(result.out, "output").rows() == 2);
  }
}

TEST_CASE("qkflow train: a checkpoint is taken up, and is no other run's") {
  const TemporaryFolder folder;
  const std::string run = "train --record 50 --length 16 --checkpoint c --steps ";
  CHECK(run_program(words(run + "100"), folder.path()).status == 0);
  const ProgramResult longer = run_program(words(run + "200"), folder.path());
  CHECK(longer.status == 0);
  const ProgramResult whole = run_program(words("train --record 50 --length 16 --steps 200"), folder.path());
  CHECK(longer.out == whole.out);
  const ProgramResult other = run_program(words(run + "200 --seed 2"), folder.path());
  CHECK(other.status == 1);
  CHECK_THAT(other.err, Contains("another run"));
}

TEST_CASE("qkflow train: divergence exits 1 and says where, impossible options exit 2") {
  const TemporaryFolder folder;
  const ProgramResult diverged =
      run_program(words("train --steps 500 --length 16 --eta-ov 1e30 --checkpoint c --checkpoint-every 1 --csv a.csv"),
                  folder.path());
  CHECK(diverged.status == 1);
  CHECK_THAT(diverged.err, Contains("diverged after") && Contains("last good checkpoint"));
  CHECK(std::filesystem::exists(folder / "a.csv"));
  for (const std::string options : {"--batch 0", "--seeds 0", "--eta-qk -1", "--momentum 1", "--optimizer sgdd",
                                    "--fixed-attention 2", "--fixed-attention 0.5 --attention hard", "--record 0"}) {
    INFO(options);
    CHECK(run_program(words("train --steps 10 " + options), folder.path()).status == 2);
  }
}
