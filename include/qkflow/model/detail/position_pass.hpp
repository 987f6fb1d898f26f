// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/detail/attention_batch.hpp"
#include "qkflow/model/detail/chunk_sums.hpp"
#include "qkflow/model/detail/gradient_plan.hpp"
#include "qkflow/model/detail/lanes.hpp"
#include "qkflow/model/head.hpp"

namespace qkflow::detail {

/// What each position would predict on its own, for hard and marginal attention: token t's logits are bias + W_OV[:,
/// t], whatever the sequence, so one softmax a token serves the whole dataset. Column `tokens` is the null token's.
template <class Scalar>
struct PositionTables {
  Eigen::Index classes = 0, stride = 0, tokens = 0;
  Buffer<Scalar> probability;  ///< p = softmax
  Buffer<Scalar> miss;         ///< 1 - p, without cancellation
  Buffer<Scalar> loss;         ///< -log p, accurate however small
  Buffer<Scalar> rate;         ///< p' / p = z' - p . z', in a tangent pass

  void resize(const ConstCircuits<Scalar>& w, bool with_rates) {
    classes = w.ov.rows();
    stride = padded<Scalar>(classes);
    tokens = w.ov.cols();
    const Eigen::Index size = (tokens + 1) * stride;
    probability.reserve(size);
    miss.reserve(size);
    loss.reserve(size);
    if (with_rates) rate.reserve(size);
  }

  void fill(Eigen::Index t, const ConstCircuits<Scalar>& w) {
    using std::log1p;
    Scalar* p = probability.data() + t * stride;
    Scalar* q = miss.data() + t * stride;
    Scalar* l = loss.data() + t * stride;
    Eigen::Index best = 0;
    for (Eigen::Index k = 0; k < classes; ++k) {
      p[k] = (t < tokens ? w.ov(k, t) : Scalar(0)) + (w.bias.size() != 0 ? w.bias[k] : Scalar(0));
      if (p[k] > p[best]) best = k;
    }
    const Scalar high = p[best];
    for (Eigen::Index k = 0; k < classes; ++k) {
      p[k] -= high;
      l[k] = -p[k];
    }
    std::fill(p + classes, p + stride, Scalar(0));
    exp_in_place(p, stride);
    Scalar others(0);
    for (Eigen::Index k = 0; k < classes; ++k) others += k == best ? Scalar(0) : p[k];
    const Scalar inverse = Scalar(1) / (p[best] + others), log_total = log1p(others);
    for (Eigen::Index k = 0; k < classes; ++k) {
      p[k] *= inverse;
      q[k] = k == best ? Scalar(others * inverse) : Scalar(Scalar(1) - p[k]);
      l[k] += log_total;
    }
  }

  void fill_rate(Eigen::Index t, const ConstCircuits<Scalar>& dw) {
    const Scalar* p = probability.data() + t * stride;
    Scalar* r = rate.data() + t * stride;
    Scalar mean(0);
    for (Eigen::Index k = 0; k < classes; ++k) {
      r[k] = (t < tokens ? dw.ov(k, t) : Scalar(0)) + (dw.bias.size() != 0 ? dw.bias[k] : Scalar(0));
      mean += p[k] * r[k];
    }
    for (Eigen::Index k = 0; k < classes; ++k) r[k] -= mean;
  }

  /// A column of -dL/dW_OV from masses B (mass that sequences of label k laid on token t):
  ///     G[k] = sum_y B[y] ([k = y] - p[k]) = B[k] (1 - p[k]) - p[k] (A - B[k]),   A = sum_y B[y].
  void column(Eigen::Index t, const Scalar* masses, Scalar* gradient) const {
    const Scalar* p = probability.data() + t * stride;
    const Scalar* q = miss.data() + t * stride;
    Scalar total(0);
    for (Eigen::Index k = 0; k < classes; ++k) total += masses[k];
    for (Eigen::Index k = 0; k < classes; ++k) gradient[k] = masses[k] * q[k] - p[k] * (total - masses[k]);
  }

