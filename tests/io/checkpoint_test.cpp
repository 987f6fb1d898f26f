// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/io/checkpoint.hpp"

#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace qkflow;
using qkflow_test::read_text;
using qkflow_test::TemporaryFolder;

TEST_CASE("A checkpoint gives back what was put in, bit by bit", "[checkpoint]") {
  const TemporaryFolder folder;
  CheckpointWriter out("me");
  out.integer(0xfedcba9876543210ULL);
  out.number(-0.0);
  out.number(std::numeric_limits<double>::quiet_NaN());
  out.number(1.5e-42F);
  out.text("some text");
  out.write(folder / "a");
  CheckpointReader in(folder / "a", "me");
  CHECK(in.integer() == 0xfedcba9876543210ULL);
  double d = 1;
  in.number(d);
  CHECK((d == 0 && std::signbit(d)));
  in.number(d);
  CHECK(std::isnan(d));
  float f = 0;
  in.number(f);
  CHECK(f == 1.5e-42F);
  CHECK(in.text() == "some text");
  CHECK_NOTHROW(in.finish());
  // The bytes are the same on every machine: little-endian.
  const std::string bytes = read_text(folder / "a");
  CHECK(bytes.find(std::string("\x10\x32\x54\x76\x98\xba\xdc\xfe", 8)) != std::string::npos);
}

TEST_CASE("What is no whole checkpoint of this run is refused, and the message says why", "[checkpoint]") {
  const TemporaryFolder folder;
  CheckpointWriter out("task A");
  for (int i = 0; i < 20; ++i) out.integer(static_cast<std::uint64_t>(i));
  out.write(folder / "a");
  const std::string whole = read_text(folder / "a");

  CHECK_THROWS_WITH(CheckpointReader(folder / "none", "task A"), Contains("cannot read the checkpoint"));
  CHECK_THROWS_WITH(CheckpointReader(folder / "a", "task B"),
                    Contains("another run") && Contains("\"task A\"") && Contains("\"task B\""));
  write_file(folder / "text", "step,loss\n1,2\n");
  CHECK_THROWS_WITH(CheckpointReader(folder / "text", "task A"), Contains("no qkflow checkpoint"));
  // Cut off anywhere, never silently accepted.
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    write_file(folder / "cut", whole.substr(0, size));
    CHECK_THROWS_AS(CheckpointReader(folder / "cut", "task A"), IoError);
  }
  // One bit changed anywhere.
  for (std::size_t at = 0; at < whole.size(); at += 5) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    write_file(folder / "changed", changed);
    CHECK_THROWS_AS(CheckpointReader(folder / "changed", "task A"), IoError);
  }
  CheckpointReader in(folder / "a", "task A");
  CHECK_THROWS_WITH(in.finish(), Contains("holds more than expected"));
  for (int i = 0; i < 20; ++i) in.integer();
  CHECK_THROWS_WITH(in.integer(), Contains("ends too early"));
}
