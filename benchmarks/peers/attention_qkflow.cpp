// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "attention_peer.hpp"
#include "qkflow/kernel/causal_attention.hpp"
#include "qkflow/kernel/causal_attention_backward.hpp"
#include "qkflow/kernel/single_query.hpp"
#include "qkflow/kernel/single_query_backward.hpp"

namespace qkflow_benchmark {
namespace {

using qkflow::head_view;
using qkflow::HeadView;

template <class T>
class Kernels final : public Peer<T> {
 public:
  Kernels(const Operands<T>& x, int threads)
      : x_(x), pool_(threads), out_(x.q.size()), log_sum_exp_(x.q.size() / static_cast<std::size_t>(x.problem.width)) {
    options_.scale = static_cast<T>(x.problem.scale());
    if (threads > 1) options_.pool = &pool_;
  }
  void forward() override {
    if (x_.problem.causal) {
      qkflow::causal_attention<T>(rows(x_.q), rows(x_.k), rows(x_.v), options_, rows(out_), log_sum_exp_.data(), work_);
    } else {
      qkflow::single_query_attention<T>(rows(x_.q), rows(x_.k), rows(x_.v), options_, rows(out_), log_sum_exp_.data(),
                                        work_);
    }
  }
  void backward() override {
    if (d_k_.empty()) d_q_.resize(x_.q.size()), d_k_.resize(x_.k.size()), d_v_.resize(x_.v.size());
    const HeadView<const T> out = rows(out_);
    if (x_.problem.causal) {
      qkflow::causal_attention_backward<T>(rows(x_.q), rows(x_.k), rows(x_.v), out, log_sum_exp_.data(), rows(x_.d_out),
                                           options_, rows(d_q_), rows(d_k_), rows(d_v_), work_);
    } else {
      qkflow::single_query_attention_backward<T>(rows(x_.q), rows(x_.k), rows(x_.v), out, log_sum_exp_.data(),
                                                 rows(x_.d_out), options_, rows(d_q_), rows(d_k_), rows(d_v_), work_);
    }
  }
  std::vector<T> out() const override { return out_; }
  Gradients<T> gradients() const override { return {d_q_, d_k_, d_v_}; }

 private:
  template <class Vector>
  auto rows(Vector& x) const {
    const Problem& p = x_.problem;
    return head_view(x.data(), p.batch, p.heads, static_cast<Index>(x.size()) / (p.all_heads() * p.width), p.width);
  }
  const Operands<T>& x_;
  qkflow::ThreadPool pool_;
  qkflow::AttentionWorkspace work_;
  qkflow::AttentionOptions<T> options_;
  std::vector<T> out_, log_sum_exp_, d_q_, d_k_, d_v_;
};

}  // namespace

template <class T>
std::unique_ptr<Peer<T>> make_qkflow(const Operands<T>& x, int threads) {
  return std::make_unique<Kernels<T>>(x, threads);
}
template std::unique_ptr<Peer<float>> make_qkflow(const Operands<float>&, int);
template std::unique_ptr<Peer<double>> make_qkflow(const Operands<double>&, int);

}  // namespace qkflow_benchmark
