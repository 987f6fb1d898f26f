// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/kernel/attention_view.hpp"
#include "qkflow/kernel/attention_workspace.hpp"
#include "qkflow/kernel/detail/row_kernels.hpp"
#include "qkflow/kernel/vector_exp.hpp"

namespace qkflow {

namespace detail {

struct SingleQuery {
  /// Keys whose scores are held at once: their rows stay in the first two caches between their two uses.
  static constexpr Index block = 128;
  /// Keys that are one piece of work. Fixed, so that results do not depend on the number of threads.
  static constexpr Index chunk = 4096;
};

/// Blocks of unmasked keys of [begin, end): body(rows' first key, count, index or null).
template <class Body>
void for_each_block(const std::uint8_t* mask, Index begin, Index end, const Body& body) {
  if (mask == nullptr) {
    for (Index i = begin; i < end; i += SingleQuery::block) body(i, std::min(SingleQuery::block, end - i), nullptr);
    return;
  }
  Index index[SingleQuery::block], count = 0;
  for (Index i = begin; i < end; ++i) {
    if (mask[i] != 0) index[count++] = i;
    if (count == SingleQuery::block || (i + 1 == end && count > 0)) {
      body(Index(0), count, static_cast<const Index*>(index));
      count = 0;
    }
  }
}

/// What one chunk of keys makes of the query: its largest score (in units of log 2), the sum of its weights relative to
/// that, and the sum of weighted values in `output` (registers laid one after the other).
template <class T, bool NarrowKeys, bool NarrowValues>
void single_query_chunk(const RowList<const T>& keys, const RowList<const T>& values, const RowCut<T>& key_cut,
                        const RowCut<T>& value_cut, const std::uint8_t* mask, Index begin, Index end, const T* query,
                        T* output, T& high, T& sum) {
  constexpr int lanes = simd::lanes<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  alignas(64) T weights[SingleQuery::block];
  high = -infinity;
  sum = T(0);
  std::fill_n(output, value_cut.vectors * lanes, T(0));
  for_each_block(mask, begin, end, [&](Index first, Index count, const Index* index) {
    const Index whole = (count + lanes - 1) / lanes * lanes;
    dot_rows<T, NarrowKeys>({keys.data, keys.stride, index}, first, count, key_cut, query, weights);
    for (Index j = count; j < whole; ++j) weights[j] = -infinity;
    simd::Pack<T> largest = simd::load(weights);
    for (Index j = lanes; j < whole; j += lanes) largest = simd::maximum<T>(largest, simd::load(weights + j));
    const T before = high;
    high = std::max(high, simd::largest(largest));
    const simd::Pack<T> shift = simd::broadcast(high);
    simd::Pack<T> sums = simd::broadcast(T(0));
    for (Index j = 0; j < whole; j += lanes) {
      const simd::Pack<T> weight = simd::exp2_nonpositive<T>(simd::load(weights + j) - shift);
      simd::store(weights + j, weight);
      sums = sums + weight;
    }
    // Before the first block there is nothing to correct, and exp2(-infinity) would only be slow.
    const T correction = before == -infinity ? T(0) : before == high ? T(1) : std::exp2(before - high);
    sum = sum * correction + simd::sum(sums);
    accumulate_rows<T, NarrowValues>({values.data, values.stride, index}, first, count, weights, value_cut, correction,
                                     output);
  });
}

/// Calls body<NarrowKeys, NarrowValues>().
template <class Body>
void with_narrowness(bool keys, bool values, const Body& body) {
  if (keys) {
    values ? body.template operator()<true, true>() : body.template operator()<true, false>();
  } else {
    values ? body.template operator()<false, true>() : body.template operator()<false, false>();
  }
}

}  // namespace detail

/// Attention of one query a head to all keys of its sequence, batched over sequences and heads,
///
///     s_j = scale q . k_j,   a = softmax(s),   o = sum_j a_j v_j.
///
/// q: 1 x width; k: length x width; v: length x value width; out: 1 x value width. `log_sum_exp` ([batch][heads], or
/// null) receives log(sum_j e^{s_j}). Where every key is masked, or there is none, o = 0 and log_sum_exp = -infinity.
/// Keys and values are read once. A pool shares out heads, and the keys of a head in pieces of 4096; results do not
/// depend on it.
///
/// Scalars: float, double. Operands must be finite. With S = |scale| |q| max_j |k_j| (2-norms), V = max |v|: error of o
/// at most epsilon V (12 + 2 S sqrt(width) + sqrt(length)), of log_sum_exp at most epsilon (6 + 2 S sqrt(width) +
/// |log_sum_exp| + sqrt(length)). Throws InvalidArgument for shapes that do not fit. Allocates only where the workspace
/// has to grow.
template <simd::KernelScalar T>
void single_query_attention(const HeadView<const T>& q, const HeadView<const T>& k, const HeadView<const T>& v,
                            const AttentionOptions<T>& options, const HeadView<T>& out, T* log_sum_exp,
                            AttentionWorkspace& workspace) {
  constexpr const char* name = "single_query_attention";
  constexpr int lanes = simd::lanes<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T log2_e = T(1.44269504088896340736L), ln2 = T(0.693147180559945309417L);
  detail::require_view(name, "q", q);
  detail::require_view(name, "k", k);
  detail::require_view(name, "v", v);
  detail::require_same_heads(name, "q", q, k, 1, k.width);
  detail::require_same_heads(name, "v", v, k, k.length, v.width);
  detail::require_same_heads(name, "out", out, k, 1, v.width);
  require_finite(name, "options.scale", options.scale);

  const detail::RowCut<T> key_cut(k.width), value_cut(v.width);
  const Index chunks = std::max<Index>(1, (k.length + detail::SingleQuery::chunk - 1) / detail::SingleQuery::chunk);
  const Index heads = k.batch * k.heads, query_size = key_cut.vectors * lanes, output_size = value_cut.vectors * lanes;
  const auto carve_all = [&](std::byte* base, T*& queries, T*& outputs, T*& highs, T*& sums) {
    detail::Carver carve(base);
    queries = carve.take<T>(heads * chunks * query_size);
    outputs = carve.take<T>(heads * chunks * output_size);
    highs = carve.take<T>(heads * chunks);
    sums = carve.take<T>(heads * chunks);
    return carve.used();
  };
  T *queries, *outputs, *highs, *sums;
  const std::size_t bytes = carve_all(nullptr, queries, outputs, highs, sums);
  carve_all(workspace.scratches(1, bytes)[0].data(), queries, outputs, highs, sums);

  // Puts the chunks of a head together, always in the same order.
  const auto finish = [&](Index head, Index b, Index h) {
    const T* const high = highs + head * chunks;
    const T* const part = sums + head * chunks;
    T* const output = outputs + head * chunks * output_size;
    T highest = high[0], sum = part[0];
    for (Index c = 1; c < chunks; ++c) {
      if (high[c] == -infinity) continue;
      const T above = std::max(highest, high[c]);
      const T old_factor = std::exp2(highest - above), new_factor = std::exp2(high[c] - above);
      for (Index i = 0; i < output_size; ++i)
        output[i] = old_factor * output[i] + new_factor * output[c * output_size + i];
      sum = old_factor * sum + new_factor * part[c];
      highest = above;
    }
    value_cut.gather(output, sum > T(0) ? T(1) / sum : T(0), out.row(b, h, 0));
    if (log_sum_exp != nullptr) log_sum_exp[head] = sum > T(0) ? (highest + std::log2(sum)) * ln2 : -infinity;
  };

  detail::with_narrowness(key_cut.narrow(), value_cut.narrow(), [&]<bool NarrowKeys, bool NarrowValues>() {
    ThreadPool* const pool = detail::pool_worth_waking(options.pool, heads, k.length, k.width + v.width, 1);
    detail::for_each_index(pool, heads * chunks, [&](Index index, std::size_t) {
      // A short head takes no longer than a few divisions.
      const Index head = chunks == 1 ? index : index / chunks, chunk = index - head * chunks;
      const Index b = k.batch == 1 ? 0 : head / k.heads, h = head - b * k.heads;
      // Every chunk spreads the query for itself: none has to wait for another.
      T* const query = queries + index * query_size;
      key_cut.spread(q.row(b, h, 0), options.scale * log2_e, true, query);
      const Index begin = chunk * detail::SingleQuery::chunk;
      detail::single_query_chunk<T, NarrowKeys, NarrowValues>(
          {k.row(b, h, 0), k.row_stride}, {v.row(b, h, 0), v.row_stride}, key_cut, value_cut,
          options.key_mask == nullptr ? nullptr : options.key_mask + b * k.length, begin,
          std::min(begin + detail::SingleQuery::chunk, k.length), query, outputs + index * output_size, highs[index],
          sums[index]);
      if (chunks == 1) finish(head, b, h);
    });
  });
  if (chunks > 1) {
    for (Index head = 0; head < heads; ++head) finish(head, head / k.heads, head % k.heads);
  }
}

}  // namespace qkflow
