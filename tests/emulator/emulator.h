// CUDA's language as a C++ compiler can take it: the fake NVRTC pastes this, behind interface.h, in front of the text
// of our kernels. A kernel that uses a name of CUDA which is not here does not compile; add the name, with what the
// device really does.
#ifndef FUSEWRIGHT_EMULATOR_H
#define FUSEWRIGHT_EMULATOR_H

// noinline: clang would inline a kernel into its trampoline, and faults would name the trampoline's line.
#define __global__ __attribute__((visibility("hidden"), noinline))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

typedef __SIZE_TYPE__ size_t;

extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
float floorf(float), ceilf(float), truncf(float), rintf(float), sinf(float), cosf(float), powf(float, float);
float fmodf(float, float), fabsf(float), fmaxf(float, float), fminf(float, float), fmaf(float, float, float);
float expf(float), exp2f(float), logf(float), log2f(float), sqrtf(float), tanhf(float), erff(float);
double floor(double), ceil(double), trunc(double), rint(double), sin(double), cos(double), pow(double, double);
double fmod(double, double), fabs(double), fmax(double, double), fmin(double, double), fma(double, double, double);
double exp(double), exp2(double), log(double), log2(double), sqrt(double), tanh(double), erf(double);
}

// ---------------------------------------------------------------- vector types

#define FWEMU_VECTOR(type, name)                                                              \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                    \
  struct name##3 { type x, y, z; };                                                           \
  struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; }; \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                            \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                 \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
FWEMU_VECTOR(char, char)
FWEMU_VECTOR(unsigned char, uchar)
FWEMU_VECTOR(short, short)
FWEMU_VECTOR(unsigned short, ushort)
FWEMU_VECTOR(int, int)
FWEMU_VECTOR(unsigned, uint)
FWEMU_VECTOR(float, float)
FWEMU_VECTOR(double, double)
FWEMU_VECTOR(long long, longlong)
FWEMU_VECTOR(unsigned long long, ulonglong)
#undef FWEMU_VECTOR

// ---------------------------------------------------------------- the runtime

