// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include "qkflow/qkflow.hpp"

const void* address_seen_by_unit_two();
const void* address_seen_by_unit_two() { return reinterpret_cast<const void*>(&qkflow::require_finite<double>); }
