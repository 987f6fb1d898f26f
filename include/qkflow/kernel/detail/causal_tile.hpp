// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

#include "qkflow/kernel/attention_view.hpp"
#include "qkflow/kernel/detail/multiply.hpp"
#include "qkflow/kernel/detail/scratch.hpp"
#include "qkflow/kernel/vector_exp.hpp"

/// What the causal forward and backward passes share. Both work on a tile of queries against a tile of keys, the scores
/// stored key by key with the *queries* along the registers: maxima, sums and masks are then lane by lane, and keys are
/// read in place, one number at a time.

namespace qkflow::detail {

template <class T>
struct CausalTile {
  /// Whole registers and whole row groups of every RegisterTile on every instruction set.
  static constexpr Index queries = sizeof(T) == 4 ? 48 : 24;
  /// Scores of a tile fill most of a 32 KiB first-level cache, and a maximum changes seldom.
  static constexpr Index keys = 128;
  /// The backward pass holds two such tiles.
  static constexpr Index backward_keys = 64;
  /// Queries that share a tile of keys while it is in the second-level cache.
  static constexpr Index group = 4 * queries;
};

constexpr Index round_up(Index value, Index multiple) { return (value + multiple - 1) / multiple * multiple; }

/// The keys of one head that are not masked, in order.
template <class T>
struct VisibleKeys {
  const T* keys;
  Index key_stride;
  const T* values;
  Index value_stride;
  const Index* positions = nullptr;  // of each key in the sequence; null: key j is at j
  const Index* seen = nullptr;       // keys at or before each position; null: i + 1

  Index visible(Index query) const { return seen == nullptr ? query + 1 : seen[query]; }
  Index position(Index key) const { return positions == nullptr ? key : positions[key]; }
};

/// to[k * to_stride + i] = factor * from[i * from_stride + k]; columns rows..to_stride are filled with zeros.
template <class T>
void transpose_scaled(const T* from, Index from_stride, Index rows, Index columns, T factor, T* to, Index to_stride) {
  constexpr Index block = 4;
  Index i = 0;
  for (; i + block <= rows; i += block) {
    Index k = 0;
    for (; k + block <= columns; k += block) {
      simd::transpose_four(from + i * from_stride + k, from_stride, factor, to + k * to_stride + i, to_stride);
    }
    for (; k < columns; ++k) {
      for (Index l = i; l < i + block; ++l) to[k * to_stride + l] = factor * from[l * from_stride + k];
    }
  }
  for (; i < to_stride; ++i) {
    for (Index k = 0; k < columns; ++k) to[k * to_stride + i] = i < rows ? factor * from[i * from_stride + k] : T(0);
  }
}

/// x . y
template <class T>
T dot(const T* x, const T* y, Index count) {
  constexpr int lanes = simd::lanes<T>;
  simd::Pack<T> sum = simd::broadcast(T(0));
  Index i = 0;
  for (; i + lanes <= count; i += lanes) sum = simd::multiply_add<T>(simd::load(x + i), simd::load(y + i), sum);
  if (i < count) {
    const int rest = static_cast<int>(count - i);
    sum = simd::multiply_add<T>(simd::load_first(x + i, rest, T(0)), simd::load_first(y + i, rest, T(0)), sum);
  }
  return simd::sum(sum);
}

/// Rows copied to a stride of whole registers, the rest of each filled with zeros.
template <class T>
void copy_padded(const T* from, Index from_stride, Index rows, Index columns, T* to, Index to_stride) {
  for (Index i = 0; i < rows; ++i) {
    std::copy_n(from + i * from_stride, columns, to + i * to_stride);
    std::fill(to + i * to_stride + columns, to + (i + 1) * to_stride, T(0));
  }
}

/// scores(key, query) = rows(key) . query for keys [first, first + count), into rows of `stride`. Entries that no query
/// of a register can see are left as they are.
template <class T>
void tile_scores(const VisibleKeys<T>& all, const T* rows, Index row_stride, Index width, const T* transposed,
                 Index first_query, Index last_query, Index first, Index count, T* scores, Index stride) {
  constexpr Index lanes = simd::lanes<T>;
  Product<T> product{rows + first * row_stride, row_stride, transposed, stride, scores, stride, width};
  // Keys that all queries see go the fast way, many registers at a time; on the diagonal each register has its own end.
  const Index free = std::clamp<Index>(all.visible(first_query) - first, 0, count);
  multiply<T, Storage::by_row>(product, 0, free, stride / lanes);
  for (Index column = 0; free < count && column < stride; column += lanes) {
    const Index last = std::min(last_query, first_query + column + lanes - 1);
    const Index visible = std::clamp<Index>(all.visible(last) - first, free, count);
    product.b = transposed + column;
    product.c = scores + column;
    multiply<T, Storage::by_row>(product, free, visible, 1);
  }
}

/// The visible keys of a head: in place where nothing is masked and rows have the wanted strides' widths, else copied
/// into `keys` and `values` (padded with zeros to their strides), and with a mask `positions` and `seen`.
template <class T>
VisibleKeys<T> gather_visible(const HeadView<const T>& k, const HeadView<const T>& v, Index b, Index h,
                              const std::uint8_t* mask, T* keys, Index key_stride, T* values, Index value_stride,
                              Index* positions, Index* seen) {
  VisibleKeys<T> all{k.row(b, h, 0), k.row_stride, v.row(b, h, 0), v.row_stride};
  if (mask == nullptr) {
    if (k.width != key_stride) {
      copy_padded(all.keys, all.key_stride, k.length, k.width, keys, key_stride);
      all.keys = keys, all.key_stride = key_stride;
    }
    if (v.width != value_stride) {
      copy_padded(all.values, all.value_stride, v.length, v.width, values, value_stride);
      all.values = values, all.value_stride = value_stride;
    }
    return all;
  }
  Index count = 0;
  for (Index i = 0; i < k.length; ++i) {
    if (mask[i] != 0) {
      copy_padded(k.row(b, h, i), k.row_stride, 1, k.width, keys + count * key_stride, key_stride);
      copy_padded(v.row(b, h, i), v.row_stride, 1, v.width, values + count * value_stride, value_stride);
      positions[count++] = i;
    }
    seen[i] = count;
  }
  return {keys, key_stride, values, value_stride, positions, seen};
}

}  // namespace qkflow::detail
