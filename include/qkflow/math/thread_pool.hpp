// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// A few threads that wait for loops. Which thread runs which index is left to chance: a loop whose result must not
/// depend on the number of threads lets each index write to places of its own and adds up afterwards in a fixed order.
class ThreadPool {
 public:
  /// `threads` in all, the calling one included; 0 means one a core. Throws InvalidArgument below 0.
  explicit ThreadPool(int threads = 1) {
    if (threads < 0) throw_invalid("ThreadPool", "threads", threads, "be at least 0");
    if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    for (int worker = 1; worker < threads; ++worker) {
      helpers_.emplace_back([this, worker] { help(static_cast<std::size_t>(worker)); });
    }
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& helper : helpers_) helper.join();
  }

  std::size_t size() const { return helpers_.size() + 1; }

  /// Calls body(index, worker) for every index below `count`, worker < size(), and returns when all are done. If a call
  /// throws, indices not yet begun are left out and the exception of the lowest index that threw is rethrown here.
  /// One loop at a time: neither from two threads at once, nor from inside a body.
  template <class Body>
  void for_each(std::size_t count, const Body& body) {
    if (helpers_.empty() || count <= 1) {
      for (std::size_t i = 0; i < count; ++i) body(i, std::size_t{0});
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      call_ = [](const void* context, std::size_t index, std::size_t worker) {
        (*static_cast<const Body*>(context))(index, worker);
      };
      context_ = &body;
      count_ = count;
      next_ = 0;
      busy_ = helpers_.size();
      error_ = nullptr;
      ++round_;
    }
    wake_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void work(std::size_t worker) {
    for (std::size_t i = next_++; i < count_; i = next_++) {
      try {
        call_(context_, i, worker);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_ || i < error_index_) {
          error_ = std::current_exception();
          error_index_ = i;
        }
        next_ = count_;
      }
    }
  }

  void help(std::size_t worker) {
    std::size_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
      }
      work(worker);
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool stop_ = false;
  std::size_t round_ = 0, busy_ = 0, count_ = 0, error_index_ = 0;
  std::atomic<std::size_t> next_{0};
  void (*call_)(const void*, std::size_t, std::size_t) = nullptr;
  const void* context_ = nullptr;
  std::exception_ptr error_;
};

}  // namespace qkflow
