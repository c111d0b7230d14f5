"""linear_batchnorm_bias_divide_swish: ModelNew, in place of Model, with fused CUDA kernels.

Written by Fusewright 0.1.0; needs PyTorch 2.0 or newer and nvcc of CUDA 11.8 or newer, and nothing else. Kernels
are built when the model first runs. Names, order and first values of all parameters are those of Model.

What was fused
  fw_column_batch_norm_add_div_sigmoid_mul
    forward, column schedule, reads 33.7 MB, writes 33.7 MB: batch_norm add div sigmoid mul
  fw_column_backward_batch_norm_div_sigmoid_mul
    backward, column schedule, reads 67.2 MB, writes 33.6 MB: batch_norm div sigmoid mul
  fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul
    forward, pointwise schedule, reads 33.7 MB, writes 33.6 MB: linear_bias batch_norm add div sigmoid mul
  fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul
    backward, column schedule, reads 67.3 MB, writes 33.7 MB: linear_bias batch_norm add div sigmoid mul

What it moves
  Outside of matrix products and convolutions, a training step with inputs (float32[1024, 8192]) moves 1.01 GB
  before, 168 MB now.

Why it is faster
  Every operator of eager PyTorch reads its operands from memory and writes its result back. A fused kernel reads
  each tensor once, keeps all that lies between in registers, and writes only what somebody else reads. The backward
  computes again what is cheaper to compute than to store.
  shift_cancels_in_norm: a bias in front of a norm cancels: it is not read, and its gradient is zero.
  norm_is_affine: what a chain multiplies to and adds to a norm meets: one multiply-add for each element.
  row_constants_leave_sum: factors that do not vary leave their sum: all sums of a norm's gradient fit in one sweep.
  distances_sum_to_zero: distances from their own mean sum to zero: one sum less in a norm's gradient.
  common_factor_leaves_terms: the terms of a norm's gradient are added before their common factor multiplies them.
  term_joins_its_multiple: y + y r is y (1 + r): what a term and its multiple share is multiplied once, as in a
  swish's gradient.
  nested_sum: a sum over more dimensions continues from one over fewer.

Left to PyTorch
  forward: matmul, backward: matmul x2, backward: sum: its library computes them well, and is called as eager calls
  it.
"""

import hashlib
import os

import torch
from torch.utils.cpp_extension import load_inline
from torch import nn


# ============ The model ===========================================================================================

class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape=(1,), divide_value=1.5, eps=1e-5, momentum=0.1):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.batch_norm = nn.BatchNorm1d(out_features, eps=eps, momentum=momentum)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.divide_value = divide_value

    def forward(self, x):
        _expect_state(self, ['bias', 'linear.weight', 'linear.bias', 'batch_norm.weight', 'batch_norm.bias',
            'batch_norm.running_mean', 'batch_norm.running_var', 'batch_norm.num_batches_tracked'])
        return self._forward_training(x) if self.training else self._forward_evaluation(x)

    def _forward_training(self, x):
        _expect(self.batch_norm.eps, 1e-05, 'self.batch_norm.eps')
        _expect(self.batch_norm.momentum, 0.1, 'self.batch_norm.momentum')
        _expect(self.batch_norm.track_running_stats, True, 'self.batch_norm.track_running_stats')
        _expect(self.batch_norm.training, True, 'self.batch_norm.training')
        _expect(self.divide_value, 1.5, 'self.divide_value')
        (getitem,) = _region_0(x, self.linear.weight, self.linear.bias, self.batch_norm.weight,
            self.batch_norm.bias, self.batch_norm.running_mean, self.batch_norm.running_var, self.bias,
            self.batch_norm.num_batches_tracked)
        return getitem

    def _forward_evaluation(self, x):
        _expect(self.batch_norm.eps, 1e-05, 'self.batch_norm.eps')
        _expect(self.batch_norm.momentum, 0.1, 'self.batch_norm.momentum')
        _expect(self.batch_norm.training, False, 'self.batch_norm.training')
        _expect(self.divide_value, 1.5, 'self.divide_value')
        (getitem,) = _region_1(x, self.linear.weight, self.linear.bias, self.batch_norm.weight,
            self.batch_norm.bias, self.batch_norm.running_mean, self.batch_norm.running_var, self.bias)
        return getitem


# ============ Regions: what runs around the kernels, forward and backward =========================================

def _region_0_inference(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
    batch_norm_running_var, bias, batch_norm_num_batches_tracked):
    device = _device_of(x)
    n0 = x.shape[0]
    n2 = linear_weight.shape[0]
    _positive(n2, 'linear_weight.shape[0]')
    _more_than_one(n0)
    permute_9 = linear_weight.permute(1, 0)
    saved0 = torch.mm(x, permute_9)
    del permute_9
    saved1 = torch.empty((1, n2), dtype=torch.float32, device=device)
    saved2 = torch.empty((1, n2), dtype=torch.float32, device=device)
    mul_44 = torch.empty((n0, n2), dtype=torch.float32, device=device)
    _kernels().fw_column_batch_norm_add_div_sigmoid_mul([saved0, saved1, saved2, linear_bias,
        batch_norm_running_mean, batch_norm_running_mean, batch_norm_running_var, batch_norm_running_var,
        batch_norm_weight, batch_norm_bias, bias, mul_44, batch_norm_num_batches_tracked,
        batch_norm_num_batches_tracked], [n0, n2], [n0, 1e-05, 0.1, 0.9, 1.5, 1.0])
    del saved0, saved1, saved2
    return (mul_44,)


class _Region0(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
        batch_norm_running_var, bias, batch_norm_num_batches_tracked):
        device = _device_of(x)
        n0 = x.shape[0]
        n2 = linear_weight.shape[0]
        _positive(n2, 'linear_weight.shape[0]')
        _more_than_one(n0)
        permute_9 = linear_weight.permute(1, 0)
        saved0 = torch.mm(x, permute_9)
        del permute_9
        saved1 = torch.empty((1, n2), dtype=torch.float32, device=device)
        saved2 = torch.empty((1, n2), dtype=torch.float32, device=device)
        mul_44 = torch.empty((n0, n2), dtype=torch.float32, device=device)
        _kernels().fw_column_batch_norm_add_div_sigmoid_mul([saved0, saved1, saved2, linear_bias,
            batch_norm_running_mean, batch_norm_running_mean, batch_norm_running_var, batch_norm_running_var,
            batch_norm_weight, batch_norm_bias, bias, mul_44, batch_norm_num_batches_tracked,
            batch_norm_num_batches_tracked], [n0, n2], [n0, 1e-05, 0.1, 0.9, 1.5, 1.0])
        ctx.save_for_backward(x, linear_weight, batch_norm_weight, batch_norm_bias, bias, saved0, saved1, saved2)
        return (mul_44,)

    @staticmethod
    def backward(ctx, dL_dy0):
        _first_derivatives_only()
        (x, linear_weight, batch_norm_weight, batch_norm_bias, bias, saved_5, saved_6, saved_7) = ctx.saved_tensors
        need = ctx.needs_input_grad
        _no_such_gradient(need[5], 'batch_norm_running_mean')
        _no_such_gradient(need[6], 'batch_norm_running_var')
        device = dL_dy0.device
        n0 = x.shape[0]
        n2 = linear_weight.shape[0]
        if need[0] or need[1] or need[3] or need[4] or need[7]:
            mul_40 = torch.empty((n0, n2), dtype=torch.float32, device=device)
            dL_dbatch_norm_weight = torch.empty((n2,), dtype=torch.float32, device=device)
            dL_dbatch_norm_bias = torch.empty((n2,), dtype=torch.float32, device=device)
            _kernels().fw_column_backward_batch_norm_div_sigmoid_mul([dL_dy0, saved_5, saved_6, saved_7,
                batch_norm_weight, batch_norm_bias, bias, mul_40, dL_dbatch_norm_weight, dL_dbatch_norm_bias],
                [n0, n2], [n0, 1e-05, 1.5])
        if need[0]:
            dL_dx = torch.mm(mul_40, linear_weight)
        if need[1]:
            permute_42 = mul_40.permute(1, 0)
            dL_dlinear_weight = torch.mm(permute_42, x)
            del mul_40, permute_42
        if need[7]:
            dL_dbias = torch.sum(dL_dbatch_norm_bias, [0], keepdim=True)
        if need[2]:
            dL_dlinear_bias = torch.zeros((n2,), dtype=torch.float32, device=device)
        return (
            dL_dx if need[0] else None,
            dL_dlinear_weight if need[1] else None,
            dL_dlinear_bias if need[2] else None,
            dL_dbatch_norm_weight if need[3] else None,
            dL_dbatch_norm_bias if need[4] else None,
            None,
            None,
            dL_dbias if need[7] else None,
            None,
        )


def _region_0(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
    batch_norm_running_var, bias, batch_norm_num_batches_tracked):
    if torch.is_grad_enabled() and _any_requires_grad(x, linear_weight, linear_bias, batch_norm_weight,
        batch_norm_bias, batch_norm_running_mean, batch_norm_running_var, bias, batch_norm_num_batches_tracked):
        return _Region0.apply(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias,
            batch_norm_running_mean, batch_norm_running_var, bias, batch_norm_num_batches_tracked)
    return _region_0_inference(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias,
        batch_norm_running_mean, batch_norm_running_var, bias, batch_norm_num_batches_tracked)


def _region_1_inference(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
    batch_norm_running_var, bias):
    device = _device_of(x)
    n0 = x.shape[0]
    n2 = linear_weight.shape[0]
    permute_8 = linear_weight.permute(1, 0)
    saved0 = torch.mm(x, permute_8)
    del permute_8
    mul_22 = torch.empty((n0, n2), dtype=torch.float32, device=device)
    _kernels().fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul([saved0, linear_bias,
        batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, batch_norm_bias, bias, mul_22],
        [n0, n2], [1e-05, 1.5])
    del saved0
    return (mul_22,)


class _Region1(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
        batch_norm_running_var, bias):
        device = _device_of(x)
        n0 = x.shape[0]
        n2 = linear_weight.shape[0]
        permute_8 = linear_weight.permute(1, 0)
        saved0 = torch.mm(x, permute_8)
        del permute_8
        mul_22 = torch.empty((n0, n2), dtype=torch.float32, device=device)
        _kernels().fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul([saved0, linear_bias,
            batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, batch_norm_bias, bias, mul_22],
            [n0, n2], [1e-05, 1.5])
        ctx.save_for_backward(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias,
            batch_norm_running_mean, batch_norm_running_var, bias, saved0)
        return (mul_22,)

    @staticmethod
    def backward(ctx, dL_dy0):
        _first_derivatives_only()
        (x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
            batch_norm_running_var, bias, saved_8) = ctx.saved_tensors
        need = ctx.needs_input_grad
        _no_such_gradient(need[5], 'batch_norm_running_mean')
        _no_such_gradient(need[6], 'batch_norm_running_var')
        device = dL_dy0.device
        n0 = x.shape[0]
        n2 = linear_weight.shape[0]
        mul_30 = torch.empty((n0, n2), dtype=torch.float32, device=device)
        sum_34 = torch.empty((1, n2), dtype=torch.float32, device=device)
        sum_37 = torch.empty((1, n2), dtype=torch.float32, device=device)
        sum_39 = torch.empty((1, n2), dtype=torch.float32, device=device)
        _kernels().fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul([dL_dy0, saved_8, linear_bias,
            batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, batch_norm_bias, bias, mul_30,
            sum_34, sum_37, sum_39], [n0, n2], [1e-05, 1.5])
        if need[0]:
            dL_dx = torch.mm(mul_30, linear_weight)
        if need[1]:
            permute_32 = mul_30.permute(1, 0)
            dL_dlinear_weight = torch.mm(permute_32, x)
            del mul_30, permute_32
        if need[7]:
            sum_41 = torch.sum(sum_39, [0, 1], keepdim=True)
        if need[2]:
            dL_dlinear_bias = sum_34.reshape((n2,))
        if need[3]:
            dL_dbatch_norm_weight = sum_37.reshape((n2,))
        if need[4]:
            dL_dbatch_norm_bias = sum_39.reshape((n2,))
        if need[7]:
            dL_dbias = sum_41.reshape((1,))
        return (
            dL_dx if need[0] else None,
            dL_dlinear_weight if need[1] else None,
            dL_dlinear_bias if need[2] else None,
            dL_dbatch_norm_weight if need[3] else None,
            dL_dbatch_norm_bias if need[4] else None,
            None,
            None,
            dL_dbias if need[7] else None,
        )


def _region_1(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias, batch_norm_running_mean,
    batch_norm_running_var, bias):
    if torch.is_grad_enabled() and _any_requires_grad(x, linear_weight, linear_bias, batch_norm_weight,
        batch_norm_bias, batch_norm_running_mean, batch_norm_running_var, bias):
        return _Region1.apply(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias,
            batch_norm_running_mean, batch_norm_running_var, bias)
    return _region_1_inference(x, linear_weight, linear_bias, batch_norm_weight, batch_norm_bias,
        batch_norm_running_mean, batch_norm_running_var, bias)


# ============ Kernels =============================================================================================

# ---- fw_column_batch_norm_add_div_sigmoid_mul: forward, column schedule ------------------------------------------
#
# operators: batch_norm add div sigmoid mul
# linear_batchnorm_bias_divide_swish.py:17: x = self.batch_norm(x)
# linear_batchnorm_bias_divide_swish.py:18: x = x + self.bias
# linear_batchnorm_bias_divide_swish.py:19: x = x / self.divide_value
# linear_batchnorm_bias_divide_swish.py:20: return x * torch.sigmoid(x)
#
#     saved1 = sum(matmul_10, over n0)
#     t0 = saved1 / n0
#     t1 = matmul_10 - t0
#     saved2 = sum(square(t1), over n0)
#     t2 = saved2 / n0
#     batch_norm_running_mean = ((t0 + linear_bias) * 0.1) + (batch_norm_running_mean * 0.9)
#     batch_norm_running_var = ((t2 * (n0 / (n0 - 1))) * 0.1) + (batch_norm_running_var * 0.9)
#     t3 = (t1 * ((rsqrt(t2 + 1e-05) * batch_norm_weight) / 1.5)) + ((batch_norm_bias + bias) / 1.5)
#     mul_44 = t3 * sigmoid(t3)
#     batch_norm_num_batches_tracked = batch_norm_num_batches_tracked + 1
_FW_COLUMN_BATCH_NORM_ADD_DIV_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
#if FW_ITEMS > 0
struct Args : fw::KernelArgs<2, 14, 6, 3> {};

struct Row {
  float own1, own3, v3[V], own6, own7, own11, own15, own17, own18, v21, own24, own25, own26, own27, own30, v30[V];
  float own32, v33, own35, v35[V];
  fw::i64 v39, v41;
  index o0, o11;
  index pos;  // first of this thread's columns
  int own;  // which of them is its own
  bool live;  // there is such a row
};
#else
struct Args : fw::KernelArgs<2, 14, 6, 2> {};

struct Row {
  float v1[V], v3[V], v6[V], v7[V], v9[V], v10[V], v11[V], v12[V], v14[V], v15[V], v17[V], v18[V], v20, v21, v22[V];
  float v23[V], v24[V], v25[V], v26[V], v27[V], v28[V], v30[V], v32[V], v33, v34[V], v35[V];
  fw::i64 v39, v41;
  index o0, o11;
  index pos;  // first of this thread's columns
  bool live;  // there is such a row
};
#endif
FW_FN void place_row(const Args& a, Row& row) {
  row.o0 = fw::along(row.pos, a.strides[0][1]);
  row.o11 = fw::along(row.pos, a.strides[11][1]);
}

struct Values {
  float in0[V];
};

#if FW_ITEMS > 0
struct Place {
  index c0;
  index first, item;
  fw::u32 bits;
};
FW_FN Place place(index first, index item, fw::u32 bits) {
  Place at;
  at.first = first, at.item = item, at.bits = bits;
  const index e = first + (item << bits);
  index rest = e;
  at.c0 = rest;
  return at;
}

FW_FN void ask(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads);
}
FW_FN void take(const Args& a, const Row& row, const Place& at, char* slot, Values& x) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads, x.in0);
}
FW_FN void load_row(const Args& a, Row& row, bool writer) {
  const int i = row.own;
  row.own11 = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
  row.own15 = writer ? static_cast<const float*>(a.pointers[4])[(row.pos + i) * static_cast<index>(a.strides[4][1])] : 0.0f;
  row.own24 = writer ? static_cast<const float*>(a.pointers[6])[(row.pos + i) * static_cast<index>(a.strides[6][1])] : 0.0f;
  row.own27 = fw::load(static_cast<const float*>(a.pointers[8]) + (row.pos + i) * static_cast<index>(a.strides[8][1]), a.reads);
  row.own32 = fw::load(static_cast<const float*>(a.pointers[9]) + (row.pos + i) * static_cast<index>(a.strides[9][1]), a.reads);
  row.v33 = fw::load(static_cast<const float*>(a.pointers[10]) + 0, a.reads);
  row.v39 = writer && row.own == 0 && row.pos == 0 ? static_cast<const fw::i64*>(a.pointers[12])[0] : fw::i64(0);
}

template <int W>
struct SumsOf0 {
  float a1[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a1[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf0& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a1[i] += other.a1[i];
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a1[i] = fw::shuffle_xor(a1[i], offset);
    return other;
  }
  FW_FN SumsOf0<W / 2> half(bool upper) const {
    SumsOf0<W / 2> part;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a1[i] = upper ? a1[W / 2 + i] : a1[i];
    return part;
  }
};
#else
struct Place {
  index c0;
};
FW_FN Place place(index e) {
  Place at;
  index rest = e;
  at.c0 = rest;
  return at;
}

template <class Again, class Last>
FW_FN void load_0(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + at.c0 * static_cast<index>(a.strides[0][0])), again, x.in0);
}
template <class Again, class Last>
FW_FN void load_1(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + at.c0 * static_cast<index>(a.strides[0][0])), last, x.in0);
}
FW_FN void load_row(const Args& a, Row& row, bool writer) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v11[i] = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
    row.v15[i] = writer ? static_cast<const float*>(a.pointers[4])[(row.pos + i) * static_cast<index>(a.strides[4][1])] : 0.0f;
    row.v24[i] = writer ? static_cast<const float*>(a.pointers[6])[(row.pos + i) * static_cast<index>(a.strides[6][1])] : 0.0f;
    row.v27[i] = fw::load(static_cast<const float*>(a.pointers[8]) + (row.pos + i) * static_cast<index>(a.strides[8][1]), a.reads);
    row.v32[i] = fw::load(static_cast<const float*>(a.pointers[9]) + (row.pos + i) * static_cast<index>(a.strides[9][1]), a.reads);
    row.v33 = fw::load(static_cast<const float*>(a.pointers[10]) + 0, a.reads);
    row.v39 = writer && row.pos == 0 ? static_cast<const fw::i64*>(a.pointers[12])[0] : fw::i64(0);
  }
}

template <int W>
struct SumsOf0 {
  fw::Moments<float, V> m6;
  FW_FN void clear() {
    m6.clear();
  }
  FW_FN void merge(const SumsOf0& other) {
    m6.merge(other.m6);
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
    other.m6 = m6.exchanged(offset);
    return other;
  }
};
#endif
using Sums0 = SumsOf0<V>;

#if FW_ITEMS > 0
FW_FN void row_0(const Args& a, Row& row, bool store, const fw::Team& team) {
  const float number0 = a.numbers[0].as<float>();
  const float number3 = a.numbers[3].as<float>();
  const float number4 = a.numbers[4].as<float>();
  const fw::i64 number5 = a.numbers[5].as<fw::i64>();
  const auto divisor4 = fw::divisor_of(number4);
  row.own17 = row.own15 * number3;
  row.v21 = fw::div(number0, number0 - 1.0f);
  row.own25 = row.own24 * number3;
  row.own35 = fw::div(row.own32 + row.v33, divisor4);
  row.v41 = fw::add(row.v39, number5);
  if (store && row.own == 0 && row.pos == 0) static_cast<fw::i64*>(a.pointers[13])[0] = row.v41;
  fw::tell_columns(team, row.own35, row.v35);
}

FW_FN void stage_0(const Values& x, bool inside, Sums0& sums) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v0 = x.in0[i];
    if (inside) sums.a1[i] += v0;
  }
}

template <int W>
struct SumsOf1 {
  float a6[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a6[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf1& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a6[i] += other.a6[i];
  }
  FW_FN SumsOf1 exchanged(fw::u32 offset) const {
    SumsOf1 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a6[i] = fw::shuffle_xor(a6[i], offset);
    return other;
  }
  FW_FN SumsOf1<W / 2> half(bool upper) const {
    SumsOf1<W / 2> part;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a6[i] = upper ? a6[W / 2 + i] : a6[i];
    return part;
  }
};
using Sums1 = SumsOf1<V>;

FW_FN void row_1(const Args& a, Row& row, bool store, const fw::Team& team, const SumsOf0<1>& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const int i = row.own;
  row.own1 = sums.a1[0];
  if (store) static_cast<float*>(a.pointers[1])[(row.pos + i) * static_cast<index>(a.strides[1][1])] = row.own1;
  row.own3 = fw::div(row.own1, divisor0);
  row.own18 = ((row.own3 + row.own11) * number2) + row.own17;
  if (store) static_cast<float*>(a.pointers[5])[(row.pos + i) * static_cast<index>(a.strides[5][1])] = row.own18;
  fw::tell_columns(team, row.own3, row.v3);
}

FW_FN void stage_1(const Row& row, const Values& x, bool inside, Sums1& sums) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v5 = fw::square(x.in0[i] - row.v3[i]);
    if (inside) sums.a6[i] += v5;
  }
}

