#include "runtime/cache/sha256.h"

#include <algorithm>
#include <bit>

namespace fusewright {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const std::byte* p) {
  return std::to_integer<uint32_t>(p[0]) << 24 | std::to_integer<uint32_t>(p[1]) << 16 |
         std::to_integer<uint32_t>(p[2]) << 8 | std::to_integer<uint32_t>(p[3]);
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t next[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += next[i];
}

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  size_t used = length_ % buffer_.size();
  length_ += bytes.size();
  if (used != 0) {
    const size_t take = std::min(bytes.size(), buffer_.size() - used);
    std::copy_n(bytes.begin(), take, buffer_.begin() + used);
    bytes = bytes.subspan(take);
    used += take;
    if (used < buffer_.size()) return *this;
    compress(buffer_.data());
  }
  for (; bytes.size() >= buffer_.size(); bytes = bytes.subspan(buffer_.size())) compress(bytes.data());
  std::copy(bytes.begin(), bytes.end(), buffer_.begin());
  return *this;
}

Sha256& Sha256::update(std::string_view text) { return update(std::as_bytes(std::span(text))); }

Sha256& Sha256::update_field(std::string_view text) {
  return update(std::to_string(text.size())).update(":").update(text);
}

Sha256::Digest Sha256::digest() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  // A one bit, then zeros up to 8 bytes short of a full block, then the length in bits.
  const size_t used = length_ % 64;
  const size_t zeros_end = used < 56 ? 56 - used : 120 - used;
  for (int i = 0; i < 8; ++i) padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(padding).first(zeros_end + 8));
  Digest digest;
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string Sha256::hex() {
  std::string text;
  for (std::byte b : digest()) {
    text += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return text;
}

Sha256::Digest sha256(std::span<const std::byte> bytes) { return Sha256().update(bytes).digest(); }

std::string sha256_hex(std::string_view text) { return Sha256().update(text).hex(); }

}  // namespace fusewright
