// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "qkflow/model/circuit.hpp"
#include "qkflow/model/detail/attention_batch.hpp"
#include "qkflow/model/detail/chunk_sums.hpp"
#include "qkflow/model/detail/gradient_plan.hpp"
#include "qkflow/model/detail/lanes.hpp"
#include "qkflow/model/head.hpp"

namespace qkflow::detail {

/// The pass over one chunk for soft and fixed attention. With p = softmax(z), e = p - onehot(label), c_i = e . W_OV[:,
/// i] and cbar = sum_i a_i c_i, one sequence adds
///     G_OV[:, i] -= a_i e,     G_QK[q, i] -= scale a_i (c_i - cbar),     G_bias -= e.
/// The entry of e at the label is minus the sum of the others: no cancellation however small the loss.
///
/// Work goes batch by batch through short loops over the batch, each doing one thing: a sequence alone is a chain of
/// dependent steps that leaves the processor waiting. One object a thread; it holds scratch memory only.
template <class Scalar>
class SoftPass {
 public:
  /// `qk_rows` is G_QK (rows of whole groups are written there); null: only the loss is wanted.
  void gradient(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options, std::size_t chunk_id,
                const ConstCircuits<Scalar>& w, const GradientFactors<Scalar>& factors, Scalar* qk_rows,
                ChunkSums<Scalar>& sums) {
    const GradientChunk& chunk = plan.chunks[chunk_id];
    begin(plan, chunk, w);
    if (qk_rows != nullptr) sums.clear(chunk, stride_, false);
    sums.loss = Scalar(0);
    RowWriter<Scalar> rows(chunk, sums, qk_rows, w.qk.cols());
    for (std::size_t first = chunk.first; first < chunk.last; first += batch_) {
      const std::size_t last = std::min(chunk.last, first + batch_);
      attention_.attend(plan, options, first, last, w);
      errors(plan, first, last);
      for (std::size_t s = first; s < last; ++s) sums.loss += plan.sequences[s].weight * loss_[s - first];
      if (qk_rows == nullptr) continue;
      for (std::size_t s = first; s < last; ++s) {
        accumulate(plan, options, plan.sequences[s], s - first, factors, rows, sums);
      }
    }
  }

  /// The derivative of the chunk's gradient when the circuits move along dw; sums as in `gradient`.
  void tangent(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options, std::size_t chunk_id,
               const ConstCircuits<Scalar>& w, const ConstCircuits<Scalar>& dw, const GradientFactors<Scalar>& factors,
               Scalar* qk_rows, ChunkSums<Scalar>& sums) {
    const GradientChunk& chunk = plan.chunks[chunk_id];
    begin(plan, chunk, w);
    column_rates_ = column_rates_memory_.reserve(static_cast<Eigen::Index>(chunk.tokens.size()) * stride_);
    copy_columns(chunk, dw.ov.data(), column_rates_);
    bias_rate_ = bias_rate_memory_.reserve(2 * stride_);
    std::fill_n(bias_rate_, stride_, Scalar(0));
    std::copy_n(dw.bias.data(), dw.bias.size(), bias_rate_);
    sums.clear(chunk, stride_, false);
    RowWriter<Scalar> rows(chunk, sums, qk_rows, w.qk.cols());
    for (std::size_t first = chunk.first; first < chunk.last; first += batch_) {
      const std::size_t last = std::min(chunk.last, first + batch_);
      attention_.attend(plan, options, first, last, w);
      errors(plan, first, last);
      for (std::size_t s = first; s < last; ++s) {
        accumulate_tangent(plan, options, plan.sequences[s], s - first, dw, factors, rows, sums);
      }
    }
  }

