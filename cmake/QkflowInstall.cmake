include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/qkflow")
install(DIRECTORY include/qkflow DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.hpp")
install(TARGETS qkflow EXPORT qkflowTargets)
install(EXPORT qkflowTargets NAMESPACE qkflow:: DESTINATION "${config_dir}")
configure_package_config_file(cmake/qkflowConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/qkflowConfig.cmake"
                              INSTALL_DESTINATION "${config_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/qkflowConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/qkflowConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/qkflowConfigVersion.cmake"
        DESTINATION "${config_dir}")
