// How near to a copy the kernels of batch_norm_columns.cuh get: a sweep over tile shapes, ways to load, to store and to
// exchange sums, L2 policies and grids. Every run is checked against float64, and bit by bit against itself.
//   nvcc -O3 -std=c++17 -arch=sm_90a batch_norm_columns.cu -o batch_norm_columns
//   ./batch_norm_columns [flush: 0 = write 256 MB (default), 1 = write 256 MB, then read another 256 MB]
// The parent process never touches the device: children do, one after the other, so that a variant that traps or hangs
// costs a child and not the program.
//
// Names of variants: `tma`, `cp.async`, `direct`: how tiles are loaded (tensor maps into the ring; 16 bytes by each
// thread; into registers). `reg`, `smem`: where they wait for the sums. `st=tma`: dx leaves through shared memory.
// `st.async`, `barrier`: how blocks of a cluster exchange sums. `resident`, `even`, `all`: as many clusters as fit, the
// same but with equally many tiles each, one tile each. B: blocks on a processor. pol, promo: L2 policy of loads, what
// TMA fetches into L2. db: dbias by the last block (`ticket`), a dependent launch (`pdl`) or a launch of its own.
#include "batch_norm_columns.cuh"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// ------------------------------------------------------------------ copies, flush, comparison
__global__ void copy1(const float4* __restrict__ x, float4* __restrict__ y) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i];
}
__global__ void copy2(const float4* __restrict__ x, const float4* __restrict__ g, float4* __restrict__ y) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = add4(x[i], g[i]);
}
__global__ void flush_write(float4* p, float v) {
  p[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = make_float4(v, v, v, v);
}
__global__ void flush_read(const float4* p, float4* o) {
  const float4 v = p[(size_t)blockIdx.x * blockDim.x + threadIdx.x];
  if (v.x == 1.2345e37f) o[0] = v;
}
__global__ void spin(long long cycles) {
  const long long t = clock64();
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
// res[0]: largest |a - ref| (bits of a float), res[1]: elements in which a and b differ
__global__ void compare(const float* a, const float* b, const float* ref, unsigned* res) {
  float m = 0;
  unsigned bad = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)NR * NC; i += (size_t)gridDim.x * blockDim.x) {
    float d = fabsf(a[i] - ref[i]);
    if (!(d < 1e30f)) d = 1e30f;
    m = fmaxf(m, d);
    bad += __float_as_uint(a[i]) != __float_as_uint(b[i]);
  }
  if (m > 0) atomicMax(res, __float_as_uint(m));
  if (bad) atomicAdd(res + 1, bad);
}
__global__ void tiny(int* o) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (o) o[threadIdx.x] = s[threadIdx.x ^ 1];
}

// ------------------------------------------------------------------ variants
struct Var {
  const char* name;
  bool back;
  const void* fn[3];
  int T, CL, W, CR, load, store, red, hold, nsc, minb;
};
#define BV(T, CL, W, CR, LD, ST, RD, HO, NSC, MB)                                                       \
  {"bwd T" #T " CL" #CL " W" #W " CR" #CR, true, {(const void*)bwd<T, CL, W, CR, LD, ST, RD, HO, NSC, MB, 0>, nullptr, nullptr}, \
   T, CL, W, CR, LD, ST, RD, HO, NSC, MB}
#define BD(T, CL, W, CR, LD, ST, RD, HO, NSC, MB)                                    \
  {"bwd T" #T " CL" #CL " W" #W " CR" #CR,                                           \
   true,                                                                             \
   {(const void*)bwd<T, CL, W, CR, LD, ST, RD, HO, NSC, MB, 0>,                      \
    (const void*)bwd<T, CL, W, CR, LD, ST, RD, HO, NSC, MB, 1>,                      \
    (const void*)bwd<T, CL, W, CR, LD, ST, RD, HO, NSC, MB, 2>},                     \
   T, CL, W, CR, LD, ST, RD, HO, NSC, MB}
#define FD(T, CL, W, CR, MB)                                                                     \
  {"fwd T" #T " CL" #CL " W" #W " CR" #CR,                                                       \
   false,                                                                                        \
   {(const void*)fwd<T, CL, W, CR, MB, 0>, (const void*)fwd<T, CL, W, CR, MB, 1>, (const void*)fwd<T, CL, W, CR, MB, 2>}, \
   T, CL, W, CR, 0, 0, 0, 0, 0, MB}
