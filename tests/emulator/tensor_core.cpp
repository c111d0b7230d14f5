// Products. mma is computed when its last lane comes. A product of a warpgroup (wgmma) runs beside its threads: each
// warp's part reads the operands when that warp waits for it, as late as it may. Until then the accumulators are
// poisoned, so that touching them, and overwriting an operand, shows.
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/block.h"
#include "emulator/cluster.h"
#include "emulator/module.h"
#include "emulator/register_marks.h"

namespace fwemu {
namespace {

static_assert(int(f16) == fw::operand_f16 && int(bf16) == fw::operand_bf16 && int(tf32) == fw::operand_tf32);
fw::OperandType operand_of(MmaType type) { return static_cast<fw::OperandType>(type); }

// An operand's element; the hardware does not look at the low bits of tf32.
float element(unsigned bits, MmaType type) {
  switch (type) {
    case f16:
      return fw::to_float(fw::half{static_cast<uint16_t>(bits)});
    case bf16:
      return std::bit_cast<float>(bits << 16);
    default:
      return std::bit_cast<float>(bits & ~0x1fffu);
  }
}
// Part of a register.
float element(unsigned word, unsigned part, MmaType type) {
  return element(fw::operand_bytes(operand_of(type)) == 4 ? word : part == 0 ? word & 0xffff : word >> 16, type);
}

constexpr unsigned poison_word = poison * 0x01010101u;

}  // namespace

bool Block::ProductCall::operator==(const ProductCall& other) const {
  const Product &p = product, &q = other.product;
  return line == other.line && p.a_descriptor == q.a_descriptor && p.b_descriptor == q.b_descriptor && p.n == q.n &&
         p.type == q.type && p.accumulate == q.accumulate && p.a_major == q.a_major && p.b_major == q.b_major &&
         p.a_sign == q.a_sign && p.b_sign == q.b_sign && (p.a == nullptr) == (q.a == nullptr);
}

// ---- of a warp ----

void Block::multiply(Warp& warp, MmaType type) {
  const fw::OperandType operand = operand_of(type);
  const fw::Shape shape = fw::mma_shape(operand);
  double a[16][16], b[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto& tile = warp.calls[lane]->operand.tile;
    for (unsigned part = 0; part < fw::operands_per_register(operand); ++part) {
      for (unsigned i = 0; i < fw::a_registers; ++i) {
        const fw::Element e = fw::a_element(operand, lane, i, part);
        a[e.row][e.column] = element(tile.a[i], part, type);
      }
      for (unsigned i = 0; i < fw::b_registers; ++i) {
        const fw::Element e = fw::b_element(operand, lane, i, part);
        b[e.row][e.column] = element(tile.b[i], part, type);
      }
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    WarpCall& call = *warp.calls[lane];
    for (unsigned i = 0; i < fw::mma_accumulators; ++i) {
      const fw::Element e = fw::accumulator_element(lane, i);
      double sum = call.operand.tile.c[i];
      for (unsigned k = 0; k < shape.k; ++k) sum += a[e.row][k] * b[k][e.column];
      call.result.c[i] = static_cast<float>(sum);
    }
  }
}

void Block::load_matrices(Warp& warp, int count, bool transposed) {
  for (int i = 0; i < count; ++i) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const WarpCall& call = *warp.calls[8 * i + row];
      check_shared(call.operand.row, 16, 16, call.line);
      const unsigned first = current_->number / 32 * 32;
      if (watches_races_) note_access(call.operand.row, 16, false, nullptr, call.line, first + 8 * i + row);
      std::memcpy(matrix[row], call.operand.row, 16);
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      const fw::Element low = fw::matrix_element(lane, 0, transposed), high = fw::matrix_element(lane, 1, transposed);
      warp.calls[lane]->result.words[i] = matrix[low.row][low.column] | unsigned{matrix[high.row][high.column]} << 16;
    }
  }
}

