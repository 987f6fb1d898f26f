// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "qkflow/kernel/attention_workspace.hpp"
#include "qkflow/kernel/detail/causal_tile.hpp"

namespace qkflow {

namespace detail {

template <class T>
struct CausalBackwardScratch {
  // Of a group of queries: transposed queries and output gradients, their rows padded, and the query gradient.
  T *query, *d_output, *query_rows, *d_output_rows, *d_query;
  T *log_sum, *mean;      // of each query of a group: its log-sum-exp in units of log 2, and scale * (o . do)
  T *weights, *d_scores;  // of a tile, key by key
  T *keys, *values, *d_keys, *d_values;
  Index *positions, *seen;

  CausalBackwardScratch(Carver& carve, Index length, Index width, Index value_width, bool masked) {
    constexpr Index lanes = simd::lanes<T>;
    const Index tile = round_up(std::min(CausalTile<T>::queries, length), lanes);
    const Index group = round_up(std::min(CausalTile<T>::group, length), lanes);
    const Index padded = round_up(width, lanes), value_padded = round_up(value_width, lanes);
    const bool copy_keys = masked || padded != width, copy_values = masked || value_padded != value_width;
    query = carve.take<T>(group * width);
    d_output = carve.take<T>(group * value_width);
    query_rows = carve.take<T>(padded != width ? group * padded : 0);
    d_output_rows = carve.take<T>(value_padded != value_width ? group * value_padded : 0);
    d_query = carve.take<T>(group * padded);
    log_sum = carve.take<T>(group);
    mean = carve.take<T>(group);
    weights = carve.take<T>(CausalTile<T>::backward_keys * tile);
    d_scores = carve.take<T>(CausalTile<T>::backward_keys * tile);
    keys = carve.take<T>(copy_keys ? length * padded : 0);
    values = carve.take<T>(masked ? length * value_width : 0);
    d_keys = carve.take<T>(copy_keys ? length * padded : 0);
    d_values = carve.take<T>(copy_values ? length * value_padded : 0);
    positions = carve.take<Index>(masked ? length : 0);
    seen = carve.take<Index>(masked ? length : 0);
  }
};

template <class T>
struct CausalBackwardOperands {
  HeadView<const T> q, k, v, out, d_out;
  HeadView<T> d_q, d_k, d_v;
  const T* log_sum_exp;
  T scale;
};

/// Turns scores (in units of log 2) into weights and the gradients of the weights into those of the scores: keys from
/// `first_key` on, queries from `first_query` on, which are `offset` into their group.
template <class T>
void tile_weights_and_gradients(const VisibleKeys<T>& all, const CausalBackwardScratch<T>& s, Index first_query,
                                Index offset, Index first_key, Index count, Index stride) {
  constexpr Index lanes = simd::lanes<T>;
  const Index free = std::clamp<Index>(all.visible(first_query) - first_key, 0, count);
  const simd::Pack<T> zero = simd::broadcast(T(0));
  for (Index column = 0; column < stride; column += lanes) {
    const simd::Pack<T> log_sum = simd::load(s.log_sum + offset + column), mean = simd::load(s.mean + offset + column);
    const simd::Pack<T> query = simd::count_from(static_cast<T>(column));
    T *weights = s.weights + column, *d_scores = s.d_scores + column;
    Index j = 0;
    for (; j < free; ++j, weights += stride, d_scores += stride) {
      const simd::Pack<T> weight = simd::exp2_nonpositive<T>(simd::load(weights) - log_sum);
      simd::store(weights, weight);
      simd::store<T>(d_scores, weight * (simd::load(d_scores) - mean));
    }
    for (; j < count; ++j, weights += stride, d_scores += stride) {
      // Queries before the key do not see it; what stands there may be anything.
      const simd::Pack<T> position = simd::broadcast(static_cast<T>(all.position(first_key + j) - first_query));
      const simd::Pack<T> weight = simd::exp2_nonpositive<T>(simd::load(weights) - log_sum);
      simd::store<T>(weights, simd::if_less<T>(query, position, zero, weight));
      simd::store<T>(d_scores, simd::if_less<T>(query, position, zero, weight * (simd::load(d_scores) - mean)));
    }
  }
}

/// Rows of a matrix as right operand of a product: in place if they fill whole registers, else copied to `copy`.
template <class T>
const T* whole_rows(const T* rows, Index& stride, Index count, Index width, Index padded, T* copy) {
  if (padded == width) return rows;
  copy_padded(rows, stride, count, width, copy, padded);
  stride = padded;
  return copy;
}

/// Adds what queries [begin, end) of a head contribute to the gradients of its keys and values, and writes their own.
template <class T>
void causal_backward_queries(const CausalBackwardOperands<T>& x, const VisibleKeys<T>& all, Index b, Index h,
                             Index begin, Index end, T* d_keys, Index d_key_stride, T* d_values, Index d_value_stride,
                             const CausalBackwardScratch<T>& s) {
  constexpr Index lanes = simd::lanes<T>, tile = CausalTile<T>::queries, tile_keys = CausalTile<T>::backward_keys;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T log2_e = T(1.44269504088896340736L);
  const Index width = x.q.width, value_width = x.v.width;
  const Index padded = round_up(width, lanes), value_padded = round_up(value_width, lanes);
  for (Index first = begin; first < end; first += tile) {
    const Index queries = std::min(tile, end - first), stride = round_up(queries, lanes);
    transpose_scaled(x.q.row(b, h, first), x.q.row_stride, queries, width, x.scale * log2_e,
                     s.query + (first - begin) * width, stride);
    transpose_scaled(x.d_out.row(b, h, first), x.d_out.row_stride, queries, value_width, x.scale,
                     s.d_output + (first - begin) * value_width, stride);
  }
  for (Index i = 0; i < round_up(end - begin, lanes); ++i) {
    s.mean[i] = T(0);
    s.log_sum[i] = infinity;  // makes every weight of the query 0
    if (begin + i >= end) continue;
    const T log_sum = x.log_sum_exp[begin + i];
    if (log_sum == -infinity) continue;
    s.log_sum[i] = log_sum * log2_e;
    s.mean[i] = x.scale * dot(x.out.row(b, h, begin + i), x.d_out.row(b, h, begin + i), value_width);
  }
  Index query_stride = x.q.row_stride, d_output_stride = x.d_out.row_stride;
  const T* const query_rows = whole_rows(x.q.row(b, h, begin), query_stride, end - begin, width, padded, s.query_rows);
  const T* const d_output_rows =
      whole_rows(x.d_out.row(b, h, begin), d_output_stride, end - begin, value_width, value_padded, s.d_output_rows);

  const Index visible_to_last = all.visible(end - 1);
  for (Index key = 0; key < visible_to_last || key == 0; key += tile_keys) {
    for (Index first = begin; first < end; first += tile) {
      const Index queries = std::min(tile, end - first), last = first + queries - 1, offset = first - begin;
      const Index count = std::min(tile_keys, all.visible(last) - key), stride = round_up(queries, lanes);
      if (count <= 0 && key > 0) continue;
      tile_scores(all, all.keys, all.key_stride, width, s.query + offset * width, first, last, key, count, s.weights,
                  stride);
      tile_scores(all, all.values, all.value_stride, value_width, s.d_output + offset * value_width, first, last, key,
                  count, s.d_scores, stride);
      tile_weights_and_gradients(all, s, first, offset, key, count, stride);

      // A key takes from the queries at or after it, a query from the keys at or before it.
      const auto after = [&](Index first_key, Index) {
        return Range{std::clamp<Index>(all.position(key + first_key) - first, 0, queries), queries};
      };
      const auto before = [&](Index, Index group_end) {
        return Range{0, std::clamp<Index>(all.visible(first + group_end - 1) - key, 0, count)};
      };
      // A head of one tile starts its gradients here; longer ones add to zeros.
      const Start start = x.q.length <= std::min(tile, tile_keys) ? Start::zero : Start::keep;
      Product<T> product{s.weights,
                         stride,
                         d_output_rows + offset * d_output_stride,
                         d_output_stride,
                         d_values + key * d_value_stride,
                         d_value_stride,
                         queries,
                         start};
      multiply<T, Storage::by_row>(product, 0, count, value_padded / lanes, after);
      product = {s.d_scores,
                 stride,
                 query_rows + offset * query_stride,
                 query_stride,
                 d_keys + key * d_key_stride,
                 d_key_stride,
                 queries,
                 start};
      multiply<T, Storage::by_row>(product, 0, count, padded / lanes, after);
      product = {s.d_scores, stride, all.keys + key * all.key_stride,     all.key_stride, s.d_query + offset * padded,
                 padded,     count,  key == 0 ? Start::zero : Start::keep};
      multiply<T, Storage::by_column>(product, 0, queries, padded / lanes, before);
    }
  }
  for (Index i = 0; i < end - begin; ++i) std::copy_n(s.d_query + i * padded, width, x.d_q.row(b, h, begin + i));
}

template <class T>
void causal_backward_head(const CausalBackwardOperands<T>& x, const std::uint8_t* mask, Index b, Index h,
                          const CausalBackwardScratch<T>& s) {
  constexpr Index lanes = simd::lanes<T>;
  const Index length = x.q.length, width = x.q.width, value_width = x.v.width;
  const Index padded = round_up(width, lanes), value_padded = round_up(value_width, lanes);
  // Keys are right operands here and have to fill registers; values are only left operands.
  const auto all = gather_visible<T>(x.k, x.v, b, h, mask, s.keys, padded, s.values, value_width, s.positions, s.seen);
  const bool keys_in_place = mask == nullptr && padded == width;
  const bool values_in_place = mask == nullptr && value_padded == value_width;
  T* const d_keys = keys_in_place ? x.d_k.row(b, h, 0) : s.d_keys;
  T* const d_values = values_in_place ? x.d_v.row(b, h, 0) : s.d_values;
  const Index d_key_stride = keys_in_place ? x.d_k.row_stride : padded;
  const Index d_value_stride = values_in_place ? x.d_v.row_stride : value_padded;
  const Index count = length == 0 ? 0 : all.visible(length - 1);
  for (Index j = 0; j < count && length > std::min(CausalTile<T>::queries, CausalTile<T>::backward_keys); ++j) {
    std::fill_n(d_keys + j * d_key_stride, padded, T(0));
    std::fill_n(d_values + j * d_value_stride, value_padded, T(0));
  }
  for (Index begin = 0; begin < length; begin += CausalTile<T>::group) {
    causal_backward_queries(x, all, b, h, begin, std::min(begin + CausalTile<T>::group, length), d_keys, d_key_stride,
                            d_values, d_value_stride, s);
  }
  for (Index i = 0, j = 0; i < length; ++i) {
    if (mask != nullptr && mask[i] == 0) {
      std::fill_n(x.d_k.row(b, h, i), width, T(0));
      std::fill_n(x.d_v.row(b, h, i), value_width, T(0));
      continue;
    }
    if (!keys_in_place) std::copy_n(d_keys + j * d_key_stride, width, x.d_k.row(b, h, i));
    if (!values_in_place) std::copy_n(d_values + j * d_value_stride, value_width, x.d_v.row(b, h, i));
    ++j;
  }
}

}  // namespace detail

/// Gradients of sum_i o_i . do_i through `causal_attention`, the weights being rebuilt tile by tile from `log_sum_exp`:
///
///     dv_j = sum_i a_ij do_i,   ds_ij = a_ij (do_i . v_j - do_i . o_i),
///     dq_i = scale sum_j ds_ij k_j,   dk_j = scale sum_i ds_ij q_i.
///
/// q, k, v, options: as given to the forward pass; `out` and `log_sum_exp`: as it left them; d_out: length x value
/// width. d_q, d_k, d_v are overwritten; they must not overlap the inputs. Masked keys, and queries that see no key,
/// get 0. Memory is O(length width). A pool works on whole heads, since the gradients of a head's keys come from all
/// its queries.
///
/// Scalars: float, double. With S, V as for `causal_attention`, D = max |do|, and e = epsilon (16 + 4 S sqrt(width) +
/// 2 sqrt(length)): error of dv_j at most e D c_j with c_j = sum_i a_ij, of dq_i at most 4 e D V |scale| max |k|, of
/// dk_j at most 4 e D V |scale| max |q| c_j (2-norms of rows throughout). Throws InvalidArgument for shapes that do not
/// fit. Allocates only where the workspace has to grow.
template <simd::KernelScalar T>
void causal_attention_backward(const HeadView<const T>& q, const HeadView<const T>& k, const HeadView<const T>& v,
                               const HeadView<const T>& out, const T* log_sum_exp, const HeadView<const T>& d_out,
                               const AttentionOptions<T>& options, const HeadView<T>& d_q, const HeadView<T>& d_k,
                               const HeadView<T>& d_v, AttentionWorkspace& workspace) {
  constexpr const char* name = "causal_attention_backward";
  detail::require_view(name, "q", q);
  detail::require_view(name, "v", v);
  detail::require_same_heads(name, "k", k, q, q.length, q.width);
  detail::require_same_heads(name, "v", v, q, q.length, v.width);
  detail::require_same_heads(name, "out", out, q, q.length, v.width);
  detail::require_same_heads(name, "d_out", d_out, q, q.length, v.width);
  detail::require_same_heads(name, "d_q", d_q, q, q.length, q.width);
  detail::require_same_heads(name, "d_k", d_k, q, q.length, q.width);
  detail::require_same_heads(name, "d_v", d_v, q, q.length, v.width);
  require_finite(name, "options.scale", options.scale);
  const Index rows = q.batch * q.heads * q.length;
  if (log_sum_exp == nullptr && rows > 0) throw_invalid(name, "log_sum_exp", 0, "hold what the forward pass wrote");

  const bool masked = options.key_mask != nullptr;
  detail::Carver measure(nullptr);
  const detail::CausalBackwardScratch<T> sizes(measure, q.length, q.width, v.width, masked);
  auto& scratches = workspace.scratches(options.pool == nullptr ? 1 : options.pool->size(), measure.used());
  ThreadPool* const pool =
      detail::pool_worth_waking(options.pool, q.batch * q.heads, q.length * (q.length + 1) / 2, q.width + v.width, 2);
  detail::for_each_index(pool, q.batch * q.heads, [&](Index index, std::size_t worker) {
    detail::Carver carve(scratches[worker].data());
    const detail::CausalBackwardScratch<T> s(carve, q.length, q.width, v.width, masked);
    const detail::CausalBackwardOperands<T> operands{
        q, k, v, out, d_out, d_q, d_k, d_v, log_sum_exp + index * q.length, options.scale};
    const Index b = index / q.heads;
    detail::causal_backward_head(operands, masked ? options.key_mask + b * q.length : nullptr, b, index % q.heads, s);
  });
}

}  // namespace qkflow