static const std::vector<Var> VARS = {
#ifndef ONLY
    // TMA ring, held in registers, stored from registers
    BD(512, 1, 16, 256, 0, 0, 0, 0, 0, 1), BD(512, 1, 16, 128, 0, 0, 0, 0, 0, 1), BD(256, 1, 16, 256, 0, 0, 0, 0, 0, 1),
    BD(1024, 1, 16, 256, 0, 0, 0, 0, 0, 1), BD(256, 1, 8, 256, 0, 0, 0, 0, 0, 2), BD(512, 1, 8, 256, 0, 0, 0, 0, 0, 1),
    BD(512, 2, 16, 128, 0, 0, 0, 0, 0, 1), BD(256, 2, 16, 128, 0, 0, 0, 0, 0, 2), BV(256, 2, 16, 256, 0, 0, 0, 0, 0, 2),
    BD(512, 2, 32, 128, 0, 0, 0, 0, 0, 1), BD(256, 4, 32, 64, 0, 0, 0, 0, 0, 2), BD(512, 4, 32, 64, 0, 0, 0, 0, 0, 1),
    BD(256, 4, 16, 128, 0, 0, 0, 0, 0, 3), BD(128, 4, 16, 64, 0, 0, 0, 0, 0, 4), BD(128, 2, 8, 256, 0, 0, 0, 0, 0, 4),
    BD(256, 8, 32, 64, 0, 0, 0, 0, 0, 3), BV(128, 8, 32, 64, 0, 0, 0, 0, 0, 4), BV(256, 8, 64, 64, 0, 0, 0, 0, 0, 2),
    // cluster barrier instead of st.async
    BV(256, 2, 16, 128, 0, 0, 1, 0, 0, 2), BV(512, 2, 32, 128, 0, 0, 1, 0, 0, 1), BV(256, 4, 32, 64, 0, 0, 1, 0, 0, 2),
    // stored by TMA from a stage
    BV(512, 1, 16, 128, 0, 1, 0, 0, 0, 1), BV(256, 1, 8, 256, 0, 1, 0, 0, 0, 2), BV(256, 2, 16, 128, 0, 1, 0, 0, 0, 2),
    BV(512, 2, 16, 128, 0, 1, 0, 0, 0, 1), BV(256, 4, 32, 64, 0, 1, 0, 0, 0, 2),
    // held in shared memory, stored from registers / by TMA in place
    BV(512, 1, 16, 128, 0, 0, 0, 1, 0, 1), BV(256, 1, 8, 256, 0, 0, 0, 1, 0, 3), BV(256, 2, 16, 128, 0, 0, 0, 1, 0, 3),
    BV(128, 4, 16, 64, 0, 0, 0, 1, 0, 6), BV(256, 1, 8, 256, 0, 1, 0, 1, 0, 3), BV(256, 2, 16, 128, 0, 1, 0, 1, 0, 3),
    BV(512, 2, 16, 128, 0, 1, 0, 1, 0, 1), BV(128, 4, 16, 64, 0, 1, 0, 1, 0, 6),
    // cp.async
    BV(512, 1, 16, 128, 1, 0, 0, 0, 12, 1), BV(256, 1, 8, 256, 1, 0, 0, 0, 6, 2), BV(256, 2, 16, 128, 1, 0, 0, 0, 6, 2),
    BV(256, 4, 32, 64, 1, 0, 0, 0, 6, 2),
    // straight into registers
    BV(512, 1, 16, 128, 2, 0, 0, 0, 0, 1), BV(256, 1, 8, 128, 2, 0, 0, 0, 0, 2), BV(256, 2, 16, 128, 2, 0, 0, 0, 0, 2),
    BV(256, 4, 32, 64, 2, 0, 0, 0, 0, 2), BV(128, 4, 16, 64, 2, 0, 0, 0, 0, 4), BV(256, 8, 32, 64, 2, 0, 0, 0, 0, 3),
    // forward
    FD(512, 1, 16, 256, 1), FD(512, 1, 16, 128, 2), FD(256, 1, 16, 256, 2), FD(256, 1, 8, 256, 4), FD(512, 1, 8, 256, 2),
    FD(256, 2, 16, 128, 3), FD(512, 2, 32, 64, 2), FD(256, 4, 32, 64, 4), FD(512, 1, 32, 128, 1),
#else
    ONLY
#endif
};
static int smem_of(const Var& v, int ns) {
  return v.back ? bwd_smem(v.T, v.CL, v.W, v.CR, v.load, v.store, v.hold, ns) : fwd_smem(v.T, v.CL, v.W, v.CR, ns);
}
static int slots_for(const Var& v, int blocks) {  // most slots with which so many blocks fit a processor
  const int room = std::min(SMEM_BLOCK, (SMEM_SM / blocks - 1024) / 128 * 128);
  int ns = 0;
  while (ns < 32 && smem_of(v, ns + 1) <= room) ns++;
  return ns;
}
static int chunks_of(const Var& v) { return NR / v.CL / v.CR; }

struct Rec {
  int var, mode, ns, grid, pol, promo, sched, db, samples, stage;  // grid 0: resident at a time, 1: the same, even, 2: all
  int state;                                                       // 0 to do, 1 running, 2 done, 3 failed
  int blocks, smem, occ, regs, local;
  double us, err_main, err_cols, err_bias;
  unsigned differ;
  char msg[120];
};
constexpr int MAXREC = 4096;
struct Shared {
  int n, progress;
  double copy1, copy2;
  Rec r[MAXREC];
};
static Shared* S;
static double t_begin;
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
static double elapsed() { return now() - t_begin; }

