// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "qkflow/version.hpp"

namespace qkflow {

/// A span of time for people: "0.4 s", "12 s", "3 min 05 s", "2 h 07 min".
inline std::string duration_text(double seconds) {
  if (!(seconds >= 0) || !std::isfinite(seconds)) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 59.5) return fmt::format("{:.0f} s", seconds);
  const auto whole = std::llround(std::min(seconds, 1e15));
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
}

/// One progress line: label, share done, rate, time left (by the mean rate so far). A `total` of 0 means it is not
/// known.
inline std::string progress_line(std::string_view label, double done, double total, double seconds,
                                 std::string_view unit = "steps") {
  const double rate = seconds > 0 ? done / seconds : 0;
  const std::string speed = rate > 0 ? fmt::format(", {:.3g} {}/s", rate, unit) : "";
  if (!(total > 0)) return fmt::format("{}: {:.0f} {}{}", label, done, unit, speed);
  const double share = std::clamp(done / total, 0.0, 1.0);
  const std::string left = rate > 0 ? ", " + duration_text(std::max(0.0, total - done) / rate) + " left" : "";
  return fmt::format("{}: {:3.0f} %{}{}", label, std::floor(100 * share), speed, left);
}

/// Shows how far a long computation is, on standard error and only if that is a terminal: logs stay clean.
///
/// `update` costs a clock reading and writes at most ten times a second; the line is wiped when the object goes.
class Progress {
 public:
  Progress(std::string label, double total, std::string unit = "steps")
      : Progress(std::move(label), total, std::move(unit), stderr, ::isatty(STDERR_FILENO) == 1) {}

  /// For another stream, or to decide the visibility oneself.
  Progress(std::string label, double total, std::string unit, std::FILE* stream, bool visible)
      : label_(std::move(label)), unit_(std::move(unit)), total_(total), stream_(stream), visible_(visible) {}

  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  bool visible() const { return visible_; }

  /// `done` of `total` is finished.
  void update(double done) {
    if (!visible_) return;
    const Clock::time_point now = Clock::now();
    if (now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    fmt::print(stream_, "\r{}\033[K", progress_line(label_, done, total_, seconds, unit_));
    std::fflush(stream_);
    dirty_ = true;
  }

  /// Wipes the line, so that what is printed next starts on a clean one.
  void finish() {
    if (!dirty_) return;
    std::fputs("\r\033[K", stream_);
    std::fflush(stream_);
    dirty_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::string unit_;
  double total_;
  std::FILE* stream_;
  bool visible_;
  bool dirty_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = start_;  // the first line waits, too: short jobs show nothing
};

}  // namespace qkflow
