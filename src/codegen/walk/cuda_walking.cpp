// The kernels for rows that are read again in every pass: whole ones, and one kernel for each pass over split rows.

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

// A pass over a row, or over a part of it: vectors `beginning`, and every `step` from there, before `end`.
void CudaEmitter::open_pass(int p, const std::string& beginning, const std::string& end, const std::string& step) {
  const std::string id = to_string(p);
  line("const index end", id, " = ", end, ", step", id, " = static_cast<index>(", step, ");");
  line("index e", id, " = static_cast<index>(", beginning, ");");
  line("Values next", id, "[AHEAD", id, "];");
  line("Fixed next_fixed", id, "[AHEAD", id, "];");
  over_vectors(p, "0", {load_ahead(p)});
}

std::string CudaEmitter::load_ahead(int p) const {
  const std::string id = to_string(p);
  return "load_" + id + "(a, row, place(a, e), again, last, next" + id + "[n], next_fixed" + id + "[n]);";
}

void CudaEmitter::over_vectors(int p, const std::string& from, const std::vector<std::string>& what) {
  const std::string id = to_string(p), number = "e" + id + " + beyond";
  out_ += "#pragma unroll\n";
  open("for (int n = 0; n < AHEAD", id, "; ++n)");
  line("const index beyond = (", from, " + n) * step", id, ";");
  open("if (beyond < end", id, " - e", id, ")");
  line("const index e = ", goes_backwards(p) ? "static_cast<index>(a.elements) - 1 - (" + number + ")" : number, ";");
  for (const std::string& text : what) line(text);
  close();
  close();
}

// Several vectors are on their way while others are worked on.
void CudaEmitter::write_pass(int p, const std::string& put_side) {
  const std::string id = to_string(p);
  line("Sums", id, " sums", id, ";");
  line("sums", id, ".clear();");
  open("while (e", id, " < end", id, ")");
  line("Values x[AHEAD", id, "];");
  line("Fixed f[AHEAD", id, "];");
  out_ += "#pragma unroll\n";
  line("for (int n = 0; n < AHEAD", id, "; ++n) x[n] = next", id, "[n], f[n] = next_fixed", id, "[n];");
  over_vectors(p, "AHEAD" + id, {load_ahead(p)});
  const std::string stage = "stage_" + id + "(a, row, place(a, e), x[n], f[n], kept, true, sums" + id;
  if (has_sides())
    over_vectors(p, "0",
                 {"Side side;", "side.clear();", stage + ", side, total);", sides_in(p).empty() ? "" : put_side});
  else
    over_vectors(p, "0", {stage + ");"});
  line("if (end", id, " - e", id, " <= AHEAD", id, " * step", id, ") break;");
  line("e", id, " += AHEAD", id, " * step", id, ";");
  close();
  for (int m : moments_in(p)) line("sums", id, ".m", to_string(m), ".finish();");
}

// What the passes up to p have found out about the row.
void CudaEmitter::write_row_values_after(int p) {
  const std::string id = to_string(p);
  if (!reduces_in(p).empty()) line("fw::reduce(team, sums", id, ");");
  line("row_", to_string(p + 1), "(a, row, first, sums", id, ");");
}

// Rows that are too long for registers are read again in every pass, as far as the caches do not have them.
void CudaEmitter::write_walking_entry() {
  open("extern \"C\" __global__ void __launch_bounds__(512) ", code_.name, "(const Args a)");
  line("fw::follow_last_launch();");
  line("fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  write_team_part();
  if (has_sides()) {
    line("Total total;");
    line("total.clear();");
  }
  line("Kept kept;");
  open("for (index turn = 0; turn < static_cast<index>(a.share); ++turn)");
  write_place("row", "turn");
  line("const bool first = row.live && team.thread == 0;");
  write_load_row("row", "first");
  line("row_0(a, row, first);");
  line("const index elements = row.live ? static_cast<index>(a.elements) : 0;");
  line("const fw::ReadAgain again = {a.reads};");
  line("const fw::ReadLast last = {{fw::evict_normal}};");
  for (int p = 0; p < nest().stages; ++p) {
    const std::string id = to_string(p);
    // As many as registers have room for.
    line("constexpr int bytes", id, " = V * ", to_string(loaded_bytes(p)), ";");
    line("constexpr int AHEAD", id, " = bytes", id, " <= 16 ? 4 : bytes", id, " <= 32 ? 2 : 1;");
    // The first vectors of a pass are on their way while the values of the row are worked out.
    open_pass(p, "team.thread", "elements", "team.threads()");
    if (p > 0) write_row_values_after(p - 1);
    write_pass(p, "put_side(a, side, block.quotient * static_cast<index>(a.anchors) + anchor, e, turn > 0, " + id +
                      ", 0, 1);");
  }
  write_row_values_after(nest().stages - 1);
  close();
  write_team_end(false);
  close();
}

// Sums of pass p that a split of row k left, in the buffer [k][split][lane].
std::string CudaEmitter::partial(int p, const std::string& split) const {
  std::string id = to_string(p);
  return "static_cast<fw::Slot<Sums" + id + ">*>(a.partial[" + id + "])[((k * static_cast<index>(a.splits) + " + split +
         ") << a.partial_bits) + lane].sums";
}

void CudaEmitter::write_merge_loop(int p, const std::string& sums, const std::string& count) {
  out_ += "#pragma unroll 4\n";
  line("for (index i = static_cast<index>(team.thread); i < ", count, "; i += static_cast<index>(team.threads()))");
  line("  ", sums, ".merge(", partial(p, "i"), ");");
}

// A block for each lane of those that left partial sums: its team is the lane's alone.
void CudaEmitter::write_place_of_lane() {
  line("fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  line("const index k = static_cast<index>(fw::block_index()) >> a.partial_bits;");
  line("const index lane = static_cast<index>(fw::block_index()) - (k << a.partial_bits);");
}

// Many partial sums are added up once, by a launch of its own, before every block of the next pass reads them.
void CudaEmitter::write_merge_entry(int p) {
  if (reduces_in(p).empty()) return;
  std::string id = to_string(p);
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "_merge", id, "(const Args a)");
  line("fw::follow_last_launch();");
  write_place_of_lane();
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
        line("if (a.left[", id, "] == 1) sums", id, " = ", partial(q - 1, "0"), ";");
        open("else");
        write_merge_loop(q - 1, "sums" + id, "a.left[" + id + "]");
        line("fw::reduce(team, sums", id, ");");
        close();
      }
    }
    line("row_", to_string(q), "(a, row, first && ", q == p ? "true" : "false", q > 0 ? ", sums" + id : "", ");");
  }
}

