// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

namespace qkflow::detail {

using Eigen::Index;

/// Memory a kernel works in, aligned to cache lines. It only grows, so that a kernel called again allocates nothing.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  Scratch& operator=(Scratch&&) = delete;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    release();
    data_ = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{line}));
    bytes_ = bytes;
    // Padding lanes are computed on before anything is written to them; they must not hold signalling garbage.
    std::memset(data_, 0, bytes);
  }
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  static constexpr std::size_t line = 64;

 private:
  void release() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{line});
    data_ = nullptr;
    bytes_ = 0;
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Hands out pieces of a Scratch. Run over the same requests twice: once with null to measure, once to assign.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class U>
  U* take(Index count) {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + used_;
    const std::size_t bytes = static_cast<std::size_t>(std::max<Index>(count, 0)) * sizeof(U);
    // One line more than asked for: pieces whose sizes are powers of two would all fall into the same cache sets.
    used_ += (bytes + Scratch::line - 1) / Scratch::line * Scratch::line + Scratch::line;
    return reinterpret_cast<U*>(piece);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace qkflow::detail
