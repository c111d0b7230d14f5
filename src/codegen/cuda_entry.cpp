// The kernels themselves: a pointwise one, and for reductions one for whole rows, one for each pass over split rows.
#include <algorithm>
#include <utility>

#include "codegen/cuda_emitter.h"

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

// Rows with sums on the side have two ways to arrive, by FW_DEPTH; all others one.
void CudaEmitter::by_way_of_arrival(const std::function<void()>& in_shared_memory,
                                    const std::function<void()>& in_registers) {
  if (!has_sides()) return in_shared_memory();
  out_ += "#if FW_DEPTH > 0\n";
  in_shared_memory();
  out_ += "#else\n";
  in_registers();
  out_ += "#endif\n";
}

void CudaEmitter::over_items(const std::vector<std::string>& what, const std::string& from, const std::string& to) {
  out_ += "#pragma unroll\n";
  open("for (int item = ", from, "; item < ", to, "; ++item)");
  line("[[maybe_unused]] const index e = static_cast<index>(team.thread) + (item << team.bits);");
  for (const std::string& text : what)
    if (!text.empty()) line(text);
  close();
}

// Asks for the row of that turn, in the place of that depth. Of columns a thread holds much, and waits for some vectors
// at a time.
void CudaEmitter::write_ask(const std::string& row, const std::string& turn) {
  write_place(row, turn);
  over_items({ask_for(row), is_column() ? "if (item % GROUP == GROUP - 1) fw::copy_async_commit();" : ""});
  if (!is_column()) line("fw::copy_async_commit();");
}

std::string CudaEmitter::ask_for(const std::string& row) const {
  return "if (" + item_in(row) + ") ask(a, " + row + ", " + place_of_item() +
         ", own + (depth * ITEMS + item) * AHEAD);";
}

std::string CudaEmitter::place_of_item(const std::string& inside) const {
  auto or_zero = [&](const std::string& text) { return inside.empty() ? text : inside + " ? " + text + " : 0"; };
  if (!by_items()) return "place(a, " + or_zero("e") + ")";
  return "place(a, " + or_zero("static_cast<index>(team.thread)") + ", " + or_zero("item") + ", team.bits)";
}

std::string CudaEmitter::item_in(const std::string& row) const {
  return is_column() ? "item < " + row + "_items" : row + ".live && fw::in_row(e, elements)";
}

// What the first turn needs: `row` itself, and what all rows of the team share.
void CudaEmitter::write_first_arrivals() {
  write_place("row", "0");
  line("fw::wait_for_last_launch();  // for what is read; where that lies was worked out meanwhile");
  by_way_of_arrival(
      [&] {
        line("constexpr int AHEAD = FW_AHEAD * fw::warp_size, FIXED = FW_FIXED * fw::warp_size;");
        line("char* const own = fw::shared_memory() + a.ahead + fw::warp_index() * (FW_SLOT * fw::warp_size);");
        line("char* const fixed = own + FW_DEPTH * ITEMS * AHEAD;");
        line("(void)fixed;");
        over_items({"if (fw::in_row(e, elements)) ask_fixed(a, row, " + place_of_item() + ", fixed + item * FIXED);"});
        out_ += "#pragma unroll\n";
        open("for (int depth = 0; depth < FW_DEPTH; ++depth)");
        write_ask("first", "depth");
        close();
        line("int depth = 0;");
      },
      [&] {
        line("Values ahead[ITEMS];");
        line("Fixed fixed[ITEMS];");
        over_items({"if (row.live && fw::in_row(e, elements)) load_moving(a, row, place(a, e), ahead[item]);"});
        over_items({"if (fw::in_row(e, elements)) load_fixed(a, row, place(a, e), fixed[item]);"});
      });
  write_load_row("row", "row.live && " + first_thread());
}

// Of those that work out the values of a row, or of a column of their own.
std::string CudaEmitter::first_thread() const { return has_own_column() ? "columns.thread == 0" : "team.thread == 0"; }

// Into x; the address counts where an operand is too narrow to be asked for.
std::string CudaEmitter::take_item() const {
  return "take(a, row, " + place_of_item(item_in("row")) + ", own + (depth * ITEMS + item) * AHEAD, x[item]);";
}

// Takes what has arrived for `row` into x, and asks for later rows; of columns that happens group by group.
void CudaEmitter::write_arrivals() {
  line("Values x[ITEMS];");
  by_way_of_arrival(
      [&] {
        write_place("next", "turn + 1");
        if (is_column()) return;
        write_load_row("next", "next.live && " + first_thread());
        line("fw::copy_async_wait<FW_DEPTH - 1>();");
        over_items({take_item()});
        write_ask("later", "turn + FW_DEPTH");
        line("depth = depth + 1 == FW_DEPTH ? 0 : depth + 1;");
      },
      [&] {
        if (walked_axes_.size() == 1) {
          line("Row next;");
          line("move_row(a, row, next);");
        } else {
          write_place("next", "turn + 1");
        }
        over_items({"x[item] = ahead[item];"});
        open("if (next.live)");
        write_load_row("next", "team.thread == 0");
        over_items({"if (fw::in_row(e, elements)) load_moving(a, next, place(a, e), ahead[item]);"});
        close();
        line("fw::stay_above(a.lane_bits);");
      });
}

