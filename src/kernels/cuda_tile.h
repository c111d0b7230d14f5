// Pointwise kernels some of whose operands do not lie along the kernel's lines: channels last beside row-major. A block
// takes a tile over two axes: *along*, that of the lines, and *across*, along which those operands lie. They pass
// through shared memory, so that neighbouring threads meet neighbouring elements on both sides. Included after
// cuda_loops.h.
//
// Vectors along and across are chosen apart: V elements along, U across; one of the two axes may be odd.
//
// A source fixes, beside what cuda_loops.h wants: FW_TILED, a bit for each operand that goes through the tile,
// FW_ACROSS, the other axis, and FW_ACROSS_VECTOR, the elements of a vector there. FW_ITEMS is a multiple of it.
#ifndef FW_KERNELS_CUDA_TILE_H
#define FW_KERNELS_CUDA_TILE_H

namespace fw {

constexpr int ACROSS = FW_ACROSS, U = FW_ACROSS_VECTOR;
constexpr u32 TILE_THREADS = 256;
constexpr int GROUPS = ITEMS / U;               // squares of V x U elements that a thread turns
constexpr int TILE = TILE_THREADS * ITEMS * V;  // elements
static_assert(GROUPS * U == ITEMS, "whole squares");

template <int operand>
constexpr bool tiled = (FW_TILED >> operand & 1) != 0;

// Where the next operand's part of shared memory begins.
template <int operand, class T>
constexpr int tile_bytes = tiled<operand> ? TILE * static_cast<int>(sizeof(T)) : 0;

template <class T>
FW_FN T* tile_memory(int at) {
  return reinterpret_cast<T*>(shared_memory() + at);
}

// The tile of a block, as thread `t` of it sees it: of `length` vectors along and `width` across. An axis shorter than
// a usual tile has one of its own length, so that none of its threads is idle; some at the block's end may be.
struct Tile {
  index anchor;
  u32 width, length;
  u32 pitch_bits;           // a line of the tile has room for so many vectors in shared memory
  index across, along;      // the tile's first
  u32 my_across, my_along;  // this thread's first square within it; the others are `rows` further along
  u32 rows;
  u32 item_across, item_along;  // its first vector on the side where it computes; the others are `lines` further across
  u32 lines;

  // Where element `at_across` of vector `at_along` stands in shared memory. Threads come by neighbours across to one
  // side of the tile, along to the other: mixing the two keeps either from meeting one bank again and again.
  FW_FN u32 place(u32 at_across, u32 at_along) const {
    return ((at_across << pitch_bits) + (at_along ^ (at_across / U & ((1u << pitch_bits) - 1)))) * V;
  }

  // Item of a thread on the side where it computes: a vector along, at one position across.
  FW_FN u32 across_of(int item) const { return item_across + static_cast<u32>(item) * lines; }
  FW_FN bool has(int item) const { return across_of(item) < width * U; }
};

// Blocks run along the lines first: `tiles` of them, then `rows` across.
template <class Args>
FW_FN Tile make_tile(const Args& a) {
  const Quotient outer = divided(static_cast<index>(block_index()), a.tiles, a.tiles_divider);
  const Quotient slab = divided(outer.quotient, a.rows, a.rows_divider);
  const u32 thread = thread_index();
  Tile tile;
  tile.anchor = slab.quotient;
  tile.width = static_cast<u32>(a.parts);
  tile.length = static_cast<u32>(a.share);
  tile.pitch_bits = a.lane_bits;
  tile.across = slab.remainder * static_cast<index>(tile.width);
  tile.along = outer.remainder * static_cast<index>(tile.length);
  tile.rows = TILE_THREADS / tile.width;
  tile.lines = TILE_THREADS / tile.length;
  tile.my_along = thread / tile.width;
  tile.my_across = thread - tile.my_along * tile.width;
  tile.item_across = thread / tile.length;
  tile.item_along = thread - tile.item_across * tile.length;
  // Threads beyond the last whole line have nothing to do.
  if (tile.my_along >= tile.rows) tile.my_along = tile.length;
  if (tile.item_across >= tile.lines) tile.item_across = tile.width * U;
  return tile;
}

// The squares of one operand that a thread carries between memory and the tile: V vectors across in memory, U along in
// the tile. `extent` is the number of elements across, `line` that of vectors along; `stride` is memory's, along.
template <class T>
struct Squares {
  T values[GROUPS][V][U];  // [square][along][across]

  template <class Visit>
  FW_FN static void each(const Tile& tile, i64 extent, i64 line, Visit visit) {
    const index across = (tile.across + static_cast<index>(tile.my_across)) * U;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      const u32 row = tile.my_along + static_cast<u32>(g) * tile.rows;
      const index along = tile.along + static_cast<index>(row);
      if (row < tile.length && across < extent && along < line) visit(g, row, across, along * V);
    }
  }

  FW_FN void load(const Tile& tile, const T* from, ReadOnly how, i64 stride, i64 extent, i64 line) {
    each(tile, extent, line, [&](int g, u32, index across, index along) {
#pragma unroll
      for (int r = 0; r < V; ++r)
        load_vector(from + (along + r) * static_cast<index>(stride) + across, how, values[g][r]);
    });
  }
  FW_FN void put(const Tile& tile, T* shared, i64 extent, i64 line) const {
    each(tile, extent, line, [&](int g, u32 row, index, index) {
#pragma unroll
      for (int i = 0; i < U; ++i) {
        T turned[V];
#pragma unroll
        for (int r = 0; r < V; ++r) turned[r] = values[g][r][i];
        store_vector<V>(shared + tile.place(tile.my_across * U + static_cast<u32>(i), row), turned);
      }
    });
  }
  FW_FN static void store(const Tile& tile, const T* shared, T* to, i64 stride, i64 extent, i64 line) {
    each(tile, extent, line, [&](int, u32 row, index across, index along) {
      T square[V][U];
#pragma unroll
      for (int i = 0; i < U; ++i) {
        T turned[V];
        load_vector(shared + tile.place(tile.my_across * U + static_cast<u32>(i), row), plain, turned);
#pragma unroll
        for (int r = 0; r < V; ++r) square[r][i] = turned[r];
      }
#pragma unroll
      for (int r = 0; r < V; ++r) store_vector<U>(to + (along + r) * static_cast<index>(stride) + across, square[r]);
    });
  }
};

}  // namespace fw

#endif  // FW_KERNELS_CUDA_TILE_H
