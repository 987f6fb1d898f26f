# What a user of the headers needs; the same list stands in the package config file.
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(Boost 1.74 REQUIRED CONFIG)
find_package(fmt REQUIRED CONFIG)
# Not required: without it the kernels work on one number at a time.
find_path(QKFLOW_XSIMD_INCLUDE_DIR xsimd/xsimd.hpp)
if(NOT QKFLOW_XSIMD_INCLUDE_DIR)
  message(STATUS "qkflow: xsimd (Debian: libxsimd-dev) not found; the kernels will be scalar and slow")
endif()
