// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "qkflow/kernel/simd.hpp"
#include "qkflow/math/thread_pool.hpp"

/// What this machine can do at most, measured where the kernels are: fused multiply-adds from registers, and reads of
/// an array of a given size.

namespace qkflow_benchmark {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of this thread: what is left of a clock on a machine that does other things as well.
inline double thread_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Multiply-adds and additions count one operation each.
template <class T>
double peak_flops(int threads) {
  namespace simd = qkflow::simd;
  constexpr int chains = 12;
  constexpr long steps = 200000;
  double best = 0;
  for (int repeat = 0; repeat < 10; ++repeat) {
    const double start = thread_time();
    simd::Pack<T> sum[chains];
    for (int c = 0; c < chains; ++c) sum[c] = simd::broadcast(static_cast<T>(c));
    simd::Pack<T> a = simd::broadcast(T(0.999)), b = simd::broadcast(T(1e-3));
    for (long i = 0; i < steps; ++i) {
      QKFLOW_UNROLL
      for (int c = 0; c < chains; ++c) sum[c] = simd::multiply_add<T>(sum[c], a, b);
    }
    for (int c = 1; c < chains; ++c) sum[0] = sum[0] + sum[c];
    volatile T consumed = simd::sum(sum[0]);
    static_cast<void>(consumed);
    best = std::max(best, 2.0 * chains * simd::lanes<T> * static_cast<double>(steps) / (thread_time() - start));
  }
  return best * threads;  // a core each: nothing is shared between the multiply-add units
}

/// Bytes a second read from an array of `bytes`, over and over, `threads` together; every thread has its part.
inline double read_bandwidth(std::size_t bytes, int threads) {
  namespace simd = qkflow::simd;
  constexpr int lanes = simd::lanes<float>, step = 8 * lanes;
  const std::size_t count =
      std::max<std::size_t>(bytes / sizeof(float) / static_cast<std::size_t>(threads) / step, 1) * step;
  std::vector<float> data(count * static_cast<std::size_t>(threads) + 64, 1.0f);
  qkflow::ThreadPool pool(threads);
  const std::size_t passes = std::max<std::size_t>(1, (std::size_t(1) << 26) / (count * sizeof(float)));
  double best = 0;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const double start = now(), own = thread_time();
    pool.for_each(static_cast<std::size_t>(threads), [&](std::size_t part, std::size_t) {
      const float* const from = data.data() + part * count;
      simd::Pack<float> sum[8];
      for (auto& s : sum) s = simd::broadcast(0.0f);
      for (std::size_t pass = 0; pass < passes; ++pass) {
        for (std::size_t i = 0; i < count; i += step) {
          QKFLOW_UNROLL
          for (int c = 0; c < 8; ++c) sum[c] = sum[c] + simd::load(from + i + static_cast<std::size_t>(c * lanes));
        }
      }
      for (int c = 1; c < 8; ++c) sum[0] = sum[0] + sum[c];
      volatile float consumed = simd::sum(sum[0]);
      static_cast<void>(consumed);
    });
    const double seconds = threads == 1 ? thread_time() - own : now() - start;
    best = std::max(best, static_cast<double>(passes * count * sizeof(float)) * threads / seconds);
  }
  return best;
}

}  // namespace qkflow_benchmark
