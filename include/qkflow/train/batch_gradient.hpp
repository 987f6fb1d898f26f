// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "qkflow/kernel/onehot_batch.hpp"
#include "qkflow/kernel/onehot_kernel.hpp"
#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/thread_pool.hpp"
#include "qkflow/model/circuit_gradient.hpp"
#include "qkflow/model/head.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow {

/// A batch as a dataset, sequence by sequence in the batch's order.
template <class Scalar, simd::KernelScalar T>
Dataset<Scalar> dataset_of(const OneHotBatch<T>& batch, const OneHotShape& shape) {
  DatasetBuilder<Scalar> builder(DatasetShape{shape.queries, shape.tokens, shape.classes});
  for (const OneHotGroup& group : batch.groups) {
    for (std::int32_t s = 0; s < group.sequences; ++s) {
      const auto i = static_cast<std::size_t>(group.first + s);
      Sequence<Scalar> sequence{group.query, batch.labels[i], {}, Scalar(0), Scalar(1)};
      if (!batch.null_counts.empty()) sequence.null_count = static_cast<Scalar>(batch.null_counts[i]);
      if (!batch.weights.empty()) sequence.weight = static_cast<Scalar>(batch.weights[i]);
      for (std::int32_t t = 0; t < group.tokens; ++t) {
        const T count = batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch + s)];
        const std::size_t token = group.first_token + static_cast<std::size_t>(t);
        if (count > T(0)) {
          sequence.entries.push_back({batch.tokens[token], static_cast<Scalar>(count), batch.relevant[token] != 0});
        }
      }
      builder.add(sequence);
    }
  }
  return std::move(builder).build();
}

/// Loss and -dL/dtheta of a batch, for every attention mode. Soft and fixed attention go through the SIMD kernel;
/// batches of 512 sequences and more are cut between groups into parts of about 256, which threads share. The cuts and
/// the order of the sum depend on the batch alone: results are the same bits for any number of threads. Hard and
/// marginal attention go through the model's CircuitGradient, which is slower.
template <simd::KernelScalar T>
class BatchGradient {
 public:
  /// `threads` 0 means one a core. Throws InvalidArgument for options that are not allowed.
  BatchGradient(const OneHotLayout<T>& layout, const HeadOptions<T>& head, int threads = 1)
      : layout_(layout), head_(head), pool_(std::make_unique<ThreadPool>(threads)) {
    head.validate("BatchGradient");
    kernels_.emplace_back(layout_, attention());
  }

  const OneHotLayout<T>& layout() const { return layout_; }
  const HeadOptions<T>& head() const { return head_; }
  std::size_t threads() const { return pool_->size(); }

  double operator()(const OneHotBatch<T>& batch, const std::vector<T>& theta, std::vector<T>& gradient) {
    gradient.resize(layout_.size());
    if (head_.attention == AttentionMode::hard || head_.attention == AttentionMode::marginal) {
      return through_circuits(batch, theta, gradient);
    }
    const std::size_t parts = batch.size() < 512 ? 1 : split(batch);
    if (parts == 1) return kernels_.front()(batch, theta.data(), gradient.data());
    return in_parts(batch, theta, gradient, parts);
  }

 private:
  OneHotAttention<T> attention() const {
    return {head_.score_scale, head_.attention == AttentionMode::fixed, head_.fixed_alpha};
  }

  /// Cuts a batch between groups, into `parts_`.
  std::size_t split(const OneHotBatch<T>& batch) {
    std::size_t parts = 0;
    for (std::size_t g = 0; g < batch.groups.size();) {
      std::size_t end = g;
      std::int32_t sequences = 0;
      while (end < batch.groups.size() && sequences < 256) sequences += batch.groups[end++].sequences;
      if (parts == parts_.size()) parts_.emplace_back();
      copy_groups(batch, g, end, sequences, parts_[parts++]);
      g = end;
    }
    return parts;
  }

