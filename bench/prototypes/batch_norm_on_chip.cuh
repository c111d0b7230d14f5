// BatchNorm1d (training) + bias + /value + Swish over x[65536][512], forward and backward, each as one persistent
// kernel that keeps part of its input on the chip between its two passes. batch_norm_on_chip.cu measures them.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

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
