// Prototype: BatchNorm1d(training) + bias + /value + Swish, forward and backward, x[65536][512] f32,
// as ONE persistent kernel per direction that keeps part of the input on the chip between its two passes.
//   nvcc -O3 -std=c++17 -arch=sm_90a -Xptxas -v batch_norm_on_chip.cu -o batch_norm_on_chip
//   ./batch_norm_on_chip [flush: 0 = write 256 MB (default), 1 = write 256 MB then read another 256 MB]
#include <cuda_runtime.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CK(e)                                                                         \
  do {                                                                                \
    cudaError_t e_ = (e);                                                             \
    if (e_ != cudaSuccess) {                                                          \
      printf("CUDA error %s at line %d: %s\n", #e, __LINE__, cudaGetErrorString(e_)); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

typedef unsigned long long u64;
constexpr int N = 65536, C = 512, C4 = C / 4;
constexpr int KMAX = 112;  // 2 KB row slots of shared memory
constexpr int CH = 8;      // rows per bulk-copy chunk / mbarrier
constexpr int NCOPY = 4;   // COMB 2: copies of the accumulators
constexpr int NROT = 3;    // input buffers rotated between samples
constexpr float EPS = 1e-5f;
constexpr int SMEM = KMAX * 2048 + 2048 + 256;  // held rows + reduction row + mbarriers

struct P {
  const float *x, *g;
  float* out;
  const float *w, *b, *bias;
  float inv_value;
  float *mean, *rstd;  // forward: written (saved); backward: read
  float *dgamma, *dbeta;
  float* part;  // [G][1024]
  float* acc;   // [3][NCOPY][1024]
  float* fin;   // [2][512]
  unsigned* bar;
  int K, l2rows, pf, order, issue, stop, epoch;
  u64 pol_hold, pol_keep, pol_far, pol_re, pol_st;
};

// ------------------------------------------------------------------ small device helpers
template <bool HINT>
__device__ __forceinline__ float4 ldg4(const float4* p, u64 pol) {
  float4 v;
  if (HINT)
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p), "l"(pol));
  else
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
  return v;
}
template <bool HINT>
__device__ __forceinline__ void stg4(float4* p, float4 v, u64 pol) {
  if (HINT)
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w), "l"(pol)
                 : "memory");
  else
    asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ __forceinline__ float ex2f(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
__device__ __forceinline__ float rcpf(float a) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
__device__ __forceinline__ float sigm(float z) { return rcpf(1.f + ex2f(z * -1.4426950408889634f)); }
__device__ __forceinline__ float swish(float v, float a, float b) {
  float z = fmaf(v, a, b);
  return z * sigm(z);
}
__device__ __forceinline__ float gprime(float v, float g, float a, float b) {  // g * swish'(z)
  float z = fmaf(v, a, b), s = sigm(z);
  return g * s * fmaf(z, 1.f - s, 1.f);
}
__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ uint32_t sptr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void mbar_init(uint64_t* m, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sptr(m)), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint64_t* m, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sptr(m)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait0(uint64_t* m) {
  asm volatile(
      "{\n .reg .pred p;\n W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n @p bra D;\n bra W;\n D:\n}" ::"r"(
          sptr(m))
      : "memory");
}
__device__ __forceinline__ void bulk_g2s(void* dst, const void* src, int bytes, uint64_t* m, u64 pol) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(sptr(dst)),
      "l"(src), "r"(bytes), "r"(sptr(m)), "l"(pol)
      : "memory");
}
__device__ __forceinline__ void bulk_prefetch(const void* src, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void pref_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Grid barrier: one monotonic counter (a multiple of gridDim.x between launches), never reset.
__device__ __forceinline__ void grid_bar(unsigned* bar) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned old, now, G = gridDim.x, it = 0;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;" : "=r"(old) : "l"(bar) : "memory");
    unsigned target = (old / G + 1) * G;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(bar) : "memory");
      if (++it > 20000000u) __trap();
    } while ((int)(now - target) < 0);
  }
  __syncthreads();
}
__device__ __forceinline__ void red4(float* p, float4 v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
// Sum over the ROWS threads of a column through one 2 KB row; the total ends in ty == ROWS-1.
template <int ROWS>
__device__ __forceinline__ float4 chain(float4 v, float4* red, int tx, int ty) {
#pragma unroll
  for (int k = 0; k < ROWS; k++) {
    if (ty == k) {
      if (k) v = add4(v, red[tx]);
      if (k < ROWS - 1) red[tx] = v;
    }
    __syncthreads();
  }
  return v;
}
template <int ROWS>
__device__ __forceinline__ float4 chain_all(float4 v, float4* red, int tx, int ty) {
  v = chain<ROWS>(v, red, tx, ty);
  if (ty == ROWS - 1) red[tx] = v;
  __syncthreads();
  v = red[tx];
  __syncthreads();
  return v;
}

// ---- what the two sums per column become
struct FwdFin {  // a = sum(x - x0), q = sum((x - x0)^2)  ->  y = swish(x * o0 + o1)
  static __device__ __forceinline__ void f(const P& p, int c, float a, float q, bool save, float& o0, float& o1) {
    float x0 = __ldg(p.x + c), m = a * (1.f / N), var = fmaxf(fmaf(-m, m, q * (1.f / N)), 0.f);
    float rs = rsqrtf(var + EPS), mean = x0 + m, sw = rs * __ldg(p.w + c);
    o0 = sw * p.inv_value;
    o1 = (__ldg(p.b + c) + __ldg(p.bias) - mean * sw) * p.inv_value;
    if (save) {
      p.mean[c] = mean;
      p.rstd[c] = rs;
    }
  }
};
struct BwdFin {  // a = sum g', q = sum g' (x - mean)  ->  dx = A g' + o0 x + o1
  static __device__ __forceinline__ void f(const P& p, int c, float a, float q, bool save, float& o0, float& o1) {
    float rs = __ldg(p.rstd + c), mean = __ldg(p.mean + c), c1 = rs * __ldg(p.w + c) * p.inv_value;
    o0 = -c1 * rs * rs * q * (1.f / N);
    o1 = -c1 * a * (1.f / N) - o0 * mean;
    if (save) {
      p.dgamma[c] = q * rs * p.inv_value;
      p.dbeta[c] = a * p.inv_value;
    }
  }
};

// Block sums -> grid sums -> (o0, o1) for this thread's 4 columns. False: stop here (timing of pass 1).
// COMB 0: partials, one barrier, every block sums all partials from L2
// COMB 1: partials, barrier, 128 blocks sum 4 columns each, barrier
// COMB 2: vector reductions into NCOPY accumulators, one barrier
template <int ROWS, int COMB, class FIN>
__device__ __forceinline__ bool combine(const P& p, float4 s, float4 q, float4* red, int tx, int ty, float4& o0,
                                        float4& o1) {
  const int b = blockIdx.x, G = gridDim.x;
  float* acc = p.acc + (size_t)(p.epoch % 3) * NCOPY * 1024;
  s = chain<ROWS>(s, red, tx, ty);
  q = chain<ROWS>(q, red, tx, ty);
  if (ty == ROWS - 1) {
    if (COMB == 2) {
      float* a = acc + (b % NCOPY) * 1024 + tx * 4;
      red4(a, s);
      red4(a + 512, q);
    } else {
      __stcg((float4*)(p.part + (size_t)b * 1024) + tx, s);
      __stcg((float4*)(p.part + (size_t)b * 1024 + 512) + tx, q);
    }
  }
  if (threadIdx.x == 0) {  // the small vectors may have been streamed out of L2 by now
    const int c = (b & 127) * 4;
    pref_l2(p.w + c);
    pref_l2(p.b + c);
    pref_l2(p.bias);
    pref_l2(p.x + c);
    pref_l2(p.mean + c);
    pref_l2(p.rstd + c);
  }
  if (p.stop == 1) return false;
  grid_bar(p.bar);
  if (COMB == 1) {
    float* rs = (float*)red;
#pragma unroll 1
    for (int j = b; j < C4; j += G) {  // 8 warps: 4 columns x 2 sums, few registers (the held rows are live here)
      const int wp = threadIdx.x >> 5, l = threadIdx.x & 31;
      if (wp < 8) {
        const float* src = p.part + (wp >> 2) * 512 + j * 4 + (wp & 3);
        float v[5];
#pragma unroll
        for (int k = 0; k < 5; k++) v[k] = l + 32 * k < G ? __ldcg(src + (size_t)(l + 32 * k) * 1024) : 0.f;
        float a = (v[0] + v[1]) + (v[2] + v[3]) + v[4];
#pragma unroll
        for (int o = 16; o; o >>= 1) a += __shfl_xor_sync(~0u, a, o);
        if (l == 0) rs[wp] = a;
      }
      __syncthreads();
      if (threadIdx.x < 4) {
        float u, v;
        FIN::f(p, j * 4 + threadIdx.x, rs[threadIdx.x], rs[4 + threadIdx.x], true, u, v);
        __stcg(p.fin + j * 4 + threadIdx.x, u);
        __stcg(p.fin + 512 + j * 4 + threadIdx.x, v);
      }
      if (j + G < C4) __syncthreads();
    }
    grid_bar(p.bar);
    o0 = __ldcg((const float4*)p.fin + tx);
    o1 = __ldcg((const float4*)(p.fin + 512) + tx);
  } else {
    float4 a = make_float4(0, 0, 0, 0), c = a;
    if (COMB == 0) {
#pragma unroll 4
      for (int i = ty; i < G; i += ROWS) {
        a = add4(a, __ldcg((const float4*)(p.part + (size_t)i * 1024) + tx));
        c = add4(c, __ldcg((const float4*)(p.part + (size_t)i * 1024 + 512) + tx));
      }
      a = chain_all<ROWS>(a, red, tx, ty);
      c = chain_all<ROWS>(c, red, tx, ty);
    } else {
#pragma unroll
      for (int i = 0; i < NCOPY; i++) {
        a = add4(a, __ldcg((const float4*)(acc + i * 1024) + tx));
        c = add4(c, __ldcg((const float4*)(acc + i * 1024 + 512) + tx));
      }
    }
    bool save = b == 0 && ty == 0;
    FIN::f(p, tx * 4 + 0, a.x, c.x, save, o0.x, o1.x);
    FIN::f(p, tx * 4 + 1, a.y, c.y, save, o0.y, o1.y);
    FIN::f(p, tx * 4 + 2, a.z, c.z, save, o0.z, o1.z);
    FIN::f(p, tx * 4 + 3, a.w, c.w, save, o0.w, o1.w);
  }
  return p.stop != 2;
}
// start of both kernels: mbarriers; COMB 2 zeroes the accumulators of its next launch
template <int COMB>
__device__ __forceinline__ void prologue(const P& p, uint64_t* mb) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < KMAX / CH; i++) mbar_init(mb + i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (COMB == 2 && blockIdx.x == gridDim.x - 1) {
    float* z = p.acc + (size_t)((p.epoch + 1) % 3) * NCOPY * 1024;
    for (int i = threadIdx.x; i < NCOPY * 1024; i += blockDim.x) z[i] = 0.f;
  }
  __syncthreads();
}

