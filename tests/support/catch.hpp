// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once
// The one place that knows which Catch2 is installed: version 2 has one header, version 3 many.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using namespace Catch::Matchers;  // NOLINT(google-build-using-namespace): version 2 has the matchers here already
#else
#include <catch2/catch.hpp>
using namespace Catch::Matchers;  // NOLINT(google-build-using-namespace)
#endif