void Block::store_matrices(Warp& warp, int count, bool transposed) {
  for (int i = 0; i < count; ++i) {
    uint16_t matrix[8][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const fw::Element low = fw::matrix_element(lane, 0, transposed), high = fw::matrix_element(lane, 1, transposed);
      matrix[low.row][low.column] = static_cast<uint16_t>(warp.calls[lane]->operand.store.words[i]);
      matrix[high.row][high.column] = static_cast<uint16_t>(warp.calls[lane]->operand.store.words[i] >> 16);
    }
    for (int row = 0; row < 8; ++row) {
      const WarpCall& call = *warp.calls[8 * i + row];
      check_shared(call.operand.store.row, 16, 16, call.line);
      const unsigned first = current_->number / 32 * 32;
      if (watches_races_) note_access(call.operand.store.row, 16, true, nullptr, call.line, first + 8 * i + row);
      std::memcpy(call.operand.store.row, matrix[row], 16);
    }
  }
}

// ---- of a warpgroup: operands ----

const char* Block::operand_at(Descriptor d, const Product& product, bool is_a, unsigned outer, unsigned k) const {
  const auto major = static_cast<fw::Major>(is_a ? product.a_major : product.b_major);
  return window() + fw::operand_address(d, major, operand_of(product.type), outer, k);
}

void Block::check_descriptor(uint64_t bits, const Product& product, bool is_a, int line) {
  const std::string name = std::string("the descriptor of ") + (is_a ? "A" : "B");
  if ((bits & ~(fw::descriptor_fields | fw::descriptor_base_offset)) != 0) {
    fail(name + " has bits that mean nothing", line);
  }
  if ((bits & fw::descriptor_base_offset) != 0) {
    fail(name + " has a base offset, which the emulator does not model: a pattern begins at a multiple of its size",
         line);
  }
  const Descriptor d = fw::decode(bits);
  const unsigned row = fw::swizzle_bytes(d.swizzle);
  if (d.swizzle != fw::swizzle_none && d.start % fw::pattern_bytes(d.swizzle) >= row) {
    fail(name + " begins at shared address " + std::to_string(d.start) + ", not in the first row of a pattern of " +
             std::to_string(fw::pattern_bytes(d.swizzle)) + " bytes",
         line);
  }
  const fw::Shape shape = fw::wgmma_shape(operand_of(product.type), product.n);
  const unsigned outer = is_a ? shape.m : shape.n;
  // Addresses grow with both, but for the swizzle, which stays within 128 bytes.
  for (unsigned o = 0; o < outer; o += outer - 1) {
    for (unsigned k = 0; k < shape.k; k += shape.k - 1) {
      const char* p = operand_at(d, product, is_a, o, k);
      if (shared_.contains(p, 1)) continue;
      fail(name + " reaches to byte " + std::to_string(p - shared_.data()) + " of " + std::to_string(shared_.size()) +
               " bytes of shared memory",
           line);
    }
  }
}

// ---- of a warpgroup: asking for a product ----

void Block::mark_registers(const void* p, size_t bytes, uint32_t mark) {
  uint32_t* marks = registers_->find(p);
  for (size_t i = 0; marks != nullptr && i < bytes / 4; ++i) marks[i] = mark;
}

void Block::check_registers(const void* p, size_t bytes, uint32_t fences, int line) {
  const uint32_t* marks = registers_->find(p);
  for (size_t i = 0; marks != nullptr && i < bytes / 4; ++i) {
    if (marks[i] != fences + 1) continue;
    fail("a register of this product was touched with no wgmma_fence() between", line);
  }
}

