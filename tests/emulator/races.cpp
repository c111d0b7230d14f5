#include "emulator/races.h"

#include "emulator/block.h"
#include "emulator/module.h"

namespace fwemu {

void Races::begin_block(size_t shared_bytes, unsigned warps) {
  ++epoch_;  // what the last block left is old
  warp_rounds_.assign(warps, 0);
  if (bytes_.size() < shared_bytes) bytes_.resize(shared_bytes);
}

bool Races::unordered(const Access& earlier, unsigned thread) const {
  if (earlier.epoch != epoch_ || earlier.thread == thread) return false;
  return earlier.thread / 32 != thread / 32 || earlier.rounds == warp_rounds_[thread / 32];
}

const Races::Access* Races::note(size_t offset, size_t bytes, bool write, unsigned thread, const void* code, int line) {
  const Access now = {epoch_, warp_rounds_[thread / 32], thread, code, line};
  for (size_t i = offset; i < offset + bytes; ++i) {
    Byte& byte = bytes_[i];
    if (unordered(byte.write, thread)) return &byte.write;
    if (!write) {
      const bool fresh = byte.reads[0].epoch == epoch_ && byte.reads[0].thread != thread;
      byte.reads[fresh ? 1 : 0] = now;
      continue;
    }
    for (const Access& read : byte.reads) {
      if (unordered(read, thread)) return &read;
    }
    byte.write = now;
  }
  return nullptr;
}

// An access by the running thread, or (a load of matrices) by another one of its warp.
void Block::note_access(const void* p, unsigned bytes, bool write, const void* code, int line, unsigned thread) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(p) - shared_.data());
  // Threads that hand over by an mbarrier are ordered by it, which is not followed here.
  if (offset >= shared_.size() || offset + bytes > shared_.size() || !mbarriers_.empty()) return;
  const Races::Access* found = races_.note(offset, bytes, write, thread, code, line);
  if (found == nullptr) return;
  const Races::Access earlier = *found;
  const Image& image = *launch_->request.image;
  const auto line_at = [&](const void* c, int l) {
    return c != nullptr ? line_of(image, static_cast<const char*>(c) - 1) : l;
  };
  fail(std::string(write ? "writes" : "reads") + " byte " + std::to_string(offset) +
           " of shared memory with no barrier between it and thread " + std::to_string(earlier.thread) + " at " +
           launch_->quote(line_at(earlier.code, earlier.line)),
       line_at(code, line));
}

}  // namespace fwemu
