// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include "qkflow/kernel/detail/causal_tile.hpp"
#include "qkflow/kernel/single_query.hpp"

namespace qkflow {

namespace detail {

template <class T>
struct SingleQueryBackwardOperands {
  HeadView<const T> k, v;
  HeadView<T> d_k, d_v;
  RowCut<T> key_cut, value_cut;
  const std::uint8_t* key_mask;
};

/// Keys [begin, end) of one head: writes their gradients and those of their values, and adds up the query's in
/// `d_query`. `query` is scaled to give scores in units of log 2; `plain_query` and `plain_d_out` have shared lanes
/// kept.
template <class T, bool NarrowKeys, bool NarrowValues>
void single_query_backward_chunk(const SingleQueryBackwardOperands<T>& x, Index b, Index h, Index begin, Index end,
                                 const T* query, const T* plain_query, const T* d_out, const T* plain_d_out, T log_sum,
                                 T mean, T scale, T* d_query) {
  constexpr int lanes = simd::lanes<T>;
  alignas(64) T weights[SingleQuery::block], d_scores[SingleQuery::block];
  std::fill_n(d_query, x.key_cut.vectors * lanes, T(0));
  const std::uint8_t* const mask = x.key_mask == nullptr ? nullptr : x.key_mask + b * x.k.length;
  if (mask != nullptr) {
    for (Index i = begin; i < end; ++i) {
      if (mask[i] != 0) continue;
      std::fill_n(x.d_k.row(b, h, i), x.k.width, T(0));
      std::fill_n(x.d_v.row(b, h, i), x.v.width, T(0));
    }
  }
  for_each_block(mask, begin, end, [&](Index first, Index count, const Index* index) {
    const RowList<const T> keys{x.k.row(b, h, 0), x.k.row_stride, index};
    dot_rows<T, NarrowKeys>(keys, first, count, x.key_cut, query, weights);
    dot_rows<T, NarrowValues>({x.v.row(b, h, 0), x.v.row_stride, index}, first, count, x.value_cut, d_out, d_scores);
    for (Index j = 0; j < count; j += lanes) {
      const simd::Pack<T> weight = simd::exp2_nonpositive<T>(simd::load(weights + j) - simd::broadcast(log_sum));
      simd::store(weights + j, weight);
      simd::store<T>(d_scores + j,
                     simd::broadcast(scale) * weight * (simd::load(d_scores + j) - simd::broadcast(mean)));
    }
    accumulate_rows<T, NarrowKeys>(keys, first, count, d_scores, x.key_cut, T(1), d_query);
    outer_rows<T, NarrowKeys>({x.d_k.row(b, h, 0), x.d_k.row_stride, index}, first, count, d_scores, x.key_cut,
                              plain_query);
    outer_rows<T, NarrowValues>({x.d_v.row(b, h, 0), x.d_v.row_stride, index}, first, count, weights, x.value_cut,
                                plain_d_out);
  });
}

}  // namespace detail

/// Gradients of o . do through `single_query_attention`, the weights being rebuilt from `log_sum_exp`:
///
///     dv_j = a_j do,   ds_j = a_j (do . v_j - do . o),   dq = scale sum_j ds_j k_j,   dk_j = scale ds_j q.
///
/// q, k, v, options: as given to the forward pass; `out` and `log_sum_exp`: as it left them; d_out: 1 x value width.
/// d_q, d_k, d_v are overwritten; they must not overlap the inputs. Masked keys get 0. Keys and values are read once,
/// their gradients written once. A pool shares out heads and pieces of 4096 keys; results do not depend on it.
///
/// Scalars: float, double. With S, V as for `single_query_attention`, D = |do|, and e = epsilon (16 + 4 S sqrt(width) +
/// 2 sqrt(length)): error of dv_j at most e D a_j, of dq at most 4 e D V |scale| max |k|, of dk_j at most 4 e D V
/// |scale| |q| a_j (2-norms of rows throughout). Throws InvalidArgument for shapes that do not fit. Allocates only
/// where the workspace has to grow.
template <simd::KernelScalar T>
void single_query_attention_backward(const HeadView<const T>& q, const HeadView<const T>& k, const HeadView<const T>& v,
                                     const HeadView<const T>& out, const T* log_sum_exp, const HeadView<const T>& d_out,
                                     const AttentionOptions<T>& options, const HeadView<T>& d_q, const HeadView<T>& d_k,
                                     const HeadView<T>& d_v, AttentionWorkspace& workspace) {
  constexpr const char* name = "single_query_attention_backward";
  constexpr int lanes = simd::lanes<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T log2_e = T(1.44269504088896340736L);
  detail::require_view(name, "q", q);
  detail::require_view(name, "k", k);
  detail::require_view(name, "v", v);
  detail::require_same_heads(name, "q", q, k, 1, k.width);
  detail::require_same_heads(name, "v", v, k, k.length, v.width);
  detail::require_same_heads(name, "out", out, k, 1, v.width);
  detail::require_same_heads(name, "d_out", d_out, k, 1, v.width);
  detail::require_same_heads(name, "d_q", d_q, k, 1, k.width);
  detail::require_same_heads(name, "d_k", d_k, k, k.length, k.width);
  detail::require_same_heads(name, "d_v", d_v, k, k.length, v.width);
  require_finite(name, "options.scale", options.scale);
  const Index heads = k.batch * k.heads;
  if (log_sum_exp == nullptr && heads > 0) throw_invalid(name, "log_sum_exp", 0, "hold what the forward pass wrote");

  const detail::SingleQueryBackwardOperands<T> operands{
      k, v, d_k, d_v, detail::RowCut<T>(k.width), detail::RowCut<T>(v.width), options.key_mask};
  const Index chunks = std::max<Index>(1, (k.length + detail::SingleQuery::chunk - 1) / detail::SingleQuery::chunk);
  const Index key_size = operands.key_cut.vectors * lanes, value_size = operands.value_cut.vectors * lanes;
  const Index piece = 3 * key_size + 2 * value_size;
  detail::Carver measure(nullptr);
  measure.take<T>(heads * chunks * piece);
  T* const memory = detail::Carver(workspace.scratches(1, measure.used())[0].data()).take<T>(heads * chunks * piece);
  const auto finish = [&](Index head) {
    T* const total = memory + head * chunks * piece;
    for (Index c = 1; c < chunks; ++c) {
      for (Index i = 0; i < key_size; ++i) total[i] += total[c * piece + i];
    }
    operands.key_cut.gather(total, T(1), d_q.row(head / k.heads, head % k.heads, 0));
  };

  detail::with_narrowness(
      operands.key_cut.narrow(), operands.value_cut.narrow(), [&]<bool NarrowKeys, bool NarrowValues>() {
        ThreadPool* const pool = detail::pool_worth_waking(options.pool, heads, k.length, k.width + v.width, 2);
        detail::for_each_index(pool, heads * chunks, [&](Index index, std::size_t) {
          const Index head = index / chunks, chunk = index % chunks, b = head / k.heads, h = head % k.heads;
          T* const d_query = memory + index * piece;
          T *const query = d_query + key_size, *const plain_query = query + key_size;
          T *const spread_d_out = plain_query + key_size, *const plain_d_out = spread_d_out + value_size;
          operands.key_cut.spread(q.row(b, h, 0), options.scale * log2_e, true, query);
          operands.key_cut.spread(q.row(b, h, 0), T(1), false, plain_query);
          operands.value_cut.spread(d_out.row(b, h, 0), T(1), true, spread_d_out);
          operands.value_cut.spread(d_out.row(b, h, 0), T(1), false, plain_d_out);
          const T log_sum = log_sum_exp[head] == -infinity ? infinity : log_sum_exp[head] * log2_e;
          const T mean = detail::dot(out.row(b, h, 0), d_out.row(b, h, 0), v.width);
          const Index begin = chunk * detail::SingleQuery::chunk;
          const Index end = std::min(begin + detail::SingleQuery::chunk, k.length);
          detail::single_query_backward_chunk<T, NarrowKeys, NarrowValues>(operands, b, h, begin, end, query,
                                                                           plain_query, spread_d_out, plain_d_out,
                                                                           log_sum, mean, options.scale, d_query);
          if (chunks == 1) finish(head);
        });
      });
  if (chunks > 1) {
    for (Index head = 0; head < heads; ++head) finish(head);
  }
}

}  // namespace qkflow
