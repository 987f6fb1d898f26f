// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/train/dataset_sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "qkflow/task/block_dataset.hpp"
#include "qkflow/train/batch_gradient.hpp"
#include "support/catch.hpp"
#include "support/random_dataset.hpp"

using namespace qkflow;
using qkflow_test::random_dataset;

namespace {

/// Everything about a sequence, comparable.
template <class Scalar>
auto content(const SequenceView<Scalar>& sequence) {
  std::vector<std::tuple<int, int, double>> entries;
  for (std::size_t e = 0; e < sequence.tokens.size(); ++e) {
    entries.emplace_back(sequence.tokens[e], sequence.relevant[e], static_cast<double>(sequence.counts[e]));
  }
  std::sort(entries.begin(), entries.end());
  return std::tuple(sequence.query, sequence.label, static_cast<double>(sequence.null_count),
                    static_cast<double>(sequence.weight), entries);
}

template <class A, class B>
void check_same(const Dataset<A>& a, const Dataset<B>& b) {
  using Content = decltype(content(a[0]));
  std::vector<Content> of_a, of_b;
  for (std::size_t i = 0; i < a.size(); ++i) of_a.push_back(content(a[i]));
  for (std::size_t i = 0; i < b.size(); ++i) of_b.push_back(content(b[i]));
  std::sort(of_a.begin(), of_a.end());
  std::sort(of_b.begin(), of_b.end());
  CHECK(of_a == of_b);
}

}  // namespace

TEST_CASE("A batch holds exactly the sequences chosen, dense groups and single ones", "[dataset_sampler]") {
  for (const std::int64_t tokens : {2, 7, 200}) {
    const Dataset<double> data = random_dataset({.shape = {3, tokens, 4}, .sequences = 150, .longest = 6, .seed = 3});
    BatchAssembler<float> assemble;
    OneHotBatch<float> batch;
    std::vector<std::size_t> all(data.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (const std::vector<std::size_t>& chosen : {all, std::vector<std::size_t>{5, 5, 149, 0}, {7}}) {
      assemble(data, chosen, batch);
      check_same(data.subset(chosen), dataset_of<double>(batch, {3, tokens, 4}));
    }
    assemble(data, all, batch);
    const bool dense = std::any_of(batch.groups.begin(), batch.groups.end(),
                                   [](const OneHotGroup& group) { return group.sequences > 1; });
    CHECK(dense == (tokens == 2));
  }
}

TEST_CASE("Orders: epochs visit all once and reshuffle, replacement repeats, one by one keeps the order",
          "[dataset_sampler]") {
  const Dataset<double> data = random_dataset({.sequences = 23, .seed = 5});
  DatasetSampler<double> epochs(data, {.order = BatchOrder::epochs, .batch = 5, .seed = 9});
  CHECK(epochs.steps_per_epoch() == 5);
  std::vector<std::vector<std::size_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::size_t> order;
    for (std::uint64_t i = 0; i < 5; ++i) {
      const auto& chosen = epochs.choose(5 * epoch + i);
      CHECK(chosen.size() == (i < 4 ? 5 : 3));
      order.insert(order.end(), chosen.begin(), chosen.end());
    }
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == i);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  // Out of order, and from another object: the same.
  DatasetSampler<double> again(data, {.order = BatchOrder::epochs, .batch = 5, .seed = 9});
  again.choose(12);
  CHECK(again.choose(3) == std::vector<std::size_t>(orders[0].begin() + 15, orders[0].begin() + 20));

  DatasetSampler<double> plain(data, {.order = BatchOrder::one_by_one, .batch = 10});
  CHECK(plain.choose(2) == std::vector<std::size_t>{20, 21, 22});
  CHECK(plain.choose(3) == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});

  DatasetSampler<double> drawn(data, {.order = BatchOrder::replacement, .batch = 1000});
  std::vector<double> count(data.size(), 0.0);
  for (const std::size_t i : drawn.choose(1)) count[i] += 1;
  double chi_square = 0;
  for (const double c : count) chi_square += (c - 1000.0 / 23) * (c - 1000.0 / 23) / (1000.0 / 23);
  CHECK(chi_square > 4);
  CHECK(chi_square < 55);
}

TEST_CASE("A full batch is laid out once", "[dataset_sampler]") {
  const Dataset<double> data = block_dataset(BlockTask<double>{.classes = 3, .block = 4, .informative = 2, .noise = 3});
  DatasetSampler<double> full(data, {});
  OneHotBatch<double> batch, other;
  full(0, batch);
  check_same(data, dataset_of<double>(batch, full.shape()));
  batch.labels[0] = 2;  // a mark
  full(1, batch);
  CHECK(batch.labels[0] == 2);
  full(2, other);
  check_same(data, dataset_of<double>(other, full.shape()));
}

TEST_CASE("A dataset sampler refuses an empty batch and an epoch's batch larger than the dataset",
          "[dataset_sampler]") {
  const Dataset<double> data = random_dataset({.sequences = 23, .seed = 5});
  using Sampler = DatasetSampler<double>;
  CHECK_THROWS_WITH(Sampler(data, {.order = BatchOrder::epochs, .batch = 0}), Contains("batch = 0"));
  CHECK_THROWS_WITH(Sampler(data, {.order = BatchOrder::epochs, .batch = 24}), Contains("from 1 to 23"));
}
