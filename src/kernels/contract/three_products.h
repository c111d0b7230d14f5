// A float32 matrix product from three products of halves on Hopper's tensor cores (sm_90a).
//
//   packed a, b --bulk copies--> ring of 4 stages --wgmma--> 64 sums in registers --every 64 of the depth--> 128 sums
//   (a producer warp)            (48 KB each)               (two consumer warpgroups)
//
// A block of 3 warpgroups makes tiles of 128 x 256: each consumer has 64 rows, and halves of 128 columns in turn.
// Tensor cores add up with fewer bits than float32 has, so that their sums are short and are added to sums of float32.
// The two consumers take turns: one multiplies while the other adds.
//
// Needs packed.h in front; includes nothing.
#ifndef FW_KERNELS_CONTRACT_THREE_PRODUCTS_H
#define FW_KERNELS_CONTRACT_THREE_PRODUCTS_H

#if FW_SM90
namespace fw {

constexpr u32 sums_of_a_half = wgmma_accumulators(packed_rows);
static_assert(stages_together == 2, "a consumer multiplies two stages in a turn");
static_assert(product_threads == 3 * warpgroup_threads, "two consumers and a producer");
static_assert(product_shared_bytes >= product_stages * stage_bytes + pattern_bytes(swizzle_128) + 16 * product_stages,
              "the ring fits");

FW_WGMMA(128)

struct Tile {
  u32 row, column, batch, split;  // in blocks of 128
  u32 first, end;                 // blocks of the depth
  u32 halves;                     // with columns
};

// Tiles of a group of rows follow each other column by column: their operands stay in the L2 cache.
FW_FN Tile tile_at(const ProductShape& s, u32 number) {
  Tile t;
  const u32 of_matrix = row_tiles(s) * column_tiles(s);
  const u32 matrix = number / of_matrix, place = number % of_matrix;
  t.split = matrix % s.splits;
  t.batch = matrix / s.splits;
  const u32 group = place / (s.rows_together * column_tiles(s)), first = group * s.rows_together;
  const u32 rows = row_tiles(s) - first < s.rows_together ? row_tiles(s) - first : s.rows_together;
  const u32 within = place - first * column_tiles(s);
  t.row = first + within % rows;
  t.column = within / rows * tile_halves;
  t.halves = s.b_blocks - t.column < tile_halves ? s.b_blocks - t.column : tile_halves;
  const u64 pairs = s.depth_blocks / stages_together;
  t.first = u32(pairs * t.split / s.splits) * stages_together;
  t.end = u32(pairs * (t.split + 1) / s.splits) * stages_together;
  return t;
}

// ---------------------------------------------------------------- the pipeline

// A ring of stages in shared memory: the tile of a, then those of b.
struct Ring {
  char* data;
  u64 *full, *empty;
  u32 stage = 0, parity = 0;

