// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "qkflow/io/atomic_file.hpp"
#include "qkflow/report/csv.hpp"
#include "qkflow/version.hpp"
#include "support/catch.hpp"
#include "support/program.hpp"
#include "support/tolerance.hpp"

using namespace qkflow_test;
using qkflow::CsvTable;

namespace {

// Exit 2, nothing on standard output, and one line on standard error with all that is expected of it.
void check_refused(const std::string& line, const std::vector<std::string>& expected) {
  const ProgramResult result = run_program(words(line));
  INFO("qkflow " << line << "\n" << result.err);
  CHECK(result.status == 2);
  CHECK(result.out.empty());
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK_THAT(result.err, StartsWith("qkflow"));
  for (const std::string& text : expected) CHECK_THAT(result.err, Contains(text));
}

// Until the program is at work: it has opened its output beside the old file.
void wait_for_second_file(const TemporaryFolder& folder) {
  for (int i = 0; i < 3000 && folder.count() < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(folder.count() == 2);
}

const std::string flow = "flow --stop-loss 1e-4 ";

}  // namespace

TEST_CASE("qkflow: version and help") {
  CHECK(run_program({"--version"}).out == std::string("qkflow ") + qkflow::version_text + "\n");
  const ProgramResult help = run_program({"--help"});
  CHECK(help.status == 0);
  CHECK(help.err.empty());
  for (const char* command : {"flow", "design", "figure"}) CHECK_THAT(help.out, Contains(command));
}

TEST_CASE("qkflow: every command's help shows defaults and a worked example that works") {
  for (const char* command : {"flow", "design", "figure 4"}) {
    std::vector<std::string> arguments = words(command);
    arguments.push_back("--help");
    const ProgramResult help = run_program(arguments);
    INFO(command);
    CHECK(help.status == 0);
    CHECK_THAT(help.out, Contains("Example"));
    const std::string prompt = "  $ qkflow ";
    const std::size_t at = help.out.find(prompt);
    REQUIRE(at != std::string::npos);
    const std::size_t end = help.out.find('\n', at);
    const std::string line = help.out.substr(at + prompt.size(), end - at - prompt.size());
    CHECK_THAT(line, StartsWith(command));
    const TemporaryFolder folder;
    const ProgramResult example = run_program(words(line), folder.path());
    INFO(line << "\n" << example.err);
    CHECK(example.status == 0);
    // Lines set in below the command are its output.
    std::string shown;
    for (std::size_t at_line = end + 1; help.out.compare(at_line, 2, "  ") == 0;) {
      const std::size_t line_end = help.out.find('\n', at_line) + 1;
      shown += help.out.substr(at_line + 2, line_end - at_line - 2);
      at_line = line_end;
    }
    if (shown.empty()) continue;
    const CsvTable expected = CsvTable::parse(shown, "help");
    const CsvTable actual = CsvTable::parse(example.out, "output");
    CHECK(actual.columns() == expected.columns());
    REQUIRE(actual.rows() == expected.rows());
    for (const std::string& column : expected.columns()) {
      CHECK_THAT(actual.number(0, column), WithinRel(expected.number(0, column), tolerance<double>(Tol::time)));
    }
  }
  CHECK_THAT(run_program({"flow", "--help"}).out, Contains("--classes M=20") && Contains("--rtol x=1e-12"));
  CHECK_THAT(run_program({"figure", "4", "--help"}).out, Contains("--out FOLDER=out"));
}

TEST_CASE("qkflow: bad input exits 2 with one line that names argument and value") {
  check_refused(flow + "--classes 1", {"classes = 1", "at least 2"});
  check_refused(flow + "--classes nan", {"classes = nan"});
  check_refused(flow + "--classes inf", {"classes = inf"});
  check_refused(flow + "--informative -5", {"informative = -5"});
  check_refused(flow + "--noise -1", {"noise = -1"});
  check_refused(flow + "--noise 0", {"noise = 0"});
  check_refused(flow + "--block 0", {"block = 0"});
  check_refused(flow + "--noise-vocabulary -inf", {"noise_vocabulary = -inf"});
  check_refused(flow + "--score-scale 0", {"score_scale = 0"});
  check_refused(flow + "--eta-ov 0", {"ov = 0"});
  check_refused(flow + "--eta-qk -1", {"qk = -1"});
  check_refused(flow + "--eta-qk nan", {"qk = nan"});
  check_refused(flow + "--mu-ov0 inf", {"mu_ov0 = inf"});
  check_refused(flow + "--mu-qk0 nan", {"mu_qk0 = nan"});
  for (const char* method : {"closed", "ode"}) {
    const std::string ending = std::string(" --method ") + method;
    check_refused("flow --stop-loss 3" + ending, {"loss = 3", "at most the loss at the start"});
    check_refused("flow --stop-loss 0" + ending, {"loss = 0"});
    check_refused("flow --stop-loss -1" + ending, {"loss = -1"});
    check_refused("flow --stop-loss nan" + ending, {"loss = nan"});
    check_refused("flow --until -1" + ending, {"t = -1"});
    check_refused("flow --until inf" + ending, {"t = inf"});
    check_refused("flow --stop-alpha 1" + ending, {"alpha = 1"});
    check_refused("flow --stop-alpha 0.05" + ending, {"alpha = 0.05", "reached"});
    check_refused(flow + "--parameterization CAFO" + ending, {"mu_ov0 = 0", "saddle"});
    check_refused(flow + "--parameterization FACO" + ending, {"mu_qk0 = 0", "saddle"});
    check_refused(flow + "--parameterization CAFO --mu-ov0 -1" + ending, {"loss = 1e-04", "never crosses 0"});
  }
}

TEST_CASE("qkflow: malformed command lines exit 2 with one line") {
  check_refused("", {"subcommand"});
  check_refused("nonsense", {"not understood: nonsense"});
  check_refused("flow --no-such-option 1", {"--no-such-option"});
  check_refused(flow + "--classes", {"--classes"});
  check_refused(flow + "--classes twenty", {"--classes = twenty", "a number"});
  check_refused(flow + "--classes 20x", {"--classes = 20x"});
  check_refused(flow + "--classes 1,5", {"--classes = 1,5"});
  check_refused(flow + "--classes 1e999", {"--classes = 1e999", "range"});
  check_refused(flow + "--points 2.5", {"--points = 2.5", "a whole number"});
  check_refused(flow + "--points -1", {"points = -1"});
  check_refused(flow + "--points 99999999999", {"--points = 99999999999"});
  check_refused(flow + "--parameterization CACA", {"--parameterization = CACA", "CACO, CAFO, FACO, FAFO"});
  check_refused(flow + "--method magic", {"--method = magic"});
  check_refused(flow + "--stepper euler", {"--stepper = euler", "rk4"});
  check_refused("flow", {"--stop-loss", "--stop-alpha", "--until", "not 0"});
  check_refused(flow + "--until 5", {"not 2"});
  check_refused(flow + "--lambda-qk 1", {"lambda-qk = 1", "collapsed"});
  check_refused(flow + "--factors-ov 3", {"factors-ov = 3", "collapsed"});
  check_refused(flow + "--parameterization FACO --mu-qk0 1 --lambda-qk 1 --factors-qk 3", {"lambda-qk = 1"});
  check_refused(flow + "--parameterization FACO --mu-qk0 1 --lambda-qk 0", {"lambda = 0"});
  check_refused(flow + "--parameterization FACO --mu-qk0 1 --factors-qk 0", {"factors = 0"});
  check_refused(flow + "--method ode --rtol -1", {"rtol = -1"});
  check_refused(flow + "--method ode --rtol 1e-20", {"rtol = 1e-20"});
  check_refused(flow + "--method ode --stepper rk4", {"step = 0"});
  check_refused(flow + "--method ode --max-steps 0", {"max-steps = 0"});
  check_refused("flow --stop-loss 1e-300 --mu-ov0 1 --points 3 --classes 1e9 --block 1e9 --eta-ov 1e-9",
                {"points = 3"});
  check_refused("figure", {"subcommand"});
  check_refused("figure 7", {"not understood: 7"});
  check_refused("--no-such-option", {"not understood: --no-such-option"});
}

TEST_CASE("qkflow: names are understood in any case") {
  CHECK(run_program(words(flow + "--parameterization caco --method CLOSED")).status == 0);
}

TEST_CASE("qkflow: the locale of the user changes nothing") {
  const std::vector<std::string> line = words(flow + "--eta-qk 0.5 --points 3");
  const ProgramResult plain = run_program(line);
  CHECK(plain.status == 0);
  for (const char* locale : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "C", "no-such-locale"}) {
    const ProgramResult other = run_program(line, ".", {{"LC_ALL", locale}, {"LANG", locale}});
    CHECK(other.status == 0);
    CHECK(other.out == plain.out);
  }
}

