// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// The textbook in Eigen expressions: qkflow's own reference, on whole matrices.
#include "attention_peer.hpp"
#include "qkflow/kernel/attention_reference.hpp"
#include "qkflow/math/thread_pool.hpp"

namespace qkflow_benchmark {
namespace {

template <class T>
class Expression final : public Peer<T> {
 public:
  using Reference = qkflow::AttentionReference<T>;
  using Matrix = typename Reference::Matrix;

  Expression(const Operands<T>& x, int threads) : problem_(x.problem), pool_(threads), heads_(x.problem.all_heads()) {
    for (Index h = 0; h < problem_.all_heads(); ++h) {
      Head& head = heads_[static_cast<std::size_t>(h)];
      head.q = matrix(x.q, h, problem_.queries());
      head.k = matrix(x.k, h, problem_.length);
      head.v = matrix(x.v, h, problem_.length);
      head.d_out = matrix(x.d_out, h, problem_.queries());
    }
  }
  void forward() override {
    pool_.for_each(heads_.size(), [&](std::size_t h, std::size_t) {
      Head& x = heads_[h];
      x.reference.forward(x.q, x.k, x.v, static_cast<T>(problem_.scale()), problem_.causal);
    });
  }
  void backward() override {
    pool_.for_each(heads_.size(), [&](std::size_t h, std::size_t) {
      Head& x = heads_[h];
      x.reference.backward(x.q, x.k, x.v, x.d_out, static_cast<T>(problem_.scale()));
    });
  }
  std::vector<T> out() const override { return join(&Reference::output); }
  Gradients<T> gradients() const override {
    return {join(&Reference::d_query), join(&Reference::d_keys), join(&Reference::d_values)};
  }

 private:
  struct Head {
    Matrix q, k, v, d_out;
    Reference reference;
  };
  Matrix matrix(const std::vector<T>& x, Index head, Index rows) const {
    return Eigen::Map<const Matrix>(x.data() + head * rows * problem_.width, rows, problem_.width);
  }
  std::vector<T> join(Matrix Reference::*part) const {
    std::vector<T> all;
    for (const Head& x : heads_) {
      const Matrix& m = x.reference.*part;
      all.insert(all.end(), m.data(), m.data() + m.size());
    }
    return all;
  }
  Problem problem_;
  qkflow::ThreadPool pool_;
  std::vector<Head> heads_;
};

}  // namespace

template <class T>
std::unique_ptr<Peer<T>> make_eigen(const Operands<T>& x, int threads) {
  return std::make_unique<Expression<T>>(x, threads);
}
template std::unique_ptr<Peer<float>> make_eigen(const Operands<float>&, int);
template std::unique_ptr<Peer<double>> make_eigen(const Operands<double>&, int);

}  // namespace qkflow_benchmark
