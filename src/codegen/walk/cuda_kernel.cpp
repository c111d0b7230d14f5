// The CUDA dialect. A thread works on vectors of neighbouring elements; a team of threads reduces a row together.
//
// Three ways to run a kernel with reductions, all from the same functions:
//   whole, in registers   a team, of a block or a cluster, reads its row once and keeps it: passes after the first cost
//                         no memory
//   whole, walking        rows that are too long for that are read again in every pass
//   split                 few long rows: one launch for each pass, many blocks to a row; each block leaves its partial
//                         sums in memory, and every block of the next launch adds them up for itself
// A pointwise kernel is a single pass over lines, without rows.
#include "codegen/walk/cuda_emitter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "embedded_kernels.h"

namespace fusewright {

using std::to_string;

const std::string& cuda_prelude() {
  static const std::string text = std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cuda_device +
                                  "\n" + embedded_cuda_loops + "\n";
  return text;
}

const std::string& cuda_tile_prelude() {
  static const std::string text = cuda_prelude() + embedded_cuda_tile + "\n";
  return text;
}

CudaEmitter::CudaEmitter(const Graph& graph, const Kernel& kernel, Text text)
    : Emitter(graph, kernel, choose_walk(graph, kernel, text == Text::walking ? Rows::memory : Rows::registers),
              Dialect::cuda),
      kind_(text) {
  if (nest().kind != LoopNest::Kind::row) {
    anchor_axes_ = row_axes();
    return;
  }
  // A team stays where sums on the side have their results, or where operands that all rows share (a norm's weights)
  // are the same, and walks over the other rows: what it holds of them is read or written once.
  auto moves = [&](int a) {
    for (int s = 0; s < count(); ++s) {
      if (has_sides() && step(s).side && varies(step(s), a)) return false;
      if (has_sides() || !is_element_load(s)) continue;
      bool everywhere = std::all_of(row_axes().begin(), row_axes().end(), [&](int r) { return varies(step(s), r); });
      if (!everywhere && varies(step(s), a)) return false;
    }
    return true;
  };
  for (int a : row_axes()) (moves(a) ? walked_axes_ : anchor_axes_).push_back(a);
}

KernelCode CudaEmitter::run() {
  write_header();
  if (kind_ == Text::tiled) write_tile_memory();
  write_row_state();
  write_values();
  write_side_state();
  write_element_place();
  if (has_rows()) write_row_loads();
  for (int p = 0; p < nest().stages; ++p) {
    write_sums(p);
    if (has_rows()) write_row_code(p);
    write_stage(p);
  }
  if (has_rows()) write_row_code(nest().stages);
  line("}  // namespace");
  if (kind_ == Text::tiled) {
    write_tiled_entry();
  } else if (!has_rows()) {
    write_pointwise_entry();
  } else if (!walking()) {
    write_held_entry();
  } else {
    const std::string before_entries = out_;
    // What `write` appends, as a text by itself.
    auto part = [&](auto write) {
      const size_t begin = out_.size();
      write();
      return before_entries + out_.substr(begin);
    };
    auto& parts = code_.cuda.walking_parts;
    parts.whole_rows = part([&] { write_walking_entry(); });
    parts.split_rows = part([&] {
      for (int p = 0; p <= nest().stages; ++p) write_phase_entry(p);
      for (int p = 0; p < nest().stages; ++p) write_merge_entry(p);
    });
    if (has_sides()) parts.sides = part([&] { write_sides_entry(); });
  }
  describe();
  code_.text = std::move(out_);
  return std::move(code_);
}

// Fills in what the launcher must know beside the text.
void CudaEmitter::describe() {
  CudaCode& cuda = code_.cuda;
  cuda.anchor_axes = anchor_axes_;
  cuda.walked_axes = walked_axes_;
  for (int p = 0; p < nest().stages; ++p) {
    std::vector<int64_t> sizes;
    for (int s : reduces_in(p)) sizes.push_back(size_of(compute_type(dtype(s))));
    // Beside the two: first elements, distances of the mean, counts.
    for (int m : moments_in(p)) sizes.insert(sizes.end(), 3, size_of(compute_type(dtype(m))));
    cuda.sums.push_back(sizes);
  }
  if (walking()) describe_walking();
  cuda.items = items();
  for (int s = 0; s < count(); ++s) {
    if (is_ahead(s)) cuda.ahead.push_back(operand_of_[static_cast<size_t>(s)].load);
    if (is_fixed(s) && inner_varying(s)) cuda.fixed.push_back(operand_of_[static_cast<size_t>(s)].load);
    if (step(s).side) cuda.position_side.push_back(is_position_side(s));
    auto [load, store] = operand_of_[static_cast<size_t>(s)];
    bool wide = inner_varying(s) && !row_level(s) && !step(s).side;
    if (load >= 0 && wide) cuda.vectors.push_back({load, nest().inner});
    if (store >= 0 && wide) cuda.vectors.push_back({store, nest().inner});
    if (step(s).role != Role::window || inner_tap(s) < 0 || axis(inner_tap(s)).gather) continue;
    for (int other : window_steps(s))
      if (step(other).role == Role::load && varies(step(other), inner_tap(s)))
        cuda.vectors.push_back({operand_of_[static_cast<size_t>(other)].load, inner_tap(s)});
  }
}

void CudaEmitter::describe_walking() {
  CudaLoops::Walking& walking = code_.cuda.walking;
  walking.stages = nest().stages;
  walking.sums = code_.cuda.sums;
  for (int p = 0; p < nest().stages; ++p) walking.leaves_sums.push_back(leaves_sums(p));
  for (int s = 0; s < count(); ++s) walking.final_phase |= row_level(s) && step(s).stored && stage(s) == nest().stages;
}

// The rule takes the first for pointwise kernels and columns, and for rows the last but one where that can hold them.
std::vector<int> CudaEmitter::items() const {
  // The taps of a window are many loads already, and its lines are short.
  if (!has_rows()) return {nest().has_window ? 1 : 2};
  if (is_column()) {
    int64_t widest = 0;
    for (int s = 0; s < count(); ++s)
      if (inner_varying(s) && (is_element_load(s) || step(s).stored)) widest = std::max(widest, size_of(dtype(s)));
    const int half = widest > 2 ? 4 : 8;  // vectors of up to four: two bytes each take half the room of four
    return held_bytes() > 4 ? std::vector<int>{2 * half, half} : std::vector<int>{2 * half, 4 * half, half};
  }
  return held_bytes() > 16 ? std::vector<int>{1, 2, 4} : std::vector<int>{1, 2, 4, 8};
}

bool CudaEmitter::is_ahead(int s) const {
  return has_rows() && !walking() && is_element_load(s) && inner_varying(s) && !is_fixed(s);
}

int64_t CudaEmitter::held_bytes() const {
  int64_t always = 0, most = 0;
  for (int s = 0; s < count(); ++s) {
    if (step(s).side && is_position_side(s)) always += size_of(compute_type(dtype(s)));
  }
  // Between passes p and p + 1: what has been carried there, and the operands that are still needed.
  for (int p = -1; p + 1 < nest().stages; ++p) {
    int64_t bytes = 0;
    std::vector<bool> needed(static_cast<size_t>(count()));
    for (int q = p + 1; q < nest().stages; ++q)
      for (int s : needed_in(q)) {
        needed[static_cast<size_t>(s)] = true;
        for (int operand : step(s).operands) needed[static_cast<size_t>(operand)] = true;
      }
    for (int s = 0; s < count(); ++s) {
      if (!needed[static_cast<size_t>(s)]) continue;
      if (carried(s) && stage(s) <= p) bytes += size_of(compute_type(dtype(s)));
      if (is_ahead(s)) bytes += size_of(dtype(s));
    }
    most = std::max(most, bytes);
  }
  return always + most;
}

// Values of the columns, those of the next row that are read ahead, and sums.
int64_t CudaEmitter::row_bytes() const {
  int64_t bytes = 0;
  for (int s = 0; s < count() && is_column(); ++s) {
    const int64_t size = size_of(compute_type(dtype(s)));
    if (row_array(s) && row_level(s)) bytes += step(s).role == Role::load ? 2 * size : size;
    if (step(s).role == Role::reduce) bytes += size;
  }
  return bytes;
}

int64_t CudaEmitter::loaded_bytes(int p) const {
  int64_t bytes = 0;
  for (int s : needed_in(p))
    if (is_element_load(s)) bytes += size_of(dtype(s));
  return bytes;
}

bool CudaEmitter::is_divisor(int s) const {
  if (!row_level(s)) return false;
  for (int user = s + 1; user < count(); ++user)
    if (!row_level(user) && step(user).role == Role::compute && node(user).op == Op::div && step(user).operands[1] == s)
      return true;
  return false;
}

// Whether it is the number of elements in a row.
bool CudaEmitter::counts_row(int s) const {
  if (nest().kind != LoopNest::Kind::row || node(s).op != Op::extent) return false;
  return node(s).sizes("size")[0] == elements_of_row(kernel_.axes, nest());
}

std::string CudaEmitter::accumulator_type(int s) const { return register_type(dtype(s)); }

// Accumulates what s reduces. A product is added in one instruction: the compiler would not do that across a condition.
std::string CudaEmitter::accumulate(int s, const std::string& total) const {
  const int value = step(s).operands[0];
  const bool here = step(value).role == Role::compute && !step(value).rounded && !row_level(value) &&
                    !(carried(value) && stage(value) < pass_);
  const bool real = is_float(dtype(s)) && compute_type(dtype(value)) == compute_type(dtype(s));
  if (node(s).op != Op::sum || node(value).op != Op::mul || !here || !real) return combine(s, total, use(value));
  return total + " = fw::mad(" + use(step(value).operands[0]) + ", " + use(step(value).operands[1]) + ", " + total +
         ");";
}

// Accumulates `value` into `total`. A NaN stays.
std::string CudaEmitter::combine(int s, const std::string& total, const std::string& value) const {
  if (node(s).op == Op::sum) return total + " += " + value + ";";
  if (node(s).op == Op::prod) return total + " *= " + value + ";";
  return total + " = fw::" + (node(s).op == Op::amax ? "maximum(" : "minimum(") + total + ", " + value + ");";
}

bool CudaEmitter::is_position_side(int s) const {
  if (inner_varying(s)) return true;
  for (int a : nest().reduced)
    if (varies(step(s), a)) return true;
  return false;
}

std::vector<int> CudaEmitter::sides(bool position) const {
  std::vector<int> result;
  for (int s = 0; s < count(); ++s)
    if (step(s).side && is_position_side(s) == position) result.push_back(s);
  return result;
}

void CudaEmitter::write_header() {
  line("namespace {");
  line("using fw::index;");
  line("using fw::V;");
  line("using fw::ITEMS;");
  auto at_least_one = [](size_t n) { return to_string(std::max<size_t>(n, 1)); };
  line("struct Args : fw::KernelArgs<", at_least_one(kernel_.axes.size()), ", ", at_least_one(code_.operands.size()),
       ", ", at_least_one(code_.numbers.size()), ", ", at_least_one(static_cast<size_t>(nest().stages)), "> {};");
  line();
}

// Rows in registers are read once whatever the number of passes, and two of them give the more accurate variance for
// less arithmetic; a kernel that walks over its rows takes both moments in one.
KernelCode emit_cuda(const Graph& graph, const Kernel& kernel) {
  using Text = CudaEmitter::Text;
  CudaEmitter emitter(graph, kernel, Text::ordinary);
  const bool can_tile = emitter.can_tile();
  KernelCode code = emitter.run();
  code.cuda.can_tile = can_tile;
  if (can_tile) code.cuda.tiled_text = CudaEmitter(graph, kernel, Text::tiled).run().text;
  if (code.nest.kind == LoopNest::Kind::pointwise) return code;
  KernelCode walking = CudaEmitter(graph, kernel, Text::walking).run();
  code.cuda.walking = walking.cuda.walking;
  code.cuda.walking_text = walking.text;
  code.cuda.walking_parts = walking.cuda.walking_parts;
  return code;
}

}  // namespace fusewright
