// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// The exponential of each SIMD library that is installed, beside qkflow's: 1024 numbers in the first-level cache.
// Compile with other -m flags to compare other instruction sets. This is what the choice of library in docs/kernels.md
// rests on.
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <random>

#include "qkflow/kernel/vector_exp.hpp"
#if __has_include(<hwy/contrib/math/math-inl.h>)
#include <hwy/highway.h>
// After highway.h: it takes the target from there.
#include <hwy/contrib/math/math-inl.h>
#define QKFLOW_BENCHMARK_HIGHWAY 1
#endif

namespace {

constexpr int count = 1024;

template <class T>
using Array = Eigen::Array<T, count, 1>;

/// Times step(x, y, i) for i in steps of `lanes`.
template <class T, class Step>
void run(benchmark::State& state, int lanes, const Step& step) {
  Array<T> x, y;
  std::mt19937_64 bits(1);
  for (T& value : x) value = static_cast<T>(-80.0 * static_cast<double>(bits() >> 11) * 0x1p-53);
  for (auto _ : state) {
    benchmark::DoNotOptimize(x.data());
    for (int i = 0; i < count; i += lanes) step(x.data() + i, y.data() + i);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * count);
}

template <class T>
void eigen_array(benchmark::State& state) {
  run<T>(state, count, [](const T* x, T* y) {
    Eigen::Map<Array<T>> to(y);
    to = Eigen::Map<const Array<T>>(x).exp();
  });
}

template <class T>
void eigen_packet(benchmark::State& state) {
  using Packet = typename Eigen::internal::packet_traits<T>::type;
  run<T>(state, Eigen::internal::unpacket_traits<Packet>::size, [](const T* x, T* y) {
    Eigen::internal::pstoreu(y, Eigen::internal::pexp(Eigen::internal::ploadu<Packet>(x)));
  });
}

template <class T>
void qkflow_exp(benchmark::State& state) {
  namespace simd = qkflow::simd;
  run<T>(state, simd::lanes<T>, [](const T* x, T* y) { simd::store<T>(y, simd::exp<T>(simd::load(x))); });
}

template <class T>
void qkflow_exp2_nonpositive(benchmark::State& state) {
  namespace simd = qkflow::simd;
  run<T>(state, simd::lanes<T>, [](const T* x, T* y) { simd::store<T>(y, simd::exp2_nonpositive<T>(simd::load(x))); });
}

BENCHMARK(eigen_array<float>);
BENCHMARK(eigen_array<double>);
BENCHMARK(eigen_packet<float>);
BENCHMARK(eigen_packet<double>);
BENCHMARK(qkflow_exp<float>);
BENCHMARK(qkflow_exp<double>);
BENCHMARK(qkflow_exp2_nonpositive<float>);
BENCHMARK(qkflow_exp2_nonpositive<double>);

#if defined(QKFLOW_HAS_XSIMD)
template <class T>
void xsimd_exp(benchmark::State& state) {
  using Batch = xsimd::batch<T>;
  run<T>(state, static_cast<int>(Batch::size),
         [](const T* x, T* y) { xsimd::exp(Batch::load_unaligned(x)).store_unaligned(y); });
}
BENCHMARK(xsimd_exp<float>);
BENCHMARK(xsimd_exp<double>);
#endif

#if defined(QKFLOW_BENCHMARK_HIGHWAY)
template <class T>
void highway_exp(benchmark::State& state) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<T> tag;
  run<T>(state, static_cast<int>(hn::Lanes(tag)),
         [&](const T* x, T* y) { hn::StoreU(hn::Exp(tag, hn::LoadU(tag, x)), tag, y); });
}
BENCHMARK(highway_exp<float>);
BENCHMARK(highway_exp<double>);
#endif

}  // namespace

BENCHMARK_MAIN();
