// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "qkflow/kernel/onehot_batch.hpp"
#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/kernel/onehot_rows.hpp"
#include "qkflow/kernel/vector_exp.hpp"

namespace qkflow {

/// How the one-hot head attends.
template <class T>
struct OneHotAttention {
  T score_scale = 1;   ///< score of token i for query q = score_scale * W_QK[q, i]
  bool fixed = false;  ///< attention is given: mass `alpha` spread evenly over relevant positions, the rest over the
                       ///< others (evenly over all where a kind is missing); W_QK is idle
  T alpha = T(0.5);
};

/// Loss and gradient of a batch for the one-hot head, by SIMD over whole groups of sequences:
///
///     a_ts = counts_ts e^{s_t} / (sum_u counts_us e^{s_u} + nulls_s),   s_t = scale W_QK[q, t]
///     h_s = sum_t a_ts r_t      (r_t: column t of W_OV, or of W_V)
///     z_s = h_s or W_O h_s, plus bias;   L = sum_s w_s (log sum_k e^{z_sk} - z_s,label) / sum_s w_s
///
/// One exponential a token of a query instead of one a position, no one-hot products, and the gradient of the scores
/// from sums over a group (see OneHotGroup). Factorized circuits are never formed: a batch meets W_V and W_O one after
/// the other, and W_Q only in the columns of its queries.
///
/// The loss keeps its relative accuracy however small it gets, and so does its gradient: p_label - 1 is summed up from
/// the other classes. NaN in the weights gives NaN. Against the same formulas in long double the gradient differs by at
/// most 100 epsilon of its largest entry (the tests hold it to that). Does not allocate once its buffers have grown.
/// Not thread-safe: one object a thread.
template <simd::KernelScalar T>
class OneHotKernel {
 public:
  OneHotKernel() = default;
  OneHotKernel(const OneHotLayout<T>& layout, const OneHotAttention<T>& attention)
      : layout_(layout), attention_(attention) {
    // Classes that are only padding get the logit -infinity.
    base_.assign(static_cast<std::size_t>(class_width()), -std::numeric_limits<T>::infinity());
  }

  const OneHotLayout<T>& layout() const { return layout_; }
  const OneHotAttention<T>& attention() const { return attention_; }
  void set_attention(const OneHotAttention<T>& attention) { attention_ = attention; }

  /// The weighted mean loss. `total_weight`: what weights are divided by; 0: their sum in this batch.
  double loss(const OneHotBatch<T>& batch, const T* theta, double total_weight = 0) {
    forward(batch, theta);
    return cross_entropy(batch, theta, total_weight);
  }

  /// Writes -dL/dtheta over `gradient` (all of it, padding zero) and returns the loss.
  double operator()(const OneHotBatch<T>& batch, const T* theta, T* gradient, double total_weight = 0) {
    forward(batch, theta);
    const double loss = cross_entropy(batch, theta, total_weight);
    backward(batch, theta, gradient);
    return loss;
  }

  /// After a call, by sequence: the probability of the label, whether it is the likeliest class, and the attention mass
  /// on relevant tokens.
  T label_probability(std::size_t s) const { return label_probability_[s]; }
  bool label_is_likeliest(std::size_t s) const { return label_logit_[s] >= T(0); }
  T relevant_attention(const OneHotBatch<T>& batch, const OneHotGroup& group, std::int32_t s) const {
    return attention_where(group, s, [&](std::size_t t) { return batch.relevant[t] != 0; });
  }
  /// The attention mass on one token.
  T attention_on(const OneHotBatch<T>& batch, const OneHotGroup& group, std::int32_t s, std::int32_t token) const {
    return attention_where(group, s, [&](std::size_t t) { return batch.tokens[t] == token; });
  }

 private:
  using Pack = simd::Pack<T>;
  static constexpr int lanes = simd::lanes<T>;

