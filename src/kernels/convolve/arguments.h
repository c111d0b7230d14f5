// The arguments of the kernels of a convolution, and the sizes that follow from them. Kernels, launcher and tests
// include this header alike.
//
// Needs prelude.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_ARGUMENTS_H
#define FW_KERNELS_CONVOLVE_ARGUMENTS_H

namespace fw {

// Images and lines are volumes of depth, or depth and height, 1.
constexpr u32 conv_axes = 3;
// Operands are staged by units: 8 channels of one position, 16 bytes.
constexpr u32 conv_unit = 8, conv_unit_bytes = 16;
constexpr u32 conv_rows = 16, conv_step_units = 2;  // of one mma: rows of its first operand, units along its depth
constexpr u32 conv_step_words = 4 * 32;             // of a packed fragment: 4 registers of each lane
constexpr u32 conv_most_phases = 8;                 // along an axis
constexpr u32 conv_no_unit = 0xffffffffu;

// Results that read their operand alike lie `result_step` apart along an axis and are a phase. A convolution has one
// phase. One that is spread (transposed, or the gradient of an input) has as many as its stride. Result j of a phase
// reads the positions j * step + first_offset + i * offset_step for each of its taps i.
struct ConvPhase {
  u32 count, taps;
  i32 first_tap, tap_step;
  i32 first_offset, offset_step;  // the step is positive
};

struct ConvAxis {
  ConvPhase phases[conv_most_phases];
  u32 phase_count;
  u32 step, result_step;
  u32 size;           // of the operand that is read
  i32 stride;         // of the operand in memory, in elements
  i32 result_stride;  // of the result
  i32 weight_stride;  // of a tap
  u32 tile, tiles;    // results of a tile; the most tiles of a phase
  u32 kernel;         // taps of all phases together
};

// A tensor of images: its axes are in ConvAxis.
struct ConvImages {
  void* data;
  i64 batch_stride;
  i32 channel_stride;
};

struct ConvWeight {
  const void* data;
  i64 row_stride, channel_stride;  // rows are channels of the result
  i64 group_stride;                // from a group's first row to the next group's
};

// y[n, row, position] = sum over channels and taps of w[row, channel, tap] x[n, channel, position at the tap] +
// bias[row]
struct ConvArgs {
  ConvImages x, y;
  ConvWeight w;
  const void* bias;  // of the result's type
  ConvAxis axes[conv_axes];
  u32 batches, batch_tile, batch_tiles;
  u32 groups, channels, rows;  // channels and rows of one group
  u32 planes, chunks;          // units of channels that are staged together, and how often
  u32 positions;               // staged for a tile, at most
  u32 units;                   // of a chunk, at most, rounded up to whole steps
  u32 row_tiles;               // of a group
  u32 row_blocks;              // of packed rows of a group (16, on Hopper 64), rounded up to whole tiles
  u32 tiles;                   // on Hopper: of all rows, groups, phases and images
  u32 lines;                   // on Hopper: the axis along which the 8 lines of an instruction lie; 3: images
  u32 stages;                  // on Hopper: of the ring
  u32 pairs;                   // two neighbours along the last axis may be written at once
  u32 vectors;                 // 4 neighbours along the channels may be read at once
  u32* packed;                 // the weight's fragments
  i32* exponents;              // by group and row: packed numbers are 2^exponent times theirs
  u32* wide;                   // by group and row: halves cannot carry it
};

FW_FN u32 conv_chunk_units(const ConvArgs& a, u32 taps) {
  const u32 units = taps * a.planes;
  return (units + conv_step_units - 1) / conv_step_units * conv_step_units;
}
// Steps of the most taps of a phase: what lies between the fragments of two blocks of rows.
FW_FN u64 conv_block_steps(const ConvArgs& a) { return u64(a.units / conv_step_units) * a.chunks; }

// ---------------------------------------------------------------- shapes of blocks

// A warp computes 16 * fragments rows by 8 * columns results; a block has row_warps * column_warps of them.
struct ConvShape {
  u32 fragments, columns, row_warps, column_warps;
};
FW_FN constexpr u32 conv_threads(ConvShape s) { return 32 * s.row_warps * s.column_warps; }
FW_FN constexpr u32 conv_tile_rows(ConvShape s) { return conv_rows * s.fragments * s.row_warps; }
FW_FN constexpr u32 conv_tile_columns(ConvShape s) { return 8 * s.columns * s.column_warps; }

constexpr ConvShape conv_shapes[] = {{1, 8, 1, 4}, {2, 8, 1, 4}, {4, 8, 1, 4},
                                     {4, 8, 2, 2}, {4, 4, 1, 4}, {2, 4, 2, 2}};
constexpr u32 conv_shape_count = sizeof(conv_shapes) / sizeof(conv_shapes[0]);

constexpr u32 conv_most_warps = 8;

// Where the parts of shared memory begin, in bytes.
struct ConvShared {
  u32 places, from, to, units, exchange, zero, stage, bytes;
};
FW_FN constexpr u32 conv_aligned(u32 bytes) { return (bytes + 15) / 16 * 16; }
FW_FN ConvShared conv_shared(const ConvArgs& a, u32 columns) {
  ConvShared s{};
  s.places = 0;
  s.from = s.places + conv_aligned(4 * a.positions);
  s.to = s.from + conv_aligned(4 * columns);
  s.units = s.to + conv_aligned(4 * columns);
  s.exchange = s.units + conv_aligned(4 * a.units);
  s.zero = s.exchange + 2 * 4 * conv_most_warps;
  s.stage = s.zero + conv_unit_bytes;
  s.bytes = s.stage + a.planes * a.positions * conv_unit_bytes;
  return s;
}

// ---------------------------------------------------------------- on Hopper

// Two consumer warpgroups have 64 rows each. They share the rows of a tile or its columns (results), of which each has
// `blocks` of 64: 8 lines of 8 neighbours along the last axis.
struct ConvHopperShape {
  u32 row_groups, blocks;
};
constexpr ConvHopperShape conv_hopper_shapes[] = {{1, 4}, {2, 4}, {1, 2}, {2, 2}};
constexpr u32 conv_hopper_shape_count = sizeof(conv_hopper_shapes) / sizeof(conv_hopper_shapes[0]);
constexpr u32 conv_hopper_rows = 64, conv_hopper_block = 64, conv_hopper_consumers = 2;
constexpr u32 conv_hopper_producers = 256, conv_hopper_threads = conv_hopper_producers + 128 * conv_hopper_consumers;
constexpr u32 conv_most_stages = 8;
// Of a step, for 64 rows: 8 groups of 8 rows for either unit.
constexpr u32 conv_hopper_step_bytes = conv_step_units * conv_hopper_rows * conv_unit_bytes;

FW_FN constexpr u32 conv_hopper_tile_rows(ConvHopperShape s) { return conv_hopper_rows * s.row_groups; }
FW_FN constexpr u32 conv_hopper_tile_columns(ConvHopperShape s) {
  return conv_hopper_block * s.blocks * (conv_hopper_consumers / s.row_groups);
}

// A producer's threads copy 8 floats of 4 bytes each to places of their own before they convert them.
FW_FN u32 conv_raw_bytes(const ConvArgs& a) {
  const u32 units = a.planes * a.positions, each = (units + conv_hopper_producers - 1) / conv_hopper_producers;
  return each * conv_hopper_producers * conv_unit * u32(sizeof(float));
}

constexpr u32 conv_producer_warps = conv_hopper_producers / 32;

struct ConvHopperShared {
  u32 full, empty, wide, exponents, exchange, places, consumer_places, to, columns, units, raw, ring;
  u32 stage_weights, stage_bytes, bytes;
};
// `raw`: the operand is f32.
FW_FN ConvHopperShared conv_hopper_shared(const ConvArgs& a, ConvHopperShape shape, bool raw) {
  ConvHopperShared s{};
  const u32 places = conv_aligned(4 * a.positions);
  s.full = 0;
  s.empty = s.full + 8 * conv_most_stages;
  s.wide = s.empty + 8 * conv_most_stages;
  s.exponents = s.wide + 4 * conv_producer_warps * conv_most_stages;
  s.exchange = s.exponents + 4 * conv_most_stages;
  s.places = s.exchange + 4 * conv_hopper_threads / 32;
  s.consumer_places = s.places + 2 * places;
  s.to = s.consumer_places + conv_hopper_consumers * places;
  s.columns = s.to + conv_hopper_consumers * 4 * conv_hopper_block * shape.blocks;
  s.units = s.columns + conv_hopper_consumers * 8 * conv_hopper_block * shape.blocks;
  s.raw = (s.units + conv_hopper_consumers * conv_aligned(4 * a.units) + 127) / 128 * 128;
  s.ring = s.raw + (raw ? 2 * conv_raw_bytes(a) : 0);
  s.stage_weights = shape.row_groups * a.units / conv_step_units * conv_hopper_step_bytes;
  s.stage_bytes = (s.stage_weights + a.planes * a.positions * conv_unit_bytes + 127) / 128 * 128;
  s.bytes = s.ring + a.stages * s.stage_bytes;
  return s;
}

// ---------------------------------------------------------------- packing of weights

constexpr u32 conv_pack_threads = 256, conv_scales_shared_bytes = 3 * 4 * conv_most_warps;
static_assert(conv_pack_threads / 32 <= conv_most_warps, "a word for each warp");

// ---------------------------------------------------------------- gradients of weights

// dw[row, channel, tap] = sum over images and positions of a[n, row, position] b[n, channel, position at the tap]
struct ConvWeightArgs {
  ConvImages a, b;
  void* dw;
  i64 row_stride, channel_stride, group_stride;  // of dw
  ConvAxis axes[conv_axes];                      // one phase; result_stride is a's
  u32 batches, batch_tile, batch_tiles;
  u32 groups, channels, rows;
  u32 positions;  // of b, staged for a tile, at most
  u32 planes;     // of b, staged for a block
  u32 points;     // positions of a in a tile, rounded up to 16
  u32 taps;
  u32 row_tiles, unit_tiles, splits;
  u32 a_vectors, b_vectors;
  float* partial;  // by split, group, row, unit and channel of the unit
};

// A warp computes 16 * fragments rows by `columns` units.
constexpr ConvShape conv_weight_shapes[] = {{1, 8, 1, 4}, {2, 8, 1, 4}, {4, 8, 1, 4}, {4, 6, 1, 4}};
constexpr u32 conv_weight_shape_count = sizeof(conv_weight_shapes) / sizeof(conv_weight_shapes[0]);

FW_FN constexpr u32 conv_weight_units(ConvShape s) { return s.columns * s.column_warps; }

struct ConvWeightShared {
  u32 a_places, b_places, from, units, exchange, zero, a_stage, b_stage, bytes;
};
FW_FN ConvWeightShared conv_weight_shared(const ConvWeightArgs& a, ConvShape shape) {
  ConvWeightShared s{};
  s.a_places = 0;
  s.b_places = s.a_places + conv_aligned(4 * a.points);
  s.from = s.b_places + conv_aligned(4 * a.positions);
  s.units = s.from + conv_aligned(4 * a.points);
  s.exchange = s.units + conv_aligned(4 * conv_weight_units(shape));
  s.zero = s.exchange + 4 * 4 * conv_most_warps;
  s.a_stage = s.zero + conv_unit_bytes;
  s.b_stage = s.a_stage + conv_tile_rows(shape) / conv_unit * a.points * conv_unit_bytes;
  s.bytes = s.b_stage + a.planes * a.positions * conv_unit_bytes;
  return s;
}

constexpr u32 conv_sum_threads = 256;

}  // namespace fw

#endif  // FW_KERNELS_CONVOLVE_ARGUMENTS_H
