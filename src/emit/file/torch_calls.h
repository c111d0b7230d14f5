// Calls from Python: PyTorch's tensors are checked, and handed to a kernel as pointers, sizes and strides.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#ifdef FW_CUDA_EXTENSION
#include <c10/cuda/CUDAStream.h>
#endif

namespace fusewright {

// Any strides will do; all else must be what the kernel was written for.
inline void check_operand(const KernelLoops& kernel, size_t o, const at::Tensor& x, const at::Tensor& first,
                          const std::vector<int64_t>& sizes) {
  const KernelLoops::Operand& operand = kernel.operands[o];
#ifdef FW_CUDA_EXTENSION
  TORCH_CHECK(x.is_cuda(), kernel.name, ": ", operand.name, " must be a CUDA tensor, but is on ", x.device());
#else
  TORCH_CHECK(x.is_cpu(), kernel.name, ": ", operand.name, " must be a CPU tensor, but is on ", x.device());
#endif
  TORCH_CHECK(x.device() == first.device(), kernel.name, ": ", operand.name, " is on ", x.device(), ", but ",
              kernel.operands[0].name, " is on ", first.device());
  // The tensor behind a sum on the side has the type of the result, not of the buffer.
  TORCH_CHECK(operand.side || x.scalar_type() == scalar_type(operand.dtype), kernel.name, ": ", operand.name,
              " must be of type ", scalar_type(operand.dtype), ", not ", x.scalar_type());
  TORCH_CHECK(x.layout() == at::kStrided && !x.is_neg() && !x.is_conj(), kernel.name, ": ", operand.name,
              " must be a plain strided tensor");
  const auto rank = static_cast<int64_t>(operand.dims.size());
  TORCH_CHECK(x.dim() == rank && rank <= max_rank, kernel.name, ": ", operand.name, " must have ", rank,
              " dimensions, not ", x.dim());
  for (int64_t d = 0; d < rank; ++d) {
    int64_t expected = 1;
    for (int axis : operand.dims[static_cast<size_t>(d)]) expected *= sizes[static_cast<size_t>(axis)];
    TORCH_CHECK(x.size(d) == expected, kernel.name, ": dimension ", d, " of ", operand.name, " must be ", expected,
                ", not ", x.size(d), "; its sizes are ", x.sizes());
  }
}

inline void call_kernel(size_t number, const std::vector<at::Tensor>& tensors, std::vector<int64_t> sizes,
                        std::vector<double> numbers) {
  const KernelLoops& kernel = kernels()[number];
  TORCH_CHECK(tensors.size() == kernel.operands.size() && sizes.size() == kernel.axes.size() &&
                  numbers.size() == kernel.numbers.size(),
              kernel.name, " was called with the wrong number of arguments");
  for (int64_t size : sizes) TORCH_CHECK(size >= 0, kernel.name, ": a size would be ", size);
  std::vector<Tensor> operands(tensors.size());
  KernelCall call;
  for (size_t o = 0; o < tensors.size(); ++o) {
    const at::Tensor& x = tensors[o];
    check_operand(kernel, o, x, tensors[0], sizes);
    Tensor& operand = operands[o];
    operand.data = x.data_ptr();
    operand.rank = static_cast<int>(x.dim());
    for (size_t d = 0; d < static_cast<size_t>(operand.rank); ++d) {
      operand.sizes[d] = x.sizes()[d];
      operand.strides[d] = x.strides()[d];
    }
    for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i8, DType::u8, DType::i16, DType::i32,
                        DType::i64, DType::b8})
      if (scalar_type(dtype) == x.scalar_type()) operand.dtype = dtype;
    call.operands.push_back(&operand);
  }
  call.sizes = std::move(sizes);
  call.numbers = std::move(numbers);
  const c10::DeviceGuard on_device(tensors[0].device());
  std::vector<at::Tensor> memory;
#ifdef FW_CUDA_EXTENSION
  call.device = tensors[0].get_device();
  call.stream = c10::cuda::getCurrentCUDAStream(tensors[0].device().index()).stream();
#endif
  call.allocate = [&](int64_t bytes) {
    memory.push_back(at::empty({bytes}, tensors[0].options().dtype(at::kByte)));
    return memory.back().data_ptr();
  };
  {
    pybind11::gil_scoped_release release;
    run_kernel(number, call);
  }
  // What was written is another version for autograd.
  for (size_t o = 0; o < tensors.size(); ++o)
    if (kernel.operands[o].store && !tensors[o].is_inference()) tensors[o].unsafeGetTensorImpl()->bump_version();
}

}  // namespace fusewright

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  for (size_t number = 0; number < fusewright::kernels().size(); ++number)
    m.def(fusewright::kernels()[number].name.c_str(),
          [number](const std::vector<at::Tensor>& tensors, std::vector<int64_t> sizes, std::vector<double> numbers) {
            fusewright::call_kernel(number, tensors, std::move(sizes), std::move(numbers));
          });
}
