// Shapes, fragments and shared-memory layouts of the tensor-core instructions, each formula once: kernels, the emulator
// and tests include this header alike.
//
// Needs prelude.h in front; includes nothing. The formulas are those of the PTX manual: "Matrix Fragments for mma",
// "Register Fragments and Shared Memory Matrix Layouts" and "Matrix Descriptor Format" of wgmma.
#ifndef FW_KERNELS_DEVICE_SHAPES_H
#define FW_KERNELS_DEVICE_SHAPES_H

namespace fw {

// ---------------------------------------------------------------- instructions

enum OperandType : u32 { operand_f16, operand_bf16, operand_tf32 };

// A product of m x k by k x n.
struct Shape {
  u32 m, n, k;
};

FW_FN constexpr u32 operand_bytes(OperandType type) { return type == operand_tf32 ? 4 : 2; }
// Elements of an operand in one register.
FW_FN constexpr u32 operands_per_register(OperandType type) { return 4 / operand_bytes(type); }

// Both instructions read 32 bytes of each row along k.
FW_FN constexpr Shape mma_shape(OperandType type) { return {16, 8, 32 / operand_bytes(type)}; }
FW_FN constexpr Shape wgmma_shape(OperandType type, u32 n) { return {64, n, 32 / operand_bytes(type)}; }
FW_FN constexpr bool is_wgmma_width(u32 n) { return n >= 8 && n <= 256 && n % 8 == 0; }
// tf32 operands are read along k only.
FW_FN constexpr bool can_transpose(OperandType type) { return type != operand_tf32; }

// ---------------------------------------------------------------- fragments: who holds which element

struct Element {
  u32 row, column;
};

// Accumulator `i` of a thread. mma: 4 a lane. wgmma: n / 2 a thread; warp w of the warpgroup holds rows 16 w to 16 w +
// 15.
FW_FN constexpr Element accumulator_element(u32 thread, u32 i) {
  return {thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4, i / 4 * 8 + thread % 4 * 2 + i % 2};
}
constexpr u32 mma_accumulators = 4;
FW_FN constexpr u32 wgmma_accumulators(u32 n) { return n / 2; }

// Part `part` (the lowest bits first) of register `i` of the 4 that hold a thread's part of A. wgmma: thread of the
// warpgroup.
FW_FN constexpr Element a_element(OperandType type, u32 thread, u32 i, u32 part) {
  return {thread / 32 * 16 + i % 2 * 8 + thread % 32 / 4,
          i / 2 * (16 / operand_bytes(type)) + thread % 4 * operands_per_register(type) + part};
}
// The same for the 2 registers of B of mma; row is k.
FW_FN constexpr Element b_element(OperandType type, u32 lane, u32 i, u32 part) {
  return {i * (16 / operand_bytes(type)) + lane % 4 * operands_per_register(type) + part, lane / 4};
}
constexpr u32 a_registers = 4, b_registers = 2;

// Part `part` of the register that holds a lane's part of an 8 x 8 matrix of 16 bits (ldmatrix, stmatrix).
FW_FN constexpr Element matrix_element(u32 lane, u32 part, bool transposed) {
  return transposed ? Element{lane % 4 * 2 + part, lane / 4} : Element{lane / 4, lane % 4 * 2 + part};
}

// ---------------------------------------------------------------- swizzles of shared memory

// As a matrix descriptor encodes them.
enum Swizzle : u32 { swizzle_none = 0, swizzle_128 = 1, swizzle_64 = 2, swizzle_32 = 3 };

// Bytes of a row of the pattern. 8 rows are one pattern, and it begins at a multiple of its size.
FW_FN constexpr u32 swizzle_bytes(Swizzle swizzle) { return swizzle == swizzle_none ? 16 : 256 >> swizzle; }
FW_FN constexpr u32 pattern_bytes(Swizzle swizzle) { return 8 * swizzle_bytes(swizzle); }

// Where the byte of this address lies: units of 16 bytes are exchanged within a row by the number of the row.
FW_FN constexpr u32 swizzled(u32 address, Swizzle swizzle) {
  return address ^ ((address >> 7 & (swizzle_bytes(swizzle) / 16 - 1)) << 4);
}

// ---------------------------------------------------------------- matrix descriptors of wgmma

// The dimension along which the elements of an operand are contiguous: k, or rows of A and columns of B.
enum Major : u32 { k_major = 0, mn_major = 1 };

// `leading` and `stride` are distances in bytes. An operand is made of core matrices: 8 rows of 16 bytes.
//            swizzle      leading                               stride
//   k_major  none         from one 16 bytes of k to the next    from 8 rows (columns of B) to the next
//   k_major  32, 64, 128  not looked at                         the same
//   mn_major none         from 8 of k to the next               from one 16 bytes of rows to the next
//   mn_major 32, 64, 128  from one swizzled row to the next     from 8 of k to the next
struct Descriptor {
  u32 start, leading, stride;
  Swizzle swizzle;
};

constexpr u32 descriptor_address_mask = 0x3ffff;  // shared memory is addressed by 18 bits, in units of 16 bytes
constexpr u32 leading_shift = 16, stride_shift = 32, base_offset_shift = 49, swizzle_shift = 62;
constexpr u64 descriptor_field = descriptor_address_mask >> 4;
constexpr u64 descriptor_base_offset = u64(7) << base_offset_shift;
constexpr u64 descriptor_fields =
    descriptor_field | descriptor_field << leading_shift | descriptor_field << stride_shift | u64(3) << swizzle_shift;

FW_FN constexpr u64 encode(Descriptor d) {
  return u64((d.start & descriptor_address_mask) >> 4) |
         u64((d.leading & descriptor_address_mask) >> 4) << leading_shift |
         u64((d.stride & descriptor_address_mask) >> 4) << stride_shift | u64(d.swizzle) << swizzle_shift;
}
FW_FN constexpr Descriptor decode(u64 bits) {
  return {u32(bits & descriptor_field) << 4, u32(bits >> leading_shift & descriptor_field) << 4,
          u32(bits >> stride_shift & descriptor_field) << 4, Swizzle(bits >> swizzle_shift)};
}
// The same matrix, its start moved: along k within a swizzled row, or to another tile.
FW_FN constexpr u64 advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// The address of an element: `outer` is the row of A or the column of B.
FW_FN constexpr u32 operand_address(Descriptor d, Major major, OperandType type, u32 outer, u32 k) {
  const u32 bytes = operand_bytes(type), row = swizzle_bytes(d.swizzle);
  const u32 along = major == k_major ? k : outer, across = major == k_major ? outer : k;
  const u32 rows = across % 8 * row, core = along * bytes % row, cores = along * bytes / row;
  const u32 by_eight = across / 8;
  const u32 offset = d.swizzle == swizzle_none && major == mn_major ? cores * d.stride + by_eight * d.leading
                                                                    : cores * d.leading + by_eight * d.stride;
  return swizzled(d.start + offset + rows + core, d.swizzle);
}

// ---------------------------------------------------------------- the tables hold together

#ifndef __CUDACC_RTC__
namespace shapes_check {

// Each element of a tile is held once.
constexpr bool accumulators_cover(Shape shape, u32 threads) {
  bool held[64 * 256] = {};
  for (u32 thread = 0; thread < threads; ++thread)
    for (u32 i = 0; i < shape.m * shape.n / threads; ++i) {
      const Element e = accumulator_element(thread, i);
      if (e.row >= shape.m || e.column >= shape.n || held[e.row * shape.n + e.column]) return false;
      held[e.row * shape.n + e.column] = true;
    }
  return true;
}
constexpr bool operands_cover(OperandType type, bool is_a, Shape shape, u32 threads) {
  bool held[64 * 16] = {};
  const u32 rows = is_a ? shape.m : shape.k, columns = is_a ? shape.k : shape.n;
  const u32 registers = is_a ? a_registers : b_registers;
  for (u32 thread = 0; thread < threads; ++thread)
    for (u32 i = 0; i < registers; ++i)
      for (u32 part = 0; part < operands_per_register(type); ++part) {
        const Element e = is_a ? a_element(type, thread, i, part) : b_element(type, thread, i, part);
        if (e.row >= rows || e.column >= columns || held[e.row * columns + e.column]) return false;
        held[e.row * columns + e.column] = true;
      }
  return threads * registers * operands_per_register(type) == rows * columns;
}
static_assert(accumulators_cover(mma_shape(operand_f16), 32) && accumulators_cover(mma_shape(operand_tf32), 32));
static_assert(accumulators_cover(wgmma_shape(operand_f16, 8), 128) &&
              accumulators_cover(wgmma_shape(operand_bf16, 72), 128));
static_assert(operands_cover(operand_f16, true, mma_shape(operand_f16), 32) &&
              operands_cover(operand_f16, false, mma_shape(operand_f16), 32));
static_assert(operands_cover(operand_tf32, true, mma_shape(operand_tf32), 32) &&
              operands_cover(operand_tf32, false, mma_shape(operand_tf32), 32));
static_assert(operands_cover(operand_bf16, true, wgmma_shape(operand_bf16, 8), 128) &&
              operands_cover(operand_tf32, true, wgmma_shape(operand_tf32, 8), 128));

// A swizzle moves bytes within the rows of its pattern, and is its own inverse.
constexpr bool swizzles(Swizzle swizzle) {
  for (u32 address = 0; address < 2048; address += 16) {
    const u32 to = swizzled(address, swizzle);
    if (swizzled(to, swizzle) != address || to / swizzle_bytes(swizzle) != address / swizzle_bytes(swizzle))
      return false;
  }
  return true;
}
static_assert(swizzles(swizzle_none) && swizzles(swizzle_32) && swizzles(swizzle_64) && swizzles(swizzle_128));
static_assert(swizzle_bytes(swizzle_128) == 128 && swizzle_bytes(swizzle_64) == 64 && swizzle_bytes(swizzle_32) == 32);

constexpr bool round_trips(Descriptor d) {
  const Descriptor e = decode(encode(d));
  return e.start == d.start && e.leading == d.leading && e.stride == d.stride && e.swizzle == d.swizzle &&
         (encode(d) & ~descriptor_fields) == 0;
}
static_assert(round_trips({0x3fff0, 0x10, 0x400, swizzle_128}) && round_trips({0x10, 0x3fff0, 0x3fff0, swizzle_none}));
// The examples of the PTX manual: 64-bit fields of figures 166 to 170, in elements of 16 bytes.
static_assert(operand_address({0, 256, 128, swizzle_none}, k_major, operand_tf32, 9, 5) == 128 + 16 + 256 + 4);
static_assert(operand_address({0, 0, 256, swizzle_32}, k_major, operand_tf32, 8, 4) == 256 + 16);
static_assert(operand_address({0, 256, 128, swizzle_none}, mn_major, operand_bf16, 8, 8) == 128 + 256);
static_assert(operand_address({0, 256, 512, swizzle_32}, mn_major, operand_bf16, 16, 8) == 256 + 512);
static_assert(operand_address({0, 512, 1024, swizzle_64}, mn_major, operand_bf16, 32, 8) == 512 + 1024);

}  // namespace shapes_check
#endif

}  // namespace fw

#endif  // FW_KERNELS_DEVICE_SHAPES_H