 private:
  /// Copies the chunk's columns of W_OV, and the bias, padded with zeros to whole registers.
  void begin(const GradientPlan<Scalar>& plan, const GradientChunk& chunk, const ConstCircuits<Scalar>& w) {
    classes_ = w.ov.rows();
    stride_ = padded<Scalar>(classes_);
    batch_ = std::clamp<std::size_t>(static_cast<std::size_t>(1536 / stride_), 1, 64);
    const auto tokens = static_cast<Eigen::Index>(chunk.tokens.size());
    columns_ = columns_memory_.reserve(tokens * stride_);
    copy_columns(chunk, w.ov.data(), columns_);
    bias_ = bias_memory_.reserve(stride_);
    std::fill_n(bias_, stride_, Scalar(0));
    std::copy_n(w.bias.data(), w.bias.size(), bias_);
    logits_ = logits_memory_.reserve(stride_ * static_cast<Eigen::Index>(batch_));
    const Eigen::Index batch = padded<Scalar>(static_cast<Eigen::Index>(batch_));
    others_ = numbers_memory_.reserve(4 * batch);
    inverse_ = others_ + batch;
    loss_ = inverse_ + batch;
    mask_ = mask_memory_.reserve(width);
    for (Eigen::Index k = 0; k < width; ++k) mask_[k] = stride_ - width + k < classes_ ? Scalar(1) : Scalar(0);
    longest_ = 0;
    for (std::size_t s = chunk.first; s < chunk.last; ++s) longest_ = std::max(longest_, plan.sequences[s].entries);
    alignment_ = alignment_memory_.reserve(3 * static_cast<Eigen::Index>(longest_));
  }

  void copy_columns(const GradientChunk& chunk, const Scalar* ov, Scalar* to) const {
    for (const auto token : chunk.tokens) {
      std::copy_n(ov + token * classes_, classes_, to);
      std::fill(to + classes_, to + stride_, Scalar(0));
      to += stride_;
    }
  }

  /// For sequences [first, last): leaves e / inverse in `logits_`, 1 / (sum of e^z) in `inverse_`, losses in `loss_`.
  void errors(const GradientPlan<Scalar>& plan, std::size_t first, std::size_t last) {
    const auto sequences = static_cast<Eigen::Index>(last - first);
    const Eigen::Index stride = stride_, numbers = padded<Scalar>(sequences);
    const Lanes<Scalar> mask = lanes(mask_);
    for (Eigen::Index s = 0; s < sequences; ++s) {
      const auto& sequence = plan.sequences[first + static_cast<std::size_t>(s)];
      Scalar* z = logits_ + s * stride;
      combine(bias_, attention_.mass(sequence), plan.local.data() + sequence.first_entry, sequence.entries, columns_,
              z);
      const Scalar at_label = z[sequence.label];
      for (Eigen::Index k = 0; k < stride - width; k += width) lanes(z + k) -= at_label;
      // Padding must not overflow when the label's logit is very negative.
      lanes(z + stride - width) = mask * (lanes(z + stride - width) - at_label);
    }
    exp_in_place(logits_, sequences * stride);
    for (Eigen::Index s = 0; s < sequences; ++s) {
      logits_[s * stride + plan.sequences[first + static_cast<std::size_t>(s)].label] = Scalar(0);
    }
    for (Eigen::Index s = 0; s < sequences; ++s) {
      const Scalar* u = logits_ + s * stride;
      Lanes<Scalar> sum = mask * lanes(u + stride - width);
      for (Eigen::Index k = 0; k < stride - width; k += width) sum += lanes(u + k);
      others_[s] = sum.sum();
    }
    for (Eigen::Index pad = sequences; pad < numbers; ++pad) others_[pad] = Scalar(0);
    for (Eigen::Index s = 0; s < numbers; s += width) {
      const Lanes<Scalar> others = lanes(others_ + s);
      lanes(inverse_ + s) = Scalar(1) / (others + Scalar(1));
      lanes(loss_ + s) = others;
    }
    log1p_in_place(loss_, numbers);
    for (Eigen::Index s = 0; s < sequences; ++s) {
      const auto& sequence = plan.sequences[first + static_cast<std::size_t>(s)];
      if (others_[s] > huge()) {
        rescue(plan, sequence, s);
      } else {
        logits_[s * stride + sequence.label] = -others_[s];
      }
    }
  }

