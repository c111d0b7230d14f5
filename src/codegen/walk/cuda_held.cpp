// The kernel for whole rows that a team holds in registers.
#include <algorithm>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

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

// Writes what the first turn needs: `row` itself, and what all rows of the team share.
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

// Names the first of the threads that work out the values of a row, or of a column of their own.
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
    // The next columns are loaded behind the first pass: in it a thread holds the most registers.
    if (p == 0 && is_column()) write_load_row("next", "next.live && " + first_thread());
    line("row_", to_string(p + 1), "(a, row, first, ", is_column() ? "team, " : "", sums, ");");
  }
  line("row = next;");
  if (is_column()) line("row_items = next_items;");
  close();
  write_team_end(true);
  close();
}

}  // namespace fusewright
