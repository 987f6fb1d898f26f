// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "qkflow/kernel/attention_reference.hpp"
#include "qkflow/kernel/attention_view.hpp"

namespace qkflow_test {

using qkflow::HeadView;
using qkflow::Index;

/// Rows of all heads inside a larger array filled with a sentinel: first row misaligned, gaps between rows. What a
/// kernel writes outside its rows shows.
template <class T>
struct Rows {
  static constexpr T sentinel = T(-12345);
  std::vector<T> memory;
  HeadView<T> view;

  Rows(Index batch, Index heads, Index length, Index width, bool gaps) {
    const Index stride = gaps ? width + 3 : width, offset = gaps ? 1 : 0;
    memory.assign(static_cast<std::size_t>(batch * heads * length * stride + offset + 1), sentinel);
    // Heads lie side by side in a row when there are gaps, one after the other when not.
    view = gaps ? HeadView<T>{memory.data() + offset,  batch,  heads,         length, width,
                              length * heads * stride, stride, heads * stride}
                : qkflow::head_view(memory.data(), batch, heads, length, width);
  }
  void fill(std::mt19937_64& bits, double size) {
    visit([&](T& x) { x = static_cast<T>(size * (static_cast<double>(bits() >> 11) * 0x1p-52 - 1)); });
  }
  template <class Body>
  void visit(const Body& body) {
    for (Index b = 0; b < view.batch; ++b) {
      for (Index h = 0; h < view.heads; ++h) {
        for (Index i = 0; i < view.length; ++i) {
          for (Index k = 0; k < view.width; ++k) body(view.row(b, h, i)[k]);
        }
      }
    }
  }
  /// Numbers that are still the sentinel.
  Index untouched() const {
    Index count = 0;
    for (const T x : memory) count += x == sentinel ? 1 : 0;
    return count;
  }
  Index outside() const {
    return static_cast<Index>(memory.size()) - view.batch * view.heads * view.length * view.width;
  }
};

using Reference = qkflow::AttentionReference<long double>;
using Matrix = Reference::Matrix;

template <class T>
Matrix to_matrix(const HeadView<T>& view, Index b, Index h) {
  Matrix m(view.length, view.width);
  for (Index i = 0; i < view.length; ++i) {
    for (Index k = 0; k < view.width; ++k) m(i, k) = view.row(b, h, i)[k];
  }
  return m;
}

struct Shape {
  Index batch, heads, length, width, value_width;
  double spread;      // scores reach about +- spread
  bool gaps, masked;  // memory layout; padding mask
};

/// One attention problem: operands, mask, results, and the long double reference of every head.
template <class T>
struct AttentionCase {
  Shape shape;
  bool causal;
  Index queries;
  Rows<T> q, k, v, d_out, out, d_q, d_k, d_v;
  std::vector<T> log_sum_exp;
  std::vector<std::uint8_t> mask;
  qkflow::AttentionOptions<T> options;

  AttentionCase(const Shape& s, bool is_causal)
      : shape(s),
        causal(is_causal),
        queries(is_causal ? s.length : 1),
        q(s.batch, s.heads, queries, s.width, s.gaps),
        k(s.batch, s.heads, s.length, s.width, s.gaps),
        v(s.batch, s.heads, s.length, s.value_width, s.gaps),
        d_out(s.batch, s.heads, queries, s.value_width, s.gaps),
        out(s.batch, s.heads, queries, s.value_width, s.gaps),
        d_q(s.batch, s.heads, queries, s.width, s.gaps),
        d_k(s.batch, s.heads, s.length, s.width, s.gaps),
        d_v(s.batch, s.heads, s.length, s.value_width, s.gaps),
        log_sum_exp(static_cast<std::size_t>(s.batch * s.heads * queries), T(-1)) {
    std::mt19937_64 bits(static_cast<unsigned>(s.length * 1009 + s.width));
    q.fill(bits, 2);
    k.fill(bits, 2);
    v.fill(bits, 1);
    d_out.fill(bits, 1);
    // Products of numbers uniform in +-2 have standard deviation 4/3.
    options.scale = static_cast<T>(s.spread / (4 * std::sqrt(static_cast<double>(s.width))));
    if (s.masked) {
      mask.resize(static_cast<std::size_t>(s.batch * s.length));
      for (auto& byte : mask) byte = bits() % 3 == 0 ? 0 : 1;
      for (Index i = 0; i < s.length / 4; ++i) mask[static_cast<std::size_t>(i)] = 0;  // its first queries see nothing
      if (s.batch > 1)
        std::fill(mask.end() - s.length, mask.end(), std::uint8_t{0});  // its last sequence is all padding
      options.key_mask = mask.data();
      poison();
    }
  }

