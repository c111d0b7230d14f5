// The pointwise kernel, what all kernels with reductions share, and the one that adds up sums on the side.
#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

// A block takes the next vectors of all lines, one after the other: none of its threads is idle at the end of a line.
// Coordinates are worked out once for the line that it begins in, and where a thread has gone beyond that.
void CudaEmitter::write_pointwise_entry() {
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "(const Args a)");
  line("fw::follow_last_launch();");
  line("const index threads = static_cast<index>(fw::block_threads());");
  line("const fw::Quotient begin =");
  line("    fw::divided(static_cast<index>(fw::block_index()) * (ITEMS * threads), a.line, a.line_divider);");
  line("Row first;");
  line("first.live = true;");
  line("place_row(a, begin.quotient, 0, first);");
  line("Row rows[ITEMS];");
  line("index e[ITEMS];");
  line("Values x[ITEMS];");
  line("Kept kept;");
  out_ += "#pragma unroll\n";
  open("for (int item = 0; item < ITEMS; ++item)");
  line("rows[item] = first;");
  line("e[item] = begin.remainder + item * threads + static_cast<index>(fw::thread_index());");
  open("if (e[item] >= static_cast<index>(a.line))");
  line("const fw::Quotient beyond = fw::divided_beyond(e[item], a.line, a.line_divider);");
  line("const index anchor = begin.quotient + beyond.quotient;");
  line("e[item] = beyond.remainder;");
  line("rows[item].live = anchor < static_cast<index>(a.anchors);");
  line("if (rows[item].live) place_row(a, anchor, 0, rows[item]);");
  close();
  line("if (rows[item].live) load_moving(a, rows[item], place(a, e[item]), x[item]);");
  close();
  out_ += "#pragma unroll\n";
  open("for (int item = 0; item < ITEMS; ++item)");
  line("if (rows[item].live) stage_0(a, rows[item], place(a, e[item]), x[item], Fixed(), kept, true);");
  close();
  close();
}

// The rows of a team: its anchor, and every `parts`-th of the rows that are walked over there, or of the blocks of
// columns. Teams of a warp work on neighbours, as far as they stay at anchors; those of a block at the same anchor can
// add up their sums on the side.
void CudaEmitter::write_team_part() {
  if (is_column()) {
    line("const index part = static_cast<index>((fw::block_index() >> team.cluster_bits) * team.rows() + team.row);");
    return;
  }
  // A cluster of blocks is at the same anchors: as one team, or with parts of its own for each block.
  line("const fw::Quotient block = fw::divided(fw::block_index()", walking() ? "" : " >> a.cluster_bits",
       ", a.tiles, a.tiles_divider);");
  line("const index anchor = (block.remainder << a.anchor_bits) + (team.row & ((1u << a.anchor_bits) - 1));");
  std::string number = "block.quotient";
  if (!walking() && !sides(true).empty()) {
    line("const fw::u32 rank = fw::rank_in_cluster(a.cluster_bits);");
    number = "((block.quotient << a.cluster_bits) + static_cast<index>(rank))";
  }
  line("const index part = ", number, " * (team.rows() >> a.anchor_bits) + (team.row >> a.anchor_bits);");
}

void CudaEmitter::write_place(const std::string& row, const std::string& turn) {
  std::string r = row + "_index";
  line("Row ", row, ";");
  line("index ", r, " = part + (", turn, ") * static_cast<index>(a.parts);");
  line(row, ".live = part < static_cast<index>(a.parts) && ", r, " < static_cast<index>(a.walked);");
  line("if (!", row, ".live) ", r, " = 0;");
  if (is_column()) {
    line("const fw::Quotient ", row, "_tile = fw::divided(", r, ", a.tiles, a.tiles_divider);");
    line(row, ".pos = (", row,
         "_tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;");
    line("if (", row, ".pos >= a.sizes[", to_string(nest().inner), "]) ", row, ".live = false, ", row, ".pos = 0;");
    if (has_own_column()) line(row, ".own = static_cast<int>(columns.lane >> team.lane_bits);");
    line("place_row(a, ", row, "_tile.quotient, 0, ", row, ");");
    if (!walking()) line("[[maybe_unused]] index ", row, "_items = ", row, ".live ? held : 0;");
  } else {
    line("place_row(a, anchor, ", r, ", ", row, ");");
  }
}