FW_FN void row_2(const Args& a, Row& row, bool store, const fw::Team& team, const SumsOf1<1>& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const float number4 = a.numbers[4].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor4 = fw::divisor_of(number4);
  const int i = row.own;
  row.own6 = sums.a6[0];
  if (store) static_cast<float*>(a.pointers[2])[(row.pos + i) * static_cast<index>(a.strides[2][1])] = row.own6;
  row.own7 = fw::div(row.own6, divisor0);
  row.own26 = ((row.own7 * row.v21) * number2) + row.own25;
  if (store) static_cast<float*>(a.pointers[7])[(row.pos + i) * static_cast<index>(a.strides[7][1])] = row.own26;
  row.own30 = fw::div((fw::rsqrt(row.own7 + number1)) * row.own27, divisor4);
  fw::tell_columns(team, row.own30, row.v30);
}

FW_FN void stage_2(const Args& a, const Row& row, const Place& at, const Values& x, bool inside) {
  float out38[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v36 = ((x.in0[i] - row.v3[i]) * row.v30[i]) + row.v35[i];
    out38[i] = v36 * fw::sigmoid(v36);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[11]) + (row.o11 + at.first * static_cast<index>(a.strides[11][0]) + at.item * (static_cast<index>(a.strides[11][0]) << at.bits)), out38);
}
#else
FW_FN void row_0(const Args& a, Row& row, bool store) {
  const float number0 = a.numbers[0].as<float>();
  const float number3 = a.numbers[3].as<float>();
  const float number4 = a.numbers[4].as<float>();
  const fw::i64 number5 = a.numbers[5].as<fw::i64>();
  const auto divisor4 = fw::divisor_of(number4);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v17[i] = fw::mul(row.v15[i], number3);
    row.v20 = number0 - 1.0f;
    row.v21 = fw::div(number0, row.v20);
    row.v25[i] = fw::mul(row.v24[i], number3);
    row.v34[i] = fw::add(row.v32[i], row.v33);
    row.v35[i] = fw::div(row.v34[i], divisor4);
    row.v41 = fw::add(row.v39, number5);
    if (store && row.pos == 0) static_cast<fw::i64*>(a.pointers[13])[0] = row.v41;
  }
}

FW_FN void stage_0(const Values& x, bool inside, Sums0& sums) {
  if (inside) sums.m6.count_vector();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v0 = x.in0[i];
    if (inside) sums.m6.add(i, v0);
  }
}

FW_FN void row_1(const Args& a, Row& row, bool store, const Sums0& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const float number4 = a.numbers[4].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor4 = fw::divisor_of(number4);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v1[i] = sums.m6.sum(i);
    if (store) static_cast<float*>(a.pointers[1])[(row.pos + i) * static_cast<index>(a.strides[1][1])] = row.v1[i];
    row.v3[i] = fw::div(row.v1[i], divisor0);
    row.v6[i] = sums.m6.squares[i];
    if (store) static_cast<float*>(a.pointers[2])[(row.pos + i) * static_cast<index>(a.strides[2][1])] = row.v6[i];
    row.v7[i] = fw::div(row.v6[i], divisor0);
    row.v9[i] = fw::add(row.v7[i], number1);
    row.v10[i] = fw::rsqrt(row.v9[i]);
    row.v12[i] = fw::add(row.v3[i], row.v11[i]);
    row.v14[i] = fw::mul(row.v12[i], number2);
    row.v18[i] = fw::add(row.v14[i], row.v17[i]);
    if (store) static_cast<float*>(a.pointers[5])[(row.pos + i) * static_cast<index>(a.strides[5][1])] = row.v18[i];
    row.v22[i] = fw::mul(row.v7[i], row.v21);
    row.v23[i] = fw::mul(row.v22[i], number2);
    row.v26[i] = fw::add(row.v23[i], row.v25[i]);
    if (store) static_cast<float*>(a.pointers[7])[(row.pos + i) * static_cast<index>(a.strides[7][1])] = row.v26[i];
    row.v28[i] = fw::mul(row.v10[i], row.v27[i]);
    row.v30[i] = fw::div(row.v28[i], divisor4);
  }
}

FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, bool inside) {
  float out38[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v36 = ((x.in0[i] - row.v3[i]) * row.v30[i]) + row.v35[i];
    out38[i] = v36 * fw::sigmoid(v36);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[11]) + (row.o11 + at.c0 * static_cast<index>(a.strides[11][0])), out38);
}
#endif
}  // namespace
#if FW_ITEMS > 0
constexpr int registers = ITEMS * V * 4 / 4 + V * 120 / 16 + 34;
constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);
__global__ void __launch_bounds__(FW_THREADS, blocks) fw_column_batch_norm_add_div_sigmoid_mul(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits));
  fw::Team columns = fw::team_of_columns(team);
  const index elements = fw::held_elements(a.elements);
  constexpr int GROUP = ITEMS < 8 ? 1 : ITEMS / 8;  // vectors that are waited for at a time
  const index held = fw::items_of_thread(team, elements);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  Row row;
  index row_index = part;
  row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
  if (!row.live) row_index = 0;
  const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
  row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
  if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
  row.own = static_cast<int>(columns.lane >> team.lane_bits);
  place_row(a, row);
  index row_items = row.live ? held : 0;
  fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile
  constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;
  char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);
#pragma unroll
  for (int depth = 0; depth < FW_DEPTH; ++depth) {
    Row first;
    index first_index = part + depth * static_cast<index>(a.parts);
    first.live = part < static_cast<index>(a.parts) && first_index < static_cast<index>(a.walked);
    if (!first.live) first_index = 0;
    const fw::Quotient first_tile = fw::divided(first_index, a.tiles, a.tiles_divider);
    first.pos = (first_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (first.pos >= a.sizes[1]) first.live = false, first.pos = 0;
    first.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, first);
    index first_items = first.live ? held : 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item < first_items) ask(a, first, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
      if (item % GROUP == GROUP - 1) fw::copy_async_commit();
    }
  }
  int depth = 0;
  load_row(a, row, row.live && columns.thread == 0);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Values x[ITEMS];
    Row next;
    index next_index = part + (turn + 1) * static_cast<index>(a.parts);
    next.live = part < static_cast<index>(a.parts) && next_index < static_cast<index>(a.walked);
    if (!next.live) next_index = 0;
    const fw::Quotient next_tile = fw::divided(next_index, a.tiles, a.tiles_divider);
    next.pos = (next_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (next.pos >= a.sizes[1]) next.live = false, next.pos = 0;
    next.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, next);
    index next_items = next.live ? held : 0;
    const bool first = row.live && columns.thread == 0;
    row_0(a, row, first, team);
    Sums0 sums0;
    sums0.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      static_assert(FW_DEPTH == 1 && ITEMS % GROUP == 0, "one turn ahead, in groups");
      if (item % GROUP == 0) {
        fw::copy_async_wait<ITEMS / GROUP - 1>();
        const int first_of_group = item;
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          take(a, row, place(item < row_items ? static_cast<index>(team.thread) : 0, item < row_items ? item : 0, team.bits), own + (depth * ITEMS + item) * AHEAD, x[item]);
        }
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          if (item < next_items) ask(a, next, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
        }
        fw::copy_async_commit();
      }
      stage_0(x[item], inside, sums0);
    }
    SumsOf0<1> own0 = fw::own_column(team, sums0);
    fw::reduce(columns, own0);
    load_row(a, next, next.live && columns.thread == 0);
    row_1(a, row, first, team, own0);
    Sums1 sums1;
    sums1.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      stage_1(row, x[item], inside, sums1);
    }
    SumsOf1<1> own1 = fw::own_column(team, sums1);
    fw::reduce(columns, own1);
    row_2(a, row, first, team, own1);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      stage_2(a, row, place(static_cast<index>(team.thread), item, team.bits), x[item], inside);
    }
    row = next;
    row_items = next_items;
  }
}
#else
__global__ void __launch_bounds__(512) fw_column_batch_norm_add_div_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Row row;
    index row_index = part + turn * static_cast<index>(a.parts);
    row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
    if (!row.live) row_index = 0;
    const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
    row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
    place_row(a, row);
    const bool first = row.live && team.thread == 0;
    load_row(a, row, first);
    row_0(a, row, first);
    const index elements = row.live ? static_cast<index>(a.elements) : 0;
    const fw::ReadAgain again = {a.reads};
    const fw::ReadLast last = {{fw::evict_normal}};
    constexpr int bytes0 = V * 4;
    constexpr int AHEAD0 = bytes0 <= 16 ? 4 : bytes0 <= 32 ? 2 : 1;
    const index end0 = elements, step0 = static_cast<index>(team.threads());
    index e0 = static_cast<index>(team.thread);
    Values next0[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
    Sums0 sums0;
    sums0.clear();
    while (e0 < end0) {
      Values x[AHEAD0];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (AHEAD0 + n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          load_0(a, row, place(e), again, last, next0[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (n) * step0;
        if (beyond < end0 - e0) {
          stage_0(x[n], true, sums0);
        }
      }
      if (end0 - e0 <= AHEAD0 * step0) break;
      e0 += AHEAD0 * step0;
    }
    sums0.m6.finish();
    constexpr int bytes1 = V * 4;
    constexpr int AHEAD1 = bytes1 <= 16 ? 4 : bytes1 <= 32 ? 2 : 1;
    const index end1 = elements, step1 = static_cast<index>(team.threads());
    index e1 = static_cast<index>(team.thread);
    Values next1[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n]);
      }
    }
    fw::reduce(team, sums0);
    row_1(a, row, first, sums0);
    while (e1 < end1) {
      Values x[AHEAD1];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (AHEAD1 + n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          load_1(a, row, place(e), again, last, next1[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          stage_1(a, row, place(e), x[n], true);
        }
      }
      if (end1 - e1 <= AHEAD1 * step1) break;
      e1 += AHEAD1 * step1;
    }
  }
}
__global__ void __launch_bounds__(256) fw_column_batch_norm_add_div_sigmoid_mul_phase0(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  constexpr int AHEAD0 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index end0 = row.live ? static_cast<index>(a.elements) : 0, step0 = static_cast<index>(a.splits * team.threads());
  index e0 = static_cast<index>(split * static_cast<index>(team.threads()) + static_cast<index>(team.thread));
  Values next0[AHEAD0];
#pragma unroll
  for (int n = 0; n < AHEAD0; ++n) {
    const index beyond = (n) * step0;
    if (beyond < end0 - e0) {
      const index e = e0 + beyond;
      load_0(a, row, place(e), again, last, next0[n]);
    }
  }
  fw::let_next_launch_begin();
  load_row(a, row, first);
  row_0(a, row, first && true);
  Sums0 sums0;
  sums0.clear();
  while (e0 < end0) {
    Values x[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (AHEAD0 + n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        stage_0(x[n], true, sums0);
      }
    }
    if (end0 - e0 <= AHEAD0 * step0) break;
    e0 += AHEAD0 * step0;
  }
  sums0.m6.finish();
  fw::reduce(team, sums0);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + split) << a.partial_bits) + lane].sums = sums0;
}
__global__ void __launch_bounds__(256) fw_column_batch_norm_add_div_sigmoid_mul_phase1(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  constexpr int AHEAD1 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index beginning = split * static_cast<index>(a.stretch);
  const index rest = static_cast<index>(a.elements) - beginning, stretch = static_cast<index>(a.stretch);
  const index end1 = row.live ? beginning + (rest < stretch ? rest : stretch) : 0, step1 = static_cast<index>(team.threads());
  index e1 = static_cast<index>(beginning + static_cast<index>(team.thread));
  Values next1[AHEAD1];
#pragma unroll
  for (int n = 0; n < AHEAD1; ++n) {
    const index beyond = (n) * step1;
    if (beyond < end1 - e1) {
      const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
      load_1(a, row, place(e), again, last, next1[n]);
    }
  }
  fw::let_next_launch_begin();
  fw::wait_for_last_launch();
  load_row(a, row, first);
  row_0(a, row, first && false);
  Sums0 sums0;
  sums0.clear();
  if (a.left[0] == 1) sums0 = static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums;
  else {
#pragma unroll 4
    for (index i = static_cast<index>(team.thread); i < a.left[0]; i += static_cast<index>(team.threads()))
      sums0.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
    fw::reduce(team, sums0);
  }
  row_1(a, row, first && true, sums0);
  while (e1 < end1) {
    Values x[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (AHEAD1 + n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        stage_1(a, row, place(e), x[n], true);
      }
    }
    if (end1 - e1 <= AHEAD1 * step1) break;
    e1 += AHEAD1 * step1;
  }
}
__global__ void __launch_bounds__(256) fw_column_batch_norm_add_div_sigmoid_mul_phase2(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  const index split = 0;
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  fw::follow_last_launch();
  load_row(a, row, first);
  row_0(a, row, first && false);
  Sums0 sums0;
  sums0.clear();
  if (a.left[0] == 1) sums0 = static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums;
  else {
#pragma unroll 4
    for (index i = static_cast<index>(team.thread); i < a.left[0]; i += static_cast<index>(team.threads()))
      sums0.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
    fw::reduce(team, sums0);
  }
  row_1(a, row, first && false, sums0);
}
__global__ void __launch_bounds__(256) fw_column_batch_norm_add_div_sigmoid_mul_merge0(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  Sums0 sums;
  sums.clear();
#pragma unroll 4
  for (index i = static_cast<index>(team.thread); i < a.splits; i += static_cast<index>(team.threads()))
    sums.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
  fw::reduce(team, sums);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums = sums;
}
#endif
'''

# ---- fw_column_backward_batch_norm_div_sigmoid_mul: backward, column schedule ------------------------------------
#
# operators: batch_norm div sigmoid mul
# linear_batchnorm_bias_divide_swish.py:17: x = self.batch_norm(x)
# linear_batchnorm_bias_divide_swish.py:18: x = x + self.bias
# linear_batchnorm_bias_divide_swish.py:19: x = x / self.divide_value
# linear_batchnorm_bias_divide_swish.py:20: return x * torch.sigmoid(x)
#
#     t0 = saved_matmul11 - (saved_sum13 / n0)
#     t1 = rsqrt((saved_sum18 / n0) + 1e-05)
#     t2 = (t1 * batch_norm_weight) / 1.5
#     t3 = (t0 * t2) + ((batch_norm_bias + bias) / 1.5)
#     t4 = sigmoid(t3)
#     t5 = (dL_dy0 * t4) * ((t3 * (1 - t4)) + 1)
#     t6 = sum(t5 * t0, over n0)
#     t7 = sum(t5, over n0)
#     mul_40 = ((t5 - (t0 * (((t6 * t1) * t1) / n0))) - (t7 / n0)) * t2
#     dL_dbatch_norm_weight = (t6 / 1.5) * t1
#     dL_dbatch_norm_bias = t7 / 1.5
_FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
struct Args : fw::KernelArgs<2, 10, 3, 2> {};

#if FW_ITEMS > 0
struct Row {
  float own2, own4, v4[V], own6, own10, own11, own14, v14[V], own16, v17, own19, v19[V], own29, own32, v32[V];
  float own33, own34, v34[V], own41, own42;
  index o0, o1, o7;
  index pos;  // first of this thread's columns
  int own;  // which of them is its own
  bool live;  // there is such a row
};
#else
struct Row {
  float v2[V], v4[V], v6[V], v7[V], v9[V], v10[V], v11[V], v12[V], v14[V], v16[V], v17, v18[V], v19[V], v29[V];
  float v30[V], v31[V], v32[V], v33[V], v34[V], v39[V], v40[V], v41[V], v42[V];
  index o0, o1, o7;
  index pos;  // first of this thread's columns
  bool live;  // there is such a row
};
#endif
FW_FN void place_row(const Args& a, Row& row) {
  row.o0 = fw::along(row.pos, a.strides[0][1]);
  row.o1 = fw::along(row.pos, a.strides[1][1]);
  row.o7 = fw::along(row.pos, a.strides[7][1]);
}

struct Values {
  float in0[V], in1[V];
};
#if FW_ITEMS > 0
struct Kept {
  float v27[V];
};

struct Place {
  index c0;
  index first, item;
  fw::u32 bits;
};
FW_FN Place place(index first, index item, fw::u32 bits) {
  Place at;
  at.first = first, at.item = item, at.bits = bits;
  const index e = first + (item << bits);
  index rest = e;
  at.c0 = rest;
  return at;
}

FW_FN void ask(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads);
  fw::ask_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + at.first * static_cast<index>(a.strides[1][0]) + at.item * (static_cast<index>(a.strides[1][0]) << at.bits)), a.reads);
}
FW_FN void take(const Args& a, const Row& row, const Place& at, char* slot, Values& x) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads, x.in0);
  fw::take_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + at.first * static_cast<index>(a.strides[1][0]) + at.item * (static_cast<index>(a.strides[1][0]) << at.bits)), a.reads, x.in1);
}
FW_FN void load_row(const Args& a, Row& row) {
  const int i = row.own;
  row.own2 = fw::load(static_cast<const float*>(a.pointers[2]) + (row.pos + i) * static_cast<index>(a.strides[2][1]), a.reads);
  row.own6 = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
  row.own11 = fw::load(static_cast<const float*>(a.pointers[4]) + (row.pos + i) * static_cast<index>(a.strides[4][1]), a.reads);
  row.own16 = fw::load(static_cast<const float*>(a.pointers[5]) + (row.pos + i) * static_cast<index>(a.strides[5][1]), a.reads);
  row.v17 = fw::load(static_cast<const float*>(a.pointers[6]) + 0, a.reads);
}

template <int W>
struct SumsOf0 {
  float a29[W], a33[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a33[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf0& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] += other.a29[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a33[i] += other.a33[i];
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a29[i] = fw::shuffle_xor(a29[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a33[i] = fw::shuffle_xor(a33[i], offset);
    return other;
  }
  FW_FN SumsOf0<W / 2> half(bool upper) const {
    SumsOf0<W / 2> part;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a29[i] = upper ? a29[W / 2 + i] : a29[i];
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a33[i] = upper ? a33[W / 2 + i] : a33[i];
    return part;
  }
};
#else
struct Place {
  index c0;
};
FW_FN Place place(index e) {
  Place at;
  index rest = e;
  at.c0 = rest;
  return at;
}

template <class Again, class Last>
FW_FN void load_0(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + at.c0 * static_cast<index>(a.strides[0][0])), again, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + at.c0 * static_cast<index>(a.strides[1][0])), again, x.in1);
}
template <class Again, class Last>
FW_FN void load_1(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + at.c0 * static_cast<index>(a.strides[0][0])), last, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + at.c0 * static_cast<index>(a.strides[1][0])), last, x.in1);
}
FW_FN void load_row(const Args& a, Row& row) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v2[i] = fw::load(static_cast<const float*>(a.pointers[2]) + (row.pos + i) * static_cast<index>(a.strides[2][1]), a.reads);
    row.v6[i] = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
    row.v11[i] = fw::load(static_cast<const float*>(a.pointers[4]) + (row.pos + i) * static_cast<index>(a.strides[4][1]), a.reads);
    row.v16[i] = fw::load(static_cast<const float*>(a.pointers[5]) + (row.pos + i) * static_cast<index>(a.strides[5][1]), a.reads);
    row.v17 = fw::load(static_cast<const float*>(a.pointers[6]) + 0, a.reads);
  }
}

template <int W>
struct SumsOf0 {
  float a29[W], a33[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a33[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf0& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] += other.a29[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a33[i] += other.a33[i];
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a29[i] = fw::shuffle_xor(a29[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a33[i] = fw::shuffle_xor(a33[i], offset);
    return other;
  }
};
#endif
using Sums0 = SumsOf0<V>;

#if FW_ITEMS > 0
FW_FN void row_0(const Args& a, Row& row, const fw::Team& team) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor2 = fw::divisor_of(number2);
  row.own4 = fw::div(row.own2, divisor0);
  row.own10 = fw::rsqrt(fw::div(row.own6, divisor0) + number1);
  row.own14 = fw::div(row.own10 * row.own11, divisor2);
  row.own19 = fw::div(row.own16 + row.v17, divisor2);
  fw::tell_columns(team, row.own4, row.v4);
  fw::tell_columns(team, row.own14, row.v14);
  fw::tell_columns(team, row.own19, row.v19);
}

FW_FN void stage_0(const Row& row, const Values& x, Kept& kept, bool inside, Sums0& sums) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v5 = x.in1[i] - row.v4[i];
    const float v20 = (v5 * row.v14[i]) + row.v19[i];
    const float v21 = fw::sigmoid(v20);
    const float v22 = x.in0[i] * v21;
    const float v26 = (v20 * (1.0f - v21)) + 1.0f;
    const float v27 = v22 * v26;
    kept.v27[i] = v27;
    if (inside) sums.a29[i] = fw::mad(v27, v5, sums.a29[i]);
    if (inside) sums.a33[i] = fw::mad(v22, v26, sums.a33[i]);
  }
}

FW_FN void row_1(const Args& a, Row& row, bool store, const fw::Team& team, const SumsOf0<1>& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor2 = fw::divisor_of(number2);
  const int i = row.own;
  row.own29 = sums.a29[0];
  row.own32 = fw::div((row.own29 * row.own10) * row.own10, divisor0);
  row.own33 = sums.a33[0];
  row.own34 = fw::div(row.own33, divisor0);
  row.own41 = fw::div(row.own29, divisor2) * row.own10;
  if (store) static_cast<float*>(a.pointers[8])[(row.pos + i) * static_cast<index>(a.strides[8][1])] = row.own41;
  row.own42 = fw::div(row.own33, divisor2);
  if (store) static_cast<float*>(a.pointers[9])[(row.pos + i) * static_cast<index>(a.strides[9][1])] = row.own42;
  fw::tell_columns(team, row.own32, row.v32);
  fw::tell_columns(team, row.own34, row.v34);
}

FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, Kept& kept, bool inside) {
  float out38[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    out38[i] = ((kept.v27[i] - ((x.in1[i] - row.v4[i]) * row.v32[i])) - row.v34[i]) * row.v14[i];
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[7]) + (row.o7 + at.first * static_cast<index>(a.strides[7][0]) + at.item * (static_cast<index>(a.strides[7][0]) << at.bits)), out38);
}
#else
FW_FN void row_0(const Args& a, Row& row) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor2 = fw::divisor_of(number2);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v4[i] = fw::div(row.v2[i], divisor0);
    row.v7[i] = fw::div(row.v6[i], divisor0);
    row.v9[i] = fw::add(row.v7[i], number1);
    row.v10[i] = fw::rsqrt(row.v9[i]);
    row.v12[i] = fw::mul(row.v10[i], row.v11[i]);
    row.v14[i] = fw::div(row.v12[i], divisor2);
    row.v18[i] = fw::add(row.v16[i], row.v17);
    row.v19[i] = fw::div(row.v18[i], divisor2);
  }
}

FW_FN void stage_0(const Row& row, const Values& x, bool inside, Sums0& sums) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v5 = x.in1[i] - row.v4[i];
    const float v20 = (v5 * row.v14[i]) + row.v19[i];
    const float v21 = fw::sigmoid(v20);
    const float v22 = x.in0[i] * v21;
    const float v26 = (v20 * (1.0f - v21)) + 1.0f;
    const float v27 = v22 * v26;
    if (inside) sums.a29[i] = fw::mad(v27, v5, sums.a29[i]);
    if (inside) sums.a33[i] = fw::mad(v22, v26, sums.a33[i]);
  }
}

FW_FN void row_1(const Args& a, Row& row, bool store, const Sums0& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number2 = a.numbers[2].as<float>();
  const auto divisor0 = fw::count_of(number0);
  const auto divisor2 = fw::divisor_of(number2);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v29[i] = sums.a29[i];
    row.v30[i] = fw::mul(row.v29[i], row.v10[i]);
    row.v31[i] = fw::mul(row.v30[i], row.v10[i]);
    row.v32[i] = fw::div(row.v31[i], divisor0);
    row.v33[i] = sums.a33[i];
    row.v34[i] = fw::div(row.v33[i], divisor0);
    row.v39[i] = fw::div(row.v29[i], divisor2);
    row.v40[i] = fw::mul(row.v39[i], row.v10[i]);
    row.v41[i] = row.v40[i];
    if (store) static_cast<float*>(a.pointers[8])[(row.pos + i) * static_cast<index>(a.strides[8][1])] = row.v41[i];
    row.v42[i] = fw::div(row.v33[i], divisor2);
    if (store) static_cast<float*>(a.pointers[9])[(row.pos + i) * static_cast<index>(a.strides[9][1])] = row.v42[i];
  }
}

FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, bool inside) {
  float out38[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v5 = x.in1[i] - row.v4[i];
    const float v20 = (v5 * row.v14[i]) + row.v19[i];
    const float v21 = fw::sigmoid(v20);
    const float v36 = ((x.in0[i] * v21) * ((v20 * (1.0f - v21)) + 1.0f)) - (v5 * row.v32[i]);
    out38[i] = (v36 - row.v34[i]) * row.v14[i];
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[7]) + (row.o7 + at.c0 * static_cast<index>(a.strides[7][0])), out38);
}
#endif
}  // namespace
#if FW_ITEMS > 0
constexpr int registers = ITEMS * V * 8 / 4 + V * 112 / 16 + 34;
constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);
__global__ void __launch_bounds__(FW_THREADS, blocks) fw_column_backward_batch_norm_div_sigmoid_mul(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits));
  fw::Team columns = fw::team_of_columns(team);
  const index elements = fw::held_elements(a.elements);
  constexpr int GROUP = ITEMS < 8 ? 1 : ITEMS / 8;  // vectors that are waited for at a time
  const index held = fw::items_of_thread(team, elements);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  Row row;
  index row_index = part;
  row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
  if (!row.live) row_index = 0;
  const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
  row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
  if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
  row.own = static_cast<int>(columns.lane >> team.lane_bits);
  place_row(a, row);
  index row_items = row.live ? held : 0;
  fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile
  constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;
  char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);
#pragma unroll
  for (int depth = 0; depth < FW_DEPTH; ++depth) {
    Row first;
    index first_index = part + depth * static_cast<index>(a.parts);
    first.live = part < static_cast<index>(a.parts) && first_index < static_cast<index>(a.walked);
    if (!first.live) first_index = 0;
    const fw::Quotient first_tile = fw::divided(first_index, a.tiles, a.tiles_divider);
    first.pos = (first_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (first.pos >= a.sizes[1]) first.live = false, first.pos = 0;
    first.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, first);
    index first_items = first.live ? held : 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item < first_items) ask(a, first, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
      if (item % GROUP == GROUP - 1) fw::copy_async_commit();
    }
  }
  int depth = 0;
  load_row(a, row);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Values x[ITEMS];
    Row next;
    index next_index = part + (turn + 1) * static_cast<index>(a.parts);
    next.live = part < static_cast<index>(a.parts) && next_index < static_cast<index>(a.walked);
    if (!next.live) next_index = 0;
    const fw::Quotient next_tile = fw::divided(next_index, a.tiles, a.tiles_divider);
    next.pos = (next_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (next.pos >= a.sizes[1]) next.live = false, next.pos = 0;
    next.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, next);
    index next_items = next.live ? held : 0;
    const bool first = row.live && columns.thread == 0;
    row_0(a, row, team);
    Kept kept[ITEMS];
    Sums0 sums0;
    sums0.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      static_assert(FW_DEPTH == 1 && ITEMS % GROUP == 0, "one turn ahead, in groups");
      if (item % GROUP == 0) {
        fw::compute_above(a.lane_bits, sums0.a29[0]);
        fw::copy_async_wait<ITEMS / GROUP - 1>();
        const int first_of_group = item;
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          take(a, row, place(item < row_items ? static_cast<index>(team.thread) : 0, item < row_items ? item : 0, team.bits), own + (depth * ITEMS + item) * AHEAD, x[item]);
        }
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          if (item < next_items) ask(a, next, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
        }
        fw::copy_async_commit();
      }
      stage_0(row, x[item], kept[item], inside, sums0);
    }
    SumsOf0<1> own0 = fw::own_column(team, sums0);
    fw::reduce(columns, own0);
    load_row(a, next);
    row_1(a, row, first, team, own0);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      stage_1(a, row, place(static_cast<index>(team.thread), item, team.bits), x[item], kept[item], inside);
    }
    row = next;
    row_items = next_items;
  }
}
#else
__global__ void __launch_bounds__(512) fw_column_backward_batch_norm_div_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Row row;
    index row_index = part + turn * static_cast<index>(a.parts);
    row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
    if (!row.live) row_index = 0;
    const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
    row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
    place_row(a, row);
    const bool first = row.live && team.thread == 0;
    load_row(a, row);
    row_0(a, row);
    const index elements = row.live ? static_cast<index>(a.elements) : 0;
    const fw::ReadAgain again = {a.reads};
    const fw::ReadLast last = {{fw::evict_normal}};
    constexpr int bytes0 = V * 8;
    constexpr int AHEAD0 = bytes0 <= 16 ? 4 : bytes0 <= 32 ? 2 : 1;
    const index end0 = elements, step0 = static_cast<index>(team.threads());
    index e0 = static_cast<index>(team.thread);
    Values next0[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
    Sums0 sums0;
    sums0.clear();
    while (e0 < end0) {
      Values x[AHEAD0];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (AHEAD0 + n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          load_0(a, row, place(e), again, last, next0[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (n) * step0;
        if (beyond < end0 - e0) {
          stage_0(row, x[n], true, sums0);
        }
      }
      if (end0 - e0 <= AHEAD0 * step0) break;
      e0 += AHEAD0 * step0;
    }
    constexpr int bytes1 = V * 8;
    constexpr int AHEAD1 = bytes1 <= 16 ? 4 : bytes1 <= 32 ? 2 : 1;
    const index end1 = elements, step1 = static_cast<index>(team.threads());
    index e1 = static_cast<index>(team.thread);
    Values next1[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n]);
      }
    }
    fw::reduce(team, sums0);
    row_1(a, row, first, sums0);
    while (e1 < end1) {
      Values x[AHEAD1];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (AHEAD1 + n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          load_1(a, row, place(e), again, last, next1[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          stage_1(a, row, place(e), x[n], true);
        }
      }
      if (end1 - e1 <= AHEAD1 * step1) break;
      e1 += AHEAD1 * step1;
    }
  }
}
__global__ void __launch_bounds__(256) fw_column_backward_batch_norm_div_sigmoid_mul_phase0(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  constexpr int AHEAD0 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index end0 = row.live ? static_cast<index>(a.elements) : 0, step0 = static_cast<index>(a.splits * team.threads());
  index e0 = static_cast<index>(split * static_cast<index>(team.threads()) + static_cast<index>(team.thread));
  Values next0[AHEAD0];
#pragma unroll
  for (int n = 0; n < AHEAD0; ++n) {
    const index beyond = (n) * step0;
    if (beyond < end0 - e0) {
      const index e = e0 + beyond;
      load_0(a, row, place(e), again, last, next0[n]);
    }
  }
  fw::let_next_launch_begin();
  load_row(a, row);
  row_0(a, row);
  Sums0 sums0;
  sums0.clear();
  while (e0 < end0) {
    Values x[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (AHEAD0 + n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        stage_0(row, x[n], true, sums0);
      }
    }
    if (end0 - e0 <= AHEAD0 * step0) break;
    e0 += AHEAD0 * step0;
  }
  fw::reduce(team, sums0);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + split) << a.partial_bits) + lane].sums = sums0;
}
__global__ void __launch_bounds__(256) fw_column_backward_batch_norm_div_sigmoid_mul_phase1(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  constexpr int AHEAD1 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index beginning = split * static_cast<index>(a.stretch);
  const index rest = static_cast<index>(a.elements) - beginning, stretch = static_cast<index>(a.stretch);
  const index end1 = row.live ? beginning + (rest < stretch ? rest : stretch) : 0, step1 = static_cast<index>(team.threads());
  index e1 = static_cast<index>(beginning + static_cast<index>(team.thread));
  Values next1[AHEAD1];
#pragma unroll
  for (int n = 0; n < AHEAD1; ++n) {
    const index beyond = (n) * step1;
    if (beyond < end1 - e1) {
      const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
      load_1(a, row, place(e), again, last, next1[n]);
    }
  }
  fw::let_next_launch_begin();
  fw::wait_for_last_launch();
  load_row(a, row);
  row_0(a, row);
  Sums0 sums0;
  sums0.clear();
  if (a.left[0] == 1) sums0 = static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums;
  else {
#pragma unroll 4
    for (index i = static_cast<index>(team.thread); i < a.left[0]; i += static_cast<index>(team.threads()))
      sums0.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
    fw::reduce(team, sums0);
  }
  row_1(a, row, first && true, sums0);
  while (e1 < end1) {
    Values x[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (AHEAD1 + n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        stage_1(a, row, place(e), x[n], true);
      }
    }
    if (end1 - e1 <= AHEAD1 * step1) break;
    e1 += AHEAD1 * step1;
  }
}
__global__ void __launch_bounds__(256) fw_column_backward_batch_norm_div_sigmoid_mul_phase2(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  const index split = 0;
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  fw::follow_last_launch();
  load_row(a, row);
  row_0(a, row);
  Sums0 sums0;
  sums0.clear();
  if (a.left[0] == 1) sums0 = static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums;
  else {
#pragma unroll 4
    for (index i = static_cast<index>(team.thread); i < a.left[0]; i += static_cast<index>(team.threads()))
      sums0.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
    fw::reduce(team, sums0);
  }
  row_1(a, row, first && false, sums0);
}
__global__ void __launch_bounds__(256) fw_column_backward_batch_norm_div_sigmoid_mul_merge0(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  Sums0 sums;
  sums.clear();
#pragma unroll 4
  for (index i = static_cast<index>(team.thread); i < a.splits; i += static_cast<index>(team.threads()))
    sums.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
  fw::reduce(team, sums);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums = sums;
}
#endif
'''

