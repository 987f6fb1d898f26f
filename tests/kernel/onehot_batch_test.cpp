// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/onehot_batch.hpp"

#include "support/catch.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("Groups of a batch: slots by query, padded counts, reuse without remains", "[onehot_batch]", float,
                   double) {
  using T = TestType;
  OneHotBatch<T> batch;
  const auto fill = [&](std::int32_t query, std::int32_t sequences, std::int32_t tokens) {
    const OneHotGroup group = batch.open_group(query, sequences, tokens);
    for (std::int32_t s = 0; s < sequences; ++s) batch.labels.push_back(s);
    for (std::int32_t t = 0; t < tokens; ++t) {
      batch.tokens.push_back(t);
      batch.counts[group.first_count + static_cast<std::size_t>(t * group.pitch)] = T(1);
    }
    return group;
  };
  for (int round = 0; round < 2; ++round) {
    batch.clear();
    fill(7, 3, 2);
    fill(7, 1, 5);
    const OneHotGroup last = fill(4, simd::lanes<T> + 1, 1);
    CHECK(batch.queries == std::vector<std::int32_t>{7, 4});
    CHECK(batch.groups[1].slot == 0);
    CHECK(last.slot == 1);
    CHECK(last.first == 4);
    CHECK(last.first_token == 7);
    CHECK(last.pitch == 2 * simd::lanes<T>);
    CHECK(batch.size() == static_cast<std::size_t>(5 + simd::lanes<T>));
    T sum(0);
    for (const T count : batch.counts) sum += count;
    CHECK(sum == T(8));
  }
}
