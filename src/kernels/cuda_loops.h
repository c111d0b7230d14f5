// What generated CUDA kernels share beside the mathematics and the device: their arguments, walking over axes, teams of
// threads that reduce together. Included after cuda_device.h.
//
// A source fixes its variant in front of everything: FW_VECTOR elements that a thread reads at once, FW_ITEMS such
// vectors that it holds in registers (0: it walks over them), FW_WIDE for offsets that need 64 bits. Of rows in
// registers also: FW_ROW vectors in each (0: as the launch says), FW_DEPTH rows that a thread asks for before it works
// on the first (0: the next one comes straight into registers), FW_THREADS in a block at most, FW_CLUSTER where rows or
// columns are spread over several blocks, and what a thread has in shared memory: FW_SLOT bytes, with FW_AHEAD and
// FW_FIXED of them for each vector of a row on its way and of operands that all rows share.
#ifndef FW_KERNELS_CUDA_LOOPS_H
#define FW_KERNELS_CUDA_LOOPS_H

namespace fw {

constexpr int V = FW_VECTOR;
constexpr int ITEMS = FW_ITEMS;
#if FW_WIDE
using index = i64;
#else
using index = i32;
#endif

// A scalar of the program, in the type that the kernel computes with.
union Number {
  double f64;
  float f32;
  i64 whole;
  bool truth;
  template <class T>
  FW_FN T as() const {
    if constexpr (same<T, float>::value) {
      return f32;
    } else if constexpr (same<T, double>::value) {
      return f64;
    } else if constexpr (same<T, bool>::value) {
      return truth;
    } else {
      return whole;
    }
  }
};

// What the launcher hands to a kernel. The same layout is packed in launch/cuda_arguments.h.
//
// A *row* is one result of the reduction (row kernels), a block of neighbouring ones (column kernels) or a line of a
// pointwise kernel; its *elements* are counted in vectors where they lie along the line. Rows come as anchors x walked:
// a team of threads stays at one anchor and walks over a part of the rows there.
template <int AXES, int OPERANDS, int NUMBERS, int STAGES>
struct KernelArgs {
  void* pointers[OPERANDS];  // of a sum on the side: its buffer of partial sums, or the result if there is one part
  void* results[OPERANDS];   // of a sum on the side: its result
  Number numbers[NUMBERS];
  i64 strides[OPERANDS][AXES];
  i64 side_strides[AXES];   // of the buffers for sums on the side, [part][anchor][element]
  i64 total_strides[AXES];  // likewise, where a sum has one number for each anchor: [part][anchor]
  i64 sizes[AXES];
  void* partial[STAGES];  // split rows: the sums of each split,
  i64 left[STAGES];       // and how many of them are still to be added up: all, or 1 when that has been done
  i64 anchors, walked, parts, share;
  i64 elements;      // of a row
  i64 rows, splits;  // split rows: how many, and how many blocks share one in a pass that leaves sums;
  i64 stretch;       // what a block has of one in a pass that leaves none
  i64 line;          // vectors along the innermost loop
  i64 tiles;         // column: blocks of columns; tiled: tiles along a line
  i64 side_parts, total_parts, side_blocks;
  ReadOnly reads;  // of operands that are not results
  Divider divider[AXES];
  Divider line_divider, tiles_divider, anchors_divider, rows_divider;
  u32 team_bits, lane_bits;  // threads that reduce together; neighbouring columns side by side
  u32 anchor_bits;           // teams of a warp at neighbouring anchors; the others of its block are at other parts
  u32 partial_bits;          // the lanes of those that left partial sums
  u32 ahead;                 // where in shared memory rows arrive that are asked for ahead
  u32 cluster_bits;          // blocks that a team is spread over, or that add up their sums on the side
};

struct Quotient {
  index quotient, remainder;
};
FW_FN Quotient divided(index n, i64 divisor, Divider d) {
#if FW_WIDE
  (void)d;
  return {n / divisor, n % divisor};
#else
  (void)divisor;
  const Division r = divide(static_cast<u32>(n), d);
  return {static_cast<index>(r.quotient), static_cast<index>(r.remainder)};
#endif
}

// Of what lies less than 2^24 beyond the divisor: in 32 bits, whatever the index has.
FW_FN Quotient divided_beyond(index n, i64 divisor, Divider d) {
#if FW_WIDE
  if (divisor >= (i64{1} << 31) - (i64{1} << 24)) return {1, n - divisor};
#endif
  (void)divisor;
  const Division r = divide(static_cast<u32>(n), d);
  return {static_cast<index>(r.quotient), static_cast<index>(r.remainder)};
}

// Offset along the innermost loop: vectors are neighbours in memory.
FW_FN index along(index position, i64 stride) { return V > 1 ? position : position * static_cast<index>(stride); }

template <class T, class How>
FW_FN void load_line(const T* from, How how, T (&to)[V] FW_AND_CALLER) {
  load_vector(from, how, to FW_AND_LINE);
}
template <class T>
FW_FN void store_line(T* to, const T (&from)[V] FW_AND_CALLER) {
  store_vector<V>(to, from FW_AND_LINE);
}

// Vectors that are asked for ahead arrive in shared memory, where the thread that asked takes them. One that no
// asynchronous copy can move is loaded when it is taken.
template <class T>
FW_FN constexpr u32 ahead_bytes() {
  constexpr u32 bytes = V * sizeof(T);
  return bytes == 4 || bytes == 8 || bytes == 16 ? bytes : 0;
}
// The lanes of a warp have theirs side by side: whole lines of memory arrive as they are, which is what the copies are
// fast at (with a stretch of its own for each thread, kernels took half as long again), and all offsets but the warp's
// and the lane's are constants. `slot`: where the warp's begin; `before`: bytes of a thread in front of this operand's.
template <bool for_every_block = false, class T>
FW_FN void ask_line(char* slot, u32 before, const T* from, ReadOnly how FW_AND_CALLER) {
  constexpr u32 bytes = ahead_bytes<T>();
  if constexpr (bytes > 0)
    copy_async<bytes, for_every_block>(slot + before * warp_size + lane_index() * bytes, from, bytes, how FW_AND_LINE);
}
// The same for every row, a norm's weight: each block asks for it once. Few lines of memory that all processors ask
// for come from few parts of the L2 cache, and that took longer than the rows themselves (LayerNorm of 65536 rows of
// 128 floats, a row to each team: 212 us).
template <class T>
FW_FN void ask_fixed_line(char* slot, u32 before, const T* from, ReadOnly how FW_AND_CALLER) {
  ask_line<true>(slot, before, from, how FW_AND_LINE);
}
template <class T>
FW_FN void take_line(const char* slot, u32 before, const T* from, ReadOnly how, T (&to)[V] FW_AND_CALLER) {
  constexpr u32 bytes = ahead_bytes<T>();
  if constexpr (bytes > 0) {
    const char* own = slot + before * warp_size + lane_index() * bytes;
    load_vector(reinterpret_cast<const T*>(own), plain, to FW_AND_LINE);
  } else {
    load_vector(from, how, to FW_AND_LINE);
  }
}

#if FW_WIDE
FW_FN u64 unsigned_of(index n) { return static_cast<u64>(n); }
#else
FW_FN u32 unsigned_of(index n) { return static_cast<u32>(n); }
#endif

// Neighbours from position `first` on of a line of `size`; zeros beyond its ends, unless all of them are known to be
// `inside`. By vectors where `padding`, which `first` is off by, keeps them aligned.
template <int padding, bool inside, int SPAN, class T>
FW_FN void load_span(const T* line, index first, i64 size, i64 stride, ReadOnly how, T (&to)[SPAN]) {
  if constexpr (V > 1 && padding % V == 0) {
#pragma unroll
    for (int n = 0; n < SPAN; n += V) {
      T part[V];
      const index p = first + n;
      if ((inside && n + V <= SPAN) || (p >= 0 && p + V <= size)) {
        load_vector(line + p, how, part);
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
          part[i] = n + i < SPAN && (inside || (p + i >= 0 && p + i < size)) ? fw::load(line + p + i, how) : T{};
      }
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (n + i < SPAN) to[n + i] = part[i];
    }
  } else {
#pragma unroll
    for (int n = 0; n < SPAN; ++n) {
      const index p = first + n;
      to[n] = inside || (p >= 0 && p < size) ? fw::load(line + p * static_cast<index>(stride), how) : T{};
    }
  }
}

// Which of a cluster's 2^bits blocks this one is.
FW_FN u32 rank_in_cluster(u32 bits) { return block_index() & ((1u << bits) - 1); }

// Threads of a block: [row][thread of the team][lane], lanes neighbours in memory. A row kernel has one lane. A team
// may be spread over the blocks of a cluster: each has a stretch of its threads, for all lanes.
struct Team {
  u32 row, thread, lane;
  u32 bits, lane_bits, cluster_bits;
  // Of a cluster: two buffers where its blocks leave their sums for each other, and how often they have.
  char* buffers;
  u32 buffer_bytes, exchanges;
  FW_FN u32 threads() const { return 1u << bits; }
  FW_FN u32 lanes() const { return 1u << lane_bits; }
  FW_FN u32 bits_in_block() const { return bits - cluster_bits; }
  FW_FN u32 rows() const { return block_threads() >> (bits_in_block() + lane_bits); }
  FW_FN u32 blocks() const { return 1u << cluster_bits; }
  FW_FN u32 block() const { return rank_in_cluster(cluster_bits); }
};
FW_FN Team make_team(u32 team_bits, u32 lane_bits, u32 cluster_bits = 0) {
  const u32 t = thread_index();
  Team team;
  team.bits = team_bits;
  team.lane_bits = lane_bits;
  team.cluster_bits = cluster_bits;
  team.buffers = nullptr;
  team.buffer_bytes = team.exchanges = 0;
  const u32 bits = team.bits_in_block();
  team.lane = t & ((1u << lane_bits) - 1);
  team.thread = ((t >> lane_bits) & ((1u << bits) - 1)) + (team.block() << bits);
  team.row = t >> (lane_bits + bits);
  return team;
}

// Of columns in registers the threads of a warp with the same V columns share out what is done for a column: each has
// one of them for its own, and is in a team with those that have the same one. A block has one team of columns, with no
// more than a warp's of them side by side.
FW_FN constexpr u32 own_bits() {
  u32 bits = 0;
  while ((1 << bits) < V) ++bits;
  return bits;
}
FW_FN Team team_of_columns(const Team& team) {
  return make_team(team.bits - own_bits(), team.lane_bits + own_bits(), team.cluster_bits);
}
// The sums of a thread's own column, over all threads of the warp that have sums of it: at each exchange a thread keeps
// half of the columns, and gives away the other.
template <template <int> class Sums, int W>
FW_FN Sums<1> own_column(const Team& team, const Sums<W>& sums) {
  if constexpr (W == 1) {
    return sums;
  } else {
    const u32 offset = u32{W / 2} << team.lane_bits;
    const bool upper = (lane_index() & offset) != 0;
    Sums<W / 2> mine = sums.half(upper);
    mine.merge(sums.half(!upper).exchanged(offset));
    return own_column(team, mine);
  }
}
// What each thread knows of its own column, to all that hold it.
template <class T>
FW_FN void tell_columns(const Team& team, T own, T (&all)[V]) {
  const u32 first = lane_index() & ~(u32{V - 1} << team.lane_bits);
#pragma unroll
  for (u32 i = 0; i < V; ++i) all[i] = V > 1 ? shuffle(own, first + (i << team.lane_bits)) : own;
}

#if FW_ITEMS > 0
// Threads that a row of FW_ROW vectors needs; what is known here need not be computed for every vector.
FW_FN constexpr u32 row_team_bits() {
  u32 bits = 0;
  while ((static_cast<i64>(ITEMS) << bits) < FW_ROW) ++bits;
  return bits;
}
FW_FN u32 held_team_bits(u32 bits) { return FW_ROW > 0 ? row_team_bits() : bits; }
FW_FN u32 held_lane_bits(u32 bits) { return FW_ROW > 0 ? 0 : bits; }
FW_FN index held_elements(i64 elements) { return static_cast<index>(FW_ROW > 0 ? FW_ROW : elements); }
// Whether vector e of a thread belongs to its row.
FW_FN bool in_row(index e, index elements) {
  return (FW_ROW > 0 && FW_ROW == static_cast<i64>(ITEMS) << row_team_bits()) || e < elements;
}
#endif

// Vectors of a row of so many that are those of a thread of its team.
FW_FN index items_of_thread(const Team& team, index elements) {
  const index beyond = elements - static_cast<index>(team.thread);
  return beyond <= 0 ? 0 : ((beyond - 1) >> team.bits) + 1;
}

// A sum over a row divided by the number of its elements: a power of two that the text is for makes a product of it.
template <class T>
FW_FN T over_row(T sum, T elements) {
#if FW_ITEMS > 0
  constexpr i64 known = i64{FW_ROW} * V;
  if constexpr (known > 0 && (known & (known - 1)) == 0) return sum * (T(1) / T(known));
#endif
  return div(sum, count_of(elements));
}

template <class S>
struct alignas(16) Slot {  // in memory; S itself is not padded, so that copies of it are of what it holds
  S sums;
};

template <class... Sums>
FW_FN constexpr u32 widest_slot() {
  u32 most = 16;
  ((most = sizeof(Slot<Sums>) > most ? static_cast<u32>(sizeof(Slot<Sums>)) : most), ...);
  return most;
}

// Blocks of a cluster send what they have to where another will read it, and a barrier there counts what arrives. A
// barrier of the cluster would wait for all that a thread has stored and asked for. A block that has got what the
// others sent may end: they wait for what it sent.
FW_FN void open_mail([[maybe_unused]] u32 cluster_bits, [[maybe_unused]] u64* barriers, [[maybe_unused]] u32 count) {
#if FW_SENDS
  if (cluster_bits == 0) return;
  if (thread_index() == 0) {
    for (u32 i = 0; i < count; ++i) mbarrier_init(barriers + i, 1);
    mbarrier_fence();
  }
  cluster_arrive_relaxed();
#endif
}
// Before anything is sent: the barriers of all blocks are there.
FW_FN void join_cluster([[maybe_unused]] u32 cluster_bits) {
#if FW_SENDS
  if (cluster_bits != 0) cluster_wait();
#endif
}
FW_FN void expect_mail([[maybe_unused]] u64* barrier, [[maybe_unused]] u32 bytes) {
#if FW_SENDS
  if (thread_index() == 0) mbarrier_arrive_expect(barrier, bytes);
#endif
}
template <class S>
FW_FN void send([[maybe_unused]] const S& what, [[maybe_unused]] void* place, [[maybe_unused]] u64* barrier,
                [[maybe_unused]] u32 block) {
#if FW_SENDS
  constexpr u32 pieces = sizeof(Slot<S>) / 16;
  union {
    u32 words[pieces * 4];
    S what;
  } sent = {};
  sent.what = what;
  store_async<pieces>(place, sent.words, barrier, block);
#endif
}
FW_FN void wait_for_mail([[maybe_unused]] u64* barrier, [[maybe_unused]] u32 parity) {
#if FW_SENDS
  mbarrier_wait_cluster(barrier, parity);
#endif
}

// The blocks that a team is spread over exchange their sums through two buffers in turn. A block sends when all of its
// threads have done with the exchange before, and needs what all blocks sent to end one: nobody leaves sums in a buffer
// while another still reads it, and nothing else holds the blocks together. The buffers and their barriers are the last
// of the shared memory before `end`.
template <class... Sums>
FW_FN void begin_cluster(Team& team, char* end) {
  if (team.cluster_bits == 0) return;
  team.buffer_bytes = widest_slot<Sums...>() << (team.cluster_bits + team.lane_bits);
  team.buffers = end - 16 - 2 * team.buffer_bytes;
  open_mail(team.cluster_bits, reinterpret_cast<u64*>(end) - 2, 2);
}
template <class S>
FW_FN void exchange(Team& team, S& sums) {
  const u32 which = team.exchanges & 1, parity = (team.exchanges >> 1) & 1, width = team.lanes();
  ++team.exchanges;
  u64* const arrived = reinterpret_cast<u64*>(team.buffers + 2 * team.buffer_bytes) + which;
  Slot<S>* const slots = reinterpret_cast<Slot<S>*>(team.buffers + which * team.buffer_bytes) + team.lane;
  expect_mail(arrived, static_cast<u32>(sizeof(Slot<S>)) << (team.cluster_bits + team.lane_bits));
  for (u32 block = thread_index() >> team.lane_bits; block < team.blocks(); block += 1u << team.bits_in_block())
    send(sums, slots + team.block() * width, arrived, block);
  wait_for_mail(arrived, parity);
  sums = slots->sums;
  for (u32 block = 1; block < team.blocks(); ++block) sums.merge(slots[block * width].sums);
}

// Combines the sums of a team's threads, in an order that depends on the shape of the block alone; every thread gets
// the result. Within a warp by exchange, between warps through shared memory, and where the team is spread over a
// cluster, each of its blocks tells all of them its sums. A team of more than one warp is alone in its block. S has
// merge(const S&) and exchanged(offset).
template <class S>
FW_FN void reduce(Team& team, S& sums) {
  const u32 span = 1u << (team.bits_in_block() + team.lane_bits), width = team.lanes();
  for (u32 offset = width; offset < span && offset < warp_size; offset *= 2) sums.merge(sums.exchanged(offset));
  Slot<S>* slots = reinterpret_cast<Slot<S>*>(shared_memory());
  if (span > warp_size && team.bits_in_block() != 0) {
    const bool narrow = width < warp_size;
    const u32 rows = narrow ? span / warp_size : 1u << team.bits_in_block();
    const u32 mine = narrow ? warp_index() : thread_index() >> team.lane_bits;
    barrier();  // whoever still reads the slots of the last reduction
    if (!narrow || lane_index() < width) slots[mine * width + team.lane].sums = sums;
    barrier();
    // Of many slots the lanes of a warp that stand in the same column take some each. Where their number is known, so
    // many that they are not all on their way at a time.
    constexpr u32 few = FW_ROW > 0 ? 128 : 16;
    const u32 sharers = narrow && rows * static_cast<u32>(sizeof(S)) > few ? warp_size >> team.lane_bits : 1;
    const u32 first = sharers > 1 ? (lane_index() >> team.lane_bits) & (rows - 1) : 0;
    sums = slots[first * width + team.lane].sums;
#pragma unroll 4
    for (u32 r = first + sharers; r < rows; r += sharers) sums.merge(slots[r * width + team.lane].sums);
    for (u32 offset = width; sharers > 1 && offset < rows * width && offset < warp_size; offset *= 2)
      sums.merge(sums.exchanged(offset));
#ifndef FW_WITHOUT_CLUSTERS
  } else if (team.cluster_bits != 0) {
    barrier();  // as above, for the exchange
#endif
  }
#ifndef FW_WITHOUT_CLUSTERS
  if (team.cluster_bits != 0) exchange(team, sums);
#endif
}

// What the threads of a block hold that stand at the same place in stretches of 2^bits threads is added up: all leave
// theirs in shared memory, and behind a barrier those of one stretch take it, in the order of the stretches. `which`:
// of several that are there at a time, room for an 8-byte number each.
template <class T>
FW_FN T* stretch_slot(char* memory, u32 which, u32 thread) {
  return reinterpret_cast<T*>(memory + (which * block_threads() + thread) * (V * 8));
}
template <class T>
FW_FN void add_vector(const T* from, T (&values)[V]) {
  T other[V];
  load_vector(from, plain, other);
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] += other[i];
}
template <class T>
FW_FN void leave_for_stretches(const T (&values)[V], char* memory, u32 which) {
  store_vector<V>(stretch_slot<T>(memory, which, thread_index()), values);
}
template <class T>
FW_FN void add_stretches(T (&values)[V], u32 bits, char* memory, u32 which) {
  u32 t = thread_index() & ((1u << bits) - 1);
  load_vector(stretch_slot<T>(memory, which, t), plain, values);
#pragma unroll 4
  for (t += 1u << bits; t < block_threads(); t += 1u << bits) add_vector(stretch_slot<T>(memory, which, t), values);
}

