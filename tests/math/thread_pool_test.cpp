// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/math/thread_pool.hpp"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace qkflow;

TEST_CASE("every index is run exactly once, by a worker of the pool") {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    CHECK(pool.size() == static_cast<std::size_t>(threads));
    for (const std::size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> worker_in_range{true};
      // Many short rounds: a helper that sleeps through a round, or runs one twice, shows here.
      for (int round = 0; round < 50; ++round) {
        pool.for_each(count, [&](std::size_t i, std::size_t worker) {
          ++runs[i];
          if (worker >= pool.size()) worker_in_range = false;
        });
      }
      for (const auto& run : runs) REQUIRE(run == 50);
      CHECK(worker_in_range);
    }
  }
}

TEST_CASE("an exception comes back to the caller and the pool goes on working") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto failing = [](std::size_t i, std::size_t) {
      if (i == 3) throw std::runtime_error("index " + std::to_string(i));
    };
    CHECK_THROWS_WITH(pool.for_each(100, failing), "index 3");
    std::atomic<int> runs{0};
    pool.for_each(100, [&](std::size_t, std::size_t) { ++runs; });
    CHECK(runs == 100);
  }
}

TEST_CASE("the number of threads is checked; 0 takes one a core") {
  CHECK_THROWS_WITH(ThreadPool(-1), Catch::Contains("threads = -1"));
  CHECK(ThreadPool(0).size() >= 1);
}