// Columns are many vectors to a thread: the first pass takes them in groups as they arrive, and asks for those of the
// next turn in their place, so that memory has the same to do at all times.
void CudaEmitter::write_arrival_of_group() {
  line("static_assert(FW_DEPTH == 1 && ITEMS % GROUP == 0, \"one turn ahead, in groups\");");
  open("if (item % GROUP == 0)");
  const std::string sum = a_sum_of(0);
  if (!sum.empty()) line("fw::compute_above(a.lane_bits, sums0.", sum, ");");
  line("fw::copy_async_wait<ITEMS / GROUP - 1>();");
  line("const int first_of_group = item;");
  for (const std::string& what : {take_item(), ask_for("next")})
    over_items({what}, "first_of_group", "first_of_group + GROUP");
  line("fw::copy_async_commit();");
  close();
}

// One of the sums that pass p of columns in registers makes of what it computes; none if it only adds up.
std::string CudaEmitter::a_sum_of(int p) const {
  const std::vector<int> needed = needed_in(p);
  if (std::none_of(needed.begin(), needed.end(), [&](int s) { return step(s).role == Role::compute; })) return "";
  for (int s : reduces_in(p))
    if (is_float(dtype(s))) return "a" + to_string(s) + "[0]";
  return "";
}

// All that a team reduces.
std::string CudaEmitter::names_of_sums() const {
  std::string names;
  auto add = [&](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  for (int p = 0; p < nest().stages; ++p)
    if (!reduces_in(p).empty()) add(is_column() ? "SumsOf" + to_string(p) + "<1>" : "Sums" + to_string(p));
  if (!sides(false).empty()) add("Total");
  return names;
}

// Rows in registers. Every thread of a row's team works out the row's values for itself, of columns those of its own
// column; one of them stores. While a team works on a row the next ones are on their way.
void CudaEmitter::write_held_entry() {
  std::string side = has_sides() ? ", side[item], total" : "";
  // As many blocks on a processor as their registers allow: one reduces while another computes. Of the values of
  // columns some are alive at a time; both numbers are what ptxas spills little or nothing with.
  line("constexpr int registers = ITEMS * V * ", to_string(held_bytes()), " / 4 + V * ", to_string(row_bytes()),
       " / 16 + ", is_column() ? "34;" : "44;");
  line("constexpr int blocks = FW_THREADS * registers >= 65536 ? 1 : 65536 / (FW_THREADS * registers);");
  line("static_assert(FW_SLOT >= FW_DEPTH * ITEMS * FW_AHEAD + ITEMS * FW_FIXED, \"the launcher counts otherwise\");");
  open("extern \"C\" __global__ void __launch_bounds__(FW_THREADS, blocks) ", code_.name, "(const Args a)");
  line("fw::let_next_launch_begin();");
  // Whether a cluster is one team, the launcher says (CudaRules::spreads_teams).
  line("fw::Team team = fw::make_team(fw::held_team_bits(a.team_bits), fw::held_lane_bits(a.lane_bits), ",
       "FW_CLUSTER ? a.cluster_bits : 0);");
  if (is_column()) line("fw::Team columns = fw::team_of_columns(team);");
  line("const index elements = fw::held_elements(a.elements);");
  if (is_column()) {
    line("constexpr int GROUP = ITEMS < 8 ? 1 : ITEMS / 8;  // vectors that are waited for at a time");
    line("const index held = fw::items_of_thread(team, elements);");
  }
  write_team_part();
  write_first_arrivals();
  if (!sides(true).empty()) {
    std::string types;
    for (int s : sides(true)) types += ", " + reg(s);
    line("const fw::u32 stretch_bits = team.bits + a.anchor_bits;");
    line("const fw::Mailbox<ITEMS", types, "> mailbox(stretch_bits, a.cluster_bits, fw::shared_memory() + a.ahead);");
  }
  line("fw::begin_cluster<", names_of_sums(), ">(", reducing_team(), ", fw::shared_memory() + a.ahead);");
  line("fw::join_cluster(team.cluster_bits);");
  if (has_sides()) {
    line("Total total;");
    line("total.clear();");
    line("Side side[ITEMS];");
    over_items({"side[item].clear();"});
  }
  // As many turns for every team, so that lanes of one warp stay together.
  open("for (index turn = 0; turn < static_cast<index>(a.share); ++turn)");
  write_arrivals();
  line("const bool first = row.live && ", first_thread(), ";");
  line("row_0(a, row, first", is_column() ? ", team" : "", ");");
  line("Kept kept[ITEMS];");
  for (int p = 0; p < nest().stages; ++p) {
    std::string id = to_string(p);
    line("Sums", id, " sums", id, ";");
    line("sums", id, ".clear();");
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = static_cast<index>(team.thread) + (item << team.bits);");
    line("const bool inside = ", item_in("row"), ";");
    if (p == 0 && is_column()) write_arrival_of_group();
    by_way_of_arrival(
        [&] {
          line("Fixed f;");
          line("take_fixed_", id, "(a, row, ", place_of_item("inside"), ", fixed + item * FIXED, f);");
        },
        [&] { line("const Fixed& f = fixed[item];"); });
    line("stage_", id, "(a, row, ", place_of_item(), ", x[item], f, kept[item], inside, sums", id, side, ");");
    close();
    std::string sums = "sums" + id;
    if (is_column()) {
      sums = "own" + id;
      line("SumsOf", id, "<1> ", sums, " = fw::own_column(team, sums", id, ");");
    }
    if (!reduces_in(p).empty()) line("fw::reduce(", reducing_team(), ", ", sums, ");");
    // Those of the next columns: in the first pass, where a thread holds the most, they would take registers.
    if (p == 0 && is_column()) write_load_row("next", "next.live && " + first_thread());
    line("row_", to_string(p + 1), "(a, row, first, ", is_column() ? "team, " : "", sums, ");");
  }
  line("row = next;");
  if (is_column()) line("row_items = next_items;");
  close();
  write_team_end(true);
  close();
}

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
