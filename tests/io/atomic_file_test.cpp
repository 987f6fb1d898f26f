// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/io/atomic_file.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

namespace fs = std::filesystem;
using namespace qkflow;
using qkflow_test::read_text;
using qkflow_test::TemporaryFolder;

TEST_CASE("AtomicFile: a committed file holds the whole text and leaves nothing beside it") {
  const TemporaryFolder folder;
  const std::string text(200000, 'x');  // more than the buffer
  {
    AtomicFile file(folder / "a.csv");
    file.write(text);
    file.write("end\n");
    CHECK_FALSE(fs::exists(folder / "a.csv"));
    file.commit();
  }
  CHECK(read_text(folder / "a.csv") == text + "end\n");
  CHECK(folder.count() == 1);
}

TEST_CASE("AtomicFile: without commit the old file stays and the temporary goes") {
  const TemporaryFolder folder;
  write_file(folder / "a.csv", "old\n");
  {
    AtomicFile file(folder / "a.csv");
    file.write("half a new fi");
    file.flush();
    CHECK(folder.count() == 2);
  }
  CHECK(read_text(folder / "a.csv") == "old\n");
  CHECK(folder.count() == 1);
}

TEST_CASE("AtomicFile: a process killed while writing leaves the old file whole") {
  const TemporaryFolder folder;
  write_file(folder / "a.csv", "old\n");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "a.csv");
    file.write(std::string(300000, 'y'));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  CHECK(read_text(folder / "a.csv") == "old\n");
  // A leftover does not stand in the way of the next run.
  write_file(folder / "a.csv", "new\n");
  CHECK(read_text(folder / "a.csv") == "new\n");
}

TEST_CASE("AtomicFile: a full disk is an error, and the old file stays") {
  const TemporaryFolder folder;
  write_file(folder / "a.csv", "old\n");
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit on the file size stands in for the full disk.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 1;
    try {
      AtomicFile file(folder / "a.csv");
      file.write(std::string(300000, 'y'));
      file.commit();
    } catch (const IoError& error) {
      status = std::string(error.what()).find("a.csv") != std::string::npos ? 0 : 2;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(read_text(folder / "a.csv") == "old\n");
  CHECK(folder.count() == 1);
}

TEST_CASE("AtomicFile: links are followed and permissions kept") {
  const TemporaryFolder folder;
  write_file(folder / "real.csv", "old\n");
  fs::permissions(folder / "real.csv", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real.csv", folder / "link.csv");
  write_file(folder / "link.csv", "new\n");
  CHECK(fs::is_symlink(folder / "link.csv"));
  CHECK(read_text(folder / "real.csv") == "new\n");
  CHECK(fs::status(folder / "real.csv").permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("AtomicFile: a device is written to, never replaced") {
  write_file("/dev/null", "gone\n");
  CHECK(fs::is_character_file("/dev/null"));
  if (fs::exists("/dev/full")) CHECK_THROWS_WITH(write_file("/dev/full", "text"), Contains("/dev/full"));
}

TEST_CASE("AtomicFile: what cannot be opened is named") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(AtomicFile(folder / "missing" / "a.csv"), IoError);
  CHECK_THROWS_WITH(AtomicFile(folder / "missing" / "a.csv"), Contains("missing/a.csv") && Contains("No such file"));
  CHECK_THROWS_WITH(AtomicFile(folder.path()), Contains("Is a directory"));
  CHECK_THROWS_WITH(AtomicFile("no-such-folder/"), Contains("no-such-folder"));
  CHECK(AtomicFile("-").name() == "standard output");
}