void CudaEmitter::write_phase_entry(int p) {
  const bool last = p == nest().stages;
  const bool in_step = leaves_sums(p);
  std::string id = to_string(p);
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "_phase", id, "(const Args a)");
  if (last) {
    write_place_of_lane();
    line("const index split = 0;");
  } else {
    line("fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
    // Where blocks stay, their order goes backwards as well.
    line("const index block = static_cast<index>(",
         goes_backwards(p) && in_step ? "fw::block_count() - 1 - fw::block_index()" : "fw::block_index()", ");");
    line("const fw::Quotient item = fw::divided(block, a.rows, a.rows_divider);");
    line("const index k = item.remainder, split = item.quotient, lane = static_cast<index>(team.lane);");
  }
  line("Row row;");
  if (is_column()) {
    line("const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);");
    line("row.pos = ((tile.remainder << a.partial_bits) + lane) * V;");
    line("row.live = row.pos < a.sizes[", to_string(nest().inner), "];");
    line("if (!row.live) row.pos = 0;");
    line("place_row(a, tile.quotient, 0, row);");
  } else {
    line("const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);");
    line("row.live = true;");
    line("place_row(a, slot.remainder, slot.quotient, row);");
  }
  line("const bool first = row.live && team.thread == 0 && split == 0;");
  if (last) {
    line("fw::follow_last_launch();");
    write_load_row("row", "first");
    write_row_values_until(p);
    close();
    return;
  }
  line("constexpr int AHEAD", id, " = 4;");
  line("const fw::ReadOnly again = a.reads, last = a.reads;  // another launch reads the row again");
  if (in_step) {
    // The blocks of a row move along it side by side: what is read and written at a time lies close together.
    open_pass(p, "split * static_cast<index>(team.threads()) + static_cast<index>(team.thread)",
              "row.live ? static_cast<index>(a.elements) : 0", "a.splits * team.threads()");
  } else {
    // Short stretches, one after the other: no block is waited for.
    line("const index beginning = split * static_cast<index>(a.stretch);");
    line("const index rest = static_cast<index>(a.elements) - beginning, stretch = static_cast<index>(a.stretch);");
    open_pass(p, "beginning + static_cast<index>(team.thread)",
              "row.live ? beginning + (rest < stretch ? rest : stretch) : 0", "team.threads()");
  }
  // The first vectors are on their way while the values of the row are worked out.
  line("fw::let_next_launch_begin();");
  if (p > 0) line("fw::wait_for_last_launch();");
  write_load_row("row", "first");
  write_row_values_until(p);
  if (has_sides()) {
    line("Total total;");
    line("total.clear();");
  }
  line("Kept kept;");
  write_pass(p, "put_side(a, side, k, e, false, " + id + ", 0, 1);");
  if (!reduces_in(p).empty()) {
    line("fw::reduce(team, sums", id, ");");
    line("if (team.thread == 0) ", partial(p, "split"), " = sums", id, ";");
  }
  if (has_totals(p)) {
    line("fw::reduce(team, total);");
    // Buffers of totals: [part][split][anchor]
    line("if (team.thread == 0) put_total(a, total, (slot.quotient * static_cast<index>(a.splits) + split) * ",
         "static_cast<index>(a.anchors) + slot.remainder, ", id, ");");
  }
  close();
}

}  // namespace fusewright