# ---- fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul: forward, pointwise schedule ------------------------
#
# operators: linear_bias batch_norm add div sigmoid mul
# linear_batchnorm_bias_divide_swish.py:16: x = self.linear(x)
# linear_batchnorm_bias_divide_swish.py:17: x = self.batch_norm(x)
# linear_batchnorm_bias_divide_swish.py:18: x = x + self.bias
# linear_batchnorm_bias_divide_swish.py:19: x = x / self.divide_value
# linear_batchnorm_bias_divide_swish.py:20: return x * torch.sigmoid(x)
#
#     t0 = (((matmul_9 + linear_bias) - batch_norm_running_mean) * rsqrt(batch_norm_running_var + 1e-05)) *
#         batch_norm_weight
#     t1 = ((t0 + batch_norm_bias) + bias) / 1.5
#     mul_22 = t1 * sigmoid(t1)
_FW_POINTWISE_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
struct Args : fw::KernelArgs<2, 8, 2, 1> {};

struct Row {
  index o0, o7, c0;
  bool live;  // there is such a row
};

FW_FN void place_row(const Args& a, index anchor, Row& row) {
  index restanchor = anchor;
  row.c0 = restanchor;
  row.o0 = row.c0 * static_cast<index>(a.strides[0][0]);
  row.o7 = row.c0 * static_cast<index>(a.strides[7][0]);
}

struct Values {
  float in0[V], in1[V], in3[V], in5[V], in10[V], in12[V], in14;
};

struct Place {
  index pos;
};
FW_FN Place place(index e) {
  Place at;
  at.pos = e * V;
  return at;
}

