// A float32 matrix product of tensor cores in four launches, whatever the operands' layouts, sizes and values are:
//
//   pack      both operands become pairs of halves (pack.h)
//   check     a part of the product of magnitudes shows where the pairs lose too much, or what is not finite
//   multiply  three products of halves (three_products.h)
//   finish    adds up parts of the depth, and computes what was found by `check` once more in float32
//
// One text of all, pasted behind cuda_device.h and kernels/device/hopper.h.
#include "arguments.h"

#include "packed.h"

#include "pack.h"

#include "three_products.h"

#ifndef FW_KERNELS_CONTRACT_PRODUCT_H
#define FW_KERNELS_CONTRACT_PRODUCT_H

#if FW_SM90
namespace fw {

// ---------------------------------------------------------------- check

// The part of a sum that may be lost, of the sum of its terms' magnitudes: a few last bits of a float32. A bound of
// what is lost; what is lost in fact is smaller by about the root of the number of terms.
constexpr float lost_at_most = 0x1p-21f;

FW_FN u32 flag_of(const ProductShape& s, const Tile& t, u32 h) {
  return (t.batch * s.a_blocks + t.row) * s.b_blocks + t.column + h;
}

// A block of rows among those of all batches.
FW_FN u64 known_block(bool batched, u32 blocks, u32 batch, u32 block) {
  return u64(batched ? batch : 0) * blocks + block;
}
// An operand's numbers of a row or column: padded as blocks are.
FW_FN u64 known_row(bool batched, u32 blocks, u32 batch, u32 block, u32 row) {
  return known_block(batched, blocks, batch, block) * packed_rows + row;
}

FW_FN float packed_size(const Packed& p, u64 row_block, u32 depth_blocks, u32 row, u32 depth) {
  const char* const block = p.blocks + (row_block * depth_blocks + depth / packed_depth) * packed_bytes;
  return fabsf(to_float(*reinterpret_cast<const half*>(block + packed_offset(row, depth % packed_depth, false))));
}

// The larger of two terms' magnitudes in the sum of an element: those of its row's and its column's largest number.
// They make up most of some sums that the sample misses: those of a row with a single one.
FW_FN float largest_term(const ProductArgs& args, u64 row_block, u64 column_block, Element e) {
  const auto term = [&](u32 depth) {
    return packed_size(args.a, row_block, args.shape.depth_blocks, e.row, depth) *
           packed_size(args.b, column_block, args.shape.depth_blocks, e.column, depth);
  };
  const float of_row = term(args.a.largest[row_block * packed_rows + e.row]);
  const float of_column = term(args.b.largest[column_block * packed_rows + e.column]);
  return of_row > of_column ? of_row : of_column;
}

FW_FN void check(const ProductArgs& args) {
  follow_last_launch();
  ProductShape sample = args.shape;
  sample.depth_blocks = args.sample_blocks;
  sample.splits = 1;
  const ProductShape& s = sample;
  make_tiles<1>(s, args.a.sample, args.b.sample, [&](const Tile& t, const float(&total)[tile_halves][sums_of_a_half]) {
#pragma unroll
    for (u32 h = 0; h < tile_halves; ++h) {
      if (h >= t.halves) continue;
      const u64 row_block = known_block(s.a_batched, s.a_blocks, t.batch, t.row);
      const u64 column_block = known_block(s.b_batched, s.b_blocks, t.batch, t.column + h);
      const auto lost_at = [&](Element e) {
        const u64 row = row_block * packed_rows + e.row, column = column_block * packed_rows + e.column;
        return args.a.loss[row] * args.b.mass[column] + args.b.loss[column] * args.a.mass[row];
      };
      u64 doubtful = 0;  // sums beside which the sample is too small
#pragma unroll
      for (u32 i = 0; i < sums_of_a_half; ++i)
        if (!(lost_at(place_of_sum(i)) <= lost_at_most * total[h][i])) doubtful |= u64(1) << i;
      bool bad = false;
#pragma unroll 1
      for (u32 i = 0; doubtful != 0 && !bad; ++i, doubtful >>= 1) {
        const Element e = place_of_sum(i);
        bad = doubtful % 2 != 0 && !(lost_at(e) <= lost_at_most * largest_term(args, row_block, column_block, e));
      }
      if (ballot(bad) != 0 && lane_index() == 0) atomicExch(args.flags + flag_of(s, t, h), 1u);
    }
  });
}

// ---------------------------------------------------------------- multiply

// Takes back what rows and columns were scaled by.
FW_FN float unscaled(float sum, i32 row_exponent, i32 column_exponent) {
  const i32 power = row_exponent + column_exponent - 30, first = power >> 1;
  const auto cut = [](i32 n) { return n < -126 ? -126 : n; };
  return sum * power_of_two(cut(first)) * power_of_two(cut(power - first));
}

FW_FN void store_result(const ProductArgs& args, u32 batch, u32 row, u32 column, float sum) {
  if (args.bias != nullptr) sum += args.bias[column];
  args.result[batch * args.batch_stride + row * args.row_stride + column * args.column_stride] = sum;
}

FW_FN u64 partial_place(const ProductShape& s, u32 split, u32 batch, u32 row_block, u32 column_block) {
  return (((u64(batch) * s.splits + split) * s.a_blocks + row_block) * s.b_blocks + column_block) * packed_rows *
         packed_rows;
}

FW_FN void multiply(const ProductArgs& args) {
  follow_last_launch();
  const ProductShape& s = args.shape;
  const bool pairs = args.column_stride == 1 && args.row_stride % 2 == 0 && args.batch_stride % 2 == 0 &&
                     reinterpret_cast<u64>(args.result) % 8 == 0 && args.given_b.rows % 2 == 0;
  make_tiles<3>(s, args.a.blocks, args.b.blocks, [&](const Tile& t, const float(&total)[tile_halves][sums_of_a_half]) {
#pragma unroll
    for (u32 h = 0; h < tile_halves; ++h) {
      if (h >= t.halves) continue;
      if (s.splits > 1) {
        float* const to = args.partial + partial_place(s, t.split, t.batch, t.row, t.column + h);
#pragma unroll
        for (u32 i = 0; i < sums_of_a_half; i += 2) {
          const Element e = place_of_sum(i);
          const float pair[2] = {total[h][i], total[h][i + 1]};
          store_vector<2>(to + e.row * packed_rows + e.column, pair);
        }
        continue;
      }
#pragma unroll
      for (u32 i = 0; i < sums_of_a_half; i += 2) {
        const Element e = place_of_sum(i);
        const u32 row = t.row * packed_rows + e.row, column = (t.column + h) * packed_rows + e.column;
        if (row >= args.given_a.rows || column >= args.given_b.rows) continue;
        const i32 of_row = args.a.exponents[known_row(s.a_batched, s.a_blocks, t.batch, t.row, e.row)];
        const u64 known = known_row(s.b_batched, s.b_blocks, t.batch, t.column + h, e.column);
        float pair[2];
#pragma unroll
        for (u32 j = 0; j < 2; ++j) pair[j] = unscaled(total[h][i + j], of_row, args.b.exponents[known + j]);
        if (pairs) {
          if (args.bias != nullptr)
            for (u32 j = 0; j < 2; ++j) pair[j] += args.bias[column + j];
          store_vector<2>(args.result + t.batch * args.batch_stride + row * args.row_stride + column, pair);
        } else {
          store_result(args, t.batch, row, column, pair[0]);
          if (column + 1 < args.given_b.rows) store_result(args, t.batch, row, column + 1, pair[1]);
        }
      }
    }
  });
}

// ---------------------------------------------------------------- finish

// A block of 128 x 128 in float32, a thread 8 x 8 of it.
FW_FN void multiply_exactly(const ProductArgs& args, u32 batch, u32 row_block, u32 column_block) {
  float* const a = reinterpret_cast<float*>(shared_memory());
  float* const b = a + exact_depth * exact_pitch;
  const u32 thread = thread_index(), rows = thread / 16 * exact_side, columns = thread % 16 * exact_side;
  const auto fetch = [&](float* to, const GivenOperand& from, u32 block, u32 depth) {
    const bool along_depth = from.depth_stride == 1;
    for (u32 i = thread; i < packed_rows * exact_depth; i += finish_threads) {
      const u32 row = along_depth ? i / exact_depth : i % packed_rows,
                k = along_depth ? i % exact_depth : i / packed_rows;
      const u32 place = block * packed_rows + row;
      const bool inside = place < from.rows && depth + k < from.depth;
      to[k * exact_pitch + row] = inside ? from.data[(from.batches > 1 ? batch : 0) * from.batch_stride +
                                                     place * from.row_stride + (depth + k) * from.depth_stride]
                                         : 0.0f;
    }
  };
  // Sums of few terms are added to their total: the errors of long sums grow with their length.
  float sums[exact_side][exact_side] = {}, total[exact_side][exact_side] = {};
  for (u32 depth = 0; depth < args.given_a.depth; depth += exact_depth) {
    barrier();
    fetch(a, args.given_a, row_block, depth);
    fetch(b, args.given_b, column_block, depth);
    barrier();
    const u32 end = args.given_a.depth - depth < exact_depth ? args.given_a.depth - depth : exact_depth;
    for (u32 k = 0; k < end; ++k) {
      float x[exact_side], y[exact_side];
      load_vector<8>(a + k * exact_pitch + rows, plain, x);
      load_vector<8>(b + k * exact_pitch + columns, plain, y);
#pragma unroll
      for (u32 i = 0; i < exact_side; ++i)
#pragma unroll
        for (u32 j = 0; j < exact_side; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
    if (depth / exact_depth % 8 != 7) continue;
#pragma unroll
    for (u32 i = 0; i < exact_side; ++i)
#pragma unroll
      for (u32 j = 0; j < exact_side; ++j) {
        total[i][j] += sums[i][j];
        sums[i][j] = 0;
      }
  }
  for (u32 i = 0; i < exact_side; ++i)
    for (u32 j = 0; j < exact_side; ++j) {
      const u32 row = row_block * packed_rows + rows + i, column = column_block * packed_rows + columns + j;
      if (row < args.given_a.rows && column < args.given_b.rows)
        store_result(args, batch, row, column, total[i][j] + sums[i][j]);
    }
}

// Adds up the parts of 8 rows of a block of 128 x 128: a thread takes 4 neighbours.
FW_FN void add_parts(const ProductArgs& args, u32 batch, u32 row_block, u32 column_block, u32 part) {
  const ProductShape& s = args.shape;
  const u32 place = (part * finish_threads + thread_index()) * 4, in_row = place / packed_rows;
  const u32 in_column = place % packed_rows;
  const u32 row = row_block * packed_rows + in_row, column = column_block * packed_rows + in_column;
  if (row >= args.given_a.rows || column >= args.given_b.rows) return;
  float sums[4] = {};
#pragma unroll 4
  for (u32 split = 0; split < s.splits; ++split) {
    float more[4];
    load_vector<4>(args.partial + partial_place(s, split, batch, row_block, column_block) + place, plain, more);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) sums[j] += more[j];
  }
  const i32 of_row = args.a.exponents[known_row(s.a_batched, s.a_blocks, batch, row_block, in_row)];
  const u64 known = known_row(s.b_batched, s.b_blocks, batch, column_block, in_column);
#pragma unroll
  for (u32 j = 0; j < 4; ++j)
    if (column + j < args.given_b.rows)
      store_result(args, batch, row, column + j, unscaled(sums[j], of_row, args.b.exponents[known + j]));
}

// Several blocks of threads for each block of 128 x 128 where parts are added up, else one.
FW_FN void finish(const ProductArgs& args) {
  follow_last_launch();
  const ProductShape& s = args.shape;
  const u32 parts = finish_parts(s), number = block_index() / parts, part = block_index() % parts;
  const u32 column = number % s.b_blocks, row = number / s.b_blocks % s.a_blocks;
  const u32 batch = number / s.b_blocks / s.a_blocks;
  if (args.flags[number] != 0) {
    if (part == 0) multiply_exactly(args, batch, row, column);
  } else if (s.splits > 1) {
    add_parts(args, batch, row, column, part);
  }
}

}  // namespace fw
#endif  // FW_SM90

#endif  // FW_KERNELS_CONTRACT_PRODUCT_H
