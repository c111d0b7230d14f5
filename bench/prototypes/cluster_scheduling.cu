// Measures the cost of launching blocks in clusters, and where the device puts them: a copy of 33.5 MB by grids of several
// shapes, without clusters and in clusters of 2, 4 and 8, by the attribute of a launch and by __cluster_dims__, with
// and without the cluster's barrier, with each scheduling policy.
//   nvcc -O3 -std=c++17 -arch=sm_90a cluster_scheduling.cu -o cluster_scheduling && ./cluster_scheduling
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

__global__ void spin(long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

__global__ void fill(float4* to, size_t count) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i < count) to[i] = make_float4(static_cast<float>(i), 1, 2, 3);
}

template <bool barrier>
__device__ void copy_block(const float4* from, float4* to, size_t count, unsigned* processor) {
  if (processor != nullptr && threadIdx.x == 0) asm("mov.u32 %0, %%smid;" : "=r"(processor[blockIdx.x]));
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = from[i];
  if (barrier) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}
template <bool barrier>
__global__ void __launch_bounds__(512) copy(const float4* from, float4* to, size_t count, unsigned* processor) {
  copy_block<barrier>(from, to, count, processor);
}
template <int cluster>
__global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(512)
    copy_in(const float4* from, float4* to, size_t count, unsigned* processor) {
  copy_block<true>(from, to, count, processor);
}

struct Grid {
  int blocks, threads, shared_bytes;
};

int main() {
  const size_t count = size_t{8192} * 1024 / 4, flushed = (size_t{256} << 20) / sizeof(float4);
  float4 *from, *to, *flush;
  unsigned* processor;
  cudaMalloc(&from, count * sizeof(float4));
  cudaMalloc(&to, count * sizeof(float4));
  cudaMalloc(&flush, flushed * sizeof(float4));
  cudaMalloc(&processor, 4096 * sizeof(unsigned));
  fill<<<(count + 255) / 256, 256>>>(from, count);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  cudaStreamCreate(&stream);
  cudaEventCreate(&begin);
  cudaEventCreate(&end);

  auto run = [&](const char* name, auto kernel, Grid grid, int cluster, int policy) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10);
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = grid.blocks, config.blockDim = grid.threads, config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = stream, config.attrs = attributes;
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    int active = 0;
    if (cluster > 1) cudaOccupancyMaxActiveClusters(&active, kernel, &config);
    if (policy != 0) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
      attributes[config.numAttrs++].val.clusterSchedulingPolicyPreference =
          static_cast<cudaClusterSchedulingPolicy>(policy);
    }
    std::vector<float> times;
    for (int round = 0; round < 25; ++round) {
      fill<<<(flushed + 255) / 256, 256, 0, stream>>>(flush, flushed);
      spin<<<1, 1, 0, stream>>>(60000);
      cudaEventRecord(begin, stream);
      const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, static_cast<const float4*>(from), to, count,
                                                      round == 0 ? processor : static_cast<unsigned*>(nullptr));
      cudaEventRecord(end, stream);
      const cudaError_t ended = cudaStreamSynchronize(stream);
      if (launched != cudaSuccess || ended != cudaSuccess) {
        std::printf("%s: %s, %s\n", name, cudaGetErrorString(launched), cudaGetErrorString(ended));
        return;
      }
      float milliseconds;
      cudaEventElapsedTime(&milliseconds, begin, end);
      times.push_back(milliseconds * 1000);
    }
    std::vector<unsigned> where(grid.blocks);
    cudaMemcpy(where.data(), processor, where.size() * sizeof(unsigned), cudaMemcpyDeviceToHost);
    std::map<unsigned, int> blocks_on;
    int most = 0;
    for (unsigned one : where) most = std::max(most, ++blocks_on[one]);
    std::sort(times.begin(), times.end());
    std::printf(
        "%4d x %3d, %6d B  %-22s cluster %d policy %d: %6.2f us, on %3zu processors, at most %2d on one, room for %d\n",
        grid.blocks, grid.threads, grid.shared_bytes, name, cluster, policy, times[times.size() / 2], blocks_on.size(),
        most, active);
  };
  for (Grid grid :
       {Grid{512, 256, 0}, {512, 256, 40 << 10}, {128, 512, 135 << 10}, {256, 512, 100 << 10}, {1024, 128, 20 << 10}}) {
    run("alone", copy<false>, grid, 1, 0);
    for (int cluster : {2, 4, 8}) {
      run("by attribute", copy<false>, grid, cluster, 0);
      for (int policy : {0, 1, 2}) run("and a barrier", copy<true>, grid, cluster, policy);
    }
    run("by __cluster_dims__", copy_in<2>, grid, 2, 0);
    run("by __cluster_dims__", copy_in<8>, grid, 8, 0);
  }
}
