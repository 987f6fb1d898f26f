// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

/// The version lives here and nowhere else: CMake reads these three numbers.
#define QKFLOW_VERSION_MAJOR 0
#define QKFLOW_VERSION_MINOR 1
#define QKFLOW_VERSION_PATCH 0

#define QKFLOW_DETAIL_TEXT_OF(number) #number
#define QKFLOW_DETAIL_TEXT(number) QKFLOW_DETAIL_TEXT_OF(number)

namespace qkflow {
/// The same as text, "0.1.0".
inline constexpr char version_text[] = QKFLOW_DETAIL_TEXT(QKFLOW_VERSION_MAJOR) "." QKFLOW_DETAIL_TEXT(
    QKFLOW_VERSION_MINOR) "." QKFLOW_DETAIL_TEXT(QKFLOW_VERSION_PATCH);
}  // namespace qkflow

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error \
    "qkflow: -ffast-math (or -ffinite-math-only) removes the NaN and infinity guards this library relies on; build without it"
#endif