  const std::uint8_t* mask_of(Index b) const { return shape.masked ? mask.data() + b * shape.length : nullptr; }

  /// Masked keys and values hold NaN: they must not be read.
  void poison() {
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index i = 0; i < shape.length; ++i) {
        if (mask_of(b)[i] != 0) continue;
        for (Index h = 0; h < shape.heads; ++h) {
          std::fill_n(k.view.row(b, h, i), shape.width, std::numeric_limits<T>::quiet_NaN());
          std::fill_n(v.view.row(b, h, i), shape.value_width, std::numeric_limits<T>::quiet_NaN());
        }
      }
    }
  }

  struct Head {
    Matrix q, k, v, d_out;
    Reference reference;
    long double score_size, value_size, d_out_size, query_size,
        key_size;  // S, V, D, max |q|, max |k| of the docstrings
  };

  Head head(Index b, Index h, bool backward) const {
    Head x;
    x.q = to_matrix(q.view, b, h);
    x.k = to_matrix(k.view, b, h);
    x.v = to_matrix(v.view, b, h);
    x.d_out = to_matrix(d_out.view, b, h);
    for (Index i = 0; i < shape.length; ++i) {
      if (shape.masked && mask_of(b)[i] == 0) x.k.row(i).setZero(), x.v.row(i).setZero();
    }
    const long double scale = options.scale;
    x.reference.forward(x.q, x.k, x.v, scale, causal, mask_of(b));
    if (backward) x.reference.backward(x.q, x.k, x.v, x.d_out, scale);
    x.query_size = x.q.rowwise().norm().maxCoeff();
    x.key_size = x.k.rowwise().norm().maxCoeff();
    x.value_size = x.v.rowwise().norm().maxCoeff();
    x.d_out_size = x.d_out.rowwise().norm().maxCoeff();
    x.score_size = std::abs(scale) * x.query_size * x.key_size;
    return x;
  }

  std::string name() const {
    return "batch " + std::to_string(shape.batch) + ", heads " + std::to_string(shape.heads) + ", length " +
           std::to_string(shape.length) + ", width " + std::to_string(shape.width) + ", value width " +
           std::to_string(shape.value_width) + ", scores to " + std::to_string(shape.spread) +
           (shape.gaps ? ", gaps" : "") + (shape.masked ? ", masked" : "") + ", " + qkflow::simd::instruction_set();
  }
};

/// Largest ratio of an error to what is allowed; NaN counts as infinite. One row of `value` a row of `exact`.
template <class T, class Allowed>
long double worst_ratio(const HeadView<T>& value, Index b, Index h, const Matrix& exact, const Allowed& allowed) {
  long double worst = 0;
  for (Index i = 0; i < exact.rows(); ++i) {
    long double square = 0;
    for (Index k = 0; k < exact.cols(); ++k) square += std::pow(value.row(b, h, i)[k] - exact(i, k), 2);
    const long double ratio = square == 0 ? 0 : std::sqrt(square) / allowed(i);
    if (!(ratio <= worst)) worst = std::isnan(ratio) ? std::numeric_limits<long double>::infinity() : ratio;
  }
  return worst;
}

/// Errors of a kernel's results in units of the bounds its documentation states.
struct Errors {
  long double out = 0, log_sum_exp = 0, d_q = 0, d_k = 0, d_v = 0;
};

