// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/progress.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>

#include "support/catch.hpp"

using namespace qkflow;

namespace {
std::string contents(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int letter = std::fgetc(file); letter != EOF; letter = std::fgetc(file)) text += static_cast<char>(letter);
  return text;
}
}  // namespace

TEST_CASE("duration_text reads well at every length") {
  CHECK(duration_text(0) == "0.0 s");
  CHECK(duration_text(9.94) == "9.9 s");
  CHECK(duration_text(12.4) == "12 s");
  CHECK(duration_text(59.7) == "1 min 00 s");
  CHECK(duration_text(185) == "3 min 05 s");
  CHECK(duration_text(7620) == "2 h 07 min");
  CHECK(duration_text(-1) == "?");
  CHECK(duration_text(std::numeric_limits<double>::quiet_NaN()) == "?");
  CHECK(duration_text(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("progress_line shows share, rate and time left") {
  CHECK(progress_line("training", 250, 1000, 10) == "training:  25 %, 25 steps/s, 30 s left");
  CHECK(progress_line("training", 999, 1000, 10, "epochs") == "training:  99 %, 99.9 epochs/s, 0.0 s left");
  CHECK(progress_line("training", 0, 1000, 0) == "training:   0 %");
  CHECK(progress_line("flow", 50, 0, 10) == "flow: 50 steps, 5 steps/s");
  CHECK(progress_line("flow", 2000, 1000, 10) == "flow: 100 %, 200 steps/s, 0.0 s left");
}

TEST_CASE("Progress writes nothing where there is no terminal") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    Progress progress("work", 10, "steps", file, false);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    progress.update(5);
  }
  CHECK(contents(file).empty());
  std::fclose(file);
}

TEST_CASE("Progress is throttled, and wiped at the end") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    Progress progress("work", 10, "steps", file, true);
    progress.update(1);  // too early
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    for (int i = 0; i < 1000; ++i) progress.update(5);
  }
  const std::string text = contents(file);
  CHECK(text.find("work:  50 %") != std::string::npos);
  CHECK(text.find("10 %") == std::string::npos);
  CHECK(text.size() < 600);  // a thousand calls, not a thousand lines
  CHECK(text.substr(text.size() - 4) == "\r\033[K");
  std::fclose(file);
}
