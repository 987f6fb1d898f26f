// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "qkflow/flow/closed_form.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/report/gnuplot.hpp"
#include "support/catch.hpp"
#include "support/html.hpp"
#include "support/program.hpp"

namespace fs = std::filesystem;
using namespace qkflow_test;
using qkflow::CsvTable;

namespace {

// A task small enough for seconds: 3 classes, blocks of 4.
const std::string small =
    "compare --quick --classes 3 --block 4 --informative 2 --noise 4 --loss 0.2 --seeds 4 --batches 4,16 --length 8 "
    "--sequences 32 ";

std::set<std::string> csv_files(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".csv") names.insert(entry.path().filename().string());
  }
  return names;
}

bool has_gnuplot() { return !qkflow::detail::find_program("gnuplot").empty(); }
int expected_status() { return has_gnuplot() ? 0 : 1; }

}  // namespace

TEST_CASE("qkflow compare: training lies on the closed form, orders are 1 and 2, and the report stands alone") {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(words(small + "--parameterizations CACO,FAFO --ratios 1 --only trajectories,orders,ratios --out o"),
                  folder.path());
  INFO(result.out << result.err);
  REQUIRE(result.status == expected_status());
  const fs::path out = folder / "o";

  // The flow's rows against the library, and training against the flow.
  const CsvTable flow = CsvTable::read(out / "compare_flow.csv");
  const qkflow::BlockTask<double> task{.classes = 3, .block = 4, .informative = 2, .noise = 4};
  const qkflow::ClosedForm closed(qkflow::Caco<double>{.task = task}, qkflow::ReducedState<double>{});
  std::size_t checked = 0;
  for (std::size_t row = 0; row < flow.rows(); ++row) {
    if (flow.text(row, "parameterization") != "CACO") continue;
    const auto point = closed.at_time(flow.number(row, "t"));
    CHECK_THAT(flow.number(row, "mu_ov"), WithinAbs(point.mu_ov, 1e-9));
    CHECK_THAT(flow.number(row, "alpha"), WithinAbs(point.alpha, 1e-9));
    ++checked;
  }
  CHECK(checked > 50);
  const CsvTable training = CsvTable::read(out / "compare_training.csv");
  for (std::size_t row = 0; row < training.rows(); ++row) {
    INFO("row " << row);
    CHECK(training.number(row, "error_loss") < 0.2);
    CHECK(training.number(row, "modified_error_loss") < 0.05);
    CHECK(training.number(row, "line_difference") < 1e-10);
    CHECK(training.number(row, "t") == training.number(row, "step") * training.number(row, "step_size"));
  }

  const CsvTable fits = CsvTable::read(out / "compare_order_fits.csv");
  REQUIRE(fits.rows() == 4);
  for (std::size_t row = 0; row < fits.rows(); ++row) {
    CHECK_THAT(fits.number(row, "flow_last_slope"), WithinAbs(1, 0.2));
    CHECK_THAT(fits.number(row, "modified_last_slope"), WithinAbs(2, 0.2));
  }

  const CsvTable ratios = CsvTable::read(out / "compare_ratios.csv");
  double last = 0;
  for (std::size_t row = 0; row < ratios.rows(); ++row) {
    CHECK(std::abs(ratios.number(row, "descent_alpha") - ratios.number(row, "closed_alpha")) < 0.02);
    if (ratios.text(row, "parameterization") != "CACO") continue;
    CHECK(ratios.number(row, "closed_alpha") > last);  // a faster attention circuit is a sharper one
    last = ratios.number(row, "closed_alpha");
  }

  const std::string html = read_text(out / "report.html");
  CHECK(html.find("http") == std::string::npos);
  CHECK(html.find("<script") == std::string::npos);
  const auto ids = attribute_values(html, "id");
  CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == ids.size());
  for (const char* attribute : {"href", "xlink:href", "src"}) {
    for (const std::string& target : attribute_values(html, attribute)) {
      INFO(attribute << " " << target);
      const bool inside = target.starts_with("#");
      CHECK((inside || fs::exists(out / target)));
      if (inside) CHECK(std::find(ids.begin(), ids.end(), target.substr(1)) != ids.end());
    }
  }
  CHECK_THAT(html, Contains("qkflow compare --") && Contains("lang=\"en\""));
  if (!has_gnuplot()) return;
  for (const char* name :
       {"trajectories-CACO", "trajectories-FAFO", "errors", "orders", "attention", "attention-difference"}) {
    CHECK_THAT(html, Contains("id=\"figure-compare-" + std::string(name) + "\""));
  }
  CHECK_THAT(result.out, Contains("report: o/report.html"));
}

