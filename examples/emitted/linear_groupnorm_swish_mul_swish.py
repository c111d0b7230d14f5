"""linear_groupnorm_swish_mul_swish: ModelNew, in place of Model, with fused CUDA kernels.

Written by Fusewright 0.1.0; needs PyTorch 2.0 or newer and nvcc of CUDA 11.8 or newer, and nothing else. Kernels
are built when the model first runs. Names, order and first values of all parameters are those of Model.

What was fused
  fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul
    forward, row schedule, reads 33.7 MB, writes 35.7 MB: linear_bias group_norm sigmoid mul mul sigmoid mul
  fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul
    backward, row schedule, reads 69.3 MB, writes 33.7 MB: linear_bias group_norm sigmoid mul sigmoid mul

What it moves
  Outside of matrix products and convolutions, a training step with inputs (float32[1024, 8192]) moves 1.62 GB
  before, 172 MB now.

Why it is faster
  Every operator of eager PyTorch reads its operands from memory and writes its result back. A fused kernel reads
  each tensor once, keeps all that lies between in registers, and writes only what somebody else reads. The backward
  computes again what is cheaper to compute than to store.
  row_constants_leave_sum: factors that do not vary leave their sum: all sums of a norm's gradient fit in one sweep.
  distances_sum_to_zero: distances from their own mean sum to zero: one sum less in a norm's gradient.
  common_factor_leaves_terms: the terms of a norm's gradient are added before their common factor multiplies them.
  term_joins_its_multiple: y + y r is y (1 + r): what a term and its multiple share is multiplied once, as in a
  swish's gradient.

Left to PyTorch
  forward: matmul, backward: matmul x2: its library computes them well, and is called as eager calls it.
"""

import hashlib
import os

import torch
from torch.utils.cpp_extension import load_inline
from torch import nn


# ============ The model ===========================================================================================

class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, multiplier_shape):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.group_norm = nn.GroupNorm(num_groups, out_features)
        self.multiplier = nn.Parameter(torch.randn(multiplier_shape))

    def forward(self, x):
        _expect_state(self, ['multiplier', 'linear.weight', 'linear.bias', 'group_norm.weight', 'group_norm.bias'])
        _expect(self.group_norm.eps, 1e-05, 'self.group_norm.eps')
        _expect(self.group_norm.num_groups, 256, 'self.group_norm.num_groups')
        (getitem,) = _region_0(x, self.linear.weight, self.linear.bias, self.group_norm.weight,
            self.group_norm.bias, self.multiplier)
        return getitem


# ============ Regions: what runs around the kernels, forward and backward =========================================

def _region_0_inference(x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier):
    device = _device_of(x)
    n0 = x.shape[0]
    n2 = linear_weight.shape[0] // 256
    permute_6 = linear_weight.permute(1, 0)
    saved0 = torch.mm(x, permute_6)
    del permute_6
    saved1 = torch.empty((n0, 256, 1), dtype=torch.float32, device=device)
    saved2 = torch.empty((n0, 256, 1), dtype=torch.float32, device=device)
    mul_28 = torch.empty((n0, 256 * n2), dtype=torch.float32, device=device)
    _kernels().fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul([saved0, linear_bias, saved1, saved2,
        group_norm_weight, group_norm_bias, multiplier, mul_28], [n0, 256, n2], [n2, 1e-05])
    del saved0, saved1, saved2
    return (mul_28,)


class _Region0(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier):
        device = _device_of(x)
        n0 = x.shape[0]
        n2 = linear_weight.shape[0] // 256
        permute_6 = linear_weight.permute(1, 0)
        saved0 = torch.mm(x, permute_6)
        del permute_6
        saved1 = torch.empty((n0, 256, 1), dtype=torch.float32, device=device)
        saved2 = torch.empty((n0, 256, 1), dtype=torch.float32, device=device)
        mul_28 = torch.empty((n0, 256 * n2), dtype=torch.float32, device=device)
        _kernels().fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul([saved0, linear_bias, saved1, saved2,
            group_norm_weight, group_norm_bias, multiplier, mul_28], [n0, 256, n2], [n2, 1e-05])
        ctx.save_for_backward(x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier,
            saved0, saved1, saved2)
        return (mul_28,)

    @staticmethod
    def backward(ctx, dL_dy0):
        _first_derivatives_only()
        (x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier, saved_6, saved_7,
            saved_8) = ctx.saved_tensors
        need = ctx.needs_input_grad
        device = dL_dy0.device
        n0 = x.shape[0]
        n2 = linear_weight.shape[0] // 256
        mul_50 = torch.empty((n0, 256, n2), dtype=torch.float32, device=device)
        sum_55 = torch.empty((1, 256 * n2), dtype=torch.float32, device=device)
        sum_58 = torch.empty((1, 256 * n2), dtype=torch.float32, device=device)
        sum_60 = torch.empty((1, 256 * n2), dtype=torch.float32, device=device)
        sum_63 = torch.empty((1, 256 * n2), dtype=torch.float32, device=device)
        _kernels().fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul([dL_dy0, saved_6, linear_bias,
            saved_7, saved_8, group_norm_weight, group_norm_bias, multiplier, mul_50, sum_55, sum_58, sum_60,
            sum_63], [n0, 256, n2], [n2, 1e-05])
        if need[0]:
            reshape_51 = mul_50.reshape((n0, 256 * n2))
            dL_dx = torch.mm(reshape_51, linear_weight)
        if need[1]:
            reshape_51 = mul_50.reshape((n0, 256 * n2))
            permute_53 = reshape_51.permute(1, 0)
            dL_dlinear_weight = torch.mm(permute_53, x)
            del mul_50, reshape_51, permute_53
        if need[2]:
            dL_dlinear_bias = sum_55.reshape((256 * n2,))
        if need[3]:
            dL_dgroup_norm_weight = sum_58.reshape((256 * n2,))
        if need[4]:
            dL_dgroup_norm_bias = sum_60.reshape((256 * n2,))
        if need[5]:
            dL_dmultiplier = sum_63.reshape((256 * n2,))
        return (
            dL_dx if need[0] else None,
            dL_dlinear_weight if need[1] else None,
            dL_dlinear_bias if need[2] else None,
            dL_dgroup_norm_weight if need[3] else None,
            dL_dgroup_norm_bias if need[4] else None,
            dL_dmultiplier if need[5] else None,
        )


def _region_0(x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier):
    if torch.is_grad_enabled() and _any_requires_grad(x, linear_weight, linear_bias, group_norm_weight,
        group_norm_bias, multiplier):
        return _Region0.apply(x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier)
    return _region_0_inference(x, linear_weight, linear_bias, group_norm_weight, group_norm_bias, multiplier)


# ============ Kernels =============================================================================================

# ---- fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul: forward, row schedule ----------------------------
#
# operators: linear_bias group_norm sigmoid mul mul sigmoid mul
# linear_groupnorm_swish_mul_swish.py:15: x = self.linear(x)
# linear_groupnorm_swish_mul_swish.py:16: x = self.group_norm(x)
# linear_groupnorm_swish_mul_swish.py:17: x = x * torch.sigmoid(x)
# linear_groupnorm_swish_mul_swish.py:18: x = x * self.multiplier
# linear_groupnorm_swish_mul_swish.py:19: return x * torch.sigmoid(x)
#
#     t0 = matmul_7 + linear_bias
#     saved1 = sum(t0, over n2)
#     t1 = t0 - (saved1 / n2)
#     saved2 = sum(square(t1), over n2)
#     t2 = ((t1 * rsqrt((saved2 / n2) + 1e-05)) * group_norm_weight) + group_norm_bias
#     t3 = (t2 * sigmoid(t2)) * multiplier
#     mul_28 = t3 * sigmoid(t3)
_FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
#if FW_ITEMS > 0
struct Args : fw::KernelArgs<3, 8, 2, 3> {};
#else
struct Args : fw::KernelArgs<3, 8, 2, 2> {};
#endif
struct Row {
  float v3, v5, v8, v12;
  index o0, o1, o2, o3, o4, o5, o6, o7, c0, c1;
  bool live;  // there is such a row
};

FW_FN void place_row(const Args& a, index anchor, index walked, Row& row) {
  index restanchor = anchor;
  row.c1 = restanchor;
  index restwalked = walked;
  row.c0 = restwalked;
  row.o0 = row.c0 * static_cast<index>(a.strides[0][0]) + row.c1 * static_cast<index>(a.strides[0][1]);
  row.o1 = row.c1 * static_cast<index>(a.strides[1][1]);
  row.o2 = row.c0 * static_cast<index>(a.strides[2][0]) + row.c1 * static_cast<index>(a.strides[2][1]);
  row.o3 = row.c0 * static_cast<index>(a.strides[3][0]) + row.c1 * static_cast<index>(a.strides[3][1]);
  row.o4 = row.c1 * static_cast<index>(a.strides[4][1]);
  row.o5 = row.c1 * static_cast<index>(a.strides[5][1]);
  row.o6 = row.c1 * static_cast<index>(a.strides[6][1]);
  row.o7 = row.c0 * static_cast<index>(a.strides[7][0]) + row.c1 * static_cast<index>(a.strides[7][1]);
}

struct Values {
  float in0[V];
};
struct Fixed {
  float in1[V], in14[V], in16[V], in20[V];
};

struct Place {
  index pos;
};
FW_FN Place place(index e) {
  Place at;
  at.pos = e * V;
  return at;
}

