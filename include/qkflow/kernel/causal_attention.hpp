// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/kernel/attention_workspace.hpp"
#include "qkflow/kernel/detail/causal_tile.hpp"

namespace qkflow {

namespace detail {

template <class T>
struct CausalForwardScratch {
  T *query, *scores, *output, *high, *sum, *correction, *keys, *values;
  Index *positions, *seen;

  CausalForwardScratch(Carver& carve, Index length, Index width, Index value_width, bool masked) {
    constexpr Index lanes = simd::lanes<T>;
    const Index tile = round_up(std::min(CausalTile<T>::queries, length), lanes);
    const Index queries = round_up(std::min(CausalTile<T>::group, length), lanes);
    const Index padded = round_up(value_width, lanes);
    query = carve.take<T>(width * queries);
    scores = carve.take<T>(CausalTile<T>::keys * tile);
    output = carve.take<T>(queries * padded);
    high = carve.take<T>(queries);
    sum = carve.take<T>(queries);
    correction = carve.take<T>(tile);
    keys = carve.take<T>(masked ? length * width : 0);
    values = carve.take<T>(masked || padded != value_width ? length * padded : 0);
    positions = carve.take<Index>(masked ? length : 0);
    seen = carve.take<Index>(masked ? length : 0);
  }
};

/// One step of the online softmax: turns scores (in units of log 2) into weights relative to the new maxima, and says
/// by what factor everything summed before has to be multiplied.
template <class T>
void tile_softmax(const VisibleKeys<T>& all, Index first_query, Index last_query, Index first, Index count,
                  const CausalForwardScratch<T>& s, Index stride) {
  constexpr Index lanes = simd::lanes<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  for (Index column = 0; column < stride; column += lanes) {
    const Index last = std::min(last_query, first_query + column + lanes - 1);
    const Index rows = std::clamp<Index>(all.visible(last) - first, 0, count);
    T* const scores = s.scores + column;
    const simd::Pack<T> before = simd::load(s.high + column);
    simd::Pack<T> high = before, other = before;
    const Index free = std::min(rows, std::max<Index>(all.visible(first_query) - first, 0));
    Index j = 0;
    for (; j + 2 <= free; j += 2) {
      high = simd::maximum<T>(high, simd::load(scores + j * stride));
      other = simd::maximum<T>(other, simd::load(scores + (j + 1) * stride));
    }
    if (j < free) high = simd::maximum<T>(high, simd::load(scores + j * stride));
    const simd::Pack<T> query = simd::count_from(static_cast<T>(column));
    for (j = free; j < rows; ++j) {
      // Queries before the key do not see it.
      const simd::Pack<T> position = simd::broadcast(static_cast<T>(all.position(first + j) - first_query));
      const simd::Pack<T> score =
          simd::if_less<T>(query, position, simd::broadcast(-infinity), simd::load(scores + j * stride));
      simd::store(scores + j * stride, score);
      high = simd::maximum<T>(high, score);
    }
    high = simd::maximum<T>(high, other);
    simd::store(s.high + column, high);
    // Where no key has been seen yet the maximum is -infinity, and (-infinity) - (-infinity) would be NaN.
    const simd::Pack<T> shift = simd::if_less<T>(simd::broadcast(-infinity), high, high, simd::broadcast(T(0)));
    simd::Pack<T> sum = simd::broadcast(T(0));
    for (j = 0; j < rows; ++j) {
      const simd::Pack<T> weight = simd::exp2_nonpositive<T>(simd::load(scores + j * stride) - shift);
      simd::store(scores + j * stride, weight);
      sum = sum + weight;
    }
    for (; j < count; ++j) simd::store<T>(scores + j * stride, simd::broadcast(T(0)));
    const simd::Pack<T> correction = simd::exp2_nonpositive<T>(before - shift);
    simd::store(s.correction + column, correction);
    simd::store<T>(s.sum + column, simd::multiply_add<T>(simd::load(s.sum + column), correction, sum));
  }
}

/// Queries [begin, end) of one head. Every tile of keys meets all tiles of these queries while it is in the cache.
template <class T>
void causal_forward_queries(const VisibleKeys<T>& all, const HeadView<const T>& q, const HeadView<T>& out, Index b,
                            Index h, Index begin, Index end, T scale, T* log_sum_exp, CausalForwardScratch<T> s) {
  constexpr Index lanes = simd::lanes<T>, tile = CausalTile<T>::queries;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T log2_e = T(1.44269504088896340736L), ln2 = T(0.693147180559945309417L);
  const Index padded = round_up(out.width, lanes);
  std::fill_n(s.high, round_up(end - begin, lanes), -infinity);
  std::fill_n(s.sum, round_up(end - begin, lanes), T(0));
  for (Index first_query = begin; first_query < end; first_query += tile) {
    const Index queries = std::min(tile, end - first_query);
    transpose_scaled(q.row(b, h, first_query), q.row_stride, queries, q.width, scale * log2_e,
                     s.query + (first_query - begin) * q.width, round_up(queries, lanes));
  }

  const Index visible_to_last = all.visible(end - 1);
  for (Index first = 0; first < visible_to_last || first == 0; first += CausalTile<T>::keys) {
    for (Index first_query = begin; first_query < end; first_query += tile) {
      const Index queries = std::min(tile, end - first_query), last_query = first_query + queries - 1;
      const Index count = std::min(CausalTile<T>::keys, all.visible(last_query) - first);
      if (count <= 0 && first > 0) continue;
      const Index stride = round_up(queries, lanes), offset = first_query - begin;
      CausalForwardScratch<T> here = s;
      here.high += offset, here.sum += offset, here.query += offset * q.width;
      tile_scores(all, all.keys, all.key_stride, q.width, here.query, first_query, last_query, first, count, s.scores,
                  stride);
      tile_softmax(all, first_query, last_query, first, count, here, stride);
      const Product<T> product{
          s.scores, stride, all.values + first * all.value_stride,   all.value_stride, s.output + offset * padded,
          padded,   count,  first == 0 ? Start::zero : Start::scale, s.correction};
      multiply<T, Storage::by_column>(product, 0, queries, padded / lanes, [&](Index, Index group_end) {
        return Range{0, std::clamp<Index>(all.visible(first_query + group_end - 1) - first, 0, count)};
      });
    }
  }

  for (Index i = 0; i < end - begin; ++i) {
    const T sum = s.sum[i];
    const simd::Pack<T> factor = simd::broadcast(sum > T(0) ? T(1) / sum : T(0));
    T* const row = out.row(b, h, begin + i);
    const T* const from = s.output + i * padded;
    Index column = 0;
    for (; column + lanes <= out.width; column += lanes)
      simd::store<T>(row + column, simd::load(from + column) * factor);
    if (column < out.width) {
      simd::store_first<T>(row + column, static_cast<int>(out.width - column), simd::load(from + column) * factor);
    }
    if (log_sum_exp != nullptr) log_sum_exp[begin + i] = sum > T(0) ? (s.high[i] + std::log2(sum)) * ln2 : -infinity;
  }
}

}  // namespace detail

/// Causal attention of every head: query i attends to keys 0..i,
///
///     s_ij = scale q_i . k_j,   a_i = softmax(s_i0 .. s_ii),   o_i = sum_j a_ij v_j.
///
/// q, k: length x width; v, out: length x value width. `log_sum_exp` ([batch][heads][length], or null) receives
/// log(sum_j e^{s_ij}), which is all the backward pass needs of the weights. A query whose keys are all masked gets
/// o = 0 and -infinity. Neither scores nor weights are stored: memory is O(length width) (see AttentionWorkspace).
///
/// Scalars: float, double. Operands must be finite, scores below 10^30 in size. With S = |scale| max_i |q_i| max_j
/// |k_j| (2-norms), V = max |v|, error of o at most epsilon V (12 + 2 S sqrt(width) + sqrt(length)), of log_sum_exp at
/// most epsilon (6 + 2 S sqrt(width) + |log_sum_exp| + sqrt(length)). Throws InvalidArgument for shapes that do not
/// fit. Allocates only where the workspace has to grow.
template <simd::KernelScalar T>
void causal_attention(const HeadView<const T>& q, const HeadView<const T>& k, const HeadView<const T>& v,
                      const AttentionOptions<T>& options, const HeadView<T>& out, T* log_sum_exp,
                      AttentionWorkspace& workspace) {
  constexpr const char* name = "causal_attention";
  detail::require_view(name, "q", q);
  detail::require_view(name, "v", v);
  detail::require_same_heads(name, "k", k, q, q.length, q.width);
  detail::require_same_heads(name, "v", v, q, q.length, v.width);
  detail::require_same_heads(name, "out", out, q, q.length, v.width);
  require_finite(name, "options.scale", options.scale);

  const bool masked = options.key_mask != nullptr;
  detail::Carver measure(nullptr);
  const detail::CausalForwardScratch<T> sizes(measure, q.length, q.width, v.width, masked);
  const std::size_t workers = options.pool == nullptr ? 1 : options.pool->size();
  auto& scratches = workspace.scratches(workers, measure.used());

  constexpr Index group = detail::CausalTile<T>::group;
  const Index groups = (q.length + group - 1) / group;
  const Index padded = detail::round_up(v.width, simd::lanes<T>);
  // Queries of one head are shared out only where no worker would have to gather the keys again for itself.
  const bool shared = options.pool != nullptr && !masked && padded == v.width;
  const Index pieces = shared ? groups : 1;
  ThreadPool* const pool =
      detail::pool_worth_waking(options.pool, q.batch * q.heads, q.length * (q.length + 1) / 2, q.width + v.width, 1);
  detail::for_each_index(pool, q.batch * q.heads * pieces, [&](Index index, std::size_t worker) {
    const Index b = index / (q.heads * pieces), h = index / pieces % q.heads;
    detail::Carver carve(scratches[worker].data());
    const detail::CausalForwardScratch<T> s(carve, q.length, q.width, v.width, masked);
    const auto all = detail::gather_visible<T>(k, v, b, h, masked ? options.key_mask + b * q.length : nullptr, s.keys,
                                               q.width, s.values, padded, s.positions, s.seen);
    T* const sums = log_sum_exp == nullptr ? nullptr : log_sum_exp + (b * q.heads + h) * q.length;
    // The longest rows first, so that no thread is left with one at the end.
    const Index begin = shared ? groups - 1 - index % pieces : 0, end = shared ? begin + 1 : groups;
    for (Index i = begin; i < end; ++i) {
      detail::causal_forward_queries<T>(all, q, out, b, h, i * group, std::min((i + 1) * group, q.length),
                                        options.scale, sums, s);
    }
  });
}

}  // namespace qkflow
