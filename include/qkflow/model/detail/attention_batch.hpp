// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "qkflow/model/circuit.hpp"
#include "qkflow/model/detail/gradient_plan.hpp"
#include "qkflow/model/detail/lanes.hpp"
#include "qkflow/model/head.hpp"

namespace qkflow::detail {

/// Attention of a few consecutive sequences at once, so that one vectorized exponential and one vectorized division
/// serve them all.
template <class Scalar>
class AttentionBatch {
 public:
  /// Computes the attention of sequences [first, last) of the plan.
  void attend(const GradientPlan<Scalar>& plan, const HeadOptions<Scalar>& options, std::size_t first, std::size_t last,
              const ConstCircuits<Scalar>& w) {
    const PlannedSequence<Scalar>* sequence = plan.sequences.data() + first;
    first_entry_ = sequence->first_entry;
    const auto entries = static_cast<Eigen::Index>(plan.sequences[last - 1].first_entry +
                                                   plan.sequences[last - 1].entries - first_entry_);
    const auto sequences = static_cast<Eigen::Index>(last - first);
    const Eigen::Index entries_size = padded<Scalar>(entries), sequences_size = padded<Scalar>(sequences);
    mass_ = memory_.reserve(entries_size + 2 * sequences_size);
    null_ = mass_ + entries_size;
    total_ = null_ + sequences_size;
    if (options.attention == AttentionMode::fixed) {
      for (Eigen::Index s = 0; s < sequences; ++s) spread(plan, sequence[s], options.fixed_alpha, s);
      return;
    }
    for (Eigen::Index s = 0; s < sequences; ++s) score(plan, sequence[s], options.score_scale, w);
    std::fill(mass_ + entries, mass_ + entries_size, Scalar(0));
    for (Eigen::Index s = 0; s < sequences; ++s) null_[s] = sequence[s].null_count;
    if (!is_small(entries_size)) {
      for (Eigen::Index s = 0; s < sequences; ++s) shift(sequence[s], s);
    }
    exp_in_place(mass_, entries_size);
    for (Eigen::Index s = 0; s < sequences; ++s) weigh(plan, sequence[s], s);
    std::fill(total_ + sequences, total_ + sequences_size, Scalar(1));
    for (Eigen::Index s = 0; s < sequences_size; s += lane_count<Scalar>) {
      lanes(total_ + s) = Scalar(1) / lanes(total_ + s);
    }
    for (Eigen::Index s = 0; s < sequences; ++s) normalize(sequence[s], s);
  }

  /// Mass on each entry of one of these sequences, and on its null tokens together.
  const Scalar* mass(const PlannedSequence<Scalar>& sequence) const {
    return mass_ + (sequence.first_entry - first_entry_);
  }
  Scalar null_mass(Eigen::Index in_batch) const { return null_[in_batch]; }

 private:
  Scalar* mass_of(const PlannedSequence<Scalar>& sequence) { return mass_ + (sequence.first_entry - first_entry_); }

  void spread(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, const Scalar& alpha,
              Eigen::Index s) {
    Scalar relevant(0), other(sequence.null_count);
    const std::size_t entries = sequence.entries;
    const Scalar* count = plan.counts.data() + sequence.first_entry;
    const std::uint8_t* is_relevant = plan.relevant.data() + sequence.first_entry;
    for (std::size_t i = 0; i < entries; ++i) (is_relevant[i] ? relevant : other) += count[i];
    const bool both = relevant > Scalar(0) && other > Scalar(0);
    const Scalar even = Scalar(1) / (relevant + other);
    const Scalar on_relevant = both ? Scalar(alpha / relevant) : even;
    const Scalar on_other = both ? Scalar((Scalar(1) - alpha) / other) : even;
    Scalar* a = mass_of(sequence);
    for (std::size_t i = 0; i < entries; ++i) {
      a[i] = count[i] * (is_relevant[i] ? on_relevant : on_other);
    }
    null_[s] = sequence.null_count * on_other;
  }

  void score(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, const Scalar& scale,
             const ConstCircuits<Scalar>& w) {
    const std::size_t entries = sequence.entries;
    Scalar* a = mass_of(sequence);
    const Scalar* row = w.qk.data() + sequence.query * w.qk.cols();
    const std::int32_t* token = plan.tokens.data() + sequence.first_entry;
    for (std::size_t i = 0; i < entries; ++i) a[i] = scale * row[token[i]];
  }

  /// True when no score of the batch is so large that its exponential, or a sum of them, could overflow or vanish: then
  /// the maximum need not be looked for sequence by sequence. False with NaN.
  bool is_small(Eigen::Index size) const {
    const Scalar bound = std::is_same_v<Scalar, float> ? Scalar(30) : Scalar(300);
    Lanes<Scalar> high = Lanes<Scalar>::Zero();
    for (Eigen::Index i = 0; i < size; i += lane_count<Scalar>) high = high.max(lanes(mass_ + i).abs());
    bool small = true;
    for (int i = 0; i < lane_count<Scalar>; ++i) small = small && high[i] <= bound;
    return small;
  }

  /// Scores less their maximum, the null tokens' score of 0 included.
  void shift(const PlannedSequence<Scalar>& sequence, Eigen::Index s) {
    using std::exp;
    const std::size_t entries = sequence.entries;
    Scalar* a = mass_of(sequence);
    const bool has_null = sequence.null_count > Scalar(0);
    Scalar high = has_null || entries == 0 ? Scalar(0) : a[0];
    for (std::size_t i = 0; i < entries; ++i) high = std::max(high, a[i]);
    for (std::size_t i = 0; i < entries; ++i) a[i] -= high;
    if (has_null) null_[s] *= exp(Scalar(-high));
  }

  void weigh(const GradientPlan<Scalar>& plan, const PlannedSequence<Scalar>& sequence, Eigen::Index s) {
    const std::size_t entries = sequence.entries;
    Scalar* a = mass_of(sequence);
    const Scalar* count = plan.counts.data() + sequence.first_entry;
    Scalar total = null_[s];
    for (std::size_t i = 0; i < entries; ++i) {
      a[i] *= count[i];
      total += a[i];
    }
    total_[s] = total;
  }

  void normalize(const PlannedSequence<Scalar>& sequence, Eigen::Index s) {
    const std::size_t entries = sequence.entries;
    Scalar* a = mass_of(sequence);
    const Scalar inverse = total_[s];
    for (std::size_t i = 0; i < entries; ++i) a[i] *= inverse;
    null_[s] *= inverse;
  }

  Buffer<Scalar> memory_;
  Scalar* mass_ = nullptr;   // one an entry of the batch
  Scalar* null_ = nullptr;   // one a sequence
  Scalar* total_ = nullptr;  // one a sequence: sum of unnormalized masses, then its inverse
  std::size_t first_entry_ = 0;
};

}  // namespace qkflow::detail