// What blocks of a cluster hold at the same place, one of 2^bits, is added up by the block that owns the place, in the
// order of the blocks. Each owns a stretch of the places, and all send it theirs: EACH vectors of each of the types T.
// Its memory, and behind it the barrier, are the last of the shared memory before `end`.
template <u32 EACH, class... T>
struct Mailbox {
  u32 bits, cluster_bits;
  u64* arrived;
  char* memory;

  static constexpr u32 COUNT = EACH * sizeof...(T);
  static constexpr u32 room = widest_slot<Vector<T, V>...>();  // for a vector
  static constexpr u32 sent =
      EACH * (u32{0} + ... + static_cast<u32>(sizeof(Slot<Vector<T, V>>)));  // narrow ones fill it in part
  FW_FN Mailbox(u32 place_bits, u32 of_cluster, char* end) : bits(place_bits), cluster_bits(of_cluster) {
    arrived = reinterpret_cast<u64*>(end) - 1;
    memory = end - 16 - ((COUNT * room) << bits);
    open_mail(cluster_bits, arrived, 1);
  }
  FW_FN void expect() const { expect_mail(arrived, sent << bits); }
  FW_FN u32 own_bits() const { return bits - cluster_bits; }
  FW_FN u32 owner() const { return (thread_index() & ((1u << bits) - 1)) >> own_bits(); }
  FW_FN char* slot(u32 from, u32 which) const {
    const u32 place = thread_index() & ((1u << own_bits()) - 1);
    return memory + (((from * COUNT + which) << own_bits()) + place) * room;
  }
  template <class N>
  FW_FN void send(const N (&values)[V], u32 which) const {
    Vector<N, V> vector;
#pragma unroll
    for (int i = 0; i < V; ++i) vector[i] = values[i];
    fw::send(vector, slot(rank_in_cluster(cluster_bits), which), arrived, owner());
  }
  template <class N>
  FW_FN void add_up(N (&values)[V], u32 which) const {
    load_vector(reinterpret_cast<const N*>(slot(0, which)), plain, values);
#pragma unroll 4
    for (u32 from = 1; from < 1u << cluster_bits; ++from)
      add_vector(reinterpret_cast<const N*>(slot(from, which)), values);
  }
};

