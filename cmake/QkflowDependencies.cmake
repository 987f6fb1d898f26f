# What a user of the headers needs; the same list stands in the package config file.
find_package(Threads REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(Boost 1.74 REQUIRED CONFIG)
find_package(fmt REQUIRED CONFIG)
