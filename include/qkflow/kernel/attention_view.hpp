// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <string>
#include <type_traits>

#include "qkflow/kernel/simd.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/math/thread_pool.hpp"

namespace qkflow {

using Eigen::Index;

/// Where the rows of every head lie in memory: row i (a query, key, value or gradient) of head h of sequence b is
/// `width` neighbouring numbers at data + b * batch_stride + h * head_stride + i * row_stride. No alignment is asked
/// for. `T` is const for inputs.
template <class T>
struct HeadView {
  T* data = nullptr;
  Index batch = 0, heads = 0, length = 0, width = 0;
  Index batch_stride = 0, head_stride = 0, row_stride = 0;

  T* row(Index b, Index h, Index i) const { return data + b * batch_stride + h * head_stride + i * row_stride; }
  // NOLINTNEXTLINE(google-explicit-constructor): like T* to const T*
  operator HeadView<const T>() const requires(!std::is_const_v<T>) {
    return {data, batch, heads, length, width, batch_stride, head_stride, row_stride};
  }
};

/// Rows stored [batch][heads][length][width] without gaps.
template <class T>
HeadView<T> head_view(T* data, Index batch, Index heads, Index length, Index width) {
  return {data, batch, heads, length, width, heads * length * width, length * width, width};
}

/// Rows stored [batch][length][heads][width], as a projection to all heads at once leaves them.
template <class T>
HeadView<T> interleaved_head_view(T* data, Index batch, Index heads, Index length, Index width) {
  return {data, batch, heads, length, width, length * heads * width, width, heads * width};
}

/// What the attention kernels can be told besides their operands.
template <class T>
struct AttentionOptions {
  /// Factor of every score, often 1 / sqrt(width).
  T scale = T(1);
  /// [batch][length], 0 for a key that nobody attends to (padding), anything else for the rest; null: every key counts.
  /// A masked key and its value are never read, and their gradients are 0.
  const std::uint8_t* key_mask = nullptr;
  /// Threads to work on, or null for the calling thread alone. The result does not depend on it. Problems of less than
  /// a million multiply-adds stay on the calling thread: waking another would take longer.
  ThreadPool* pool = nullptr;
};

namespace detail {

template <class T>
void require_view(const char* function, const char* argument, const HeadView<T>& view) {
  const auto refuse = [&](const char* part, Index value, const char* must) {
    throw_invalid(function, (std::string(argument) + "." + part).c_str(), value, must);
  };
  if (view.batch < 0) refuse("batch", view.batch, "be at least 0");
  if (view.heads < 0) refuse("heads", view.heads, "be at least 0");
  if (view.length < 0) refuse("length", view.length, "be at least 0");
  if (view.width < 1) refuse("width", view.width, "be at least 1");
  if (view.length > 1 && view.row_stride < view.width) refuse("row_stride", view.row_stride, "be at least the width");
  if (view.data == nullptr && view.batch * view.heads * view.length > 0) refuse("data", 0, "point to the rows");
}

template <class T, class U>
void require_same_heads(const char* function, const char* argument, const HeadView<T>& view, const HeadView<U>& model,
                        Index length, Index width) {
  require_view(function, argument, view);
  const auto require_equal = [&](const char* part, Index value, Index expected) {
    if (value == expected) return;
    throw_invalid(function, (std::string(argument) + "." + part).c_str(), value,
                  "be " + std::to_string(expected) + ", as the other operands have it");
  };
  require_equal("batch", view.batch, model.batch);
  require_equal("heads", view.heads, model.heads);
  require_equal("length", view.length, length);
  require_equal("width", view.width, width);
}

/// The pool, or none where handing work to another thread (some 20 to 50 microseconds) would take longer than it saves.
inline ThreadPool* pool_worth_waking(ThreadPool* pool, Index heads, Index pairs, Index width, int products) {
  constexpr double least = 1e6;  // multiply-adds
  const double work = static_cast<double>(heads) * static_cast<double>(pairs) * static_cast<double>(width) * products;
  return work < least ? nullptr : pool;
}

/// body(index, worker) for every index below count, on the pool if there is one.
template <class Body>
void for_each_index(ThreadPool* pool, Index count, const Body& body) {
  if (pool == nullptr || count < 2) {
    for (Index i = 0; i < count; ++i) body(i, std::size_t{0});
  } else {
    pool->for_each(static_cast<std::size_t>(count),
                   [&](std::size_t i, std::size_t worker) { body(static_cast<Index>(i), worker); });
  }
}

}  // namespace detail
}  // namespace qkflow
