// What Python asks of the core before torch's part is there: that part is kept in the cache (torch_part.py).
#include <chrono>
#include <cstddef>
#include <span>

#include "interface.h"
#include "runtime/cache/disk_cache.h"

using fusewright::CacheLock;
using fusewright::DiskCache;

extern "C" {

// The part that includes torch refers to it: one that was compiled with other headers does not load.
char FUSEWRIGHT_INTERFACE = 0;

const char* fusewright_version() { return FUSEWRIGHT_VERSION; }

// Hands the bytes of an entry to `take`; false where there is none.
bool fusewright_cache_get(const char* key, void (*take)(const void* bytes, size_t size)) {
  const auto found = DiskCache::instance().get(key);
  if (found) take(found->data(), found->size());
  return found.has_value();
}

void fusewright_cache_put(const char* key, const void* bytes, size_t size) {
  DiskCache::instance().put(key, std::span(static_cast<const std::byte*>(bytes), size));
}

// Waits for the process that makes this entry. What is returned must be given to fusewright_cache_unlock.
void* fusewright_cache_lock(const char* key, int seconds) {
  return new CacheLock(DiskCache::instance(), key, std::chrono::seconds(seconds));
}

void fusewright_cache_unlock(void* lock) { delete static_cast<CacheLock*>(lock); }
}