// Two branches that are never taken, `bits` being a number of bits, hold the assembler to the order of the text. Loads
// above the first are issued above it: it would move them down to where registers are free, and then nothing is on its
// way while the thread computes. A value at the second has been computed there: it would move all waits for copies
// in front of what is computed between them.
FW_FN void stay_above([[maybe_unused]] u32 bits) {
#ifndef FW_EMULATOR
  if (bits > 32) asm volatile("trap;");
#endif
}
template <class T>
FW_FN void compute_above([[maybe_unused]] u32 bits, [[maybe_unused]] T value) {
#ifndef FW_EMULATOR
  if ((static_cast<u32>(bits_of(value)) & (bits & ~63u)) != 0) asm volatile("trap;");
#endif
}

// Mean and sum of squared distances from it in one pass, for each of a thread's W columns, or for its row (W = 1). A
// thread adds up distances from the first element it meets: whatever that is, its own square is among what is added up,
// so that the subtraction in finish() loses no more than the bits of the count. Threads' results are merged by Chan's
// formula. The mean among them stays a distance from an element: rounded far from 0, means would be too coarse to tell
// apart.
template <class T, int W>
struct Moments {
  static_assert(W == V || W == 1, "a vector's elements are of a column each, or of one row");
  T first[W], squares[W];  // the first element, and squared distances from it; after finish(): from the mean
  T shift[W];              // until finish(): the sum of distances from the first element; then the mean's
  T plain[W], count;       // sum and number of elements

