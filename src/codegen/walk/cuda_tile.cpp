// The tiled variant of a pointwise kernel, for operands that do not all lie along its lines (kernels/cuda_tile.h). One
// text serves every mixture: which operands go through the tile is fixed by the source's FW_TILED, not here.
#include <algorithm>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

// At least two operands move along the line, or nothing can lie otherwise than the rest. A window reaches beyond its
// tile, and a position is worked out from sizes, which a tile hides. FW_TILED has 64 bits.
bool CudaEmitter::can_tile() const {
  if (has_rows() || nest().has_window || nest().reduced.empty() || code_.operands.size() > 64) return false;
  int moving = 0;
  for (int s = 0; s < count(); ++s) {
    if (step(s).role == Role::iota) return false;
    if (inner_varying(s)) moving += (step(s).role == Role::load) + step(s).stored;
  }
  return moving > 1;
}

std::string CudaEmitter::tile_of(int operand) const {
  return "fw::tile_memory<" + std::string(storage_type(code_.operands[static_cast<size_t>(operand)].dtype)) + ">(tile" +
         to_string(operand) + ")";
}

std::string CudaEmitter::only_if(bool tiled, int operand) const {
  return std::string("if constexpr (") + (tiled ? "" : "!") + "fw::tiled<" + to_string(operand) + ">) ";
}

// Where each operand's tile begins. Stands in front of everything that stores.
void CudaEmitter::write_tile_memory() {
  std::string at = "0";
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    std::string name = to_string(o);
    line("constexpr int tile", name, " = ", at, ";");
    at = "tile" + name + " + fw::tile_bytes<" + name + ", " + storage_type(code_.operands[o].dtype) + ">";
  }
  line();
}

void CudaEmitter::write_tiled_entry() {
  // From the row's position 0 across to another.
  open("FW_FN void move_across(const Args& a, index to, Row& row)");
  for (int a : row_axes()) line("if constexpr (fw::ACROSS == ", to_string(a), ") row.c", to_string(a), " = to;");
  for (size_t o = 0; o < code_.operands.size(); ++o)
    line("row.o", to_string(o), " += to * static_cast<index>(a.strides[", to_string(o), "][fw::ACROSS]);");
  close();
  std::vector<int> loads, stores;  // steps that a tile may serve
  for (int s = 0; s < count(); ++s) {
    if (!inner_varying(s)) continue;
    if (is_element_load(s)) loads.push_back(s);
    if (step(s).stored) stores.push_back(s);
  }
  open("FW_FN void load_tiled([[maybe_unused]] const Row& row, [[maybe_unused]] Values& x)");
  for (int s : loads) {
    int operand = operand_of_[static_cast<size_t>(s)].load;
    line(only_if(true, operand), "fw::load_vector(", tile_of(operand), " + row.tile, fw::plain, x.in", to_string(s),
         ");");
  }
  close();

  // A thread holds up to 16 elements of each operand at a time.
  const char* blocks = loads.size() <= 2 ? "4" : loads.size() == 3 ? "3" : "2";
  open("extern \"C\" __global__ void __launch_bounds__(256, ", blocks, ") ", code_.name, "(const Args a)");
  line("fw::follow_last_launch();");
  line("const fw::Tile tile = fw::make_tile(a);");
  line("Row row;");
  line("row.live = true;");
  line("place_row(a, tile.anchor, 0, row);");
  auto operand_text = [&](int operand, const char* how) {
    return pointer(operand) + " + row.o" + to_string(operand) + how + ", a.strides[" + to_string(operand) + "][" +
           to_string(nest().inner) + "], a.walked, a.line);";
  };
  auto any_tiled = [&](const std::vector<int>& steps, int Operands::*which) {
    std::string text = "false";
    for (int s : steps) text += " || fw::tiled<" + to_string(operand_of_[static_cast<size_t>(s)].*which) + ">";
    return text;
  };
  auto over_items = [&](const std::vector<std::string>& what) {
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = tile.along + static_cast<index>(tile.item_along);");
    line("const index across = tile.across * fw::U + static_cast<index>(tile.across_of(item));");
    line("if (!tile.has(item) || across >= a.walked || e >= a.line) continue;");
    line("Row here = row;");
    line("move_across(a, across, here);");
    line("here.tile = tile.place(tile.across_of(item), tile.item_along);");
    for (const std::string& text : what) line(text);
    close();
  };
  // Everything that comes from memory is on its way before the first wait.
  for (int s : loads) {
    int operand = operand_of_[static_cast<size_t>(s)].load;
    line("fw::Squares<", storage_type(dtype(s)), "> square", to_string(operand), ";");
    line(only_if(true, operand), "square", to_string(operand), ".load(tile, ", operand_text(operand, ", a.reads"));
  }
  line("Values x[ITEMS];");
  line("Kept kept;");
  over_items({"load_moving(a, here, place(a, e), x[item]);"});
  for (int s : loads) {
    int operand = operand_of_[static_cast<size_t>(s)].load;
    line(only_if(true, operand), "square", to_string(operand), ".put(tile, ", tile_of(operand), ", a.walked, a.line);");
  }
  line("if constexpr (", any_tiled(loads, &Operands::load), ") fw::barrier();");
  over_items({"load_tiled(here, x[item]);", "stage_0(a, here, place(a, e), x[item], Fixed(), kept, true);"});
  line("if constexpr (", any_tiled(stores, &Operands::store), ") fw::barrier();");
  for (int s : stores) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line(only_if(true, operand), "fw::Squares<", storage_type(dtype(s)), ">::store(tile, ", tile_of(operand), ", ",
         operand_text(operand, ""));
  }
  close();
}

}  // namespace fusewright
