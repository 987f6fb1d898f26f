// SPDX-FileCopyrightText: 2026 The qkflow authors
// SPDX-License-Identifier: MIT

// run_if_supported FEATURE... -- PROGRAM    runs PROGRAM where the processor has every FEATURE, else returns 77:
// skipped. Compiled for any x86-64, for a program built for AVX-512 may die before it can look.
#include <unistd.h>

#include <cstdio>
#include <string>

namespace {

bool supported(const std::string& feature) {
  __builtin_cpu_init();
  if (feature == "avx2") return __builtin_cpu_supports("avx2") != 0;
  if (feature == "fma") return __builtin_cpu_supports("fma") != 0;
  if (feature == "avx512f") return __builtin_cpu_supports("avx512f") != 0;
  if (feature == "avx512cd") return __builtin_cpu_supports("avx512cd") != 0;
  if (feature == "avx512dq") return __builtin_cpu_supports("avx512dq") != 0;
  if (feature == "avx512bw") return __builtin_cpu_supports("avx512bw") != 0;
  if (feature == "avx512vl") return __builtin_cpu_supports("avx512vl") != 0;
  std::fprintf(stderr, "run_if_supported: unknown feature %s\n", feature.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  int i = 1;
  for (; i < argc && std::string(argv[i]) != "--"; ++i) {
    if (!supported(argv[i])) {
      std::printf("skipped: this processor lacks %s\n", argv[i]);
      return 77;
    }
  }
  if (i + 1 >= argc) return 2;
  execv(argv[i + 1], argv + i + 1);
  std::perror(argv[i + 1]);
  return 2;
}
