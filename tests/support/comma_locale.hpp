// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <locale>
#include <string>

namespace qkflow_test {

/// While it lives, C++ streams write 1234.5 as "1.234,5": what a German desktop does to careless code.
class CommaLocale {
 public:
  CommaLocale() : previous_(std::locale::global(std::locale(std::locale(), new Comma))) {}
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;
  ~CommaLocale() { std::locale::global(previous_); }

 private:
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };

  std::locale previous_;
};

}  // namespace qkflow_test
