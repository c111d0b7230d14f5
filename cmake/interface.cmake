# Names the headers that the core and the part that includes torch share, by a hash of them all.
#
#   cmake -DOUTPUT=<dir>/interface.h -DROOT=<sources> -P interface.cmake
#
# The core defines a symbol of that name, and the part refers to it: a part that was compiled with other headers does not load.

cmake_minimum_required(VERSION 3.22)

file(GLOB_RECURSE headers LIST_DIRECTORIES false RELATIVE "${ROOT}" "${ROOT}/src/*.h" "${ROOT}/src/*.def" "${ROOT}/include/*.h")
list(SORT headers)
set(all "")
foreach(header IN LISTS headers)
  file(SHA256 "${ROOT}/${header}" hash)
  string(APPEND all "${header} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING "${hash}" 0 16 hash)
file(WRITE "${OUTPUT}" "// Written by cmake/interface.cmake; changes here are lost.\n#define FUSEWRIGHT_INTERFACE fusewright_interface_${hash}\n")
