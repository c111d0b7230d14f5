#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fusewright {

// SHA-256 (FIPS 180-4), so that the cache needs no cryptographic library.
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text);
  // Appends the length before the text, so that ("ab", "c") and ("a", "bc") hash differently.
  Sha256& update_field(std::string_view text);

  // Each may be called once; the object is used up.
  Digest digest();
  std::string hex();

 private:
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> buffer_{};
  uint64_t length_ = 0;  // bytes so far
};

Sha256::Digest sha256(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

}  // namespace fusewright
