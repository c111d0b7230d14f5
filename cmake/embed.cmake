# Writes the text of the kernel headers into C++ source, so that the library carries them to the run-time compiler.
#
#   cmake -DOUTPUT=<dir>/embedded_kernels -DINPUTS="a.h|b.cuh" -P embed.cmake
#
# gives <dir>/embedded_kernels.h and .cpp: `embedded_<stem>` for each file.

cmake_minimum_required(VERSION 3.22)

# A C++ compiler need not take a string literal of more than 64 KiB: cut the text into pieces, at line ends.
set(piece 8000)

function(as_raw_strings text result)
  set(out "")
  string(LENGTH "${text}" left)
  while(left GREATER ${piece})
    string(SUBSTRING "${text}" 0 ${piece} head)
    string(FIND "${head}" "\n" cut REVERSE)
    if(cut EQUAL -1)
      message(FATAL_ERROR "embed.cmake: a line of ${file} is longer than ${piece} characters")
    endif()
    math(EXPR cut "${cut} + 1")
    string(SUBSTRING "${text}" 0 ${cut} head)
    string(SUBSTRING "${text}" ${cut} -1 text)
    string(APPEND out "    R\"FW_TEXT(${head})FW_TEXT\"\n")
    string(LENGTH "${text}" left)
  endwhile()
  string(APPEND out "    R\"FW_TEXT(${text})FW_TEXT\"")
  set(${result} "${out}" PARENT_SCOPE)
endfunction()

# A file's text, with that of the headers beside it where it includes them: pasted text has no place to include from.
function(read_whole file result)
  file(READ "${file}" text)
  get_filename_component(folder "${file}" DIRECTORY)
  string(REGEX MATCHALL "#include \"[a-z_]+\\.h\"" includes "${text}")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE ".*\"(.*)\"" "\\1" part "${include}")
    if(EXISTS "${folder}/${part}")
      read_whole("${folder}/${part}" part)
      string(REPLACE "${include}\n" "${part}" text "${text}")
    endif()
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# Leaves the file alone when nothing changed: what includes the header is then not compiled again.
function(write_if_different path text)
  set(old "")
  if(EXISTS "${path}")
    file(READ "${path}" old)
  endif()
  if(NOT old STREQUAL text)
    file(WRITE "${path}" "${text}")
  endif()
endfunction()

string(REPLACE "|" ";" INPUTS "${INPUTS}")
set(stems "")
set(declarations "")
set(definitions "")
foreach(file IN LISTS INPUTS)
  get_filename_component(name "${file}" NAME)
  get_filename_component(stem "${file}" NAME_WE)
  if(stem IN_LIST stems)
    message(FATAL_ERROR "embed.cmake: two headers are called '${stem}'")
  endif()
  list(APPEND stems "${stem}")
  read_whole("${file}" text)
  as_raw_strings("${text}" literal)
  string(APPEND declarations "extern const char* const embedded_${stem};\n")
  string(APPEND definitions "const char* const embedded_${stem} =\n${literal};\n\n")
endforeach()

set(note "// Written by cmake/embed.cmake; changes here are lost.\n")
write_if_different("${OUTPUT}.h" "${note}#pragma once

namespace fusewright {

${declarations}
}  // namespace fusewright
")
get_filename_component(header "${OUTPUT}.h" NAME)
write_if_different("${OUTPUT}.cpp" "${note}#include \"${header}\"

namespace fusewright {

${definitions}}  // namespace fusewright
")