namespace fwemu {

static const Runtime* runtime;

inline const Thread& self() { return *runtime->self(); }
inline char* shared_memory() { return self().shared; }

inline void check_aligned(const void* p, unsigned bytes, int line = __builtin_LINE()) {
  if (reinterpret_cast<size_t>(p) % bytes != 0) runtime->fail(line, "an access is not aligned to its size");
}
inline void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, int line) {
  runtime->copy_async(shared, global, bytes, valid, line);
}
inline void copy_async_commit() { runtime->copy_async_commit(); }
inline void copy_async_wait(int groups, int line) { runtime->copy_async_wait(groups, line); }
using Mbarrier = unsigned long long;
inline void mbarrier_init(Mbarrier* b, unsigned arrivals, int line) { runtime->mbarrier_init(b, arrivals, line); }
inline void mbarrier_arrive(Mbarrier* b, int line) { runtime->mbarrier_arrive(b, line); }
inline void mbarrier_expect(Mbarrier* b, unsigned bytes, int line) { runtime->mbarrier_expect(b, bytes, line); }
inline bool mbarrier_try_wait(Mbarrier* b, unsigned parity, int line) {
  return runtime->mbarrier_try_wait(b, parity, line);
}
inline void copy_bulk(void* shared, const void* global, unsigned bytes, Mbarrier* b, int line) {
  runtime->copy_bulk(shared, global, bytes, b, line);
}
inline void cluster_arrive(int line) { runtime->cluster_arrive(line); }
inline void cluster_wait(int line) { runtime->cluster_wait(line); }
template <class T>
inline T* cluster_pointer(T* own, unsigned rank, int line) {
  return static_cast<T*>(runtime->cluster_pointer(own, rank, line));
}
inline void store_async(void* own, const unsigned* words, Mbarrier* b, unsigned rank, int line) {
  runtime->store_async(own, words, b, rank, line);
}
inline unsigned to_tf32(unsigned bits) {  // nearest, ties away from zero; NaN and infinity stay
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
}
inline void mbarrier_fence(int line) { runtime->mbarrier_fence(line); }
inline void fence_async(int line) { runtime->fence_async(line); }
inline void mbarrier_arrive_remote(Mbarrier* b, unsigned rank, int line) {
  runtime->mbarrier_arrive_remote(b, rank, line);
}
inline void copy_bulk_multicast(void* shared, const void* global, unsigned bytes, Mbarrier* b, unsigned blocks,
                                int line) {
  runtime->copy_bulk_multicast(shared, global, bytes, b, blocks, line);
}
inline void store_bulk(void* global, const void* shared, unsigned bytes, int line) {
  runtime->store_bulk(global, shared, bytes, line);
}
inline void store_bulk_commit(int line) { runtime->store_bulk_commit(line); }
inline void store_bulk_wait(unsigned groups, bool read, int line) { runtime->store_bulk_wait(groups, read, line); }
inline void prefetch_bulk(const void* global, unsigned bytes, int line) { runtime->prefetch_bulk(global, bytes, line); }
inline void check_tensor_map(const void* map, int line) { runtime->check_tensor_map(map, line); }
inline void copy_tile(void* shared, const void* map, const int* at, int rank, Mbarrier* b, unsigned blocks, int line) {
  runtime->copy_tile(shared, map, at, rank, b, blocks, line);
}
inline unsigned shared_address(const void* p) { return runtime->shared_address(p); }
inline void hold(const float* accumulators, unsigned count, int line) { runtime->hold(accumulators, count, line); }
inline void named_barrier(unsigned id, unsigned threads, bool waits, int line) {
  WarpCall call = {warp_named_barrier, ~0u, line, static_cast<int>(id), {}, {}};
  call.operand.barrier = {threads, waits};
  runtime->named_barrier(&call);
}
inline void warp_call(WarpOperation operation, int detail, int line) {
  WarpCall call = {operation, ~0u, line, detail, {}, {}};
  runtime->warp(&call);
}
inline void set_registers(unsigned count, bool more, int line) {
  warp_call(warp_registers, more ? static_cast<int>(count) : -static_cast<int>(count), line);
}
inline void wgmma_fence(int line) { warp_call(warp_wgmma_fence, 0, line); }
inline void wgmma_commit(int line) { warp_call(warp_wgmma_commit, 0, line); }
inline void wgmma_wait(unsigned groups, int line) { warp_call(warp_wgmma_wait, static_cast<int>(groups), line); }
inline void wgmma(float* d, unsigned n, unsigned type, Mbarrier a_descriptor, const unsigned* a, Mbarrier b_descriptor,
                  bool accumulate, unsigned a_major, unsigned b_major, int a_sign, int b_sign, int line) {
  WarpCall call = {warp_wgmma, ~0u, line, 0, {}, {}};
  call.operand.product = {d,
                          a,
                          a_descriptor,
                          b_descriptor,
                          n,
                          static_cast<MmaType>(type),
                          accumulate,
                          static_cast<int>(a_major),
                          static_cast<int>(b_major),
                          a_sign,
                          b_sign};
  runtime->warp(&call);
}
inline bool elect(int line) {
  WarpCall call = {warp_elect, ~0u, line, 0, {}, {}};
  runtime->warp(&call);
  return call.result.value != 0;
}
inline void store_matrices(const unsigned* registers, void* row, int count, bool transposed, int line) {
  WarpCall call = {warp_store_matrices, ~0u, line, transposed ? -count : count, {}, {}};
  call.operand.store.row = row;
  for (int i = 0; i < count; ++i) call.operand.store.words[i] = registers[i];
  runtime->warp(&call);
}
inline void load_matrices(unsigned* registers, const void* row, int count, bool transposed, int line) {
  WarpCall call = {warp_matrices, ~0u, line, transposed ? -count : count, {}, {}};
  call.operand.row = row;
  runtime->warp(&call);
  for (int i = 0; i < count; ++i) registers[i] = call.result.words[i];
}
inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], MmaType type, int line) {
  WarpCall call = {warp_mma, ~0u, line, type, {}, {}};
  memcpy(call.operand.tile.a, a, sizeof a);
  memcpy(call.operand.tile.b, b, sizeof b);
  memcpy(call.operand.tile.c, c, sizeof c);
  runtime->warp(&call);
  memcpy(c, call.result.c, sizeof c);
}
template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  WarpCall call = {warp_shuffle, mask, line, static_cast<int>(source), {}, {}};
  memcpy(&call.operand.value, &value, sizeof value);
  runtime->warp(&call);
  memcpy(&value, &call.result.value, sizeof value);
  return value;
}
inline unsigned ballot(unsigned mask, bool value, int line) {
  WarpCall call = {warp_ballot, mask, line, 0, {}, {}};
  call.operand.value = value;
  runtime->warp(&call);
  return static_cast<unsigned>(call.result.value);
}
inline unsigned lane() { return self().thread.x % 32; }

template <class A>
void call_kernel(void (*kernel)(A), const void* arguments) {
  kernel(*static_cast<const A*>(arguments));
}
template <class A>
constexpr unsigned long long argument_bytes(void (*)(A)) {
  return sizeof(A);
}
// The limits that __launch_bounds__ gives a kernel.
struct Bounds {
  unsigned threads, blocks;
};
constexpr Bounds bounds(unsigned threads = 0, unsigned blocks = 1, unsigned = 0) { return {threads, blocks}; }

}  // namespace fwemu

#define threadIdx (fwemu::self().thread)
#define blockIdx (fwemu::self().block)
#define blockDim (fwemu::self().block_size)
#define gridDim (fwemu::self().grid_size)
constexpr int warpSize = 32;

// ---------------------------------------------------------------- waiting and exchange

