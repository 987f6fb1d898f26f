// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// libtorch's own scaled-dot-product attention; gradients by its autograd.
#include <torch/torch.h>
#include <torch/version.h>

#include "attention_peer.hpp"

namespace qkflow_benchmark {
namespace {

template <class T>
class Torch final : public Peer<T> {
 public:
  Torch(const Operands<T>& x, int threads) : problem_(x.problem) {
    at::set_num_threads(threads);
    q_ = tensor(x.q), k_ = tensor(x.k), v_ = tensor(x.v), d_out_ = tensor(x.d_out);
  }
  void forward() override {
    const torch::NoGradGuard no_grad;
    out_ = attention(q_, k_, v_);
  }
  void backward() override {
    if (!graph_.defined()) {
      leaves_ = {q_.clone().requires_grad_(true), k_.clone().requires_grad_(true), v_.clone().requires_grad_(true)};
      graph_ = attention(leaves_[0], leaves_[1], leaves_[2]);
    }
    // The graph is kept: what is timed is the backward pass alone.
    gradients_ = torch::autograd::grad({graph_}, leaves_, {d_out_}, true);
  }
  std::vector<T> out() const override { return vector(out_); }
  Gradients<T> gradients() const override {
    return {vector(gradients_[0]), vector(gradients_[1]), vector(gradients_[2])};
  }

 private:
  at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    return std::get<0>(at::_scaled_dot_product_attention(q, k, v, {}, 0.0, false, problem_.causal));
  }
  at::Tensor tensor(const std::vector<T>& x) const {
    const auto type = std::is_same_v<T, float> ? torch::kFloat : torch::kDouble;
    return torch::from_blob(const_cast<T*>(x.data()),
                            {problem_.batch, problem_.heads,
                             static_cast<Index>(x.size()) / (problem_.all_heads() * problem_.width), problem_.width},
                            type)
        .clone();
  }
  static std::vector<T> vector(const at::Tensor& x) {
    const at::Tensor c = x.contiguous();
    return {c.data_ptr<T>(), c.data_ptr<T>() + c.numel()};
  }
  Problem problem_;
  at::Tensor q_, k_, v_, d_out_, out_, graph_;
  std::vector<at::Tensor> leaves_, gradients_;
};

}  // namespace

template <class T>
std::unique_ptr<Peer<T>> make_torch(const Operands<T>& x, int threads) {
  return std::make_unique<Torch<T>>(x, threads);
}
template std::unique_ptr<Peer<float>> make_torch(const Operands<float>&, int);
template std::unique_ptr<Peer<double>> make_torch(const Operands<double>&, int);

std::string describe_torch() { return std::string("libtorch ") + TORCH_VERSION; }

}  // namespace qkflow_benchmark