// ------------------------------------------------------------------ forward
// Rows of a block: [0,nfar) streamed, [nfar,nstream) streamed and hoped for in L2,
// R*ROWS rows in registers, the last K rows in shared memory.
template <int T, int R, int COMB, bool HINT, int U>
__global__ void __launch_bounds__(T, 1) fwd(const __grid_constant__ P p) {
  constexpr int ROWS = T / 128, BR = U * ROWS;
  extern __shared__ __align__(128) unsigned char sm[];
  float4* hold = (float4*)sm;
  float4* red = (float4*)(sm + KMAX * 2048);
  uint64_t* mb = (uint64_t*)(sm + KMAX * 2048 + 2048);
  const int tx = threadIdx.x & 127, ty = threadIdx.x >> 7;
  const int r0 = (int)((long long)blockIdx.x * N / gridDim.x);
  const int n = (int)((long long)(blockIdx.x + 1) * N / gridDim.x) - r0;
  const int K = p.K, nstream = n - K - R * ROWS;
  const int nfar = max(0, nstream - p.l2rows) / BR * BR;
  const float4* xb = (const float4*)p.x + (size_t)r0 * C4 + tx;
  float4* yb = (float4*)p.out + (size_t)r0 * C4 + tx;

  prologue<COMB>(p, mb);
  auto issue = [&]() {
    if (threadIdx.x == 0)
      for (int c = 0; c < K / CH; c++) {
        mbar_expect(mb + c, CH * 2048);
        bulk_g2s(hold + c * CH * C4, xb + (nstream + R * ROWS + c * CH) * C4, CH * 2048, mb + c, p.pol_hold);
      }
  };
  if (p.issue == 0) issue();

  const float4 x0 = __ldg((const float4*)p.x + tx);
  float4 s = make_float4(0, 0, 0, 0), q = s;
  auto acc = [&](float4 v) {
    float a = v.x - x0.x, b = v.y - x0.y, c = v.z - x0.z, d = v.w - x0.w;
    s.x += a;
    s.y += b;
    s.z += c;
    s.w += d;
    q.x = fmaf(a, a, q.x);
    q.y = fmaf(b, b, q.y);
    q.z = fmaf(c, c, q.z);
    q.w = fmaf(d, d, q.w);
  };
  // ---- pass 1
#pragma unroll 1
  for (int part = 0; part < 2; part++) {
    const int hi = part ? nstream : nfar;
    const u64 pol = part ? p.pol_keep : p.pol_far;
    if (part == 1 && p.issue == 1) issue();
    int base = part ? nfar : 0;
#pragma unroll 1
    for (; base + BR <= hi; base += BR) {
      float4 v[U];
#pragma unroll
      for (int u = 0; u < U; u++) v[u] = ldg4<HINT>(xb + (base + u * ROWS + ty) * C4, pol);
#pragma unroll
      for (int u = 0; u < U; u++) acc(v[u]);
    }
#pragma unroll 4
    for (int r = base + ty; r < hi; r += ROWS) acc(ldg4<HINT>(xb + r * C4, pol));
  }
  float4 h[R ? R : 1];
#pragma unroll
  for (int i = 0; i < R; i++) h[i] = ldg4<HINT>(xb + (nstream + i * ROWS + ty) * C4, p.pol_hold);
  if (threadIdx.x >= T - 32)  // keep DRAM busy across the barrier
    for (int r = threadIdx.x & 31; r < p.pf; r += 32) bulk_prefetch((const float4*)p.x + (size_t)(r0 + r) * C4, 2048);
#pragma unroll 1
  for (int c = 0; c < K / CH; c++) {
    mbar_wait0(mb + c);
#pragma unroll
    for (int i = 0; i < CH / ROWS; i++) acc(hold[(c * CH + i * ROWS + ty) * C4 + tx]);
  }
#pragma unroll
  for (int i = 0; i < R; i++) acc(h[i]);

  float4 A, B;
  if (!combine<ROWS, COMB, FwdFin>(p, s, q, red, tx, ty, A, B)) {
    if (R) {  // keeps the held values alive in the pass-1-only timing
      float t = 0;
#pragma unroll
      for (int i = 0; i < R; i++) t += h[i].x * h[i].y + h[i].z * h[i].w;
      if (t == 1.2345e37f) p.out[0] = t;
    }
    return;
  }
  // ---- pass 2
  auto f = [&](float4 v) {
    return make_float4(swish(v.x, A.x, B.x), swish(v.y, A.y, B.y), swish(v.z, A.z, B.z), swish(v.w, A.w, B.w));
  };
#pragma unroll
  for (int i = 0; i < R; i++) stg4<HINT>(yb + (nstream + i * ROWS + ty) * C4, f(h[i]), p.pol_st);
  const int pf = min(p.pf, nstream);
#pragma unroll 1
  for (int ph = 0; ph < 3; ph++) {
    const int kind = p.order ? (ph + 1) % 3 : ph;  // 0: smem, prefetched, reverse   1: prefetched, reverse, smem
    if (kind == 0) {
#pragma unroll 4
      for (int r = ty; r < K; r += ROWS) stg4<HINT>(yb + (nstream + R * ROWS + r) * C4, f(hold[r * C4 + tx]), p.pol_st);
    } else {
      const int lo = kind == 1 ? 0 : pf, hi = kind == 1 ? pf : nstream;
      int e = hi;
#pragma unroll 1
      for (; e - BR >= lo; e -= BR) {
        float4 v[U];
#pragma unroll
        for (int u = 0; u < U; u++) v[u] = ldg4<HINT>(xb + (e - 1 - u * ROWS - ty) * C4, p.pol_re);
#pragma unroll
        for (int u = 0; u < U; u++) stg4<HINT>(yb + (e - 1 - u * ROWS - ty) * C4, f(v[u]), p.pol_st);
      }
#pragma unroll 1
      for (int r = e - 1 - ty; r >= lo; r -= ROWS)
        stg4<HINT>(yb + r * C4, f(ldg4<HINT>(xb + r * C4, p.pol_re)), p.pol_st);
    }
  }
}