TEST_CASE("qkflow compare: the same bits for any number of threads, again, and after a piece is lost") {
  const TemporaryFolder folder;
  const std::string command = small + "--parameterizations CAFO --ratios 1 ";
  const ProgramResult one = run_program(words(command + "--threads 1 --out one"), folder.path());
  INFO(one.out << one.err);
  REQUIRE(one.status == expected_status());
  const ProgramResult two = run_program(words(command + "--threads 2 --out two"), folder.path());
  REQUIRE(two.status == expected_status());
  const auto names = csv_files(folder / "one");
  CHECK(names.size() >= 12);
  CHECK(csv_files(folder / "two") == names);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(read_text(folder / "one" / name) == read_text(folder / "two" / name));
  }

  // One piece is gone, one is another run's: both are made again, the others are kept.
  const fs::path work = folder / "two" / "compare_work";
  const fs::path kept = work / "orders_line_CAFO.csv";
  const auto time = fs::last_write_time(kept);
  fs::remove(work / "batches_CAFO.csv");
  qkflow::write_file(work / "momentum_CAFO.csv", "# something else\na,b\n1,2\n# end\n");
  const ProgramResult again = run_program(words(command + "--threads 2 --out two"), folder.path());
  CHECK(again.status == expected_status());
  CHECK(fs::last_write_time(kept) == time);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(read_text(folder / "one" / name) == read_text(folder / "two" / name));
  }
}

TEST_CASE("qkflow compare: Ctrl-C keeps what is finished, and says so") {
  const TemporaryFolder folder;
  RunningProgram running(words("compare --out o"), folder.path());
  const fs::path work = folder / "o" / "compare_work";
  for (int i = 0; i < 400 && (!fs::exists(work) || fs::is_empty(work)); ++i) ::usleep(20000);
  running.signal(SIGINT);
  const ProgramResult result = running.wait();
  INFO(result.out << result.err);
  CHECK(result.status == 130);
  CHECK_THAT(result.err, Contains("interrupted; the same command goes on"));
  CHECK_FALSE(fs::exists(folder / "o" / "report.html"));
}

TEST_CASE("qkflow compare: what cannot be done exits 2 and names the option") {
  const TemporaryFolder folder;
  const std::pair<const char*, const char*> cases[] = {{"--ratios 0", "--ratios = 0"},
                                                       {"--ratios x", "--ratios = x"},
                                                       {"--parameterizations CXCO", "--parameterizations = CXCO"},
                                                       {"--only nothing", "--only = nothing"},
                                                       {"--step-sizes 1,2", "--step-sizes = 2"},
                                                       {"--batches 0.5", "--batches = 0.5"},
                                                       {"--loss 3", "--loss = 3"},
                                                       {"--start 0", "--start = 0"},
                                                       {"--seeds 2", "--seeds = 2"},
                                                       {"--threads -1", "--threads = -1"},
                                                       {"--block 2.5", "block = 2.5"},
                                                       {"--nonsense", "--nonsense"}};
  for (const auto& [options, message] : cases) {
    const ProgramResult result = run_program(words("compare --quick --out o " + std::string(options)), folder.path());
    INFO(options << ": " << result.err);
    CHECK(result.status == 2);
    CHECK_THAT(result.err, StartsWith("qkflow compare: ") && Contains(message));
  }
  CHECK_FALSE(fs::exists(folder / "o"));
}
