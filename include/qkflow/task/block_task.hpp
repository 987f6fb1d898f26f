// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <limits>

#include "qkflow/math/require.hpp"

namespace qkflow {

/// The block task [Vashisht26]: M classes, each with b informative tokens and b query tokens of its own. A sequence of
/// class y is a query out of Q_y, m informative tokens out of S_y and n noise tokens; its label is y. In this setting
/// the whole gradient flow is two scalars and everything is closed form.
///
/// All counts are real numbers: the equations need no integers. `validate` states what is allowed.
template <class Scalar>
struct BlockTask {
  Scalar classes = 20;     ///< M, at least 2
  Scalar block = 50;       ///< b, informative (and query) tokens a class, above 0
  Scalar informative = 5;  ///< m, informative tokens a sequence, above 0
  Scalar noise = 50;       ///< n, noise tokens a sequence, above 0 (without noise attention is 1 and QK never learns)
  /// N, one-hot noise tokens drawn uniformly; infinity: noise has a null embedding. With finite N the noise column of
  /// W_QK learns too, and mu_QK means the score gap between informative and noise tokens.
  Scalar noise_vocabulary = std::numeric_limits<Scalar>::infinity();
  /// s in score = s x_q' W_QK x_i. mu_QK is always the score itself, s times the weight.
  Scalar score_scale = 1;

  /// sigma_QK, the singular value of the direction D_QK: b, and b N / (b + N) with finite noise vocabulary.
  Scalar query_key_singular_value() const {
    using std::isinf;
    return isinf(noise_vocabulary) ? block : block / (Scalar(1) + block / noise_vocabulary);
  }
  /// sigma_OV, the singular value of the direction D_OV: sqrt(b).
  Scalar output_value_singular_value() const {
    using std::sqrt;
    return sqrt(block);
  }
  /// c0 = (M - 1) / (M sigma_QK): the constant of the first integral dQ = r c0 dS (flow/first_integral.hpp).
  Scalar coupling() const { return (classes - Scalar(1)) / classes / query_key_singular_value(); }

  /// Throws InvalidArgument naming the first count that is not allowed.
  void validate(const char* function) const {
    using std::isinf;
    require_at_least(function, "classes", classes, Scalar(2));
    require_positive(function, "block", block);
    require_positive(function, "informative", informative);
    require_positive(function, "noise", noise);
    if (!isinf(noise_vocabulary) || noise_vocabulary < Scalar(0)) {
      require_positive(function, "noise_vocabulary", noise_vocabulary);
    }
    require_positive(function, "score_scale", score_scale);
  }
};

}  // namespace qkflow