// Sums on the side go to the team's own place in the buffers, or to that of all teams of the block at its anchor.
void CudaEmitter::write_team_end(bool held) {
  if (!has_sides()) return;
  if (held && !sides(true).empty()) {
    // Threads at the same place in stretches of the block add up what they have: each sum in a stretch of its own, as
    // far as there are enough. Then the blocks of a cluster do.
    line("const fw::u32 stretch = fw::thread_index() >> stretch_bits;");
    line("const fw::u32 stretches = fw::block_threads() >> stretch_bits;");
    const std::string count = to_string(sides(true).size());
    auto for_each_side = [&](auto write) {
      unsigned which = 0;
      for (int s : sides(true)) write("side[item].s" + to_string(s), to_string(which++) + "u");
    };
    auto for_each_item = [&](auto write) {
      out_ += "#pragma unroll\n";
      open("for (int item = 0; item < ITEMS; ++item)");
      write();
      close();
    };
    auto in_its_stretch = [](const std::string& which) { return "if ((" + which + " & (stretches - 1)) == stretch) "; };
    by_way_of_arrival([&] { line("fw::copy_async_wait<0>();"); }, [] {});
    line("char* const memory = fw::shared_memory() + a.ahead;");
    open("if (stretches > 1)");
    for_each_item([&] {
      line("fw::barrier();  // whoever still reads what was there");
      for_each_side([&](const std::string& side, const std::string& which) {
        line("fw::leave_for_stretches(", side, ", memory, ", which, ");");
      });
      line("fw::barrier();");
      for_each_side([&](const std::string& side, const std::string& which) {
        line(in_its_stretch(which), "fw::add_stretches(", side, ", stretch_bits, memory, ", which, ");");
      });
    });
    close();
    auto with_mailbox = [&](const std::string& does) {
      for_each_item([&] {
        for_each_side([&](const std::string& side, const std::string& which) {
          line(in_its_stretch(which), "mailbox.", does, "(", side, ", item * ", count, "u + ", which, ");");
        });
      });
    };
    open("if (a.cluster_bits != 0)");
    line("fw::join_cluster(a.cluster_bits);");
    line("mailbox.expect();");
    with_mailbox("send");
    line("fw::wait_for_mail(mailbox.arrived, 0);");
    with_mailbox("add_up");
    close();
    over_items(
        {"if (mailbox.owner() == rank && fw::in_row(e, elements)) put_side(a, side[item], block.quotient * "
         "static_cast<index>(a.anchors) + anchor, e, false, -1, stretch, stretches);"});
  }
  if (sides(false).empty()) return;
  line("fw::reduce(team, total);");
  line(
      "if (part < static_cast<index>(a.parts) && team.thread == 0) put_total(a, total, part * "
      "static_cast<index>(a.anchors) + anchor, -1);");
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
    open("FW_FN void side_", to_string(s), "(const Args& a, fw::Team& team, index output)");
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
    line("index terms = static_cast<index>(", position ? "a.side_parts" : "a.total_parts", ");");
    line("const index part = static_cast<index>(", position ? "a.anchors * a.elements * V" : "a.anchors", ");");
    for (int a : rest) line("terms *= static_cast<index>(a.sizes[", to_string(a), "]);");
    line("SideSum<", reg(s), "> sum = {", literal(0, dtype(s)), "};");
    line("fw::wait_for_last_launch();  // for the parts; where they stand was worked out meanwhile");
    out_ += "#pragma unroll 8\n";
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
  line("fw::let_next_launch_begin();");
  line("fw::Team team = fw::make_team(a.team_bits, a.lane_bits);  // lanes: neighbouring results");
  line("const index blocks = static_cast<index>(a.side_blocks), block = static_cast<index>(fw::block_index());");
  line("const index output = block % blocks * static_cast<index>(team.lanes()) + static_cast<index>(team.lane);");
  open("switch (block / blocks)");
  for (size_t k = 0; k < all.size(); ++k)
    line("case ", to_string(k), ": side_", to_string(all[k]), "(a, team, output); break;");
  close();
  close();
}

}  // namespace fusewright
