// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <csignal>
#include <stdexcept>
#include <string>

#include "qkflow/version.hpp"

namespace qkflow {

/// Thrown when the user asked to stop. The message says where output is, if there is any; programs exit 130.
class Interrupted : public std::runtime_error {
 public:
  explicit Interrupted(const std::string& message = "interrupted") : std::runtime_error(message) {}
};

namespace detail {
inline std::atomic<bool> interrupt_flag_value{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch lock-free atomics only");

extern "C" inline void qkflow_handle_interrupt(int signal) {
  if (interrupt_flag_value.exchange(true)) {
    // Asked twice: give up politeness. The raised signal is delivered as soon as this handler returns.
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}
}  // namespace detail

/// Raised once Ctrl-C (or a polite kill, SIGTERM) has arrived while an `InterruptGuard` was alive:
/// `SolveOptions::cancel` takes its address.
inline const std::atomic<bool>& interrupt_flag() noexcept { return detail::interrupt_flag_value; }

/// Whether the flag is raised. Cheap: one relaxed load.
inline bool interrupted() noexcept { return interrupt_flag().load(std::memory_order_relaxed); }

/// Call it where a long loop can stop cleanly. Throws `Interrupted`.
inline void throw_if_interrupted() {
  if (interrupted()) throw Interrupted();
}

/// While it lives, the first Ctrl-C (SIGINT) or SIGTERM sets a flag instead of killing, and the second kills.
///
/// Belongs in main(). The handlers found on construction come back on destruction, and the flag is cleared.
class InterruptGuard {
 public:
  InterruptGuard() {
    detail::interrupt_flag_value = false;
    struct sigaction action {};
    action.sa_handler = detail::qkflow_handle_interrupt;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &previous_interrupt_);
    sigaction(SIGTERM, &action, &previous_terminate_);
  }

  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  ~InterruptGuard() {
    sigaction(SIGINT, &previous_interrupt_, nullptr);
    sigaction(SIGTERM, &previous_terminate_, nullptr);
    detail::interrupt_flag_value = false;
  }

 private:
  struct sigaction previous_interrupt_ {};
  struct sigaction previous_terminate_ {};
};

}  // namespace qkflow
