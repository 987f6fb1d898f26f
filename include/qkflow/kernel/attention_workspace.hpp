// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "qkflow/kernel/detail/scratch.hpp"

namespace qkflow {

/// Memory of the causal kernels, kept from call to call: a few tiles a thread, and O(length width) where values have to
/// be padded or keys are masked. Never O(length^2). One workspace serves one call at a time.
class AttentionWorkspace {
 public:
  /// One scratch a worker, each of at least `bytes`.
  std::vector<detail::Scratch>& scratches(std::size_t workers, std::size_t bytes) {
    while (scratches_.size() < workers) scratches_.emplace_back();
    for (std::size_t i = 0; i < workers; ++i) scratches_[i].reserve(bytes);
    return scratches_;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& scratch : scratches_) sum += scratch.size();
    return sum;
  }

 private:
  std::vector<detail::Scratch> scratches_;
};

}  // namespace qkflow
