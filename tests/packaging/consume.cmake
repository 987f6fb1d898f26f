# Builds and runs the consumer project: HOW=installed against an installation in a fresh prefix, HOW=subdirectory against
# the sources.
file(REMOVE_RECURSE "${WORK}")
set(ENV{CXXFLAGS} "")  # the flags looked at below must be qkflow's, not this machine's
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

if(HOW STREQUAL "installed")
  run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
  set(where "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DEXPECTED_VERSION=${VERSION}")
else()
  set(where "-DQKFLOW_SOURCE=${SOURCE}")
endif()
run("${CMAKE_COMMAND}" -S "${SOURCE}/tests/packaging/consumer" -B "${WORK}/build" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" -DCMAKE_BUILD_TYPE=Debug
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON ${where})
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")

# What reached the consumer's own compiler line: no warning flag, no instruction set, no optimization of ours.
file(READ "${WORK}/build/compile_commands.json" commands)
if(commands MATCHES " (-W[a-z][^ ]*|-m[a-z][^ ]*|-O[0-9s]|-f[a-z][^ ]*)")
  message(FATAL_ERROR "qkflow's interface hands its users the flag ${CMAKE_MATCH_1}:\n${commands}")
endif()
