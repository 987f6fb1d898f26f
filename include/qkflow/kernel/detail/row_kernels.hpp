// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>

#include "qkflow/kernel/simd.hpp"

/// One vector against many rows: what attention from a single query consists of. Rows are read once and in place, so
/// these loops run at the speed of memory; a last register that would reach beyond a row is moved back to end with it.

namespace qkflow::detail {

using Eigen::Index;

/// Rows data + index[j] * stride, or data + j * stride where there is no index.
template <class T>
struct RowList {
  T* data;
  Index stride;
  const Index* index = nullptr;
  T* operator[](Index j) const { return data + (index == nullptr ? j : index[j]) * stride; }
};

/// How a row of `width` numbers is cut into registers: whole ones from the front, then, if some numbers are left, one
/// that ends with the row and shares its first lanes with the one before.
template <class T>
struct RowCut {
  static constexpr int lanes = simd::lanes<T>;
  static constexpr int most = 8;  // registers of a row handled at a time
  Index width, vectors;
  explicit RowCut(Index row_width) : width(row_width), vectors((row_width + lanes - 1) / lanes) {}
  bool narrow() const { return width < lanes; }
  Index offset(Index vector) const { return std::max<Index>(0, std::min(vector * lanes, width - lanes)); }

  /// Copies a row into registers laid one after the other; lanes shared with the register before become 0, or stay.
  void spread(const T* row, T factor, bool zero_shared, T* to) const {
    const Index whole = width / lanes;
    for (Index v = 0; v < whole; ++v) {
      simd::store<T>(to + v * lanes, simd::load(row + v * lanes) * simd::broadcast(factor));
    }
    if (whole == vectors) return;
    for (Index i = 0; i < lanes; ++i) {
      const Index column = offset(whole) + i;
      const bool shared = zero_shared && column < whole * lanes;
      to[whole * lanes + i] = column >= width || shared ? T(0) : factor * row[column];
    }
  }
  /// The inverse: writes registers back as a row.
  void gather(const T* from, T factor, T* row) const {
    for (Index v = 0; v < vectors; ++v) {
      const simd::Pack<T> x = simd::load(from + v * lanes) * simd::broadcast(factor);
      narrow() ? simd::store_first<T>(row, static_cast<int>(width), x) : simd::store<T>(row + offset(v), x);
    }
  }
};

/// Asks for the cache lines of a row that is due soon, which may lie behind the last one: where memory is not the
/// nearest cache, a third faster than what the processor foresees by itself.
template <class T, int Vectors>
void prefetch_row(const T* row) {
  constexpr int numbers_per_line = 64 / static_cast<int>(sizeof(T));
  QKFLOW_UNROLL
  for (int i = 0; i < Vectors * simd::lanes<T>; i += numbers_per_line) __builtin_prefetch(row + i);
}

template <class T, bool Narrow>
simd::Pack<T> load_row(const T* row, Index width) {
  if constexpr (Narrow) {
    return simd::load_first(row, static_cast<int>(width), T(0));
  } else {
    return simd::load(row);
  }
}

/// Calls body<Vectors>(first register) for pieces of at most `most` registers that lie one after the other, and for the
/// moved last one.
template <class T, int Most = RowCut<T>::most, class Body>
void for_each_piece(const RowCut<T>& cut, const Body& body) {
  const Index whole = cut.width / RowCut<T>::lanes;
  Index v = 0;
  if constexpr (Most > RowCut<T>::most) {
    for (; v + Most <= whole; v += Most) body.template operator()<Most>(v);
  }
  for (; v + RowCut<T>::most <= whole; v += RowCut<T>::most) body.template operator()<RowCut<T>::most>(v);
  switch (whole - v) {
    case 1:
      body.template operator()<1>(v);
      break;
    case 2:
      body.template operator()<2>(v);
      break;
    case 3:
      body.template operator()<3>(v);
      break;
    case 4:
      body.template operator()<4>(v);
      break;
    case 5:
      body.template operator()<5>(v);
      break;
    case 6:
      body.template operator()<6>(v);
      break;
    case 7:
      body.template operator()<7>(v);
      break;
    default:
      break;
  }
  if (whole < cut.vectors) body.template operator()<1>(whole);
}

/// products[j] = rows[first + j] . x for j < count, x spread with shared lanes zero; `products` has room for whole
/// registers, and the surplus is garbage. Up to 16 registers a piece, those of x read again for every row: going
/// through the rows twice costs more.
template <class T, bool Narrow>
void dot_rows(const RowList<const T>& rows, Index first, Index count, const RowCut<T>& cut, const T* x, T* products) {
  constexpr int lanes = simd::lanes<T>;
  for_each_piece<T, 16>(cut, [&]<int Vectors>(Index v) {
    const Index offset = cut.offset(v);
    simd::Pack<T> right[Vectors];
    QKFLOW_UNROLL
    for (int i = 0; i < Vectors; ++i) right[i] = simd::load(x + (v + i) * lanes);
    const auto group = [&](Index j, const auto& row_of) {
      simd::Pack<T> sums[lanes];
      QKFLOW_UNROLL
      for (int l = 0; l < lanes; ++l) {
        const T* const row = row_of(l);
        if constexpr (Vectors >= 4) prefetch_row<T, Vectors>(row + lanes * rows.stride);
        sums[l] = load_row<T, Narrow>(row, cut.width) * right[0];
        QKFLOW_UNROLL
        for (int i = 1; i < Vectors; ++i)
          sums[l] = simd::multiply_add<T>(simd::load(row + i * lanes), right[i], sums[l]);
      }
      const simd::Pack<T> sum = simd::sum_each<T>(sums);
      simd::store<T>(products + j, v == 0 ? sum : simd::load(products + j) + sum);
    };
    Index j = 0;
    if (rows.index == nullptr) {
      const T* row = rows.data + first * rows.stride + offset;
      for (; j + lanes <= count; j += lanes, row += lanes * rows.stride) {
        group(j, [&](int l) { return row + l * rows.stride; });
      }
    }
    for (; j < count; j += lanes) {
      group(j, [&](int l) { return rows[first + std::min<Index>(j + l, count - 1)] + offset; });
    }
  });
}

/// to = factor * to + sum_j weights[j] rows[first + j], `to` in registers laid one after the other.
template <class T, bool Narrow>
void accumulate_rows(const RowList<const T>& rows, Index first, Index count, const T* weights, const RowCut<T>& cut,
                     T factor, T* to) {
  constexpr int lanes = simd::lanes<T>;
  for_each_piece<T>(cut, [&]<int Vectors>(Index v) {
    // An addition has to wait for the one before: several chains keep the units busy.
    constexpr int chains = Vectors == 1 ? 8 : Vectors == 2 ? 4 : Vectors <= 4 ? 2 : 1;
    const Index offset = cut.offset(v);
    simd::Pack<T> sums[chains][Vectors];
    QKFLOW_UNROLL
    for (int c = 0; c < chains; ++c) {
      QKFLOW_UNROLL
      for (int i = 0; i < Vectors; ++i) sums[c][i] = simd::broadcast(T(0));
    }
    const auto add = [&](T number, const T* row, simd::Pack<T>(&sum)[Vectors]) {
      const simd::Pack<T> weight = simd::broadcast(number);
      QKFLOW_UNROLL
      for (int i = 0; i < Vectors; ++i) {
        sum[i] = simd::multiply_add<T>(weight, load_row<T, Narrow>(row + i * lanes, cut.width), sum[i]);
      }
    };
    Index j = 0;
    if (rows.index == nullptr) {
      const T* row = rows.data + first * rows.stride + offset;
      for (; j + chains <= count; j += chains, row += chains * rows.stride) {
        QKFLOW_UNROLL
        for (int c = 0; c < chains; ++c) {
          if constexpr (Vectors >= 4) prefetch_row<T, Vectors>(row + (8 + c) * rows.stride);
          add(weights[j + c], row + c * rows.stride, sums[c]);
        }
      }
    }
    for (; j + chains <= count; j += chains) {
      QKFLOW_UNROLL
      for (int c = 0; c < chains; ++c) add(weights[j + c], rows[first + j + c] + offset, sums[c]);
    }
    for (; j < count; ++j) add(weights[j], rows[first + j] + offset, sums[0]);
    QKFLOW_UNROLL
    for (int i = 0; i < Vectors; ++i) {
      simd::Pack<T> sum = sums[0][i];
      QKFLOW_UNROLL
      for (int c = 1; c < chains; ++c) sum = sum + sums[c][i];
      T* const place = to + (v + i) * lanes;
      simd::store<T>(place, simd::multiply_add<T>(simd::load(place), simd::broadcast(factor), sum));
    }
  });
}

/// rows[first + j] = weights[j] x for j < count, x spread with shared lanes kept.
template <class T, bool Narrow>
void outer_rows(const RowList<T>& rows, Index first, Index count, const T* weights, const RowCut<T>& cut, const T* x) {
  constexpr int lanes = simd::lanes<T>;
  for_each_piece<T>(cut, [&]<int Vectors>(Index v) {
    const Index offset = cut.offset(v);
    simd::Pack<T> right[Vectors];
    QKFLOW_UNROLL
    for (int i = 0; i < Vectors; ++i) right[i] = simd::load(x + (v + i) * lanes);
    const auto write = [&](T number, T* row) {
      const simd::Pack<T> weight = simd::broadcast(number);
      QKFLOW_UNROLL
      for (int i = 0; i < Vectors; ++i) {
        if constexpr (Narrow) {
          simd::store_first<T>(row, static_cast<int>(cut.width), weight * right[i]);
        } else {
          simd::store<T>(row + i * lanes, weight * right[i]);
        }
      }
    };
    if (rows.index == nullptr) {
      T* row = rows.data + first * rows.stride + offset;
      for (Index j = 0; j < count; ++j, row += rows.stride) write(weights[j], row);
    } else {
      for (Index j = 0; j < count; ++j) write(weights[j], rows[first + j] + offset);
    }
  });
}

}  // namespace qkflow::detail
