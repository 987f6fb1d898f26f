// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <memory>
#include <string>
#include <vector>

namespace qkflow_benchmark {

using Eigen::Index;

/// One attention problem, rows stored [batch][heads][length][width].
struct Problem {
  bool causal;  // every position a query; else one query a head
  Index batch, heads, length, width;

  Index queries() const { return causal ? length : 1; }
  Index all_heads() const { return batch * heads; }
  double scale() const;
  /// Useful work: products of masked pairs do not count, exponentials do not count.
  double flops(bool backward) const;
  /// Every operand and result moved once.
  double bytes(bool backward, std::size_t scalar) const;
};

template <class T>
struct Operands {
  Problem problem;
  std::vector<T> q, k, v, d_out;
};

template <class T>
struct Gradients {
  std::vector<T> d_q, d_k, d_v;
};

/// One implementation of attention on one problem.
template <class T>
class Peer {
 public:
  virtual ~Peer() = default;
  virtual void forward() = 0;
  /// Gradients of sum(out * d_out), after `forward`.
  virtual void backward() = 0;
  virtual std::vector<T> out() const = 0;
  virtual Gradients<T> gradients() const = 0;
};

/// A way to make a peer; null for what the peer cannot do (a scalar, a size).
template <class T>
using MakePeer = std::unique_ptr<Peer<T>> (*)(const Operands<T>&, int threads);

template <class T>
std::unique_ptr<Peer<T>> make_qkflow(const Operands<T>&, int threads);
template <class T>
std::unique_ptr<Peer<T>> make_eigen(const Operands<T>&, int threads);
template <class T>
std::unique_ptr<Peer<T>> make_openblas(const Operands<T>&, int threads);
template <class T>
std::unique_ptr<Peer<T>> make_torch(const Operands<T>&, int threads);
template <class T>
std::unique_ptr<Peer<T>> make_onednn(const Operands<T>&, int threads);

/// What the library said of itself: version, kernels chosen.
std::string describe_openblas();
std::string describe_torch();
std::string describe_onednn();

}  // namespace qkflow_benchmark