// ------------------------------------------------------------------ backward
// Shared memory: KMAX/2 rows of x, then KMAX/2 rows of g (overwritten by g' in pass 1). p.K counts PAIRS.
template <int T, int R, int COMB, bool HINT, int U>
__global__ void __launch_bounds__(T, 1) bwd(const __grid_constant__ P p) {
  constexpr int ROWS = T / 128, BR = U * ROWS, KP = KMAX / 2;
  extern __shared__ __align__(128) unsigned char sm[];
  float4* hx = (float4*)sm;
  float4* hg = hx + KP * C4;
  float4* red = (float4*)(sm + KMAX * 2048);
  uint64_t* mb = (uint64_t*)(sm + KMAX * 2048 + 2048);
  const int tx = threadIdx.x & 127, ty = threadIdx.x >> 7;
  const int r0 = (int)((long long)blockIdx.x * N / gridDim.x);
  const int n = (int)((long long)(blockIdx.x + 1) * N / gridDim.x) - r0;
  const int K = p.K, nstream = n - K - R * ROWS;
  const int nfar = max(0, nstream - p.l2rows) / BR * BR;
  const float4* xb = (const float4*)p.x + (size_t)r0 * C4 + tx;
  const float4* gb = (const float4*)p.g + (size_t)r0 * C4 + tx;
  float4* ob = (float4*)p.out + (size_t)r0 * C4 + tx;

  prologue<COMB>(p, mb);
  auto issue = [&]() {
    if (threadIdx.x == 0)
      for (int c = 0; c < K / CH; c++) {
        const int o = (nstream + R * ROWS + c * CH) * C4;
        mbar_expect(mb + c, 2 * CH * 2048);
        bulk_g2s(hx + c * CH * C4, xb + o, CH * 2048, mb + c, p.pol_hold);
        bulk_g2s(hg + c * CH * C4, gb + o, CH * 2048, mb + c, p.pol_hold);
      }
  };
  if (p.issue == 0) issue();

  float4 A, B;
  const float4 mu = __ldg((const float4*)p.mean + tx);
  {
    float4 rs = __ldg((const float4*)p.rstd + tx), w = __ldg((const float4*)p.w + tx),
           b = __ldg((const float4*)p.b + tx);
    float bias = __ldg(p.bias), iv = p.inv_value;
    A = make_float4(rs.x * w.x * iv, rs.y * w.y * iv, rs.z * w.z * iv, rs.w * w.w * iv);
    B = make_float4((b.x + bias) * iv - mu.x * A.x, (b.y + bias) * iv - mu.y * A.y, (b.z + bias) * iv - mu.z * A.z,
                    (b.w + bias) * iv - mu.w * A.w);
  }
  float4 s = make_float4(0, 0, 0, 0), q = s;
  auto gp4 = [&](float4 v, float4 g) {
    return make_float4(gprime(v.x, g.x, A.x, B.x), gprime(v.y, g.y, A.y, B.y), gprime(v.z, g.z, A.z, B.z),
                       gprime(v.w, g.w, A.w, B.w));
  };
  auto acc = [&](float4 v, float4 g) {  // g already g'
    s = add4(s, g);
    q.x = fmaf(g.x, v.x - mu.x, q.x);
    q.y = fmaf(g.y, v.y - mu.y, q.y);
    q.z = fmaf(g.z, v.z - mu.z, q.z);
    q.w = fmaf(g.w, v.w - mu.w, q.w);
  };
  // ---- pass 1
#pragma unroll 1
  for (int part = 0; part < 2; part++) {
    const int hi = part ? nstream : nfar;
    const u64 pol = part ? p.pol_keep : p.pol_far;
    if (part == 1 && p.issue == 1) issue();
    int base = part ? nfar : 0;
#pragma unroll 1
    for (; base + BR <= hi; base += BR) {
      float4 v[U], g[U];
#pragma unroll
      for (int u = 0; u < U; u++) {
        v[u] = ldg4<HINT>(xb + (base + u * ROWS + ty) * C4, pol);
        g[u] = ldg4<HINT>(gb + (base + u * ROWS + ty) * C4, pol);
      }
#pragma unroll
      for (int u = 0; u < U; u++) acc(v[u], gp4(v[u], g[u]));
    }
#pragma unroll 1
    for (int r = base + ty; r < hi; r += ROWS) {
      float4 v = ldg4<HINT>(xb + r * C4, pol), g = ldg4<HINT>(gb + r * C4, pol);
      acc(v, gp4(v, g));
    }
  }
  float4 hv[R ? R : 1], hq[R ? R : 1];
#pragma unroll
  for (int i = 0; i < R; i++) {
    hv[i] = ldg4<HINT>(xb + (nstream + i * ROWS + ty) * C4, p.pol_hold);
    hq[i] = ldg4<HINT>(gb + (nstream + i * ROWS + ty) * C4, p.pol_hold);
  }
  if (threadIdx.x >= T - 32)
    for (int r = threadIdx.x & 31; r < p.pf; r += 32) {
      bulk_prefetch((const float4*)p.x + (size_t)(r0 + r) * C4, 2048);
      bulk_prefetch((const float4*)p.g + (size_t)(r0 + r) * C4, 2048);
    }
#pragma unroll 1
  for (int c = 0; c < K / CH; c++) {
    mbar_wait0(mb + c);
#pragma unroll
    for (int i = 0; i < CH / ROWS; i++) {
      const int o = (c * CH + i * ROWS + ty) * C4 + tx;
      float4 v = hx[o], g = gp4(v, hg[o]);
      hg[o] = g;
      acc(v, g);
    }
  }
#pragma unroll
  for (int i = 0; i < R; i++) {
    hq[i] = gp4(hv[i], hq[i]);
    acc(hv[i], hq[i]);
  }

  float4 c2, c3;
  if (!combine<ROWS, COMB, BwdFin>(p, s, q, red, tx, ty, c2, c3)) {
    if (R) {
      float t = 0;
#pragma unroll
      for (int i = 0; i < R; i++) t += hv[i].x * hv[i].y + hv[i].z * hv[i].w + hq[i].x * hq[i].y + hq[i].z * hq[i].w;
      if (t == 1.2345e37f) p.out[0] = t;
    }
    return;
  }
  // ---- pass 2
  auto fin = [&](float4 v, float4 g) {
    return make_float4(fmaf(A.x, g.x, fmaf(c2.x, v.x, c3.x)), fmaf(A.y, g.y, fmaf(c2.y, v.y, c3.y)),
                       fmaf(A.z, g.z, fmaf(c2.z, v.z, c3.z)), fmaf(A.w, g.w, fmaf(c2.w, v.w, c3.w)));
  };
#pragma unroll
  for (int i = 0; i < R; i++) stg4<HINT>(ob + (nstream + i * ROWS + ty) * C4, fin(hv[i], hq[i]), p.pol_st);
  const int pf = min(p.pf, nstream);
#pragma unroll 1
  for (int ph = 0; ph < 3; ph++) {
    const int kind = p.order ? (ph + 1) % 3 : ph;
    if (kind == 0) {
#pragma unroll 4
      for (int r = ty; r < K; r += ROWS)
        stg4<HINT>(ob + (nstream + R * ROWS + r) * C4, fin(hx[r * C4 + tx], hg[r * C4 + tx]), p.pol_st);
    } else {
      const int lo = kind == 1 ? 0 : pf, hi = kind == 1 ? pf : nstream;
      int e = hi;
#pragma unroll 1
      for (; e - BR >= lo; e -= BR) {
        float4 v[U], g[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
          v[u] = ldg4<HINT>(xb + (e - 1 - u * ROWS - ty) * C4, p.pol_re);
          g[u] = ldg4<HINT>(gb + (e - 1 - u * ROWS - ty) * C4, p.pol_re);
        }
#pragma unroll
        for (int u = 0; u < U; u++) stg4<HINT>(ob + (e - 1 - u * ROWS - ty) * C4, fin(v[u], gp4(v[u], g[u])), p.pol_st);
      }
#pragma unroll 1
      for (int r = e - 1 - ty; r >= lo; r -= ROWS) {
        float4 v = ldg4<HINT>(xb + r * C4, p.pol_re), g = ldg4<HINT>(gb + r * C4, p.pol_re);
        stg4<HINT>(ob + r * C4, fin(v, gp4(v, g)), p.pol_st);
      }
    }
  }
}

