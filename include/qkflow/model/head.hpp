// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/math/log_sum_exp.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// How attention enters the loss. With scores s, counts n, logits v_i = bias + column i of W_OV, and a null token
/// having score 0 and value 0 [Vashisht26, Vashisht23]:
enum class AttentionMode {
  soft,     ///< a = softmax(s) by counts, loss = CE(bias + sum_i a_i W_OV[:, i])
  fixed,    ///< a spreads the mass fixed_alpha evenly over relevant positions, the rest over the others; W_QK is idle.
            ///< A sequence that lacks one of the two kinds is attended to evenly.
  hard,     ///< a as soft, loss = sum_i a_i CE(v_i): one position is drawn, its loss is counted in expectation
  marginal  ///< a as soft, loss = -log sum_i a_i softmax(v_i)[label]: the position is a latent variable (LVML)
};

template <class Scalar>
struct HeadOptions {
  AttentionMode attention = AttentionMode::soft;
  Scalar score_scale = 1;    ///< s in score = s x_q' W_QK x_i, above 0
  Scalar fixed_alpha = 0.5;  ///< mass on relevant positions in `fixed` mode, from 0 to 1

  void validate(const char* function) const {
    require_positive(function, "score_scale", score_scale);
    require_non_negative(function, "fixed_alpha", fixed_alpha);
    if (fixed_alpha > Scalar(1)) throw_invalid(function, "fixed_alpha", fixed_alpha, "be from 0 to 1");
  }
};

/// What the head makes of one sequence.
template <class Scalar>
struct SequenceResult {
  Scalar loss = 0;
  ColumnVector<Scalar> attention;      ///< mass on each entry (all its positions together)
  Scalar null_attention = 0;           ///< mass on all null tokens together; with `attention` it sums to 1
  ColumnVector<Scalar> probabilities;  ///< of the classes: softmax(z); in hard and marginal mode sum_i a_i softmax(v_i)
  Scalar relevant_attention = 0;       ///< mass on relevant entries
  Scalar entropy = 0;                  ///< of attention over positions, in nats: -sum_i a_i log(a_i / n_i)
};

/// The head, one sequence at a time and nothing clever: what observables use, and the reference the fast gradient is
/// tested against. Keeps buffers, so one object a thread.
template <class Scalar>
class HeadForward {
 public:
  explicit HeadForward(const HeadOptions<Scalar>& options) : options_(options) { options_.validate("HeadForward"); }

  /// Evaluates one sequence of a dataset whose shape the circuits have. The result is overwritten by the next call.
  const SequenceResult<Scalar>& operator()(const SequenceView<Scalar>& sequence, const ConstCircuits<Scalar>& w) {
    attend(sequence, w);
    const auto entries = static_cast<Eigen::Index>(sequence.tokens.size());
    bias_.resize(w.ov.rows());
    if (w.bias.size() == 0) {
      bias_.setZero();
    } else {
      bias_ = w.bias;
    }
    result_.probabilities.resize(w.ov.rows());
    if (options_.attention == AttentionMode::soft || options_.attention == AttentionMode::fixed) {
      logits_ = bias_;
      for (Eigen::Index i = 0; i < entries; ++i) logits_ += result_.attention[i] * w.ov.col(sequence.tokens[i]);
      result_.loss = cross_entropy(sequence.label);
      probabilities(result_.probabilities);
      return result_;
    }
    using std::log;
    using std::log1p;
    result_.loss = Scalar(0);
    Scalar miss(0);  // 1 - sum_i a_i p_i[label], without cancellation
    result_.probabilities.setZero();
    position_.resize(w.ov.rows());
    joint_.resize(entries + 1);
    for (Eigen::Index i = -1; i < entries; ++i) {
      const Scalar a = i < 0 ? result_.null_attention : result_.attention[i];
      logits_ = bias_;
      if (i >= 0) logits_ += w.ov.col(sequence.tokens[i]);
      probabilities(position_);
      result_.probabilities += a * position_;
      const Scalar loss = cross_entropy(sequence.label);
      result_.loss += a * loss;
      joint_[i + 1] = log_mass_[i + 1] - loss;
      position_[sequence.label] = Scalar(0);
      miss += a * position_.sum();
    }
    if (options_.attention == AttentionMode::marginal) {
      result_.loss = miss < Scalar(0.5) ? Scalar(-log1p(-miss)) : Scalar(-log_sum_exp(joint_));
    }
    return result_;
  }

