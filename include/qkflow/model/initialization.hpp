// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "qkflow/math/random.hpp"
#include "qkflow/math/require.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/model/head_parameters.hpp"
#include "qkflow/model/parameter_block.hpp"

namespace qkflow {

/// Starts for any parameters made of matrix blocks, a user's own included: each returns the flat vector. Starts that
/// know the circuits' structure (aligned, balanced) are in model/aligned_start.hpp, files in model/parameter_file.hpp.

/// All zero: the start of the theory. A saddle for factorized circuits, which never leave it.
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> zero_start(const Parameters& parameters) {
  return ColumnVector<typename Parameters::scalar_type>::Zero(parameters.size());
}

/// Every matrix epsilon times the identity (ones on the diagonal where it is not square), the bias zero.
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> identity_start(const Parameters& parameters,
                                                              const typename Parameters::scalar_type& epsilon) {
  require_finite("identity_start", "epsilon", epsilon);
  auto theta = zero_start(parameters);
  for (const auto& block : parameters.blocks()) {
    if (block.name == "bias") continue;
    const Eigen::Index diagonal = std::min(block.shape.rows, block.shape.cols);
    for (Eigen::Index i = 0; i < diagonal; ++i) theta[block.index(i, i)] = epsilon;
  }
  return theta;
}

namespace detail {

/// Steps of random streams that belong to starts: far from any step of training.
inline constexpr std::uint64_t start_step = ~std::uint64_t{0};

/// The same matrices in every scalar: drawn in double, row by row, block i from stream (seed, start_step, i).
template <class Parameters, class Draw>
ColumnVector<typename Parameters::scalar_type> random_start(const Parameters& parameters, std::uint64_t seed,
                                                            const Draw& draw) {
  using Scalar = typename Parameters::scalar_type;
  ColumnVector<Scalar> theta(parameters.size());
  std::uint32_t stream = 0;
  for (const auto& block : parameters.blocks()) {
    RandomStream random(seed, start_step, stream++);
    for (Eigen::Index r = 0; r < block.shape.rows; ++r) {
      for (Eigen::Index c = 0; c < block.shape.cols; ++c) {
        theta[block.index(r, c)] = static_cast<Scalar>(draw(random, block));
      }
    }
  }
  return theta;
}

}  // namespace detail

/// Every entry uniform on [-c, c) with c = 1/sqrt(columns of its matrix), its fan-in; a bias on the same interval as
/// the matrix before it. The usual default of linear layers, drawn from our own streams.
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> uniform_start(const Parameters& parameters, std::uint64_t seed) {
  double bound = 1;
  return detail::random_start(parameters, seed, [&bound](RandomStream& random, const auto& block) {
    if (block.name != "bias") bound = 1 / std::sqrt(static_cast<double>(block.shape.cols));
    return random.uniform(-bound, bound);
  });
}

/// Every entry normal with mean 0 and this standard deviation, the bias zero.
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> gaussian_start(const Parameters& parameters, std::uint64_t seed,
                                                              double deviation) {
  require_non_negative("gaussian_start", "deviation", deviation);
  return detail::random_start(parameters, seed, [deviation](RandomStream& random, const auto& block) {
    return block.name == "bias" ? 0.0 : deviation * random.normal();
  });
}

/// What each circuit's layers are after they have been drawn.
struct PytorchStart {
  bool identity_qk = false;  ///< then set to epsilon * identity, as the published runs do ("I")
  bool identity_ov = false;
  double epsilon = 1e-6;
};

/// The weights torch.nn.Linear would have after torch.manual_seed(seed), bit for bit: one 32-bit Mersenne twister;
/// layers in the order key (W_K or W_QK), query, value (W_V or W_OV), output (W_O), as far as there are any; each
/// weight row by row, then its bias; each value in float (u mod 2^24) 2^-24 (2c) - c, rounded once, with c =
/// 1/sqrt(columns). Layers that are then set to the identity have consumed their draws. A bias belongs to the last
/// layer of the output circuit.
///
/// Throws InvalidArgument for parameters with other matrices (a product of many factors has no counterpart).
template <class Parameters>
ColumnVector<typename Parameters::scalar_type> pytorch_start(const Parameters& parameters, std::uint32_t seed,
                                                             const PytorchStart& start = {}) {
  using Scalar = typename Parameters::scalar_type;
  constexpr std::array<std::string_view, 6> order{"W_K", "W_QK", "W_Q", "W_V", "W_OV", "W_O"};
  const auto blocks = parameters.blocks();
  for (const auto& block : blocks) {
    if (block.name != "bias" && std::find(order.begin(), order.end(), block.name) == order.end()) {
      throw InvalidArgument("pytorch_start: no linear layer is called " + block.name);
    }
  }
  ColumnVector<Scalar> theta(parameters.size());
  std::mt19937 random(seed);
  const auto draw = [&](const ParameterBlock<Scalar>& block, double c) {
    const auto low = static_cast<float>(-c), width = static_cast<float>(c) - low;
    for (Eigen::Index row = 0; row < block.shape.rows; ++row) {
      for (Eigen::Index col = 0; col < block.shape.cols; ++col) {
        const float unit = static_cast<float>(random() & 0xFFFFFFU) * 0x1p-24F;
        theta[block.index(row, col)] = static_cast<Scalar>(std::fma(unit, width, low));
      }
    }
  };
  double bias_bound = 0;
  for (const auto name : order) {
    for (const auto& block : blocks) {
      if (block.name != name) continue;
      const auto fan_in = static_cast<double>(block.shape.cols);
      // c as torch computes it: sqrt(3) times a gain over sqrt(fan in), which may differ in the last place.
      const double slope = std::sqrt(5.0), gain = std::sqrt(2.0 / (1.0 + slope * slope));
      draw(block, std::sqrt(3.0) * (gain / std::sqrt(fan_in)));
      bias_bound = 1 / std::sqrt(fan_in);
    }
  }
  const auto is_qk = [](const std::string& name) { return name == "W_QK" || name == "W_Q" || name == "W_K"; };
  const ColumnVector<Scalar> identity = identity_start(parameters, static_cast<Scalar>(start.epsilon));
  for (const auto& block : blocks) {
    if (block.name == "bias") {
      draw(block, bias_bound);  // the last layer's, and so the last to be drawn
    } else if (is_qk(block.name) ? start.identity_qk : start.identity_ov) {
      theta.segment(block.offset, block.shape.size()) = identity.segment(block.offset, block.shape.size());
    }
  }
  return theta;
}

}  // namespace qkflow
