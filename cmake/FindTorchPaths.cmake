# Where the torch of ${Python_EXECUTABLE} lives, asked of torch itself.
#
# torch's own TorchConfig.cmake looks for the CUDA toolkit whenever torch was built with CUDA. We need no CUDA to build, only
# headers and four libraries, so this module takes its place. It defines
#   TorchPaths_FOUND, TorchPaths_VERSION, TorchPaths_LIB_DIR and the target TorchPaths::torch.
# The headers bring torch's own copy of pybind11, the one whose casters torch/extension.h was written for.
# A version outside of the range is an error, whether or not torch is required.
#
# An isolated build of pip hides the packages of its interpreter by PYTHONPATH: without that it shows the torch that the
# package will be installed beside.

set(failure "'${Python_EXECUTABLE}' cannot import torch: install torch, then `pip install --no-build-isolation .` (the C++ library alone: -DFUSEWRIGHT_TORCH=OFF)")
if(NOT TARGET TorchPaths::torch)
  foreach(environment "" "--unset=PYTHONPATH;--unset=PYTHONNOUSERSITE")
    execute_process(
      COMMAND "${CMAKE_COMMAND}" -E env ${environment} "${Python_EXECUTABLE}" -c
              "import os, torch; print(torch.__version__, os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI), sep='|')"
      OUTPUT_VARIABLE answer
      ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE
      RESULT_VARIABLE status)
    if(status EQUAL 0 AND answer MATCHES "([^|\n]+)\\|([^|\n]+)\\|([01])$")
      set(TorchPaths_VERSION "${CMAKE_MATCH_1}")
      set(TorchPaths_ROOT "${CMAKE_MATCH_2}")
      set(TorchPaths_CXX11_ABI "${CMAKE_MATCH_3}")
      set(TorchPaths_LIB_DIR "${TorchPaths_ROOT}/lib")
      break()
    endif()
  endforeach()
endif()

# One line, and not the several of find_package_handle_standard_args. `2.13.0+cpu` is 2.13.0.
string(REGEX MATCH "^[0-9.]+" number "${TorchPaths_VERSION}")
set(TorchPaths_FOUND FALSE)
if(number)
  if(number VERSION_LESS TorchPaths_FIND_VERSION_MIN
     OR (TorchPaths_FIND_VERSION_RANGE_MAX STREQUAL EXCLUDE AND number VERSION_GREATER_EQUAL TorchPaths_FIND_VERSION_MAX))
    set(failure "torch ${TorchPaths_VERSION} is not supported: install torch>=${TorchPaths_FIND_VERSION_MIN},<${TorchPaths_FIND_VERSION_MAX} first")
  else()
    set(TorchPaths_FOUND TRUE)
    message(STATUS "Found torch ${TorchPaths_VERSION} in ${TorchPaths_ROOT}")
  endif()
endif()
if(NOT TorchPaths_FOUND)
  if(number OR TorchPaths_FIND_REQUIRED)
    message(FATAL_ERROR " fusewright: ${failure}") # the space keeps it in one line
  endif()
  message(STATUS "No torch is in sight: the package builds the part for it when it is first used")
endif()

if(TorchPaths_FOUND AND NOT TARGET TorchPaths::torch)
  add_library(TorchPaths::torch INTERFACE IMPORTED)
  target_include_directories(
    TorchPaths::torch SYSTEM INTERFACE "${TorchPaths_ROOT}/include" "${TorchPaths_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(TorchPaths::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${TorchPaths_CXX11_ABI})
  foreach(library torch torch_cpu c10 torch_python)
    target_link_libraries(TorchPaths::torch INTERFACE "${TorchPaths_LIB_DIR}/lib${library}.so")
  endforeach()
endif()