  FW_FN Ring() {
    data = align_to_pattern(shared_memory());
    full = reinterpret_cast<u64*>(data + product_stages * stage_bytes);
    empty = full + product_stages;
  }
  FW_FN void next() {
    if (++stage == product_stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread fills the ring with the tiles of this block.
FW_FN void produce(const ProductShape& s, const char* a, const char* b, Ring ring) {
  ring.parity = 1;  // the ring begins empty
  for (u32 number = block_index(); number < tile_count(s); number += block_count()) {
    const Tile t = tile_at(s, number);
    const char* const from_a =
        a + (u64(s.a_batched ? t.batch : 0) * s.a_blocks + t.row) * s.depth_blocks * packed_bytes;
    const char* const from_b =
        b + (u64(s.b_batched ? t.batch : 0) * s.b_blocks + t.column) * s.depth_blocks * packed_bytes;
    for (u32 k = t.first; k < t.end; ++k) {
      mbarrier_wait(&ring.empty[ring.stage], ring.parity);
      mbarrier_arrive_expect(&ring.full[ring.stage], (1 + t.halves) * packed_bytes);
      char* const to = ring.data + ring.stage * stage_bytes;
      copy_bulk(to, from_a + u64(k) * packed_bytes, packed_bytes, &ring.full[ring.stage]);
      for (u32 h = 0; h < t.halves; ++h)
        copy_bulk(to + (1 + h) * packed_bytes, from_b + (u64(h) * s.depth_blocks + k) * packed_bytes, packed_bytes,
                  &ring.full[ring.stage]);
      ring.next();
    }
  }
}

// ---------------------------------------------------------------- products

constexpr u32 to_low = packed_line / 2, to_next = 32;  // bytes of a line: to lo, and to the next 16 of the depth

// 64 x 128 of a stage: the products with a lo.
FW_FN void multiply_low(float (&sums)[sums_of_a_half], u64 a, u64 b, bool accumulate) {
  wgmma<half>(sums, advance(a, to_low), b, accumulate);
  wgmma<half>(sums, advance(a, to_low + to_next), advance(b, to_next), true);
  wgmma<half>(sums, a, advance(b, to_low), true);
  wgmma<half>(sums, advance(a, to_next), advance(b, to_low + to_next), true);
}
// The products of hi with hi.
FW_FN void multiply_high(float (&sums)[sums_of_a_half], u64 a, u64 b, bool accumulate) {
  wgmma<half>(sums, a, b, accumulate);
  wgmma<half>(sums, advance(a, to_next), advance(b, to_next), true);
}

// Adds up a tile's products for this consumer. Turns: barrier 1 + consumer lets it multiply.
template <u32 products, u32 halves>
FW_FN void consume(const Tile& t, Ring& ring, float (&total)[tile_halves][sums_of_a_half]) {
  const u32 consumer = warpgroup_index();
  float sums[sums_of_a_half];
#pragma unroll
  for (u32 h = 0; h < tile_halves; ++h)
#pragma unroll
    for (u32 i = 0; i < sums_of_a_half; ++i) total[h][i] = 0;
  const auto release = [](const Ring& at) {
    if (lane_index() == 0) mbarrier_arrive(&at.empty[at.stage]);
  };
  const auto describe_tile = [](const Ring& at, u32 offset) {
    return describe(at.data + at.stage * stage_bytes + offset, 16, pattern_bytes(swizzle_128), swizzle_128);
  };
  const auto a_of = [&](const Ring& at) { return describe_tile(at, consumer * (packed_bytes / consumers)); };
  const auto b_of = [&](const Ring& at, u32 h) { return describe_tile(at, (1 + h) * packed_bytes); };
  for (u32 k = t.first; k < t.end; k += stages_together) {
    Ring second = ring;
    second.next();
    mbarrier_wait(&ring.full[ring.stage], ring.parity);
    mbarrier_wait(&second.full[second.stage], second.parity);
#pragma unroll
    for (u32 h = 0; h < halves; ++h) {
      named_barrier_wait(1 + consumer, consumers * warpgroup_threads);
      wgmma_fence();
      // Tensor cores cut off what they add to a large sum, so that the small products come first.
      if constexpr (products == 3) {
        multiply_low(sums, a_of(ring), b_of(ring, h), false);
        multiply_low(sums, a_of(second), b_of(second, h), true);
      }
      multiply_high(sums, a_of(ring), b_of(ring, h), products == 3);
      wgmma_commit();
      multiply_high(sums, a_of(second), b_of(second, h), true);
      wgmma_commit();
      named_barrier_arrive(1 + (1 - consumer), consumers * warpgroup_threads);
      if (h + 1 == halves) {
        wgmma_wait<1>();
        release(ring);
      }
      wgmma_wait<0>();
      hold(sums);
#pragma unroll
      for (u32 i = 0; i < sums_of_a_half; ++i) total[h][i] += sums[i];
    }
    release(second);
    ring = second;
    ring.next();
  }
}

// Where an accumulator of this consumer's half stands in its block of 128 x 128.
FW_FN Element place_of_sum(u32 i) {
  const Element e = accumulator_element(thread_index() % warpgroup_threads, i);
  return {warpgroup_index() * (packed_rows / consumers) + e.row, e.column};
}

// Runs the tiles of this block; finish(tile, total) takes the sums of a consumer.
template <u32 products, class Finish>
FW_FN void make_tiles(const ProductShape& s, const char* a, const char* b, Finish finish) {
  Ring ring;
  if (thread_index() == 0) {
    for (u32 i = 0; i < product_stages; ++i) {
      mbarrier_init(&ring.full[i], 1);
      mbarrier_init(&ring.empty[i], consumers * warpgroup_threads / warp_size);
    }
    mbarrier_fence();
  }
  barrier();
  if (warpgroup_index() == consumers) {
    release_registers<40>();
    if (thread_index() == consumers * warpgroup_threads) produce(s, a, b, ring);
  } else {
    request_registers<232>();
    if (warpgroup_index() == 1) named_barrier_arrive(1, consumers * warpgroup_threads);
    float total[tile_halves][sums_of_a_half];
    for (u32 number = block_index(); number < tile_count(s); number += block_count()) {
      const Tile t = tile_at(s, number);
      if (t.halves == tile_halves)
        consume<products, tile_halves>(t, ring, total);
      else
        consume<products, 1>(t, ring, total);
      finish(t, total);
    }
    // The last turn that nobody takes.
    if (warpgroup_index() == 0) named_barrier_wait(1, consumers * warpgroup_threads);
  }
}

}  // namespace fw
#endif  // FW_SM90

#endif  // FW_KERNELS_CONTRACT_THREE_PRODUCTS_H