  std::ptrdiff_t value_width() const { return layout_.v.stride; }
  std::ptrdiff_t class_width() const { return layout_.o.present() ? layout_.o.stride : layout_.v.stride; }
  template <class Condition>
  T attention_where(const OneHotGroup& group, std::int32_t s, const Condition& condition) const {
    T mass(0);
    for (std::int32_t t = 0; t < group.tokens; ++t) {
      if (condition(group.first_token + static_cast<std::size_t>(t))) {
        mass += weights_[group.first_count + static_cast<std::size_t>(t) * static_cast<std::size_t>(group.pitch) +
                         static_cast<std::size_t>(s)];
      }
    }
    return mass;
  }
  static void grow(std::vector<T>& buffer, std::ptrdiff_t size) {
    if (buffer.size() < static_cast<std::size_t>(size)) buffer.resize(static_cast<std::size_t>(size));
  }

  void forward(const OneHotBatch<T>& batch, const T* theta) {
    grow(weights_, static_cast<std::ptrdiff_t>(batch.counts.size()));
    grow(hidden_, static_cast<std::ptrdiff_t>(batch.size()) * value_width());
    if (!attention_.fixed) form_scores(batch, theta);
    for (const OneHotGroup& group : batch.groups) {
      if (attention_.fixed) {
        attend_fixed(batch, group);
      } else {
        attend(batch, group, score_row(group, theta));
      }
      detail::sum_rows<T>(hidden_.data() + group.first * value_width(), value_width(), group.sequences,
                          {weights_.data() + group.first_count, 1, group.pitch},
                          {theta + layout_.v.offset, value_width(), batch.tokens.data() + group.first_token},
                          group.tokens, value_width());
    }
  }

  /// Rows of W_Q^T W_K, of the queries in the batch only.
  void form_scores(const OneHotBatch<T>& batch, const T* theta) {
    if (layout_.qk.present()) return;
    const auto& q = layout_.q;
    const auto& k = layout_.k;
    const auto queries = static_cast<std::ptrdiff_t>(batch.queries.size());
    grow(query_columns_, queries * q.stride);
    grow(score_rows_, queries * k.stride);
    for (std::ptrdiff_t i = 0; i < queries; ++i) {
      const T* column = theta + q.offset + batch.queries[static_cast<std::size_t>(i)] * q.stride;
      std::copy(column, column + q.stride, query_columns_.data() + i * q.stride);
    }
    detail::sum_rows<T>(score_rows_.data(), k.stride, queries, {query_columns_.data(), q.stride, 1},
                        {theta + k.offset, k.stride}, k.count, k.stride);
  }

  const T* score_row(const OneHotGroup& group, const T* theta) const {
    if (layout_.qk.present()) return theta + layout_.qk.offset + group.query * layout_.qk.stride;
    return score_rows_.data() + group.slot * layout_.k.stride;
  }