// ------------------------------------------------------------------ copies, flush, reference
__global__ void copy1(const float4* __restrict__ x, float4* __restrict__ y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i];
}
__global__ void copy1s(const float4* __restrict__ x, float4* __restrict__ y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  __stcs(y + i, __ldcs(x + i));
}
__global__ void copy2(const float4* __restrict__ x, const float4* __restrict__ g, float4* __restrict__ y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = add4(x[i], g[i]);
}
__global__ void copy2s(const float4* __restrict__ x, const float4* __restrict__ g, float4* __restrict__ y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  __stcs(y + i, add4(__ldcs(x + i), __ldcs(g + i)));
}
// the same persistent shape as fwd/bwd (one block per SM, U loads in flight), just copying / just reading
template <int T, int U, int NIN, bool WRITE>
__global__ void __launch_bounds__(T, 1) pcopy(const float4* x, const float4* g, float4* y) {
  constexpr int ROWS = T / 128;
  const int tx = threadIdx.x & 127, ty = threadIdx.x >> 7;
  const int r0 = (int)((long long)blockIdx.x * N / gridDim.x), r1 = (int)((long long)(blockIdx.x + 1) * N / gridDim.x);
  const float4* xb = x + tx;
  const float4* gb = g + tx;
  float4* yb = y + tx;
  float4 t = make_float4(0, 0, 0, 0);
  int r = r0 + ty;
  auto one = [&](int r, float4 v) {
    if (WRITE)
      stg4<false>(yb + (size_t)r * C4, v, 0);
    else
      t = add4(t, v);
  };
  for (; r + (U - 1) * ROWS < r1; r += U * ROWS) {
    float4 v[U], w[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      v[u] = ldg4<false>(xb + (size_t)(r + u * ROWS) * C4, 0);
      if (NIN == 2) w[u] = ldg4<false>(gb + (size_t)(r + u * ROWS) * C4, 0);
    }
#pragma unroll
    for (int u = 0; u < U; u++) one(r + u * ROWS, NIN == 2 ? add4(v[u], w[u]) : v[u]);
  }
  for (; r < r1; r += ROWS) {
    float4 v = ldg4<false>(xb + (size_t)r * C4, 0);
    if (NIN == 2) v = add4(v, ldg4<false>(gb + (size_t)r * C4, 0));
    one(r, v);
  }
  if (!WRITE && t.x + t.y + t.z + t.w == 1.2345e37f) yb[0] = t;
}
__global__ void flush_write(float4* p, float v) {
  p[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = make_float4(v, v, v, v);
}
__global__ void flush_read(const float4* p, float4* o) {
  float4 v = p[(size_t)blockIdx.x * blockDim.x + threadIdx.x];
  if (v.x == 1.2345e37f) o[0] = v;
}
__global__ void spin(long long cycles) {
  long long t = clock64();
  while (clock64() - t < cycles) {
  }
}
__global__ void mkpol(u64* o) {
  u64 a, b, c;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(a));
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(b));
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(c));
  o[0] = a;
  o[1] = b;
  o[2] = c;
}
__device__ __forceinline__ uint32_t hash32(uint32_t a) {
  a ^= a >> 16;
  a *= 0x7feb352du;
  a ^= a >> 15;
  a *= 0x846ca68bu;
  a ^= a >> 16;
  return a;
}
__device__ __forceinline__ float gauss(uint32_t i, uint32_t seed) {
  float u = (hash32(i * 2u + seed) + 1.f) * 2.3283064e-10f, v = hash32(i * 2u + 1u + seed * 77u) * 2.3283064e-10f;
  return sqrtf(-2.f * logf(fminf(u, 1.f))) * cospif(2.f * v);
}
__global__ void fill(float* x, float* g) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  int c = i % C;
  x[i] = gauss(i, 1u) * (0.5f + (c % 7) * 0.25f) + (c % 13 - 6) * 0.3f;
  g[i] = gauss(i, 12345u) + (c % 5) * 0.1f;
}
__global__ void fillw(float* w, float* b, float* bias) {
  int c = threadIdx.x;
  w[c] = 0.5f + (c % 11) * 0.1f;
  b[c] = (c % 9 - 4) * 0.2f;
  if (!c) *bias = 0.3f;
}
// double reference: 512 threads = columns, 256 rows a block
__global__ void ref_sums(const float* x, double* s) {
  int c = threadIdx.x;
  double a = 0, q = 0;
  for (int r = blockIdx.x * 256; r < (int)(blockIdx.x + 1) * 256; r++) {
    double v = x[(size_t)r * C + c];
    a += v;
    q += v * v;
  }
  atomicAdd(s + c, a);
  atomicAdd(s + C + c, q);
}
__global__ void ref_stats(const double* s, double* st, float* mean, float* rstd) {
  int c = threadIdx.x;
  double m = s[c] / N, v = s[C + c] / N - m * m;
  st[c] = m;
  st[C + c] = 1.0 / sqrt(v + (double)EPS);
  mean[c] = (float)m;
  rstd[c] = (float)st[C + c];
}
__device__ double ref_z(const float* x, const double* st, const float* w, const float* b, const float* bias, double val,
                        size_t i, double& xh) {
  int c = i % C;
  xh = (x[i] - st[c]) * st[C + c];
  return (xh * w[c] + b[c] + *bias) / val;
}
__global__ void ref_y(const float* x, const double* st, const float* w, const float* b, const float* bias, double val,
                      float* y) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  double xh, z = ref_z(x, st, w, b, bias, val, i, xh);
  y[i] = (float)(z / (1.0 + exp(-z)));
}
__device__ double ref_gb(double z, double g, double val) {
  double s = 1.0 / (1.0 + exp(-z));
  return g * s * (1.0 + z * (1.0 - s)) / val;
}
__global__ void ref_bsums(const float* x, const float* g, const double* st, const float* w, const float* b,
                          const float* bias, double val, double* o) {
  int c = threadIdx.x;
  double a = 0, q = 0;
  for (int r = blockIdx.x * 256; r < (int)(blockIdx.x + 1) * 256; r++) {
    size_t i = (size_t)r * C + c;
    double xh, z = ref_z(x, st, w, b, bias, val, i, xh), d = ref_gb(z, g[i], val);
    a += d;
    q += d * xh;
  }
  atomicAdd(o + c, a);
  atomicAdd(o + C + c, q);
}
__global__ void ref_dx(const float* x, const float* g, const double* st, const float* w, const float* b,
                       const float* bias, double val, const double* o, float* dx) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  int c = i % C;
  double xh, z = ref_z(x, st, w, b, bias, val, i, xh), d = ref_gb(z, g[i], val);
  dx[i] = (float)(w[c] * st[C + c] * (d - o[c] / N - xh * o[C + c] / N));
}
__global__ void maxerr(const float* a, const float* r, unsigned* m) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  float e = fabsf(a[i] - r[i]);
  if (!(e < 1e30f)) e = 1e30f;
  unsigned u = __reduce_max_sync(~0u, __float_as_uint(e));
  if ((threadIdx.x & 31) == 0 && u > *m) atomicMax(m, u);
}
__global__ void maxerr_col(const float* dg, const float* db, const double* o, unsigned* m) {  // scaled by 1 + |ref|
  int c = threadIdx.x;
  double e = fmax(fabs(db[c] - o[c]) / (1 + fabs(o[c])), fabs(dg[c] - o[C + c]) / (1 + fabs(o[C + c])));
  float f = (float)e;
  if (!(f < 1e30f)) f = 1e30f;
  atomicMax(m + 1, __float_as_uint(f));
}

