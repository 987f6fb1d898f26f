// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

#include "qkflow/math/random.hpp"
#include "qkflow/model/circuit.hpp"
#include "qkflow/task/dataset.hpp"

namespace qkflow_test {

struct RandomDatasetOptions {
  qkflow::DatasetShape shape{3, 7, 4};
  std::uint32_t sequences = 20;
  std::uint32_t longest = 6;  ///< entries a sequence, 0 to this many
  bool null_tokens = true;    ///< some sequences hold null tokens
  std::uint64_t seed = 1;
};

/// Sequences without any structure: every label with every query, fractional counts and weights, tokens both relevant
/// and not, sequences of null tokens alone. Counts and weights are multiples of 1/8, so they cast without rounding.
inline qkflow::Dataset<double> random_dataset(const RandomDatasetOptions& options) {
  qkflow::RandomStream random(options.seed);
  qkflow::DatasetBuilder<double> builder(options.shape);
  for (std::uint32_t s = 0; s < options.sequences; ++s) {
    qkflow::Sequence<double> sequence;
    sequence.query = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(options.shape.queries)));
    sequence.label = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(options.shape.classes)));
    const std::uint32_t length = random.below(options.longest + 1);
    for (std::uint32_t i = 0; i < length; ++i) {
      const auto token = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(options.shape.tokens)));
      sequence.entries.push_back({token, (1 + random.below(20)) / 8.0, random.below(2) == 0});
    }
    const bool has_null = options.null_tokens && random.below(2) == 0;
    if (has_null || length == 0) sequence.null_count = (1 + random.below(20)) / 8.0;
    sequence.weight = (1 + random.below(16)) / 8.0;
    builder.add(sequence);
  }
  return std::move(builder).build();
}

/// Normal entries of this size, the same in every scalar (rounded to double).
template <class Scalar>
qkflow::Circuits<Scalar> random_circuits(const qkflow::DatasetShape& shape, double size, bool with_bias,
                                         std::uint64_t seed) {
  qkflow::Circuits<Scalar> w(shape, with_bias);
  qkflow::RandomStream random(seed);
  for (Eigen::Index i = 0; i < w.qk.size(); ++i) w.qk.data()[i] = static_cast<Scalar>(size * random.normal());
  for (Eigen::Index i = 0; i < w.ov.size(); ++i) w.ov.data()[i] = static_cast<Scalar>(size * random.normal());
  for (Eigen::Index i = 0; i < w.bias.size(); ++i) w.bias[i] = static_cast<Scalar>(size * random.normal());
  return w;
}

/// w + x dw
template <class Scalar>
qkflow::Circuits<Scalar> moved(const qkflow::Circuits<Scalar>& w, const Scalar& x, const qkflow::Circuits<Scalar>& dw) {
  qkflow::Circuits<Scalar> to = w;
  to.qk += x * dw.qk;
  to.ov += x * dw.ov;
  to.bias += x * dw.bias;
  return to;
}

template <class Scalar>
Scalar inner_product(const qkflow::Circuits<Scalar>& a, const qkflow::Circuits<Scalar>& b) {
  return a.qk.cwiseProduct(b.qk).sum() + a.ov.cwiseProduct(b.ov).sum() + a.bias.cwiseProduct(b.bias).sum();
}

/// The largest difference of two circuits' entries, over the largest entry of b.
template <class A, class B>
double relative_difference(const qkflow::Circuits<A>& a, const qkflow::Circuits<B>& b) {
  B difference(0), size(0);
  const auto compare = [&](const auto& x, const auto& y) {
    for (Eigen::Index i = 0; i < y.size(); ++i) {
      using std::abs;
      difference = std::max(difference, B(abs(B(static_cast<B>(x.data()[i]) - y.data()[i]))));
      size = std::max(size, B(abs(y.data()[i])));
    }
  };
  compare(a.qk, b.qk);
  compare(a.ov, b.ov);
  compare(a.bias, b.bias);
  return static_cast<double>(size > B(0) ? B(difference / size) : difference);
}

}  // namespace qkflow_test
