// The arguments of the kernels of a float32 matrix product, and the sizes that follow from them. Kernels, launcher and
// tests include this header alike.
//
// Needs prelude.h in front; includes nothing.
#ifndef FW_KERNELS_CONTRACT_ARGUMENTS_H
#define FW_KERNELS_CONTRACT_ARGUMENTS_H

namespace fw {

// ---------------------------------------------------------------- packed operands (packed.h)

constexpr u32 packed_rows = 128, packed_depth = 32, packed_line = 128;
constexpr u32 packed_bytes = packed_rows * packed_line;

struct Packed {
  char* blocks;
  char* sample;    // blocks of some of the numbers once more, with |hi| for hi and zero for lo
  i32* exponents;  // by row, padded to whole blocks: a number is its packed one times 2^(exponent - 15)
  float* loss;     // by row: no packed number misses more than this, beside its own last bits; NaN: not finite
  float* mass;     // by row: the sum of the magnitudes of its scaled numbers
  u32* largest;    // by row: where along the depth its largest number is
};

struct GivenOperand {
  const float* data;
  i64 row_stride, depth_stride, batch_stride;
  u32 rows, depth, batches;
};

// Neighbours along the depth that are sampled together: those in 16 bytes.
constexpr u32 sample_unit = 8;

// The shape of a packed operand. The sample has one unit of each 2^sample_shift along the depth.
struct PackedShape {
  u32 row_blocks, depth_blocks, sample_blocks, sample_shift;
};

FW_FN u32 sampled_units(const PackedShape& s) {
  const u32 units = s.depth_blocks * (packed_depth / sample_unit);
  return (units + (1u << s.sample_shift) - 1) >> s.sample_shift;
}

// Which of the units that the n-th sampled one stands for is taken. The places are spread: data may have a period.
FW_FN u32 sampled_unit(const PackedShape& s, u32 n) {
  const u32 first = n << s.sample_shift, left = s.depth_blocks * (packed_depth / sample_unit) - first;
  const u32 count = left < (1u << s.sample_shift) ? left : 1u << s.sample_shift;
  return first + (((n * 0x9e3779b1u >> 16) * count) >> 16);
}

// ---------------------------------------------------------------- the kernel that packs (pack.h)

constexpr u32 pack_threads = 256;
constexpr u32 strip_rows = 32, strip_lanes = strip_rows / 4, strip_teams = pack_threads / strip_lanes;
constexpr u32 pack_shared_bytes = strip_teams * strip_rows * 4;

enum PackedBy : u32 { packed_by_warps, packed_by_blocks, packed_by_strips };

struct PackOperand {
  GivenOperand from;
  Packed to;
  PackedShape shape;
  PackedBy by;
  bool vectors;  // 4 neighbours may be read at once
};

// Rows that a block of threads packs.
FW_FN u32 rows_packed_by_a_block(PackedBy by) {
  return by == packed_by_warps ? pack_threads / 32 : by == packed_by_blocks ? 1 : strip_rows;
}

struct PackArgs {
  PackOperand a, b;
  u32 blocks_of_a;
  u32* flags;  // cleared for the kernels that follow
  u32 flag_count;
};

// ---------------------------------------------------------------- the kernels that multiply (three_products.h)

constexpr u32 tile_rows = packed_rows, tile_halves = 2, tile_columns = tile_halves * packed_rows;
constexpr u32 product_stages = 4, stages_together = 2;
constexpr u32 stage_bytes = (1 + tile_halves) * packed_bytes;
constexpr u32 product_threads = 3 * 128, consumers = 2;
constexpr u32 product_shared_bytes = product_stages * stage_bytes + 1024 + 2 * product_stages * 8;  // and alignment

// Which tiles a launch makes, of which part of the depth.
struct ProductShape {
  u32 a_blocks, b_blocks;  // of 128 rows, in a batch
  u32 depth_blocks;        // of packed_depth, an even number
  u32 batches;             // a batch of 0 for all where an operand has one alone:
  bool a_batched, b_batched;
  u32 splits;         // parts of the depth, each summed for itself
  u32 rows_together;  // row tiles next to each other, for the L2 cache
};

FW_FN u32 row_tiles(const ProductShape& s) { return s.a_blocks; }
FW_FN u32 column_tiles(const ProductShape& s) { return (s.b_blocks + tile_halves - 1) / tile_halves; }
FW_FN u32 tile_count(const ProductShape& s) { return row_tiles(s) * column_tiles(s) * s.batches * s.splits; }

// ---------------------------------------------------------------- the kernel that finishes (product.h)

constexpr u32 finish_threads = 256, exact_depth = 16, exact_pitch = packed_rows + 4, exact_side = 8;
constexpr u32 finish_shared_bytes = 2 * exact_depth * exact_pitch * 4;

// Blocks of threads for each block of 128 x 128.
FW_FN u32 finish_parts(const ProductShape& s) {
  return s.splits > 1 ? packed_rows * packed_rows / (finish_threads * 4) : 1;
}

struct ProductArgs {
  ProductShape shape;
  Packed a, b;
  GivenOperand given_a, given_b;
  float* result;
  i64 row_stride, column_stride, batch_stride;  // of the result
  const float* bias;                            // one number a column, or null
  float* partial;                               // where the depth is split: 128 x 256 sums for each tile of `multiply`
  u32* flags;                                   // one for each block of 128 x 128: it is computed once more
  u32 sample_blocks;
};

}  // namespace fw

#endif  // FW_KERNELS_CONTRACT_ARGUMENTS_H
