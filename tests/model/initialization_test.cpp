// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/model/initialization.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "support/catch.hpp"

using namespace qkflow;

namespace {

const DatasetShape shape{3, 5, 4};

template <class Parameters>
DenseMatrix<double> matrix(const Parameters& parameters, const ColumnVector<double>& theta, const char* name) {
  return block_map(theta, parameters.block(name));
}

/// FNV-1a over the 32-bit patterns of a matrix, row by row, as floats.
std::uint64_t fingerprint(const DenseMatrix<double>& w) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (Eigen::Index r = 0; r < w.rows(); ++r) {
    for (Eigen::Index c = 0; c < w.cols(); ++c) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(static_cast<float>(w(r, c)))) * 0x100000001b3;
    }
  }
  return hash;
}

}  // namespace

TEST_CASE("zero and identity") {
  const auto fafo = fafo_parameters<double>(shape, 2, {}, true);
  CHECK(zero_start(fafo).cwiseAbs().maxCoeff() == 0);
  CHECK(zero_start(fafo).size() == fafo.size());
  const ColumnVector<double> theta = identity_start(fafo, 1e-6);
  CHECK(matrix(fafo, theta, "W_Q") == 1e-6 * DenseMatrix<double>::Identity(2, 3));
  CHECK(matrix(fafo, theta, "W_O") == 1e-6 * DenseMatrix<double>::Identity(4, 2));
  CHECK(theta.tail(4).cwiseAbs().maxCoeff() == 0);
  const auto caco = caco_parameters<double>(shape);
  CHECK(matrix(caco, identity_start(caco, 2.0), "W_QK") == 2 * DenseMatrix<double>::Identity(3, 5));
  CHECK_THROWS_WITH(identity_start(caco, std::nan("")), Catch::Contains("epsilon = nan"));
}

TEST_CASE("uniform and Gaussian starts have the right size, and their seed decides them") {
  const DatasetShape large{40, 90, 60};
  const auto fafo = fafo_parameters<double>(large, 25, {}, true);
  const ColumnVector<double> theta = uniform_start(fafo, 3);
  for (const auto& block : fafo.blocks()) {
    // The bias is bounded like the layer it belongs to: W_V, the last matrix before it, has 90 columns.
    const double bound = 1 / std::sqrt(block.name == "bias" ? 90.0 : static_cast<double>(block.shape.cols));
    const auto part = theta.segment(block.offset, block.shape.size()).array();
    CAPTURE(block.name);
    CHECK(part.abs().maxCoeff() <= bound);
    CHECK(part.abs().maxCoeff() > 0.9 * bound);
    CHECK(std::abs(part.mean()) < 4 * bound / std::sqrt(3.0 * static_cast<double>(part.size())));
  }
  CHECK(uniform_start(fafo, 3) == theta);
  CHECK(uniform_start(fafo, 4) != theta);
  CHECK(uniform_start(fafo_parameters<float>(large, 25, {}, true), 3) == theta.cast<float>());

  const ColumnVector<double> normal = gaussian_start(fafo, 3, 0.5);
  const auto weights = normal.head(fafo.size() - 60).array();
  const auto count = static_cast<double>(weights.size());
  CHECK(std::abs(weights.mean()) < 4 * 0.5 / std::sqrt(count));
  CHECK(std::abs(weights.square().mean() / 0.25 - 1) < 4 * std::sqrt(2 / count));
  CHECK(normal.tail(60).cwiseAbs().maxCoeff() == 0);
  CHECK_THROWS_WITH(gaussian_start(fafo, 3, -1), Catch::Contains("deviation = -1"));
}

TEST_CASE("a matrix does not depend on how it is stored") {
  // W_QK is stored by rows, the first of a product by columns.
  const auto caco = caco_parameters<double>(shape);
  const HeadParameters product(ProductCircuit<double, Circuit::qk>({3, 5}, {}),
                               CollapsedCircuit<double, Circuit::ov>({4, 5}));
  CHECK(matrix(caco, uniform_start(caco, 1), "W_QK") == matrix(product, uniform_start(product, 1), "W_QK_1"));
}

TEST_CASE("PyTorch's weights, bit for bit") {
  // Fingerprints of the weights of torch.nn.Linear layers (PyTorch 1.13) made in the order key, query, value, output
  // after torch.manual_seed(1234).
  const auto published = fafo_parameters<double>({50, 50, 50}, 50);
  const ColumnVector<double> theta = pytorch_start(published, 1234);
  CHECK(fingerprint(matrix(published, theta, "W_K")) == 0x6df4eaebc5404591);
  CHECK(fingerprint(matrix(published, theta, "W_Q")) == 0x5bc7b8fa77de6d5e);
  CHECK(fingerprint(matrix(published, theta, "W_V")) == 0xb830099a4daa7c2a);
  CHECK(fingerprint(matrix(published, theta, "W_O")) == 0x165982a86199cdb9);
  CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(matrix(published, theta, "W_K")(0, 0))) == 0xbe086c15);
  CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(matrix(published, theta, "W_O")(0, 1))) == 0x3e07cab4);

  // The same with layers of other shapes and a bias, seed 7: key 3 x 5, value 4 x 5 with bias.
  const auto caco = caco_parameters<double>(shape, {}, true);
  const ColumnVector<double> with_bias = pytorch_start(caco, 7);
  CHECK(fingerprint(matrix(caco, with_bias, "W_QK")) == 0x31053efbc75df5fc);
  CHECK(fingerprint(matrix(caco, with_bias, "W_OV")) == 0x4bf8e8c88ffa3640);
  CHECK(fingerprint(matrix(caco, with_bias, "bias")) == 0x97b777f7ed585184);
  // Key 2 x 5, query 2 x 3, value 2 x 5, output 4 x 2 with bias.
  const auto fafo = fafo_parameters<float>(shape, 2, {}, true);
  const ColumnVector<double> factors = pytorch_start(fafo, 7).cast<double>();
  CHECK(fingerprint(matrix(fafo_parameters<double>(shape, 2), factors, "W_K")) == 0xb473abf4c5c9fc4a);
  CHECK(fingerprint(matrix(fafo_parameters<double>(shape, 2), factors, "W_Q")) == 0x51137c5205895e47);
  CHECK(fingerprint(matrix(fafo_parameters<double>(shape, 2), factors, "W_V")) == 0x5a314a271cfd9748);
  CHECK(fingerprint(matrix(fafo_parameters<double>(shape, 2), factors, "W_O")) == 0x655880bc9671d12d);
  CHECK(fingerprint(matrix(fafo_parameters<double>(shape, 2, {}, true), factors, "bias")) == 0x455e138748761b82);
}

TEST_CASE("PyTorch layers set to the identity have consumed their draws") {
  const auto fafo = fafo_parameters<double>({50, 50, 50}, 50);
  const ColumnVector<double> theta = pytorch_start(fafo, 1234, {.identity_qk = true});
  CHECK(matrix(fafo, theta, "W_Q") == 1e-6 * DenseMatrix<double>::Identity(50, 50));
  CHECK(matrix(fafo, theta, "W_K") == 1e-6 * DenseMatrix<double>::Identity(50, 50));
  CHECK(fingerprint(matrix(fafo, theta, "W_V")) == 0xb830099a4daa7c2a);
  const HeadParameters product(ProductCircuit<double, Circuit::qk>({3, 5}, {2, 2}),
                               CollapsedCircuit<double, Circuit::ov>({4, 5}));
  CHECK_THROWS_WITH(pytorch_start(product, 1), Catch::Contains("no linear layer is called W_QK_1"));
}
