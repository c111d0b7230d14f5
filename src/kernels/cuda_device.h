// What generated CUDA kernels ask of the device: indices, barriers, lanes, wide accesses, asynchronous copies, tensor
// cores.
//
// Needs prelude.h in front; includes nothing. All inline PTX of the project stands in this header and in prelude.h.
// The emulator of tests/emulator (FW_EMULATOR) supplies CUDA's own names (threadIdx, __syncthreads, __shfl_xor_sync,
// __ldg ...) as functions, so the same text runs there; only PTX and shared memory need a branch.
//
// Blocks are one-dimensional and made of whole warps; every warp operation is one of all 32 lanes.
#ifndef FW_KERNELS_CUDA_DEVICE_H  // not `#pragma once`, which warns in pasted text
#define FW_KERNELS_CUDA_DEVICE_H

// The emulator names the line of a kernel that waits for something, so what can wait passes it on.
#ifdef FW_EMULATOR
#define FW_CALLER int line = __builtin_LINE()
#define FW_AND_CALLER , FW_CALLER
#define FW_LINE line
#define FW_AND_LINE , line
#else
#define FW_CALLER
#define FW_AND_CALLER
#define FW_LINE
#define FW_AND_LINE
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FW_SM90 1
#else
#define FW_SM90 0
#endif
// Blocks of a cluster send one another what they have: NVRTC knows that (st.async) since 12.1.
#if FW_SM90 && (defined(FW_EMULATOR) || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
#define FW_SENDS 1
#else
#define FW_SENDS 0
#endif
// Copies may ask the L2 cache for whole lines since CUDA 11.4.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1104
#define FW_WHOLE_LINE ""
#else
#define FW_WHOLE_LINE ".L2::128B"
#endif
#if FW_SM90 && __CUDA_ARCH__ < 1000 && !defined(FW_EMULATOR)
#define FW_KEEPS 1
#else
#define FW_KEEPS 0
#endif