// ------------------------------------------------------------------ host
struct Kern {
  const char* name;
  const void* fn;
  int T, R, U, comb;
  bool hint, back;
  int occ, regs;
  size_t local;
};
struct Cfg {
  int K = -1, l2rows = 96, pf = 0, order = 0, issue = 0, stop = 0;
  int hold = 1, keep = 2, far = 1, re = 1, st = 1;
  bool coop = true;
};
static int G, flushmode = 0, epoch = 0;
static float *X[NROT], *GR[NROT], *Y, *YREF, *DXREF, *FB, *FB2;
static P base;
static u64 pol[3];
static unsigned* errd;
static double* bsums;
static float *refmean, *refrstd;
static cudaEvent_t e0, e1;
static double copy_us[2];
static auto t_start = std::chrono::steady_clock::now();
static double elapsed() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - t_start).count(); }
constexpr size_t FLUSH = 256u << 20;

template <class F>
static double timeit(F launch, int samples) {
  std::vector<float> t;
  for (int i = 0; i < samples; i++) {
    static bool can_reset = true;  // evict_last lines of the last sample back to normal
    if (can_reset && cudaCtxResetPersistingL2Cache() != cudaSuccess) {
      cudaGetLastError();
      can_reset = false;
      printf("(cudaCtxResetPersistingL2Cache refused)\n");
    }
    flush_write<<<FLUSH / 16 / 512, 512>>>((float4*)FB, (float)i);
    if (flushmode) flush_read<<<FLUSH / 16 / 512, 512>>>((const float4*)FB2, (float4*)FB);
    spin<<<1, 1>>>(95000);
    CK(cudaEventRecord(e0));
    launch(i % NROT);
    CK(cudaEventRecord(e1));
    CK(cudaEventSynchronize(e1));
    float ms;
    CK(cudaEventElapsedTime(&ms, e0, e1));
    t.push_back(ms * 1e3f);
  }
  CK(cudaGetLastError());
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}
static P params(const Kern& k, const Cfg& c, int rot) {
  P p = base;
  p.x = X[rot];
  p.g = GR[rot];
  if (k.back) {
    p.mean = refmean;
    p.rstd = refrstd;
  }
  int kmax = k.back ? KMAX / 2 : KMAX;
  p.K = c.K < 0 ? kmax : c.K;
  p.l2rows = c.l2rows;
  p.pf = c.pf;
  p.order = c.order;
  p.issue = c.issue;
  p.stop = c.stop;
  p.pol_hold = pol[c.hold];
  p.pol_keep = pol[c.keep];
  p.pol_far = pol[c.far];
  p.pol_re = pol[c.re];
  p.pol_st = pol[c.st];
  p.epoch = epoch;
  if (k.comb == 2) epoch = (epoch + 1) % 3;  // only COMB 2 uses (and zeroes) the accumulators
  return p;
}
static void launch(const Kern& k, const Cfg& c, int rot) {
  P p = params(k, c, rot);
  void* a[] = {&p};
  if (c.coop)
    CK(cudaLaunchCooperativeKernel(k.fn, dim3(G), dim3(k.T), a, SMEM, 0));
  else
    CK(cudaLaunchKernel(k.fn, dim3(G), dim3(k.T), a, SMEM, 0));
}
static std::string cname(const Kern& k, const Cfg& c) {
  static const char* pn[] = {"nor", "EF", "EL"};
  char s[256];
  snprintf(s, sizeof s, "%-22s K=%-3d L2=%-3d pf=%-2d %s iss=%d hold/keep/far/re=%s/%s/%s/%s st=%s%s%s", k.name,
           c.K < 0 ? (k.back ? KMAX / 2 : KMAX) : c.K, c.l2rows, c.pf, c.order ? "L2first  " : "smemfirst", c.issue,
           pn[c.hold], pn[c.keep], pn[c.far], pn[c.re], pn[c.st], c.coop ? "" : " (plain launch)",
           c.stop == 1   ? " [PASS 1 ONLY]"
           : c.stop == 2 ? " [PASS 1 + BARRIERS]"
                         : "");
  return s;
}
static double measure(const Kern& k, const Cfg& c, int samples = 30, bool print = true) {
  if (k.occ < 1) {
    if (print) printf("%-100s does not fit\n", k.name);
    return 1e9;
  }
  float err[2] = {0, 0};
  if (!c.stop) {
    unsigned z[2] = {0, 0};
    CK(cudaMemcpy(errd, z, 8, cudaMemcpyHostToDevice));
    CK(cudaMemset(Y, 0xff, (size_t)N * C * 4));
    if (k.back) {
      CK(cudaMemset(base.dgamma, 0xff, C * 4));
      CK(cudaMemset(base.dbeta, 0xff, C * 4));
    }
    launch(k, c, 0);
    maxerr<<<N * C / 512, 512>>>(Y, k.back ? DXREF : YREF, errd);
    if (k.back) maxerr_col<<<1, C>>>(base.dgamma, base.dbeta, bsums, errd);
    CK(cudaMemcpy(err, errd, 8, cudaMemcpyDeviceToHost));
  }
  double us = timeit([&](int r) { launch(k, c, r); }, samples);
  bool bad = err[0] > 1e-3f || err[1] > 1e-3f;
  if (print || bad) {
    printf("%-125s %8.2f us  copy/this %5.1f %%", cname(k, c).c_str(), us, 100 * copy_us[k.back] / us);
    if (!c.stop) {
      printf("  max err %.2e", err[0]);
      if (k.back) printf(" dgamma/dbeta %.2e", err[1]);
      if (bad) printf("  <-- WRONG");
    }
    printf("\n");
    fflush(stdout);
  }
  return bad ? 1e9 : us;
}