FW_FN void load_moving(const Args& a, const Row& row, const Place& at, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][1])), a.reads, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (fw::along(at.pos, a.strides[1][1])), a.reads, x.in1);
  fw::load_line(static_cast<const float*>(a.pointers[2]) + (fw::along(at.pos, a.strides[2][1])), a.reads, x.in3);
  fw::load_line(static_cast<const float*>(a.pointers[3]) + (fw::along(at.pos, a.strides[3][1])), a.reads, x.in5);
  fw::load_line(static_cast<const float*>(a.pointers[4]) + (fw::along(at.pos, a.strides[4][1])), a.reads, x.in10);
  fw::load_line(static_cast<const float*>(a.pointers[5]) + (fw::along(at.pos, a.strides[5][1])), a.reads, x.in12);
  x.in14 = fw::load(static_cast<const float*>(a.pointers[6]) + (0), a.reads);
}
FW_FN void stage_0(const Args& a, const Row& row, const Place& at, const Values& x, bool inside) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  const auto divisor1 = fw::divisor_of(number1);
  const float v14 = x.in14;
  float out19[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v11 = (((x.in0[i] + x.in1[i]) - x.in3[i]) * (fw::rsqrt(x.in5[i] + number0))) * x.in10[i];
    const float v17 = fw::div((v11 + x.in12[i]) + v14, divisor1);
    out19[i] = v17 * fw::sigmoid(v17);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][1])), out19);
}

}  // namespace
__global__ void __launch_bounds__(256) fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  const index threads = static_cast<index>(fw::block_threads());
  const fw::Quotient begin =
      fw::divided(static_cast<index>(fw::block_index()) * (ITEMS * threads), a.line, a.line_divider);
  Row first;
  first.live = true;
  place_row(a, begin.quotient, first);
  Row rows[ITEMS];
  index e[ITEMS];
  Values x[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    rows[item] = first;
    e[item] = begin.remainder + item * threads + static_cast<index>(fw::thread_index());
    if (e[item] >= static_cast<index>(a.line)) {
      const fw::Quotient beyond = fw::divided_beyond(e[item], a.line, a.line_divider);
      const index anchor = begin.quotient + beyond.quotient;
      e[item] = beyond.remainder;
      rows[item].live = anchor < static_cast<index>(a.anchors);
      if (rows[item].live) place_row(a, anchor, rows[item]);
    }
    if (rows[item].live) load_moving(a, rows[item], place(e[item]), x[item]);
  }
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    if (rows[item].live) stage_0(a, rows[item], place(e[item]), x[item], true);
  }
}
'''

# ---- fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul: backward, column schedule --------------------
#
# operators: linear_bias batch_norm add div sigmoid mul
# linear_batchnorm_bias_divide_swish.py:16: x = self.linear(x)
# linear_batchnorm_bias_divide_swish.py:17: x = self.batch_norm(x)
# linear_batchnorm_bias_divide_swish.py:18: x = x + self.bias
# linear_batchnorm_bias_divide_swish.py:19: x = x / self.divide_value
# linear_batchnorm_bias_divide_swish.py:20: return x * torch.sigmoid(x)
#
#     t0 = rsqrt(batch_norm_running_var + 1e-05)
#     t1 = ((saved_matmul10 + linear_bias) - batch_norm_running_mean) * t0
#     t2 = (((t1 * batch_norm_weight) + batch_norm_bias) + bias) / 1.5
#     t3 = sigmoid(t2)
#     t4 = ((dL_dy0 * t3) * ((t2 * (1 - t3)) + 1)) / 1.5
#     mul_30 = (t4 * batch_norm_weight) * t0
#     sum_34 = sum(mul_30, over n0)
#     sum_37 = sum(t4 * t1, over n0)
#     sum_39 = sum(t4, over n0)
_FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
struct Args : fw::KernelArgs<2, 12, 2, 1> {};

#if FW_ITEMS > 0
struct Row {
  float own2, v2[V], own4, v4[V], own6, own9, v9[V], own11, v11[V], own13, v13[V], v15, own29, own31, own32;
  index o0, o1, o8;
  index pos;  // first of this thread's columns
  int own;  // which of them is its own
  bool live;  // there is such a row
};
#else
struct Row {
  float v2[V], v4[V], v6[V], v8[V], v9[V], v11[V], v13[V], v15, v29[V], v31[V], v32[V];
  index o0, o1, o8;
  index pos;  // first of this thread's columns
  bool live;  // there is such a row
};
#endif
FW_FN void place_row(const Args& a, Row& row) {
  row.o0 = fw::along(row.pos, a.strides[0][1]);
  row.o1 = fw::along(row.pos, a.strides[1][1]);
  row.o8 = fw::along(row.pos, a.strides[8][1]);
}

struct Values {
  float in0[V], in1[V];
};

#if FW_ITEMS > 0
struct Place {
  index c0;
  index first, item;
  fw::u32 bits;
};
FW_FN Place place(index first, index item, fw::u32 bits) {
  Place at;
  at.first = first, at.item = item, at.bits = bits;
  const index e = first + (item << bits);
  index rest = e;
  at.c0 = rest;
  return at;
}

FW_FN void ask(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads);
  fw::ask_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + at.first * static_cast<index>(a.strides[1][0]) + at.item * (static_cast<index>(a.strides[1][0]) << at.bits)), a.reads);
}
FW_FN void take(const Args& a, const Row& row, const Place& at, char* slot, Values& x) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + at.first * static_cast<index>(a.strides[0][0]) + at.item * (static_cast<index>(a.strides[0][0]) << at.bits)), a.reads, x.in0);
  fw::take_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + at.first * static_cast<index>(a.strides[1][0]) + at.item * (static_cast<index>(a.strides[1][0]) << at.bits)), a.reads, x.in1);
}
FW_FN void load_row(const Args& a, Row& row) {
  const int i = row.own;
  row.own2 = fw::load(static_cast<const float*>(a.pointers[2]) + (row.pos + i) * static_cast<index>(a.strides[2][1]), a.reads);
  row.own4 = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
  row.own6 = fw::load(static_cast<const float*>(a.pointers[4]) + (row.pos + i) * static_cast<index>(a.strides[4][1]), a.reads);
  row.own11 = fw::load(static_cast<const float*>(a.pointers[5]) + (row.pos + i) * static_cast<index>(a.strides[5][1]), a.reads);
  row.own13 = fw::load(static_cast<const float*>(a.pointers[6]) + (row.pos + i) * static_cast<index>(a.strides[6][1]), a.reads);
  row.v15 = fw::load(static_cast<const float*>(a.pointers[7]) + 0, a.reads);
}

template <int W>
struct SumsOf0 {
  float a29[W], a31[W], a32[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a31[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a32[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf0& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] += other.a29[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a31[i] += other.a31[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a32[i] += other.a32[i];
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a29[i] = fw::shuffle_xor(a29[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a31[i] = fw::shuffle_xor(a31[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a32[i] = fw::shuffle_xor(a32[i], offset);
    return other;
  }
  FW_FN SumsOf0<W / 2> half(bool upper) const {
    SumsOf0<W / 2> part;
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a29[i] = upper ? a29[W / 2 + i] : a29[i];
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a31[i] = upper ? a31[W / 2 + i] : a31[i];
#pragma unroll
    for (int i = 0; i < W / 2; ++i) part.a32[i] = upper ? a32[W / 2 + i] : a32[i];
    return part;
  }
};
#else
struct Place {
  index c0;
};
FW_FN Place place(index e) {
  Place at;
  index rest = e;
  at.c0 = rest;
  return at;
}

template <class Again, class Last>
FW_FN void load_0(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + at.c0 * static_cast<index>(a.strides[0][0])), a.reads, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + at.c0 * static_cast<index>(a.strides[1][0])), a.reads, x.in1);
}
FW_FN void load_row(const Args& a, Row& row) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v2[i] = fw::load(static_cast<const float*>(a.pointers[2]) + (row.pos + i) * static_cast<index>(a.strides[2][1]), a.reads);
    row.v4[i] = fw::load(static_cast<const float*>(a.pointers[3]) + (row.pos + i) * static_cast<index>(a.strides[3][1]), a.reads);
    row.v6[i] = fw::load(static_cast<const float*>(a.pointers[4]) + (row.pos + i) * static_cast<index>(a.strides[4][1]), a.reads);
    row.v11[i] = fw::load(static_cast<const float*>(a.pointers[5]) + (row.pos + i) * static_cast<index>(a.strides[5][1]), a.reads);
    row.v13[i] = fw::load(static_cast<const float*>(a.pointers[6]) + (row.pos + i) * static_cast<index>(a.strides[6][1]), a.reads);
    row.v15 = fw::load(static_cast<const float*>(a.pointers[7]) + 0, a.reads);
  }
}

template <int W>
struct SumsOf0 {
  float a29[W], a31[W], a32[W];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a31[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < W; ++i) a32[i] = 0.0f;
  }
  FW_FN void merge(const SumsOf0& other) {
#pragma unroll
    for (int i = 0; i < W; ++i) a29[i] += other.a29[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a31[i] += other.a31[i];
#pragma unroll
    for (int i = 0; i < W; ++i) a32[i] += other.a32[i];
  }
  FW_FN SumsOf0 exchanged(fw::u32 offset) const {
    SumsOf0 other;
#pragma unroll
    for (int i = 0; i < W; ++i) other.a29[i] = fw::shuffle_xor(a29[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a31[i] = fw::shuffle_xor(a31[i], offset);
#pragma unroll
    for (int i = 0; i < W; ++i) other.a32[i] = fw::shuffle_xor(a32[i], offset);
    return other;
  }
};
#endif
using Sums0 = SumsOf0<V>;

#if FW_ITEMS > 0
FW_FN void row_0(const Args& a, Row& row, const fw::Team& team) {
  const float number0 = a.numbers[0].as<float>();
  row.own9 = fw::rsqrt(row.own6 + number0);
  fw::tell_columns(team, row.own2, row.v2);
  fw::tell_columns(team, row.own4, row.v4);
  fw::tell_columns(team, row.own9, row.v9);
  fw::tell_columns(team, row.own11, row.v11);
  fw::tell_columns(team, row.own13, row.v13);
}

FW_FN void stage_0(const Args& a, const Row& row, const Place& at, const Values& x, bool inside, Sums0& sums) {
  const float number1 = a.numbers[1].as<float>();
  const auto divisor1 = fw::divisor_of(number1);
  float out28[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v10 = ((x.in1[i] + row.v2[i]) - row.v4[i]) * row.v9[i];
    const float v18 = fw::div(((v10 * row.v11[i]) + row.v13[i]) + row.v15, divisor1);
    const float v19 = fw::sigmoid(v18);
    const float v26 = fw::div((x.in0[i] * v19) * ((v18 * (1.0f - v19)) + 1.0f), divisor1);
    const float v27 = v26 * row.v11[i];
    out28[i] = v27 * row.v9[i];
    if (inside) sums.a29[i] = fw::mad(v27, row.v9[i], sums.a29[i]);
    if (inside) sums.a31[i] = fw::mad(v26, v10, sums.a31[i]);
    if (inside) sums.a32[i] += v26;
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[8]) + (row.o8 + at.first * static_cast<index>(a.strides[8][0]) + at.item * (static_cast<index>(a.strides[8][0]) << at.bits)), out28);
}

FW_FN void row_1(const Args& a, Row& row, bool store, const SumsOf0<1>& sums) {
  const int i = row.own;
  row.own29 = sums.a29[0];
  if (store) static_cast<float*>(a.pointers[9])[(row.pos + i) * static_cast<index>(a.strides[9][1])] = row.own29;
  row.own31 = sums.a31[0];
  if (store) static_cast<float*>(a.pointers[10])[(row.pos + i) * static_cast<index>(a.strides[10][1])] = row.own31;
  row.own32 = sums.a32[0];
  if (store) static_cast<float*>(a.pointers[11])[(row.pos + i) * static_cast<index>(a.strides[11][1])] = row.own32;
}
#else
FW_FN void row_0(const Args& a, Row& row) {
  const float number0 = a.numbers[0].as<float>();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v8[i] = fw::add(row.v6[i], number0);
    row.v9[i] = fw::rsqrt(row.v8[i]);
  }
}

FW_FN void stage_0(const Args& a, const Row& row, const Place& at, const Values& x, bool inside, Sums0& sums) {
  const float number1 = a.numbers[1].as<float>();
  const auto divisor1 = fw::divisor_of(number1);
  float out28[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v10 = ((x.in1[i] + row.v2[i]) - row.v4[i]) * row.v9[i];
    const float v18 = fw::div(((v10 * row.v11[i]) + row.v13[i]) + row.v15, divisor1);
    const float v19 = fw::sigmoid(v18);
    const float v26 = fw::div((x.in0[i] * v19) * ((v18 * (1.0f - v19)) + 1.0f), divisor1);
    const float v27 = v26 * row.v11[i];
    out28[i] = v27 * row.v9[i];
    if (inside) sums.a29[i] = fw::mad(v27, row.v9[i], sums.a29[i]);
    if (inside) sums.a31[i] = fw::mad(v26, v10, sums.a31[i]);
    if (inside) sums.a32[i] += v26;
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[8]) + (row.o8 + at.c0 * static_cast<index>(a.strides[8][0])), out28);
}

FW_FN void row_1(const Args& a, Row& row, bool store, const Sums0& sums) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    row.v29[i] = sums.a29[i];
    if (store) static_cast<float*>(a.pointers[9])[(row.pos + i) * static_cast<index>(a.strides[9][1])] = row.v29[i];
    row.v31[i] = sums.a31[i];
    if (store) static_cast<float*>(a.pointers[10])[(row.pos + i) * static_cast<index>(a.strides[10][1])] = row.v31[i];
    row.v32[i] = sums.a32[i];
    if (store) static_cast<float*>(a.pointers[11])[(row.pos + i) * static_cast<index>(a.strides[11][1])] = row.v32[i];
  }
}
#endif
}  // namespace
#if FW_ITEMS > 0
constexpr int registers = ITEMS * V * 8 / 4 + V * 72 / 16 + 34;
constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);
__global__ void __launch_bounds__(FW_THREADS, blocks) fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits));
  fw::Team columns = fw::team_of_columns(team);
  const index elements = fw::held_elements(a.elements);
  constexpr int GROUP = ITEMS < 8 ? 1 : ITEMS / 8;  // vectors that are waited for at a time
  const index held = fw::items_of_thread(team, elements);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  Row row;
  index row_index = part;
  row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
  if (!row.live) row_index = 0;
  const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
  row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
  if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
  row.own = static_cast<int>(columns.lane >> team.lane_bits);
  place_row(a, row);
  index row_items = row.live ? held : 0;
  fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile
  constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;
  char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);
#pragma unroll
  for (int depth = 0; depth < FW_DEPTH; ++depth) {
    Row first;
    index first_index = part + depth * static_cast<index>(a.parts);
    first.live = part < static_cast<index>(a.parts) && first_index < static_cast<index>(a.walked);
    if (!first.live) first_index = 0;
    const fw::Quotient first_tile = fw::divided(first_index, a.tiles, a.tiles_divider);
    first.pos = (first_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (first.pos >= a.sizes[1]) first.live = false, first.pos = 0;
    first.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, first);
    index first_items = first.live ? held : 0;
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      if (item < first_items) ask(a, first, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
      if (item % GROUP == GROUP - 1) fw::copy_async_commit();
    }
  }
  int depth = 0;
  load_row(a, row);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Values x[ITEMS];
    Row next;
    index next_index = part + (turn + 1) * static_cast<index>(a.parts);
    next.live = part < static_cast<index>(a.parts) && next_index < static_cast<index>(a.walked);
    if (!next.live) next_index = 0;
    const fw::Quotient next_tile = fw::divided(next_index, a.tiles, a.tiles_divider);
    next.pos = (next_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (next.pos >= a.sizes[1]) next.live = false, next.pos = 0;
    next.own = static_cast<int>(columns.lane >> team.lane_bits);
    place_row(a, next);
    index next_items = next.live ? held : 0;
    const bool first = row.live && columns.thread == 0;
    row_0(a, row, team);
    Sums0 sums0;
    sums0.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const bool inside = item < row_items;
      static_assert(FW_DEPTH == 1 && ITEMS % GROUP == 0, "one turn ahead, in groups");
      if (item % GROUP == 0) {
        fw::compute_above(a.lane_bits, sums0.a29[0]);
        fw::copy_async_wait<ITEMS / GROUP - 1>();
        const int first_of_group = item;
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          take(a, row, place(item < row_items ? static_cast<index>(team.thread) : 0, item < row_items ? item : 0, team.bits), own + (depth * ITEMS + item) * AHEAD, x[item]);
        }
#pragma unroll
        for (int item = first_of_group; item < first_of_group + GROUP; ++item) {
          if (item < next_items) ask(a, next, place(static_cast<index>(team.thread), item, team.bits), own + (depth * ITEMS + item) * AHEAD);
        }
        fw::copy_async_commit();
      }
      stage_0(a, row, place(static_cast<index>(team.thread), item, team.bits), x[item], inside, sums0);
    }
    SumsOf0<1> own0 = fw::own_column(team, sums0);
    fw::reduce(columns, own0);
    load_row(a, next);
    row_1(a, row, first, own0);
    row = next;
    row_items = next_items;
  }
}
#else
__global__ void __launch_bounds__(512) fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index part = static_cast<index>(fw::block_index() * team.rows() + team.row);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Row row;
    index row_index = part + turn * static_cast<index>(a.parts);
    row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
    if (!row.live) row_index = 0;
    const fw::Quotient row_tile = fw::divided(row_index, a.tiles, a.tiles_divider);
    row.pos = (row_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;
    if (row.pos >= a.sizes[1]) row.live = false, row.pos = 0;
    place_row(a, row);
    const bool first = row.live && team.thread == 0;
    load_row(a, row);
    row_0(a, row);
    const index elements = row.live ? static_cast<index>(a.elements) : 0;
    const fw::ReadAgain again = {a.reads};
    const fw::ReadLast last = {{fw::evict_normal}};
    constexpr int bytes0 = V * 8;
    constexpr int AHEAD0 = bytes0 <= 16 ? 4 : bytes0 <= 32 ? 2 : 1;
    const index end0 = elements, step0 = static_cast<index>(team.threads());
    index e0 = static_cast<index>(team.thread);
    Values next0[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
    Sums0 sums0;
    sums0.clear();
    while (e0 < end0) {
      Values x[AHEAD0];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (AHEAD0 + n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          load_0(a, row, place(e), again, last, next0[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          stage_0(a, row, place(e), x[n], true, sums0);
        }
      }
      if (end0 - e0 <= AHEAD0 * step0) break;
      e0 += AHEAD0 * step0;
    }
    fw::reduce(team, sums0);
    row_1(a, row, first, sums0);
  }
}
__global__ void __launch_bounds__(256) fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul_phase0(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  constexpr int AHEAD0 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index end0 = row.live ? static_cast<index>(a.elements) : 0, step0 = static_cast<index>(a.splits * team.threads());
  index e0 = static_cast<index>(split * static_cast<index>(team.threads()) + static_cast<index>(team.thread));
  Values next0[AHEAD0];
#pragma unroll
  for (int n = 0; n < AHEAD0; ++n) {
    const index beyond = (n) * step0;
    if (beyond < end0 - e0) {
      const index e = e0 + beyond;
      load_0(a, row, place(e), again, last, next0[n]);
    }
  }
  fw::let_next_launch_begin();
  load_row(a, row);
  row_0(a, row);
  Sums0 sums0;
  sums0.clear();
  while (e0 < end0) {
    Values x[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (AHEAD0 + n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        stage_0(a, row, place(e), x[n], true, sums0);
      }
    }
    if (end0 - e0 <= AHEAD0 * step0) break;
    e0 += AHEAD0 * step0;
  }
  fw::reduce(team, sums0);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + split) << a.partial_bits) + lane].sums = sums0;
}
__global__ void __launch_bounds__(256) fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul_phase1(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  const index split = 0;
  Row row;
  const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);
  row.pos = ((tile.remainder << a.partial_bits) + lane) * V;
  row.live = row.pos < a.sizes[1];
  if (!row.live) row.pos = 0;
  place_row(a, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  fw::follow_last_launch();
  load_row(a, row);
  row_0(a, row);
  Sums0 sums0;
  sums0.clear();
  if (a.left[0] == 1) sums0 = static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums;
  else {
#pragma unroll 4
    for (index i = static_cast<index>(team.thread); i < a.left[0]; i += static_cast<index>(team.threads()))
      sums0.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
    fw::reduce(team, sums0);
  }
  row_1(a, row, first && true, sums0);
}
__global__ void __launch_bounds__(256) fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul_merge0(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  Sums0 sums;
  sums.clear();
#pragma unroll 4
  for (index i = static_cast<index>(team.thread); i < a.splits; i += static_cast<index>(team.threads()))
    sums.merge(static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + i) << a.partial_bits) + lane].sums);
  fw::reduce(team, sums);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + 0) << a.partial_bits) + lane].sums = sums;
}
#endif
'''


# ============ Helpers =============================================================================================

def _device_of(x):
    """Where a region runs: on the device that the kernels are for."""
    if x.device.type != _BACKEND:
        raise RuntimeError(f"this file has kernels for {_BACKEND} tensors, but was given one on {x.device}")
    if _autocast_is_on():
        raise RuntimeError("this file was written without autocast: cast the model and its inputs instead")
    return x.device


def _autocast_is_on():
    if hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.4
        return torch.is_autocast_enabled(_BACKEND)
    return torch.is_autocast_enabled() if _BACKEND == "cuda" else torch.is_autocast_cpu_enabled()


def _positive(size, what):
    if size <= 0:
        raise RuntimeError(f"{what} is {size}, but must be positive")


def _more_than_one(count):
    """Values in a channel, for statistics of the batch. (Eager takes an empty batch, and leaves its buffers alone.)"""
    if count == 1:
        raise ValueError("Expected more than 1 value per channel when training")
    if count == 0:
        raise RuntimeError("this file takes no empty batch in training: there are no statistics of it")


def _expect(actual, expected, what):
    if actual is not expected and (isinstance(actual, torch.Tensor) or actual != expected):
        raise RuntimeError(f"this file was written for {what} = {expected!r}, not {actual!r}: emit the model again")


def _expect_state(model, names):
    """The same parameters and buffers as the model that this file was made from; asked once."""
    if "_state_is_known" not in model.__dict__:
        found = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        _expect(found, names, "the names of parameters and buffers")
        model.__dict__["_state_is_known"] = True


def _any_requires_grad(*tensors):
    return any(x.requires_grad for x in tensors)


def _no_such_gradient(needed, name):
    if needed:
        raise RuntimeError(f"{name} required no gradient when this file was emitted: there is none")