namespace fw {

// ---------------------------------------------------------------- where a thread is

constexpr u32 warp_size = 32;
constexpr u32 all_lanes = 0xffffffffu;

FW_FN u32 thread_index() { return threadIdx.x; }  // within the block
FW_FN u32 block_index() { return blockIdx.x; }
FW_FN u32 block_count() { return gridDim.x; }
FW_FN u32 block_threads() { return blockDim.x; }
FW_FN u32 lane_index() { return threadIdx.x % warp_size; }
FW_FN u32 warp_index() { return threadIdx.x / warp_size; }

// ---------------------------------------------------------------- waiting for other threads

// All threads of the block, at the same line. Writes before it are seen behind it.
#ifdef FW_EMULATOR
FW_FN void barrier(FW_CALLER) { __syncthreads(line); }
FW_FN void warp_barrier(FW_CALLER) { __syncwarp(all_lanes, line); }
#else
FW_FN void barrier() { __syncthreads(); }
FW_FN void warp_barrier() { __syncwarp(all_lanes); }
#endif

// ---------------------------------------------------------------- launches that overlap (sm_90)

// The next launch on the stream may begin, as far as it does not depend on this one, once all blocks have come here.
// Where nothing follows that was launched for it, and on older devices, nothing happens.
FW_FN void let_next_launch_begin() {
#if FW_SM90 && !defined(FW_EMULATOR)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the launch before this one has ended, and with it all before, and what they wrote can be read. First in every
// kernel, all of which may be launched to overlap: before it writes anything, and before it reads anything but what
// was there when the last launch that did not overlap began.
FW_FN void wait_for_last_launch() {
#if FW_SM90 && !defined(FW_EMULATOR)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// How a kernel begins: only the start of a launch overlaps with the one before.
FW_FN void follow_last_launch() {
  let_next_launch_begin();
  wait_for_last_launch();
}

// ---------------------------------------------------------------- exchange within a warp

// T: float, double, int, u32, i64, u64, bool
template <class T>
FW_FN T shuffle(T value, u32 lane FW_AND_CALLER) {
  return __shfl_sync(all_lanes, value, static_cast<int>(lane), 32 FW_AND_LINE);
}
template <class T>
FW_FN T shuffle_xor(T value, u32 offset FW_AND_CALLER) {
  return __shfl_xor_sync(all_lanes, value, static_cast<int>(offset), 32 FW_AND_LINE);
}
template <class T>
FW_FN T shuffle_down(T value, u32 offset FW_AND_CALLER) {  // the last lanes keep their own
  return __shfl_down_sync(all_lanes, value, offset, 32 FW_AND_LINE);
}
FW_FN bool shuffle(bool value, u32 lane FW_AND_CALLER) { return shuffle(int(value), lane FW_AND_LINE) != 0; }
FW_FN bool shuffle_xor(bool value, u32 offset FW_AND_CALLER) {
  return shuffle_xor(int(value), offset FW_AND_LINE) != 0;
}
FW_FN bool shuffle_down(bool value, u32 offset FW_AND_CALLER) {
  return shuffle_down(int(value), offset FW_AND_LINE) != 0;
}
FW_FN u32 ballot(bool value FW_AND_CALLER) { return __ballot_sync(all_lanes, value FW_AND_LINE); }

// ---------------------------------------------------------------- shared memory

// The one block of shared memory, as large as the launch asked for, aligned to 128 bytes.
#ifdef FW_EMULATOR
FW_FN char* shared_memory() { return fwemu::shared_memory(); }
#else
extern __shared__ __align__(128) char shared_block[];
FW_FN char* shared_memory() { return shared_block; }
// PTX addresses shared memory by 32 bits.
FW_FN u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
#endif

// ---------------------------------------------------------------- clusters (sm_90)

// Neighbouring blocks of a launch may form a cluster: they run together and reach into each other's shared memory. Its
// barrier has two halves: whoever waits does so until all threads of the cluster have arrived, and sees what they wrote
// before. Each thread arrives and waits in turn, and waits before it ends: others may still reach into its block.
FW_FN void cluster_arrive(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::cluster_arrive(line);
#elif FW_SM90
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
FW_FN void cluster_wait(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::cluster_wait(line);
#elif FW_SM90
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// Without what the thread wrote: only that it has come here, behind fences of its own.
FW_FN void cluster_arrive_relaxed(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::cluster_arrive(line);
#elif FW_SM90
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
// The same place in the shared memory of another block.
template <class T>
FW_FN T* cluster_pointer(T* own, [[maybe_unused]] u32 rank FW_AND_CALLER) {
#ifdef FW_EMULATOR
  return fwemu::cluster_pointer(own, rank, line);
#elif FW_SM90
  T* other;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(own), "r"(rank));
  return other;
#else
  return own;
#endif
}

// ---------------------------------------------------------------- wide accesses

// How something is read.
struct Plain {};   // the kernel itself may have written it; shared memory too
struct ReadOnly {  // nothing writes it while the kernel runs; global memory only
  u64 policy;      // how long the L2 cache holds it, as createpolicy says it; cache_policy of launch/cuda_arguments.h
};
struct ReadAgain : ReadOnly {};  // before long, by the same block
struct ReadLast : ReadOnly {};   // of several times
constexpr Plain plain = {};
constexpr u64 evict_normal = 0x16f0000000000000;  // held as long as anything
constexpr ReadOnly read_only = {evict_normal};

template <int bytes>
struct word;
template <>
struct word<1> {
  using type = u8;
};
template <>
struct word<2> {
  using type = u16;
};
template <>
struct word<4> {
  using type = u32;
};
template <>
struct word<8> {
  using type = uint2;
};
template <>
struct word<16> {
  using type = uint4;
};

// Volatile, so that no load comes before wait_for_last_launch.
#if FW_KEEPS
#define FW_LOAD_WORD(How, in_l1)                                                                                   \
  FW_FN uint4 load_word(const uint4* from, How how) {                                                              \
    uint4 w;                                                                                                       \
    asm volatile("ld.global.nc" in_l1 ".L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"                         \
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)                                                      \
                 : "l"(from), "l"(how.policy));                                                                    \
    return w;                                                                                                      \
  }                                                                                                                \
  FW_FN uint2 load_word(const uint2* from, How how) {                                                              \
    uint2 w;                                                                                                       \
    asm volatile("ld.global.nc" in_l1 ".L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"                                 \
                 : "=r"(w.x), "=r"(w.y)                                                                            \
                 : "l"(from), "l"(how.policy));                                                                    \
    return w;                                                                                                      \
  }                                                                                                                \
  FW_FN u32 load_word(const u32* from, How how) {                                                                  \
    u32 w;                                                                                                         \
    asm volatile("ld.global.nc" in_l1 ".L2::cache_hint.u32 %0, [%1], %2;" : "=r"(w) : "l"(from), "l"(how.policy)); \
    return w;                                                                                                      \
  }
FW_LOAD_WORD(ReadOnly, "")
FW_LOAD_WORD(ReadAgain, ".L1::evict_last")
FW_LOAD_WORD(ReadLast, ".L1::evict_first")
#undef FW_LOAD_WORD
#endif
template <class W>
FW_FN W load_word(const W* from, ReadOnly) {
  return __ldg(from);
}
template <class W>
FW_FN W load_word(const W* from, Plain) {
  return *from;
}

// Storage for N elements that may be read and written by 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T values[N];
  FW_FN T& operator[](int i) { return values[i]; }
  FW_FN const T& operator[](int i) const { return values[i]; }
};

// One access for 1, 2, 4, 8 or 16 bytes, two for 32. `from` is aligned to the access.
template <int N, class T, class How>
FW_FN void load_vector(const T* from, How how, T (&to)[N] FW_AND_CALLER) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  using W = typename word<bytes>::type;
  const W* words = reinterpret_cast<const W*>(from);
#ifdef FW_EMULATOR
  fwemu::check_aligned(from, bytes, line);
#endif
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T)) / bytes; ++i) {
    const W w = load_word(words + i, how);
    memcpy(to + i * (bytes / int(sizeof(T))), &w, bytes);
  }
}