void Block::note_register(const void* p, size_t bytes, bool write, const void* code) {
  uint32_t* marks = registers_->find(p);
  if (marks == nullptr) return;
  const Warp& warp = warps_[current_->number / 32];
  for (size_t i = 0; i < (bytes + 3) / 4; ++i) {
    if (marks[i] == RegisterMarks::accumulator || (write && marks[i] == RegisterMarks::operand)) {
      const bool d = marks[i] == RegisterMarks::accumulator;
      fail(std::string(write ? "writes" : "reads") + (d ? " an accumulator" : " a register of A") +
               " of a product that is under way",
           line_of(*launch_->request.image, static_cast<const char*>(code) - 1));
    }
    if (marks[i] != RegisterMarks::operand) marks[i] = warp.fences + 1;
  }
}

void Block::ask_for_product(Warp& warp, unsigned index, int line) {
  const unsigned group = index / 4, lanes = 32;
  const Product& product = warp.calls[0]->operand.product;
  if ((group + 1) * 4 > warps_.size()) fail("a product of less than a warpgroup", line);
  if (!fw::is_wgmma_width(product.n)) fail("there is no product of this width", line);
  const ProductCall own = {product, line};
  for (const WarpCall* call : warp.calls) {
    if (!(own == ProductCall{call->operand.product, call->line})) {
      fail("lanes of a warp ask for different products", line);
    }
  }
  std::vector<ProductCall>& calls = warpgroup_products_[group];
  if (warp.asked == calls.size()) calls.push_back(own);
  if (!(calls[warp.asked] == own)) {
    fail("asks for another product than a warp of its warpgroup at " + launch_->quote(calls[warp.asked].line), line);
  }
  ++warp.asked;
  if (product.a == nullptr) check_descriptor(product.a_descriptor, product, true, line);
  check_descriptor(product.b_descriptor, product, false, line);
  if (!fw::can_transpose(operand_of(product.type)) && (product.a_major != 0 || product.b_major != 0)) {
    fail("tf32 operands are read along k only", line);
  }
  if (warp.fences == 0) fail("a product with no wgmma_fence() before it", line);

  const unsigned count = fw::wgmma_accumulators(product.n);
  const size_t bytes = count * sizeof(float);
  Accumulators* accumulators = nullptr;
  for (Accumulators& known : warp.accumulators) {
    if (known.d[0] == product.d && known.count == count) {
      accumulators = &known;
    } else if (known.under_way != 0 && known.d[0] < product.d + count && product.d < known.d[0] + known.count) {
      fail("the accumulators overlap those of the product under way at " + launch_->quote(known.line), line);
    }
  }
  if (accumulators == nullptr) {
    warp.accumulators.push_back({});
    accumulators = &warp.accumulators.back();
    accumulators->count = count;
    for (unsigned lane = 0; lane < lanes; ++lane) accumulators->d[lane] = warp.calls[lane]->operand.product.d;
  } else if (accumulators->under_way == 0 && accumulators->fences == warp.fences) {
    for (unsigned lane = 0; lane < lanes; ++lane) {
      if (std::memcmp(accumulators->d[lane], &accumulators->values[lane * count], bytes) == 0) continue;
      fail("the accumulators were written, and there is no wgmma_fence() between", line);
    }
  }
  PendingProduct pending = {
      product, {}, {}, static_cast<size_t>(accumulators - warp.accumulators.data()), warp.committed + 1, line};
  if (product.a != nullptr) {
    pending.a_values.resize(lanes * fw::a_registers);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      pending.a[lane] = warp.calls[lane]->operand.product.a;
      std::memcpy(&pending.a_values[lane * fw::a_registers], pending.a[lane], fw::a_registers * 4);
      if (registers_ != nullptr) {
        check_registers(pending.a[lane], fw::a_registers * 4, warp.fences, line);
        mark_registers(pending.a[lane], fw::a_registers * 4, RegisterMarks::operand);
      }
    }
  }
  if (accumulators->under_way == 0) {
    accumulators->values.resize(lanes * count);
    for (unsigned lane = 0; lane < lanes; ++lane) {
      float* d = warp.calls[lane]->operand.product.d;
      accumulators->d[lane] = d;
      std::memcpy(&accumulators->values[lane * count], d, bytes);
      if (registers_ != nullptr) {
        check_registers(d, bytes, warp.fences, line);
        mark_registers(d, bytes, RegisterMarks::accumulator);
      }
      std::memset(d, poison, bytes);
    }
  }
  ++accumulators->under_way;
  accumulators->line = line;
  if (watches_races_) note_product(warp, index, pending);
  warp.products.push_back(std::move(pending));
}