 private:
  void attend(const SequenceView<Scalar>& sequence, const ConstCircuits<Scalar>& w) {
    using std::exp;
    using std::log;
    const auto entries = static_cast<Eigen::Index>(sequence.tokens.size());
    auto& a = result_.attention;
    a.resize(entries);
    Scalar relevant_count(0), other_count(sequence.null_count);
    for (Eigen::Index i = 0; i < entries; ++i)
      (sequence.relevant[i] ? relevant_count : other_count) += sequence.counts[i];
    if (options_.attention == AttentionMode::fixed) {
      const bool both = relevant_count > Scalar(0) && other_count > Scalar(0);
      const Scalar positions = relevant_count + other_count;
      const Scalar on_relevant = both ? Scalar(options_.fixed_alpha / relevant_count) : Scalar(Scalar(1) / positions);
      const Scalar on_other =
          both ? Scalar((Scalar(1) - options_.fixed_alpha) / other_count) : Scalar(Scalar(1) / positions);
      for (Eigen::Index i = 0; i < entries; ++i)
        a[i] = sequence.counts[i] * (sequence.relevant[i] ? on_relevant : on_other);
      result_.null_attention = sequence.null_count * on_other;
    } else {
      for (Eigen::Index i = 0; i < entries; ++i) a[i] = options_.score_scale * w.qk(sequence.query, sequence.tokens[i]);
      Scalar high = entries == 0 ? Scalar(0) : Scalar(a.maxCoeff());
      if (sequence.null_count > Scalar(0) && high < Scalar(0)) high = Scalar(0);
      const bool has_null = sequence.null_count > Scalar(0);
      log_mass_.resize(entries + 1);  // the null tokens' first; kept because a mass may vanish where its log does not
      log_mass_[0] = has_null ? Scalar(log(sequence.null_count) - high) : -std::numeric_limits<Scalar>::infinity();
      for (Eigen::Index i = 0; i < entries; ++i) {
        log_mass_[i + 1] = log(Scalar(sequence.counts[i])) + (a[i] - high);
        a[i] = sequence.counts[i] * exp(Scalar(a[i] - high));
      }
      result_.null_attention = has_null ? Scalar(sequence.null_count * exp(Scalar(-high))) : Scalar(0);
      const Scalar total = a.sum() + result_.null_attention;
      a /= total;
      result_.null_attention /= total;
      log_mass_.array() -= Scalar(log(total));
    }
    result_.relevant_attention = Scalar(0);
    result_.entropy = Scalar(0);
    const auto add_entropy = [this](const Scalar& mass, const Scalar& count) {
      if (mass > Scalar(0)) result_.entropy -= mass * log(Scalar(mass / count));
    };
    for (Eigen::Index i = 0; i < entries; ++i) {
      if (sequence.relevant[i]) result_.relevant_attention += a[i];
      add_entropy(a[i], sequence.counts[i]);
    }
    add_entropy(result_.null_attention, sequence.null_count);
  }

  /// softmax(logits). Unlike math's softmax it lets NaN through: a diverged state shall be seen, not thrown.
  void probabilities(ColumnVector<Scalar>& p) const {
    using std::exp;
    const Scalar high = logits_.maxCoeff();
    for (Eigen::Index k = 0; k < p.size(); ++k) p[k] = exp(Scalar(logits_[k] - high));
    p /= Scalar(p.sum());
  }

  /// log(sum_k e^{z_k - z_label}), accurate however small.
  Scalar cross_entropy(Eigen::Index label) {
    shifted_ = logits_.array() - logits_[label];
    shifted_[label] = -std::numeric_limits<Scalar>::infinity();
    return softplus(log_sum_exp(shifted_));
  }

  HeadOptions<Scalar> options_;
  SequenceResult<Scalar> result_;
  ColumnVector<Scalar> bias_, logits_, shifted_, position_, log_mass_, joint_;
};

}  // namespace qkflow