#define FW(T, R, CB, H, U) \
  {"fwd T" #T " R" #R " U" #U " C" #CB " H" #H, (const void*)fwd<T, R, CB, H, U>, T, R, U, CB, H, false, 0, 0, 0}
#define BW(T, R, CB, H, U) \
  {"bwd T" #T " R" #R " U" #U " C" #CB " H" #H, (const void*)bwd<T, R, CB, H, U>, T, R, U, CB, H, true, 0, 0, 0}

static void copies(const char* when, bool set) {
  dim3 gr(N * C4 / 256), bl(256);
  double a = timeit([&](int r) { copy1<<<gr, bl>>>((float4*)X[r], (float4*)Y); }, 30);
  double as = timeit([&](int r) { copy1s<<<gr, bl>>>((float4*)X[r], (float4*)Y); }, 30);
  double m = timeit([&](int r) { CK(cudaMemcpyAsync(Y, X[r], (size_t)N * C * 4, cudaMemcpyDeviceToDevice)); }, 30);
  double b = timeit([&](int r) { copy2<<<gr, bl>>>((float4*)X[r], (float4*)GR[r], (float4*)Y); }, 30);
  double bs = timeit([&](int r) { copy2s<<<gr, bl>>>((float4*)X[r], (float4*)GR[r], (float4*)Y); }, 30);
  printf("%s: copy x->y %.2f us (cs hints %.2f, cudaMemcpyAsync %.2f)   copy x,g->dx %.2f us (cs hints %.2f)\n", when,
         a, as, m, b, bs);
  if (set) {
    copy_us[0] = a;
    copy_us[1] = b;
  }
}

int main(int argc, char** argv) {
  if (argc > 1) flushmode = atoi(argv[1]);
  cudaDeviceProp pr;
  CK(cudaGetDeviceProperties(&pr, 0));
  G = pr.multiProcessorCount;
  int coop = 0;
  CK(cudaDeviceGetAttribute(&coop, cudaDevAttrCooperativeLaunch, 0));
  printf(
      "%s: %d SMs, L2 %.1f MB, persisting L2 max %.1f MB, smem/block opt-in %zu, cooperative launch %d; flush mode "
      "%d\n",
      pr.name, G, pr.l2CacheSize / 1048576.0, pr.persistingL2CacheMaxSize / 1048576.0, pr.sharedMemPerBlockOptin, coop,
      flushmode);
  size_t lim0 = 0;
  CK(cudaDeviceGetLimit(&lim0, cudaLimitPersistingL2CacheSize));
  printf("persisting L2 limit at start: %zu\n", lim0);
  if (G > 160) {
    printf("COMB 1 sums at most 160 partials\n");
    return 1;
  }
  CK(cudaEventCreate(&e0));
  CK(cudaEventCreate(&e1));
  const size_t BY = (size_t)N * C * 4;
  for (int i = 0; i < NROT; i++) {
    CK(cudaMalloc(&X[i], BY));
    CK(cudaMalloc(&GR[i], BY));
  }
  CK(cudaMalloc(&Y, BY));
  CK(cudaMalloc(&YREF, BY));
  CK(cudaMalloc(&DXREF, BY));
  CK(cudaMalloc(&FB, FLUSH));
  CK(cudaMalloc(&FB2, FLUSH));
  CK(cudaMemset(FB2, 0, FLUSH));
  float* small;
  CK(cudaMalloc(&small, 1 << 22));
  CK(cudaMemset(small, 0, 1 << 22));
  auto take = [&](size_t nfl) {
    float* r = small;
    small += (nfl + 63) / 64 * 64;
    return r;
  };
  float *w = take(C), *b = take(C), *bias = take(1);
  base.w = w;
  base.b = b;
  base.bias = bias;
  base.mean = take(C);
  base.rstd = take(C);
  refmean = take(C);
  refrstd = take(C);
  base.dgamma = take(C);
  base.dbeta = take(C);
  base.part = take((size_t)G * 1024);
  base.acc = take(3 * NCOPY * 1024);
  base.fin = take(1024);
  base.bar = (unsigned*)take(1);
  errd = (unsigned*)take(2);
  base.out = Y;
  double *sums = (double*)take(4 * C), *st = (double*)take(4 * C);
  bsums = (double*)take(4 * C);
  u64* pd = (u64*)take(8);
  const double value = 1.7;
  base.inv_value = (float)(1.0 / value);
  mkpol<<<1, 1>>>(pd);
  CK(cudaMemcpy(pol, pd, 24, cudaMemcpyDeviceToHost));
  printf("policies: normal %llx  evict_first %llx  evict_last %llx\n", pol[0], pol[1], pol[2]);
  fill<<<N * C / 256, 256>>>(X[0], GR[0]);
  fillw<<<1, C>>>(w, b, bias);
  for (int i = 1; i < NROT; i++) {
    CK(cudaMemcpy(X[i], X[0], BY, cudaMemcpyDeviceToDevice));
    CK(cudaMemcpy(GR[i], GR[0], BY, cudaMemcpyDeviceToDevice));
  }
  ref_sums<<<N / 256, C>>>(X[0], sums);
  ref_stats<<<1, C>>>(sums, st, refmean, refrstd);
  ref_y<<<N * C / 256, 256>>>(X[0], st, w, b, bias, value, YREF);
  ref_bsums<<<N / 256, C>>>(X[0], GR[0], st, w, b, bias, value, bsums);
  ref_dx<<<N * C / 256, 256>>>(X[0], GR[0], st, w, b, bias, value, bsums, DXREF);
  CK(cudaDeviceSynchronize());

  std::vector<Kern> K = {
      FW(512, 0, 1, true, 8),   FW(512, 8, 1, true, 8),   FW(512, 16, 1, true, 8),  FW(512, 20, 1, true, 8),
      FW(512, 24, 1, true, 8),  FW(1024, 0, 1, true, 4),  FW(1024, 4, 1, true, 4),  FW(1024, 8, 1, true, 4),
      FW(1024, 10, 1, true, 4), FW(256, 0, 1, true, 16),  FW(256, 48, 1, true, 16), FW(256, 56, 1, true, 16),
      FW(512, 16, 0, true, 8),  FW(512, 16, 2, true, 8),  FW(512, 16, 1, false, 8), FW(512, 16, 1, true, 4),
      FW(512, 24, 2, true, 8),  FW(256, 48, 2, true, 16), BW(512, 0, 1, true, 4),   BW(512, 4, 1, true, 4),
      BW(512, 8, 1, true, 4),   BW(512, 10, 1, true, 4),  BW(1024, 0, 1, true, 2),  BW(1024, 2, 1, true, 2),
      BW(1024, 4, 1, true, 2),  BW(256, 0, 1, true, 8),   BW(256, 22, 1, true, 8),  BW(256, 26, 1, true, 8),
      BW(512, 8, 0, true, 4),   BW(512, 8, 2, true, 4),   BW(512, 8, 1, false, 4),  BW(512, 8, 1, true, 2),
      BW(256, 22, 2, true, 8),
  };
  for (auto& k : K) {
    CK(cudaFuncSetAttribute(k.fn, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&k.occ, k.fn, k.T, SMEM));
    cudaFuncAttributes fa;
    CK(cudaFuncGetAttributes(&fa, k.fn));
    k.regs = fa.numRegs;
    k.local = fa.localSizeBytes;
    printf("  %-24s regs %3d  local %3zu B  dyn smem %d  blocks/SM %d\n", k.name, k.regs, k.local, SMEM, k.occ);
  }
  auto find = [&](bool back, int T, int R, int cb, bool h, int U) -> Kern& {
    for (auto& k : K)
      if (k.back == back && k.T == T && k.R == R && k.comb == cb && k.hint == h && k.U == U) return k;
    printf("no such kernel\n");
    exit(1);
  };
  copies("warm-up", false);
  copies("COPY", true);
  printf(
      "persistent shape, plain: copy T512 U8 %.2f us, T1024 U4 %.2f us, T256 U16 %.2f us; read only x T512 U8 %.2f us; "
      "copy2 T512 U4 %.2f us; read only x,g T512 U4 %.2f us\n",
      timeit([&](int r) { pcopy<512, 8, 1, true><<<G, 512>>>((float4*)X[r], nullptr, (float4*)Y); }, 30),
      timeit([&](int r) { pcopy<1024, 4, 1, true><<<G, 1024>>>((float4*)X[r], nullptr, (float4*)Y); }, 30),
      timeit([&](int r) { pcopy<256, 16, 1, true><<<G, 256>>>((float4*)X[r], nullptr, (float4*)Y); }, 30),
      timeit([&](int r) { pcopy<512, 8, 1, false><<<G, 512>>>((float4*)X[r], nullptr, (float4*)Y); }, 30),
      timeit([&](int r) { pcopy<512, 4, 2, true><<<G, 512>>>((float4*)X[r], (float4*)GR[r], (float4*)Y); }, 30),
      timeit([&](int r) { pcopy<512, 4, 2, false><<<G, 512>>>((float4*)X[r], (float4*)GR[r], (float4*)Y); }, 30));

  Cfg none;
  none.hold = none.keep = none.far = none.re = none.st = 0;
  for (int back = 0; back < 2; back++) {
    const int R0 = back ? 8 : 16, U0 = back ? 4 : 8, kmax = back ? KMAX / 2 : KMAX, l2d = back ? 48 : 96;
    Kern& D = find(back, 512, R0, 1, true, U0);
    printf("\n==== %s (copy %.2f us; 75 %% bar = %.2f us)\n", back ? "BACKWARD" : "FORWARD", copy_us[back],
           copy_us[back] / 0.75);
    std::vector<std::pair<double, Kern*>> rank;
    printf("-- every kernel: no hints / all hints\n");
    for (auto& k : K)
      if (k.back == (bool)back) {
        Cfg c = none;
        c.l2rows = l2d;
        double a = measure(k, c);
        if (k.hint) {
          Cfg d;
          d.l2rows = l2d;
          a = std::min(a, measure(k, d));
        }
        rank.push_back({a, &k});
      }
    printf("-- one thing at a time, from the default (T512 R%d, all hints)\n", R0);
    Cfg c0;
    c0.l2rows = l2d;
    {
      Cfg c = c0;
      c.K = 0;
      c.l2rows = 0;
      measure(find(back, 512, 0, 1, true, U0), c);
      Cfg z = none;
      z.K = 0;
      z.l2rows = 0;
      measure(find(back, 512, 0, 1, true, U0), z);
    }
    for (int k : {0, kmax / 2 / CH * CH}) {
      Cfg c = c0;
      c.K = k;
      measure(D, c);
    }
    for (int l : {0, 32, 64, 96, 128, 160, 400}) {
      Cfg c = c0;
      c.l2rows = back ? l / 2 : l;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.st = 0;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.keep = 0;
      measure(D, c);
      c.far = 0;
      measure(D, c);
      c.re = 0;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.re = 0;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.hold = 0;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.order = 1;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.issue = 1;
      measure(D, c);
    }
    for (int pf : {8, 16, 32}) {
      Cfg c = c0;
      c.pf = pf;
      measure(D, c);
      c.order = 1;
      measure(D, c);
    }
    {
      Cfg c = c0;
      c.coop = false;
      measure(D, c);
    }
    for (int s : {1, 2}) {
      Cfg c = c0;
      c.stop = s;
      measure(D, c);
      c = none;
      c.l2rows = l2d;
      c.stop = s;
      measure(D, c);
    }
    for (int cb : {0, 2}) {
      Cfg c = c0;
      c.stop = 2;
      measure(find(back, 512, R0, cb, true, U0), c);
    }

    std::sort(rank.begin(), rank.end());
    printf("-- sweep of the three best kernels (9 samples each), then the best six again with 30\n");
    struct Hit {
      double us;
      Kern* k;
      Cfg c;
    };
    std::vector<Hit> hits;
    int done = 0;
    for (auto& r : rank) {
      if (!r.second->hint || done == 3) continue;
      done++;
      for (int l : {32, 64, 96, 128, 160})
        for (int keep : {0, 2})
          for (int st : {0, 1})
            for (int order : {0, 1})
              for (int issue : {0, 1})
                for (int pf : {0, 16}) {
                  if (elapsed() > (back ? 17.0 : 10.0)) continue;
                  Cfg c;
                  c.l2rows = back ? l / 2 : l;
                  c.keep = keep;
                  c.st = st;
                  c.order = order;
                  c.issue = issue;
                  c.pf = pf;
                  hits.push_back({measure(*r.second, c, 9, false), r.second, c});
                }
    }
    printf("   (%zu configurations swept)\n", hits.size());
    std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.us < b.us; });
    for (size_t i = 0; i < hits.size() && i < 6; i++) measure(*hits[i].k, hits[i].c);
    if (!hits.empty()) {
      Kern& k = *hits[0].k;
      for (int s : {1, 2}) {
        Cfg c = hits[0].c;
        c.stop = s;
        measure(k, c);
      }
      {
        Cfg c = hits[0].c;
        c.coop = false;
        measure(k, c);
      }
      printf("-- the best again with cudaLimitPersistingL2CacheSize at its maximum\n");
      if (cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, pr.persistingL2CacheMaxSize) == cudaSuccess) {
        for (int l : {64, 96, 128}) {
          Cfg c = hits[0].c;
          c.keep = 2;
          c.l2rows = back ? l / 2 : l;
          measure(k, c);
        }
        CK(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, lim0));
      } else {
        cudaGetLastError();
        printf("   refused\n");
      }
    }
  }
  copies("\nCOPY again at the end", false);
  CK(cudaDeviceSynchronize());
  printf("total %.1f s\n", elapsed());
  return 0;
}