  /// The label's logit is so far below another one that e^(z - z[label]) overflows: measure from the largest instead.
  void rescue(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, Eigen::Index s) {
    using std::exp;
    using std::log;
    Scalar* z = logits_ + s * stride_;
    combine(bias_, attention_.mass(sequence), plan.local.data() + sequence.first_entry, sequence.entries, columns_, z);
    const Scalar high = *std::max_element(z, z + classes_), gap = high - z[sequence.label];
    Scalar others(0);
    for (Eigen::Index k = 0; k < classes_; ++k) {
      z[k] = k == sequence.label ? Scalar(0) : Scalar(exp(Scalar(z[k] - high)));
      others += z[k];
    }
    std::fill(z + classes_, z + stride_, Scalar(0));
    z[sequence.label] = -others;
    const Scalar total = others + exp(Scalar(-gap));
    inverse_[s] = Scalar(1) / total;
    loss_[s] = gap + log(total);
  }

  void accumulate(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options,
                  const PlannedSequence<Scalar>& sequence, std::size_t in_batch, const GradientFactors<Scalar>& factors,
                  RowWriter<Scalar>& rows, ChunkSums<Scalar>& sums) {
    const Eigen::Index stride = stride_;
    const std::size_t entries = sequence.entries;
    const Scalar* e = logits_ + static_cast<Eigen::Index>(in_batch) * stride;
    const Scalar* a = attention_.mass(sequence);
    const std::int32_t* local = plan.local.data() + sequence.first_entry;
    const Scalar* values = columns_;
    Scalar* columns = sums.columns.data();
    Scalar* alignment = alignment_;
    const Scalar weight = -sequence.weight * inverse_[in_batch];
    const Scalar to_columns = weight * factors.ov;
    switch (stride / width) {
      case 1:
        spread_errors<1>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      case 2:
        spread_errors<2>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      case 3:
        spread_errors<3>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      case 4:
        spread_errors<4>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      case 5:
        spread_errors<5>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      case 6:
        spread_errors<6>(e, a, local, entries, columns_, to_columns, columns, alignment);
        break;
      default:
        for (std::size_t i = 0; i < entries; ++i) {
          const Eigen::Index offset = local[i] * stride;
          const Scalar coefficient = to_columns * a[i];
          Lanes<Scalar> dot = Lanes<Scalar>::Zero();
          for (Eigen::Index k = 0; k < stride; k += width) {
            const Lanes<Scalar> error = lanes(e + k);
            dot += error * lanes(values + offset + k);
            lanes(columns + offset + k) += coefficient * error;
          }
          alignment[i] = dot.sum();
        }
    }
    Scalar mean(0);
    for (std::size_t i = 0; i < entries; ++i) mean += a[i] * alignment[i];
    const Scalar to_bias = weight * factors.bias;
    Scalar* bias = sums.bias.data();
    for (Eigen::Index k = 0; k < stride; k += width) lanes(bias + k) += to_bias * lanes(e + k);
    // In fixed mode attention does not depend on W_QK: its row only has to be cleared.
    Scalar* row = rows.row(sequence.query);
    if (options.attention == AttentionMode::fixed) return;
    const std::int32_t* place = rows.is_local() ? local : plan.tokens.data() + sequence.first_entry;
    const Scalar to_row = weight * factors.qk * options.score_scale;
    for (std::size_t i = 0; i < entries; ++i) row[place[i]] += to_row * a[i] * (alignment[i] - mean);
  }