template <int N, class T>
FW_FN void store_vector(T* to, const T (&from)[N] FW_AND_CALLER) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  using W = typename word<bytes>::type;
  W* words = reinterpret_cast<W*>(to);
#ifdef FW_EMULATOR
  fwemu::check_aligned(to, bytes, line);
#endif
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T)) / bytes; ++i) {
    W w;
    memcpy(&w, from + i * (bytes / int(sizeof(T))), bytes);
    words[i] = w;
  }
}

// One element.
template <class T, class How>
FW_FN T load(const T* from, How how FW_AND_CALLER) {
  T value[1];
  load_vector(from, how, value FW_AND_LINE);
  return value[0];
}
template <class T>
FW_FN void store(T* to, T value FW_AND_CALLER) {
  const T values[1] = {value};
  store_vector<1>(to, values FW_AND_LINE);
}

// ---------------------------------------------------------------- division by an invariant

// Made on the host by fusewright::make_divider (launch/divider.h).
struct Divider {
  u32 divisor, multiplier, shift;
};

// Exact for all n < 2^31.
FW_FN u32 quotient(u32 n, Divider d) { return __umulhi(n << 1, d.multiplier) >> d.shift; }

struct Division {
  u32 quotient, remainder;
};
FW_FN Division divide(u32 n, Divider d) {
  const u32 q = quotient(n, d);
  return {q, n - q * d.divisor};
}

// ---------------------------------------------------------------- copies that run beside the kernel (sm_80)

// `bytes` (4, 8 or 16) from global to shared memory: the first `valid` of them are read, the others become 0. Both
// sides are aligned to `bytes`. In shared memory only behind copy_async_wait, and for other threads a barrier. The L2
// cache gets the whole line: what this block leaves of it is another's, at about the same time. So does the processor's
// own cache, if the copy is of something that every block copies. Devices before sm_80 copy at once.
template <int bytes, bool for_every_block = false>
FW_FN void copy_async(void* shared, const void* global, u32 valid = bytes,
                      [[maybe_unused]] ReadOnly how = read_only FW_AND_CALLER) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async moves 4, 8 or 16 bytes");
#ifdef FW_EMULATOR
  fwemu::copy_async(shared, global, bytes, valid, line);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  char* const to = static_cast<char*>(shared);
  const char* const from = static_cast<const char*>(global);