#if FW_ITEMS > 0
FW_FN void ask(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), a.reads);
}
FW_FN void ask_fixed(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_fixed_line(slot, 0, static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[4]) + (row.o4 + fw::along(at.pos, a.strides[4][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads);
}
FW_FN void take(const Args& a, const Row& row, const Place& at, char* slot, Values& x) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), a.reads, x.in0);
}
FW_FN void take_fixed_0(const Args& a, const Row& row, const Place& at, char* slot, Fixed& f) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, f.in1);
}
FW_FN void take_fixed_1(const Args& a, const Row& row, const Place& at, char* slot, Fixed& f) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, f.in1);
}
FW_FN void take_fixed_2(const Args& a, const Row& row, const Place& at, char* slot, Fixed& f) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, f.in1);
  fw::take_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[4]) + (row.o4 + fw::along(at.pos, a.strides[4][2])), a.reads, f.in14);
  fw::take_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in16);
  fw::take_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in20);
}
struct Sums0 {
  float a3;
  FW_FN void clear() {
    a3 = 0.0f;
  }
  FW_FN void merge(const Sums0& other) {
    a3 += other.a3;
  }
  FW_FN Sums0 exchanged(fw::u32 offset) const {
    Sums0 other;
    other.a3 = fw::shuffle_xor(a3, offset);
    return other;
  }
};

FW_FN void stage_0(const Values& x, const Fixed& f, bool inside, Sums0& sums) {
  float part3 = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) part3 += (x.in0[i] + f.in1[i]);
  if (ITEMS == 1 && inside) sums.a3 = part3;
  if (ITEMS != 1 && inside) sums.a3 += part3;
}

struct Sums1 {
  float a8;
  FW_FN void clear() {
    a8 = 0.0f;
  }
  FW_FN void merge(const Sums1& other) {
    a8 += other.a8;
  }
  FW_FN Sums1 exchanged(fw::u32 offset) const {
    Sums1 other;
    other.a8 = fw::shuffle_xor(a8, offset);
    return other;
  }
};

FW_FN void row_1(const Args& a, Row& row, bool store, const Sums0& sums) {
  const float number0 = a.numbers[0].as<float>();
  row.v3 = sums.a3;
  if (store) static_cast<float*>(a.pointers[2])[row.o2] = row.v3;
  row.v5 = fw::over_row(row.v3, number0);
}

FW_FN void stage_1(const Row& row, const Values& x, const Fixed& f, bool inside, Sums1& sums) {
  float part8 = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) part8 += (fw::square((x.in0[i] + f.in1[i]) - row.v5));
  if (ITEMS == 1 && inside) sums.a8 = part8;
  if (ITEMS != 1 && inside) sums.a8 += part8;
}

FW_FN void row_2(const Args& a, Row& row, bool store, const Sums1& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  row.v8 = sums.a8;
  if (store) static_cast<float*>(a.pointers[3])[row.o3] = row.v8;
  row.v12 = fw::rsqrt(fw::over_row(row.v8, number0) + number1);
}

FW_FN void stage_2(const Args& a, const Row& row, const Place& at, const Values& x, const Fixed& f, bool inside) {
  float out23[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v17 = ((((x.in0[i] + f.in1[i]) - row.v5) * row.v12) * f.in14[i]) + f.in16[i];
    const float v21 = (v17 * fw::sigmoid(v17)) * f.in20[i];
    out23[i] = v21 * fw::sigmoid(v21);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), out23);
}
#else
template <class Again, class Last>
FW_FN void load_0(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x, Fixed& f) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), again, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, f.in1);
}
template <class Again, class Last>
FW_FN void load_1(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x, Fixed& f) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), last, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, f.in1);
  fw::load_line(static_cast<const float*>(a.pointers[4]) + (row.o4 + fw::along(at.pos, a.strides[4][2])), a.reads, f.in14);
  fw::load_line(static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in16);
  fw::load_line(static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in20);
}
struct Sums0 {
  fw::Moments<float, 1> m8;
  FW_FN void clear() {
    m8.clear();
  }
  FW_FN void merge(const Sums0& other) {
    m8.merge(other.m8);
  }
  FW_FN Sums0 exchanged(fw::u32 offset) const {
    Sums0 other;
    other.m8 = m8.exchanged(offset);
    return other;
  }
};

FW_FN void stage_0(const Values& x, const Fixed& f, bool inside, Sums0& sums) {
  if (inside) sums.m8.count_vector();
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v2 = x.in0[i] + f.in1[i];
    if (inside) sums.m8.add(i, v2);
  }
}

FW_FN void row_1(const Args& a, Row& row, bool store, const Sums0& sums) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  row.v3 = sums.m8.sum(0);
  if (store) static_cast<float*>(a.pointers[2])[row.o2] = row.v3;
  row.v5 = fw::over_row(row.v3, number0);
  row.v8 = sums.m8.squares[0];
  if (store) static_cast<float*>(a.pointers[3])[row.o3] = row.v8;
  row.v12 = fw::rsqrt(fw::over_row(row.v8, number0) + number1);
}

FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, const Fixed& f, bool inside) {
  float out23[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v17 = ((((x.in0[i] + f.in1[i]) - row.v5) * row.v12) * f.in14[i]) + f.in16[i];
    const float v21 = (v17 * fw::sigmoid(v17)) * f.in20[i];
    out23[i] = v21 * fw::sigmoid(v21);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), out23);
}
#endif
}  // namespace
#if FW_ITEMS > 0
constexpr int registers = ITEMS * V * 4 / 4 + V * 0 / 16 + 44;
constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);
__global__ void __launch_bounds__(FW_THREADS, blocks) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits));
  const index elements = fw::held_elements(a.elements);
  const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);
  const index anchor = (block.remainder << a.anchor_bits) + (team.row & ((1u << a.anchor_bits) - 1));
  const index part = block.quotient * (team.rows() >> a.anchor_bits) + (team.row >> a.anchor_bits);
  Row row;
  index row_index = part;
  row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
  if (!row.live) row_index = 0;
  place_row(a, anchor, row_index, row);
  fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile
  constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;
  char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);
  char* const fixed = own + FW_DEPTH * ITEMS * AHEAD;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const index e = static_cast<index>(team.thread) + (item << team.bits);
    if (fw::in_row(e, elements)) ask_fixed(a, row, place(e), fixed + item * FIXED);
  }