// Notes the shared memory that the warp's part of the product reads: its rows of A, and all of B.
void Block::note_product(Warp& warp, unsigned index, const PendingProduct& pending) {
  const Product& product = pending.product;
  const fw::OperandType type = operand_of(product.type);
  const fw::Shape shape = fw::wgmma_shape(type, product.n);
  if (warp.actor == 0) warp.actor = cluster_->races().new_actor();
  const auto note = [&](const char* p, unsigned bytes) {
    note_asynchronous(*this, p, bytes, false, 32 * index, 32, Races::Actor::products, warp.actor, pending.group,
                      pending.line);
  };
  const unsigned unit = 16 / fw::operand_bytes(type);  // elements that lie together
  const auto note_operand = [&](uint64_t bits, int major, bool is_a, unsigned first, unsigned end) {
    const Descriptor d = fw::decode(bits);
    for (unsigned outer = first; outer < end; outer += major == fw::k_major ? 1 : unit)
      for (unsigned k = 0; k < shape.k; k += major == fw::k_major ? unit : 1)
        note(operand_at(d, product, is_a, outer, k), 16);
  };
  if (product.a == nullptr)
    note_operand(product.a_descriptor, product.a_major, true, index % 4 * 16, index % 4 * 16 + 16);
  note_operand(product.b_descriptor, product.b_major, false, 0, product.n);
}

// ---- of a warpgroup: its end ----

void Block::run_product(Warp& warp, unsigned index, PendingProduct& pending) {
  const Product& product = pending.product;
  const fw::OperandType type = operand_of(product.type);
  const fw::Shape shape = fw::wgmma_shape(type, product.n);
  const unsigned bytes = fw::operand_bytes(type), row0 = index % 4 * 16;
  const auto read = [&](const Descriptor& d, bool is_a, unsigned outer, unsigned k) {
    unsigned bits = 0;
    std::memcpy(&bits, operand_at(d, product, is_a, outer, k), bytes);
    return element(bits, product.type);
  };
  double a[16][16], b[16][256], sums[256];
  if (product.a != nullptr) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned* values = &pending.a_values[lane * fw::a_registers];
      if (std::memcmp(values, pending.a[lane], fw::a_registers * 4) != 0) {
        fail("registers of A were changed before the wgmma_wait for their product", pending.line);
      }
      for (unsigned i = 0; i < fw::a_registers; ++i) {
        for (unsigned part = 0; part < fw::operands_per_register(type); ++part) {
          const fw::Element e = fw::a_element(type, lane, i, part);
          a[e.row][e.column] = element(values[i], part, product.type);
        }
      }
      if (registers_ != nullptr) mark_registers(pending.a[lane], fw::a_registers * 4, 0);
    }
  } else {
    const Descriptor d = fw::decode(product.a_descriptor);
    for (unsigned row = 0; row < 16; ++row)
      for (unsigned k = 0; k < shape.k; ++k) a[row][k] = read(d, true, row0 + row, k);
  }
  const Descriptor d = fw::decode(product.b_descriptor);
  for (unsigned k = 0; k < shape.k; ++k)
    for (unsigned column = 0; column < shape.n; ++column) b[k][column] = read(d, false, column, k);

  Accumulators& accumulators = warp.accumulators[pending.accumulators];
  float tile[16][256];
  const double sign = product.a_sign * product.b_sign;
  for (unsigned row = 0; row < 16; ++row) {
    std::fill(sums, sums + shape.n, 0.0);
    for (unsigned k = 0; k < shape.k; ++k)
      for (unsigned column = 0; column < shape.n; ++column) sums[column] += a[row][k] * b[k][column];
    for (unsigned column = 0; column < shape.n; ++column) tile[row][column] = static_cast<float>(sign * sums[column]);
    // One rounding for the sum with the accumulator too: kept in double until then.
    if (!product.accumulate) continue;
    for (unsigned lane = row % 8 * 4; lane < row % 8 * 4 + 4; ++lane) {
      for (unsigned i = 0; i < accumulators.count; ++i) {
        const fw::Element e = fw::accumulator_element(lane, i);
        if (e.row != row) continue;
        const double c = accumulators.values[lane * accumulators.count + i];
        tile[row][e.column] = static_cast<float>(c + sign * sums[e.column]);
      }
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < accumulators.count; ++i) {
      const fw::Element e = fw::accumulator_element(lane, i);
      accumulators.values[lane * accumulators.count + i] = tile[e.row][e.column];
    }
  }
  if (--accumulators.under_way == 0) end_accumulators(warp, index, accumulators);
}