  static void copy_groups(const OneHotBatch<T>& from, std::size_t begin, std::size_t end, std::int32_t sequences,
                          OneHotBatch<T>& to) {
    to.clear();
    const auto first = static_cast<std::size_t>(from.groups[begin].first);
    const auto take = [&](const auto& source, auto& target) {
      if (!source.empty()) {
        const auto at = source.begin() + static_cast<std::ptrdiff_t>(first);
        target.assign(at, at + sequences);
      }
    };
    for (std::size_t g = begin; g < end; ++g) {
      const OneHotGroup& group = from.groups[g];
      const OneHotGroup copy = to.open_group(group.query, group.sequences, group.tokens);
      to.groups.back().first = group.first - static_cast<std::int32_t>(first);
      const auto tokens = static_cast<std::ptrdiff_t>(group.first_token);
      to.tokens.insert(to.tokens.end(), from.tokens.begin() + tokens, from.tokens.begin() + tokens + group.tokens);
      to.relevant.insert(to.relevant.end(), from.relevant.begin() + tokens,
                         from.relevant.begin() + tokens + group.tokens);
      const auto counts = from.counts.begin() + static_cast<std::ptrdiff_t>(group.first_count);
      std::copy(counts, counts + group.tokens * group.pitch,
                to.counts.begin() + static_cast<std::ptrdiff_t>(copy.first_count));
    }
    take(from.labels, to.labels);
    take(from.null_counts, to.null_counts);
    take(from.weights, to.weights);
  }

  double in_parts(const OneHotBatch<T>& batch, const std::vector<T>& theta, std::vector<T>& gradient,
                  std::size_t parts) {
    double total = static_cast<double>(batch.size());
    if (!batch.weights.empty()) {
      total = 0;
      for (const T weight : batch.weights) total += static_cast<double>(weight);
    }
    while (kernels_.size() < parts) kernels_.emplace_back(layout_, attention());
    part_gradients_.resize(parts);
    part_losses_.resize(parts);
    pool_->for_each(parts, [&](std::size_t part, std::size_t) {
      part_gradients_[part].resize(layout_.size());
      part_losses_[part] = kernels_[part](parts_[part], theta.data(), part_gradients_[part].data(), total);
    });
    double loss = 0;
    for (const double part : part_losses_) loss += part;
    constexpr std::size_t block = 4096;
    pool_->for_each((layout_.size() + block - 1) / block, [&](std::size_t b, std::size_t) {
      const std::size_t from = b * block, to = std::min(layout_.size(), from + block);
      for (std::size_t i = from; i < to; ++i) gradient[i] = part_gradients_[0][i];
      for (std::size_t part = 1; part < parts; ++part) {
        for (std::size_t i = from; i < to; ++i) gradient[i] += part_gradients_[part][i];
      }
    });
    return loss;
  }

  double through_circuits(const OneHotBatch<T>& batch, const std::vector<T>& theta, std::vector<T>& gradient) {
    using Matrix = typename OneHotLayout<T>::Matrix;
    const Dataset<T> dataset = dataset_of<T>(batch, layout_.shape());
    if (circuits_ == nullptr) {
      circuits_ = std::make_unique<CircuitGradient<T>>(dataset, head_, static_cast<int>(pool_->size()));
    } else {
      circuits_->reset(dataset);
    }
    Circuits<T> w(dataset.shape(), layout_.shape().bias), g(dataset.shape(), layout_.shape().bias);
    w.qk = layout_.w_qk(theta);
    w.ov = layout_.w_ov(theta);
    if (layout_.shape().bias) w.bias = layout_.matrix(theta, layout_.bias);
    const double loss = static_cast<double>((*circuits_)(w.view(), g.map()));
    std::fill(gradient.begin(), gradient.end(), T(0));
    const Matrix qk = g.qk, ov = g.ov;
    if (layout_.qk.present()) {
      layout_.set_matrix(gradient, layout_.qk, qk);
    } else {
      layout_.set_matrix(gradient, layout_.q, layout_.matrix(theta, layout_.k) * qk.transpose());
      layout_.set_matrix(gradient, layout_.k, layout_.matrix(theta, layout_.q) * qk);
    }
    if (layout_.o.present()) {
      layout_.set_matrix(gradient, layout_.o, ov * layout_.matrix(theta, layout_.v).transpose());
      layout_.set_matrix(gradient, layout_.v, layout_.matrix(theta, layout_.o).transpose() * ov);
    } else {
      layout_.set_matrix(gradient, layout_.v, ov);
    }
    if (layout_.bias.present()) layout_.set_matrix(gradient, layout_.bias, g.bias);
    return loss;
  }

  OneHotLayout<T> layout_;
  HeadOptions<T> head_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<OneHotKernel<T>> kernels_;  // one a part
  std::vector<OneHotBatch<T>> parts_;
  std::vector<std::vector<T>> part_gradients_;
  std::vector<double> part_losses_;
  std::unique_ptr<CircuitGradient<T>> circuits_;
};

}  // namespace qkflow
