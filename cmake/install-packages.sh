#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The qkflow authors
# SPDX-License-Identifier: MIT
#
# cmake/install-packages.sh GROUP...    GROUP: build, figures, lint, benchmarks, peers
#
# Installs what a group needs and this machine lacks, with apt-get alone. Where there is no apt-get, or no right to use
# it, it names what is missing and returns: the build then says for itself what it cannot find.
set -u

# Names the Debian packages of a group.
packages_of() {
  case $1 in
    build) echo g++ cmake ninja-build libeigen3-dev libboost-dev libfmt-dev libcli11-dev catch2 libxsimd-dev ;;
    figures) echo gnuplot-nox ;;
    lint) echo clang clang-tidy clang-format ;;
    benchmarks) echo libbenchmark-dev ;;
    peers) echo python3-numpy python3-torch ;;
    *) echo "install-packages.sh: no group is called '$1'" >&2; exit 2 ;;
  esac
}

# A package counts as there when what it brings is there, whoever installed it.
is_there() {
  case $1 in
    g++ | cmake | clang-tidy | clang-format) command -v "$1" >/dev/null && return ;;
    ninja-build) command -v ninja >/dev/null && return ;;
    gnuplot-nox) command -v gnuplot >/dev/null && return ;;
    clang) command -v clang++ >/dev/null && return ;;
    libeigen3-dev) has_header eigen3/Eigen/Core && return ;;
    libboost-dev) has_header boost/version.hpp && return ;;
    libfmt-dev) has_header fmt/core.h && return ;;
    libcli11-dev) has_header CLI/CLI.hpp && return ;;
    libxsimd-dev) has_header xsimd/xsimd.hpp && return ;;
    catch2) { has_header catch2/catch.hpp || has_header catch2/catch_all.hpp; } && return ;;
    libbenchmark-dev) has_header benchmark/benchmark.h && return ;;
    python3-numpy) /usr/bin/python3 -c 'import numpy' 2>/dev/null && return ;;
    python3-torch) /usr/bin/python3 -c 'import torch' 2>/dev/null && return ;;
  esac
  return 1
}

has_header() {
  local folder
  IFS=: read -r -a folders <<<"${CMAKE_PREFIX_PATH:-}:/usr:/usr/local"
  for folder in "${folders[@]}"; do
    [ -n "$folder" ] && [ -e "$folder/include/$1" ] && return 0
  done
  return 1
}

list_missing() {
  local package
  for package in "$@"; do
    is_there "$package" || echo "$package"
  done
}

wanted=()
for group in "$@"; do
  names=$(packages_of "$group") || exit 2
  read -r -a more <<<"$names"
  wanted+=("${more[@]}")
done
mapfile -t missing < <(list_missing "${wanted[@]}")
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # Ask for a password only where somebody is there to type it.
  if ! command -v sudo >/dev/null; then as_root=(false)
  elif [ -t 0 ]; then as_root=(sudo)
  else as_root=(sudo -n); fi
fi
if command -v apt-get >/dev/null; then
  echo "Installing with apt-get: ${missing[*]}" >&2
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
  # An update that reaches only some of its sources is no reason to stop: the install has the last word.
  { "${apt[@]}" update; "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } </dev/null >&2
  mapfile -t missing < <(list_missing "${missing[@]}")
fi
if [ ${#missing[@]} -ne 0 ]; then
  echo "Still missing; please install (Debian and Ubuntu names): ${missing[*]}" >&2
fi
exit 0