  /// With a dot for the derivative along dw, and logits measured from the label's,
  ///     a_i' = a_i (s_i' - sum_j a_j s_j'),   z' = b' + sum_i (a_i' v_i + a_i v_i'),   e_k' = p_k (z_k' - p . z'),
  ///     c_i' = e' . v_i + e . v_i'
  /// and the product rule for what `accumulate` adds.
  void accumulate_tangent(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options,
                          const PlannedSequence<Scalar>& sequence, std::size_t in_batch,
                          const ConstCircuits<Scalar>& dw, const GradientFactors<Scalar>& factors,
                          RowWriter<Scalar>& rows, ChunkSums<Scalar>& sums) {
    const Eigen::Index stride = stride_;
    const std::size_t entries = sequence.entries;
    const Scalar* a = attention_.mass(sequence);
    const std::int32_t* local = plan.local.data() + sequence.first_entry;
    const std::int32_t* token = plan.tokens.data() + sequence.first_entry;
    Scalar* e = logits_ + static_cast<Eigen::Index>(in_batch) * stride;
    for (Eigen::Index k = 0; k < stride; k += width) lanes(e + k) *= inverse_[in_batch];
    std::fill(e + classes_, e + stride, Scalar(0));

    const bool moves = options.attention == AttentionMode::soft;
    Scalar* mass_rate = alignment_ + 2 * longest_;
    Scalar mean_rate(0);
    for (std::size_t i = 0; i < entries; ++i) {
      mass_rate[i] = moves ? Scalar(options.score_scale * dw.qk(sequence.query, token[i])) : Scalar(0);
      mean_rate += a[i] * mass_rate[i];
    }
    for (std::size_t i = 0; i < entries; ++i) mass_rate[i] = a[i] * (mass_rate[i] - mean_rate);

    Scalar* rate = bias_rate_ + stride;  // z', then e'
    combine(bias_rate_, a, local, entries, column_rates_, rate);
    combine(rate, mass_rate, local, entries, columns_, rate);
    const Scalar at_label = rate[sequence.label];
    Lanes<Scalar> dot = Lanes<Scalar>::Zero();
    for (Eigen::Index k = 0; k < stride; k += width) {
      lanes(rate + k) -= at_label;
      dot += lanes(e + k) * lanes(rate + k);
    }
    const Scalar mean = dot.sum();  // p . z': the label's own entry is zero, and elsewhere e is p
    for (Eigen::Index k = 0; k < stride; k += width) lanes(rate + k) = lanes(e + k) * (lanes(rate + k) - mean);
    rate[sequence.label] = -(Scalar(1) + e[sequence.label]) * mean;

    Scalar* alignment = alignment_;
    Scalar* alignment_rate = alignment_ + longest_;
    Scalar mean_alignment(0), mean_alignment_rate(0);
    const Scalar weight = -sequence.weight, to_columns = weight * factors.ov;
    for (std::size_t i = 0; i < entries; ++i) {
      const Scalar* value = columns_ + local[i] * stride;
      const Scalar* value_rate = column_rates_ + local[i] * stride;
      Scalar* column = sums.columns.data() + local[i] * stride;
      const Scalar by_error = to_columns * mass_rate[i], by_rate = to_columns * a[i];
      Lanes<Scalar> c = Lanes<Scalar>::Zero(), c_rate = Lanes<Scalar>::Zero();
      for (Eigen::Index k = 0; k < stride; k += width) {
        const Lanes<Scalar> error = lanes(e + k), error_rate = lanes(rate + k);
        c += error * lanes(value + k);
        c_rate += error_rate * lanes(value + k) + error * lanes(value_rate + k);
        lanes(column + k) += by_error * error + by_rate * error_rate;
      }
      alignment[i] = c.sum();
      alignment_rate[i] = c_rate.sum();
      mean_alignment += a[i] * alignment[i];
      mean_alignment_rate += mass_rate[i] * alignment[i] + a[i] * alignment_rate[i];
    }
    Scalar* bias = sums.bias.data();
    for (Eigen::Index k = 0; k < stride; k += width) lanes(bias + k) += weight * factors.bias * lanes(rate + k);
    Scalar* row = rows.row(sequence.query);
    if (!moves) return;
    const std::int32_t* place = rows.is_local() ? local : token;
    const Scalar to_row = weight * factors.qk * options.score_scale;
    for (std::size_t i = 0; i < entries; ++i) {
      row[place[i]] +=
          to_row * (mass_rate[i] * (alignment[i] - mean_alignment) + a[i] * (alignment_rate[i] - mean_alignment_rate));
    }
  }

