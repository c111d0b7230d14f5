// BatchNorm1d (training) + bias + /value + swish over x[1024][8192], backward and forward, as tiles of columns that are
// read once and stay on the chip. A tile: W columns by a cluster of CL blocks of T threads, each with 1024/CL rows in
// chunks of CR rows. Chunks arrive (x, g; with the first one mean, rstd, w, b of the tile), each is worked on as it
// arrives; then sums of a warp, of the block, of the cluster, always in one order; then dx = A g' + c2 (x - mean) + c3.
// The ring holds more chunks than one tile has, so that loads are always under way.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstddef>

typedef unsigned long long u64;
typedef uint32_t u32;
constexpr int NR = 1024, NC = 8192;  // rows, columns
constexpr float EPS = 1e-5f;
constexpr int NROT = 3;
constexpr int SMEM_BLOCK = 232448, SMEM_SM = 233472;  // 227 KB for a block, 228 KB for a processor

struct P {
  CUtensorMap tx, tg, ty;
  const float *x, *g;
  float* out;
  const float *mean, *rstd, *w, *b, *bias;  // backward reads mean, rstd
  float *omean, *orstd;                     // forward writes them
  float *dgamma, *dbeta, *part, *dbias;
  unsigned* ticket;
  u64 pol;
  float iv;  // 1 / value
  int ns;    // slots of the ring
  int db;    // dbias: 0 none, 1 ticket before the last stores, 2 second launch (dependent), 3 ticket after, 4 second launch
};

