# Where the torch of ${Python_EXECUTABLE} lives, asked of torch itself.
#
# torch's own TorchConfig.cmake looks for the CUDA toolkit whenever torch was built with CUDA. We need no CUDA to build, only
# headers and four libraries, so this module takes its place. It defines
#   TorchPaths_FOUND, TorchPaths_VERSION, TorchPaths_LIB_DIR and the target TorchPaths::torch.
# The headers bring torch's own copy of pybind11, the one whose casters torch/extension.h was written for.

if(NOT TARGET TorchPaths::torch)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
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
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TorchPaths
  REQUIRED_VARS TorchPaths_ROOT
  VERSION_VAR TorchPaths_VERSION
  REASON_FAILURE_MESSAGE
    "'${Python_EXECUTABLE}' cannot import torch.
   - building the Python package: install torch first, then `pip install --no-build-isolation .` (or `make setup`)
   - building the C++ library alone: -DFUSEWRIGHT_TORCH=OFF")

if(TorchPaths_FOUND AND NOT TARGET TorchPaths::torch)
  add_library(TorchPaths::torch INTERFACE IMPORTED)
  target_include_directories(
    TorchPaths::torch SYSTEM INTERFACE "${TorchPaths_ROOT}/include" "${TorchPaths_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(TorchPaths::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${TorchPaths_CXX11_ABI})
  foreach(library torch torch_cpu c10 torch_python)
    target_link_libraries(TorchPaths::torch INTERFACE "${TorchPaths_LIB_DIR}/lib${library}.so")
  endforeach()
endif()