def _first_derivatives_only():
    """Whoever differentiates a gradient would take it for a constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("this file has no second derivatives: for create_graph=True call the model it was made from")


# ============ How kernels are built and launched: the same for every model ========================================

# What both halves of the extension know: the one that sees PyTorch, and the one with the kernels.

_SHARED = r'''
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fusewright {

enum class DType : uint8_t { f16, bf16, f32, f64, i8, u8, i16, i32, i64, b8 };

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    default:
      return 1;
  }
}

constexpr int max_rank = 8;

// Memory with sizes and strides (in elements). `owner` keeps it alive; whoever made the tensor knows what it is.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, max_rank> sizes{};
  std::array<int64_t, max_rank> strides{};
  std::shared_ptr<void> owner;

  int64_t elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[static_cast<size_t>(d)];
    return count;
  }
  explicit operator bool() const { return owner != nullptr || data != nullptr; }
};

// How a kernel walks its axes, whose names are indices.
struct Loops {
  enum class Kind { pointwise, row, column };
  Kind kind = Kind::pointwise;
  std::vector<int> kept;     // loops over results (without `inner`), outermost first
  std::vector<int> reduced;  // loops over what is reduced (without `inner`); in a pointwise kernel: all outer loops
  int inner = -1;            // the loop that is vectorised; -1: a single element

  // Reductions that need results of reductions come in later passes over the row: variance after mean.
  int stages = 1;
};

// What the launcher must know of a CUDA kernel beside its loops.
struct CudaLoops {
  std::vector<int> anchor_axes, walked_axes;  // a row's coordinates: a team stays at the first, walks over the second
  std::vector<std::vector<int64_t>> sums;     // per sweep: the bytes of each accumulator
  std::vector<bool> position_side;            // per sum on the side: it varies along the row
  struct Vector {
    int operand, axis;
  };
  std::vector<Vector> vectors;  // operands that are read or written by whole vectors, along this axis
  struct Walking {              // the variant that holds no rows in registers has a text, and passes, of its own,
    int stages = 0;             // with entries for split rows and for sums on the side
    std::vector<std::vector<int64_t>> sums;
    std::vector<bool> leaves_sums;  // of a sweep: for another one, or totals
    bool final_phase = false;       // values of the row are stored behind the last sweep
  };
  Walking walking;
  std::vector<int> items;  // vectors of a row that a thread may hold in registers: one variant for each
  std::vector<int> ahead;  // operands that come through shared memory, asked for before their row's turn,
  std::vector<int> fixed;  // and those that stay there, the same for all rows of a team
  bool can_tile = false;   // there is a text for operands that lie along another axis than the lines

  bool has_sides() const { return !position_side.empty(); }
  int64_t sides_at_positions() const { return std::count(position_side.begin(), position_side.end(), true); }
  int64_t sides_at_anchors() const { return std::count(position_side.begin(), position_side.end(), false); }
};

struct KernelLoops {
  struct Operand {  // one pointer, with a stride for each axis
    std::string name;
    DType dtype = DType::f32;
    bool store = false, side = false;    // a sum on the side: `dtype` is its buffer's
    std::vector<std::vector<int>> dims;  // per dimension of the tensor: its axes, outermost first; none: size 1
  };
  struct Axis {
    bool pinned = false;  // never merged with a neighbour
    bool tap = false;     // no loop: a position that a window derives from one
  };
  std::string name;
  std::vector<Operand> operands;
  std::vector<Axis> axes;
  Loops nest;
  CudaLoops cuda;
  std::vector<DType> numbers;  // scalar arguments, as the kernel computes with them
};

struct KernelCall {
  std::vector<const Tensor*> operands;  // in the order of KernelLoops::operands
  std::vector<int64_t> sizes;           // of the kernel's axes
  std::vector<double> numbers;
  int device = 0;
  void* stream = nullptr;
  std::function<void*(int64_t)> allocate;  // bytes that live as long as the call
};

const std::vector<KernelLoops>& kernels();
void run_kernel(size_t kernel, const KernelCall& call);

}  // namespace fusewright
'''

# PyTorch's half: checks, and calls from Python.

_TORCH = r'''
#include <c10/core/ScalarType.h>


namespace fusewright {

inline at::ScalarType scalar_type(DType t) {
  constexpr at::ScalarType types[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kChar,
                                      at::kByte, at::kShort,    at::kInt,   at::kLong,   at::kBool};
  return types[static_cast<size_t>(t)];
}

}  // namespace fusewright

// Calls from Python: PyTorch's tensors are checked, and handed to a kernel as pointers, sizes and strides.
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
'''

# What kernels call: types, mathematics, the device.

_PRELUDE = r'''
#define FW_FN __device__ __forceinline__
#define FW_OPERATOR(result, name, op) \
  template <class T>                  \
  FW_FN result name(T a, T b) {       \
    return a op b;                    \
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define FW_SM90 1
#else
#define FW_SM90 0
#endif
// Copies may ask the L2 cache for whole lines since CUDA 11.4.
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1104
#define FW_WHOLE_LINE ""
#else
#define FW_WHOLE_LINE ".L2::128B"
#endif
#if FW_SM90 && __CUDA_ARCH__ < 1000
#define FW_KEEPS 1
#else
#define FW_KEEPS 0
#endif

namespace fw {

using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
FW_FN u32 bits_of(float x) { return __float_as_uint(x); }
FW_FN float float_of(u32 b) { return __uint_as_float(b); }

// Approximations are those of the .ftz forms: denormal operands and results count as 0. In the emulator they are exact;
// a test may define FW_APPROXIMATE to make them as wrong as the manual allows: `exact` is a double, `error` its bound
// in units of the last place.
FW_FN float ex2_approx(float x) {  // the manual says 2 ulp; 2.07 were seen
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

FW_FN float rcp_approx(float x) {  // 1 / x within 1 ulp; 1 of 1
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

FW_FN float rsqrt_approx(float x) {  // 1 / sqrt(x), relative error 2^-22.9
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

FW_FN float min_of_numbers(float a, float b) {  // the number, if the other is NaN
  float r;
  asm("min.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// NaN if either is.
#if __CUDA_ARCH__ < 800
FW_FN float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
FW_FN float min_or_nan(float a, float b) { return a < b || a != a ? a : b; }
#else
FW_FN float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
FW_FN float min_or_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif

// Storage only: values are float in registers.
struct half {
  u16 bits;
};

template <class A, class B>
struct same {
  static constexpr bool value = false;
};

template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};

template <class T>
struct ieee;

template <>
struct ieee<float> {
  using bits = u32;
  static constexpr int mantissa = 23;
  static constexpr u32 bias = 127;
  static constexpr u32 sign = 0x80000000u;
  static constexpr u32 infinity = 0x7f800000u, nan = 0x7fc00000u;
  static constexpr u32 root_half = 0x3f3504f3u;  // bits of sqrt(1/2)
  static constexpr float min_normal = 0x1p-126f;
  static constexpr float shifter = 0x1.8p23f;  // adding it rounds to an integer, held in the low bits
  static constexpr float log2e = 0x1.715476p+0f, log2e_lo = 0x1.4ae0cp-26f, log2e_less_1 = 0x1.c551dap-2f;
  static constexpr float ln2 = 0x1.62e43p-1f, ln2_rest = -0x1.05c61p-29f;
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;  // n * ln2_hi is exact
  static constexpr float pio2_hi = 0x1.921fb6p+0f, pio2_lo = -0x1.777a5cp-25f;
  static constexpr float exp_range = 104, exp2_range = 151;     // beyond: 0 and infinity
  static constexpr float expm1_min = -20, expm1_max = 89;       // beyond: -1 and infinity
  static constexpr float tanh_range = 10, erfc_range = 10.19f;  // beyond: 1 and 0
  static constexpr float erfcx_hi = 0x1.058672p+0f, erfcx_lo = -0x1.134278p-26f;
};

template <class T>
FW_FN T infinity() {
  return float_of(ieee<T>::infinity);
}

// a * b + c, fused where the machine can; no formula here relies on the fusion.
FW_FN float mad(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// a - q * d, exact if q is close to a / d.
template <class T>
FW_FN T residual(T a, T q, T d) {
  return mad(-q, d, a);
}

// c0 + c1 x + c2 x^2 + ...
template <class T>
FW_FN T poly(T, T c0) {
  return c0;
}

template <class T, class... C>
FW_FN T poly(T x, T c0, C... c) {
  return mad(x, poly(x, c...), c0);
}

FW_FN float abs(float x) { return ::fabsf(x); }  // part of the instruction that takes it
FW_FN i64 neg(i64 x) { return static_cast<i64>(0 - static_cast<u64>(x)); }
FW_FN i64 abs(i64 x) { return x < 0 ? neg(x) : x; }
FW_FN float neg(float x) { return -x; }

template <class T>
FW_FN T at_most(T x, T limit) {  // keeps NaN, unlike minimum instructions
  return x > limit ? limit : x;
}

FW_FN float at_most(float x, float limit) { return min_or_nan(x, limit); }
FW_OPERATOR(T, add, +)
FW_OPERATOR(T, mul, *)
FW_OPERATOR(T, div, /)

// Integers wrap around.
FW_FN i64 add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }

FW_FN i64 mul(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }

template <class T>
FW_FN T square(T x) {
  return mul(x, x);
}

// x rsqrt(x) with one residual step; 0.5 ulp, 0.75 where the residual is denormal.
FW_FN float sqrt(float x) {
  const bool tiny = x < ieee<float>::min_normal;
  const float s = tiny ? x * 0x1p24f : x;
  const float y = rsqrt_approx(s);
  const float g = s * y;
  const float better = mad(mad(-g, g, s), 0.5f * y, g);
  const float r = x == 0 || x == infinity<float>() ? x : better;
  return tiny ? r * 0x1p-12f : r;
}

template <class T>
FW_FN T reciprocal(T x) {
  return 1 / x;
}

template <class T>
FW_FN T rsqrt(T x) {
  return 1 / sqrt(x);
}

// Scaled so that neither the operand nor the result of the instruction is denormal; 1.0 ulp, all the instruction's.
FW_FN float reciprocal(float x) {
  const float s = abs(x) < 1 ? 0x1p24f : 0.25f;
  return rcp_approx(x * s) * s;
}

// One residual step, which also makes x / x = 1; 0.5 ulp, 1.0 in denormal results and next to overflow.
// A tiny a is scaled too, for its residual would be denormal. No residual below |a| means
// that q is final: 0 with its sign, infinity or NaN.
FW_FN float div(float a, float b) {
  const bool tiny = (abs(b) < 0x1p-24f) | (abs(a) < 0x1p-100f);  // not ||, which costs an instruction more
  a = tiny ? a * 0x1p24f : a, b = tiny ? b * 0x1p24f : b;
  const bool huge = abs(b) > 0x1p125f;
  a = huge ? a * 0.25f : a, b = huge ? b * 0.25f : b;
  const float y = rcp_approx(b);
  const float q = a * y;
  const float r = mad(-q, b, a);
  return abs(r) < abs(a) ? mad(r, y, q) : q;
}

// One Newton step; 1.0 ulp. At 0 and infinity it is undefined, and the instruction's result final.
FW_FN float rsqrt(float x) {
  const bool tiny = x < ieee<float>::min_normal;
  const float s = tiny ? x * 0x1p24f : x;
  const float y = rsqrt_approx(s);
  const float e = mad(-(s * y), y, 1.0f);
  const float r = abs(e) < 1 ? mad(0.5f * y, e, y) : y;
  return tiny ? r * 0x1p12f : r;
}

// A number that many are divided by.
template <class T>
struct Divisor {
  T value;
};

template <class T>
FW_FN Divisor<T> divisor_of(T b) {
  return {b};
}

template <class T>
FW_FN T div(T a, Divisor<T> b) {
  return a / b.value;
}

// One that counts something.
template <class T>
FW_FN Divisor<T> count_of(T n) {
  return {n};
}

// The reciprocal is the sum of the two, of one sign, so that infinities meet no others.
template <>
struct Divisor<float> {
  float scale, reciprocal, rest;
};

// Of what neither is denormal nor has a denormal reciprocal. 0 and infinity have a residual that is undefined.
FW_FN Divisor<float> exact_reciprocal(float b, float scale) {
  const float y = rcp_approx(b);
  const float e = mad(-b, y, 1.0f);
  const float nearest = abs(e) < 1 ? mad(y, e, y) : y;
  const float below = mad(-b, nearest, 1.0f) < 0 ? float_of(bits_of(nearest) - 1) : nearest;
  const float residual = mad(-b, below, 1.0f);
  return {scale, below, below * (residual > 0 ? residual : 0x1p-60f)};
}

// Scaled so that neither is. Where a numerator leaves the range of float with it, the quotient does too.
FW_FN Divisor<float> divisor_of(float b) {
  const float scale = abs(b) < 0x1p-60f ? 0x1p60f : abs(b) > 0x1p60f ? 0x1p-60f : 1.0f;
  return exact_reciprocal(b * scale, scale);
}

// From 1 to 2^60: nothing has to be scaled. Or 0, of what has no elements.
FW_FN Divisor<float> count_of(float n) { return exact_reciprocal(n, 1.0f); }

// As div above; 0.5 ulp, 1.0 just above the denormal numbers, 1.5 in them.
FW_FN float div(float a, Divisor<float> b) {
  a *= b.scale;
  return mad(a, b.reciprocal, a * b.rest);
}

// e^r = 1 + r + r^2 exp_tail(r) for |r| <= ln(2) / 2
FW_FN float exp_tail(float r) {
  return poly(r, 0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.55572cp-5f, 0x1.1227bcp-7f, 0x1.6b5a84p-10f);
}

// A value p * 2^n, not yet put together so that a factor can join before the result becomes denormal.
template <class T>
struct scaled {
  T p;
  typename ieee<T>::bits n;  // n + 2 bias in the low bits
};

template <class T>
FW_FN T value_of(scaled<T> s) {  // in two steps, because 2^n itself may overflow or be denormal
  const auto half_n = s.n >> 1;
  return s.p * float_of(half_n << ieee<T>::mantissa) * float_of((s.n - half_n) << ieee<T>::mantissa);
}

// x = n ln(2) + r + r_lo, with n + offset in the low bits of `n`.
template <class T>
struct exp_argument {
  T r, r_lo;
  typename ieee<T>::bits n;
};

template <class T>
FW_FN exp_argument<T> exp_reduce(T x, T offset) {
  const T shifter = ieee<T>::shifter + offset;
  const T t = mad(x, ieee<T>::log2e, shifter);
  const T n = t - shifter;
  const T r_hi = mad(n, -ieee<T>::ln2_hi, x);
  const T r = mad(n, -ieee<T>::ln2_lo, r_hi);
  return {r, mad(n, -ieee<T>::ln2_lo, r_hi - r), bits_of(t)};
}

template <class T>
FW_FN T exp_of_reduced(T r) {
  return mad(mad(exp_tail(r), r, T(1)), r, T(1));
}

template <class T>
FW_FN scaled<T> exp_parts(T x) {  // for |x| <= exp_range
  const exp_argument<T> a = exp_reduce(x, T(2 * ieee<T>::bias));
  return {exp_of_reduced(a.r), a.n};
}

FW_FN float rough_reciprocal(float d) {
  const float y = poly(d, 1632 / 577.0f, -1696 / 577.0f, 768 / 577.0f, -128 / 577.0f);  // Chebyshev's: within 1/577
  return mad(y, mad(-d, y, 1.0f), y);
}

// (a + a_lo) / (d + d_lo), given y near 1 / d.
template <class T>
FW_FN T quotient(T a, T a_lo, T d, T d_lo, T y) {
  const T q = a * y;
  return mad(mad(-d_lo, q, residual(a, q, d) + a_lo), y, q);
}

template <class T>
FW_FN T quotient(T a, T d, T d_lo, T y) {
  const T q = a * y;
  return mad(mad(-d_lo, q, residual(a, q, d)), y, q);
}

template <class T>
FW_FN T sigmoid(T x) {  // 1 / (1 + e^-x), from e^-|x| so that small results keep their digits
  const T e = value_of(exp_parts(-at_most(abs(x), ieee<T>::exp_range)));
  const T d = 1 + e;
  return quotient(x < 0 ? e : T(1), d, e - (d - 1), rough_reciprocal(d));
}

// e^-x = 2^t e^d, where d is what rounding t took away, and e^d nearly 1 + d. t stays where 2^t is finite: from there
// on the reciprocal is below the normal numbers, which become 0. NaN in d, of an infinite t, is made a number, and
// meets 2^t = 0. 6.1 ulp, of which 4.2 are ex2_approx's, where its result is just above a power of 2 and its reciprocal
// just below one.
FW_FN float sigmoid(float x) {
  const float t = min_or_nan(x * -ieee<float>::log2e, 127.0f);
  const float d = min_of_numbers(mad(t, -ieee<float>::ln2_rest, mad(t, -ieee<float>::ln2, -x)), 1.0f);
  const float e = ex2_approx(t);
  return rcp_approx(mad(e, d, 1 + e));
}

constexpr u32 warp_size = 32;
constexpr u32 all_lanes = 0xffffffffu;
FW_FN u32 thread_index() { return threadIdx.x; }  // within the block
FW_FN u32 block_index() { return blockIdx.x; }
FW_FN u32 block_threads() { return blockDim.x; }
FW_FN u32 lane_index() { return threadIdx.x % warp_size; }
FW_FN u32 warp_index() { return threadIdx.x / warp_size; }

// All threads of the block, at the same line. Writes before it are seen behind it.
FW_FN void barrier() { __syncthreads(); }

// The next launch on the stream may begin, as far as it does not depend on this one, once all blocks have come here.
// Where nothing follows that was launched for it, and on older devices, nothing happens.
FW_FN void let_next_launch_begin() {
#if FW_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the launch before this one has ended, and with it all before, and what they wrote can be read. First in every
// kernel, all of which may be launched to overlap: before it writes anything, and before it reads anything but what
// was there when the last launch that did not overlap began.
FW_FN void wait_for_last_launch() {
#if FW_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// How a kernel begins: only the start of a launch overlaps with the one before.
FW_FN void follow_last_launch() {
  let_next_launch_begin();
  wait_for_last_launch();
}

// T: float, double, int, u32, i64, u64, bool
template <class T>
FW_FN T shuffle(T value, u32 lane) {
  return __shfl_sync(all_lanes, value, static_cast<int>(lane), 32);
}

template <class T>
FW_FN T shuffle_xor(T value, u32 offset) {
  return __shfl_xor_sync(all_lanes, value, static_cast<int>(offset), 32);
}

FW_FN bool shuffle(bool value, u32 lane) { return shuffle(int(value), lane) != 0; }

FW_FN bool shuffle_xor(bool value, u32 offset) {
  return shuffle_xor(int(value), offset) != 0;
}

// The one block of shared memory, as large as the launch asked for, aligned to 128 bytes.
extern __shared__ __align__(128) char shared_block[];

FW_FN char* shared_memory() { return shared_block; }

// PTX addresses shared memory by 32 bits.
FW_FN u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

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

// One access for 1, 2, 4, 8 or 16 bytes, two for 32. `from` is aligned to the access.
template <int N, class T, class How>
FW_FN void load_vector(const T* from, How how, T (&to)[N]) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  using W = typename word<bytes>::type;
  const W* words = reinterpret_cast<const W*>(from);
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T)) / bytes; ++i) {
    const W w = load_word(words + i, how);
    memcpy(to + i * (bytes / int(sizeof(T))), &w, bytes);
  }
}

template <int N, class T>
FW_FN void store_vector(T* to, const T (&from)[N]) {
  constexpr int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  using W = typename word<bytes>::type;
  W* words = reinterpret_cast<W*>(to);
#pragma unroll
  for (int i = 0; i < int(N * sizeof(T)) / bytes; ++i) {
    W w;
    memcpy(&w, from + i * (bytes / int(sizeof(T))), bytes);
    words[i] = w;
  }
}

// One element.
template <class T, class How>
FW_FN T load(const T* from, How how) {
  T value[1];
  load_vector(from, how, value);
  return value[0];
}

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

// `bytes` (4, 8 or 16) from global to shared memory: the first `valid` of them are read, the others become 0. Both
// sides are aligned to `bytes`. In shared memory only behind copy_async_wait, and for other threads a barrier. The L2
// cache gets the whole line: what this block leaves of it is another's, at about the same time. So does the processor's
// own cache, if the copy is of something that every block copies. Devices before sm_80 copy at once.
template <int bytes, bool for_every_block = false>
FW_FN void copy_async(void* shared, const void* global, u32 valid = bytes,
                      [[maybe_unused]] ReadOnly how = read_only) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async moves 4, 8 or 16 bytes");
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
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
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last `groups` of this thread's groups are under way.
template <int groups>
FW_FN void copy_async_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

}  // namespace fw
'''

# The same for every variant of a kernel, which are made by the macros in front.

_LOOPS = r'''
namespace fw {

constexpr int V = FW_VECTOR;
constexpr int ITEMS = FW_ITEMS;

#if FW_WIDE
using index = i64;
#else
using index = i32;
#endif

// A scalar of the program, in the type that the kernel computes with.
union Number {
  double f64;
  float f32;
  i64 whole;
  bool truth;
  template <class T>
  FW_FN T as() const {
    if constexpr (same<T, float>::value) {
      return f32;
    } else if constexpr (same<T, double>::value) {
      return f64;
    } else if constexpr (same<T, bool>::value) {
      return truth;
    } else {
      return whole;
    }
  }
};

// What the launcher hands to a kernel. The same layout is packed in launch/cuda_arguments.h.
//
// A *row* is one result of the reduction (row kernels), a block of neighbouring ones (column kernels) or a line of a
// pointwise kernel; its *elements* are counted in vectors where they lie along the line. Rows come as anchors x walked:
// a team of threads stays at one anchor and walks over a part of the rows there.
template <int AXES, int OPERANDS, int NUMBERS, int STAGES>
struct KernelArgs {
  void* pointers[OPERANDS];  // of a sum on the side: its buffer of partial sums, or the result if there is one part
  void* results[OPERANDS];   // of a sum on the side: its result
  Number numbers[NUMBERS];
  i64 strides[OPERANDS][AXES];
  i64 side_strides[AXES];   // of the buffers for sums on the side, [part][anchor][element]
  i64 total_strides[AXES];  // likewise, where a sum has one number for each anchor: [part][anchor]
  i64 sizes[AXES];
  void* partial[STAGES];  // split rows: the sums of each split,
  i64 left[STAGES];       // and how many of them are still to be added up: all, or 1 when that has been done
  i64 anchors, walked, parts, share;
  i64 elements;      // of a row
  i64 rows, splits;  // split rows: how many, and how many blocks share one in a sweep that leaves sums;
  i64 stretch;       // what a block has of one in a sweep that leaves none
  i64 line;          // vectors along the innermost loop
  i64 tiles;         // column: blocks of columns; tiled: tiles along a line
  i64 side_parts, total_parts, side_blocks;
  ReadOnly reads;  // of operands that are not results
  Divider divider[AXES];
  Divider line_divider, tiles_divider, anchors_divider, rows_divider;
  u32 team_bits, lane_bits;  // threads that reduce together; neighbouring columns side by side
  u32 anchor_bits;           // teams of a warp at neighbouring anchors; the others of its block are at other parts
  u32 partial_bits;          // the lanes of those that left partial sums
  u32 ahead;                 // where in shared memory rows arrive that are asked for ahead
  u32 cluster_bits;          // blocks that a team is spread over, or that add up their sums on the side
};

struct Quotient {
  index quotient, remainder;
};

FW_FN Quotient divided(index n, i64 divisor, Divider d) {
#if FW_WIDE
  (void)d;
  return {n / divisor, n % divisor};
#else
  (void)divisor;
  const Division r = divide(static_cast<u32>(n), d);
  return {static_cast<index>(r.quotient), static_cast<index>(r.remainder)};
#endif
}

// Of what lies less than 2^24 beyond the divisor: in 32 bits, whatever the index has.
FW_FN Quotient divided_beyond(index n, i64 divisor, Divider d) {
#if FW_WIDE
  if (divisor >= (i64{1} << 31) - (i64{1} << 24)) return {1, n - divisor};
#endif
  (void)divisor;
  const Division r = divide(static_cast<u32>(n), d);
  return {static_cast<index>(r.quotient), static_cast<index>(r.remainder)};
}

// Offset along the innermost loop: vectors are neighbours in memory.
FW_FN index along(index position, i64 stride) { return V > 1 ? position : position * static_cast<index>(stride); }

template <class T, class How>
FW_FN void load_line(const T* from, How how, T (&to)[V]) {
  load_vector(from, how, to);
}

template <class T>
FW_FN void store_line(T* to, const T (&from)[V]) {
  store_vector<V>(to, from);
}

// Vectors that are asked for ahead arrive in shared memory, where the thread that asked takes them. One that no
// asynchronous copy can move is loaded when it is taken.
template <class T>
FW_FN constexpr u32 ahead_bytes() {
  constexpr u32 bytes = V * sizeof(T);
  return bytes == 4 || bytes == 8 || bytes == 16 ? bytes : 0;
}

// The lanes of a warp have theirs side by side: whole lines of memory arrive as they are, which is what the copies are
// fast at (with a stretch of its own for each thread, kernels took half as long again), and all offsets but the warp's
// and the lane's are constants. `slot`: where the warp's begin; `before`: bytes of a thread in front of this operand's.
template <bool for_every_block = false, class T>
FW_FN void ask_line(char* slot, u32 before, const T* from, ReadOnly how) {
  constexpr u32 bytes = ahead_bytes<T>();
  if constexpr (bytes > 0)
    copy_async<bytes, for_every_block>(slot + before * warp_size + lane_index() * bytes, from, bytes, how);
}

template <class T>
FW_FN void take_line(const char* slot, u32 before, const T* from, ReadOnly how, T (&to)[V]) {
  constexpr u32 bytes = ahead_bytes<T>();
  if constexpr (bytes > 0) {
    const char* own = slot + before * warp_size + lane_index() * bytes;
    load_vector(reinterpret_cast<const T*>(own), plain, to);
  } else {
    load_vector(from, how, to);
  }
}

// Which of a cluster's 2^bits blocks this one is.
FW_FN u32 rank_in_cluster(u32 bits) { return block_index() & ((1u << bits) - 1); }

// Threads of a block: [row][thread of the team][lane], lanes neighbours in memory. A row kernel has one lane. A team
// may be spread over the blocks of a cluster: each has a stretch of its threads, for all lanes.
struct Team {
  u32 row, thread, lane;
  u32 bits, lane_bits, cluster_bits;
  // Of a cluster: two buffers where its blocks leave their sums for each other, and how often they have.
  char* buffers;
  u32 buffer_bytes, exchanges;
  FW_FN u32 threads() const { return 1u << bits; }
  FW_FN u32 lanes() const { return 1u << lane_bits; }
  FW_FN u32 bits_in_block() const { return bits - cluster_bits; }
  FW_FN u32 rows() const { return block_threads() >> (bits_in_block() + lane_bits); }
  FW_FN u32 blocks() const { return 1u << cluster_bits; }
  FW_FN u32 block() const { return rank_in_cluster(cluster_bits); }
};

FW_FN Team make_team(u32 team_bits, u32 lane_bits, u32 cluster_bits = 0) {
  const u32 t = thread_index();
  Team team;
  team.bits = team_bits;
  team.lane_bits = lane_bits;
  team.cluster_bits = cluster_bits;
  team.buffers = nullptr;
  team.buffer_bytes = team.exchanges = 0;
  const u32 bits = team.bits_in_block();
  team.lane = t & ((1u << lane_bits) - 1);
  team.thread = ((t >> lane_bits) & ((1u << bits) - 1)) + (team.block() << bits);
  team.row = t >> (lane_bits + bits);
  return team;
}

// Of columns in registers the threads of a warp with the same V columns share out what is done for a column: each has
// one of them for its own, and is in a team with those that have the same one. A block has one team of columns, with no
// more than a warp's of them side by side.
FW_FN constexpr u32 own_bits() {
  u32 bits = 0;
  while ((1 << bits) < V) ++bits;
  return bits;
}

FW_FN Team team_of_columns(const Team& team) {
  return make_team(team.bits - own_bits(), team.lane_bits + own_bits(), team.cluster_bits);
}

// The sums of a thread's own column, over all threads of the warp that have sums of it: at each exchange a thread keeps
// half of the columns, and gives away the other.
template <template <int> class Sums, int W>
FW_FN Sums<1> own_column(const Team& team, const Sums<W>& sums) {
  if constexpr (W == 1) {
    return sums;
  } else {
    const u32 offset = u32{W / 2} << team.lane_bits;
    const bool upper = (lane_index() & offset) != 0;
    Sums<W / 2> mine = sums.half(upper);
    mine.merge(sums.half(!upper).exchanged(offset));
    return own_column(team, mine);
  }
}

// What each thread knows of its own column, to all that hold it.
template <class T>
FW_FN void tell_columns(const Team& team, T own, T (&all)[V]) {
  const u32 first = lane_index() & ~(u32{V - 1} << team.lane_bits);
#pragma unroll
  for (u32 i = 0; i < V; ++i) all[i] = V > 1 ? shuffle(own, first + (i << team.lane_bits)) : own;
}

#if FW_ITEMS > 0
// Threads that a row of FW_ROW vectors needs; what is known here need not be computed for every vector.
FW_FN constexpr u32 row_team_bits() {
  u32 bits = 0;
  while ((static_cast<i64>(ITEMS) << bits) < FW_ROW) ++bits;
  return bits;
}
FW_FN u32 held_team_bits(u32 bits) { return FW_ROW > 0 ? row_team_bits() : bits; }
FW_FN u32 held_lane_bits(u32 bits) { return FW_ROW > 0 ? 0 : bits; }
FW_FN index held_elements(i64 elements) { return static_cast<index>(FW_ROW > 0 ? FW_ROW : elements); }
// Whether vector e of a thread belongs to its row.
FW_FN bool in_row(index e, index elements) {
  return (FW_ROW > 0 && FW_ROW == static_cast<i64>(ITEMS) << row_team_bits()) || e < elements;
}
#endif

// Vectors of a row of so many that are those of a thread of its team.
FW_FN index items_of_thread(const Team& team, index elements) {
  const index beyond = elements - static_cast<index>(team.thread);
  return beyond <= 0 ? 0 : ((beyond - 1) >> team.bits) + 1;
}

template <class S>
struct alignas(16) Slot {  // in memory; S itself is not padded, so that copies of it are of what it holds
  S sums;
};

// Combines the sums of a team's threads, in an order that depends on the shape of the block alone; every thread gets
// the result. Within a warp by exchange, between warps through shared memory, and where the team is spread over a
// cluster, each of its blocks tells all of them its sums. A team of more than one warp is alone in its block. S has
// merge(const S&) and exchanged(offset).
template <class S>
FW_FN void reduce(Team& team, S& sums) {
  const u32 span = 1u << (team.bits_in_block() + team.lane_bits), width = team.lanes();
  for (u32 offset = width; offset < span && offset < warp_size; offset *= 2) sums.merge(sums.exchanged(offset));
  Slot<S>* slots = reinterpret_cast<Slot<S>*>(shared_memory());
  if (span > warp_size && team.bits_in_block() != 0) {
    const bool narrow = width < warp_size;
    const u32 rows = narrow ? span / warp_size : 1u << team.bits_in_block();
    const u32 mine = narrow ? warp_index() : thread_index() >> team.lane_bits;
    barrier();  // whoever still reads the slots of the last reduction
    if (!narrow || lane_index() < width) slots[mine * width + team.lane].sums = sums;
    barrier();
    // Of many slots the lanes of a warp that stand in the same column take some each. Where their number is known, so
    // many that they are not all on their way at a time.
    constexpr u32 few = FW_ROW > 0 ? 128 : 16;
    const u32 sharers = narrow && rows * static_cast<u32>(sizeof(S)) > few ? warp_size >> team.lane_bits : 1;
    const u32 first = sharers > 1 ? (lane_index() >> team.lane_bits) & (rows - 1) : 0;
    sums = slots[first * width + team.lane].sums;
#pragma unroll 4
    for (u32 r = first + sharers; r < rows; r += sharers) sums.merge(slots[r * width + team.lane].sums);
    for (u32 offset = width; sharers > 1 && offset < rows * width && offset < warp_size; offset *= 2)
      sums.merge(sums.exchanged(offset));
  }
}

template <class T>
FW_FN void compute_above([[maybe_unused]] u32 bits, [[maybe_unused]] T value) {
  if ((static_cast<u32>(bits_of(value)) & (bits & ~63u)) != 0) asm volatile("trap;");
}

// Mean and sum of squared distances from it in one sweep, for each of a thread's W columns, or for its row (W = 1). A
// thread adds up distances from the first element it meets: whatever that is, its own square is among what is added up,
// so that the subtraction in finish() loses no more than the bits of the count. Threads' results are merged by Chan's
// formula. The mean among them stays a distance from an element: rounded far from 0, means would be too coarse to tell
// apart.
template <class T, int W>
struct Moments {
  static_assert(W == V || W == 1, "a vector's elements are of a column each, or of one row");
  T first[W], squares[W];  // the first element, and squared distances from it; after finish(): from the mean
  T shift[W];              // until finish(): the sum of distances from the first element; then the mean's
  T plain[W], count;       // sum and number of elements

  // A mean that is far closer to 0 than the element is too fine for a distance from it.
  FW_FN T sum(int i) const {
    const T mean = first[i] + shift[i];
    return fw::abs(mean) * 2 >= fw::abs(first[i]) ? mean * count : plain[i];
  }
  FW_FN void clear() {
    count = 0;
#pragma unroll
    for (int i = 0; i < W; ++i) first[i] = squares[i] = shift[i] = plain[i] = 0;
  }
  FW_FN void count_vector() { count += V / W; }
  FW_FN void add(int i, T x) {  // element i of the vector
    const int k = W == 1 ? 0 : i;
    const bool is_first = count == V / W && (W > 1 || i == 0);
    first[k] = is_first ? x : first[k];
    const T distance = x - first[k];
    plain[k] += x;
    shift[k] += distance;
    squares[k] += distance * distance;
  }
  FW_FN void finish() {
    const T part = count > 0 ? reciprocal(count) : 0;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const T distances = shift[i];
      shift[i] = distances * part;
      // Where squares overflow and distances do not, their sum stays infinite: not the NaN of a difference.
      const bool overflows = squares[i] == infinity<T>() && fw::abs(distances) < infinity<T>();
      const T rest = squares[i] - distances * shift[i];
      squares[i] = overflows ? squares[i] : rest;
    }
  }
  // The same bits whichever of the two is merged into the other: distances are from the smaller of both first elements,
  // and no product is fused into one of the sums. A distance is not squared alone: without elements on one side its
  // weight is 0, and the square may be infinite.
  FW_FN void merge(const Moments& other) {
    const T total = count + other.count;
    const T part = total > 0 ? reciprocal(total) : 0;
    const T mine = count * part, its = other.count * part, weight = (count * other.count) * part;
#pragma unroll
    for (int i = 0; i < W; ++i) {
      const bool keeps = other.count == 0 || (count > 0 && first[i] < other.first[i]);
      const T from = keeps ? first[i] : other.first[i];
      const T a = count > 0 ? (first[i] - from) + shift[i] : 0;
      const T b = other.count > 0 ? (other.first[i] - from) + other.shift[i] : 0;
      const T distance = b - a;
      squares[i] = (squares[i] + other.squares[i]) + product(product(distance, weight), distance);
      shift[i] = product(a, mine) + product(b, its);
      first[i] = from;
      plain[i] += other.plain[i];
    }
    count = total;
  }
  FW_FN Moments exchanged(u32 offset) const {
    Moments other;
    other.count = shuffle_xor(count, offset);
#pragma unroll
    for (int i = 0; i < W; ++i) {
      other.first[i] = shuffle_xor(first[i], offset);
      other.shift[i] = shuffle_xor(shift[i], offset);
      other.squares[i] = shuffle_xor(squares[i], offset);
      other.plain[i] = shuffle_xor(plain[i], offset);
    }
    return other;
  }

 private:
  // A product that no addition behind it swallows.
  FW_FN static float product(float a, float b) { return __fmul_rn(a, b); }
  FW_FN static double product(double a, double b) { return __dmul_rn(a, b); }
};

}  // namespace fw
'''

# How kernels are launched: the shape follows from the sizes of a call, by rules.

_RULES = r'''
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fusewright {

// The loops of a kernel for the tensors of one call.
struct Geometry {
  size_t axes, operands;
  std::vector<int64_t> sizes, strides;
  int64_t& stride(size_t operand, size_t axis) { return strides[operand * axes + axis]; }
  int64_t stride(size_t operand, size_t axis) const { return strides[operand * axes + axis]; }
  int64_t extent(const std::vector<int>& loops) const {
    int64_t product = 1;
    for (int a : loops) product *= sizes[static_cast<size_t>(a)];
    return product;
  }
};

// Works out strides of the loops from the tensors that a kernel is called with. The same for all backends.
class LoopGeometry {
 public:
  explicit LoopGeometry(const KernelLoops& code) : axes_(code.axes.size()) {
    for (const KernelLoops::Axis& axis : code.axes) pinned_.push_back(axis.pinned || axis.tap);
    varies_.assign(code.operands.size() * axes_, false);
    for (size_t o = 0; o < code.operands.size(); ++o) {
      const auto& dims = code.operands[o].dims;
      std::vector<OperandAxis> list;
      for (size_t d = 0; d < dims.size(); ++d) {
        for (size_t i = 0; i < dims[d].size(); ++i) {
          list.push_back(
              {dims[d][i], static_cast<int>(d), {dims[d].begin() + static_cast<long>(i) + 1, dims[d].end()}});
          varies_[o * axes_ + static_cast<size_t>(dims[d][i])] = true;
        }
      }
      strides_.push_back(std::move(list));
      side_.push_back(code.operands[o].side);
    }
  }

  // operands in the order of KernelLoops::operands; a size for each axis
  Geometry bind(const std::vector<const Tensor*>& operands, const std::vector<int64_t>& sizes) const {
    Geometry g;
    g.axes = std::max<size_t>(axes_, 1);
    g.operands = operands.size();
    g.sizes = sizes;
    g.sizes.resize(g.axes, 1);
    g.strides.assign(g.axes * std::max<size_t>(g.operands, 1), 0);
    for (size_t o = 0; o < operands.size(); ++o) {
      for (const OperandAxis& entry : strides_[o]) {
        int64_t stride = operands[o]->strides[static_cast<size_t>(entry.dim)];
        for (int a : entry.inner) stride *= g.sizes[static_cast<size_t>(a)];
        g.stride(o, static_cast<size_t>(entry.axis)) += stride;
      }
    }
    return g;
  }

  // Neighbouring loops that are one stretch of memory for every operand become one: the inner takes the product, the
  // outer size 1. The text of a kernel fixes its loops; this is how [n, c, h, w] still runs as a few long lines.
  // `line`: the loop that is vectorised.
  enum class Text {
    all_axes,  // the text adds up every axis of every operand; sums on the side are contiguous along the line (C++)
    own_axes,  // the text knows which axes an operand has (CUDA)
  };
  void merge(Geometry& g, const std::vector<int>& loops, int line, Text text) const {
    // Whether operand o sees `outer` and `inner` as one stretch. A loop of size 1 takes over any stride, but in the
    // line for operands that the text holds as one number there (stride 0).
    auto joins = [&](size_t o, size_t outer, size_t inner) {
      bool one = g.sizes[inner] == 1, in_line = static_cast<int>(inner) == line;
      if (text == Text::own_axes && varies(o, outer) && !varies(o, inner)) return false;
      if (side_[o]) {
        // Its result has an axis or has none; and where the text adds to it along the line, by steps of 1.
        if (varies(o, outer) != varies(o, inner)) return false;
        if (one && text == Text::all_axes && in_line && varies(o, inner)) return g.stride(o, outer) == 1;
      }
      if (one && (!in_line || varies(o, inner))) return true;
      return g.stride(o, outer) == (one ? 0 : g.stride(o, inner) * g.sizes[inner]);
    };
    for (size_t i = loops.size(); i-- > 1;) {
      size_t inner = static_cast<size_t>(loops[i]);
      for (size_t k = i; k-- > 0;) {
        size_t outer = static_cast<size_t>(loops[k]);
        if (g.sizes[outer] == 1) continue;
        if (pinned_[inner] || pinned_[outer]) break;
        bool joined = true;
        for (size_t o = 0; o < g.operands && joined; ++o) joined = joins(o, outer, inner);
        if (!joined) break;
        if (g.sizes[inner] == 1)
          for (size_t o = 0; o < g.operands; ++o) g.stride(o, inner) = g.stride(o, outer);
        g.sizes[inner] *= g.sizes[outer];
        g.sizes[outer] = 1;
      }
    }
  }

 private:
  struct OperandAxis {  // stride of `axis` = stride of `dim` times the sizes of `inner` axes
    int axis, dim;
    std::vector<int> inner;
  };
  bool varies(size_t operand, size_t axis) const { return varies_[operand * axes_ + axis]; }

  size_t axes_;
  std::vector<bool> pinned_, side_;
  std::vector<std::vector<OperandAxis>> strides_;
  std::vector<bool> varies_;  // [operand][axis]
};

// Division of n < 2^31 by an invariant, as a multiplication: the layout of fw::Divider in kernels/cuda_device.h.
struct Divider {
  uint32_t divisor, multiplier, shift;
};

// For 1 <= divisor <= 2^31. With 2^(shift - 1) < divisor <= 2^shift, the multiplier is 2^(31 + shift) / divisor rounded
// up: it fits 32 bits, and its error times n is below 2^(31 + shift), so the quotient is never one too large.
constexpr Divider make_divider(uint32_t divisor) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < divisor) ++shift;
  const uint64_t power = uint64_t{1} << (31 + shift);
  return {divisor, static_cast<uint32_t>((power + divisor - 1) / divisor), shift};
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// Operands of a pointwise kernel that do not lie along its lines and so go through tiles in shared memory
// (kernels/cuda_tile.h): channels last beside row-major.
struct Tiling {
  uint64_t operands = 0;  // a bit for each; 0: all lie well
  int across = -1;        // the axis along which these lie
  int vector = 1;         // elements that are read or written at once there
  bool has(size_t operand) const { return operand < 64 && (operands >> operand & 1) != 0; }
  bool operator==(const Tiling& o) const { return key() == o.key(); }
  bool operator<(const Tiling& o) const { return key() < o.key(); }

 private:
  std::tuple<uint64_t, int, int> key() const { return {operands, across, vector}; }
};

constexpr int widest_in_tile = 4;  // elements; a thread turns squares of them in its registers

// What a launch may choose; all else follows from it and from the sizes of the call.
struct LaunchChoice {
  int32_t vector = 1;     // elements that a thread reads at once
  int32_t items = 0;      // vectors that it holds in registers; 0: it walks over them
  int32_t threads = 256;  // in a block; a row in registers that needs more than a warp has as many as it needs
  int32_t lanes = 1;      // neighbouring columns side by side, at most
  int32_t split = 0;      // several blocks may share a row
  int32_t scale = 0;      // 2^scale times as many splits, or parts of the walk, as the rule has
  int32_t cluster = 1;    // blocks that hold rows or columns together, or add up their sums on the side
};

constexpr int largest_cluster_anywhere = 8;  // blocks
constexpr int64_t worth_a_block = 8;         // vectors of a split row for each of its threads

class CudaRules {
 public:
  struct Variant {
    int vector, items;
    bool wide;
    Tiling tiling = {};
    int64_t row = 0;       // vectors in a row that the text is for; 0: any
    bool cluster = false;  // it is for rows or columns that several blocks hold together
    bool operator==(const Variant& o) const { return key() == o.key(); }
    bool operator<(const Variant& o) const { return key() < o.key(); }

   private:
    std::tuple<int, int, bool, const Tiling&, int64_t, bool> key() const {
      return {vector, items, wide, tiling, row, cluster};
    }
  };

  // All that follows from a choice.
  struct Shape {
    Variant variant{1, 1, false, {}, 0};
    int64_t threads = 256, team = 1, lanes = 1;
    int64_t partial_lanes = 1;  // of the launch that leaves partial sums
    int64_t blocks = 1;
    bool split = false;
    int64_t anchors = 1, walked = 1, parts = 1, share = 1, elements = 1, rows = 1, splits = 1;
    int64_t line = 1, tiles = 1;
    int64_t side_parts = 1, total_parts = 1, side_blocks = 1;
    int64_t anchors_together = 1;  // teams of a warp at neighbouring anchors
    int64_t cluster = 1;           // blocks that a team is spread over, or that add up their sums on the side
    auto key() const {
      return std::tie(variant, threads, team, lanes, partial_lanes, blocks, split, anchors, walked, parts, share,
                      elements, rows, splits, line, tiles, side_parts, total_parts, side_blocks, anchors_together,
                      cluster);
    }
    bool operator==(const Shape& o) const { return key() == o.key(); }
  };

  // One call: its tensors, the shape of its launches, and the arguments that follow from them.
  struct Call : Shape {
    Geometry g;
    int device = 0;
    void* stream = nullptr;
    int64_t processors = 1;       // of the device,
    int64_t shared_limit = 0;     // the bytes of shared memory that a block may have there,
    int64_t l2_bytes = 0;         // those of its L2 cache,
    int64_t largest_cluster = 1;  // and the blocks that may form a cluster
    int widest = 1;               // elements in the largest vector that these tensors allow
    bool wide = false;
    bool estimate = false;  // before kernels are there to ask how many blocks fit on the device
    std::vector<int64_t> side_strides, total_strides;
    std::vector<bool> partial;  // per sweep: it leaves partial sums
    int64_t tile_bytes = 0;     // of shared memory

    // Each block of the next sweep would add up all partial sums of sweep p: many of them are added up once, before it.
    bool merged(size_t p) const { return splits > 16 && p + 1 < partial.size() && partial[p]; }

    // Of a split row, for a block of a sweep that leaves no sums.
    int64_t stretch() const { return worth_a_block * team; }
    int64_t spread() const { return variant.cluster ? cluster : 1; }  // blocks that a team is spread over
    int64_t teams_in_block() const { return threads * spread() / (team * lanes); }
    const std::vector<std::vector<int64_t>>& sums(const KernelLoops& code) const {
      return variant.items == 0 ? code.cuda.walking.sums : code.cuda.sums;
    }
  };

  // What a call puts on the stream. All but addresses and numbers is in the arguments.
  struct Launches {
    struct Launch {
      Variant variant;
      std::string entry;
      int64_t blocks;
      uint32_t threads, shared_bytes;
      bool overlap;  // may begin before the one before it ends
      uint32_t cluster;
      std::vector<char> arguments;
    };
    std::vector<Launch> launches;
    struct Buffer {  // memory for the time of the call
      int64_t bytes;
      size_t place;  // of its address in the arguments
    };
    std::vector<Buffer> buffers;
    int64_t buffer_bytes() const {
      int64_t sum = 0;
      for (const Buffer& buffer : buffers) sum += buffer.bytes;
      return sum;
    }
  };

 protected:
  explicit CudaRules(KernelLoops code) : code_(std::move(code)), loops_(code_) {
    // 16 bytes of the widest operand; no vectors at all where nothing lies along the line.
    int64_t bytes = 0;
    for (const CudaLoops::Vector& v : code_.cuda.vectors)
      bytes = std::max<int64_t>(bytes, size_of(code_.operands[static_cast<size_t>(v.operand)].dtype));
    if (bytes > 0) widest_ = static_cast<int>(std::min<int64_t>(8, 16 / bytes));
  }
  ~CudaRules() = default;

  // Blocks of this entry that a processor of the device has room for.
  virtual int resident_blocks(const Call& call, const char* entry) const = 0;
  virtual bool tiles_are_ready(const Call& call, const Variant& variant) const = 0;

  // Clusters are teams; where rows have sums on the side of each position, they add those up instead.
  bool spreads_teams() const {
    return code_.nest.kind == Loops::Kind::column ||
           (code_.nest.kind == Loops::Kind::row && code_.cuda.sides_at_positions() == 0);
  }
  // Columns in registers: threads of a warp share out those of their vectors (fw::team_of_columns).
  bool holds_columns(int items) const { return code_.nest.kind == Loops::Kind::column && items != 0; }
  bool has(const Variant& variant) const {
    return std::find(variants_.begin(), variants_.end(), variant) != variants_.end();
  }
  void merge_loops(Geometry& g) const;
  void bind(Call& call, Geometry g, const std::vector<const Tensor*>& operands) const;
  // Of operands that go through tiles, what they are in memory does not matter to vectors along the line.
  bool vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling = {}) const;
  bool vector_fits(const Geometry& g, const Tensor& tensor, const CudaLoops::Vector& of, int along,
                   int64_t elements) const;
  bool needs_wide(const Geometry& g) const;

  void set_vector(Call& call, int vector) const;
  // By rule, for vectors of a width.
  LaunchChoice rule(Call& call, int vector) const;
  LaunchChoice rule_columns(Call& call) const;
  // Elements in the vectors of columns in registers: the values of a thread's columns take registers, too.
  int held_columns(int vector) const { return std::min(vector, 4); }
  // Columns by vectors of that width; of single elements a thread holds as many as of vectors.
  LaunchChoice in_registers(int vector) const;
  // The shape that follows from a choice. False: kernels of this choice cannot run these sizes.
  bool plan(Call& call, const LaunchChoice& choice) const;
  void plan_pointwise(Call& call, const LaunchChoice& choice) const;
  void plan_columns(Call& call, const LaunchChoice& choice) const;
  int64_t blocks_at_a_time(const Call& call) const;
  void share_rows(Call& call, int64_t anchors, int64_t most_parts, int scale) const;
  void split_elements(Call& call, int64_t rows, int scale) const;
  bool possible(const Call& call) const;
  // Of a variant with rows in registers: see kernels/cuda_loops.h.
  struct Held {
    int64_t depth, ahead, fixed, slot, most_threads;
  };
  Held held(const Variant& variant) const;
  int64_t most_in_team(const Variant& variant) const {  // threads, of a row
    return held(variant).most_threads * (variant.cluster ? largest_cluster_anywhere : 1);
  }
  uint32_t slot_bytes(const Call& call) const;
  uint32_t shared_bytes(const Call& call) const;

  size_t first_partial(const Call& call) const;
  bool add_memory(Call& call, const std::vector<const Tensor*>& operands, Launches& launches) const;
  std::vector<char> pack(const Call& call) const;
  Launches launches(Call& call, const std::vector<const Tensor*>& operands) const;
  int64_t cache_policy(const Call& c) const;
  int64_t word_of(size_t number, double value) const;
  // The arguments of a launch with what is different in every call. `memory`: the addresses of Launches::buffers.
  std::vector<char> filled(const std::vector<char>& arguments, const std::vector<const Tensor*>& operands,
                           const std::vector<double>& numbers, const std::vector<Launches::Buffer>& buffers,
                           const std::vector<void*>& memory) const;

  KernelLoops code_;
  LoopGeometry loops_;
  std::vector<Variant> variants_;
  int widest_ = 1;  // elements in the largest vector
};

inline int64_t scaled(int64_t n, int scale) { return scale < 0 ? std::max<int64_t>(n >> -scale, 1) : n << scale; }

// Forgets the shape, and counts again in vectors of this width.
inline void CudaRules::set_vector(Call& c, int vector) const {
  static_cast<Shape&>(c) = {};
  c.variant.vector = vector;
  c.variant.wide = c.wide;
  c.line = code_.nest.inner < 0 ? 1 : c.g.sizes[static_cast<size_t>(code_.nest.inner)] / vector;
  if (code_.nest.kind == Loops::Kind::pointwise) {
    c.anchors = c.g.extent(code_.nest.reduced);
    return;
  }
  c.anchors = c.g.extent(code_.cuda.anchor_axes);
  c.walked = c.g.extent(code_.cuda.walked_axes);
  c.elements = c.g.extent(code_.nest.reduced) * (code_.nest.kind == Loops::Kind::column ? 1 : c.line);
}

inline LaunchChoice CudaRules::rule(Call& c, int vector) const {
  set_vector(c, vector);
  LaunchChoice choice;
  choice.vector = vector;
  choice.items = code_.cuda.items[0];
  choice.threads = 128;
  if (code_.nest.kind == Loops::Kind::column) choice = rule_columns(c);
  return choice;
}

inline LaunchChoice CudaRules::in_registers(int vector) const {
  LaunchChoice choice;
  choice.vector = held_columns(vector);
  choice.items = code_.cuda.items[0];
  if (choice.vector == 1) choice.items = std::min(choice.items * held_columns(widest_), 32);
  choice.threads = 512;
  choice.lanes = 32 / choice.vector;
  return choice;
}

// In registers, if a block can hold all rows of neighbouring columns that fill a sector of memory.
inline LaunchChoice CudaRules::rule_columns(Call& c) const {
  const int vector = c.variant.vector;
  LaunchChoice choice;
  choice = in_registers(vector);
  // Few rows are those of a warp alone, which waits for no other; it holds no more than it needs, and many fit.
  for (int items : code_.cuda.items)
    if (has({choice.vector, items, false, {}}) && 32 / choice.lanes * items >= c.elements)
      choice.items = std::min(choice.items, items);
  const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
  const int64_t threads = std::min(team * choice.lanes, std::max<int64_t>(team * 8, 256));
  choice.threads = static_cast<int>(std::clamp<int64_t>(threads, 32, 512));
  if (choice.threads == 32) choice.scale = 2;
  if (plan(c, choice)) {
    const bool sector = c.lanes * c.variant.vector >= 8 || c.tiles == 1;
    if (sector && (c.walked * 2 >= c.processors || c.elements <= 64)) return choice;
  }
  choice.vector = vector;
  choice.items = 0;
  choice.threads = 128;
  choice.lanes = 16;
  choice.split = 1;
  choice.scale = 0;
  return choice;
}

inline bool CudaRules::plan(Call& c, const LaunchChoice& choice) const {
  // It may come from a file.
  const auto power = [](int32_t n, int32_t least, int32_t most) {
    return n >= least && n <= most && (n & (n - 1)) == 0;
  };
  const int widest = holds_columns(choice.items) ? held_columns(c.widest) : c.widest;
  if ((choice.vector != 1 && choice.vector != widest) || !power(choice.threads, 32, 512) ||
      !power(choice.lanes, 1, 128) || !power(choice.cluster, 1, largest_cluster_anywhere) || choice.items < 0 ||
      std::abs(choice.scale) > 4 || (choice.split != 0 && choice.items != 0))
    return false;
  set_vector(c, choice.vector);
  c.variant.items = choice.items;
  c.variant.cluster = choice.cluster > 1 && spreads_teams();
  c.threads = choice.threads;
  c.cluster = choice.cluster;
  if (code_.nest.kind == Loops::Kind::pointwise) plan_pointwise(c, choice);
  if (code_.nest.kind == Loops::Kind::column) plan_columns(c, choice);
  return possible(c);
}

inline void CudaRules::plan_pointwise(Call& c, const LaunchChoice& choice) const {
  c.blocks = ceil_div(c.anchors * c.line, choice.items * c.threads);
}

inline CudaRules::Held CudaRules::held(const Variant& variant) const {
  Held h;
  int64_t widest = 4;
  auto bytes = [&](const std::vector<int>& operands) {
    int64_t sum = 0;
    for (int operand : operands) {
      const int64_t vector = variant.vector * size_of(code_.operands[static_cast<size_t>(operand)].dtype);
      if (vector != 4 && vector != 8 && vector != 16) continue;  // no asynchronous copy can move it
      sum += vector;
      widest = std::max(widest, vector);
    }
    return sum;
  };
  h.ahead = bytes(code_.cuda.ahead);
  h.fixed = bytes(code_.cuda.fixed);
  h.ahead = ceil_div(h.ahead, widest) * widest;
  h.fixed = ceil_div(h.fixed, widest) * widest;
  h.depth = variant.items < 4 ? 4 / variant.items : 1;
  const bool sides = code_.cuda.has_sides();
  // A thread's one vector of the next row finds room in its registers, beside sums on the side that keep blocks few and
  // teams busy. Rows of a single vector are worked on faster than they would arrive.
  if (sides && variant.items == 1 && variant.row > 1) h.depth = h.ahead = h.fixed = 0;
  h.slot = h.depth * variant.items * h.ahead + variant.items * h.fixed;
  h.slot = std::max(h.slot, code_.cuda.sides_at_positions() * variant.vector * 8);  // fw::stretch_slot
  // Blocks of those that hold little are small: more of them fit on a processor. Of rows whose length is known, only
  // those that need large blocks have them: the compiler shares out registers to as many threads as there may be.
  const std::vector<int>& items = code_.cuda.items;
  const bool last = variant.items == items.back();  // of rows the most, of columns the least
  bool large = code_.nest.kind == Loops::Kind::row ? last : !last;
  if (variant.row != 0) large = variant.items >= items[items.size() - 2] && variant.row > 256 * variant.items;
  // Those of a cluster wait for one another: two or three on a processor keep it busy (of 512 threads there is room for
  // one: log_softmax over 32000 took 306 us instead of 279), unless a row needs more.
  if (variant.cluster && code_.nest.kind == Loops::Kind::row)
    large = variant.row > largest_cluster_anywhere * 256 * variant.items;
  h.most_threads = large ? 512 : 256;
  return h;
}

// Slots of fw::reduce: one for each warp and lane of a team in its block, and two for each block of its cluster and
// lane, as large as the largest Sums, or as Total. And fw::Mailbox, where blocks add up their sums on the side. Of
// columns in registers each is reduced by a team of its own (fw::team_of_columns), which has a lane for each.
inline uint32_t CudaRules::slot_bytes(const Call& c) const {
  const auto in_pieces = [](int64_t bytes) { return ceil_div(bytes, 16) * 16; };
  int64_t mail = 0;
  if (c.cluster > c.spread()) {
    int64_t widest = 0;
    for (const auto& operand : code_.operands)
      if (operand.side) widest = std::max(widest, size_of(operand.dtype));
    const int64_t places = c.team * c.anchors_together, vectors = c.variant.items * code_.cuda.sides_at_positions();
    mail = vectors * places * in_pieces(c.variant.vector * widest) + 16;
  }
  if (c.team * c.lanes <= 32) return static_cast<uint32_t>(mail);
  const bool own = holds_columns(c.variant.items);
  const int64_t width = code_.nest.kind == Loops::Kind::column && !own ? c.variant.vector : 1;
  const int64_t lanes = own ? c.lanes * c.variant.vector : c.lanes;
  int64_t largest = std::max<int64_t>(16, 8 * code_.cuda.sides_at_anchors());
  for (const std::vector<int64_t>& sums : c.sums(code_))
    largest = std::max(largest, static_cast<int64_t>(sums.size()) * 8 * width);
  largest = in_pieces(largest);
  const int64_t in_block = c.team * c.lanes / c.spread();
  const int64_t slots = lanes < 32 ? in_block / 32 * lanes : in_block;
  const int64_t exchange = c.spread() > 1 ? 2 * c.cluster * lanes * largest + 16 : 0;  // fw::begin_cluster
  return static_cast<uint32_t>(largest * slots + exchange + mail);
}

inline uint32_t CudaRules::shared_bytes(const Call& c) const {
  if (c.variant.tiling.operands != 0) return static_cast<uint32_t>(c.tile_bytes);
  uint32_t bytes = slot_bytes(c);
  if (c.variant.items != 0) bytes += static_cast<uint32_t>(held(c.variant).slot * c.threads);
  return bytes;
}

// Blocks that the device works on at a time. A cluster lies in one group of its processors, whose number is even, but
// need not be a multiple of 4: an H200 has room for 30 clusters of 4 blocks that fill a processor each, not for 33.
// Where clusters fill pairs of processors, nothing is left over.
inline int64_t CudaRules::blocks_at_a_time(const Call& c) const {
  const int64_t resident = std::max(resident_blocks(c, ""), 1), places = c.processors * resident;
  return 2 * resident % c.cluster != 0 ? places * 15 / 16 : places;
}

// The rows of each anchor, shared out to as many teams as can work at a time: in whole blocks, none of which is left
// over for a last wave.
inline void CudaRules::share_rows(Call& c, int64_t anchors, int64_t most_parts, int scale) const {
  const int64_t blocks = scaled(blocks_at_a_time(c), scale) / c.cluster;
  // Of a block, or of a cluster.
  const int64_t parts_together = c.teams_in_block() / c.anchors_together * (c.cluster / c.spread());
  const int64_t places = std::max<int64_t>(anchors / c.anchors_together, 1);
  const int64_t wanted = std::max<int64_t>(blocks / places, 1) * parts_together;
  c.parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most_parts, 1));
  c.share = ceil_div(std::max<int64_t>(c.walked, 1), c.parts);
  c.parts = ceil_div(c.walked, c.share);
  c.side_parts = ceil_div(c.parts, parts_together);
  c.blocks = anchors / c.anchors_together * c.side_parts * c.cluster;
}

// The blocks that share a long row: as many as the device works on at a time, so that there is no last wave of a few;
// each has enough to do to be worth it. A sweep that leaves no sums has as many blocks as are worth it.
inline void CudaRules::split_elements(Call& c, int64_t rows, int scale) const {
  const int64_t most = c.elements / c.stretch();
  const int64_t blocks = c.processors * std::max(resident_blocks(c, "_phase0"), 1);
  c.splits = std::clamp<int64_t>(scaled(blocks, scale) / std::max<int64_t>(rows, 1), 1, std::max<int64_t>(most, 1));
  c.rows = rows;
  c.blocks = rows * c.splits;
}

inline void CudaRules::plan_columns(Call& c, const LaunchChoice& choice) const {
  c.lanes = std::min<int64_t>(power_of_two_from(c.line), choice.lanes);
  if (choice.items != 0) {
    const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
    c.lanes = std::clamp<int64_t>(c.threads * c.cluster / team, 1, c.lanes);
  }
  c.team = c.threads * c.cluster / c.lanes;
  c.tiles = ceil_div(c.line, c.lanes);
  c.walked = c.parts = c.blocks = c.anchors * c.tiles;
  if (choice.split) {
    split_elements(c, c.walked, choice.scale);
    c.split = c.splits > 1;
  } else if (possible(c)) {
    share_rows(c, 1, c.walked, choice.scale);
  }
}

// What the kernels' texts take for granted: all refusals of a choice stand here.
inline bool CudaRules::possible(const Call& c) const {
  const bool pointwise = code_.nest.kind == Loops::Kind::pointwise;
  const int64_t span = c.team * c.lanes;
  if (!has({c.variant.vector, c.variant.items, false, {}, c.variant.row, c.variant.cluster})) return false;
  // __launch_bounds__ of the entries
  int64_t most = pointwise || c.split ? 256 : 512;
  if (!pointwise && !c.split && c.variant.items != 0) most = held(c.variant).most_threads;
  if (c.threads < 32 || c.threads > most || span > c.threads * c.spread() || c.blocks >= int64_t{1} << 31) return false;
  // A cluster is one team, of rows or columns in registers, and each of its blocks has threads of every lane; or it has
  // sums on the side, and each of its blocks owns some of their places.
  const bool has_places = code_.cuda.sides_at_positions() > 0;
  if (c.cluster > 1 && (c.variant.items == 0 || c.cluster > c.largest_cluster || (!c.variant.cluster && !has_places) ||
                        c.team * c.anchors_together < c.cluster))
    return false;
  if (pointwise) return true;
  // Between warps a team reduces through shared memory, alone in its block; split rows have one, too.
  if ((span > 32 || c.split || c.spread() > 1) && span != c.threads * c.spread()) return false;
  if (c.split && c.variant.items != 0) return false;
  // A warp has a thread for each of its columns.
  if (holds_columns(c.variant.items) && c.lanes * c.variant.vector > 32) return false;
  if (c.variant.items != 0 && (c.elements == 0 || c.team * c.variant.items < c.elements)) return false;
  return shared_bytes(c) <= c.shared_limit;
}

constexpr int64_t narrow_limit = (int64_t{1} << 31) - (int64_t{1} << 24);  // with room for the last block's excess
constexpr uintptr_t widest_vector = 16;                                    // bytes

inline uint32_t bits(int64_t power) {
  uint32_t n = 0;
  while (int64_t{1} << n < power) ++n;
  return n;
}

// Graphs take launches that overlap since 12.3.
inline bool launches_overlap(int architecture, int driver) { return architecture >= 9 && driver >= 12030; }

// What of the operands decides how a call is launched, beside their sizes: dtype, alignment and strides.
inline void add_places(std::vector<int64_t>& key, const std::vector<const Tensor*>& operands) {
  for (const Tensor* operand : operands) {
    key.push_back(static_cast<int64_t>(operand->dtype));
    key.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand->data) % widest_vector));
    key.insert(key.end(), operand->strides.begin(), operand->strides.begin() + operand->rank);
  }
}

inline void CudaRules::bind(Call& c, Geometry g, const std::vector<const Tensor*>& operands) const {
  c.g = std::move(g);
  merge_loops(c.g);
  c.widest = vectors_fit(c.g, operands) ? widest_ : 1;
  c.wide = needs_wide(c.g);
}

inline void CudaRules::merge_loops(Geometry& g) const {
  const Loops& nest = code_.nest;
  std::vector<int> lines = nest.reduced, anchors = code_.cuda.anchor_axes;
  if (nest.inner >= 0) (nest.kind == Loops::Kind::column ? anchors : lines).push_back(nest.inner);
  loops_.merge(g, lines, nest.inner, LoopGeometry::Text::own_axes);
  if (nest.kind == Loops::Kind::pointwise) return;
  loops_.merge(g, anchors, nest.inner, LoopGeometry::Text::own_axes);
  loops_.merge(g, code_.cuda.walked_axes, nest.inner, LoopGeometry::Text::own_axes);
}

// Whether an operand lies along this axis in whole vectors, whose addresses are multiples of their size.
inline bool CudaRules::vector_fits(const Geometry& g, const Tensor& tensor, const CudaLoops::Vector& of, int along,
                                   int64_t elements) const {
  const auto operand = static_cast<size_t>(of.operand);
  const auto bytes =
      std::min<uintptr_t>(widest_vector, static_cast<uintptr_t>(elements * size_of(code_.operands[operand].dtype)));
  if (reinterpret_cast<uintptr_t>(tensor.data) % bytes != 0) return false;
  for (size_t a = 0; a < g.axes; ++a) {
    const int64_t stride = g.stride(operand, a);
    if (g.sizes[a] == 1) continue;
    if (static_cast<int>(a) == along ? stride != 1 : stride % elements != 0) return false;
  }
  return true;
}

inline bool CudaRules::vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands,
                                   const Tiling& tiling) const {
  const int inner = code_.nest.inner, widest = tiling.operands != 0 ? std::min(widest_, widest_in_tile) : widest_;
  if (inner < 0 || g.sizes[static_cast<size_t>(inner)] % widest != 0) return false;
  for (const CudaLoops::Vector& v : code_.cuda.vectors) {
    const auto operand = static_cast<size_t>(v.operand);
    if (!tiling.has(operand) && !vector_fits(g, *operands[operand], v, v.axis, widest)) return false;
  }
  return true;
}

inline bool CudaRules::needs_wide(const Geometry& g) const {
  for (size_t o = 0; o < g.operands; ++o) {
    int64_t reach = 0;
    for (size_t a = 0; a < g.axes; ++a) reach += (g.sizes[a] - 1) * std::abs(g.stride(o, a));
    if (reach >= narrow_limit) return true;
  }
  int64_t points = 1;  // loops without taps
  for (size_t a = 0; a < code_.axes.size(); ++a)
    if (!code_.axes[a].tap) points *= g.sizes[a];
  return points >= narrow_limit;
}

// Of KernelArgs::partial among the words of the arguments.
inline size_t CudaRules::first_partial(const Call& c) const {
  return 2 * std::max<size_t>(c.g.operands, 1) + std::max<size_t>(code_.numbers.size(), 1) + c.g.strides.size() +
         3 * c.g.axes;
}

// Buffers for partial sums and for sums on the side. Whether these have parts, which another launch adds up.
inline bool CudaRules::add_memory(Call& c, const std::vector<const Tensor*>& operands, Launches& result) const {
  const int64_t width = code_.nest.kind == Loops::Kind::column ? c.variant.vector : 1;
  for (const std::vector<int64_t>& sums : c.sums(code_)) {
    int64_t bytes = 0;
    for (int64_t size : sums) bytes = ceil_div(bytes, size) * size + size * width;
    bytes = std::max<int64_t>(ceil_div(bytes, 16) * 16, 16);
    c.partial.push_back(c.split && !sums.empty());
    if (c.partial.back())
      result.buffers.push_back({c.rows * c.splits * c.lanes * bytes, first_partial(c) + c.partial.size() - 1});
  }
  return false;
}

// What a kernel reads stays in the L2 cache for longer than what it writes, which then leaves for memory early and at
// an even rate: where it reads more than that cache holds. Less would stay for other kernels to trip over, longer than
// anything of theirs (docs/kernels.md has the numbers).
inline int64_t CudaRules::cache_policy(const Call& c) const {
  constexpr int64_t evict_normal = 0x16f0000000000000, evict_last = 0x14f0000000000000;  // as createpolicy makes them
  int64_t bytes = 0;
  for (size_t o = 0; o < c.g.operands; ++o) {
    if (code_.operands[o].store) continue;
    int64_t elements = 1;
    for (size_t a = 0; a < c.g.axes; ++a)
      if (c.g.stride(o, a) != 0) elements *= c.g.sizes[a];
    bytes += elements * size_of(code_.operands[o].dtype);
  }
  return bytes > c.l2_bytes ? evict_last : evict_normal;
}

// A number as kernels read it.
inline int64_t CudaRules::word_of(size_t n, double number) const {
  int64_t word = 0;
  const auto single = static_cast<float>(number);
  if (code_.numbers[n] == DType::f32)
    std::memcpy(&word, &single, sizeof single);
  else if (code_.numbers[n] == DType::f64)
    std::memcpy(&word, &number, sizeof number);
  else
    word = code_.numbers[n] == DType::b8 ? number != 0 : static_cast<int64_t>(number);
  return word;
}

// The bytes of fw::KernelArgs (kernels/cuda_loops.h); addresses and numbers are 0.
inline std::vector<char> CudaRules::pack(const Call& c) const {
  std::vector<char> bytes;
  bytes.reserve(1024);
  auto put = [&](const auto& value) {
    const char* from = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  };
  bytes.resize(8 * (first_partial(c) - c.g.strides.size() - 3 * c.g.axes));
  for (int64_t stride : c.g.strides) put(stride);
  for (const auto* strides : {&c.side_strides, &c.total_strides})
    for (size_t a = 0; a < c.g.axes; ++a) put(strides->empty() ? int64_t{0} : (*strides)[a]);
  for (int64_t size : c.g.sizes) put(size);
  for (size_t p = 0; p < std::max<size_t>(c.partial.size(), 1); ++p) put(static_cast<void*>(nullptr));
  for (size_t p = 0; p < std::max<size_t>(c.partial.size(), 1); ++p) put(c.merged(p) ? int64_t{1} : c.splits);
  for (int64_t value : {c.anchors, c.walked, c.parts, c.share, c.elements, c.rows, c.splits, c.stretch(), c.line,
                        c.tiles, c.side_parts, c.total_parts, c.side_blocks, cache_policy(c)})
    put(value);
  auto divider = [&](int64_t n) { put(make_divider(static_cast<uint32_t>(std::clamp<int64_t>(n, 1, narrow_limit)))); };
  for (int64_t size : c.g.sizes) divider(size);
  for (int64_t n : {c.line, c.tiles, c.anchors, c.rows}) divider(n);
  put(bits(c.team));
  put(bits(c.lanes));
  put(bits(c.anchors_together));
  put(bits(c.partial_lanes));
  put(slot_bytes(c));
  put(bits(c.cluster));
  while (bytes.size() % 8 != 0) bytes.push_back(0);
  return bytes;
}

inline CudaRules::Launches CudaRules::launches(Call& c, const std::vector<const Tensor*>& operands) const {
  Launches result;
  c.partial_lanes = c.lanes;
  const bool sides_in_parts = add_memory(c, operands, result);
  auto start = [&](const Call& call, const std::string& entry, int64_t blocks) {
    if (blocks == 0) return;
    // Those behind the first wait in their own text for what they need of the one before.
    const bool overlap = !result.launches.empty();
    result.launches.push_back({call.variant, entry, blocks, static_cast<uint32_t>(call.threads), shared_bytes(call),
                               overlap, static_cast<uint32_t>(call.cluster), pack(call)});
  };
  if (!c.split) {
    start(c, code_.name, c.blocks);
  } else {
    const CudaLoops::Walking& walking = code_.cuda.walking;
    auto entry = [&](const char* kind, int p) { return code_.name + kind + std::to_string(p); };
    // What adds up the sums of all splits: a team for each lane, so that none of its threads has many.
    Call merge = c;
    merge.lanes = 1;
    merge.threads = merge.team = std::clamp<int64_t>(power_of_two_from(c.splits / 4), 32, 256);
    for (int p = 0; p < walking.stages; ++p) {
      const bool in_step = walking.leaves_sums[static_cast<size_t>(p)];
      start(c, entry("_phase", p),
            in_step ? c.blocks : c.rows * std::max<int64_t>(ceil_div(c.elements, c.stretch()), 1));
      if (c.merged(static_cast<size_t>(p))) start(merge, entry("_merge", p), c.rows * c.lanes);
    }
    if (walking.final_phase) start(merge, entry("_phase", walking.stages), c.rows * c.lanes);
  }
  return result;
}

inline std::vector<char> CudaRules::filled(const std::vector<char>& arguments,
                                           const std::vector<const Tensor*>& operands,
                                           const std::vector<double>& numbers,
                                           const std::vector<Launches::Buffer>& buffers,
                                           const std::vector<void*>& memory) const {
  std::vector<char> result = arguments;
  auto put = [&](size_t place, const auto& word) {
    static_assert(sizeof word == 8, "arguments are words");
    std::memcpy(result.data() + 8 * place, &word, sizeof word);
  };
  for (size_t o = 0; o < operands.size(); ++o) put(o, operands[o]->data), put(operands.size() + o, operands[o]->data);
  for (size_t n = 0; n < numbers.size(); ++n) put(2 * operands.size() + n, word_of(n, numbers[n]));
  for (size_t b = 0; b < buffers.size(); ++b) put(buffers[b].place, memory[b]);
  return result;
}

// What was worked out for the last few calls. An entry has a `key`: all numbers that it was worked out from. Threads
// may share it; whoever found an entry keeps it.
template <class Entry>
class Recent {
 public:
  using Key = std::vector<int64_t>;

  std::shared_ptr<const Entry> find(const Key& key) const {
    const std::lock_guard lock(state_->mutex);
    for (const auto& entry : state_->entries)
      if (entry != nullptr && entry->key == key) return entry;
    return nullptr;
  }

  void add(std::shared_ptr<const Entry> entry) const {
    const std::lock_guard lock(state_->mutex);
    state_->entries[state_->next] = std::move(entry);
    state_->next = (state_->next + 1) % state_->entries.size();
  }

 private:
  struct State {
    std::mutex mutex;
    std::array<std::shared_ptr<const Entry>, 4>
        entries;  // a training loop has its batches, the last one, and evaluation
    size_t next = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline void check_cuda(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is reported here, and not by the next call
  throw std::runtime_error(what + ": " + cudaGetErrorString(error));
}

inline int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

#if CUDART_VERSION >= 11080
// PyTorch may bring a runtime that is older than the compiler (2.0 brings that of CUDA 11.7). There this call is null;
// without the pragma the extension could not be loaded.
#pragma weak cudaLaunchKernelExC

inline int driver_version() {
  static const int version = [] {
    int found = 0;
    check_cuda(cudaDriverGetVersion(&found), "cudaDriverGetVersion");
    return found;
  }();
  return version;
}
#endif

// The variants for offsets of one width.
class CudaVariants : CudaRules {
 public:
  struct Text {
    Variant variant;
    std::vector<std::pair<std::string, const void*>> entries;
  };

  // `wide`: for tensors with offsets of more than 31 bits.
  CudaVariants(const KernelLoops& code, const std::vector<Text>& texts, bool wide) : CudaRules(code), wide_(wide) {
    for (const Text& text : texts) {
      if (text.variant.wide != wide) continue;
      for (const auto& entry : text.entries) functions_[{text.variant, entry.first}] = entry.second;
      variants_.push_back(text.variant);
      variants_.back().wide = false;  // the rules ask for the narrow ones
    }
  }

  // False: the other one is for these tensors.
  bool run(const KernelCall& call) const {
    const std::shared_ptr<const Prepared> prepared = find(call);
    if (!prepared->fits) return false;
    const Launches& made = prepared->launches;
    std::vector<void*> memory;
    for (const Launches::Buffer& buffer : made.buffers)
      memory.push_back(call.allocate(std::max<int64_t>(buffer.bytes, 1)));
    for (const Launches::Launch& l : made.launches)
      launch(l, filled(l.arguments, call.operands, call.numbers, made.buffers, memory), call);
    return true;
  }

 private:
  // What follows from the sizes and strides of a call, for the next one like it.
  struct Prepared {
    std::vector<int64_t> key;
    bool fits;
    Launches launches;
  };

  std::shared_ptr<const Prepared> find(const KernelCall& call) const {
    std::vector<int64_t> key = {call.device};
    key.insert(key.end(), call.sizes.begin(), call.sizes.end());
    add_places(key, call.operands);
    if (auto known = recent_.find(key)) return known;
    auto prepared = std::make_shared<Prepared>(prepare(call));
    prepared->key = std::move(key);
    recent_.add(prepared);
    return prepared;
  }

  Prepared prepare(const KernelCall& call) const {
    Call c;
    c.device = call.device;
    c.stream = call.stream;
    c.processors = device_attribute(cudaDevAttrMultiProcessorCount, call.device);
    c.shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, call.device);
    c.l2_bytes = device_attribute(cudaDevAttrL2CacheSize, call.device);
    bind(c, loops_.bind(call.operands, call.sizes), call.operands);
    if (c.wide != wide_) return {{}, false, {}};
    if (wide_) c.widest = 1;
    if (!plan(c, rule(c, c.widest)))
      throw std::runtime_error(code_.name + ": tensors of these sizes are more than a launch can have");
    return {{}, true, launches(c, call.operands)};
  }

  const void* function(const Variant& variant, const std::string& entry) const {
    return functions_.at({variant, entry});
  }

  int resident_blocks(const Call& c, const char* entry) const override {
    const void* kernel = function(c.variant, code_.name + entry);
    const uint32_t shared = shared_bytes(c);
    const std::lock_guard<std::mutex> lock(mutex_);
    allow_shared(kernel, shared, c.device);
    const auto key = std::make_tuple(kernel, c.device, c.threads, shared);
    const auto known = resident_.find(key);
    if (known != resident_.end()) return known->second;
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(c.threads), shared),
               code_.name + entry);
    return resident_[key] = blocks;
  }

  bool tiles_are_ready(const Call&, const Variant& variant) const override { return has(variant); }

  // More shared memory than every device has must be asked for, once for a kernel on a device.
  void allow_shared(const void* kernel, uint32_t bytes, int device) const {
    if (bytes <= 48 << 10 || !allowed_.insert({kernel, device}).second) return;
    const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), code_.name);
  }

#if CUDART_VERSION >= 11080
  // Text for an architecture before sm_90, which a newer device can run too, has no instruction to wait with.
  bool waits(const void* kernel) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = waits_.find(kernel);
    if (known != waits_.end()) return known->second;
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), code_.name);
    return waits_[kernel] = attributes.ptxVersion >= 90;
  }
#endif

  void launch(const Launches::Launch& l, std::vector<char> bytes, const KernelCall& call) const {
    if (l.blocks >= int64_t{1} << 31)
      throw std::runtime_error(l.entry + ": tensors of these sizes are more than a launch can have");
    const void* kernel = function(l.variant, l.entry);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      allow_shared(kernel, l.shared_bytes, call.device);
    }
    const auto stream = static_cast<cudaStream_t>(call.stream);
    const dim3 grid(static_cast<unsigned>(l.blocks)), block(l.threads);
    void* arguments[] = {bytes.data()};
#if CUDART_VERSION >= 11080
    // From sm_90 on a kernel may begin while the one before it ends; its text waits for what it needs of that one.
    if (l.overlap && cudaLaunchKernelExC != nullptr &&
        launches_overlap(device_attribute(cudaDevAttrComputeCapabilityMajor, call.device), driver_version()) &&
        waits(kernel)) {
      cudaLaunchAttribute attribute;
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = grid;
      config.blockDim = block;
      config.dynamicSmemBytes = l.shared_bytes;
      config.stream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      return check_cuda(cudaLaunchKernelExC(&config, kernel, arguments), "launch of " + l.entry);
    }
#endif
    check_cuda(cudaLaunchKernel(kernel, grid, block, arguments, l.shared_bytes, stream), "launch of " + l.entry);
  }

  bool wide_;
  std::map<std::pair<Variant, std::string>, const void*> functions_;
  mutable std::mutex mutex_;
  Recent<Prepared> recent_;
  mutable std::map<std::tuple<const void*, int, int64_t, uint32_t>, int> resident_;
  mutable std::set<std::pair<const void*, int>> allowed_;
  mutable std::map<const void*, bool> waits_;
};

class CudaKernel {
 public:
  using Text = CudaVariants::Text;
  CudaKernel(const KernelLoops& code, const std::vector<Text>& texts)
      : narrow_(code, texts, false), wide_(code, texts, true) {}

  void run(const KernelCall& call) const {
    if (!narrow_.run(call)) wide_.run(call);
  }

 private:
  CudaVariants narrow_, wide_;
};

}  // namespace fusewright
'''

# Each kernel: what runs it, its table, and the ways in which it is compiled.
_TABLE = [
    ("fw_column_batch_norm_add_div_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_column_batch_norm_add_div_sigmoid_mul";
  k.operands = {
      {"matmul", DType::f32, false, false, {{0}, {1}}},
      {"sum", DType::f32, true, false, {{}, {1}}},
      {"sum", DType::f32, true, false, {{}, {1}}},
      {"linear_bias", DType::f32, false, false, {{1}}},
      {"batch_norm_running_mean", DType::f32, false, false, {{1}}},
      {"add", DType::f32, true, false, {{1}}},
      {"batch_norm_running_var", DType::f32, false, false, {{1}}},
      {"add", DType::f32, true, false, {{1}}},
      {"batch_norm_weight", DType::f32, false, false, {{1}}},
      {"batch_norm_bias", DType::f32, false, false, {{1}}},
      {"bias", DType::f32, false, false, {{}}},
      {"mul", DType::f32, true, false, {{0}, {1}}},
      {"batch_norm_num_batches_tracked", DType::i64, false, false, {}},
      {"add", DType::i64, true, false, {}},
  };
  k.axes = {{false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32, DType::f32, DType::f32, DType::f32, DType::i64};
  k.nest.kind = Loops::Kind::column;
  k.nest.reduced = {0};
  k.nest.inner = 1;
  k.nest.stages = 3;
  k.cuda.sums = {{4}, {4}, {}};
  k.cuda.vectors = {{0, 1}, {11, 1}};
  k.cuda.walking.stages = 2;
  k.cuda.walking.sums = {{4, 4, 4, 4, 4}, {}};
  k.cuda.walking.leaves_sums = {true, false};
  k.cuda.walking.final_phase = false;
  k.cuda.items = {8, 16, 4};
  k.cuda.ahead = {0};
  k.cuda.can_tile = false;
''', [
        ("{4, 8, false, {}, 0}", [_LOOPS, _FW_COLUMN_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=8, WIDE=0, ROW=0, DEPTH=1, AHEAD=16, FIXED=0, SLOT=128, THREADS=512, CLUSTER=0)),
        ("{4, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=4, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, true, {}, 0}", [_LOOPS, _FW_COLUMN_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=1, ROW=0)),
    ]),
    ("fw_column_backward_batch_norm_div_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_column_backward_batch_norm_div_sigmoid_mul";
  k.operands = {
      {"dL_dy0", DType::f32, false, false, {{0}, {1}}},
      {"saved_matmul11", DType::f32, false, false, {{0}, {1}}},
      {"saved_sum13", DType::f32, false, false, {{}, {1}}},
      {"saved_sum18", DType::f32, false, false, {{}, {1}}},
      {"batch_norm_weight", DType::f32, false, false, {{1}}},
      {"batch_norm_bias", DType::f32, false, false, {{1}}},
      {"bias", DType::f32, false, false, {{}}},
      {"mul", DType::f32, true, false, {{0}, {1}}},
      {"reshape", DType::f32, true, false, {{1}}},
      {"div", DType::f32, true, false, {{1}}},
  };
  k.axes = {{false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32, DType::f32};
  k.nest.kind = Loops::Kind::column;
  k.nest.reduced = {0};
  k.nest.inner = 1;
  k.nest.stages = 2;
  k.cuda.sums = {{4, 4}, {}};
  k.cuda.vectors = {{0, 1}, {1, 1}, {7, 1}};
  k.cuda.walking.stages = 2;
  k.cuda.walking.sums = {{4, 4}, {}};
  k.cuda.walking.leaves_sums = {true, false};
  k.cuda.walking.final_phase = false;
  k.cuda.items = {8, 4};
  k.cuda.ahead = {0, 1};
  k.cuda.can_tile = false;
''', [
        ("{4, 8, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=8, WIDE=0, ROW=0, DEPTH=1, AHEAD=32, FIXED=0, SLOT=256, THREADS=512, CLUSTER=0)),
        ("{1, 32, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=1, ITEMS=32, WIDE=0, ROW=0, DEPTH=1, AHEAD=8, FIXED=0, SLOT=256, THREADS=512, CLUSTER=0)),
        ("{4, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=4, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, true, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_BATCH_NORM_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=1, ROW=0)),
    ]),
    ("fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_pointwise_linear_bias_batch_norm_add_div_sigmoid_mul";
  k.operands = {
      {"matmul", DType::f32, false, false, {{0}, {1}}},
      {"linear_bias", DType::f32, false, false, {{1}}},
      {"batch_norm_running_mean", DType::f32, false, false, {{1}}},
      {"batch_norm_running_var", DType::f32, false, false, {{1}}},
      {"batch_norm_weight", DType::f32, false, false, {{1}}},
      {"batch_norm_bias", DType::f32, false, false, {{1}}},
      {"bias", DType::f32, false, false, {{}}},
      {"mul", DType::f32, true, false, {{0}, {1}}},
  };
  k.axes = {{false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32};
  k.nest.kind = Loops::Kind::pointwise;
  k.nest.reduced = {0};
  k.nest.inner = 1;
  k.nest.stages = 1;
  k.cuda.anchor_axes = {0};
  k.cuda.sums = {{}};
  k.cuda.vectors = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {7, 1}};
  k.cuda.walking.stages = 0;
  k.cuda.walking.final_phase = false;
  k.cuda.items = {2};
  k.cuda.can_tile = true;
''', [
        ("{4, 2, false, {}, 0}", [_LOOPS, _FW_POINTWISE_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=2, WIDE=0, ROW=0)),
        ("{1, 2, false, {}, 0}", [_LOOPS, _FW_POINTWISE_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=1, ITEMS=2, WIDE=0, ROW=0)),
        ("{1, 2, true, {}, 0}", [_LOOPS, _FW_POINTWISE_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=1, ITEMS=2, WIDE=1, ROW=0)),
    ]),
    ("fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_column_backward_linear_bias_batch_norm_add_div_sigmoid_mul";
  k.operands = {
      {"dL_dy0", DType::f32, false, false, {{0}, {1}}},
      {"saved_matmul10", DType::f32, false, false, {{0}, {1}}},
      {"linear_bias", DType::f32, false, false, {{1}}},
      {"batch_norm_running_mean", DType::f32, false, false, {{1}}},
      {"batch_norm_running_var", DType::f32, false, false, {{1}}},
      {"batch_norm_weight", DType::f32, false, false, {{1}}},
      {"batch_norm_bias", DType::f32, false, false, {{1}}},
      {"bias", DType::f32, false, false, {{}}},
      {"mul", DType::f32, true, false, {{0}, {1}}},
      {"sum", DType::f32, true, false, {{}, {1}}},
      {"sum", DType::f32, true, false, {{}, {1}}},
      {"sum", DType::f32, true, false, {{}, {1}}},
  };
  k.axes = {{false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32};
  k.nest.kind = Loops::Kind::column;
  k.nest.reduced = {0};
  k.nest.inner = 1;
  k.nest.stages = 1;
  k.cuda.sums = {{4, 4, 4}};
  k.cuda.vectors = {{0, 1}, {1, 1}, {8, 1}};
  k.cuda.walking.stages = 1;
  k.cuda.walking.sums = {{4, 4, 4}};
  k.cuda.walking.leaves_sums = {true};
  k.cuda.walking.final_phase = true;
  k.cuda.items = {8, 4};
  k.cuda.ahead = {0, 1};
  k.cuda.can_tile = false;
''', [
        ("{4, 8, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=8, WIDE=0, ROW=0, DEPTH=1, AHEAD=32, FIXED=0, SLOT=256, THREADS=512, CLUSTER=0)),
        ("{1, 32, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL], [''],
            dict(VECTOR=1, ITEMS=32, WIDE=0, ROW=0, DEPTH=1, AHEAD=8, FIXED=0, SLOT=256, THREADS=512, CLUSTER=0)),
        ("{4, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_merge0'], dict(VECTOR=4, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, false, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, true, {}, 0}", [_LOOPS, _FW_COLUMN_BACKWARD_LINEAR_BIAS_BATCH_NORM_ADD_DIV_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=1, ROW=0)),
    ]),
]
_BACKEND, _NAME = "cuda", "linear_batchnorm_bias_divide_swish"
_ARCHITECTURES = ""


def _tables(makers, runners):
    """The tables of the kernels, and the call of one by its number."""
    names = [name for name, *_ in _TABLE]
    made, run = (
        ", ".join(f"{kind}_{name}" + ending for name in names) for kind, ending in (("loops", "()"), ("run", ""))
    )
    return (
        "namespace fusewright {\n"
        + "".join(makers)
        + "".join(runners)
        + "const std::vector<KernelLoops>& kernels() {\n"
        + f"  static const std::vector<KernelLoops> all = {{{made}}};\n  return all;\n}}\n"
        + "void run_kernel(size_t kernel, const KernelCall& call) {\n"
        + f"  static void (*const run[])(const KernelCall&) = {{{run}}};\n  run[kernel](call);\n}}\n}}\n"
    )


class _AsWritten(list):
    """Sources that load_inline inserts no headers into. An older PyTorch has no option for that, and its headers would
    take nvcc half a minute."""

    def insert(self, index, line):
        """Called with `#include` lines only."""


def _load(sources, **options):
    """Builds the extension under a name that follows from its text. Only what includes PyTorch's headers sees them."""
    if "no_implicit_headers" in load_inline.__code__.co_varnames:
        options["no_implicit_headers"] = True
    name = f"{_NAME}_{hashlib.sha256(''.join(sources.values()).encode()).hexdigest()[:12]}"
    return load_inline(name=name, **{kind: _AsWritten([text]) for kind, text in sources.items()}, **options)