#pragma unroll
  for (int depth = 0; depth < FW_DEPTH; ++depth) {
    Row first;
    index first_index = part + depth * static_cast<index>(a.parts);
    first.live = part < static_cast<index>(a.parts) && first_index < static_cast<index>(a.walked);
    if (!first.live) first_index = 0;
    place_row(a, anchor, first_index, first);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      if (first.live && fw::in_row(e, elements)) ask(a, first, place(e), own + (depth * ITEMS + item) * AHEAD);
    }
    fw::copy_async_commit();
  }
  int depth = 0;
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Values x[ITEMS];
    Row next;
    index next_index = part + (turn + 1) * static_cast<index>(a.parts);
    next.live = part < static_cast<index>(a.parts) && next_index < static_cast<index>(a.walked);
    if (!next.live) next_index = 0;
    place_row(a, anchor, next_index, next);
    fw::copy_async_wait<FW_DEPTH - 1>();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      take(a, row, place(row.live && fw::in_row(e, elements) ? e : 0), own + (depth * ITEMS + item) * AHEAD, x[item]);
    }
    Row later;
    index later_index = part + (turn + FW_DEPTH) * static_cast<index>(a.parts);
    later.live = part < static_cast<index>(a.parts) && later_index < static_cast<index>(a.walked);
    if (!later.live) later_index = 0;
    place_row(a, anchor, later_index, later);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      if (later.live && fw::in_row(e, elements)) ask(a, later, place(e), own + (depth * ITEMS + item) * AHEAD);
    }
    fw::copy_async_commit();
    depth = depth + 1 == FW_DEPTH ? 0 : depth + 1;
    const bool first = row.live && team.thread == 0;
    Sums0 sums0;
    sums0.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      const bool inside = row.live && fw::in_row(e, elements);
      Fixed f;
      take_fixed_0(a, row, place(inside ? e : 0), fixed + item * FIXED, f);
      stage_0(x[item], f, inside, sums0);
    }
    fw::reduce(team, sums0);
    row_1(a, row, first, sums0);
    Sums1 sums1;
    sums1.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      const bool inside = row.live && fw::in_row(e, elements);
      Fixed f;
      take_fixed_1(a, row, place(inside ? e : 0), fixed + item * FIXED, f);
      stage_1(row, x[item], f, inside, sums1);
    }
    fw::reduce(team, sums1);
    row_2(a, row, first, sums1);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      const bool inside = row.live && fw::in_row(e, elements);
      Fixed f;
      take_fixed_2(a, row, place(inside ? e : 0), fixed + item * FIXED, f);
      stage_2(a, row, place(e), x[item], f, inside);
    }
    row = next;
  }
}
#else
__global__ void __launch_bounds__(512) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);
  const index anchor = (block.remainder << a.anchor_bits) + (team.row & ((1u << a.anchor_bits) - 1));
  const index part = block.quotient * (team.rows() >> a.anchor_bits) + (team.row >> a.anchor_bits);
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Row row;
    index row_index = part + turn * static_cast<index>(a.parts);
    row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
    if (!row.live) row_index = 0;
    place_row(a, anchor, row_index, row);
    const bool first = row.live && team.thread == 0;
    const index elements = row.live ? static_cast<index>(a.elements) : 0;
    const fw::ReadAgain again = {a.reads};
    const fw::ReadLast last = {{fw::evict_normal}};
    constexpr int bytes0 = V * 8;
    constexpr int AHEAD0 = bytes0 <= 16 ? 4 : bytes0 <= 32 ? 2 : 1;
    const index end0 = elements, step0 = static_cast<index>(team.threads());
    index e0 = static_cast<index>(team.thread);
    Values next0[AHEAD0];
    Fixed next_fixed0[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
      }
    }
    Sums0 sums0;
    sums0.clear();
    while (e0 < end0) {
      Values x[AHEAD0];
      Fixed f[AHEAD0];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n], f[n] = next_fixed0[n];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (AHEAD0 + n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (n) * step0;
        if (beyond < end0 - e0) {
          stage_0(x[n], f[n], true, sums0);
        }
      }
      if (end0 - e0 <= AHEAD0 * step0) break;
      e0 += AHEAD0 * step0;
    }
    sums0.m8.finish();
    constexpr int bytes1 = V * 20;
    constexpr int AHEAD1 = bytes1 <= 16 ? 4 : bytes1 <= 32 ? 2 : 1;
    const index end1 = elements, step1 = static_cast<index>(team.threads());
    index e1 = static_cast<index>(team.thread);
    Values next1[AHEAD1];
    Fixed next_fixed1[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
      }
    }
    fw::reduce(team, sums0);
    row_1(a, row, first, sums0);
    while (e1 < end1) {
      Values x[AHEAD1];
      Fixed f[AHEAD1];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n], f[n] = next_fixed1[n];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (AHEAD1 + n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          stage_1(a, row, place(e), x[n], f[n], true);
        }
      }
      if (end1 - e1 <= AHEAD1 * step1) break;
      e1 += AHEAD1 * step1;
    }
  }
}
__global__ void __launch_bounds__(256) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul_phase0(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
  constexpr int AHEAD0 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index end0 = row.live ? static_cast<index>(a.elements) : 0, step0 = static_cast<index>(a.splits * team.threads());
  index e0 = static_cast<index>(split * static_cast<index>(team.threads()) + static_cast<index>(team.thread));
  Values next0[AHEAD0];
  Fixed next_fixed0[AHEAD0];
#pragma unroll
  for (int n = 0; n < AHEAD0; ++n) {
    const index beyond = (n) * step0;
    if (beyond < end0 - e0) {
      const index e = e0 + beyond;
      load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
    }
  }
  fw::let_next_launch_begin();
  Sums0 sums0;
  sums0.clear();
  while (e0 < end0) {
    Values x[AHEAD0];
    Fixed f[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n], f[n] = next_fixed0[n];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (AHEAD0 + n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        stage_0(x[n], f[n], true, sums0);
      }
    }
    if (end0 - e0 <= AHEAD0 * step0) break;
    e0 += AHEAD0 * step0;
  }
  sums0.m8.finish();
  fw::reduce(team, sums0);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + split) << a.partial_bits) + lane].sums = sums0;
}
__global__ void __launch_bounds__(256) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul_phase1(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  constexpr int AHEAD1 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index beginning = split * static_cast<index>(a.stretch);
  const index rest = static_cast<index>(a.elements) - beginning, stretch = static_cast<index>(a.stretch);
  const index end1 = row.live ? beginning + (rest < stretch ? rest : stretch) : 0, step1 = static_cast<index>(team.threads());
  index e1 = static_cast<index>(beginning + static_cast<index>(team.thread));
  Values next1[AHEAD1];
  Fixed next_fixed1[AHEAD1];
#pragma unroll
  for (int n = 0; n < AHEAD1; ++n) {
    const index beyond = (n) * step1;
    if (beyond < end1 - e1) {
      const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
      load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
    }
  }
  fw::let_next_launch_begin();
  fw::wait_for_last_launch();
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
    Fixed f[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n], f[n] = next_fixed1[n];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (AHEAD1 + n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        stage_1(a, row, place(e), x[n], f[n], true);
      }
    }
    if (end1 - e1 <= AHEAD1 * step1) break;
    e1 += AHEAD1 * step1;
  }
}
__global__ void __launch_bounds__(256) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul_phase2(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  const index split = 0;
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
  const bool first = row.live && team.thread == 0 && split == 0;
  fw::follow_last_launch();
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
__global__ void __launch_bounds__(256) fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul_merge0(const Args a) {
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

# ---- fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul: backward, row schedule ----------------------
#
# operators: linear_bias group_norm sigmoid mul sigmoid mul
# linear_groupnorm_swish_mul_swish.py:15: x = self.linear(x)
# linear_groupnorm_swish_mul_swish.py:16: x = self.group_norm(x)
# linear_groupnorm_swish_mul_swish.py:17: x = x * torch.sigmoid(x)
# linear_groupnorm_swish_mul_swish.py:18: x = x * self.multiplier
# linear_groupnorm_swish_mul_swish.py:19: return x * torch.sigmoid(x)
#
#     t0 = (saved_matmul8 + linear_bias) - (saved_sum11 / n2)
#     t1 = rsqrt((saved_sum16 / n2) + 1e-05)
#     t2 = t0 * t1
#     t3 = (t2 * group_norm_weight) + group_norm_bias
#     t4 = sigmoid(t3)
#     t5 = t3 * t4
#     t6 = t5 * multiplier
#     t7 = sigmoid(t6)
#     t8 = (dL_dy0 * t7) * ((t6 * (1 - t7)) + 1)
#     t9 = (t8 * multiplier) * ((t5 * (1 - t4)) + t4)
#     t10 = t9 * group_norm_weight
#     t11 = sum(t10 * t0, over n2)
#     t12 = sum(t10, over n2)
#     mul_50 = ((t10 - (t0 * (((t11 * t1) * t1) / n2))) - (t12 / n2)) * t1
#     sum_55 = sum(mul_50, over n0)
#     sum_58 = sum(t9 * t2, over n0)
#     sum_60 = sum(t9, over n0)
#     sum_63 = sum(t8 * t5, over n0)
_FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL = r'''
namespace {
using fw::index;
using fw::V;
using fw::ITEMS;
struct Args : fw::KernelArgs<3, 13, 2, 2> {};

struct Row {
  float v4, v6, v8, v12, v40, v43;
  index o0, o1, o2, o3, o4, o5, o6, o7, o8, c0, c1;
  bool live;  // there is such a row
};

FW_FN void place_row(const Args& a, index anchor, index walked, Row& row) {
  index restanchor = anchor;
  row.c1 = restanchor;
  index restwalked = walked;
  row.c0 = restwalked;
  row.o0 = row.c0 * static_cast<index>(a.strides[0][0]) + row.c1 * static_cast<index>(a.strides[0][1]);
  row.o1 = row.c0 * static_cast<index>(a.strides[1][0]) + row.c1 * static_cast<index>(a.strides[1][1]);
  row.o2 = row.c1 * static_cast<index>(a.strides[2][1]);
  row.o3 = row.c0 * static_cast<index>(a.strides[3][0]) + row.c1 * static_cast<index>(a.strides[3][1]);
  row.o4 = row.c0 * static_cast<index>(a.strides[4][0]) + row.c1 * static_cast<index>(a.strides[4][1]);
  row.o5 = row.c1 * static_cast<index>(a.strides[5][1]);
  row.o6 = row.c1 * static_cast<index>(a.strides[6][1]);
  row.o7 = row.c1 * static_cast<index>(a.strides[7][1]);
  row.o8 = row.c0 * static_cast<index>(a.strides[8][0]) + row.c1 * static_cast<index>(a.strides[8][1]);
}

#if FW_ITEMS > 0
FW_FN void move_row(const Args& a, const Row& row, Row& next) {
  index rows = static_cast<index>(a.parts);
  next.live = row.live && row.c0 + rows < static_cast<index>(a.walked);
  if (!next.live) rows = 0;
  next.c0 = row.c0 + rows;
  next.c1 = row.c1;
  next.o0 = row.o0 + rows * static_cast<index>(a.strides[0][0]);
  next.o1 = row.o1 + rows * static_cast<index>(a.strides[1][0]);
  next.o2 = row.o2;
  next.o3 = row.o3 + rows * static_cast<index>(a.strides[3][0]);
  next.o4 = row.o4 + rows * static_cast<index>(a.strides[4][0]);
  next.o5 = row.o5;
  next.o6 = row.o6;
  next.o7 = row.o7;
  next.o8 = row.o8 + rows * static_cast<index>(a.strides[8][0]);
}
#endif
struct Values {
  float in0[V], in1[V];
};
struct Fixed {
  float in2[V], in14[V], in16[V], in20[V];
};
#if FW_ITEMS > 0
struct Kept {
  float v34[V];
};
#endif
struct Side {
  float s46[V], s48[V], s49[V], s51[V];
  FW_FN void clear() {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      s46[i] = 0.0f;
      s48[i] = 0.0f;
      s49[i] = 0.0f;
      s51[i] = 0.0f;
    }
  }
};
struct Total {
  FW_FN void clear() {
  }
  FW_FN void merge(const Total& other) {
  }
  FW_FN Total exchanged(fw::u32 offset) const {
    Total other;
    return other;
  }
};
FW_FN void put_side(const Args& a, const Side& side, index slot, index element, bool add, int sweep, fw::u32 stretch, fw::u32 stretches) {
  const index at = (slot * static_cast<index>(a.elements) + element) * V;
  if ((sweep < 0 || sweep == 1) && (0u & (stretches - 1)) == stretch) {
    float* to = static_cast<float*>(a.pointers[9]) + at;
    float sum[V];
    if (add) fw::load_vector(to, fw::plain, sum);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s46[i] : side.s46[i];
    fw::store_line(to, sum);
  }
  if ((sweep < 0 || sweep == 0) && (1u & (stretches - 1)) == stretch) {
    float* to = static_cast<float*>(a.pointers[10]) + at;
    float sum[V];
    if (add) fw::load_vector(to, fw::plain, sum);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s48[i] : side.s48[i];
    fw::store_line(to, sum);
  }
  if ((sweep < 0 || sweep == 0) && (2u & (stretches - 1)) == stretch) {
    float* to = static_cast<float*>(a.pointers[11]) + at;
    float sum[V];
    if (add) fw::load_vector(to, fw::plain, sum);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s49[i] : side.s49[i];
    fw::store_line(to, sum);
  }
  if ((sweep < 0 || sweep == 0) && (3u & (stretches - 1)) == stretch) {
    float* to = static_cast<float*>(a.pointers[12]) + at;
    float sum[V];
    if (add) fw::load_vector(to, fw::plain, sum);
#pragma unroll
    for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s51[i] : side.s51[i];
    fw::store_line(to, sum);
  }
}
struct Place {
  index pos;
};
FW_FN Place place(index e) {
  Place at;
  at.pos = e * V;
  return at;
}

#if FW_ITEMS > 0
#if FW_DEPTH > 0
FW_FN void ask(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), a.reads);
  fw::ask_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads);
}
FW_FN void ask_fixed(const Args& a, const Row& row, const Place& at, char* slot) {
  fw::ask_fixed_line(slot, 0, static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads);
  fw::ask_fixed_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), a.reads);
}
FW_FN void take(const Args& a, const Row& row, const Place& at, char* slot, Values& x) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), a.reads, x.in0);
  fw::take_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, x.in1);
}
FW_FN void take_fixed_0(const Args& a, const Row& row, const Place& at, char* slot, Fixed& f) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads, f.in2);
  fw::take_line(slot, fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in14);
  fw::take_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in16);
  fw::take_line(slot, fw::ahead_bytes<float>() + fw::ahead_bytes<float>() + fw::ahead_bytes<float>(), static_cast<const float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), a.reads, f.in20);
}
FW_FN void take_fixed_1(const Args& a, const Row& row, const Place& at, char* slot, Fixed& f) {
  fw::take_line(slot, 0, static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads, f.in2);
}
#else
FW_FN void load_moving(const Args& a, const Row& row, const Place& at, Values& x) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), a.reads, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), a.reads, x.in1);
}
FW_FN void load_fixed(const Args& a, const Row& row, const Place& at, Fixed& f) {
  fw::load_line(static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads, f.in2);
  fw::load_line(static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in14);
  fw::load_line(static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in16);
  fw::load_line(static_cast<const float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), a.reads, f.in20);
}
#endif
#else
template <class Again, class Last>
FW_FN void load_0(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x, Fixed& f) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), again, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), again, x.in1);
  fw::load_line(static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads, f.in2);
  fw::load_line(static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in14);
  fw::load_line(static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in16);
  fw::load_line(static_cast<const float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), a.reads, f.in20);
}
template <class Again, class Last>
FW_FN void load_1(const Args& a, const Row& row, const Place& at, Again again, Last last, Values& x, Fixed& f) {
  fw::load_line(static_cast<const float*>(a.pointers[0]) + (row.o0 + fw::along(at.pos, a.strides[0][2])), last, x.in0);
  fw::load_line(static_cast<const float*>(a.pointers[1]) + (row.o1 + fw::along(at.pos, a.strides[1][2])), last, x.in1);
  fw::load_line(static_cast<const float*>(a.pointers[2]) + (row.o2 + fw::along(at.pos, a.strides[2][2])), a.reads, f.in2);
  fw::load_line(static_cast<const float*>(a.pointers[5]) + (row.o5 + fw::along(at.pos, a.strides[5][2])), a.reads, f.in14);
  fw::load_line(static_cast<const float*>(a.pointers[6]) + (row.o6 + fw::along(at.pos, a.strides[6][2])), a.reads, f.in16);
  fw::load_line(static_cast<const float*>(a.pointers[7]) + (row.o7 + fw::along(at.pos, a.strides[7][2])), a.reads, f.in20);
}
#endif
FW_FN void load_row(const Args& a, Row& row) {
  row.v4 = fw::load(static_cast<const float*>(a.pointers[3]) + row.o3, a.reads);
  row.v8 = fw::load(static_cast<const float*>(a.pointers[4]) + row.o4, a.reads);
}

struct Sums0 {
  float a36, a37;
  FW_FN void clear() {
    a36 = 0.0f;
    a37 = 0.0f;
  }
  FW_FN void merge(const Sums0& other) {
    a36 += other.a36;
    a37 += other.a37;
  }
  FW_FN Sums0 exchanged(fw::u32 offset) const {
    Sums0 other;
    other.a36 = fw::shuffle_xor(a36, offset);
    other.a37 = fw::shuffle_xor(a37, offset);
    return other;
  }
};

FW_FN void row_0(const Args& a, Row& row) {
  const float number0 = a.numbers[0].as<float>();
  const float number1 = a.numbers[1].as<float>();
  row.v6 = fw::over_row(row.v4, number0);
  row.v12 = fw::rsqrt(fw::over_row(row.v8, number0) + number1);
}

#if FW_ITEMS > 0
FW_FN void stage_0(const Row& row, const Values& x, const Fixed& f, Kept& kept, bool inside, Sums0& sums, Side& side) {
  float part36 = 0.0f;
  float part37 = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v7 = (x.in1[i] + f.in2[i]) - row.v6;
    const float v13 = v7 * row.v12;
    const float v14 = f.in14[i];
    const float v17 = (v13 * v14) + f.in16[i];
    const float v18 = fw::sigmoid(v17);
    const float v19 = v17 * v18;
    const float v20 = f.in20[i];
    const float v21 = v19 * v20;
    const float v22 = fw::sigmoid(v21);
    const float v28 = (x.in0[i] * v22) * ((v21 * (1.0f - v22)) + 1.0f);
    const float v29 = v28 * v20;
    const float v32 = (v19 * (1.0f - v18)) + v18;
    const float v33 = v29 * v32;
    const float v34 = v33 * v14;
    kept.v34[i] = v34;
    part36 = fw::mad(v34, v7, part36);
    part37 = fw::mad(v33, v14, part37);
    if (inside) side.s48[i] = fw::mad(v33, v13, side.s48[i]);
    if (inside) side.s49[i] = fw::mad(v29, v32, side.s49[i]);
    if (inside) side.s51[i] = fw::mad(v28, v19, side.s51[i]);
  }
  if (ITEMS == 1 && inside) sums.a36 = part36;
  if (ITEMS != 1 && inside) sums.a36 += part36;
  if (ITEMS == 1 && inside) sums.a37 = part37;
  if (ITEMS != 1 && inside) sums.a37 += part37;
}
#else
FW_FN void stage_0(const Row& row, const Values& x, const Fixed& f, bool inside, Sums0& sums, Side& side) {
  float part36 = 0.0f;
  float part37 = 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v7 = (x.in1[i] + f.in2[i]) - row.v6;
    const float v13 = v7 * row.v12;
    const float v14 = f.in14[i];
    const float v17 = (v13 * v14) + f.in16[i];
    const float v18 = fw::sigmoid(v17);
    const float v19 = v17 * v18;
    const float v20 = f.in20[i];
    const float v21 = v19 * v20;
    const float v22 = fw::sigmoid(v21);
    const float v28 = (x.in0[i] * v22) * ((v21 * (1.0f - v22)) + 1.0f);
    const float v29 = v28 * v20;
    const float v32 = (v19 * (1.0f - v18)) + v18;
    const float v33 = v29 * v32;
    part36 = fw::mad(v33 * v14, v7, part36);
    part37 = fw::mad(v33, v14, part37);
    if (inside) side.s48[i] = fw::mad(v33, v13, side.s48[i]);
    if (inside) side.s49[i] = fw::mad(v29, v32, side.s49[i]);
    if (inside) side.s51[i] = fw::mad(v28, v19, side.s51[i]);
  }
  if (ITEMS == 1 && inside) sums.a36 = part36;
  if (ITEMS != 1 && inside) sums.a36 += part36;
  if (ITEMS == 1 && inside) sums.a37 = part37;
  if (ITEMS != 1 && inside) sums.a37 += part37;
}
#endif
FW_FN void row_1(const Args& a, Row& row, const Sums0& sums) {
  const float number0 = a.numbers[0].as<float>();
  row.v40 = fw::over_row((sums.a36 * row.v12) * row.v12, number0);
  row.v43 = fw::over_row(sums.a37, number0);
}

#if FW_ITEMS > 0
FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, const Fixed& f, Kept& kept, bool inside, Side& side) {
  float out45[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v44 = (kept.v34[i] - (((x.in1[i] + f.in2[i]) - row.v6) * row.v40)) - row.v43;
    out45[i] = v44 * row.v12;
    if (inside) side.s46[i] = fw::mad(v44, row.v12, side.s46[i]);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[8]) + (row.o8 + fw::along(at.pos, a.strides[8][2])), out45);
}
#else
FW_FN void stage_1(const Args& a, const Row& row, const Place& at, const Values& x, const Fixed& f, bool inside, Side& side) {
  float out45[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float v7 = (x.in1[i] + f.in2[i]) - row.v6;
    const float v14 = f.in14[i];
    const float v17 = ((v7 * row.v12) * v14) + f.in16[i];
    const float v18 = fw::sigmoid(v17);
    const float v19 = v17 * v18;
    const float v20 = f.in20[i];
    const float v21 = v19 * v20;
    const float v22 = fw::sigmoid(v21);
    const float v32 = (v19 * (1.0f - v18)) + v18;
    const float v42 = (((((x.in0[i] * v22) * ((v21 * (1.0f - v22)) + 1.0f)) * v20) * v32) * v14) - (v7 * row.v40);
    const float v44 = v42 - row.v43;
    out45[i] = v44 * row.v12;
    if (inside) side.s46[i] = fw::mad(v44, row.v12, side.s46[i]);
  }
  if (inside) fw::store_line(static_cast<float*>(a.pointers[8]) + (row.o8 + fw::along(at.pos, a.strides[8][2])), out45);
}
#endif
}  // namespace
#if FW_ITEMS > 0
constexpr int registers = ITEMS * V * 24 / 4 + V * 0 / 16 + 44;
constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);
__global__ void __launch_bounds__(FW_THREADS, blocks) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits));
  const index elements = fw::held_elements(a.elements);
  const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);
  const index anchor = (block.remainder << a.anchor_bits) + (team.row & ((1u << a.anchor_bits) - 1));
  const index part = block.quotient * (team.rows() >> a.anchor_bits) + (team.row >> a.anchor_bits);
  Row row;
  index row_index = part;
  row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
  if (!row.live) row_index = 0;
  place_row(a, anchor, row_index, row);
  fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile
#if FW_DEPTH > 0
  constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;
  char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);
  char* const fixed = own + FW_DEPTH * ITEMS * AHEAD;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const index e = static_cast<index>(team.thread) + (item << team.bits);
    if (fw::in_row(e, elements)) ask_fixed(a, row, place(e), fixed + item * FIXED);
  }
#pragma unroll
  for (int depth = 0; depth < FW_DEPTH; ++depth) {
    Row first;
    index first_index = part + depth * static_cast<index>(a.parts);
    first.live = part < static_cast<index>(a.parts) && first_index < static_cast<index>(a.walked);
    if (!first.live) first_index = 0;
    place_row(a, anchor, first_index, first);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      if (first.live && fw::in_row(e, elements)) ask(a, first, place(e), own + (depth * ITEMS + item) * AHEAD);
    }
    fw::copy_async_commit();
  }
  int depth = 0;
#else
  Values ahead[ITEMS];
  Fixed fixed[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const index e = static_cast<index>(team.thread) + (item << team.bits);
    if (row.live && fw::in_row(e, elements)) load_moving(a, row, place(e), ahead[item]);
  }
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const index e = static_cast<index>(team.thread) + (item << team.bits);
    if (fw::in_row(e, elements)) load_fixed(a, row, place(e), fixed[item]);
  }
#endif
  load_row(a, row);
  const fw::u32 stretch_bits = team.bits + a.anchor_bits;
  Total total;
  total.clear();
  Side side[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    side[item].clear();
  }
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Values x[ITEMS];
#if FW_DEPTH > 0
    Row next;
    index next_index = part + (turn + 1) * static_cast<index>(a.parts);
    next.live = part < static_cast<index>(a.parts) && next_index < static_cast<index>(a.walked);
    if (!next.live) next_index = 0;
    place_row(a, anchor, next_index, next);
    load_row(a, next);
    fw::copy_async_wait<FW_DEPTH - 1>();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      take(a, row, place(row.live && fw::in_row(e, elements) ? e : 0), own + (depth * ITEMS + item) * AHEAD, x[item]);
    }
    Row later;
    index later_index = part + (turn + FW_DEPTH) * static_cast<index>(a.parts);
    later.live = part < static_cast<index>(a.parts) && later_index < static_cast<index>(a.walked);
    if (!later.live) later_index = 0;
    place_row(a, anchor, later_index, later);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      if (later.live && fw::in_row(e, elements)) ask(a, later, place(e), own + (depth * ITEMS + item) * AHEAD);
    }
    fw::copy_async_commit();
    depth = depth + 1 == FW_DEPTH ? 0 : depth + 1;
#else
    Row next;
    move_row(a, row, next);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      x[item] = ahead[item];
    }
    if (next.live) {
      load_row(a, next);
#pragma unroll
      for (int item = 0; item < ITEMS; ++item) {
        const index e = static_cast<index>(team.thread) + (item << team.bits);
        if (fw::in_row(e, elements)) load_moving(a, next, place(e), ahead[item]);
      }
    }
    fw::stay_above(a.lane_bits);
#endif
    row_0(a, row);
    Kept kept[ITEMS];
    Sums0 sums0;
    sums0.clear();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      const bool inside = row.live && fw::in_row(e, elements);
#if FW_DEPTH > 0
      Fixed f;
      take_fixed_0(a, row, place(inside ? e : 0), fixed + item * FIXED, f);
#else
      const Fixed& f = fixed[item];
#endif
      stage_0(row, x[item], f, kept[item], inside, sums0, side[item]);
    }
    fw::reduce(team, sums0);
    row_1(a, row, sums0);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      const index e = static_cast<index>(team.thread) + (item << team.bits);
      const bool inside = row.live && fw::in_row(e, elements);
#if FW_DEPTH > 0
      Fixed f;
      take_fixed_1(a, row, place(inside ? e : 0), fixed + item * FIXED, f);
#else
      const Fixed& f = fixed[item];
#endif
      stage_1(a, row, place(e), x[item], f, kept[item], inside, side[item]);
    }
    row = next;
  }
  const fw::u32 stretch = fw::thread_index() >> stretch_bits;
  const fw::u32 stretches = fw::block_threads() >> stretch_bits;
#if FW_DEPTH > 0
  fw::copy_async_wait<0>();
#else
#endif
  char* const memory = fw::shared_memory() + a.ahead;
  if (stretches > 1) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      fw::barrier();  // whoever still reads what was there
      fw::leave_for_stretches(side[item].s46, memory, 0u);
      fw::leave_for_stretches(side[item].s48, memory, 1u);
      fw::leave_for_stretches(side[item].s49, memory, 2u);
      fw::leave_for_stretches(side[item].s51, memory, 3u);
      fw::barrier();
      if ((0u & (stretches - 1)) == stretch) fw::add_stretches(side[item].s46, stretch_bits, memory, 0u);
      if ((1u & (stretches - 1)) == stretch) fw::add_stretches(side[item].s48, stretch_bits, memory, 1u);
      if ((2u & (stretches - 1)) == stretch) fw::add_stretches(side[item].s49, stretch_bits, memory, 2u);
      if ((3u & (stretches - 1)) == stretch) fw::add_stretches(side[item].s51, stretch_bits, memory, 3u);
    }
  }
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const index e = static_cast<index>(team.thread) + (item << team.bits);
    if (fw::in_row(e, elements)) put_side(a, side[item], block.quotient * static_cast<index>(a.anchors) + anchor, e, false, -1, stretch, stretches);
  }
}
#else
__global__ void __launch_bounds__(512) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul(const Args a) {
  fw::follow_last_launch();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);
  const index anchor = (block.remainder << a.anchor_bits) + (team.row & ((1u << a.anchor_bits) - 1));
  const index part = block.quotient * (team.rows() >> a.anchor_bits) + (team.row >> a.anchor_bits);
  Total total;
  total.clear();
  for (index turn = 0; turn < static_cast<index>(a.share); ++turn) {
    Row row;
    index row_index = part + turn * static_cast<index>(a.parts);
    row.live = part < static_cast<index>(a.parts) && row_index < static_cast<index>(a.walked);
    if (!row.live) row_index = 0;
    place_row(a, anchor, row_index, row);
    load_row(a, row);
    row_0(a, row);
    const index elements = row.live ? static_cast<index>(a.elements) : 0;
    const fw::ReadAgain again = {a.reads};
    const fw::ReadLast last = {{fw::evict_normal}};
    constexpr int bytes0 = V * 24;
    constexpr int AHEAD0 = bytes0 <= 16 ? 4 : bytes0 <= 32 ? 2 : 1;
    const index end0 = elements, step0 = static_cast<index>(team.threads());
    index e0 = static_cast<index>(team.thread);
    Values next0[AHEAD0];
    Fixed next_fixed0[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
      }
    }
    Sums0 sums0;
    sums0.clear();
    while (e0 < end0) {
      Values x[AHEAD0];
      Fixed f[AHEAD0];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n], f[n] = next_fixed0[n];
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (AHEAD0 + n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD0; ++n) {
        const index beyond = (n) * step0;
        if (beyond < end0 - e0) {
          const index e = e0 + beyond;
          Side side;
          side.clear();
          stage_0(row, x[n], f[n], true, sums0, side);
          put_side(a, side, block.quotient * static_cast<index>(a.anchors) + anchor, e, turn > 0, 0, 0, 1);
        }
      }
      if (end0 - e0 <= AHEAD0 * step0) break;
      e0 += AHEAD0 * step0;
    }
    constexpr int bytes1 = V * 24;
    constexpr int AHEAD1 = bytes1 <= 16 ? 4 : bytes1 <= 32 ? 2 : 1;
    const index end1 = elements, step1 = static_cast<index>(team.threads());
    index e1 = static_cast<index>(team.thread);
    Values next1[AHEAD1];
    Fixed next_fixed1[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
      }
    }
    fw::reduce(team, sums0);
    row_1(a, row, sums0);
    while (e1 < end1) {
      Values x[AHEAD1];
      Fixed f[AHEAD1];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n], f[n] = next_fixed1[n];
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (AHEAD1 + n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
        }
      }
#pragma unroll
      for (int n = 0; n < AHEAD1; ++n) {
        const index beyond = (n) * step1;
        if (beyond < end1 - e1) {
          const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
          Side side;
          side.clear();
          stage_1(a, row, place(e), x[n], f[n], true, side);
          put_side(a, side, block.quotient * static_cast<index>(a.anchors) + anchor, e, turn > 0, 1, 0, 1);
        }
      }
      if (end1 - e1 <= AHEAD1 * step1) break;
      e1 += AHEAD1 * step1;
    }
  }
}
__global__ void __launch_bounds__(256) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul_phase0(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
  constexpr int AHEAD0 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index end0 = row.live ? static_cast<index>(a.elements) : 0, step0 = static_cast<index>(a.splits * team.threads());
  index e0 = static_cast<index>(split * static_cast<index>(team.threads()) + static_cast<index>(team.thread));
  Values next0[AHEAD0];
  Fixed next_fixed0[AHEAD0];
#pragma unroll
  for (int n = 0; n < AHEAD0; ++n) {
    const index beyond = (n) * step0;
    if (beyond < end0 - e0) {
      const index e = e0 + beyond;
      load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
    }
  }
  fw::let_next_launch_begin();
  load_row(a, row);
  row_0(a, row);
  Total total;
  total.clear();
  Sums0 sums0;
  sums0.clear();
  while (e0 < end0) {
    Values x[AHEAD0];
    Fixed f[AHEAD0];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) x[n] = next0[n], f[n] = next_fixed0[n];
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (AHEAD0 + n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        load_0(a, row, place(e), again, last, next0[n], next_fixed0[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD0; ++n) {
      const index beyond = (n) * step0;
      if (beyond < end0 - e0) {
        const index e = e0 + beyond;
        Side side;
        side.clear();
        stage_0(row, x[n], f[n], true, sums0, side);
        put_side(a, side, k, e, false, 0, 0, 1);
      }
    }
    if (end0 - e0 <= AHEAD0 * step0) break;
    e0 += AHEAD0 * step0;
  }
  fw::reduce(team, sums0);
  if (team.thread == 0) static_cast<fw::Slot<Sums0>*>(a.partial[0])[((k * static_cast<index>(a.splits) + split) << a.partial_bits) + lane].sums = sums0;
}
__global__ void __launch_bounds__(256) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul_phase1(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index block = static_cast<index>(fw::block_index());
  const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);
  const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
  constexpr int AHEAD1 = 4;
  const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again
  const index beginning = split * static_cast<index>(a.stretch);
  const index rest = static_cast<index>(a.elements) - beginning, stretch = static_cast<index>(a.stretch);
  const index end1 = row.live ? beginning + (rest < stretch ? rest : stretch) : 0, step1 = static_cast<index>(team.threads());
  index e1 = static_cast<index>(beginning + static_cast<index>(team.thread));
  Values next1[AHEAD1];
  Fixed next_fixed1[AHEAD1];
#pragma unroll
  for (int n = 0; n < AHEAD1; ++n) {
    const index beyond = (n) * step1;
    if (beyond < end1 - e1) {
      const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
      load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
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
  row_1(a, row, sums0);
  Total total;
  total.clear();
  while (e1 < end1) {
    Values x[AHEAD1];
    Fixed f[AHEAD1];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) x[n] = next1[n], f[n] = next_fixed1[n];
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (AHEAD1 + n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        load_1(a, row, place(e), again, last, next1[n], next_fixed1[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < AHEAD1; ++n) {
      const index beyond = (n) * step1;
      if (beyond < end1 - e1) {
        const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);
        Side side;
        side.clear();
        stage_1(a, row, place(e), x[n], f[n], true, side);
        put_side(a, side, k, e, false, 1, 0, 1);
      }
    }
    if (end1 - e1 <= AHEAD1 * step1) break;
    e1 += AHEAD1 * step1;
  }
}
__global__ void __launch_bounds__(256) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul_phase2(const Args a) {
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);
  const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;
  const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);
  Row row;
  const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);
  row.live = true;
  place_row(a, slot.remainder, slot.quotient, row);
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
  row_1(a, row, sums0);
}
__global__ void __launch_bounds__(256) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul_merge0(const Args a) {
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
namespace {
template <class T>
struct SideSum {
  T value;
  FW_FN void merge(const SideSum& other) { value += other.value; }
  FW_FN SideSum exchanged(fw::u32 offset) const { return {fw::shuffle_xor(value, offset)}; }
};
FW_FN void side_46(const Args& a, fw::Team& team, index output) {
  index from = 0, to = 0, outputs = 1;
  index left = output;
   {
    const fw::Quotient q = fw::divided(left, a.sizes[2], a.divider[2]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[2]);
    to += q.remainder * static_cast<index>(a.strides[9][2]);
    outputs *= static_cast<index>(a.sizes[2]);
  }
   {
    const fw::Quotient q = fw::divided(left, a.sizes[1], a.divider[1]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[1]);
    to += q.remainder * static_cast<index>(a.strides[9][1]);
    outputs *= static_cast<index>(a.sizes[1]);
  }
  const bool there = left == 0 && outputs > 0;
  index terms = static_cast<index>(a.side_parts);
  const index part = static_cast<index>(a.anchors * a.elements * V);
  SideSum<float> sum = {0.0f};
  fw::wait_for_last_launch();  // for the parts; where they stand was worked out meanwhile
#pragma unroll 8
  for (index term = static_cast<index>(team.thread); there && term < terms; term += static_cast<index>(team.threads())) {
    index t = term, offset = from;
    sum.value += static_cast<float*>(a.pointers[9])[offset + t * part];
  }
  fw::reduce(team, sum);
  if (there && team.thread == 0) static_cast<float*>(a.results[9])[to] = fw::convert<float>(sum.value);
}
FW_FN void side_48(const Args& a, fw::Team& team, index output) {
  index from = 0, to = 0, outputs = 1;
  index left = output;
   {
    const fw::Quotient q = fw::divided(left, a.sizes[2], a.divider[2]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[2]);
    to += q.remainder * static_cast<index>(a.strides[10][2]);
    outputs *= static_cast<index>(a.sizes[2]);
  }
   {
    const fw::Quotient q = fw::divided(left, a.sizes[1], a.divider[1]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[1]);
    to += q.remainder * static_cast<index>(a.strides[10][1]);
    outputs *= static_cast<index>(a.sizes[1]);
  }
  const bool there = left == 0 && outputs > 0;
  index terms = static_cast<index>(a.side_parts);
  const index part = static_cast<index>(a.anchors * a.elements * V);
  SideSum<float> sum = {0.0f};
  fw::wait_for_last_launch();  // for the parts; where they stand was worked out meanwhile
#pragma unroll 8
  for (index term = static_cast<index>(team.thread); there && term < terms; term += static_cast<index>(team.threads())) {
    index t = term, offset = from;
    sum.value += static_cast<float*>(a.pointers[10])[offset + t * part];
  }
  fw::reduce(team, sum);
  if (there && team.thread == 0) static_cast<float*>(a.results[10])[to] = fw::convert<float>(sum.value);
}
FW_FN void side_49(const Args& a, fw::Team& team, index output) {
  index from = 0, to = 0, outputs = 1;
  index left = output;
   {
    const fw::Quotient q = fw::divided(left, a.sizes[2], a.divider[2]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[2]);
    to += q.remainder * static_cast<index>(a.strides[11][2]);
    outputs *= static_cast<index>(a.sizes[2]);
  }
   {
    const fw::Quotient q = fw::divided(left, a.sizes[1], a.divider[1]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[1]);
    to += q.remainder * static_cast<index>(a.strides[11][1]);
    outputs *= static_cast<index>(a.sizes[1]);
  }
  const bool there = left == 0 && outputs > 0;
  index terms = static_cast<index>(a.side_parts);
  const index part = static_cast<index>(a.anchors * a.elements * V);
  SideSum<float> sum = {0.0f};
  fw::wait_for_last_launch();  // for the parts; where they stand was worked out meanwhile
#pragma unroll 8
  for (index term = static_cast<index>(team.thread); there && term < terms; term += static_cast<index>(team.threads())) {
    index t = term, offset = from;
    sum.value += static_cast<float*>(a.pointers[11])[offset + t * part];
  }
  fw::reduce(team, sum);
  if (there && team.thread == 0) static_cast<float*>(a.results[11])[to] = fw::convert<float>(sum.value);
}
FW_FN void side_51(const Args& a, fw::Team& team, index output) {
  index from = 0, to = 0, outputs = 1;
  index left = output;
   {
    const fw::Quotient q = fw::divided(left, a.sizes[2], a.divider[2]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[2]);
    to += q.remainder * static_cast<index>(a.strides[12][2]);
    outputs *= static_cast<index>(a.sizes[2]);
  }
   {
    const fw::Quotient q = fw::divided(left, a.sizes[1], a.divider[1]);
    left = q.quotient;
    from += q.remainder * static_cast<index>(a.side_strides[1]);
    to += q.remainder * static_cast<index>(a.strides[12][1]);
    outputs *= static_cast<index>(a.sizes[1]);
  }
  const bool there = left == 0 && outputs > 0;
  index terms = static_cast<index>(a.side_parts);
  const index part = static_cast<index>(a.anchors * a.elements * V);
  SideSum<float> sum = {0.0f};
  fw::wait_for_last_launch();  // for the parts; where they stand was worked out meanwhile
#pragma unroll 8
  for (index term = static_cast<index>(team.thread); there && term < terms; term += static_cast<index>(team.threads())) {
    index t = term, offset = from;
    sum.value += static_cast<float*>(a.pointers[12])[offset + t * part];
  }
  fw::reduce(team, sum);
  if (there && team.thread == 0) static_cast<float*>(a.results[12])[to] = fw::convert<float>(sum.value);
}
}  // namespace
__global__ void __launch_bounds__(512) fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul_sides(const Args a) {
  fw::let_next_launch_begin();
  fw::Team team = fw::make_team(a.team_bits, a.lane_bits);  // lanes: neighbouring results
  const index blocks = static_cast<index>(a.side_blocks), block = static_cast<index>(fw::block_index());
  const index output = block % blocks * static_cast<index>(team.lanes()) + static_cast<index>(team.lane);
  switch (block / blocks) {
    case 0: side_46(a, team, output); break;
    case 1: side_48(a, team, output); break;
    case 2: side_49(a, team, output); break;
    case 3: side_51(a, team, output); break;
  }
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

struct bfloat16 {
  u16 bits;
};

FW_FN float to_float(bfloat16 h) { return float_of(u32(h.bits) << 16); }

// To 16 bits: nearest, ties to even; any NaN becomes a quiet one.
FW_FN float to_float(half h) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h.bits));
  return r;
}

FW_FN half to_half(float x) {
  half r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}

#if __CUDA_ARCH__ >= 800
FW_FN bfloat16 to_bfloat16(float x) {
  bfloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
#else
FW_FN bfloat16 to_bfloat16(float x) {
  const u32 b = bits_of(x);
  const u32 rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  return {u16((b & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}
#endif

template <class A, class B>
struct same {
  static constexpr bool value = false;
};

template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};

// The cast of PyTorch between any two of bool, u8, i8, i16, i32, i64, half, bfloat16, float and double.
template <class To, class From>
FW_FN To convert(From v) {
  constexpr bool from_float = same<From, float>::value || same<From, double>::value;
  if constexpr (same<To, From>::value) {
    return v;
  } else if constexpr (same<From, half>::value || same<From, bfloat16>::value) {
    return convert<To>(to_float(v));
  } else if constexpr (same<To, half>::value) {
    return to_half(static_cast<float>(v));
  } else if constexpr (same<To, bfloat16>::value) {
    return to_bfloat16(static_cast<float>(v));
  } else if constexpr (same<To, bool>::value) {
    return v != 0;
  } else if constexpr (from_float && same<To, u8>::value) {
    return static_cast<u8>(static_cast<i64>(v));  // a direct cast of a negative number is undefined
  } else if constexpr (from_float && sizeof(To) < sizeof(i32)) {
    return static_cast<To>(static_cast<i32>(v));
  } else {
    return static_cast<To>(v);
  }
}

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

FW_FN float abs(float x) { return ::fabsf(x); }  // part of the instruction that takes it
FW_FN i64 neg(i64 x) { return static_cast<i64>(0 - static_cast<u64>(x)); }
FW_FN i64 abs(i64 x) { return x < 0 ? neg(x) : x; }
FW_FN float neg(float x) { return -x; }
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

// From 1 to 2^60: nothing has to be scaled. Or 0, of what has no elements.
FW_FN Divisor<float> count_of(float n) { return exact_reciprocal(n, 1.0f); }

// As div above; 0.5 ulp, 1.0 just above the denormal numbers, 1.5 in them.
FW_FN float div(float a, Divisor<float> b) {
  a *= b.scale;
  return mad(a, b.reciprocal, a * b.rest);
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

template <class T>
FW_FN T shuffle_xor(T value, u32 offset) {
  return __shfl_xor_sync(all_lanes, value, static_cast<int>(offset), 32);
}

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

// The same for every row, a norm's weight: each block asks for it once. Few lines of memory that all processors ask
// for come from few parts of the L2 cache, and that took longer than the rows themselves (LayerNorm of 65536 rows of
// 128 floats, a row to each team: 212 us).
template <class T>
FW_FN void ask_fixed_line(char* slot, u32 before, const T* from, ReadOnly how) {
  ask_line<true>(slot, before, from, how);
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

// A sum over a row divided by the number of its elements: a power of two that the text is for makes a product of it.
template <class T>
FW_FN T over_row(T sum, T elements) {
#if FW_ITEMS > 0
  constexpr i64 known = i64{FW_ROW} * V;
  if constexpr (known > 0 && (known & (known - 1)) == 0) return sum * (T(1) / T(known));
#endif
  return div(sum, count_of(elements));
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

// What the threads of a block hold that stand at the same place in stretches of 2^bits threads is added up: all leave
// theirs in shared memory, and behind a barrier those of one stretch take it, in the order of the stretches. `which`:
// of several that are there at a time, room for an 8-byte number each.
template <class T>
FW_FN T* stretch_slot(char* memory, u32 which, u32 thread) {
  return reinterpret_cast<T*>(memory + (which * block_threads() + thread) * (V * 8));
}

template <class T>
FW_FN void add_vector(const T* from, T (&values)[V]) {
  T other[V];
  load_vector(from, plain, other);
#pragma unroll
  for (int i = 0; i < V; ++i) values[i] += other[i];
}

template <class T>
FW_FN void leave_for_stretches(const T (&values)[V], char* memory, u32 which) {
  store_vector<V>(stretch_slot<T>(memory, which, thread_index()), values);
}

template <class T>
FW_FN void add_stretches(T (&values)[V], u32 bits, char* memory, u32 which) {
  u32 t = thread_index() & ((1u << bits) - 1);
  load_vector(stretch_slot<T>(memory, which, t), plain, values);
#pragma unroll 4
  for (t += 1u << bits; t < block_threads(); t += 1u << bits) add_vector(stretch_slot<T>(memory, which, t), values);
}

// Two branches that are never taken, `bits` being a number of bits, hold the assembler to the order of the text. Loads
// above the first are issued above it: it would move them down to where registers are free, and then nothing is on its
// way while the thread computes. A value at the second has been computed there: it would move all waits for copies
// in front of what is computed between them.
FW_FN void stay_above([[maybe_unused]] u32 bits) {
  if (bits > 32) asm volatile("trap;");
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
  LaunchChoice rule_rows(Call& call) const;
  LaunchChoice rule_walking(const Call& call) const;
  // Elements in the vectors of columns in registers: the values of a thread's columns take registers, too.
  int held_columns(int vector) const { return std::min(vector, 4); }
  // The shape that follows from a choice. False: kernels of this choice cannot run these sizes.
  bool plan(Call& call, const LaunchChoice& choice) const;
  void plan_pointwise(Call& call, const LaunchChoice& choice) const;
  void plan_rows(Call& call, const LaunchChoice& choice) const;
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
  bool add_side_memory(Call& call, const std::vector<const Tensor*>& operands, Launches& launches) const;
  bool sides_are_results(const Call& call, const std::vector<const Tensor*>& operands) const;
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
  if (code_.nest.kind == Loops::Kind::row) choice = rule_rows(c);
  return choice;
}

// In registers, if a block can hold a row.
inline LaunchChoice CudaRules::rule_rows(Call& c) const {
  const int usual = code_.cuda.items[code_.cuda.items.size() - 2], most = code_.cuda.items.back();
  LaunchChoice choice;
  choice.vector = c.variant.vector;
  choice.items = usual;
  choice.threads = 128;
  const bool sides = code_.cuda.has_sides();
  // Sums on the side take as many registers as the row: twice the threads have them.
  const Variant of_length{c.variant.vector, usual, false, {}, c.elements};
  const int64_t threads = sides && has(of_length) ? held(of_length).most_threads : 256;
  if (c.elements > usual * threads) choice.items = most;
  // Rows that a warp holds at one vector to a thread: neighbours read neighbouring memory.
  if (c.elements <= 32 && c.variant.vector == widest_) choice.items = 1;
  // The sums of more teams are added up in the block, before they cost memory.
  if (sides && choice.items == 1) choice.threads = 256;
  // Many blocks with a few rows each even out what the device does not do at one speed. With sums on the side every
  // team more costs a buffer.
  if (!sides) choice.scale = choice.items == 1 ? 2 : 3;
  if (plan(c, choice)) return choice;
  set_vector(c, c.variant.vector);
  return rule_walking(c);
}

// Several blocks to a row where there are few.
inline LaunchChoice CudaRules::rule_walking(const Call& c) const {
  LaunchChoice choice;
  choice.vector = c.variant.vector;
  choice.split = c.anchors * c.walked < 2 * c.processors;
  choice.threads = choice.split ? 256 : 512;
  choice.scale = choice.split || code_.cuda.has_sides() ? 0 : 3;
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
  if (code_.nest.kind == Loops::Kind::row) plan_rows(c, choice);
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

inline void CudaRules::plan_rows(Call& c, const LaunchChoice& choice) const {
  c.split = choice.split;
  if (c.split) {
    c.team = c.threads;
    split_elements(c, c.anchors * c.walked, choice.scale);
    c.parts = c.side_parts = c.walked;
    c.total_parts = c.walked * c.splits;
    return;
  }
  c.team = choice.items ? power_of_two_from(ceil_div(c.elements, choice.items)) : c.threads;
  if (const Variant of_length{choice.vector, choice.items, false, {}, c.elements, c.variant.cluster}; has(of_length))
    c.variant.row = c.elements;
  if (c.team > 32) c.threads = c.team / c.spread();  // a team of several warps has the block to itself, or the cluster
  if (c.team < 32 && c.anchors > 0) c.anchors_together = std::min<int64_t>(32 / c.team, c.anchors & -c.anchors);
  if (!possible(c)) return;
  c.tiles = c.anchors / c.anchors_together;
  // With sums on the side every block more costs a buffer, so that it should have some rows to add up there.
  const int64_t parts_in_block = c.teams_in_block() / c.anchors_together;
  const bool places = code_.cuda.sides_at_positions() > 0;
  share_rows(c, c.anchors, places ? ceil_div(c.walked, 16) * parts_in_block : c.walked, choice.scale);
  c.total_parts = c.parts;
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

// Whether the one part of all sums on the side lies as the results do, and may be written there.
inline bool CudaRules::sides_are_results(const Call& c, const std::vector<const Tensor*>& operands) const {
  if (c.split || c.variant.items == 0 || c.side_parts != 1) return false;
  size_t side = 0;
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (!code_.operands[o].side) continue;
    if (!code_.cuda.position_side[side++] || operands[o]->dtype != code_.operands[o].dtype) return false;
    if (reinterpret_cast<uintptr_t>(operands[o]->data) % widest_vector != 0) return false;
    for (size_t a = 0; a < c.g.axes; ++a)
      if (c.g.sizes[a] != 1 && c.g.stride(o, a) != c.side_strides[a]) return false;
  }
  return true;
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
  if (code_.cuda.has_sides()) return add_side_memory(c, operands, result);
  return false;
}

// Those for sums on the side.
inline bool CudaRules::add_side_memory(Call& c, const std::vector<const Tensor*>& operands, Launches& result) const {
  c.side_strides.assign(c.g.axes, 0);
  c.total_strides.assign(c.g.axes, 0);
  int64_t stride = 1;
  auto lay_out = [&](const std::vector<int>& axes, std::vector<int64_t>& strides) {
    for (size_t k = axes.size(); k-- > 0;) {
      strides[static_cast<size_t>(axes[k])] = stride;
      stride *= c.g.sizes[static_cast<size_t>(axes[k])];
    }
  };
  lay_out(code_.cuda.anchor_axes, c.total_strides);
  stride = 1;
  lay_out({code_.nest.inner}, c.side_strides);
  lay_out(code_.nest.reduced, c.side_strides);
  lay_out(code_.cuda.anchor_axes, c.side_strides);
  if (sides_are_results(c, operands)) return false;
  size_t side = 0;
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (!code_.operands[o].side) continue;
    const bool position = code_.cuda.position_side[side++];
    const int64_t elements = position ? c.side_parts * c.elements * c.variant.vector : c.total_parts;
    result.buffers.push_back({elements * c.anchors * size_of(code_.operands[o].dtype), o});
  }
  return true;
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
  if (sides_in_parts) {
    // The parts of sums on the side: neighbouring results side by side, a team for each.
    int64_t outputs = 1, terms = 1;
    size_t side = 0;
    for (size_t o = 0; o < code_.operands.size(); ++o) {
      if (!code_.operands[o].side) continue;
      const int64_t results = std::max<int64_t>(operands[o]->elements(), 1);
      const bool position = code_.cuda.position_side[side++];
      const int64_t parts = position ? c.side_parts * c.elements * c.variant.vector : c.total_parts;
      outputs = std::max(outputs, results);
      terms = std::max(terms, parts * c.anchors / results);
    }
    const int64_t team = terms <= 16 ? 1 : std::min<int64_t>(power_of_two_from(ceil_div(terms, 8)), 64);
    c.variant.items = 0;
    c.variant.row = 0;
    c.variant.cluster = false;
    c.partial.resize(c.sums(code_).size());  // of the text that walks over its rows, which may have fewer passes
    c.cluster = 1;
    c.lanes = std::min<int64_t>(team > 16 ? 8 : team > 1 ? 32 : 128, power_of_two_from(outputs));
    c.team = std::max(team, 32 / c.lanes);
    c.threads = c.team * c.lanes;
    c.side_blocks = ceil_div(outputs, c.lanes);
    start(c, code_.name + "_sides", c.side_blocks * static_cast<int64_t>(code_.cuda.position_side.size()));
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
    ("fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_row_linear_bias_group_norm_sigmoid_mul_mul_sigmoid_mul";
  k.operands = {
      {"matmul", DType::f32, false, false, {{0}, {1, 2}}},
      {"linear_bias", DType::f32, false, false, {{1, 2}}},
      {"sum", DType::f32, true, false, {{0}, {1}, {}}},
      {"sum", DType::f32, true, false, {{0}, {1}, {}}},
      {"group_norm_weight", DType::f32, false, false, {{1, 2}}},
      {"group_norm_bias", DType::f32, false, false, {{1, 2}}},
      {"multiplier", DType::f32, false, false, {{1, 2}}},
      {"mul", DType::f32, true, false, {{0}, {1, 2}}},
  };
  k.axes = {{false, false}, {false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32};
  k.nest.kind = Loops::Kind::row;
  k.nest.kept = {0, 1};
  k.nest.inner = 2;
  k.nest.stages = 3;
  k.cuda.anchor_axes = {1};
  k.cuda.walked_axes = {0};
  k.cuda.sums = {{4}, {4}, {}};
  k.cuda.vectors = {{0, 2}, {1, 2}, {4, 2}, {5, 2}, {6, 2}, {7, 2}};
  k.cuda.walking.stages = 2;
  k.cuda.walking.sums = {{4, 4, 4, 4, 4}, {}};
  k.cuda.walking.leaves_sums = {true, false};
  k.cuda.walking.final_phase = false;
  k.cuda.items = {1, 2, 4, 8};
  k.cuda.ahead = {0};
  k.cuda.fixed = {1, 4, 5, 6};
  k.cuda.can_tile = false;
''', [
        ("{4, 1, false, {}, 8}", [_LOOPS, _FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=1, WIDE=0, ROW=8, DEPTH=4, AHEAD=16, FIXED=64, SLOT=128, THREADS=256, CLUSTER=0)),
        ("{4, 1, false, {}, 0}", [_LOOPS, _FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=1, WIDE=0, ROW=0, DEPTH=4, AHEAD=16, FIXED=64, SLOT=128, THREADS=256, CLUSTER=0)),
        ("{4, 0, false, {}, 0}", [_LOOPS, _FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=4, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, false, {}, 0}", [_LOOPS, _FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, true, {}, 0}", [_LOOPS, _FW_ROW_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0'], dict(VECTOR=1, ITEMS=0, WIDE=1, ROW=0)),
    ]),
    ("fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul", "CudaKernel", r'''
  k.name = "fw_row_backward_linear_bias_group_norm_sigmoid_mul_sigmoid_mul";
  k.operands = {
      {"dL_dy0", DType::f32, false, false, {{0}, {1, 2}}},
      {"saved_matmul8", DType::f32, false, false, {{0}, {1, 2}}},
      {"linear_bias", DType::f32, false, false, {{1, 2}}},
      {"saved_sum11", DType::f32, false, false, {{0}, {1}, {}}},
      {"saved_sum16", DType::f32, false, false, {{0}, {1}, {}}},
      {"group_norm_weight", DType::f32, false, false, {{1, 2}}},
      {"group_norm_bias", DType::f32, false, false, {{1, 2}}},
      {"multiplier", DType::f32, false, false, {{1, 2}}},
      {"mul", DType::f32, true, false, {{0}, {1}, {2}}},
      {"sum", DType::f32, true, true, {{}, {1, 2}}},
      {"sum", DType::f32, true, true, {{}, {1, 2}}},
      {"sum", DType::f32, true, true, {{}, {1, 2}}},
      {"sum", DType::f32, true, true, {{}, {1, 2}}},
  };
  k.axes = {{false, false}, {false, false}, {false, false}};
  k.numbers = {DType::f32, DType::f32};
  k.nest.kind = Loops::Kind::row;
  k.nest.kept = {0, 1};
  k.nest.inner = 2;
  k.nest.stages = 2;
  k.cuda.anchor_axes = {1};
  k.cuda.walked_axes = {0};
  k.cuda.sums = {{4, 4}, {}};
  k.cuda.position_side = {true, true, true, true};
  k.cuda.vectors = {{0, 2}, {1, 2}, {2, 2}, {5, 2}, {6, 2}, {7, 2}, {8, 2}};
  k.cuda.walking.stages = 2;
  k.cuda.walking.sums = {{4, 4}, {}};
  k.cuda.walking.leaves_sums = {true, false};
  k.cuda.walking.final_phase = false;
  k.cuda.items = {1, 2, 4};
  k.cuda.ahead = {0, 1};
  k.cuda.fixed = {2, 5, 6, 7};
  k.cuda.can_tile = false;
''', [
        ("{4, 1, false, {}, 8}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=1, WIDE=0, ROW=8, DEPTH=0, AHEAD=0, FIXED=0, SLOT=128, THREADS=256, CLUSTER=0)),
        ("{4, 1, false, {}, 0}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL], [''],
            dict(VECTOR=4, ITEMS=1, WIDE=0, ROW=0, DEPTH=4, AHEAD=32, FIXED=64, SLOT=192, THREADS=256, CLUSTER=0)),
        ("{4, 0, false, {}, 0}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0', '_sides'], dict(VECTOR=4, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 2, false, {}, 0}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL], [''],
            dict(VECTOR=1, ITEMS=2, WIDE=0, ROW=0, DEPTH=2, AHEAD=8, FIXED=16, SLOT=64, THREADS=256, CLUSTER=0)),
        ("{1, 0, false, {}, 0}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0', '_sides'], dict(VECTOR=1, ITEMS=0, WIDE=0, ROW=0)),
        ("{1, 0, true, {}, 0}", [_LOOPS, _FW_ROW_BACKWARD_LINEAR_BIAS_GROUP_NORM_SIGMOID_MUL_SIGMOID_MUL],
            ['', '_phase0', '_phase1', '_phase2', '_merge0', '_sides'], dict(VECTOR=1, ITEMS=0, WIDE=1, ROW=0)),
    ]),
]
_BACKEND, _NAME = "cuda", "linear_groupnorm_swish_mul_swish"
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
