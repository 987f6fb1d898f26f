// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <type_traits>

#include "qkflow/kernel/vector_exp.hpp"

namespace qkflow::detail {

/// How many scalars one vector register of the target holds; 1 for scalars without registers of their own.
template <class Scalar>
inline constexpr int lane_count = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>
                                      ? (EIGEN_MAX_ALIGN_BYTES >= 16
                                             ? EIGEN_MAX_ALIGN_BYTES / static_cast<int>(sizeof(Scalar))
                                             : 1)
                                      : 1;

/// `n` rounded up to whole registers: the stride of a padded column.
template <class Scalar>
constexpr Eigen::Index padded(Eigen::Index n) {
  return (n + lane_count<Scalar> - 1) / lane_count<Scalar> * lane_count<Scalar>;
}

template <class Scalar>
using Lanes = Eigen::Array<Scalar, lane_count<Scalar>, 1>;

/// One register's worth of memory in an aligned buffer.
template <class Scalar>
Eigen::Map<Lanes<Scalar>, Eigen::AlignedMax> lanes(Scalar* p) {
  return Eigen::Map<Lanes<Scalar>, Eigen::AlignedMax>(p);
}
template <class Scalar>
Eigen::Map<const Lanes<Scalar>, Eigen::AlignedMax> lanes(const Scalar* p) {
  return Eigen::Map<const Lanes<Scalar>, Eigen::AlignedMax>(p);
}

/// A buffer whose beginning is aligned for Lanes; it only grows, and growing loses the contents.
template <class Scalar>
class Buffer {
 public:
  Scalar* reserve(Eigen::Index size) {
    if (memory_.size() < size) memory_.resize(size);
    return memory_.data();
  }
  /// The first `size` entries, all zero.
  Scalar* zeros(Eigen::Index size) {
    reserve(size);
    memory_.head(size).setZero();
    return memory_.data();
  }
  Scalar* data() { return memory_.data(); }
  const Scalar* data() const { return memory_.data(); }

 private:
  Eigen::Array<Scalar, Eigen::Dynamic, 1> memory_;
};

/// Exponentials below this are written as an exact zero: a vectorized exp bottoms out at a denormal, and denormals slow
/// everything they touch. Scalars with a library exp have no such level: 0.
template <class Scalar>
inline constexpr double vanishing_level = std::is_same_v<Scalar, float>    ? 1e-30
                                          : std::is_same_v<Scalar, double> ? 1e-280
                                                                           : 0.0;

/// x <- e^x, in place over whole registers, exactly zero below the vanishing level. Overflow gives a huge number or
/// infinity. NaN stays NaN.
template <class Scalar>
void exp_in_place(Scalar* x, Eigen::Index size) {
  if constexpr (lane_count < Scalar >> 1) {
    constexpr auto tiny = static_cast<Scalar>(vanishing_level<Scalar>);
    // The subtraction leaves every value above tiny / epsilon untouched.
    if constexpr (simd::lanes < Scalar >> 1) {
      // A third faster in double than Eigen's, which divides. The maximum keeps a NaN in its second argument.
      constexpr int pack = simd::lanes<Scalar>;
      const auto vanishing = [](const simd::Pack<Scalar>& y) {
        return simd::maximum<Scalar>(simd::broadcast(Scalar(0)), simd::exp<Scalar>(y) - simd::broadcast(tiny));
      };
      Eigen::Index i = 0;
      for (; i + pack <= size; i += pack) simd::store<Scalar>(x + i, vanishing(simd::load(x + i)));
      if (i < size) {
        const int rest = static_cast<int>(size - i);
        simd::store_first<Scalar>(x + i, rest, vanishing(simd::load_first(x + i, rest, Scalar(0))));
      }
    } else {
      Eigen::Map<Eigen::Array<Scalar, Eigen::Dynamic, 1>, Eigen::AlignedMax> map(x, size);
      map = (map.exp() - tiny).max(Scalar(0));
    }
  } else {
    using std::exp;
    for (Eigen::Index i = 0; i < size; ++i) x[i] = exp(x[i]);
  }
}

/// x <- log(1 + x) for finite x >= 0, in place over whole registers, to a few ulp. NaN stays NaN.
template <class Scalar>
void log1p_in_place(Scalar* x, Eigen::Index size) {
  if constexpr (lane_count < Scalar >> 1) {
    // With u = 1 + x rounded, log(1 + x) = log(u) + (what the rounding lost) / u: no branch, so it stays vectorized.
    for (Eigen::Index k = 0; k < size; k += lane_count<Scalar>) {
      const Lanes<Scalar> exact = lanes(x + k);
      const Lanes<Scalar> rounded = exact + Scalar(1);
      lanes(x + k) = rounded.log() + (exact - (rounded - Scalar(1))) / rounded;
    }
  } else {
    using std::log1p;
    for (Eigen::Index i = 0; i < size; ++i) x[i] = log1p(x[i]);
  }
}

}  // namespace qkflow::detail