_built = []


def _variant(number, texts, defines):
    """A kernel's texts under one set of macros, in a namespace of their own."""
    names = {**dict.fromkeys(("DEPTH", "AHEAD", "FIXED", "SLOT", "THREADS"), 0), **defines}
    before = "".join(f"#define FW_{name} {value}\n" for name, value in names.items())
    after = "".join(f"#undef FW_{name}\n" for name in names)
    inner = "namespace fw {\nusing namespace ::fw;\n}\n" + "".join(texts)
    return f"{before}namespace variant_{number} {{\n{inner}\n}}\n{after}"


def _cuda_source():
    """The half with the kernels."""
    variants, makers, runners = [], [], []
    for name, runner, table, ways in _TABLE:
        rows = []
        for fields, texts, entries, defines in ways:
            space = f"variant_{len(variants)}"
            variants.append(_variant(len(variants), texts, defines))
            functions = ", ".join(
                f'{{"{name}{entry}", reinterpret_cast<const void*>(&{space}::{name}{entry})}}' for entry in entries
            )
            rows.append(f"      {{{fields}, {{{functions}}}}},\n")
        makers.append(f"static KernelLoops loops_{name}() {{\n  KernelLoops k;{table}  return k;\n}}\n")
        runners.append(
            f"static void run_{name}(const KernelCall& call) {{\n"
            f"  static const std::vector<{runner}::Text> texts = {{\n{''.join(rows)}  }};\n"
            f"  static const {runner} kernel(loops_{name}(), texts);\n"
            "  kernel.run(call);\n}\n"
        )
    parts = ["#include <cuda_runtime.h>\n", _SHARED, _PRELUDE, _RULES, *variants, _tables(makers, runners)]
    return "".join(parts)


class _Architectures:
    """Inside of it PyTorch compiles for what the file was written for, unless TORCH_CUDA_ARCH_LIST says otherwise. (To
    flags that name an architecture an older PyTorch adds the GPUs of the machine, and fails where there is none.)"""

    def __enter__(self):
        self.chosen = "TORCH_CUDA_ARCH_LIST" not in os.environ and _ARCHITECTURES != ""
        if self.chosen:
            os.environ["TORCH_CUDA_ARCH_LIST"] = _ARCHITECTURES

    def __exit__(self, *_):
        if self.chosen:
            del os.environ["TORCH_CUDA_ARCH_LIST"]


def _kernels():
    """The extension; built when a tensor first needs it: for TORCH_CUDA_ARCH_LIST, else for what the file was written
    for, else for the GPUs of this machine."""
    if not _built:
        sources = {"cpp_sources": "#define FW_CUDA_EXTENSION\n" + _SHARED + _TORCH, "cuda_sources": _cuda_source()}
        with _Architectures():
            cuda_flags = ["-O3", "--diag-suppress=177,550"]
            _built.append(_load(sources, extra_cflags=["-O2"], extra_cuda_cflags=cuda_flags))
    return _built[0]