  void attend(const OneHotBatch<T>& batch, const OneHotGroup& group, const T* row) {
    const std::int32_t* tokens = batch.tokens.data() + group.first_token;
    const T* counts = batch.counts.data() + group.first_count;
    const T* nulls = batch.null_counts.empty() ? nullptr : batch.null_counts.data() + group.first;
    T* weights = weights_.data() + group.first_count;
    grow(exponentials_, OneHotBatch<T>::pitch_of(group.tokens));
    T* e = exponentials_.data();
    T high = nulls == nullptr ? -std::numeric_limits<T>::infinity() : T(0), low = std::numeric_limits<T>::infinity();
    if (nulls != nullptr) low = T(0);
    for (std::int32_t t = 0; t < group.tokens; ++t) {
      const T score = attention_.score_scale * row[tokens[t]];
      e[t] = score;
      high = std::max(high, score);
      low = std::min(low, score);
    }
    // One shift for the whole group is safe while no sequence can lose all its tokens to underflow.
    constexpr T widest = sizeof(T) == 4 ? T(60) : T(600);
    if (!(high - low < widest)) {
      attend_one_by_one(group, counts, nulls, weights);
      return;
    }
    for (std::int32_t t = 0; t < group.tokens; ++t) e[t] -= high;
    vector_exp(e, e, group.tokens);
    const T null_mass = nulls == nullptr ? T(0) : std::exp(-high);
    for (std::int32_t s = 0; s < group.pitch; s += lanes) {
      Pack total = simd::broadcast(T(0));
      if (nulls != nullptr) {
        total = simd::load_first(nulls + s, std::min(lanes, group.sequences - s), T(0)) * simd::broadcast(null_mass);
      }
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        total = simd::multiply_add<T>(simd::load(counts + t * group.pitch + s), simd::broadcast(e[t]), total);
      }
      // Sequences that are not there have no mass at all.
      total = simd::if_less<T>(total, simd::broadcast(std::numeric_limits<T>::min()), simd::broadcast(T(1)), total);
      const Pack inverse = simd::broadcast(T(1)) / total;
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        simd::store(weights + t * group.pitch + s,
                    simd::load(counts + t * group.pitch + s) * (simd::broadcast(e[t]) * inverse));
      }
    }
  }

  /// Scores far apart: each sequence with a shift of its own. `exponentials_` holds the scores.
  void attend_one_by_one(const OneHotGroup& group, const T* counts, const T* nulls, T* weights) {
    const T* scores = exponentials_.data();
    std::fill(weights, weights + group.tokens * group.pitch, T(0));
    for (std::int32_t s = 0; s < group.sequences; ++s) {
      const T null_count = nulls == nullptr ? T(0) : nulls[s];
      T high = null_count > T(0) ? T(0) : -std::numeric_limits<T>::infinity();
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        if (counts[t * group.pitch + s] > T(0)) high = std::max(high, scores[t]);
      }
      T total = null_count > T(0) ? null_count * std::exp(-high) : T(0);
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        const T count = counts[t * group.pitch + s];
        if (count > T(0)) total += weights[t * group.pitch + s] = count * std::exp(scores[t] - high);
      }
      for (std::int32_t t = 0; t < group.tokens; ++t) weights[t * group.pitch + s] /= total;
    }
  }

  void attend_fixed(const OneHotBatch<T>& batch, const OneHotGroup& group) {
    const std::uint8_t* relevant = batch.relevant.data() + group.first_token;
    const T* counts = batch.counts.data() + group.first_count;
    T* weights = weights_.data() + group.first_count;
    const Pack zero = simd::broadcast(T(0)), one = simd::broadcast(T(1));
    for (std::int32_t s = 0; s < group.pitch; s += lanes) {
      Pack on = zero, off = zero;
      if (!batch.null_counts.empty()) {
        off = simd::load_first(batch.null_counts.data() + group.first + s, std::min(lanes, group.sequences - s), T(0));
      }
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        const Pack count = simd::load(counts + t * group.pitch + s);
        if (relevant[t] != 0) {
          on = on + count;
        } else {
          off = off + count;
        }
      }
      const Pack all = simd::if_less<T>(zero, on + off, on + off, one);
      const Pack even = one / all;
      const auto share = [&](T mass, const Pack& kind) {
        const Pack divisor = simd::if_less<T>(zero, kind, kind, one);
        const Pack both = simd::if_less<T>(zero, on, simd::if_less<T>(zero, off, one, zero), zero);
        return simd::if_less<T>(zero, both, simd::broadcast(mass) / divisor, even);
      };
      const Pack share_on = share(attention_.alpha, on), share_off = share(T(1) - attention_.alpha, off);
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        const Pack count = simd::load(counts + t * group.pitch + s);
        simd::store(weights + t * group.pitch + s, count * (relevant[t] != 0 ? share_on : share_off));
      }
    }
  }

  /// Logits, loss, and errors_ = w_s (onehot - p) / sum w.
  double cross_entropy(const OneHotBatch<T>& batch, const T* theta, double total_weight) {
    const auto sequences = static_cast<std::ptrdiff_t>(batch.size());
    const std::ptrdiff_t width = class_width();
    const auto classes = static_cast<std::ptrdiff_t>(layout_.shape().classes);
    grow(errors_, sequences * width);
    grow(label_probability_, sequences + lanes);
    grow(label_logit_, sequences + lanes);
    grow(raw_logit_, sequences + lanes);
    grow(others_, sequences + lanes);
    T* logits = hidden_.data();
    if (layout_.o.present()) {
      grow(logits_, sequences * width);
      logits = logits_.data();
      detail::sum_rows<T>(logits, width, sequences, {hidden_.data(), value_width(), 1},
                          {theta + layout_.o.offset, width}, layout_.o.count, width);
    }
    if (layout_.bias.present()) {
      std::copy(theta + layout_.bias.offset, theta + layout_.bias.offset + classes, base_.begin());
    } else {
      std::fill(base_.begin(), base_.begin() + classes, T(0));
    }
    // The label's logit leaves the row for a while, so that the sum over the others is one and not a difference.
    for (std::ptrdiff_t s = 0; s < sequences; ++s) {
      T& logit = logits[s * width + batch.labels[static_cast<std::size_t>(s)]];
      raw_logit_[static_cast<std::size_t>(s)] = logit;
      logit = -std::numeric_limits<T>::infinity();
    }
    for (std::ptrdiff_t s = 0; s < sequences; ++s) {
      const T own = raw_logit_[static_cast<std::size_t>(s)] +
                    base_[static_cast<std::size_t>(batch.labels[static_cast<std::size_t>(s)])];
      const T* z = logits + s * width;
      Pack top = simd::broadcast(own);
      for (std::ptrdiff_t i = 0; i < width; i += lanes) {
        top = simd::maximum<T>(simd::load(z + i) + simd::load(base_.data() + i), top);
      }
      const T high = simd::largest<T>(top);
      const Pack shift = simd::broadcast(high);
      Pack sum = simd::broadcast(T(0));
      T* e = errors_.data() + s * width;
      for (std::ptrdiff_t i = 0; i < width; i += lanes) {
        const Pack x = simd::exp<T>(simd::load(z + i) + simd::load(base_.data() + i) - shift);
        simd::store(e + i, x);
        sum = sum + x;
      }
      others_[static_cast<std::size_t>(s)] = simd::sum<T>(sum);
      label_logit_[static_cast<std::size_t>(s)] = own - high;
    }
    // label_logit_ becomes e^(own - high).
    vector_exp(label_logit_.data(), label_probability_.data(), sequences);
    double sum_weights = total_weight;
    if (!(sum_weights > 0)) {
      sum_weights = 0;
      if (batch.weights.empty()) sum_weights = static_cast<double>(sequences);
      for (const T weight : batch.weights) sum_weights += static_cast<double>(weight);
    }
    LossSum loss;
    for (std::ptrdiff_t s = 0; s < sequences; ++s) {
      const auto i = static_cast<std::size_t>(s);
      const T own = label_probability_[i], others = others_[i];
      const double weight = batch.weights.empty() ? 1.0 : static_cast<double>(batch.weights[i]);
      loss.add(weight, static_cast<double>(own), static_cast<double>(others), static_cast<double>(label_logit_[i]));
      const T inverse = T(1) / (own + others);
      label_probability_[i] = own * inverse;
      const T factor = static_cast<T>(weight / sum_weights) * inverse;
      T* e = errors_.data() + s * width;
      const Pack scale = simd::broadcast(-factor);
      for (std::ptrdiff_t c = 0; c < width; c += lanes) simd::store(e + c, simd::load(e + c) * scale);
      e[batch.labels[i]] = factor * others;
      logits[s * width + batch.labels[i]] = raw_logit_[i];
    }
    return loss.value() / sum_weights;
  }

  /// Adds log(1 + others / own), many at a time: logarithms of a product of terms, and a series where they are small.
  struct LossSum {
    double sum = 0, product = 1;

    void add(double weight, double own, double others, double log_own) {
      const double x = others / own;
      if (x < 1e-3) {
        sum += weight * x * (1 - x * (1.0 / 2 - x * (1.0 / 3 - x / 4)));
      } else if (own < 1e-30) {
        sum += weight * (std::log(own + others) - log_own);
      } else if (weight != 1) {
        sum += weight * std::log1p(x);
      } else {
        product *= 1 + x;
        if (!(product < 1e200)) {
          sum += std::log(product);
          product = 1;
        }
      }
    }
    double value() const { return sum + std::log(product); }
  };

  void backward(const OneHotBatch<T>& batch, const T* theta, T* gradient) {
    const auto sequences = static_cast<std::ptrdiff_t>(batch.size());
    const std::ptrdiff_t width = value_width(), classes = class_width();
    const T* upstream = errors_.data();  // -dL/dh
    if (layout_.o.present()) {
      const auto& o = layout_.o;
      grow(upstream_, sequences * width);
      transpose_output(theta + o.offset);
      detail::sum_rows<T>(upstream_.data(), width, sequences, {errors_.data(), classes, 1}, {transposed_.data(), width},
                          o.length, width);
      detail::sum_rows<T>(gradient + o.offset, classes, o.count, {hidden_.data(), 1, width}, {errors_.data(), classes},
                          sequences, classes);
      upstream = upstream_.data();
    }
    if (layout_.bias.present()) {
      const T one(1);
      detail::sum_rows<T>(gradient + layout_.bias.offset, classes, 1, {&one, 0, 0}, {errors_.data(), classes},
                          sequences, classes);
    }
    T* values = gradient + layout_.v.offset;
    std::fill(values, values + layout_.v.size(), T(0));
    T* score_gradients = nullptr;
    if (layout_.qk.present()) {
      std::fill(gradient + layout_.qk.offset, gradient + layout_.qk.offset + layout_.qk.size(), T(0));
    } else {
      std::fill(gradient + layout_.q.offset, gradient + layout_.q.offset + layout_.q.size(), T(0));
      const auto size = static_cast<std::ptrdiff_t>(batch.queries.size()) * layout_.k.stride;
      grow(score_gradients_, size);
      score_gradients = score_gradients_.data();
      std::fill(score_gradients, score_gradients + size, T(0));
    }
    grow(means_, sequences + lanes);
    if (!attention_.fixed) {
      for (std::ptrdiff_t s = 0; s < sequences; ++s) {
        means_[static_cast<std::size_t>(s)] =
            detail::dot_padded(upstream + s * width, hidden_.data() + s * width, width);
      }
    }
    for (const OneHotGroup& group : batch.groups) {
      const std::int32_t* tokens = batch.tokens.data() + group.first_token;
      const T* weights = weights_.data() + group.first_count;
      grow(group_sums_, group.tokens * width);
      detail::sum_rows<T>(group_sums_.data(), width, group.tokens, {weights, group.pitch, 1},
                          {upstream + group.first * width, width}, group.sequences, width);
      T* row = score_gradients != nullptr ? score_gradients + group.slot * layout_.k.stride
                                          : gradient + layout_.qk.offset + group.query * layout_.qk.stride;
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        const T* sum = group_sums_.data() + t * width;
        T* to = values + tokens[t] * width;
        const T* value = theta + layout_.v.offset + tokens[t] * width;
        Pack product = simd::broadcast(T(0));
        for (std::ptrdiff_t i = 0; i < width; i += lanes) {
          const Pack x = simd::load(sum + i);
          simd::store(to + i, simd::load(to + i) + x);
          product = simd::multiply_add<T>(x, simd::load(value + i), product);
        }
        if (attention_.fixed) continue;
        for (std::int32_t s = 0; s < group.pitch; s += lanes) {
          // Padded sequences have weight 0; what stands in their means is not read.
          const int there = std::min(lanes, group.sequences - s);
          const Pack mean = there == lanes ? simd::load(means_.data() + group.first + s)
                                           : simd::load_first(means_.data() + group.first + s, there, T(0));
          product = product - simd::load(weights + t * group.pitch + s) * mean;
        }
        row[tokens[t]] += attention_.score_scale * simd::sum<T>(product);
      }
    }
    if (score_gradients == nullptr) return;
    if (attention_.fixed) {
      std::fill(gradient + layout_.k.offset, gradient + layout_.k.offset + layout_.k.size(), T(0));
      return;
    }
    pull_back_scores(batch, theta, gradient);
  }

  /// dW_K = W_Q G,   dW_Q = W_K G^T, the columns of the batch's queries only.
  void pull_back_scores(const OneHotBatch<T>& batch, const T* theta, T* gradient) {
    const auto& q = layout_.q;
    const auto& k = layout_.k;
    const auto queries = static_cast<std::ptrdiff_t>(batch.queries.size());
    detail::sum_rows<T>(gradient + k.offset, k.stride, k.count, {query_columns_.data(), 1, q.stride},
                        {score_gradients_.data(), k.stride}, queries, k.stride);
    for (std::ptrdiff_t i = 0; i < queries; ++i) {
      const T* row = score_gradients_.data() + i * k.stride;
      T* to = gradient + q.offset + batch.queries[static_cast<std::size_t>(i)] * q.stride;
      for (std::ptrdiff_t j = 0; j < k.count; j += lanes) {
        Pack sums[lanes];
        for (int l = 0; l < lanes; ++l) {
          sums[l] = simd::broadcast(T(0));
          if (j + l >= k.count) continue;
          const T* key = theta + k.offset + (j + l) * k.stride;
          for (std::ptrdiff_t c = 0; c < k.stride; c += lanes) {
            sums[l] = simd::multiply_add<T>(simd::load(row + c), simd::load(key + c), sums[l]);
          }
        }
        simd::store(to + j, simd::sum_each<T>(sums));
      }
    }
  }

  /// W_O by rows of classes, padded as W_V is.
  void transpose_output(const T* output) {
    const auto& o = layout_.o;
    const std::ptrdiff_t width = value_width();
    grow(transposed_, o.length * width);
    // In blocks that stay in the nearest cache lines on both sides.
    constexpr std::ptrdiff_t block = 8;
    for (std::ptrdiff_t c0 = 0; c0 < o.length; c0 += block) {
      const std::ptrdiff_t c1 = std::min(c0 + block, o.length);
      for (std::ptrdiff_t j = 0; j < o.count; ++j) {
        const T* from = output + j * o.stride;
        for (std::ptrdiff_t c = c0; c < c1; ++c) transposed_[static_cast<std::size_t>(c * width + j)] = from[c];
      }
    }
  }

  OneHotLayout<T> layout_;
  OneHotAttention<T> attention_;
  std::vector<T> base_;
  std::vector<T> weights_;                       // attention, laid out as the counts
  std::vector<T> hidden_;                        // h_s, sequences x value width
  std::vector<T> logits_;                        // where they are not h_s
  std::vector<T> errors_;                        // sequences x class width
  std::vector<T> upstream_;                      // -dL/dh where that is not errors_
  std::vector<T> transposed_;                    // W_O^T
  std::vector<T> query_columns_;                 // of W_Q, the batch's
  std::vector<T> score_rows_, score_gradients_;  // a row a query of the batch
  std::vector<T> exponentials_, group_sums_, means_;
  std::vector<T> label_logit_, raw_logit_, others_, label_probability_;
};

}  // namespace qkflow
