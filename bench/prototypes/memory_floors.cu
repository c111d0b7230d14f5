// How long it takes to read 134 MB once, to write them, and to copy them: plain kernels of many blocks, and blocks that
// stay and get their pieces by bulk copies, a stretch for each block, dealt out in turn, or the next one to whoever is
// free. Before each sample 256 MB are written.
//   nvcc -O3 -std=c++17 -arch=sm_90a memory_floors.cu -o memory_floors && ./memory_floors
#include <algorithm>
#include <vector>

#include "batch_norm_on_chip.cuh"  // barriers, errors

constexpr size_t BYTES = (size_t)65536 * 512 * 4;
__device__ __forceinline__ void mbar_arrive(uint64_t* m) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sptr(m)) : "memory"); }
__device__ __forceinline__ void mbar_wait(uint64_t* m, uint32_t par) {
  asm volatile("{\n .reg .pred p;\n W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra D;\n bra W;\n D:\n}" ::"r"(sptr(m)), "r"(par) : "memory");
}
__device__ __forceinline__ void bulk_g2s(void* dst, const void* src, int bytes, uint64_t* m) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(sptr(dst)), "l"(src), "r"(bytes), "r"(sptr(m)) : "memory");
}
__device__ __forceinline__ void bulk_s2g(void* dst, const void* src, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(sptr(src)), "r"(bytes) : "memory");
}
// WRITE 0: read only; 1: st.global by the consumers; 2: bulk store
template <int T, int WRITE>
__global__ void __launch_bounds__(T + 32) ring(const char* x, char* y, int chunk, int slots, int mode, unsigned* counter) {
  extern __shared__ __align__(128) unsigned char sm[];
  uint64_t* full = (uint64_t*)sm;
  uint64_t* empty = full + 64;
  volatile int* ids = (volatile int*)(empty + 64);
  unsigned char* buf = sm + 2048;
  const int G = gridDim.x, b = blockIdx.x, chunks = (int)(BYTES / chunk);
  const int lo = (int)((long long)b * chunks / G), hi = (int)((long long)(b + 1) * chunks / G);
  if (threadIdx.x == 0) {
    for (int i = 0; i < slots; i++) { mbar_init(full + i, 1); mbar_init(empty + i, T / 32); }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= T) {
    if (threadIdx.x == T) {
      int s = 0; uint32_t ph = 0;
      for (int i = 0;; i++) {
        int id = mode == 0 ? (lo + i < hi ? lo + i : -1) : mode == 1 ? (b + i * G < chunks ? b + i * G : -1) : -2;
        if (id == -2) { id = i == 0 ? b : (int)atomicAdd(counter, 1) + G; if (id >= chunks) id = -1; }
        if (i >= slots) mbar_wait(empty + s, ph ^ 1);
        ids[s] = id;
        if (id < 0) { mbar_expect(full + s, 0); break; }
        mbar_expect(full + s, chunk);
        bulk_g2s(buf + (size_t)s * chunk, x + (size_t)id * chunk, chunk, full + s);
        if (++s == slots) { s = 0; ph ^= 1; }
      }
    }
    return;
  }
  int s = 0; uint32_t ph = 0;
  float4 t = make_float4(0, 0, 0, 0), q = t;
  for (;;) {
    mbar_wait(full + s, ph);
    const int id = ids[s];
    if (id < 0) break;
    const float4* p = (const float4*)(buf + (size_t)s * chunk);
    if (WRITE < 2) {
#pragma unroll 2
      for (int i = threadIdx.x; i < chunk / 16; i += T) {
        float4 v = p[i];
        if (WRITE) ((float4*)(y + (size_t)id * chunk))[i] = v;
        else { t.x += v.x; t.y += v.y; t.z += v.z; t.w += v.w; q.x = fmaf(v.x, v.x, q.x); q.y = fmaf(v.y, v.y, q.y); q.z = fmaf(v.z, v.z, q.z); q.w = fmaf(v.w, v.w, q.w); }
      }
      __syncwarp();
      if ((threadIdx.x & 31) == 0) mbar_arrive(empty + s);
    } else {
      // each warp stores its own part of the chunk
      const int part = chunk / (T / 32), w = threadIdx.x / 32;
      float4* pw = (float4*)(buf + (size_t)s * chunk + w * part);
      for (int i = threadIdx.x & 31; i < part / 16; i += 32) { float4 v = pw[i]; v.x += 1; v.y += 1; v.z += 1; v.w += 1; pw[i] = v; }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if ((threadIdx.x & 31) == 0) {
        bulk_s2g(y + (size_t)id * chunk + w * part, pw, part);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        // the slot before this one has been read by now, or is waited for
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        int prev = s == 0 ? slots - 1 : s - 1;
        if (!(s == 0 && ph == 0)) mbar_arrive(empty + prev);
      }
    }
    if (++s == slots) { s = 0; ph ^= 1; }
  }
  if (WRITE == 2) { if ((threadIdx.x & 31) == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
  if (t.x + t.y + t.z + t.w + q.x + q.y + q.z + q.w == 1.2345e37f) ((float4*)y)[0] = t;
}
template <int T, int U, bool WRITE>
__global__ void __launch_bounds__(T) many(const float4* x, float4* y) {
  size_t base = (size_t)blockIdx.x * T * U + threadIdx.x;
  float4 v[U];
#pragma unroll
  for (int u = 0; u < U; u++) v[u] = x[base + u * T];
  float t = 0;
#pragma unroll
  for (int u = 0; u < U; u++) { if (WRITE) y[base + u * T] = v[u]; else t += v[u].x + v[u].y + v[u].z + v[u].w; }
  if (!WRITE && t == 1.2345e37f) y[0] = v[0];
}
__global__ void flush_write(float4* p, float v) { p[(size_t)blockIdx.x * blockDim.x + threadIdx.x] = make_float4(v, v, v, v); }
__global__ void spin(long long c) { long long t = clock64(); while (clock64() - t < c) {} }
float *x, *y; float4* fl; unsigned* counter;
template <class F> float timed(F f) {
  std::vector<float> t; cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
  for (int i = 0; i < 25; i++) {
    flush_write<<<(256 << 20) / 16 / 256, 256>>>(fl, i);
    CK(cudaMemsetAsync(counter, 0, 4));
    spin<<<1, 1>>>(100000);
    CK(cudaEventRecord(a)); f(); CK(cudaEventRecord(b)); CK(cudaEventSynchronize(b)); CK(cudaGetLastError());
    float ms; CK(cudaEventElapsedTime(&ms, a, b)); if (i >= 5) t.push_back(ms * 1000);
  }
  std::sort(t.begin(), t.end()); return t[t.size() / 2];
}
template <int T, int WRITE> void rings(const char* name) {
  for (int per : {1, 2}) for (int chunk : {8192, 16384, 32768}) for (int kb : {64, 104, 208}) for (int mode : {0, 1, 2}) {
    if (kb * per > 220) continue;
    int slots = kb * 1024 / chunk; if (slots < 2 || slots > 64) continue;
    int smem = 2048 + slots * chunk;
    CK(cudaFuncSetAttribute(ring<T, WRITE>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    float t = timed([&] { ring<T, WRITE><<<132 * per, T + 32, smem>>>((char*)x, (char*)y, chunk, slots, mode, counter); });
    printf("%s T%d blocks/SM %d chunk %d ring %d KB mode %d: %.1f us\n", name, T, per, chunk, kb, mode, t);
  }
}
int main() {
  CK(cudaMalloc(&x, BYTES)); CK(cudaMalloc(&y, BYTES)); CK(cudaMalloc(&fl, 256 << 20)); CK(cudaMalloc(&counter, 4));
  flush_write<<<BYTES / 16 / 256, 256>>>((float4*)x, 1.5f);
  auto F4 = [](float* p) { return (float4*)p; };
  printf("copy many 256x1 %.1f 256x4 %.1f\n", timed([&] { many<256, 1, true><<<BYTES / 16 / 256, 256>>>(F4(x), F4(y)); }), timed([&] { many<256, 4, true><<<BYTES / 16 / 1024, 256>>>(F4(x), F4(y)); }));
  printf("read many 256x1 %.1f 256x4 %.1f 256x8 %.1f 512x8 %.1f 1024x4 %.1f\n", timed([&] { many<256, 1, false><<<BYTES / 16 / 256, 256>>>(F4(x), F4(y)); }), timed([&] { many<256, 4, false><<<BYTES / 16 / 1024, 256>>>(F4(x), F4(y)); }),
    timed([&] { many<256, 8, false><<<BYTES / 16 / 2048, 256>>>(F4(x), F4(y)); }), timed([&] { many<512, 8, false><<<BYTES / 16 / 4096, 512>>>(F4(x), F4(y)); }), timed([&] { many<1024, 4, false><<<BYTES / 16 / 4096, 1024>>>(F4(x), F4(y)); }));
  printf("write only %.1f\n", timed([&] { flush_write<<<BYTES / 16 / 256, 256>>>((float4*)y, 2.f); }));
  rings<256, 0>("read");
  rings<512, 0>("read");
  rings<512, 1>("copy st");
  rings<256, 1>("copy st");
  rings<256, 2>("copy bulk");
  return 0;
}
