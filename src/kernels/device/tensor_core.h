// Asynchronous products of a warpgroup (wgmma, sm_90a), the descriptors of their operands, and stores of matrices.
//
// Needs prelude.h, cuda_device.h, shapes.h and wgmma_registers.h in front; includes nothing. mma and ldmatrix stand in
// cuda_device.h.
#ifndef FW_KERNELS_DEVICE_TENSOR_CORE_H
#define FW_KERNELS_DEVICE_TENSOR_CORE_H

namespace fw {

template <class T>
constexpr OperandType operand_type = OperandType(-1);
template <>
constexpr OperandType operand_type<half> = operand_f16;
template <>
constexpr OperandType operand_type<bfloat16> = operand_bf16;
template <>
constexpr OperandType operand_type<tf32> = operand_tf32;

#if FW_SM90

// ---------------------------------------------------------------- stores of matrices

// Writes N (1, 2 or 4) matrices of 8 rows of 16 bytes to shared memory: what load_matrices reads.
template <int N, bool transposed = false>
FW_FN void store_matrices(void* row, const u32 (&r)[N] FW_AND_CALLER) {
  static_assert(N == 1 || N == 2 || N == 4, "stmatrix writes 1, 2 or 4 matrices");
#ifdef FW_EMULATOR
  fwemu::store_matrices(r, row, N, transposed, line);
#else
#define FW_STMATRIX(count, trans, registers, ...)                                        \
  asm volatile("stmatrix.sync.aligned.m8n8." count trans ".shared.b16 [%0], {" registers \
               "};" ::"r"(shared_address(row)),                                          \
               __VA_ARGS__                                                               \
               : "memory")
  if constexpr (N == 1 && !transposed) FW_STMATRIX("x1", "", "%1", "r"(r[0]));
  if constexpr (N == 1 && transposed) FW_STMATRIX("x1", ".trans", "%1", "r"(r[0]));
  if constexpr (N == 2 && !transposed) FW_STMATRIX("x2", "", "%1, %2", "r"(r[0]), "r"(r[1]));
  if constexpr (N == 2 && transposed) FW_STMATRIX("x2", ".trans", "%1, %2", "r"(r[0]), "r"(r[1]));
  if constexpr (N == 4 && !transposed)
    FW_STMATRIX("x4", "", "%1, %2, %3, %4", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
  if constexpr (N == 4 && transposed)
    FW_STMATRIX("x4", ".trans", "%1, %2, %3, %4", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
#undef FW_STMATRIX
#endif
}

// ---------------------------------------------------------------- operands in shared memory

// Returns the first address from `p` on where a swizzle's pattern may begin. The launch asks for pattern_bytes more.
FW_FN char* align_to_pattern(char* p, Swizzle swizzle = swizzle_128) {
#ifdef FW_EMULATOR
  const u32 address = fwemu::shared_address(p);
#else
  const u32 address = shared_address(p);
#endif
  return p + (0u - address) % pattern_bytes(swizzle);
}

// Describes an operand; shapes.h says what `leading` and `stride` are.
FW_FN u64 describe(const void* start, u32 leading, u32 stride, Swizzle swizzle = swizzle_none) {
#ifdef FW_EMULATOR
  return encode({fwemu::shared_address(start), leading, stride, swizzle});
#else
  return encode({shared_address(start), leading, stride, swizzle});
#endif
}

// ---------------------------------------------------------------- order of products

// All of these are called by all threads of a warpgroup.

// Orders what the threads did with accumulators, and with registers that hold A, before the products that follow.
// Needed before the first product and after every such access. What threads wrote to shared memory needs a
// fence_async() and a barrier besides.
FW_FN void wgmma_fence(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::wgmma_fence(line);
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Closes the group of the products since the last one.
FW_FN void wgmma_commit(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::wgmma_commit(line);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most the last `groups` of the groups are under way. Accumulators of the others may be read behind
// hold(). Their operands may be overwritten, as far as this warp's part of the product is concerned: each warp tells
// the thread that overwrites them.
template <u32 groups>
FW_FN void wgmma_wait(FW_CALLER) {
#ifdef FW_EMULATOR
  fwemu::wgmma_wait(groups, line);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
#endif
}

// Accumulators whose products have ended: keeps the compiler from moving accesses to them before the wait above.
template <u32 count>
FW_FN void hold(float (&accumulators)[count] FW_AND_CALLER) {
#ifdef FW_EMULATOR
  fwemu::hold(accumulators, count, line);
#else
#pragma unroll
  for (u32 i = 0; i < count; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
#endif
}

// ---------------------------------------------------------------- products

// FW_WGMMA(n) defines, in the namespace where it stands, for a width n that is a multiple of 8 up to 256:
//   wgmma<T, a_major, b_major, a_sign, b_sign>(d, a, b, accumulate)   d = a b, or d += a b to accumulate
//   T            half or bfloat16 (k = 16), or tf32 (k = 8)
//   d            float[n / 2]: this thread's part of 64 x n
//   a            a descriptor, or u32[4]: this thread's part of A. These stay as they are until the wait.
//   b            a descriptor
//   a_major, b_major   k_major or mn_major; T and registers permitting
//   a_sign, b_sign     1 or -1: what the operand is multiplied by
// Called by all threads of a warpgroup, with the same descriptors. The product runs on after the call: nobody may touch
// d until wgmma_wait and hold, except other products of the same width.
template <class T, u32 n, Major a_major, Major b_major, int a_sign, int b_sign>
FW_FN constexpr void check_wgmma() {
  static_assert(operand_type<T> <= operand_tf32, "wgmma multiplies half, bfloat16 and tf32");
  static_assert(is_wgmma_width(n), "the width of wgmma is a multiple of 8 up to 256");
  static_assert(can_transpose(operand_type<T>) || (a_major == k_major && b_major == k_major),
                "wgmma reads tf32 operands along k only");
  static_assert((a_sign == 1 || a_sign == -1) && (b_sign == 1 || b_sign == -1), "a sign is 1 or -1");
}

#ifdef FW_EMULATOR
#define FW_WGMMA(n)                                                                                                    \
  template <class T, fw::Major a_major = fw::k_major, fw::Major b_major = fw::k_major, int a_sign = 1, int b_sign = 1> \
  FW_FN void wgmma(float(&d)[n / 2], fw::u64 a, fw::u64 b, bool accumulate FW_AND_CALLER) {                            \
    fw::check_wgmma<T, n, a_major, b_major, a_sign, b_sign>();                                                         \
    fwemu::wgmma(d, n, fw::operand_type<T>, a, nullptr, b, accumulate, a_major, b_major, a_sign, b_sign, line);        \
  }                                                                                                                    \
  template <class T, fw::Major b_major = fw::k_major, int a_sign = 1, int b_sign = 1>                                  \
  FW_FN void wgmma(float(&d)[n / 2], const fw::u32(&a)[4], fw::u64 b, bool accumulate FW_AND_CALLER) {                 \
    fw::check_wgmma<T, n, fw::k_major, b_major, a_sign, b_sign>();                                                     \
    fwemu::wgmma(d, n, fw::operand_type<T>, 0, a, b, accumulate, fw::k_major, b_major, a_sign, b_sign, line);          \
  }
#else
// i0 ... are the operands that follow the accumulators: with A in shared memory a, b, accumulate, both signs, both
// majors; else the 4 registers of a, b, accumulate, both signs, the major of b.
#define FW_WGMMA_HEAD(n, shape, accumulate)                                                      \
  "{ .reg .pred p; setp.ne.b32 p, " accumulate ", 0; wgmma.mma_async.sync.aligned.m64n" #n shape \
  " {" FW_WGMMA_NAMES_##n "}, "
#define FW_WGMMA_SHARED(n, shape, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  FW_WGMMA_HEAD(n, shape, i2) i0 ", " i1 ", p, " i3 ", " i4 ", " i5 ", " i6 "; }"
#define FW_WGMMA_SHARED_TF32(n, shape, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  FW_WGMMA_HEAD(n, shape, i2) i0 ", " i1 ", p, " i3 ", " i4 "; }"
#define FW_WGMMA_REGISTERS(n, shape, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  FW_WGMMA_HEAD(n, shape, i5) "{" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", p, " i6 ", " i7 ", " i8 "; }"
#define FW_WGMMA_REGISTERS_TF32(n, shape, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  FW_WGMMA_HEAD(n, shape, i5) "{" i0 ", " i1 ", " i2 ", " i3 "}, " i4 ", p, " i6 ", " i7 "; }"
#define FW_WGMMA_CALL(form, ...) form(__VA_ARGS__)
#define FW_WGMMA_ASM(form, n, shape, ...) \
  asm volatile(FW_WGMMA_CALL(form, n, shape, FW_WGMMA_NUMBERS_##n) : FW_WGMMA_VALUES_##n : __VA_ARGS__)

#define FW_WGMMA_FROM_SHARED(form, n, shape)                                                                          \
  FW_WGMMA_ASM(form, n, shape, "l"(a), "l"(b), "r"(fw::u32(accumulate)), "n"(a_sign), "n"(b_sign), "n"(int(a_major)), \
               "n"(int(b_major)))
#define FW_WGMMA_FROM_REGISTERS(form, n, shape)                                                              \
  FW_WGMMA_ASM(form, n, shape, "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fw::u32(accumulate)), \
               "n"(a_sign), "n"(b_sign), "n"(int(b_major)))

#define FW_WGMMA(n)                                                                                                    \
  template <class T, fw::Major a_major = fw::k_major, fw::Major b_major = fw::k_major, int a_sign = 1, int b_sign = 1> \
  FW_FN void wgmma(float(&d)[n / 2], fw::u64 a, fw::u64 b, bool accumulate) {                                          \
    fw::check_wgmma<T, n, a_major, b_major, a_sign, b_sign>();                                                         \
    if constexpr (fw::operand_type<T> == fw::operand_f16) FW_WGMMA_FROM_SHARED(FW_WGMMA_SHARED, n, "k16.f32.f16.f16"); \
    if constexpr (fw::operand_type<T> == fw::operand_bf16)                                                             \
      FW_WGMMA_FROM_SHARED(FW_WGMMA_SHARED, n, "k16.f32.bf16.bf16");                                                   \
    if constexpr (fw::operand_type<T> == fw::operand_tf32)                                                             \
      FW_WGMMA_FROM_SHARED(FW_WGMMA_SHARED_TF32, n, "k8.f32.tf32.tf32");                                               \
  }                                                                                                                    \
  template <class T, fw::Major b_major = fw::k_major, int a_sign = 1, int b_sign = 1>                                  \
  FW_FN void wgmma(float(&d)[n / 2], const fw::u32(&a)[4], fw::u64 b, bool accumulate) {                               \
    fw::check_wgmma<T, n, fw::k_major, b_major, a_sign, b_sign>();                                                     \
    if constexpr (fw::operand_type<T> == fw::operand_f16)                                                              \
      FW_WGMMA_FROM_REGISTERS(FW_WGMMA_REGISTERS, n, "k16.f32.f16.f16");                                               \
    if constexpr (fw::operand_type<T> == fw::operand_bf16)                                                             \
      FW_WGMMA_FROM_REGISTERS(FW_WGMMA_REGISTERS, n, "k16.f32.bf16.bf16");                                             \
    if constexpr (fw::operand_type<T> == fw::operand_tf32)                                                             \
      FW_WGMMA_FROM_REGISTERS(FW_WGMMA_REGISTERS_TF32, n, "k8.f32.tf32.tf32");                                         \
  }
#endif

#endif  // FW_SM90

}  // namespace fw

#endif  // FW_KERNELS_DEVICE_TENSOR_CORE_H
