// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// oneDNN primitives: matmul, softmax, matmul, the causal mask written in between; float alone.
#include <algorithm>
#include <dnnl.hpp>
#include <limits>

#include "attention_peer.hpp"

extern "C" void omp_set_num_threads(int);

namespace qkflow_benchmark {
namespace {

using dnnl::memory;

class OneDnn final : public Peer<float> {
 public:
  OneDnn(const Operands<float>& x, int threads)
      : problem_(x.problem), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_), out_(x.q.size()) {
    omp_set_num_threads(threads);
    const Index h = problem_.all_heads(), m = problem_.queries(), n = problem_.length, d = problem_.width;
    q_ = wrap(x.q, plain(h, m, d));
    k_ = wrap(x.k, plain(h, n, d));
    v_ = wrap(x.v, plain(h, n, d));
    d_out_ = wrap(x.d_out, plain(h, m, d));
    out_memory_ = memory(plain(h, m, d), engine_, out_.data());
    weights_ = memory(plain(h, m, n), engine_);
    scale_ = static_cast<float>(problem_.scale());

    dnnl::primitive_attr attributes;
    attributes.set_output_scales(0, {scale_});
    scores_ = product(plain(h, m, d), turned(h, n, d), plain(h, m, n), attributes);
    softmax_hint_ =
        dnnl::softmax_forward::primitive_desc({dnnl::prop_kind::forward_training, plain(h, m, n), 2}, engine_);
    softmax_ = dnnl::softmax_forward(softmax_hint_);
    values_ = product(plain(h, m, n), plain(h, n, d), plain(h, m, d), {});
  }
  void forward() override {
    const std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, q_}, {DNNL_ARG_WEIGHTS, turned_memory(k_)}, {DNNL_ARG_DST, weights_}};
    scores_.execute(stream_, arguments);
    if (problem_.causal) {
      // By hand: with the mask as a post-op, or with -infinity in it, this version falls back to slow reference code.
      stream_.wait();
      float* row = static_cast<float*>(weights_.get_data_handle());
      const Index n = problem_.length;
      for (Index i = 0; i < problem_.all_heads() * n; ++i, row += n) {
        std::fill(row + i % n + 1, row + n, -std::numeric_limits<float>::infinity());
      }
    }
    softmax_.execute(stream_, {{DNNL_ARG_SRC, weights_}, {DNNL_ARG_DST, weights_}});
    values_.execute(stream_, {{DNNL_ARG_SRC, weights_}, {DNNL_ARG_WEIGHTS, v_}, {DNNL_ARG_DST, out_memory_}});
    stream_.wait();
  }
  void backward() override {
    const Index h = problem_.all_heads(), m = problem_.queries(), n = problem_.length, d = problem_.width;
    if (d_q_.empty()) {
      d_q_.resize(out_.size());
      d_k_.resize(static_cast<std::size_t>(h * n * d));
      d_v_.resize(d_k_.size());
      d_scores_ = memory(plain(h, m, n), engine_);
      dnnl::primitive_attr scaled;
      scaled.set_output_scales(0, {scale_});
      value_gradient_ = product(turned(h, m, n), plain(h, m, d), plain(h, n, d), {});
      weight_gradient_ = product(plain(h, m, d), turned(h, n, d), plain(h, m, n), {});
      softmax_backward_ = dnnl::softmax_backward({{plain(h, m, n), plain(h, m, n), 2}, engine_, softmax_hint_});
      query_gradient_ = product(plain(h, m, n), plain(h, n, d), plain(h, m, d), scaled);
      key_gradient_ = product(turned(h, m, n), plain(h, m, d), plain(h, n, d), scaled);
    }
    const auto run = [&](dnnl::matmul& p, const memory& a, const memory& b, const memory& c) {
      p.execute(stream_, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    };
    // The weights are those the forward pass left: nothing is recomputed.
    run(value_gradient_, turned_memory(weights_), d_out_, memory(plain(h, n, d), engine_, d_v_.data()));
    run(weight_gradient_, d_out_, turned_memory(v_), d_scores_);
    softmax_backward_.execute(
        stream_, {{DNNL_ARG_DST, weights_}, {DNNL_ARG_DIFF_DST, d_scores_}, {DNNL_ARG_DIFF_SRC, d_scores_}});
    run(query_gradient_, d_scores_, k_, memory(plain(h, m, d), engine_, d_q_.data()));
    run(key_gradient_, turned_memory(d_scores_), q_, memory(plain(h, n, d), engine_, d_k_.data()));
    stream_.wait();
  }
  std::vector<float> out() const override { return out_; }
  Gradients<float> gradients() const override { return {d_q_, d_k_, d_v_}; }

 private:
  static memory::desc plain(Index h, Index rows, Index columns) {
    return {{h, rows, columns}, memory::data_type::f32, memory::format_tag::abc};
  }
  /// The transpose of a plain matrix of rows x columns.
  static memory::desc turned(Index h, Index rows, Index columns) {
    return {{h, columns, rows}, memory::data_type::f32, memory::format_tag::acb};
  }
  memory wrap(const std::vector<float>& x, const memory::desc& shape) {
    return {shape, engine_, const_cast<float*>(x.data())};
  }
  memory turned_memory(const memory& x) {
    const auto size = x.get_desc().dims();
    return {turned(size[0], size[1], size[2]), engine_, x.get_data_handle()};
  }
  dnnl::matmul product(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                       const dnnl::primitive_attr& attributes) {
    return dnnl::matmul({{a, b, c}, attributes, engine_});
  }
  Problem problem_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<float> out_, d_q_, d_k_, d_v_;
  float scale_;
  memory q_, k_, v_, d_out_, out_memory_, weights_, d_scores_;
  dnnl::matmul scores_, values_, value_gradient_, weight_gradient_, query_gradient_, key_gradient_;
  dnnl::softmax_forward::primitive_desc softmax_hint_;
  dnnl::softmax_forward softmax_;
  dnnl::softmax_backward softmax_backward_;
};

}  // namespace

template <>
std::unique_ptr<Peer<float>> make_onednn(const Operands<float>& x, int threads) {
  return std::make_unique<OneDnn>(x, threads);
}
template <>
std::unique_ptr<Peer<double>> make_onednn(const Operands<double>&, int) {
  return nullptr;
}

std::string describe_onednn() {
  const auto* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

}  // namespace qkflow_benchmark