TEST_CASE("qkflow: Ctrl-C ends a long run cleanly, and the old file stays") {
  const TemporaryFolder folder;
  qkflow::write_file(folder / "a.csv", "old\n");
  RunningProgram running(words("flow --until 1e6 --method ode --stepper rk4 --step 1e-3 --csv a.csv"), folder.path());
  wait_for_second_file(folder);
  running.signal(SIGINT);
  const ProgramResult result = running.wait();
  CHECK(result.status == 130);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, StartsWith("qkflow flow: interrupted at t = ") && Contains("nothing was written"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(read_text(folder / "a.csv") == "old\n");
  CHECK(folder.count() == 1);
}

TEST_CASE("qkflow: a run that is killed leaves the old file whole") {
  const TemporaryFolder folder;
  qkflow::write_file(folder / "a.csv", "old\n");
  RunningProgram running(words("flow --until 1e6 --method ode --stepper rk4 --step 1e-3 --csv a.csv"), folder.path());
  wait_for_second_file(folder);
  running.signal(SIGKILL);
  CHECK(running.wait().status == 128 + SIGKILL);
  CHECK(read_text(folder / "a.csv") == "old\n");
  CHECK(run_program(words(flow + "--csv a.csv"), folder.path()).status == 0);
  CHECK_THAT(read_text(folder / "a.csv"), StartsWith("t,mu_ov"));
}