  // A mean that is far closer to 0 than the element is too fine for a distance from it.
  FW_FN T sum(int i) const {
    const T mean = first[i] + shift[i];
    return fw::abs(mean) * 2 >= fw::abs(first[i]) ? mean * count : plain[i];
  }
  FW_FN void clear() {
    count = 0;
#pragma unroll
    for (int i = 0; i < W; ++i) first[i] = squares[i] = shift[i] = plain[i] = 0;
  }
  FW_FN void count_vector() { count += V / W; }
  FW_FN void add(int i, T x) {  // element i of the vector
    const int k = W == 1 ? 0 : i;
    const bool is_first = count == V / W && (W > 1 || i == 0);
    first[k] = is_first ? x : first[k];
    const T distance = x - first[k];
    plain[k] += x;
    shift[k] += distance;
    squares[k] += distance * distance;
  }
  FW_FN void finish() {
    const T part = count > 0 ? reciprocal(count) : 0;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const T distances = shift[i];
      shift[i] = distances * part;
      // Where squares overflow and distances do not, their sum stays infinite: not the NaN of a difference.
      const bool overflows = squares[i] == infinity<T>() && fw::abs(distances) < infinity<T>();
      const T rest = squares[i] - distances * shift[i];
      squares[i] = overflows ? squares[i] : rest;
    }
  }
  // The same bits whichever of the two is merged into the other: distances are from the smaller of both first elements,
  // and no product is fused into one of the sums. A distance is not squared alone: without elements on one side its
  // weight is 0, and the square may be infinite.
  FW_FN void merge(const Moments& other) {
    const T total = count + other.count;
    const T part = total > 0 ? reciprocal(total) : 0;
    const T mine = count * part, its = other.count * part, weight = (count * other.count) * part;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const bool keeps = other.count == 0 || (count > 0 && first[i] < other.first[i]);
      const T from = keeps ? first[i] : other.first[i];
      const T a = count > 0 ? (first[i] - from) + shift[i] : 0;
      const T b = other.count > 0 ? (other.first[i] - from) + other.shift[i] : 0;
      const T distance = b - a;
      squares[i] = (squares[i] + other.squares[i]) + product(product(distance, weight), distance);
      shift[i] = product(a, mine) + product(b, its);
      first[i] = from;
      plain[i] += other.plain[i];
    }
    count = total;
  }
  FW_FN Moments exchanged(u32 offset) const {
    Moments other;
    other.count = shuffle_xor(count, offset);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      other.first[i] = shuffle_xor(first[i], offset);
      other.shift[i] = shuffle_xor(shift[i], offset);
      other.squares[i] = shuffle_xor(squares[i], offset);
      other.plain[i] = shuffle_xor(plain[i], offset);
    }
    return other;
  }

 private:
  // A product that no addition behind it swallows.
  FW_FN static float product(float a, float b) { return __fmul_rn(a, b); }
  FW_FN static double product(double a, double b) { return __dmul_rn(a, b); }
};

}  // namespace fw

#endif  // FW_KERNELS_CUDA_LOOPS_H