// ------------------------------------------------------------------ data and float64 reference, in the parent
static std::vector<float> HX, HG, HDX, HY, HW, HB, HMEAN, HRSTD;
static std::vector<double> DGAMMA, DBETA, DMEAN, DRSTD;
static double DBIAS, MAXDX, MAXY;
static const double VALUE = 1.7;
static const float BIAS = 0.3f;
static u32 hash32(u32 a) {
  a ^= a >> 16;
  a *= 0x7feb352du;
  a ^= a >> 15;
  a *= 0x846ca68bu;
  a ^= a >> 16;
  return a;
}
static float bell(u32 i) {  // 8 bytes of a hash: nearly normal, variance 1
  const u32 a = hash32(i), b = hash32(a ^ 0x9e3779b9u);
  int t = 0;
  for (int k = 0; k < 32; k += 8) t += (a >> k & 255) + (b >> k & 255);
  return (t - 1020) * (1.f / 209.02f) + (b & 1023) * 1e-6f;
}
static void reference() {
  const size_t n = (size_t)NR * NC;
  HX.resize(n), HG.resize(n), HDX.resize(n), HY.resize(n);
  HW.resize(NC), HB.resize(NC), HMEAN.resize(NC), HRSTD.resize(NC);
  DGAMMA.assign(NC, 0), DBETA.assign(NC, 0), DMEAN.assign(NC, 0), DRSTD.assign(NC, 0);
  for (int c = 0; c < NC; c++) HW[c] = 0.5f + (c % 11) * 0.1f, HB[c] = (c % 9 - 4) * 0.2f;
  for (int r = 0; r < NR; r++)
    for (int c = 0; c < NC; c++) {
      const u32 i = r * NC + c;
      HX[i] = bell(i) * (0.5f + (c % 7) * 0.25f) + (c % 13 - 6) * 0.3f;
      HG[i] = bell(i + 0x40000000u) + (c % 5) * 0.1f;
      DMEAN[c] += HX[i];
    }
  std::vector<double> m2(NC, 0.0);
  for (int c = 0; c < NC; c++) DMEAN[c] /= NR;
  for (int r = 0; r < NR; r++)
    for (int c = 0; c < NC; c++) {
      const double d = HX[(size_t)r * NC + c] - DMEAN[c];
      m2[c] += d * d;
    }
  for (int c = 0; c < NC; c++) {
    DRSTD[c] = 1 / std::sqrt(m2[c] / NR + (double)EPS);
    HMEAN[c] = (float)DMEAN[c];
    HRSTD[c] = (float)DRSTD[c];
  }
  std::vector<double> gp(n);
  for (int r = 0; r < NR; r++)
    for (int c = 0; c < NC; c++) {
      const size_t i = (size_t)r * NC + c;
      {  // forward, with the exact mean
        const double z = ((HX[i] - DMEAN[c]) * DRSTD[c] * HW[c] + HB[c] + BIAS) / VALUE;
        const double y = z / (1 + std::exp(-z));
        HY[i] = (float)y;
        MAXY = std::max(MAXY, std::fabs(y));
      }
      const double xh = ((double)HX[i] - HMEAN[c]) * HRSTD[c], z = (xh * HW[c] + HB[c] + BIAS) / VALUE;
      const double s = 1 / (1 + std::exp(-z));
      gp[i] = HG[i] * s * (1 + z * (1 - s)) / VALUE;
      DBETA[c] += gp[i];
      DGAMMA[c] += gp[i] * xh;
    }
  for (int r = 0; r < NR; r++)
    for (int c = 0; c < NC; c++) {
      const size_t i = (size_t)r * NC + c;
      const double xh = ((double)HX[i] - HMEAN[c]) * HRSTD[c];
      const double d = (double)HW[c] * HRSTD[c] * (gp[i] - DBETA[c] / NR - xh * DGAMMA[c] / NR);
      HDX[i] = (float)d;
      MAXDX = std::max(MAXDX, std::fabs(d));
    }
  DBIAS = 0;
  for (int c = 0; c < NC; c++) DBIAS += DBETA[c];
}

// ------------------------------------------------------------------ the child
#define DIE(e)                                                                                      \
  do {                                                                                              \
    cudaError_t e_ = (e);                                                                           \
    if (e_ != cudaSuccess) {                                                                        \
      printf("CUDA error at line %d: %s: %s\n", __LINE__, cudaGetErrorName(e_), cudaGetErrorString(e_)); \
      fflush(stdout);                                                                               \
      _exit(3);                                                                                     \
    }                                                                                               \
  } while (0)
typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static Encode encode;
static int flushmode = 0, SMS = 132;
static float *X[NROT], *G[NROT], *Y, *Y2, *REFDX, *REFY, *FB, *FB2, *small;
static P base;
static u64 pol[3];
static unsigned* res;
static cudaEvent_t e0, e1;
constexpr size_t FLUSH = 256u << 20;

