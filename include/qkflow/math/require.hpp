// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "qkflow/version.hpp"

namespace qkflow {

/// Thrown for every argument refused at a public boundary: the message names the function, the argument and its value.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The shortest text that reads back as `value` (never touched by the locale); integers, floats and multiprecision.
template <class T>
std::string to_text(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    char buffer[64];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
    return {buffer, end.ptr};
  } else {
    return value.str();
  }
}

/// Throws `InvalidArgument` reading "function: argument = value, but it must expectation".
template <class T>
[[noreturn]] void throw_invalid(const char* function, const char* argument, const T& value, const std::string& must) {
  throw InvalidArgument(std::string(function) + ": " + argument + " = " + to_text(value) + ", but it must " + must);
}

template <class T>
void require_finite(const char* function, const char* argument, const T& value) {
  using std::isfinite;
  if (!isfinite(value)) throw_invalid(function, argument, value, "be finite");
}

template <class T>
void require_positive(const char* function, const char* argument, const T& value) {
  using std::isfinite;
  if (!isfinite(value) || !(value > T(0))) throw_invalid(function, argument, value, "be finite and above 0");
}

template <class T>
void require_non_negative(const char* function, const char* argument, const T& value) {
  using std::isfinite;
  if (!isfinite(value) || !(value >= T(0))) throw_invalid(function, argument, value, "be finite and at least 0");
}

template <class T>
void require_at_least(const char* function, const char* argument, const T& value, const T& bound) {
  using std::isfinite;
  if (!isfinite(value) || !(value >= bound)) {
    throw_invalid(function, argument, value, "be finite and at least " + to_text(bound));
  }
}

}  // namespace qkflow