#pragma unroll
  for (u32 i = 0; i < bytes; ++i) to[i] = i < valid ? from[i] : 0;
#else
  if constexpr (bytes == 16 && !for_every_block) {
#if FW_KEEPS
    // blockIdx.y is 0, which the assembler cannot know: of an address that is a sum with something the whole warp
    // shares, and a policy, that of CUDA 13.0 makes an instruction that no device has.
    asm volatile("cp.async.cg.shared.global.L2::cache_hint" FW_WHOLE_LINE
                 " [%0], [%1], 16, %2, %3;" ::"r"(shared_address(shared) ^ blockIdx.y),
                 "l"(global), "r"(valid), "l"(how.policy)
                 : "memory");
#else
    asm volatile("cp.async.cg.shared.global" FW_WHOLE_LINE " [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(valid)
                 : "memory");
#endif
  } else {
    asm volatile("cp.async.ca.shared.global" FW_WHOLE_LINE " [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                 "l"(global), "n"(bytes), "r"(valid)
                 : "memory");
  }
#endif
}

// Closes the group of this thread's copies since the last one.
FW_FN void copy_async_commit() {
#ifdef FW_EMULATOR
  fwemu::copy_async_commit();
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last `groups` of this thread's groups are under way.
template <int groups>
FW_FN void copy_async_wait(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::copy_async_wait(groups, line);
#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

#if FW_SM90
// ---------------------------------------------------------------- barriers in shared memory, bulk copies (sm_90)

// A phase ends when `arrivals` threads have arrived and all the bytes that were announced are there. The first phase
// has parity 0. One thread initialises, then mbarrier_fence(), then a barrier() of the block.
FW_FN void mbarrier_init(u64* barrier, u32 arrivals FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_init(barrier, arrivals, line);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

// Makes initialised barriers known to the copy engine.
FW_FN void mbarrier_fence(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_fence(line);
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Orders this thread's own writes to shared memory before what the copy engine does next.
FW_FN void fence_async(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::fence_async(line);
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

FW_FN void mbarrier_arrive(u64* barrier FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_arrive(barrier, line);
#else
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0]; }" ::"r"(shared_address(barrier)) : "memory");
#endif
}

// Announces bytes of bulk copies, and arrives.
FW_FN void mbarrier_arrive_expect(u64* barrier, u32 bytes FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_expect(barrier, bytes, line);
  fwemu::mbarrier_arrive(barrier, line);
#else
  asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}

// Announces bytes without arriving.
FW_FN void mbarrier_expect(u64* barrier, u32 bytes FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::mbarrier_expect(barrier, bytes, line);
#else
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

// Whether the phase of this parity has ended; may wait a while for it.
FW_FN bool mbarrier_try_wait(u64* barrier, u32 parity FW_AND_CALLER) {
#ifdef FW_EMULATOR
  return fwemu::mbarrier_try_wait(barrier, parity, line);
#else
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
#endif
}
FW_FN void mbarrier_wait(u64* barrier, u32 parity FW_AND_CALLER) {
  while (!mbarrier_try_wait(barrier, parity FW_AND_LINE)) {
  }
}

// The same, for what other blocks of the cluster store.
FW_FN void mbarrier_wait_cluster(u64* barrier, u32 parity FW_AND_CALLER) {
#ifdef FW_EMULATOR
  mbarrier_wait(barrier, parity FW_AND_LINE);
#else
  u32 done = 0;
  while (done == 0)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
#endif
}

// N times 16 bytes to the same place in the shared memory of a block of the cluster. Its barrier, at the same place as
// this block's, counts them as they arrive; the thread waits for nothing that it stored before, as it does at a barrier
// of the cluster.
template <u32 N>
FW_FN void store_async(void* own, const u32 (&words)[4 * N], u64* barrier, u32 rank FW_AND_CALLER) {
#ifdef FW_EMULATOR
  for (u32 i = 0; i < N; ++i) fwemu::store_async(static_cast<char*>(own) + 16 * i, words + 4 * i, barrier, rank, line);
#else
  u32 to, there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(own)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(barrier)), "r"(rank));
#pragma unroll
  for (u32 i = 0; i < N; ++i)
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to +
                                                                                                                16 * i),
        "r"(words[4 * i]), "r"(words[4 * i + 1]), "r"(words[4 * i + 2]), "r"(words[4 * i + 3]), "r"(there)
        : "memory");
#endif
}