#define FWEMU_LINE int line = __builtin_LINE()
inline void __syncthreads(FWEMU_LINE) { fwemu::runtime->barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, FWEMU_LINE) {
  fwemu::WarpCall call = {fwemu::warp_sync, mask, line, 0, {}, {}};
  fwemu::runtime->warp(&call);
}
template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32, FWEMU_LINE) {
  const unsigned first = fwemu::lane() & ~unsigned(width - 1);
  return fwemu::shuffle(mask, value, first | (from & (width - 1)), line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, FWEMU_LINE) {
  const unsigned lane = fwemu::lane(), from = lane ^ bits;
  return fwemu::shuffle(mask, value, from > (lane | unsigned(width - 1)) ? lane : from, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, FWEMU_LINE) {
  const unsigned lane = fwemu::lane(), from = lane + by;
  return fwemu::shuffle(mask, value, from > (lane | unsigned(width - 1)) ? lane : from, line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, FWEMU_LINE) {
  const unsigned lane = fwemu::lane();
  return fwemu::shuffle(mask, value, (lane & unsigned(width - 1)) < by ? lane : lane - by, line);
}
inline unsigned __ballot_sync(unsigned mask, int value, FWEMU_LINE) { return fwemu::ballot(mask, value != 0, line); }
inline int __any_sync(unsigned mask, int value, FWEMU_LINE) { return fwemu::ballot(mask, value != 0, line) != 0; }
inline int __all_sync(unsigned mask, int value, FWEMU_LINE) { return fwemu::ballot(mask, value != 0, line) == mask; }
#undef FWEMU_LINE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---------------------------------------------------------------- memory

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
template <class T>
inline void __stcg(T* p, T value) {
  *p = value;
}

// Blocks run in several threads of the system. FWEMU_RACES leaves these alone: they are no races.
#ifdef __clang__  // whose no_sanitize still turns atomics into calls; so does what these are inlined into
#define FWEMU_UNTOLD __attribute__((disable_sanitizer_instrumentation, noinline)) inline
#else
#define FWEMU_UNTOLD __attribute__((no_sanitize("thread"))) inline
#endif
#define FWEMU_ATOMIC(type)                                                                                   \
  FWEMU_UNTOLD type atomicAdd(type* p, type v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }        \
  FWEMU_UNTOLD type atomicExch(type* p, type v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }      \
  FWEMU_UNTOLD type atomicCAS(type* p, type expected, type v) {                                              \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                 \
    return expected;                                                                                         \
  }                                                                                                          \
  FWEMU_UNTOLD type atomicMax(type* p, type v) {                                                             \
    type old = *p;                                                                                           \
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { \
    }                                                                                                        \
    return old;                                                                                              \
  }
FWEMU_ATOMIC(int)
FWEMU_ATOMIC(unsigned)
FWEMU_ATOMIC(unsigned long long)
#undef FWEMU_ATOMIC
FWEMU_UNTOLD float atomicAdd(float* p, float v) {
  float old = *p, sum = old + v;
  while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) sum = old + v;
  return old;
}
#undef FWEMU_UNTOLD

// ---------------------------------------------------------------- arithmetic

inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline float rsqrtf(float a) { return 1 / __builtin_sqrtf(a); }  // the device's is off by up to 2 ulp
inline double rsqrt(double a) { return 1 / __builtin_sqrt(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b >> 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

// ---------------------------------------------------------------- every access to memory

// -fsanitize=thread puts a call in front of each; its library is not linked, these are called instead.
#ifdef FWEMU_RACES
#define FWEMU_HOOK extern "C" __attribute__((no_sanitize("thread"))) void
#define FWEMU_ACCESS(name, bytes)                                                                                 \
  FWEMU_HOOK __tsan_read##name(void* p) { fwemu::runtime->access(p, bytes, false, __builtin_return_address(0)); } \
  FWEMU_HOOK __tsan_write##name(void* p) { fwemu::runtime->access(p, bytes, true, __builtin_return_address(0)); } \
  FWEMU_HOOK __tsan_unaligned_read##name(void* p) {                                                               \
    fwemu::runtime->access(p, bytes, false, __builtin_return_address(0));                                         \
  }                                                                                                               \
  FWEMU_HOOK __tsan_unaligned_write##name(void* p) {                                                              \
    fwemu::runtime->access(p, bytes, true, __builtin_return_address(0));                                          \
  }
FWEMU_ACCESS(1, 1)
FWEMU_ACCESS(2, 2)
FWEMU_ACCESS(4, 4)
FWEMU_ACCESS(8, 8)
FWEMU_ACCESS(16, 16)
#undef FWEMU_ACCESS
FWEMU_HOOK __tsan_read_range(void* p, size_t n) { fwemu::runtime->access(p, n, false, __builtin_return_address(0)); }
FWEMU_HOOK __tsan_write_range(void* p, size_t n) { fwemu::runtime->access(p, n, true, __builtin_return_address(0)); }
FWEMU_HOOK __tsan_init() {}
FWEMU_HOOK __tsan_func_entry(void*) {}
FWEMU_HOOK __tsan_func_exit() {}
#undef FWEMU_HOOK
#endif

#endif  // FUSEWRIGHT_EMULATOR_H
