// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace qkflow_program {

/// The mean training loss over each 100 epochs of a published run, as printed there [Vashisht26].
struct PublishedSeries {
  std::string_view experiment;
  int run;  ///< from 0: its seed is 1234 + run
  std::span<const double> losses;
};

namespace published {
inline constexpr double caco_faster_0[] = {3.284, 2.212, 1.466, 0.928, 0.493, 0.216, 0.101, 0.056, 0.036, 0.026,
                                           0.020, 0.016, 0.013, 0.011, 0.010, 0.008, 0.008, 0.007, 0.006, 0.006};
inline constexpr double caco_faster_1[] = {3.284, 2.212, 1.469, 0.946, 0.542, 0.269, 0.133, 0.074, 0.047, 0.033,
                                           0.024, 0.019, 0.016, 0.013, 0.011, 0.010, 0.009, 0.008, 0.007, 0.006};
inline constexpr double caco_faster_2[] = {3.286, 2.214, 1.469, 0.942, 0.531, 0.254, 0.122, 0.068, 0.043, 0.030,
                                           0.023, 0.018, 0.015, 0.012, 0.011, 0.009, 0.008, 0.007, 0.007, 0.006};
inline constexpr double caco_faster_3[] = {3.277, 2.209, 1.469, 0.952, 0.555, 0.285, 0.145, 0.082, 0.053, 0.037,
                                           0.027, 0.021, 0.017, 0.014, 0.012, 0.011, 0.009, 0.008, 0.008, 0.007};
inline constexpr double caco_faster_4[] = {3.280, 2.205, 1.455, 0.924, 0.519, 0.257, 0.130, 0.074, 0.048, 0.034,
                                           0.025, 0.020, 0.016, 0.014, 0.012, 0.010, 0.009, 0.008, 0.007, 0.007};
inline constexpr double caco_increasing_0[] = {3.285, 2.220, 1.500, 1.035, 0.711, 0.468, 0.293, 0.178, 0.110, 0.071,
                                               0.048, 0.034, 0.025, 0.020, 0.016, 0.013, 0.011, 0.009, 0.008, 0.007};
inline constexpr double caco_increasing_1[] = {3.285, 2.219, 1.496, 1.032, 0.711, 0.475, 0.304, 0.192, 0.122, 0.080,
                                               0.055, 0.039, 0.029, 0.023, 0.018, 0.015, 0.012, 0.010, 0.009, 0.008};
inline constexpr double caco_increasing_2[] = {3.287, 2.221, 1.499, 1.035, 0.713, 0.474, 0.302, 0.189, 0.119, 0.077,
                                               0.053, 0.038, 0.028, 0.022, 0.017, 0.014, 0.012, 0.010, 0.008, 0.007};
inline constexpr double caco_increasing_3[] = {3.278, 2.215, 1.497, 1.035, 0.715, 0.478, 0.309, 0.196, 0.125, 0.083,
                                               0.057, 0.041, 0.031, 0.024, 0.019, 0.015, 0.013, 0.011, 0.009, 0.008};
inline constexpr double caco_increasing_4[] = {3.281, 2.214, 1.490, 1.024, 0.701, 0.463, 0.295, 0.185, 0.118, 0.078,
                                               0.054, 0.039, 0.029, 0.023, 0.018, 0.015, 0.012, 0.010, 0.009, 0.008};
inline constexpr double fafo_0[] = {2.901, 1.310, 0.081, 0.009, 0.005, 0.003, 0.002, 0.002, 0.001, 0.001, 0.001};
inline constexpr double faco_0[] = {2.522, 1.030, 0.564, 0.376, 0.280, 0.222, 0.183, 0.156, 0.132,
                                    0.087, 0.033, 0.015, 0.009, 0.006, 0.005, 0.004, 0.003, 0.003,
                                    0.002, 0.002, 0.002, 0.002, 0.002, 0.001, 0.001};
}  // namespace published

inline constexpr PublishedSeries published_series[] = {
    {"CACO_faster", 0, published::caco_faster_0},
    {"CACO_faster", 1, published::caco_faster_1},
    {"CACO_faster", 2, published::caco_faster_2},
    {"CACO_faster", 3, published::caco_faster_3},
    {"CACO_faster", 4, published::caco_faster_4},
    {"CACO_increasing", 0, published::caco_increasing_0},
    {"CACO_increasing", 1, published::caco_increasing_1},
    {"CACO_increasing", 2, published::caco_increasing_2},
    {"CACO_increasing", 3, published::caco_increasing_3},
    {"CACO_increasing", 4, published::caco_increasing_4},
    {"FAFO", 0, published::fafo_0},
    {"FACO", 0, published::faco_0},
};

/// Percent of 6,400 fresh sequences by attention mass on distinct tokens, in five bins; all with a label probability of
/// 0.8 and more.
struct PublishedHeatMap {
  std::string_view experiment;
  std::array<double, 5> percent;
};
inline constexpr PublishedHeatMap published_heat_maps[] = {{"FAFO", {0.1, 64.1, 35.7, 0, 0}},
                                                           {"FACO", {0, 0, 0, 5.4, 94.6}},
                                                           {"CACO_faster", {0, 0, 2.3, 76.8, 20.8}},
                                                           {"CACO_increasing", {0, 0, 2.6, 86.9, 10.5}}};

/// Final losses with attention held at alpha.
struct PublishedFixedAttention {
  double alpha, collapsed, factorized;
};
inline constexpr PublishedFixedAttention published_fixed_attention[] = {{0.2, 0.598028, 0.00379236},
                                                                        {0.4, 0.158175, 0.00147888},
                                                                        {0.6, 0.0644721, 0.000892294},
                                                                        {0.8, 0.0345941, 0.000632846},
                                                                        {1.0, 0.0215521, 0.000486128}};

}  // namespace qkflow_program
