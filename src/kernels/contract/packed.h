// Operands of a float32 matrix product as pairs of halves, laid out for tensor cores.
//
// An operand has rows and a depth, along which the product is summed. Each row is scaled by a power of two that brings
// its largest number into [2^14, 2^15). A scaled number s becomes hi + lo: hi is the nearest half to s, lo the nearest
// half to s - hi. The product of two such numbers is hi hi + hi lo + lo hi, to about 22 bits.
//
// The buffer is made of blocks of 128 rows and 32 of the depth. A row of a block has 128 bytes: 32 hi, then 32 lo, with
// units of 16 bytes exchanged as swizzle_128 says, so that a block is copied to shared memory as it lies. Blocks along
// the depth follow each other, then come the next 128 rows, then the next batch. What lies beyond the operand is zero.
//
// Needs prelude.h, cuda_device.h, the headers of kernels/device and arguments.h in front; includes nothing.
#ifndef FW_KERNELS_CONTRACT_PACKED_H
#define FW_KERNELS_CONTRACT_PACKED_H

namespace fw {

// A scaled number below this loses bits that a float32 has: lo is a subnormal half then.
constexpr float packed_exactly = 0.125f;

// The exponent of a number's bits without sign, so that 2^(15 - exponent) scales it into [2^14, 2^15). Powers beyond
// the range of float32 are cut off: rows of subnormals lose nothing that float32 products keep.
FW_FN i32 exponent_of_row(u32 largest) {
  const i32 biased = i32(largest >> 23);
  return (biased < 14 ? 14 : biased > 254 ? 254 : biased) - 126;
}
FW_FN float power_of_two(i32 exponent) { return float_of(u32(exponent + 127) << 23); }  // from -126 to 127

// A packed number's bytes within its block: those of hi. lo lies 64 bytes further before units are exchanged.
FW_FN u32 packed_offset(u32 row, u32 depth, bool low) {
  return swizzled(row * packed_line + (low ? packed_line / 2 : 0) + depth * 2, swizzle_128);
}

}  // namespace fw

#endif  // FW_KERNELS_CONTRACT_PACKED_H
