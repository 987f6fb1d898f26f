// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/qkflow.hpp"

const void* address_seen_by_unit_two();

int main() {
  // One definition for the whole program: both units must see the same function.
  const auto* mine = reinterpret_cast<const void*>(&qkflow::require_finite<double>);
  return mine == address_seen_by_unit_two() ? 0 : 1;
}
