// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/report/interrupt.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("InterruptGuard: the first Ctrl-C sets the flag and the program goes on") {
  {
    const InterruptGuard guard;
    CHECK_FALSE(interrupted());
    CHECK_NOTHROW(throw_if_interrupted());
    std::raise(SIGINT);
    CHECK(interrupted());
    CHECK_THROWS_AS(throw_if_interrupted(), Interrupted);
  }
  CHECK_FALSE(interrupted());
  const InterruptGuard again;
  std::raise(SIGTERM);
  CHECK(interrupted());
}

TEST_CASE("InterruptGuard: the second Ctrl-C kills") {
  const pid_t child = ::fork();
  if (child == 0) {
    // Catch2 has handlers of its own; the child must die as a plain program would.
    const InterruptGuard guard;
    std::raise(SIGINT);
    if (!interrupted()) ::_exit(3);
    std::raise(SIGINT);
    ::_exit(4);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("InterruptGuard: the earlier handler comes back") {
  struct sigaction before {};
  struct sigaction after {};
  sigaction(SIGINT, nullptr, &before);
  { const InterruptGuard guard; }
  sigaction(SIGINT, nullptr, &after);
  CHECK(before.sa_handler == after.sa_handler);
}
