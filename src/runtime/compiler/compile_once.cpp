#include "runtime/compiler/compile_once.h"

#include <cstdlib>
#include <span>

#include "base/log.h"
#include "runtime/cache/paths.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/compile_error.h"

namespace fusewright {

std::string KernelKey::hex() const {
  Sha256 hash;
  for (const std::string* part : {&source, &flags, &compiler, &machine, &salt, &version}) hash.update_field(*part);
  return hash.hex();
}

std::string keep_source(const std::string& source, const std::string& file_name) {
  const char* directory = std::getenv("FUSEWRIGHT_KEEP_SOURCES");
  if (directory == nullptr || *directory == '\0') return "";
  make_directories(directory);
  const std::string path = std::string(directory) + "/" + file_name;
  try {
    write_file(path, std::as_bytes(std::span(source)));
  } catch (const CompileError& error) {
    log(LogLevel::warning, std::string("FUSEWRIGHT_KEEP_SOURCES: ") + error.what());
    return "";
  }
  return path;
}

std::string where_source_is(const std::string& kept) {
  return kept.empty() ? "set FUSEWRIGHT_KEEP_SOURCES=<directory> to keep the source" : "the source is kept in " + kept;
}

}  // namespace fusewright
