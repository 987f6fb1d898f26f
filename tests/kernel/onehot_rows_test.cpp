// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/kernel/onehot_rows.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "qkflow/math/random.hpp"
#include "support/catch.hpp"

using namespace qkflow;

TEMPLATE_TEST_CASE("Sums of rows are those of plain loops, for every number of rows, sums and registers",
                   "[onehot_rows]", float, double) {
  using T = TestType;
  RandomStream random(3);
  const int lanes = simd::lanes<T>;
  for (const int packs : {1, 2, 3, 4, 5, 9}) {
    for (const int out_count : {0, 1, 2, 3, 4, 5, 7, 9}) {
      for (const int count : {0, 1, 2, 13}) {
        for (const bool indexed : {false, true}) {
          const int width = packs * lanes, stride = width + lanes, rows = 17;
          std::vector<T> table(static_cast<std::size_t>(rows * stride)), coefficients(400);
          std::vector<std::int32_t> index;
          for (T& x : table) x = static_cast<T>(random.uniform(-1, 1));
          for (T& x : coefficients) x = static_cast<T>(random.uniform(-1, 1));
          for (int k = 0; k < count; ++k) index.push_back(static_cast<std::int32_t>(random.below(rows)));
          const std::ptrdiff_t out_step = 3, sum_step = 20;
          std::vector<T> out(static_cast<std::size_t>((out_count + 1) * stride), T(77));
          detail::sum_rows<T>(out.data(), stride, out_count, {coefficients.data(), out_step, sum_step},
                              {table.data(), stride, indexed ? index.data() : nullptr}, count, width);
          double worst = 0;
          int touched = 0;
          for (int o = 0; o <= out_count; ++o) {
            for (int i = 0; i < stride; ++i) {
              const T found = out[static_cast<std::size_t>(o * stride + i)];
              if (o == out_count || i >= width) {
                touched += found == T(77) ? 0 : 1;
                continue;
              }
              double sum = 0;
              for (int k = 0; k < count; ++k) {
                const int row = indexed ? index[static_cast<std::size_t>(k)] : k;
                sum += static_cast<double>(coefficients[static_cast<std::size_t>(o * out_step + k * sum_step)]) *
                       static_cast<double>(table[static_cast<std::size_t>(row * stride + i)]);
              }
              worst = std::max(worst, std::abs(sum - static_cast<double>(found)));
            }
          }
          INFO(packs << " registers, " << out_count << " sums of " << count << (indexed ? " indexed" : ""));
          CHECK(worst <= 8 * static_cast<double>(std::numeric_limits<T>::epsilon()));
          CHECK(touched == 0);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("The padded dot product is that of a plain loop", "[onehot_rows]", float, double) {
  using T = TestType;
  RandomStream random(4);
  for (const int packs : {0, 1, 2, 7}) {
    const auto width = static_cast<std::size_t>(packs * simd::lanes<T>);
    std::vector<T> a(width + 1), b(width + 1);
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
      a[i] = static_cast<T>(random.uniform(-1, 1));
      b[i] = static_cast<T>(random.uniform(-1, 1));
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    const T found = detail::dot_padded(a.data(), b.data(), static_cast<std::ptrdiff_t>(width));
    CHECK(std::abs(sum - static_cast<double>(found)) <= 32 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
}