template <class F>
static cudaError_t timeit(F launch, int samples, double& us) {
  std::vector<float> t;
  for (int i = 0; i < samples; i++) {
    static bool can_reset = true;
    if (can_reset && cudaCtxResetPersistingL2Cache() != cudaSuccess) {
      cudaGetLastError();
      can_reset = false;
      printf("(cudaCtxResetPersistingL2Cache refused)\n");
    }
    flush_write<<<FLUSH / 16 / 512, 512>>>((float4*)FB, (float)i);
    if (flushmode) flush_read<<<FLUSH / 16 / 512, 512>>>((const float4*)FB2, (float4*)FB);
    spin<<<1, 1>>>(95000);
    DIE(cudaEventRecord(e0));
    const cudaError_t e = launch(i % NROT);
    DIE(cudaEventRecord(e1));
    DIE(cudaEventSynchronize(e1));
    if (e != cudaSuccess) return e;
    float ms;
    DIE(cudaEventElapsedTime(&ms, e0, e1));
    t.push_back(ms * 1e3f);
  }
  DIE(cudaGetLastError());
  std::sort(t.begin(), t.end());
  us = t[t.size() / 2];
  return cudaSuccess;
}
static bool make_map(CUtensorMap* m, void* at, int W, int CR, int promo) {
  const cuuint64_t dim[2] = {NC, NR}, stride[1] = {NC * 4};
  const cuuint32_t box[2] = {(cuuint32_t)W, (cuuint32_t)CR}, step[2] = {1, 1};
  static const CUtensorMapL2promotion pr[3] = {CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B};
  return encode(m, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, at, dim, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_NONE, pr[promo], CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
struct Launch {
  cudaLaunchConfig_t c = {};
  cudaLaunchAttribute a[2];
  P p[NROT];
  const void* fn;
  int db;
  cudaError_t go(int rot, float* out) {
    p[rot].out = out;
    void* args[] = {&p[rot]};
    c.attrs = a;
    cudaError_t e = cudaLaunchKernelExC(&c, fn, args);
    if (e != cudaSuccess || (db != 2 && db != 4)) return e;
    cudaLaunchConfig_t d = {};
    cudaLaunchAttribute b[1];
    d.gridDim = 1, d.blockDim = 1024;
    d.attrs = b;
    if (db == 2) {
      b[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      b[0].val.programmaticStreamSerializationAllowed = 1;
      d.numAttrs = 1;
    }
    return cudaLaunchKernelEx(&d, dbias_kernel, (const float*)p[rot].dbeta, p[rot].dbias, db == 2 ? 1 : 0);
  }
};
// false: says why in r.msg
static bool prepare(Rec& r, Launch& l) {
  const Var& v = VARS[r.var];
  auto no = [&](const char* what, cudaError_t e) {
    snprintf(r.msg, sizeof r.msg, "%s: %s", what, cudaGetErrorString(e));
    cudaGetLastError();
    return false;
  };
  l.fn = v.fn[r.mode];
  l.db = v.back ? r.db : 0;
  if (!l.fn) {
    snprintf(r.msg, sizeof r.msg, "no such mode");
    return false;
  }
  r.smem = smem_of(v, r.ns);
  cudaFuncAttributes fa;
  cudaError_t e = cudaFuncGetAttributes(&fa, l.fn);
  if (e != cudaSuccess) return no("attributes", e);
  r.regs = fa.numRegs, r.local = (int)fa.localSizeBytes;
  if (r.smem > SMEM_BLOCK) {
    snprintf(r.msg, sizeof r.msg, "%d bytes of shared memory", r.smem);
    return false;
  }
  e = cudaFuncSetAttribute(l.fn, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BLOCK);
  if (e == cudaSuccess)
    e = cudaFuncSetAttribute(l.fn, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (e != cudaSuccess) return no("shared memory", e);
  int occ = 0;
  e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&occ, l.fn, v.T, r.smem);
  if (e != cudaSuccess) return no("occupancy", e);
  l.c.blockDim = v.T, l.c.dynamicSmemBytes = r.smem, l.c.numAttrs = 0, l.c.gridDim = NC / v.W * v.CL, l.c.attrs = l.a;
  const int nt = NC / v.W;
  int room = occ * SMS;
  if (v.CL > 1) {
    l.a[0].id = cudaLaunchAttributeClusterDimension;
    l.a[0].val.clusterDim.x = v.CL, l.a[0].val.clusterDim.y = 1, l.a[0].val.clusterDim.z = 1;
    l.c.numAttrs = 1;
    room = 0;
    e = cudaOccupancyMaxActiveClusters(&room, l.fn, &l.c);
    if (e != cudaSuccess) return no("clusters", e);
    if (r.sched) {
      l.a[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      l.a[1].val.clusterSchedulingPolicyPreference = (cudaClusterSchedulingPolicy)r.sched;
      l.c.numAttrs = 2;
    }
  }
  r.occ = occ;
  if (room < 1) {
    snprintf(r.msg, sizeof r.msg, "does not fit");
    return false;
  }
  int ncl = r.grid == 2 ? nt : std::min(nt, room);
  if (r.grid == 1) ncl = (nt + (nt + ncl - 1) / ncl - 1) / ((nt + ncl - 1) / ncl);
  r.blocks = ncl * v.CL;
  l.c.gridDim = r.blocks;
  for (int i = 0; i < NROT; i++) {
    P& p = l.p[i];
    p = base;
    p.x = X[i], p.g = G[i], p.out = Y;
    p.pol = pol[r.pol], p.ns = v.load == 1 ? v.nsc : r.ns, p.db = l.db;
    if (v.load == 0 && (!make_map(&p.tx, X[i], v.W, v.CR, r.promo) || !make_map(&p.tg, G[i], v.W, v.CR, r.promo) ||
                        !make_map(&p.ty, Y, v.W, v.CR, 0))) {
      snprintf(r.msg, sizeof r.msg, "tensor map refused");
      return false;
    }
  }
  return true;
}
static bool check(Rec& r, Launch& l) {
  const Var& v = VARS[r.var];
  DIE(cudaMemset(res, 0, 8));
  DIE(cudaMemset(base.dgamma, 0xff, 2 * NC * 4));  // dgamma, dbeta
  DIE(cudaMemset(base.omean, 0xff, 2 * NC * 4));
  DIE(cudaMemset(base.dbias, 0xff, 4));
  DIE(cudaMemset(base.part, 0xff, 1024 * 4));
  DIE(cudaMemset(base.ticket, 0, 4));
  for (int run = 0; run < 2; run++) {  // into Y both times (the map for TMA stores), the first result moved to Y2
    DIE(cudaMemset(Y, 0xff, (size_t)NR * NC * 4));
    const cudaError_t e = l.go(run, Y);
    if (e != cudaSuccess) {
      snprintf(r.msg, sizeof r.msg, "launch: %s", cudaGetErrorString(e));
      cudaGetLastError();
      DIE(cudaDeviceSynchronize());
      return false;
    }
    if (run == 0) DIE(cudaMemcpyAsync(Y2, Y, (size_t)NR * NC * 4, cudaMemcpyDeviceToDevice));
  }
  compare<<<SMS * 8, 256>>>(Y, Y2, v.back ? REFDX : REFY, res);
  DIE(cudaGetLastError());
  DIE(cudaDeviceSynchronize());
  unsigned h[2];
  DIE(cudaMemcpy(h, res, 8, cudaMemcpyDeviceToHost));
  float m;
  memcpy(&m, h, 4);
  r.err_main = m / (v.back ? MAXDX : MAXY);
  r.differ = h[1];
  std::vector<float> a(NC), b(NC);
  float bias = 0;
  DIE(cudaMemcpy(a.data(), v.back ? base.dgamma : base.omean, NC * 4, cudaMemcpyDeviceToHost));
  DIE(cudaMemcpy(b.data(), v.back ? base.dbeta : base.orstd, NC * 4, cudaMemcpyDeviceToHost));
  DIE(cudaMemcpy(&bias, base.dbias, 4, cudaMemcpyDeviceToHost));
  const std::vector<double>&ra = v.back ? DGAMMA : DMEAN, &rb = v.back ? DBETA : DRSTD;
  double ea = 0, eb = 0, ma = 0, mb = 0;
  for (int c = 0; c < NC; c++) {
    const double da = std::fabs(a[c] - ra[c]), db = std::fabs(b[c] - rb[c]);
    ea = da <= ea ? ea : da == da ? da : 1e30;
    eb = db <= eb ? eb : db == db ? db : 1e30;
    ma = std::max(ma, std::fabs(ra[c])), mb = std::max(mb, std::fabs(rb[c]));
  }
  r.err_cols = std::max(ea / ma, eb / mb);
  r.err_bias = 0;
  if (v.back && r.db) {
    const double d = std::fabs(bias - DBIAS) / std::fabs(DBIAS);
    r.err_bias = d == d ? d : 1e30;
  }
  if (r.err_main < 1e-5 && r.err_cols < 1e-5 && r.err_bias < 1e-5 && r.differ == 0) return true;
  snprintf(r.msg, sizeof r.msg, "WRONG: out %.1e columns %.1e dbias %.1e differ %u", r.err_main, r.err_cols, r.err_bias,
           r.differ);
  return false;
}
static std::string name_of(const Rec& r) {
  const Var& v = VARS[r.var];
  static const char* ld[] = {"tma", "cp.async", "direct"};
  static const char* gr[] = {"resident", "even", "all"};
  static const char* po[] = {"normal", "first", "last"};
  static const char* pr[] = {"-", "128", "256"};
  static const char* di[] = {"", " [SUMS ONLY]", " [LOAD+STORE ONLY]"};
  static const char* dbs[] = {"none", "ticket", "pdl", "ticket-late", "launch"};
  char s[256];
  snprintf(s, sizeof s, "%-22s B%d %s %s%s%s ns%d %s(%d) pol=%s promo=%s%s db=%s%s", v.name, v.minb, ld[v.load],
           v.hold ? "smem" : "reg", v.store ? " st=tma" : "", v.CL > 1 ? v.red ? " barrier" : " st.async" : "", r.ns,
           gr[r.grid], r.blocks, po[r.pol], pr[r.promo], v.CL > 1 && !r.sched ? " sched=default" : "",
           v.back ? dbs[r.db] : "-", di[r.mode]);
  return s;
}
static std::string family(const Rec& r) {
  const Var& v = VARS[r.var];
  std::string s = v.back ? "bwd " : "fwd ";
  s += v.load == 0 ? "tma " : v.load == 1 ? "cp.async " : "direct ";
  s += v.hold ? "smem " : "reg ";
  s += v.store ? "st=tma " : "";
  s += v.CL == 1 ? "alone " : v.red ? "cluster+barrier " : "cluster+st.async ";
  s += r.grid == 2 ? "one tile" : "persistent";
  return s;
}
static void line(const Rec& r) {
  const bool back = VARS[r.var].back;
  if (r.state != 2) {
    printf("%-104s %s\n", name_of(r).c_str(), r.state == 3 ? r.msg : "not run");
    return;
  }
  printf("%-104s %6.2f us %5.1f %% r%d%s occ%d %dK", name_of(r).c_str(), r.us,
         100 * (back ? S->copy2 : S->copy1) / r.us, r.regs, r.local ? "+spills" : "", r.occ, r.smem / 1024);
  if (r.mode == 0) printf(" %.0e %.0e %.0e", r.err_main, r.err_cols, r.err_bias);
  printf("\n");
}
static void copies(const char* when) {
  const dim3 gr(NR * NC / 4 / 256), bl(256);
  double a = 0, b = 0, m = 0;
  DIE(timeit([&](int r) { copy1<<<gr, bl>>>((float4*)X[r], (float4*)Y); return cudaGetLastError(); }, 31, a));
  DIE(timeit([&](int r) { return cudaMemcpyAsync(Y, X[r], (size_t)NR * NC * 4, cudaMemcpyDeviceToDevice); }, 31, m));
  DIE(timeit([&](int r) { copy2<<<gr, bl>>>((float4*)X[r], (float4*)G[r], (float4*)Y); return cudaGetLastError(); }, 31, b));
  printf("%s: copy x->y %.2f us (cudaMemcpyAsync %.2f), copy x,g->dx %.2f us; the bar of 75 %% is %.2f and %.2f us\n",
         when, a, m, b, a / .75, b / .75);
  fflush(stdout);
  S->copy1 = a, S->copy2 = b;
}
static void child(int stage, double until) {
  cudaDeviceProp pr;
  DIE(cudaGetDeviceProperties(&pr, 0));
  SMS = pr.multiProcessorCount;
  void* f = nullptr;
  cudaDriverEntryPointQueryResult q;
  DIE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &q));
  if (!f || q != cudaDriverEntryPointSuccess) {
    printf("no cuTensorMapEncodeTiled\n");
    _exit(4);
  }
  encode = (Encode)f;
  DIE(cudaEventCreate(&e0));
  DIE(cudaEventCreate(&e1));
  const size_t by = (size_t)NR * NC * 4;
  for (int i = 0; i < NROT; i++) {
    DIE(cudaMalloc(&X[i], by));
    DIE(cudaMalloc(&G[i], by));
    DIE(cudaMemcpy(X[i], HX.data(), by, cudaMemcpyHostToDevice));
    DIE(cudaMemcpy(G[i], HG.data(), by, cudaMemcpyHostToDevice));
  }
  DIE(cudaMalloc(&Y, by));
  DIE(cudaMalloc(&Y2, by));
  DIE(cudaMalloc(&REFDX, by));
  DIE(cudaMalloc(&REFY, by));
  DIE(cudaMemcpy(REFDX, HDX.data(), by, cudaMemcpyHostToDevice));
  DIE(cudaMemcpy(REFY, HY.data(), by, cudaMemcpyHostToDevice));
  DIE(cudaMalloc(&FB, FLUSH));
  DIE(cudaMalloc(&FB2, FLUSH));
  DIE(cudaMemset(FB2, 0, FLUSH));
  DIE(cudaMalloc(&small, 1 << 20));
  DIE(cudaMemset(small, 0, 1 << 20));
  auto take = [&](size_t n) {
    float* r = small;
    small += (n + 63) / 64 * 64;
    return r;
  };
  float *w = take(NC), *b = take(NC), *bias = take(1), *mean = take(NC), *rstd = take(NC);
  DIE(cudaMemcpy(w, HW.data(), NC * 4, cudaMemcpyHostToDevice));
  DIE(cudaMemcpy(b, HB.data(), NC * 4, cudaMemcpyHostToDevice));
  DIE(cudaMemcpy(bias, &BIAS, 4, cudaMemcpyHostToDevice));
  DIE(cudaMemcpy(mean, HMEAN.data(), NC * 4, cudaMemcpyHostToDevice));
  DIE(cudaMemcpy(rstd, HRSTD.data(), NC * 4, cudaMemcpyHostToDevice));
  base.w = w, base.b = b, base.bias = bias, base.mean = mean, base.rstd = rstd;
  base.dgamma = take(2 * NC), base.dbeta = base.dgamma + NC;
  base.omean = take(2 * NC), base.orstd = base.omean + NC;
  base.part = take(1024), base.dbias = take(1), base.ticket = (unsigned*)take(1);
  base.iv = (float)(1 / VALUE);
  res = (unsigned*)take(2);
  u64* pd = (u64*)take(8);
  mkpol<<<1, 1>>>(pd);
  DIE(cudaMemcpy(pol, pd, 24, cudaMemcpyDeviceToHost));
  if (stage == 1 && S->progress == 0) {
    printf("%s: %d processors, L2 %.1f MB, %zu bytes of shared memory a block; flush mode %d\n", pr.name, SMS,
           pr.l2CacheSize / 1048576.0, pr.sharedMemPerBlockOptin, flushmode);
    printf("clusters at a time (cudaOccupancyMaxActiveClusters), 128 threads, shared memory for 1, 2, 4 blocks a processor:\n");
    DIE(cudaFuncSetAttribute((const void*)tiny, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BLOCK));
    for (int per : {1, 2, 4})
      for (int cl : {1, 2, 4, 8}) {
        cudaLaunchConfig_t c = {};
        cudaLaunchAttribute at[1];
        at[0].id = cudaLaunchAttributeClusterDimension;
        at[0].val.clusterDim.x = cl, at[0].val.clusterDim.y = 1, at[0].val.clusterDim.z = 1;
        c.gridDim = 1024, c.blockDim = 128, c.attrs = at, c.numAttrs = 1;
        c.dynamicSmemBytes = std::min(SMEM_BLOCK, SMEM_SM / per - 1024);
        int got = -1;
        const cudaError_t e = cudaOccupancyMaxActiveClusters(&got, tiny, &c);
        printf("  %d blocks a processor, clusters of %d: %d clusters = %d blocks of %d%s\n", per, cl, got, got * cl,
               per * SMS, e == cudaSuccess ? "" : cudaGetErrorString(e));
        cudaGetLastError();
      }
  }
  copies("warm-up");
  copies("COPY");
  for (int i = 0; i < S->n; i++) {
    Rec& r = S->r[i];
    if (r.stage != stage || r.state) continue;
    if (elapsed() > until) {
      printf("(time is up for this stage)\n");
      break;
    }
    r.state = 1;
    S->progress++;
    Launch l;
    bool ok = prepare(r, l);
    if (ok && r.mode == 0) ok = check(r, l);
    double us = 0;
    if (ok) {
      const cudaError_t e = timeit([&](int k) { return l.go(k, Y); }, r.samples, us);
      if (e != cudaSuccess) {
        snprintf(r.msg, sizeof r.msg, "launch: %s", cudaGetErrorString(e));
        cudaGetLastError();
        ok = false;
      }
    }
    r.us = us;
    r.state = ok ? 2 : 3;
    if (!ok || stage == 1) line(r);
  }
  copies("COPY again");
  DIE(cudaDeviceSynchronize());
  fflush(stdout);
  _exit(0);
}
// ------------------------------------------------------------------ the parent
static void run_stage(int stage, double until) {
  for (int tries = 0; tries < 12; tries++) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid < 0) {
      printf("fork failed\n");
      return;
    }
    if (pid == 0) child(stage, until);
    int status = 0, seen = S->progress;
    double since = now();
    bool killed = false;
    for (;;) {
      const pid_t got = waitpid(pid, &status, WNOHANG);
      if (got == pid) break;
      if (S->progress != seen) seen = S->progress, since = now();
      if (!killed && (now() - since > 25 || elapsed() > 88)) {
        printf("(child %d says nothing more: ended)\n", (int)pid);
        kill(pid, SIGKILL);
        killed = true;
      }
      if (killed && now() - since > 40) return;  // it does not even die
      usleep(5000);
    }
    bool lost = false;
    for (int i = 0; i < S->n; i++)
      if (S->r[i].state == 1) {
        Rec& r = S->r[i];
        r.state = 3;
        snprintf(r.msg, sizeof r.msg, "FAILED: its process ended (status %x)", status);
        line(r);
        lost = true;
      }
    if (!lost) {  // ended well, or failed before any variant
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
      printf("child ended with status %x\n", status);
      if (tries > 1) return;
    }
    if (elapsed() > until) return;
  }
}
static void add(Rec r) {
  if (S->n >= MAXREC) return;
  for (int i = 0; i < S->n; i++) {
    const Rec& o = S->r[i];
    if (o.stage == r.stage && o.var == r.var && o.mode == r.mode && o.ns == r.ns && o.grid == r.grid && o.pol == r.pol &&
        o.promo == r.promo && o.sched == r.sched && o.db == r.db)
      return;
  }
  r.state = 0, r.us = 0, r.msg[0] = 0;
  S->r[S->n++] = r;
}
static std::vector<Rec> best(bool back, int upto_stage, int mode = 0) {  // done, fastest first
  std::vector<Rec> v;
  for (int i = 0; i < S->n; i++)
    if (S->r[i].state == 2 && S->r[i].mode == mode && VARS[S->r[i].var].back == back && S->r[i].stage <= upto_stage)
      v.push_back(S->r[i]);
  std::sort(v.begin(), v.end(), [](const Rec& a, const Rec& b) { return a.us < b.us; });
  return v;
}
int main(int argc, char** argv) {
  t_begin = now();
  if (argc > 1) flushmode = atoi(argv[1]);
  S = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (S == MAP_FAILED) return 1;
  memset(S, 0, sizeof *S);
  reference();
  printf("reference on the host: %.1f s; max |dx| %.3f, max |y| %.3f, dbias %.1f\n", elapsed(), MAXDX, MAXY, DBIAS);
  // stage 1: every kernel, some ring sizes, resident blocks and one tile a block
  for (size_t i = 0; i < VARS.size(); i++) {
    const Var& v = VARS[i];
    Rec r = {};
    r.var = (int)i, r.promo = 1, r.sched = cudaClusterSchedulingPolicyLoadBalancing, r.db = v.back ? 1 : 0;
    r.samples = 11, r.stage = 1;
    const int nch = chunks_of(v);
    if (v.load == 1) {
      for (int grid : {0, 2}) r.ns = v.nsc, r.grid = grid, add(r);
      continue;
    }
    if (v.load == 2) {
      for (int grid : {0, 2}) r.ns = 0, r.grid = grid, add(r);
      continue;
    }
    const int need = v.hold && v.store ? 2 * nch : nch;
    const int most = slots_for(v, v.minb);
    for (int ns : {most, (most + nch + 1) / 2})
      if (ns >= need) r.ns = ns, r.grid = 0, add(r);
    if (smem_of(v, nch) <= SMEM_BLOCK) r.ns = nch, r.grid = 2, add(r);
  }
  run_stage(1, 35);
  // stage 2: for the ten best kernels of either direction the cache policy, what TMA fetches, the grid, the scheduling
  for (bool back : {true, false}) {
    std::map<int, int> used;
    int taken = 0;
    for (Rec r : best(back, 1)) {
      if (taken >= (back ? 10 : 5)) break;
      if (used[r.var]++ >= 2) continue;
      taken++;
      r.stage = 2;
      const Var& v = VARS[r.var];
      for (int pl : {0, 1, 2})
        for (int pm : {0, 1, 2})
          for (int grid : {0, 1})
            for (int sc : {2, 0}) {
              if (v.load != 0 && (pl || pm != 1)) continue;
              if (r.grid == 2 && grid) continue;
              if (v.CL == 1 && sc != 2) continue;
              Rec n = r;
              n.pol = pl, n.promo = pm, n.sched = sc;
              if (r.grid != 2) n.grid = grid;
              add(n);
            }
    }
  }
  run_stage(2, 58);
  // stage 3: the best again with more samples, the best of each family, dbias in every way, parts of the work
  for (bool back : {true, false}) {
    std::vector<Rec> b = best(back, 2);
    std::map<std::string, int> fam;
    std::map<int, int> used;
    int n = 0, kernels = 0;
    for (Rec r : b) {
      r.stage = 3, r.samples = 41;
      const bool top = n < (back ? 25 : 8), first = !fam[family(r)]++;
      if (top || first) add(r);
      if (n < 2 && back)
        for (int db : {0, 1, 2, 3, 4}) {
          Rec d = r;
          d.db = db;
          add(d);
        }
      if (!used[r.var]++ && kernels < 5 && VARS[r.var].fn[1]) {
        kernels++;
        for (int mode : {1, 2}) {
          Rec d = r;
          d.mode = mode, d.db = 0;
          add(d);
        }
        Rec d = r;
        d.db = 0;
        add(d);
      }
      n++;
    }
  }
  run_stage(3, 80);
  for (bool back : {false, true}) {
    std::vector<Rec> v;
    for (int i = 0; i < S->n; i++)
      if (S->r[i].stage == 3 && S->r[i].state == 2 && S->r[i].mode == 0 && VARS[S->r[i].var].back == back)
        v.push_back(S->r[i]);
    std::sort(v.begin(), v.end(), [](const Rec& a, const Rec& b) { return a.us < b.us; });
    printf("\n==== %s: copy %.2f us, the bar of 75 %% is %.2f us. The best %d\n", back ? "BACKWARD" : "FORWARD",
           back ? S->copy2 : S->copy1, (back ? S->copy2 : S->copy1) / .75, back ? 25 : 8);
    int n = 0;
    for (const Rec& r : v)
      if ((r.db || !back) && n++ < (back ? 25 : 8)) line(r);
    printf("---- best of each family\n");
    std::map<std::string, int> fam;
    for (const Rec& r : v)
      if ((r.db || !back) && !fam[family(r)]++) {
        printf("%-46s ", family(r).c_str());
        line(r);
      }
    if (back) {
      printf("---- dbias: none, ticket before the last stores, dependent launch, ticket after, second launch\n");
      for (const Rec& r : v) {
        bool pair = false;
        for (const Rec& o : v)
          pair |= o.var == r.var && o.ns == r.ns && o.grid == r.grid && o.pol == r.pol && o.promo == r.promo &&
                  o.sched == r.sched && o.db == 4;
        if (pair) line(r);
      }
    }
    printf("---- parts (dbias none)\n");
    for (int i = 0; i < S->n; i++)
      if (S->r[i].stage == 3 && S->r[i].mode && VARS[S->r[i].var].back == back) {
        const Rec& d = S->r[i];
        for (const Rec& o : v)
          if (d.mode == 1 && o.var == d.var && o.ns == d.ns && o.grid == d.grid && o.pol == d.pol && o.promo == d.promo &&
              o.sched == d.sched && o.db == 0)
            line(o);
        line(d);
      }
  }
  int failed = 0, done = 0, todo = 0;
  for (int i = 0; i < S->n; i++) failed += S->r[i].state == 3, done += S->r[i].state == 2, todo += S->r[i].state < 2;
  printf("\n%d measured, %d failed, %d not run; %.1f s in all\n", done, failed, todo, elapsed());
  return 0;
}