void Block::end_accumulators(Warp& warp, unsigned, Accumulators& accumulators) {
  const size_t bytes = accumulators.count * sizeof(float);
  for (unsigned lane = 0; lane < 32; ++lane) {
    float* d = accumulators.d[lane];
    for (unsigned i = 0; i < accumulators.count; ++i) {
      if (std::bit_cast<unsigned>(d[i]) == poison_word) continue;
      fail("an accumulator was written before the wgmma_wait for its product", accumulators.line);
    }
    std::memcpy(d, &accumulators.values[lane * accumulators.count], bytes);
    if (registers_ != nullptr) mark_registers(d, bytes, 0);
  }
  accumulators.fences = warp.fences;
}

void Block::wgmma_wait(Warp& warp, unsigned index, unsigned groups) {
  const unsigned ended = warp.committed > groups ? warp.committed - groups : 0;
  size_t done = 0;
  while (done < warp.products.size() && warp.products[done].group <= ended)
    run_product(warp, index, warp.products[done++]);
  warp.products.erase(warp.products.begin(), warp.products.begin() + static_cast<ptrdiff_t>(done));
  if (!watches_races_ || warp.actor == 0) return;
  for (unsigned lane = 0; lane < 32; ++lane) cluster_->races().learn(actor(32 * index + lane), warp.actor, ended);
}

void Block::hold(const float* accumulators, unsigned count, int line) {
  const Warp& warp = warps_[current_->number / 32];
  for (const Accumulators& known : warp.accumulators) {
    const float* d = known.d[current_->number % 32];
    if (known.under_way == 0 || d >= accumulators + count || accumulators >= d + known.count) continue;
    fail("holds accumulators of a product that is under way, which was asked for at " + launch_->quote(known.line),
         line);
  }
}

void Block::check_products_at_end() {
  const std::string place = "block " + std::to_string(index_);
  for (unsigned w = 0; w < warps_.size(); ++w) {
    const Warp& warp = warps_[w];
    if (!warp.products.empty()) {
      return launch_->report(place, "warp " + std::to_string(w) + " ended while a product was under way, from " +
                                        launch_->quote(warp.products[0].line));
    }
    if (warp.asked != warpgroup_products_[w / 4].size()) {
      return launch_->report(place, "warp " + std::to_string(w) + " asked for " + std::to_string(warp.asked) +
                                        " of the " + std::to_string(warpgroup_products_[w / 4].size()) +
                                        " products of its warpgroup");
    }
    if (warp.changes != warps_[w / 4 * 4].changes) {
      return launch_->report(place, "warps of a warpgroup changed their registers " + std::to_string(warp.changes) +
                                        " and " + std::to_string(warps_[w / 4 * 4].changes) + " times");
    }
  }
}

}  // namespace fwemu
