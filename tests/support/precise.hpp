// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <boost/multiprecision/cpp_bin_float.hpp>

namespace qkflow_test {
/// 50 decimal digits, no expression templates: the independent witness of most tests.
using Precise =
    boost::multiprecision::number<boost::multiprecision::cpp_bin_float_50::backend_type, boost::multiprecision::et_off>;
}  // namespace qkflow_test
