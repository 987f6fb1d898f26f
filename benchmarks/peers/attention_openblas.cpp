// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// gemm, softmax, gemm with OpenBLAS. Queries go in blocks of at most 256 rows, each against the keys it can see: half
// the work of whole matrices, and the block stays in the cache. Softmax is qkflow's, vectorized: the weak part of the
// usual composition is not what this peer is to show.
#include <cblas-openblas.h>

#include <algorithm>

#include "attention_peer.hpp"
#include "qkflow/kernel/vector_softmax.hpp"

namespace qkflow_benchmark {
namespace {

void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, Index m, Index n, Index k, float alpha, const float* a, Index lda,
          const float* b, Index ldb, float beta, float* c, Index ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a,
              static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}
void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, Index m, Index n, Index k, double alpha, const double* a, Index lda,
          const double* b, Index ldb, double beta, double* c, Index ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a,
              static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}
void gemv(CBLAS_TRANSPOSE ta, Index m, Index n, float alpha, const float* a, const float* x, float* y) {
  cblas_sgemv(CblasRowMajor, ta, static_cast<int>(m), static_cast<int>(n), alpha, a, static_cast<int>(n), x, 1, 0, y,
              1);
}
void gemv(CBLAS_TRANSPOSE ta, Index m, Index n, double alpha, const double* a, const double* x, double* y) {
  cblas_dgemv(CblasRowMajor, ta, static_cast<int>(m), static_cast<int>(n), alpha, a, static_cast<int>(n), x, 1, 0, y,
              1);
}

template <class T>
class Composition final : public Peer<T> {
 public:
  Composition(const Operands<T>& x, int threads)
      : x_(x), out_(x.q.size()), log_sum_exp_(x.q.size() / static_cast<std::size_t>(x.problem.width)) {
    openblas_set_num_threads(threads);
    rows_ = std::min<Index>(x.problem.queries(), 256);
    weights_.resize(static_cast<std::size_t>(rows_ * x.problem.length));
    gradients_.resize(weights_.size());
  }
  void forward() override {
    for_each_block([&](Index head, Index first, Index count, Index seen) {
      const Index d = x_.problem.width;
      const T* v = keys(x_.v, head);
      scores(head, first, count, seen);
      T* out = out_.data() + (head * x_.problem.queries() + first) * d;
      if (count == 1) {
        gemv(CblasTrans, seen, d, T(1), v, weights_.data(), out);
      } else {
        gemm(CblasNoTrans, CblasNoTrans, count, d, seen, T(1), weights_.data(), seen, v, d, T(0), out, d);
      }
    });
  }
  void backward() override {
    d_q_.assign(x_.q.size(), T(0));
    d_k_.assign(x_.k.size(), T(0));
    d_v_.assign(x_.v.size(), T(0));
    const Index d = x_.problem.width;
    const T scale = static_cast<T>(x_.problem.scale());
    for_each_block([&](Index head, Index first, Index count, Index seen) {
      scores(head, first, count, seen);
      const Index row = (head * x_.problem.queries() + first) * d, column = head * x_.problem.length * d;
      gemm(CblasTrans, CblasNoTrans, seen, d, count, T(1), weights_.data(), seen, x_.d_out.data() + row, d, T(1),
           d_v_.data() + column, d);
      gemm(CblasNoTrans, CblasTrans, count, seen, d, T(1), x_.d_out.data() + row, d, x_.v.data() + column, d, T(0),
           gradients_.data(), seen);
      for (Index i = 0; i < count; ++i) {
        qkflow::vector_softmax_backward(weights_.data() + i * seen, gradients_.data() + i * seen,
                                        gradients_.data() + i * seen, seen);
      }
      gemm(CblasNoTrans, CblasNoTrans, count, d, seen, scale, gradients_.data(), seen, x_.k.data() + column, d, T(0),
           d_q_.data() + row, d);
      gemm(CblasTrans, CblasNoTrans, seen, d, count, scale, gradients_.data(), seen, x_.q.data() + row, d, T(1),
           d_k_.data() + column, d);
    });
  }
  std::vector<T> out() const override { return out_; }
  Gradients<T> gradients() const override { return {d_q_, d_k_, d_v_}; }

 private:
  template <class Body>
  void for_each_block(const Body& body) {
    const Problem& p = x_.problem;
    for (Index head = 0; head < p.all_heads(); ++head) {
      for (Index first = 0; first < p.queries(); first += rows_) {
        const Index count = std::min(rows_, p.queries() - first);
        body(head, first, count, p.causal ? first + count : p.length);
      }
    }
  }
  const T* keys(const std::vector<T>& x, Index head) const {
    return x.data() + head * x_.problem.length * x_.problem.width;
  }
  void scores(Index head, Index first, Index count, Index seen) {
    const Index d = x_.problem.width;
    const T* q = x_.q.data() + (head * x_.problem.queries() + first) * d;
    const T scale = static_cast<T>(x_.problem.scale());
    if (count == 1) {
      gemv(CblasNoTrans, seen, d, scale, keys(x_.k, head), q, weights_.data());
    } else {
      gemm(CblasNoTrans, CblasTrans, count, seen, d, scale, q, d, keys(x_.k, head), d, T(0), weights_.data(), seen);
    }
    for (Index i = 0; i < count; ++i) {
      const Index visible = x_.problem.causal ? first + i + 1 : seen;
      T* row = weights_.data() + i * seen;
      log_sum_exp_[static_cast<std::size_t>(head * x_.problem.queries() + first + i)] =
          qkflow::vector_softmax(row, row, visible);
      std::fill(row + visible, row + seen, T(0));
    }
  }
  const Operands<T>& x_;
  Index rows_;
  std::vector<T> weights_, gradients_, out_, log_sum_exp_, d_q_, d_k_, d_v_;
};

}  // namespace

template <class T>
std::unique_ptr<Peer<T>> make_openblas(const Operands<T>& x, int threads) {
  return std::make_unique<Composition<T>>(x, threads);
}
template std::unique_ptr<Peer<float>> make_openblas(const Operands<float>&, int);
template std::unique_ptr<Peer<double>> make_openblas(const Operands<double>&, int);

std::string describe_openblas() { return std::string(openblas_get_config()) + ", core " + openblas_get_corename(); }

}  // namespace qkflow_benchmark
