// The kernels themselves: a pointwise one, and for reductions one for whole rows, one for each pass over split rows.
#include <algorithm>
#include <utility>

#include "codegen/cuda_emitter.h"

namespace fusewright {

using std::to_string;

void CudaEmitter::write_pointwise_entry() {
  // A team takes a stretch of one line; its coordinates are worked out once for all of it.
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, 0);");
  line("const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);");
  line("const index anchor = block.quotient * static_cast<index>(team.rows()) + static_cast<index>(team.row);");
  line("if (anchor >= a.anchors) return;");
  line("Row row;");
  line("row.live = true;");
  line("place_row(a, anchor, 0, row);");
  line("const index first = block.remainder * (ITEMS << team.bits) + static_cast<index>(team.thread);");
  line("Values x[ITEMS];");
  auto over_items = [&](const char* what) {
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = first + (item << team.bits);");
    line("if (e < a.line) ", what, ";");
    close();
  };
  over_items("load_moving(a, row, place(a, e), x[item])");
  over_items("stage_0(a, row, place(a, e), x[item], Fixed(), true)");
  close();
}

// Every thread of a row's team works out the row's values for itself; one of them stores. While a team works on a row
// in registers, the next one that it walks to is on its way.
void CudaEmitter::write_whole_entry() {
  const bool sides = has_sides(), walks = !walked_axes_.empty();
  std::string side = sides ? ", side[item], total" : "", walking_side = sides ? ", once, total" : "";
  // Two blocks on a processor, one loading while the other reduces, where their registers allow it.
  int64_t bytes = 0;  // that a thread holds for each element of its vectors: operands, those of the next row, sums
  for (int s = 0; s < count(); ++s) {
    if (is_element_load(s) && inner_varying(s)) bytes += size_of(dtype(s)) * (walks && !is_fixed(s) ? 2 : 1);
    if (step(s).side && is_position_side(s)) bytes += size_of(compute_type(dtype(s)));
  }
  line("constexpr int most_threads = ", is_column() ? "512" : "FW_ITEMS == 4 ? 256 : 512", ";");
  line("constexpr int registers = ITEMS * V * ", to_string(bytes), " / 4 + 40;");
  line("constexpr int blocks = ITEMS > 0 && 2 * most_threads * registers <= 65536 + 8192 ? 2 : 1;");
  open("extern \"C\" __global__ void __launch_bounds__(most_threads, blocks) ", code_.name, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  line("const index k = static_cast<index>(fw::block_index() * team.rows() + team.row);");
  line("Row row;");
  if (is_column()) {
    line("const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);");
    line("row.pos = (tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;");
    line("const bool there = tile.quotient < a.anchors && row.pos < a.sizes[", to_string(nest().inner), "];");
    line("if (!there) row.pos = 0;");
    line("const index anchor = there ? tile.quotient : 0;");
  } else {
    line("const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);");
    line("const index anchor = slot.remainder;");
    line("const bool there = slot.quotient < a.parts;");
    if (walks) line("const index start = slot.quotient * static_cast<index>(a.share);");
  }
  auto place = [&](const std::string& row, const std::string& turn) {
    if (walks) {
      line(row, ".live = there && ", turn, " < a.share && start + ", turn, " < a.walked;");
      line("place_row(a, anchor, ", row, ".live ? start + ", turn, " : 0, ", row, ");");
    } else {
      line(row, ".live = there;");
      line("place_row(a, anchor, 0, ", row, ");");
    }
  };
  auto over_items = [&](const std::vector<std::string>& what) {
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = static_cast<index>(team.thread) + (item << team.bits);");
    for (const std::string& text : what) line(text);
    close();
  };
  // Beyond the row's end its first vector is loaded once more: loads that depend on nothing are all on their way before
  // the first value is needed. The launcher keeps empty rows away from here.
  auto load_items = [&](const std::string& row, const std::string& to) {
    over_items(
        {"load_moving(a, " + row + ", place(a, " + row + ".live && e < a.elements ? e : 0), " + to + "[item]);"});
  };
  place("row", "0");
  if (sides) {
    line("Total total;");
    line("total.clear();");
  }
  out_ += "#if FW_ITEMS > 0\n";
  if (sides) {
    line("Side side[ITEMS];");
    over_items({"side[item].clear();"});
  }
  line("Fixed f[ITEMS];");
  line("Values x[ITEMS];");
  over_items({"load_fixed(a, row, place(a, e < a.elements ? e : 0), f[item]);"});
  load_items("row", "x");
  out_ += "#endif\n";
  if (walks) {
    // As many turns for every team, so that lanes of one warp stay together.
    open("for (index turn = 0; turn < a.share; ++turn)");
    line("Row next;");
    place("next", "turn + 1");
    out_ += "#if FW_ITEMS > 0\n";
    line("Values y[ITEMS];");
    load_items("next", "y");
    out_ += "#endif\n";
  }
  line("const bool first = row.live && team.thread == 0;");
  line("row_0(a, row, first);");
  for (int p = 0; p < nest().stages; ++p) {
    std::string id = to_string(p);
    line("Sums", id, " sums", id, ";");
    line("sums", id, ".clear();");
    out_ += "#if FW_ITEMS > 0\n";
    over_items({"stage_" + id + "(a, row, place(a, e), x[item], f[item], row.live && e < a.elements, sums" + id + side +
                ");"});
    out_ += "#else\n";
    line("const index end", id, " = row.live ? static_cast<index>(a.elements) : 0;");
    open("for (index e = static_cast<index>(team.thread); e < end", id, "; e += static_cast<index>(team.threads()))");
    line("Values x;");
    line("Fixed f;");
    line("load_", id, "(a, row, place(a, e), x, f);");
    if (sides) {
      line("Side once;");
      line("once.clear();");
    }
    line("stage_", id, "(a, row, place(a, e), x, f, true, sums", id, walking_side, ");");
    if (sides && !sides_in(p).empty()) line("put_side(a, once, k, e, ", walks ? "turn > 0" : "false", ", ", id, ");");
    close();
    out_ += "#endif\n";
    if (!reduces_in(p).empty()) line("fw::reduce(team, sums", id, ");");
    line("row_", to_string(p + 1), "(a, row, first, sums", id, ");");
  }
  if (walks) {
    line("row = next;");
    out_ += "#if FW_ITEMS > 0\n#pragma unroll\n";
    line("for (int item = 0; item < ITEMS; ++item) x[item] = y[item];");
    out_ += "#endif\n";
    close();
  }
  if (sides) {
    out_ += "#if FW_ITEMS > 0\n";
    over_items({"if (there && e < a.elements) put_side(a, side[item], k, e, false, -1);"});
    out_ += "#endif\n";
    if (!this->sides(false).empty()) {
      line("fw::reduce(team, total);");
      line("if (there && team.thread == 0) put_total(a, total, k);");
    }
  }
  close();
}

std::string CudaEmitter::partial(int p, const std::string& split) const {
  std::string id = to_string(p);
  return "static_cast<Sums" + id + "*>(a.partial[" + id + "])[(k * static_cast<index>(a.splits) + " + split +
         ") * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)]";
}

void CudaEmitter::write_merge_loop(int p, const std::string& sums, const std::string& count) {
  line("for (index i = static_cast<index>(team.thread); i < ", count, "; i += static_cast<index>(team.threads()))");
  line("  ", sums, ".merge(", partial(p, "i"), ");");
}

// Many partial sums are added up once, by a launch of its own, before every block of the next pass reads them.
void CudaEmitter::write_merge_entry(int p) {
  if (reduces_in(p).empty()) return;
  std::string id = to_string(p);
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "_merge", id, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  line("const index k = static_cast<index>(fw::block_index());");
  line("Sums", id, " sums;");
  line("sums.clear();");
  write_merge_loop(p, "sums", "a.splits");
  line("fw::reduce(team, sums);");
  line("if (team.thread == 0) ", partial(p, "0"), " = sums;");
  close();
}

// Row values up to those that pass p needs, from the partial sums of the passes before it.
void CudaEmitter::write_row_values_until(int p) {
  for (int q = 0; q <= p; ++q) {
    std::string id = to_string(q - 1);
    if (q > 0) {
      line("Sums", id, " sums", id, ";");
      line("sums", id, ".clear();");
      if (!reduces_in(q - 1).empty()) {
        write_merge_loop(q - 1, "sums" + id, "a.left[" + id + "]");
        line("fw::reduce(team, sums", id, ");");
      }
    }
    line("row_", to_string(q), "(a, row, first && ", q == p ? "true" : "false", q > 0 ? ", sums" + id : "", ");");
  }
}

void CudaEmitter::write_phase_entry(int p) {
  const bool last = p == nest().stages;
  std::string id = to_string(p);
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "_phase", id, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  if (last)
    line("const index k = static_cast<index>(fw::block_index()), split = 0;");
  else {
    line("const fw::Quotient item = fw::divided(fw::block_index(), a.splits, a.splits_divider);");
    line("const index k = item.quotient, split = item.remainder;");
  }
  line("Row row;");
  if (is_column()) {
    line("const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);");
    line("row.pos = (tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;");
    line("row.live = row.pos < a.sizes[", to_string(nest().inner), "];");
    line("if (!row.live) row.pos = 0;");
    line("place_row(a, tile.quotient, 0, row);");
  } else {
    line("const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);");
    line("row.live = true;");
    line("place_row(a, slot.remainder, slot.quotient, row);");
  }
  line("const bool first = row.live && team.thread == 0 && split == 0;");
  write_row_values_until(p);
  if (last) {
    close();
    return;
  }
  if (has_sides()) {
    line("Total total;");
    line("total.clear();");
  }
  line("Sums", id, " sums;");
  line("sums.clear();");
  line("const index begin = split * static_cast<index>(a.piece);");
  line("const index end = row.live ? static_cast<index>(fw::min_of(a.elements, begin + a.piece)) : begin;");
  // Several vectors are asked for before the first is worked on.
  line("const index step = static_cast<index>(team.threads());");
  open("for (index e0 = begin + static_cast<index>(team.thread); e0 < end; e0 += fw::AHEAD * step)");
  line("Values x[fw::AHEAD];");
  line("Fixed f[fw::AHEAD];");
  auto over_ahead = [&](const std::vector<std::string>& what) {
    out_ += "#pragma unroll\n";
    open("for (int n = 0; n < fw::AHEAD; ++n)");
    line("const index e = e0 + n * step;");
    open("if (e < end)");
    for (const std::string& text : what) line(text);
    close();
    close();
  };
  over_ahead({"load_" + id + "(a, row, place(a, e), x[n], f[n]);"});
  if (has_sides())
    over_ahead({"Side side;", "side.clear();",
                "stage_" + id + "(a, row, place(a, e), x[n], f[n], true, sums, side, total);",
                sides_in(p).empty() ? "" : "put_side(a, side, k, e, false, " + id + ");"});
  else
    over_ahead({"stage_" + id + "(a, row, place(a, e), x[n], f[n], true, sums);"});
  close();
  if (!reduces_in(p).empty()) {
    line("fw::reduce(team, sums);");
    line("if (team.thread == 0) ", partial(p, "split"), " = sums;");
  }
  const std::vector<int> totals = sides(false);
  if (std::any_of(totals.begin(), totals.end(), [&](int s) { return stage(s) == p; })) {
    line("fw::reduce(team, total);");
    // Buffers of totals: [part][split][anchor]
    line("if (team.thread == 0) put_total(a, total, (slot.quotient * static_cast<index>(a.splits) + split) * ",
         "static_cast<index>(a.anchors) + slot.remainder);");
  }
  close();
}

// The parts of sums on the side added up: a team for each element of a result.
void CudaEmitter::write_sides_entry() {
  std::vector<int> all = sides(true), totals = sides(false);
  all.insert(all.end(), totals.begin(), totals.end());
  line("namespace {");
  line("template <class T>");
  open("struct SideSum");
  line("T value;");
  line("FW_FN void merge(const SideSum& other) { value += other.value; }");
  line("FW_FN SideSum exchanged(fw::u32 offset) const { return {fw::shuffle_xor(value, offset)}; }");
  close(";");
  for (int s : all) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    bool position = is_position_side(s);
    std::vector<int> kept, rest;
    std::vector<int> loops = anchor_axes_;
    if (position) {
      loops.insert(loops.end(), nest().reduced.begin(), nest().reduced.end());
      if (nest().inner >= 0) loops.push_back(nest().inner);
    }
    for (int a : loops) (varies(step(s), a) ? kept : rest).push_back(a);
    open("FW_FN void side_", to_string(s), "(const Args& a, const fw::Team& team, index output)");
    line("index from = 0, to = 0, outputs = 1;");
    line("index left = output;");
    for (size_t k = kept.size(); k-- > 0;) {
      std::string a = to_string(kept[k]);
      open("");
      line("const fw::Quotient q = fw::divided(left, a.sizes[", a, "], a.divider[", a, "]);");
      line("left = q.quotient;");
      line("from += q.remainder * static_cast<index>(",
           position ? "a.side_strides[" + a + "]" : "a.total_strides[" + a + "]", ");");
      line("to += q.remainder * ", stride(operand, kept[k]), ";");
      line("outputs *= static_cast<index>(a.sizes[", a, "]);");
      close();
    }
    line("const bool there = left == 0 && outputs > 0;");
    line("index terms = static_cast<index>(", position ? "a.parts" : "a.total_parts", ");");
    line("const index part = static_cast<index>(", position ? "a.anchors * a.elements * V" : "a.anchors", ");");
    for (int a : rest) line("terms *= static_cast<index>(a.sizes[", to_string(a), "]);");
    line("SideSum<", reg(s), "> sum = {", literal(0, dtype(s)), "};");
    open(
        "for (index term = static_cast<index>(team.thread); there && term < terms; term += "
        "static_cast<index>(team.threads()))");
    line("index t = term, offset = from;");
    for (size_t k = rest.size(); k-- > 0;) {
      std::string a = to_string(rest[k]);
      open("");
      line("const fw::Quotient q = fw::divided(t, a.sizes[", a, "], a.divider[", a, "]);");
      line("t = q.quotient;");
      line("offset += q.remainder * static_cast<index>(",
           position ? "a.side_strides[" + a + "]" : "a.total_strides[" + a + "]", ");");
      close();
    }
    line("sum.value += ", pointer(operand), "[offset + t * part];");
    close();
    line("fw::reduce(team, sum);");
    std::string type = storage_type(dtype(s));
    line("if (there && team.thread == 0) static_cast<", type, "*>(a.results[", to_string(operand),
         "])[to] = fw::convert<", type, ">(sum.value);");
    close();
  }
  line("}  // namespace");
  open("extern \"C\" __global__ void __launch_bounds__(512) ", code_.name, "_sides(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);  // lanes: neighbouring results");
  line("const index blocks = static_cast<index>(a.side_blocks), block = static_cast<index>(fw::block_index());");
  line("const index output = block % blocks * static_cast<index>(team.lanes()) + static_cast<index>(team.lane);");
  open("switch (block / blocks)");
  for (size_t k = 0; k < all.size(); ++k)
    line("case ", to_string(k), ": side_", to_string(all[k]), "(a, team, output); break;");
  close();
  close();
}

}  // namespace fusewright
