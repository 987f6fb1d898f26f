// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace qkflow_test {

/// Values of an attribute in HTML or SVG, in order.
inline std::vector<std::string> attribute_values(const std::string& html, const std::string& attribute) {
  std::vector<std::string> found;
  const std::string key = " " + attribute + "=\"";
  for (std::size_t at = html.find(key); at != std::string::npos; at = html.find(key, at + 1)) {
    const std::size_t first = at + key.size();
    found.push_back(html.substr(first, html.find('"', first) - first));
  }
  return found;
}

}  // namespace qkflow_test