// ------------------------------------------------------------------ instructions
__device__ __forceinline__ u32 sptr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 clock32() {
  u32 c;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(c));
  return c;
}
__device__ __forceinline__ void mbar_init(u32 m, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(m), "r"(n) : "memory");
}
__device__ __forceinline__ void mbar_expect(u32 m, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(m), "r"(bytes) : "memory");
}
template <bool CLUSTER>
__device__ __forceinline__ bool mbar_try(u32 m, u32 parity) {
  u32 ok;
  if (CLUSTER)
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        " selp.b32 %0, 1, 0, p;\n}"
        : "=r"(ok)
        : "r"(m), "r"(parity)
        : "memory");
  else
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.b32 %0, 1, 0, p;\n}"
        : "=r"(ok)
        : "r"(m), "r"(parity)
        : "memory");
  return ok;
}
template <bool CLUSTER>
__device__ __forceinline__ void mbar_wait(u32 m, u32 parity) {  // at most about a second
  if (mbar_try<CLUSTER>(m, parity)) return;
  const u32 begin = clock32();
  while (!mbar_try<CLUSTER>(m, parity))
    if (clock32() - begin > 2000000000u) __trap();
}
__device__ __forceinline__ void tma_load(u32 dst, const CUtensorMap* map, int c, int r, u32 bar, u64 pol) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(dst),
      "l"(map), "r"(c), "r"(r), "r"(bar), "l"(pol)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap* map, int c, int r, u32 src) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(c),
               "r"(r), "r"(src)
               : "memory");
}
__device__ __forceinline__ void bulk_load(u32 dst, const void* src, int bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
               "l"(src), "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void cp16(u32 dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ float4 ldg4(const float* p) {
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ void pref_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ __forceinline__ u32 mapa(u32 a, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank));
  return r;
}
__device__ __forceinline__ void st_async(u32 addr, float v, u32 bar) {  // both in the other block's shared memory
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(addr),
               "r"(__float_as_uint(v)), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void st_cluster(u32 addr, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(addr), "f"(v) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ u32 cluster_rank() {
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
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
// g * swish'(z), z = xm * a + b
__device__ __forceinline__ float gprime(float xm, float g, float a, float b) {
  const float z = fmaf(xm, a, b), s = sigm(z);
  return g * s * fmaf(z, 1.f - s, 1.f);
}
__device__ __forceinline__ float4 add4(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 sub4(float4 a, float4 b) {
  return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 mul4(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 scale4(float4 a, float f) { return make_float4(a.x * f, a.y * f, a.z * f, a.w * f); }
__device__ __forceinline__ float4 fma4(float4 a, float4 b, float4 c) {
  return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}
__device__ __forceinline__ float4 gprime4(float4 x, float4 g, float4 a, float4 b) {
  return make_float4(gprime(x.x, g.x, a.x, b.x), gprime(x.y, g.y, a.y, b.y), gprime(x.z, g.z, a.z, b.z),
                     gprime(x.w, g.w, a.w, b.w));
}
// Lanes L apart hold the same 4 columns. Each exchange halves what a lane still adds up: 7 shuffles for 8 sums, not 24.
// The sums (kind * W + column) go to row[].
template <int L, int W>
__device__ __forceinline__ void warp_sums(float4 s, float4 q, float* row, int lane) {
  float v[8] = {s.x, s.y, s.z, s.w, q.x, q.y, q.z, q.w};
  int n = 8, first = 0;
#pragma unroll
  for (int m = L; m < 32; m <<= 1) {
    const bool up = lane & m;
    if (n > 1) {
      n >>= 1;
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (i < n) {
          const float send = up ? v[i] : v[i + n], keep = up ? v[i + n] : v[i];
          v[i] = keep + __shfl_xor_sync(~0u, send, m);
        }
      if (up) first += n;
    } else {
      v[0] += __shfl_xor_sync(~0u, v[0], m);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (i < n) row[((first + i) >> 2) * W + (lane & (L - 1)) * 4 + ((first + i) & 3)] = v[i];
}

// ------------------------------------------------------------------ backward
// LOAD  0: boxes by TMA into a ring, 1: cp.async of 16 bytes to the thread's own place, 2: straight into registers
// STORE 0: from registers, 1: TMA from shared memory
// RED   0: st.async + mbarrier, 1: st.shared::cluster + barrier.cluster
// HOLD  0: x - mean and g' wait in registers, 1: x and g' wait in the ring
// MODE  0: all, 1: no stores of dx, 2: no sums and no exchange (dx = x + g)
template <int T, int CL, int W, int CR, int LOAD, int STORE>
struct Shape {
  static constexpr int L = W / 4, RPS = T / L, RB = NR / CL, U = CR / RPS, NCH = RB / CR, NV = RB / RPS, NW = T / 32;
  static constexpr int BOX = CR * W * 4, SLOT = 2 * BOX + (LOAD == 0 ? 16 * W : 0);
  static_assert(T % 32 == 0 && 2 * W <= T && U * RPS == CR && NCH * CR == RB && CR <= 256 && SLOT % 128 == 0, "");
  static_assert((NCH & (NCH - 1)) == 0, "");
};
static int bwd_smem(int T, int CL, int W, int CR, int load, int store, int hold, int ns) {
  const int box = CR * W * 4, slot = 2 * box + (load == 0 ? 16 * W : 0), rb = NR / CL;
  return (load == 2 ? 0 : ns * slot) + (store == 1 && !hold ? rb * W * 4 : 0) + T / 32 * 2 * W * 4 +
         2 * CL * 2 * W * 4 + ((ns + 2) * 8 + 127) / 128 * 128;
}

template <int T, int CL, int W, int CR, int LOAD, int STORE, int RED, int HOLD, int NSC, int MINB, int MODE>
__global__ void __launch_bounds__(T, MINB) bwd(const __grid_constant__ P p) {
  using S = Shape<T, CL, W, CR, LOAD, STORE>;
  constexpr int L = S::L, RPS = S::RPS, RB = S::RB, U = S::U, NCH = S::NCH, NV = S::NV, NW = S::NW, BOX = S::BOX,
                SLOT = S::SLOT, NT = NC / W, ISSUER = T - 32;
  static_assert(LOAD == 0 || (STORE == 0 && HOLD == 0), "");
  extern __shared__ __align__(1024) unsigned char sm[];
  const int ns = LOAD == 1 ? NSC : p.ns;
  unsigned char* ring = sm;
  unsigned char* stage = ring + (LOAD == 2 ? 0 : ns * SLOT);
  float* red = (float*)(stage + (STORE == 1 && !HOLD ? RB * W * 4 : 0));
  float* ex = red + NW * 2 * W;  // [2][CL][2 * W]
  const u32 full = sptr(ex + 2 * CL * 2 * W), exbar = full + ns * 8, ring32 = sptr(ring), ex32 = sptr(ex);
  const int tid = threadIdx.x, lane = tid & 31, lc = tid & (L - 1), r0 = tid / L;
  const u32 rank = CL > 1 ? cluster_rank() : 0;
  const int cid = blockIdx.x / CL, ncl = gridDim.x / CL, row0 = rank * RB;
  if (p.db == 2) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  auto issue = [&](int tile, int k, int slot) {  // LOAD 0: chunk k of a tile
    const u32 bar = full + slot * 8, dst = ring32 + slot * SLOT;
    mbar_expect(bar, 2 * BOX + (k == 0 ? 16 * W : 0));
    if (k == 0) {
      const int o = tile * W;
      bulk_load(dst + 2 * BOX, p.mean + o, W * 4, bar);
      bulk_load(dst + 2 * BOX + W * 4, p.rstd + o, W * 4, bar);
      bulk_load(dst + 2 * BOX + W * 8, p.w + o, W * 4, bar);
      bulk_load(dst + 2 * BOX + W * 12, p.b + o, W * 4, bar);
    }
    tma_load(dst, &p.tx, tile * W, row0 + k * CR, bar, p.pol);
    tma_load(dst + BOX, &p.tg, tile * W, row0 + k * CR, bar, p.pol);
  };
  // the slots of tile number `it` of this block, whose first one is `first`, are free: ask for what comes into them
  auto refill = [&](int it, int first) {
#pragma unroll 1
    for (int k = 0; k < NCH; k++) {
      const int ahead = (k + ns) / NCH, kk = (k + ns) & (NCH - 1), tile = cid + (it + ahead) * ncl;
      int slot = first + k;
      if (slot >= ns) slot -= ns;
      if (tile < NT) issue(tile, kk, slot);
    }
  };
  const size_t mine = (size_t)(row0 + r0) * NC + lc * 4;  // this thread's first element of column 0
  auto copy = [&](int tile, int k, int slot) {            // LOAD 1
    if (tile < NT) {
      const float *sx = p.x + mine + tile * W, *sg = p.g + mine + tile * W;
      const u32 dst = ring32 + slot * SLOT + tid * 16;
#pragma unroll
      for (int u = 0; u < U; u++) {
        cp16(dst + u * T * 16, sx + (size_t)(k * CR + u * RPS) * NC);
        cp16(dst + BOX + u * T * 16, sg + (size_t)(k * CR + u * RPS) * NC);
      }
    }
    cp_commit();
  };

  if (tid == ISSUER) {
    if (LOAD == 0)
      for (int i = 0; i < ns; i++) mbar_init(full + i * 8, 1);
    mbar_init(exbar, 1);
    mbar_init(exbar + 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    if (CL > 1 && RED == 0) {
      mbar_expect(exbar, CL * 2 * W * 4);
      mbar_expect(exbar + 8, CL * 2 * W * 4);
    }
    if (LOAD == 0)
#pragma unroll 1
      for (int c = 0; c < ns; c++) {
        const int tile = cid + c / NCH * ncl;
        if (tile < NT) issue(tile, c & (NCH - 1), c);
      }
  }
  if (LOAD == 1) {
#pragma unroll 1
    for (int c = 0; c < NSC; c++) copy(cid + c / NCH * ncl, c & (NCH - 1), c);
  }
  const float bias = __ldg(p.bias), iv = p.iv;
  __syncthreads();
  if (CL > 1) cluster_sync();

  int slot = 0, it = 0, before = 0;
  u32 par = 0;
#pragma unroll 1
  for (int tile = cid; tile < NT; tile += ncl, it++) {
    const int first = slot;
    float4 hx[HOLD ? 1 : NV], hg[HOLD ? 1 : NV];
    float4 mu, rs, A, B, s = make_float4(0, 0, 0, 0), q = s;
    float* out = p.out + mine + tile * W;
    if (LOAD == 2) {
#pragma unroll
      for (int i = 0; i < NV; i++) {
        hx[HOLD ? 0 : i] = ldg4(p.x + mine + tile * W + (size_t)i * RPS * NC);
        hg[HOLD ? 0 : i] = ldg4(p.g + mine + tile * W + (size_t)i * RPS * NC);
      }
    }
    if (LOAD != 0) {
      const int o = tile * W + lc * 4;
      mu = ldg4(p.mean + o);
      rs = ldg4(p.rstd + o);
      A = ldg4(p.w + o);
      B = ldg4(p.b + o);
      if (tid == 0 && tile + ncl < NT) {
        const int n = (tile + ncl) * W;
        pref_l2(p.mean + n);
        pref_l2(p.rstd + n);
        pref_l2(p.w + n);
        pref_l2(p.b + n);
      }
    }
    // ---- as it arrives
#pragma unroll
    for (int k = 0; k < NCH; k++) {
      const float4* sx = (const float4*)(ring + slot * SLOT) + tid;
      float4* sg = (float4*)(ring + slot * SLOT + BOX) + tid;
      if (LOAD == 0) mbar_wait<false>(full + slot * 8, par);
      if (LOAD == 1) cp_wait<(NSC > 0 ? NSC : 1) - 1>();
      if (k == 0) {
        if (LOAD == 0) {
          const float4* co = (const float4*)(ring + slot * SLOT + 2 * BOX) + lc;
          mu = co[0];
          rs = co[L];
          A = co[2 * L];
          B = co[3 * L];
        }
        A = scale4(mul4(rs, A), iv);
        B = make_float4((B.x + bias) * iv, (B.y + bias) * iv, (B.z + bias) * iv, (B.w + bias) * iv);
      }
#pragma unroll
      for (int u = 0; u < U; u++) {
        const int i = k * U + u, h = HOLD ? 0 : i;
        float4 x, g;
        if (LOAD == 2) {
          x = hx[h];
          g = hg[h];
        } else {
          x = sx[u * T];
          g = sg[u * T];
        }
        if (MODE == 2) {
          hx[h] = x;
          hg[h] = g;
        } else {
          x = sub4(x, mu);
          g = gprime4(x, g, A, B);
          s = add4(s, g);
          q = fma4(g, x, q);
          hx[h] = x;
          hg[h] = g;
          if (HOLD) sg[u * T] = g;
        }
      }
      if (LOAD == 1) {
        const int ahead = (k + NSC) / NCH, kk = (k + NSC) & (NCH - 1);
        copy(tile + ahead * ncl, kk, slot);
      }
      if (LOAD != 2 && ++slot == ns) {
        slot = 0;
        par ^= 1;
      }
    }
    // ---- sums of the block
    if (MODE != 2) warp_sums<L, W>(s, q, red + (tid >> 5) * 2 * W, lane);
    if (STORE == 1 && tid == ISSUER && it > 0) bulk_wait_read();  // the stores of the tile before have left their place
    if (MODE != 2 || LOAD == 0) __syncthreads();
    if (LOAD == 0 && tid == ISSUER) {
      if (!HOLD) refill(it, first);
      if (HOLD && STORE == 1 && it > 0) refill(it - 1, before);
    }
    before = first;
    float4 c2, c3;
    if (MODE != 2) {
      float* my = ex + (it & 1) * CL * 2 * W;
      if (tid < 2 * W) {
        float v[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < NW; i++) v[i & 3] += red[i * 2 * W + tid];
        const float t = (v[0] + v[1]) + (v[2] + v[3]);
        if (CL == 1) {
          my[tid] = t;
        } else {
          const u32 to = ex32 + (((it & 1) * CL + rank) * 2 * W + tid) * 4, bar = exbar + (it & 1) * 8;
#pragma unroll
          for (int r = 0; r < CL; r++)
            if (RED == 0)
              st_async(mapa(to, r), t, mapa(bar, r));
            else
              st_cluster(mapa(to, r), t);
        }
      }
      if (CL == 1) {
        __syncthreads();
      } else if (RED == 0) {
        mbar_wait<true>(exbar + (it & 1) * 8, (it >> 1) & 1);
        if (tid == 0) mbar_expect(exbar + (it & 1) * 8, CL * 2 * W * 4);  // for the tile after the next
      } else {
        cluster_sync();
      }
      float4 s1 = ((const float4*)my)[lc], s2 = ((const float4*)my)[L + lc];
#pragma unroll
      for (int r = 1; r < CL; r++) {
        s1 = add4(s1, ((const float4*)my)[r * 2 * L + lc]);
        s2 = add4(s2, ((const float4*)my)[r * 2 * L + L + lc]);
      }
      c3 = scale4(mul4(A, s1), -1.f / NR);
      c2 = scale4(mul4(mul4(A, mul4(rs, rs)), s2), -1.f / NR);
      if (rank == 0 && tid < 32) {
        const float4 d = scale4(s1, iv);
        if (tid < L) {
          *(float4*)(p.dbeta + tile * W + lc * 4) = d;
          *(float4*)(p.dgamma + tile * W + lc * 4) = scale4(mul4(rs, s2), iv);
        }
        if (p.db & 1) {
          float t = (d.x + d.y) + (d.z + d.w);
#pragma unroll
          for (int m = 1; m < L; m <<= 1) t += __shfl_xor_sync(~0u, t, m);
          if (tid == 0) p.part[tile] = t;
        }
      }
    }
    auto last_adds = [&]() {  // dbias: whoever comes last adds up the tiles' sums, always in the same order
      if (rank == 0 && tid < 32) {
        unsigned last = 0;
        if (tid == 0) {
          __threadfence();
          last = atomicAdd(p.ticket, 1u) == (unsigned)ncl - 1;
          __threadfence();
        }
        if (__shfl_sync(~0u, last, 0)) {
          float t = 0;
#pragma unroll 8
          for (int i = 0; i < NT / 32; i++) t += __ldcg(p.part + i * 32 + lane);
#pragma unroll
          for (int m = 1; m < 32; m <<= 1) t += __shfl_xor_sync(~0u, t, m);
          if (tid == 0) {
            *p.dbias = t;
            *p.ticket = 0;
          }
        }
      }
    };
    const bool end = tile + ncl >= NT;
    if (MODE != 2 && p.db == 1 && end) last_adds();
    // ---- dx
    if (MODE != 1) {
      int again = first;
#pragma unroll
      for (int k = 0; k < NCH; k++) {
        const float4* sx = (const float4*)(ring + again * SLOT) + tid;
        float4* sg = (float4*)(ring + again * SLOT + BOX) + tid;
#pragma unroll
        for (int u = 0; u < U; u++) {
          const int i = k * U + u, h = HOLD ? 0 : i;
          float4 x, g;
          if (HOLD) {
            x = MODE == 2 ? sx[u * T] : sub4(sx[u * T], mu);
            g = sg[u * T];
          } else {
            x = hx[h];
            g = hg[h];
          }
          const float4 d = MODE == 2 ? add4(x, g) : fma4(A, g, fma4(c2, x, c3));
          if (STORE == 0)
            *(float4*)(out + (size_t)(k * CR + u * RPS) * NC) = d;
          else if (HOLD)
            sg[u * T] = d;
          else
            ((float4*)stage)[i * T + tid] = d;
        }
        if (HOLD && ++again == ns) again = 0;
      }
      if (STORE == 1) {
        fence_async();
        __syncthreads();
        if (tid == ISSUER) {
          int from = first;
#pragma unroll 1
          for (int k = 0; k < NCH; k++) {
            tma_store(&p.ty, tile * W, row0 + k * CR, HOLD ? ring32 + from * SLOT + BOX : sptr(stage) + k * BOX);
            if (++from == ns) from = 0;
          }
          bulk_commit();
        }
      }
    }
    if (HOLD && STORE == 0) {
      fence_async();  // g' was written where the next box will be
      __syncthreads();
      if (tid == ISSUER) refill(it, first);
    }
    if (MODE != 2 && p.db == 3 && end) last_adds();
  }
  if (STORE == 1 && tid == ISSUER) bulk_wait_read();
}

// dbias by a second launch
__global__ void __launch_bounds__(1024) dbias_kernel(const float* dbeta, float* dbias, int dependent) {
  __shared__ float part[32];
  if (dependent) asm volatile("griddepcontrol.wait;" ::: "memory");
  float t = 0;
#pragma unroll
  for (int i = 0; i < NC / 4096; i++) {
    const float4 v = __ldcg((const float4*)dbeta + i * 1024 + threadIdx.x);
    t += (v.x + v.y) + (v.z + v.w);
  }
#pragma unroll
  for (int m = 16; m; m >>= 1) t += __shfl_xor_sync(~0u, t, m);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = t;
  __syncthreads();
  if (threadIdx.x < 32) {
    t = part[threadIdx.x];
#pragma unroll
    for (int m = 16; m; m >>= 1) t += __shfl_xor_sync(~0u, t, m);
    if (threadIdx.x == 0) *dbias = t;
  }
}

// ------------------------------------------------------------------ forward
// One pass of sums about a shift (the mean of four rows of the block), blocks of a cluster merged by Chan's formula.
template <int T, int CL, int W, int CR>
struct FShape {
  static constexpr int L = W / 4, RPS = T / L, RB = NR / CL, U = CR / RPS, NCH = RB / CR, NV = RB / RPS, NW = T / 32;
  static constexpr int BOX = CR * W * 4, SLOT = BOX + 8 * W + (W == 8 ? 64 : 0);
  static_assert(U * RPS == CR && NCH * CR == RB && CR <= 256 && SLOT % 128 == 0 && W <= 32 && 2 * W <= T, "");
  static_assert((NCH & (NCH - 1)) == 0, "");
};
static int fwd_smem(int T, int CL, int W, int CR, int ns) {
  return ns * (CR * W * 4 + 8 * W + (W == 8 ? 64 : 0)) + T / 32 * 2 * W * 4 + 2 * CL * 2 * W * 4 + W * 4 +
         ((ns + 2) * 8 + 127) / 128 * 128;
}
template <int T, int CL, int W, int CR, int MINB, int MODE>
__global__ void __launch_bounds__(T, MINB) fwd(const __grid_constant__ P p) {
  using S = FShape<T, CL, W, CR>;
  constexpr int L = S::L, RPS = S::RPS, RB = S::RB, U = S::U, NCH = S::NCH, NV = S::NV, NW = S::NW, BOX = S::BOX,
                SLOT = S::SLOT, NT = NC / W, ISSUER = T - 32;
  extern __shared__ __align__(1024) unsigned char sm[];
  const int ns = p.ns;
  unsigned char* ring = sm;
  float* red = (float*)(ring + ns * SLOT);
  float* ex = red + NW * 2 * W;
  float* shifts = ex + 2 * CL * 2 * W;
  const u32 full = sptr(shifts + W), exbar = full + ns * 8, ring32 = sptr(ring), ex32 = sptr(ex);
  const int tid = threadIdx.x, lane = tid & 31, lc = tid & (L - 1), r0 = tid / L;
  const u32 rank = CL > 1 ? cluster_rank() : 0;
  const int cid = blockIdx.x / CL, ncl = gridDim.x / CL, row0 = rank * RB;
  auto issue = [&](int tile, int k, int slot) {
    const u32 bar = full + slot * 8, dst = ring32 + slot * SLOT;
    mbar_expect(bar, BOX + (k == 0 ? 8 * W : 0));
    tma_load(dst, &p.tx, tile * W, row0 + k * CR, bar, p.pol);
    if (k == 0) {
      bulk_load(dst + BOX, p.w + tile * W, W * 4, bar);
      bulk_load(dst + BOX + W * 4, p.b + tile * W, W * 4, bar);
    }
  };
  if (tid == ISSUER) {
    for (int i = 0; i < ns; i++) mbar_init(full + i * 8, 1);
    mbar_init(exbar, 1);
    mbar_init(exbar + 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_async();
    if (CL > 1) {
      mbar_expect(exbar, CL * 2 * W * 4);
      mbar_expect(exbar + 8, CL * 2 * W * 4);
    }
#pragma unroll 1
    for (int c = 0; c < ns; c++) {
      const int tile = cid + c / NCH * ncl;
      if (tile < NT) issue(tile, c & (NCH - 1), c);
    }
  }
  const float bias = __ldg(p.bias), iv = p.iv;
  __syncthreads();
  if (CL > 1) cluster_sync();
  int slot = 0, it = 0;
  u32 par = 0;
#pragma unroll 1
  for (int tile = cid; tile < NT; tile += ncl, it++) {
    const int first = slot;
    float4 h[NV], w, b, shift, s = make_float4(0, 0, 0, 0), q = s;
    float* out = p.out + (size_t)(row0 + r0) * NC + tile * W + lc * 4;
#pragma unroll
    for (int k = 0; k < NCH; k++) {
      const float4* sx = (const float4*)(ring + slot * SLOT);
      mbar_wait<false>(full + slot * 8, par);
      if (k == 0) {
        const float4* co = (const float4*)(ring + slot * SLOT + BOX) + lc;
        w = co[0];
        b = co[L];
        shift = scale4(add4(add4(sx[lc], sx[CR / 4 * L + lc]), add4(sx[CR / 2 * L + lc], sx[CR / 4 * 3 * L + lc])), .25f);
      }
#pragma unroll
      for (int u = 0; u < U; u++) {
        float4 x = sx[u * T + tid];
        if (MODE != 2) {
          x = sub4(x, shift);
          s = add4(s, x);
          q = fma4(x, x, q);
        }
        h[k * U + u] = x;
      }
      if (++slot == ns) {
        slot = 0;
        par ^= 1;
      }
    }
    if (MODE != 2) {
      warp_sums<L, W>(s, q, red + (tid >> 5) * 2 * W, lane);
      if (tid < L) ((float4*)shifts)[lc] = shift;
    }
    __syncthreads();
    if (tid == ISSUER) {
#pragma unroll 1
      for (int k = 0; k < NCH; k++) {
        const int ahead = (k + ns) / NCH, kk = (k + ns) & (NCH - 1), next = cid + (it + ahead) * ncl;
        int to = first + k;
        if (to >= ns) to -= ns;
        if (next < NT) issue(next, kk, to);
      }
    }
    float4 A, B;
    if (MODE != 2) {
      float* my = ex + (it & 1) * CL * 2 * W;
      if (tid < W) {
        float v[4] = {0, 0, 0, 0}, z[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < NW; i++) {
          v[i & 3] += red[i * 2 * W + tid];
          z[i & 3] += red[i * 2 * W + W + tid];
        }
        const float a = (v[0] + v[1]) + (v[2] + v[3]), m = a * (1.f / RB), mean = shifts[tid] + m;
        const float m2 = fmaxf(fmaf(-m, a, (z[0] + z[1]) + (z[2] + z[3])), 0.f);
        if (CL == 1) {
          my[tid] = mean;
          my[W + tid] = m2;
        } else {
          const u32 to = ex32 + (((it & 1) * CL + rank) * 2 * W + tid) * 4, bar = exbar + (it & 1) * 8;
#pragma unroll
          for (int r = 0; r < CL; r++) {
            st_async(mapa(to, r), mean, mapa(bar, r));
            st_async(mapa(to + W * 4, r), m2, mapa(bar, r));
          }
        }
      }
      if (CL == 1) {
        __syncthreads();
      } else {
        mbar_wait<true>(exbar + (it & 1) * 8, (it >> 1) & 1);
        if (tid == 0) mbar_expect(exbar + (it & 1) * 8, CL * 2 * W * 4);
      }
      float4 mean = ((const float4*)my)[lc], m2 = ((const float4*)my)[L + lc];
      if (CL > 1) {
#pragma unroll
        for (int r = 1; r < CL; r++) {
          mean = add4(mean, ((const float4*)my)[r * 2 * L + lc]);
          m2 = add4(m2, ((const float4*)my)[r * 2 * L + L + lc]);
        }
        mean = scale4(mean, 1.f / CL);
#pragma unroll
        for (int r = 0; r < CL; r++) {
          const float4 d = sub4(((const float4*)my)[r * 2 * L + lc], mean);
          m2 = fma4(scale4(d, (float)RB), d, m2);
        }
      }
      const float4 rs = make_float4(rsqrtf(fmaf(m2.x, 1.f / NR, EPS)), rsqrtf(fmaf(m2.y, 1.f / NR, EPS)),
                                    rsqrtf(fmaf(m2.z, 1.f / NR, EPS)), rsqrtf(fmaf(m2.w, 1.f / NR, EPS)));
      if (rank == 0 && tid < L) {
        *(float4*)(p.omean + tile * W + lc * 4) = mean;
        *(float4*)(p.orstd + tile * W + lc * 4) = rs;
      }
      A = mul4(rs, w);
      B = fma4(sub4(shift, mean), A, b);
      B = make_float4((B.x + bias) * iv, (B.y + bias) * iv, (B.z + bias) * iv, (B.w + bias) * iv);
      A = scale4(A, iv);
    }
    if (MODE != 1) {
#pragma unroll
      for (int i = 0; i < NV; i++) {
        float4 y = h[i];
        if (MODE != 2) {
          y = fma4(h[i], A, B);
          y = make_float4(y.x * sigm(y.x), y.y * sigm(y.y), y.z * sigm(y.z), y.w * sigm(y.w));
        }
        *(float4*)(out + (size_t)i * RPS * NC) = y;
      }
    }
  }
}

