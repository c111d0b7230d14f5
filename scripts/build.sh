#!/usr/bin/env bash
# Builds the core, the extension (into python/fusewright) and the C++ tests in build/, or the targets named; only what changed.
#   BUILD_TYPE=Debug scripts/build.sh      MAX_JOBS limits the compilers at work
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$PWD/.venv/bin" # cmake and ninja from PyPI, where the system has none

type=${BUILD_TYPE:-Release}
python=$PWD/.venv/bin/python

# CMake keeps what it found. Whenever one of these changes it must look again, from the start.
torch=$("$python" -c 'import importlib.metadata as m; t = m.distribution("torch"); print(t.version, t.locate_file(""))')
key="$PWD $type $(readlink -f "$python") torch-$torch ${CXX:-} $(echo /usr/{,local/}include/gtest/gtest.h*)"
if [ "$(cat build/.configured 2>/dev/null)" != "$key" ] || [ ! -f build/build.ninja ]; then
  rm -rf build/CMakeCache.txt build/CMakeFiles build/.configured
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE="$type" -DPython_EXECUTABLE="$python"
  echo "$key" >build/.configured
fi
cmake --build build ${MAX_JOBS:+-j "$MAX_JOBS"} ${1:+--target "$@"}