/// `length` enters the bounds as the number of keys a query sees at most.
template <class T>
Errors errors_of(const AttentionCase<T>& c, bool backward) {
  constexpr long double epsilon = std::numeric_limits<T>::epsilon();
  Errors worst;
  for (Index b = 0; b < c.shape.batch; ++b) {
    for (Index h = 0; h < c.shape.heads; ++h) {
      const auto x = c.head(b, h, backward);
      const long double width = std::sqrt(static_cast<long double>(c.shape.width));
      const long double length = std::sqrt(static_cast<long double>(c.shape.length));
      // Weights below the smallest normal number are flushed to 0: that much is lost whatever the scale.
      const long double tiny = std::numeric_limits<T>::min() * 1e3L * static_cast<long double>(c.shape.length);
      const long double forward = epsilon * (12 + 2 * x.score_size * width + length);
      worst.out = std::max(worst.out, worst_ratio(c.out.view, b, h, x.reference.output,
                                                  [&](Index) { return forward * x.value_size + tiny; }));
      for (Index i = 0; i < c.queries; ++i) {
        const T value = c.log_sum_exp[static_cast<std::size_t>((b * c.shape.heads + h) * c.queries + i)];
        const long double exact = x.reference.log_sum_exp(i);
        if (value == exact) continue;
        const long double ratio =
            std::abs(value - exact) / (epsilon * (6 + 2 * x.score_size * width + std::abs(exact) + length));
        worst.log_sum_exp =
            std::isnan(ratio) ? std::numeric_limits<long double>::infinity() : std::max(worst.log_sum_exp, ratio);
      }
      if (!backward) continue;
      const long double e = epsilon * (16 + 4 * x.score_size * width + 2 * length);
      const long double size =
          4 * e * x.d_out_size * x.value_size * std::abs(static_cast<long double>(c.options.scale));
      const Reference::Vector taken = x.reference.weights.colwise().sum().transpose();
      worst.d_v = std::max(worst.d_v, worst_ratio(c.d_v.view, b, h, x.reference.d_values,
                                                  [&](Index j) { return e * x.d_out_size * taken(j) + tiny; }));
      worst.d_q = std::max(worst.d_q, worst_ratio(c.d_q.view, b, h, x.reference.d_query,
                                                  [&](Index) { return size * x.key_size + tiny; }));
      worst.d_k = std::max(worst.d_k, worst_ratio(c.d_k.view, b, h, x.reference.d_keys,
                                                  [&](Index j) { return size * x.query_size * taken(j) + tiny; }));
    }
  }
  return worst;
}

/// The shapes every kernel is held against: all pairs of awkward lengths and widths, a few long or wide ones, tiny and
/// huge scores, several heads, value widths of their own, misaligned rows, masks.
inline std::vector<Shape> awkward_shapes() {
  std::vector<Shape> shapes;
  bool gaps = false;
  for (const Index length : {1, 7, 16, 17, 63, 64, 65}) {
    for (const Index width : {1, 7, 16, 17, 63, 64, 65})
      shapes.push_back({1, 1, length, width, width, 3, gaps = !gaps, false});
  }
  for (const double spread : {1e-6, 30.0, 1e4}) {
    shapes.push_back({1, 2, 65, 17, 17, spread, true, false});
    shapes.push_back({2, 1, 129, 16, 16, spread, false, true});
  }
  shapes.push_back({1, 1, 1000, 7, 7, 3, true, false});
  shapes.push_back({1, 1, 1000, 16, 1, 3, false, true});
  shapes.push_back({1, 1, 7, 1000, 1000, 3, true, false});
  shapes.push_back({1, 1, 65, 1000, 7, 3, false, true});
  shapes.push_back({1, 1, 50, 1, 1000, 3, false, false});
  shapes.push_back({2, 3, 33, 20, 24, 3, true, true});
  shapes.push_back({2, 3, 33, 32, 48, 3, true, false});
  return shapes;
}

}  // namespace qkflow_test