  /// out = start + sum_i a_i columns[local_i], a few registers at a time.
  void combine(const Scalar* start, const Scalar* a, const std::int32_t* local, std::size_t entries,
               const Scalar* columns, Scalar* out) const {
    const Eigen::Index stride = stride_;
    Eigen::Index k = 0;
    for (; k + 4 * width <= stride; k += 4 * width) {
      combine_panel<4>(start + k, a, local, entries, columns + k, stride, out + k);
    }
    switch ((stride - k) / width) {
      case 3:
        return combine_panel<3>(start + k, a, local, entries, columns + k, stride, out + k);
      case 2:
        return combine_panel<2>(start + k, a, local, entries, columns + k, stride, out + k);
      case 1:
        return combine_panel<1>(start + k, a, local, entries, columns + k, stride, out + k);
      default:
        return;
    }
  }

  template <int registers>
  static void combine_panel(const Scalar* start, const Scalar* a, const std::int32_t* local, std::size_t entries,
                            const Scalar* columns, Eigen::Index stride, Scalar* out) {
    Lanes<Scalar> sum[registers];
    for (int r = 0; r < registers; ++r) sum[r] = lanes(start + r * width);
    for (std::size_t i = 0; i < entries; ++i) {
      const Scalar* value = columns + local[i] * stride;
      const Scalar mass = a[i];
      for (int r = 0; r < registers; ++r) sum[r] += mass * lanes(value + r * width);
    }
    for (int r = 0; r < registers; ++r) lanes(out + r * width) = sum[r];
  }

  /// columns[:, local_i] += to_columns a_i e and alignment_i = e . values[:, local_i], with e held in registers.
  template <int registers>
  static void spread_errors(const Scalar* e, const Scalar* a, const std::int32_t* local, std::size_t entries,
                            const Scalar* values, const Scalar& to_columns, Scalar* columns, Scalar* alignment) {
    constexpr Eigen::Index stride = registers * width;
    Lanes<Scalar> error[registers];
    for (int r = 0; r < registers; ++r) error[r] = lanes(e + r * width);
    for (std::size_t i = 0; i < entries; ++i) {
      const Scalar* value = values + local[i] * stride;
      Scalar* column = columns + local[i] * stride;
      const Scalar coefficient = to_columns * a[i];
      Lanes<Scalar> dot = error[0] * lanes(value);
      lanes(column) += coefficient * error[0];
      for (int r = 1; r < registers; ++r) {
        dot += error[r] * lanes(value + r * width);
        lanes(column + r * width) += coefficient * error[r];
      }
      alignment[i] = dot.sum();
    }
  }

  static Scalar huge() {
    if constexpr (std::is_same_v<Scalar, float>) return 1e30F;
    return Scalar(1e280);
  }

  static constexpr Eigen::Index width = lane_count<Scalar>;

  AttentionBatch<Scalar> attention_;
  Buffer<Scalar> columns_memory_, bias_memory_, logits_memory_, numbers_memory_, alignment_memory_, mask_memory_,
      column_rates_memory_, bias_rate_memory_;
  Scalar* columns_ = nullptr;       // the chunk's columns of W_OV
  Scalar* bias_ = nullptr;          // padded
  Scalar* mask_ = nullptr;          // 1 for classes, 0 for padding, in the last register of a column
  Scalar* logits_ = nullptr;        // of the batch: z, then e / inverse
  Scalar* others_ = nullptr;        // of the batch: sum of e^(z - z[label]) over the other classes
  Scalar* inverse_ = nullptr;       // of the batch: 1 / (1 + others)
  Scalar* loss_ = nullptr;          // of the batch
  Scalar* alignment_ = nullptr;     // c_i / inverse of one sequence; in a tangent pass then c_i' and a_i'
  Scalar* column_rates_ = nullptr;  // derivatives of columns_
  Scalar* bias_rate_ = nullptr;     // derivative of bias_, then room for z'
  Eigen::Index classes_ = 0, stride_ = 0;
  std::size_t batch_ = 1, longest_ = 0;
};

}  // namespace qkflow::detail