// A multiple of 16 bytes from global to shared memory, both aligned to 16. The barrier counts them as they arrive.
// Called by one thread.
FW_FN void copy_bulk(void* shared, const void* global, u32 bytes, u64* barrier FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::copy_bulk(shared, global, bytes, barrier, line);
#else
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}
#endif  // FW_SM90

// ---------------------------------------------------------------- tensor cores (sm_80)

// The nearest number with 10 bits of mantissa, ties away from zero; what an operand of mma<tf32> holds.
struct tf32 {
  u32 bits;
};
FW_FN tf32 to_tf32(float x) {
  u32 r;
#ifdef FW_EMULATOR
  r = fwemu::to_tf32(bits_of(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#endif
  return {r};
}

// N (1, 2 or 4) matrices of 8 rows of 16 bytes from shared memory. Lane 8 i + j names row j of matrix i; each lane gets
// elements 2 (lane % 4) and the next of row lane / 4, or with `transposed` of column lane / 4.
template <int N, bool transposed = false>
FW_FN void load_matrices(u32 (&r)[N], const void* row FW_AND_CALLER) {
  static_assert(N == 1 || N == 2 || N == 4, "ldmatrix reads 1, 2 or 4 matrices");
#ifdef FW_EMULATOR
  fwemu::load_matrices(r, row, N, transposed, line);
#else
#define FW_LDMATRIX(count, trans, registers, operand, ...)                                             \
  asm volatile("ldmatrix.sync.aligned.m8n8." count trans ".shared.b16 {" registers "}, [" operand "];" \
               : __VA_ARGS__                                                                           \
               : "r"(shared_address(row))                                                              \
               : "memory")
  if constexpr (N == 1 && !transposed) FW_LDMATRIX("x1", "", "%0", "%1", "=r"(r[0]));
  if constexpr (N == 1 && transposed) FW_LDMATRIX("x1", ".trans", "%0", "%1", "=r"(r[0]));
  if constexpr (N == 2 && !transposed) FW_LDMATRIX("x2", "", "%0, %1", "%2", "=r"(r[0]), "=r"(r[1]));
  if constexpr (N == 2 && transposed) FW_LDMATRIX("x2", ".trans", "%0, %1", "%2", "=r"(r[0]), "=r"(r[1]));
  if constexpr (N == 4 && !transposed)
    FW_LDMATRIX("x4", "", "%0, %1, %2, %3", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]));
  if constexpr (N == 4 && transposed)
    FW_LDMATRIX("x4", ".trans", "%0, %1, %2, %3", "%4", "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]));
#undef FW_LDMATRIX
#endif
}

// c += a b, for a of 16 x K, b of K x 8: K = 16 for half and bfloat16, 8 for tf32. With g = lane / 4 and t = lane % 4,
// and two 16-bit elements to a register (the first in the low half):
//   c  rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
//   a  16 bit: rows g, g + 8, g, g + 8; from columns 2t, 2t, 2t + 8, 2t + 8.   tf32: the same rows; columns t, t, t +
//   4, t + 4 b  16 bit: from rows 2t, 2t + 8 of column g.   tf32: rows t, t + 4
template <class T>
FW_FN void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2] FW_AND_CALLER) {
  static_assert(same<T, half>::value || same<T, bfloat16>::value || same<T, tf32>::value, "no such mma");
#ifdef FW_EMULATOR
  fwemu::mma(c, a, b, same<T, half>::value ? fwemu::f16 : same<T, bfloat16>::value ? fwemu::bf16 : fwemu::tf32, line);
#else
#define FW_MMA(shape, type)                                                           \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (same<T, half>::value) FW_MMA("m16n8k16", "f16");
  if constexpr (same<T, bfloat16>::value) FW_MMA("m16n8k16", "bf16");
  if constexpr (same<T, tf32>::value) FW_MMA("m16n8k8", "tf32");
#undef FW_MMA
#endif
}

}  // namespace fw

#endif  // FW_KERNELS_CUDA_DEVICE_H