  /// Its derivative: G'[k] = B'[k] (1 - p[k]) - p[k] (A' - B'[k]) - p'[k] A.
  void column_rate(Eigen::Index t, const Scalar* masses, const Scalar* mass_rates, Scalar* gradient_rate) const {
    const Scalar* p = probability.data() + t * stride;
    Scalar total(0);
    for (Eigen::Index k = 0; k < classes; ++k) total += masses[k];
    column(t, mass_rates, gradient_rate);
    for (Eigen::Index k = 0; k < classes; ++k) gradient_rate[k] -= p[k] * rate.data()[t * stride + k] * total;
  }
};

/// The pass over one chunk for hard and marginal attention. With l_i = -log p_i[label], p_i the prediction of position
/// i:
///     hard      loss = sum_i a_i l_i,               r_i = a_i,             G_QK[q, i] -= scale a_i (l_i - loss)
///     marginal  loss = -log Z, Z = sum_i a_i p_i,   r_i = a_i p_i / Z,     G_QK[q, i] += scale (r_i - a_i)
/// and r_i is the mass B[label, i] from which `PositionTables::column` makes G_OV.
template <class Scalar>
class PositionPass {
 public:
  /// `dw` null: loss and gradient (the loss alone where `qk_rows` is null). Else the gradient's derivative along dw.
  void run(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options, std::size_t chunk_id,
           const ConstCircuits<Scalar>& w, const ConstCircuits<Scalar>* dw, const PositionTables<Scalar>& tables,
           const Scalar& qk_factor, Scalar* qk_rows, ChunkSums<Scalar>& sums) {
    const GradientChunk& chunk = plan.chunks[chunk_id];
    if (qk_rows != nullptr) sums.clear(chunk, tables.stride, dw != nullptr);
    sums.loss = Scalar(0);
    RowWriter<Scalar> rows(chunk, sums, qk_rows, w.qk.cols());
    for (std::size_t first = chunk.first; first < chunk.last; first += batch_size) {
      const std::size_t last = std::min(chunk.last, first + batch_size);
      attention_.attend(plan, options, first, last, w);
      for (std::size_t s = first; s < last; ++s) {
        const auto& sequence = plan.sequences[s];
        collect(plan, sequence, attention_.null_mass(static_cast<Eigen::Index>(s - first)), tables);
        const Scalar loss = options.attention == AttentionMode::hard ? hard() : marginal(plan, options, sequence, w);
        sums.loss += sequence.weight * loss;
        if (qk_rows == nullptr) continue;
        scatter(plan, sequence, sums.columns.data(), sums.bias.data(), share_, tables.stride);
        if (dw != nullptr) {
          collect_rates(plan, options, sequence, *dw, tables);
          if (options.attention == AttentionMode::hard) {
            hard_rate(loss);
          } else {
            marginal_rate();
          }
          scatter(plan, sequence, sums.column_rates.data(), sums.bias_rates.data(), share_rate_, tables.stride);
        }
        Scalar* row = rows.row(sequence.query);
        const std::int32_t* place = (rows.is_local() ? plan.local.data() : plan.tokens.data()) + sequence.first_entry;
        const Scalar factor = sequence.weight * qk_factor * options.score_scale;
        for (std::size_t i = 0; i < sequence.entries; ++i) row[place[i]] += factor * score_[i];
      }
    }
  }

 private:
  static constexpr std::size_t batch_size = 64;

  /// Gathers masses, losses and misses of the sequence's entries, and of its null tokens as the last one.
  void collect(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, const Scalar& null_mass,
               const PositionTables<Scalar>& tables) {
    size_ = sequence.entries + 1;
    const auto size = static_cast<Eigen::Index>(size_);
    Scalar* memory = memory_.reserve(9 * size);
    Scalar** const parts[] = {&mass_, &loss_, &hit_, &miss_, &share_, &score_, &mass_rate_, &log_rate_, &share_rate_};
    for (Scalar** part : parts) {
      *part = memory;
      memory += size;
    }
    const Scalar* a = attention_.mass(sequence);
    const std::int32_t* token = plan.tokens.data() + sequence.first_entry;
    for (std::size_t i = 0; i < size_; ++i) {
      const bool is_null = i == sequence.entries;
      const Eigen::Index at = (is_null ? tables.tokens : token[i]) * tables.stride + sequence.label;
      mass_[i] = is_null ? null_mass : a[i];
      loss_[i] = tables.loss.data()[at];
      hit_[i] = tables.probability.data()[at];
      miss_[i] = tables.miss.data()[at];
    }
  }

  Scalar hard() {
    Scalar mean(0);
    for (std::size_t i = 0; i < size_; ++i) mean += mass_[i] * loss_[i];
    for (std::size_t i = 0; i < size_; ++i) {
      share_[i] = mass_[i];
      score_[i] = -mass_[i] * (loss_[i] - mean);
    }
    return mean;
  }

