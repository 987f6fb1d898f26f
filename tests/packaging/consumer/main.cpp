// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#include <Eigen/Core>
#include <cstdio>
#include <string>

#include "qkflow/math/require.hpp"
#include "qkflow/version.hpp"

int main() {
#ifdef PACKAGE_VERSION
  const std::string stated = std::to_string(QKFLOW_VERSION_MAJOR) + "." + std::to_string(QKFLOW_VERSION_MINOR) + "." +
                             std::to_string(QKFLOW_VERSION_PATCH);
  if (stated != PACKAGE_VERSION) {
    std::printf("the package says %s, its headers %s\n", PACKAGE_VERSION, stated.c_str());
    return 1;
  }
#endif
  // A dependency's headers came along, and qkflow's own code links.
  const Eigen::Vector2d circuits(1.0, 2.0);
  try {
    qkflow::require_positive("consumer", "mu", -circuits.sum());
  } catch (const qkflow::InvalidArgument& error) {
    return std::string(error.what()) == "consumer: mu = -3, but it must be finite and above 0" ? 0 : 2;
  }
  return 3;
}
