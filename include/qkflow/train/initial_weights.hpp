// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "qkflow/kernel/onehot_layout.hpp"
#include "qkflow/math/random.hpp"
#include "qkflow/math/require.hpp"

namespace qkflow {

/// Where a matrix of parameters starts.
enum class StartKind {
  zero,      ///< 0
  identity,  ///< `size` times the identity
  uniform,   ///< uniform on (-size / sqrt(fan), size / sqrt(fan)), fan the number of its columns
  normal     ///< normal of standard deviation size / sqrt(fan)
};

struct MatrixStart {
  StartKind kind = StartKind::uniform;
  double size = 1;
};

/// Where a head starts. The published experiments take I = {identity, 1e-6} and D = {uniform, 1} [Vashisht26].
struct InitialWeights {
  MatrixStart qk{}, ov{};  ///< of W_QK, or of both W_Q and W_K; of W_OV, or of both W_O and W_V
  MatrixStart bias{};
  bool pytorch = false;  ///< draws `uniform` as torch.nn.Linear would after torch.manual_seed(seed)
  std::uint64_t seed = 0;
};

namespace detail {

/// The random numbers of PyTorch's default initialization of linear layers: one Mersenne twister for all layers, a
/// 24-bit fraction of each word, stretched in float.
class PytorchUniform {
 public:
  explicit PytorchUniform(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}
  /// Uniform between -bound and bound, rounded once.
  float operator()(double bound) {
    const float fraction = static_cast<float>(engine_() & 0xFFFFFFU) * 0x1p-24F;
    const auto low = static_cast<float>(-bound), width = static_cast<float>(bound) - low;
    return std::fma(fraction, width, low);
  }
  /// 1 / sqrt(fan) as PyTorch comes to it, which may differ in the last place.
  static double bound_of(double fan) { return std::sqrt(3.0) * (std::sqrt(2.0 / 6.0) / std::sqrt(fan)); }

 private:
  std::mt19937 engine_;
};

}  // namespace detail

/// Parameters to start from, in a layout.
///
/// With `pytorch` the layers are drawn one after the other as key, query, value, output, as far as they are there (W_QK
/// counts as key, W_OV as value), each matrix row by row and its bias after it; layers that then start otherwise
/// consume their draws all the same. So the same seed gives the weights of torch.nn.Linear bit by bit. Without it each
/// matrix has a stream of its own: RandomStream(seed, 2^64 - 1, its place in W_QK, W_Q, W_K, W_OV, W_O, W_V, bias).
template <simd::KernelScalar T>
std::vector<T> initial_weights(const OneHotLayout<T>& layout, const InitialWeights& start) {
  using Matrix = typename OneHotLayout<T>::Matrix;
  std::vector<T> theta(layout.size(), T(0));
  detail::PytorchUniform pytorch(start.seed);
  const auto& shape = layout.shape();
  const auto bias_bound = 1 / std::sqrt(static_cast<double>(layout.v.present() ? shape.tokens : 1));
  const auto fill = [&](const std::string& name, const MatrixStart& how, std::uint32_t stream) {
    const OneHotBlock block = layout.block(name);
    Matrix values = Matrix::Zero(block.matrix_rows(), block.matrix_cols());
    require_non_negative("initial_weights", "size", how.size);
    const double fan = static_cast<double>(block.matrix_cols());
    const double bound = name == "bias" ? bias_bound : 1 / std::sqrt(fan);
    RandomStream random(start.seed, ~std::uint64_t{0}, stream);  // far from any step of training
    for (Eigen::Index row = 0; row < values.rows(); ++row) {
      for (Eigen::Index col = 0; col < values.cols(); ++col) {
        const float torch =
            start.pytorch ? pytorch(name == "bias" ? bound : detail::PytorchUniform::bound_of(fan)) : 0.0F;
        switch (how.kind) {
          case StartKind::zero:
            break;
          case StartKind::identity:
            values(row, col) = row == col ? static_cast<T>(how.size) : T(0);
            break;
          case StartKind::uniform:
            values(row, col) =
                static_cast<T>(how.size * (start.pytorch ? static_cast<double>(torch) : random.uniform(-bound, bound)));
            break;
          case StartKind::normal:
            values(row, col) = static_cast<T>(how.size * bound * random.normal());
            break;
        }
      }
    }
    layout.set_matrix(theta, block, values);
  };
  if (layout.qk.present()) {
    fill("W_QK", start.qk, 0);
  } else {
    fill("W_K", start.qk, 2);
    fill("W_Q", start.qk, 1);
  }
  if (layout.o.present()) {
    fill("W_V", start.ov, 5);
    fill("W_O", start.ov, 4);
  } else {
    fill("W_OV", start.ov, 3);
  }
  if (layout.bias.present()) fill("bias", start.bias, 6);
  return theta;
}

}  // namespace qkflow