  Scalar marginal(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options,
                  const PlannedSequence<Scalar>& sequence, const ConstCircuits<Scalar>& w) {
    using std::exp;
    using std::log;
    using std::log1p;
    Scalar hit(0), miss(0);
    for (std::size_t i = 0; i < size_; ++i) {
      hit += mass_[i] * hit_[i];
      miss += mass_[i] * miss_[i];
    }
    // Terms that vanished are no loss as long as the sum stands far above them.
    if (hit >
        Scalar(vanishing_level<Scalar>) / std::numeric_limits<Scalar>::epsilon() + std::numeric_limits<Scalar>::min()) {
      // r_i - a_i = a_i (p_i - Z) / Z, from whichever of p and 1 - p is the small one.
      const bool sure = miss < Scalar(0.5);
      for (std::size_t i = 0; i < size_; ++i) {
        share_[i] = mass_[i] * hit_[i] / hit;
        score_[i] = mass_[i] * (sure ? Scalar(miss - miss_[i]) : Scalar(hit_[i] - hit)) / hit;
      }
      return sure ? Scalar(-log1p(-miss)) : Scalar(-log(hit));
    }
    // Every position all but excludes the label. Rare, so it may be slow: r = softmax(log n_i + s_i - l_i), without
    // masses or probabilities, which may have vanished.
    Scalar* prior = share_;  // log n_i + s_i
    Scalar* joint = score_;
    for (std::size_t i = 0; i < size_; ++i) {
      const bool is_null = i == sequence.entries;
      const std::size_t at = sequence.first_entry + i;
      prior[i] = is_null ? Scalar(log(sequence.null_count))
                         : Scalar(log(plan.counts[at]) + options.score_scale * w.qk(sequence.query, plan.tokens[at]));
      joint[i] = prior[i] - loss_[i];
    }
    const auto size = static_cast<Eigen::Index>(size_);
    const Scalar log_prior = log_sum_exp(VectorMap<Scalar>(prior, size));
    const Scalar log_joint = log_sum_exp(VectorMap<Scalar>(joint, size));
    for (std::size_t i = 0; i < size_; ++i) {
      share_[i] = exp(Scalar(joint[i] - log_joint));
      score_[i] = share_[i] - mass_[i];
    }
    return log_prior - log_joint;
  }

  /// a_i' and (log p_i[label])' along dw.
  void collect_rates(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options,
                     const PlannedSequence<Scalar>& sequence, const ConstCircuits<Scalar>& dw,
                     const PositionTables<Scalar>& tables) {
    const std::int32_t* token = plan.tokens.data() + sequence.first_entry;
    Scalar mean(0);
    for (std::size_t i = 0; i < size_; ++i) {
      const bool is_null = i == sequence.entries;
      mass_rate_[i] = is_null ? Scalar(0) : Scalar(options.score_scale * dw.qk(sequence.query, token[i]));
      log_rate_[i] = tables.rate.data()[(is_null ? tables.tokens : token[i]) * tables.stride + sequence.label];
      mean += mass_[i] * mass_rate_[i];
    }
    for (std::size_t i = 0; i < size_; ++i) mass_rate_[i] = mass_[i] * (mass_rate_[i] - mean);
  }

  /// r' and (score)' where score_i = -a_i (l_i - mean): replaces score_.
  void hard_rate(const Scalar& mean) {
    Scalar mean_rate(0);
    for (std::size_t i = 0; i < size_; ++i) mean_rate += mass_rate_[i] * loss_[i] - mass_[i] * log_rate_[i];
    for (std::size_t i = 0; i < size_; ++i) {
      share_rate_[i] = mass_rate_[i];
      score_[i] = -mass_rate_[i] * (loss_[i] - mean) + mass_[i] * (log_rate_[i] + mean_rate);
    }
  }

  /// r_i' = r_i (k_i - sum_j r_j k_j) with k = (log a p)', and score' = r' - a'.
  void marginal_rate() {
    Scalar mean(0);
    for (std::size_t i = 0; i < size_; ++i) {
      // a_i' / a_i, which is s_i' less its mean; an entry of no mass has no share either.
      log_rate_[i] += mass_[i] > Scalar(0) ? Scalar(mass_rate_[i] / mass_[i]) : Scalar(0);
      mean += share_[i] * log_rate_[i];
    }
    for (std::size_t i = 0; i < size_; ++i) {
      share_rate_[i] = share_[i] * (log_rate_[i] - mean);
      score_[i] = share_rate_[i] - mass_rate_[i];
    }
  }

  void scatter(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, Scalar* columns, Scalar* null,
               const Scalar* what, Eigen::Index stride) const {
    const std::int32_t* local = plan.local.data() + sequence.first_entry;
    for (std::size_t i = 0; i < sequence.entries; ++i) {
      columns[local[i] * stride + sequence.label] += sequence.weight * what[i];
    }
    null[sequence.label] += sequence.weight * what[sequence.entries];
  }

  AttentionBatch<Scalar> attention_;
  Buffer<Scalar> memory_;
  std::size_t size_ = 0;  // entries of the sequence and its null tokens; each array below has as many
  Scalar *mass_ = nullptr, *loss_ = nullptr, *hit_ = nullptr, *miss_ = nullptr, *share_ = nullptr, *score_ = nullptr,
         *mass_rate_ = nullptr, *log_rate_ = nullptr, *share_rate_ = nullptr;
};

}  // namespace qkflow::detail
