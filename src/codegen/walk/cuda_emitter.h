#pragma once
// The writer of CUDA kernels that walk:
//   cuda_kernel.cpp   the order of all parts, and what the launcher must know
//   cuda_place.cpp    coordinates, addresses, and what is known at an element
//   cuda_row.cpp      what is known of a row: values, sums, sums on the side
//   cuda_stage.cpp    what one thread does with one vector of elements
//   cuda_window.cpp   pooling, in a stage
//   cuda_entry.cpp    the kernels: pointwise, and for reductions what all of them share
//   cuda_held.cpp     kernels for rows in registers; cuda_walking.cpp: for rows that are read again; cuda_tile.cpp: for
//                     mixed layouts
#include <functional>
#include <string>
#include <vector>

#include "codegen/walk/emitter.h"

namespace fusewright {

class CudaEmitter : Emitter {
 public:
  enum class Text { ordinary, walking, tiled };
  CudaEmitter(const Graph& graph, const Kernel& kernel, Text text);
  KernelCode run();
  bool can_tile() const;  // there is a tiled text

 private:
  // ---- places: cuda_place.cpp ------------------------------------------------------------------------------

  const std::vector<int>& row_axes() const { return has_rows() ? nest().kept : nest().reduced; }
  std::vector<int> element_axes() const { return has_rows() ? nest().reduced : std::vector<int>(); }
  bool inner_in_row() const { return is_column(); }  // the innermost loop belongs to the row, else to the element
  std::vector<int> items() const;                    // vectors of a row that a thread may hold: one variant for each
  bool walking() const { return kind_ == Text::walking; }
  bool is_row_axis(int a) const;
  bool is_ahead(int s) const;         // a load that is asked for before its row's turn comes
  int64_t held_bytes() const;         // that a thread holds for each element of its rows, at most
  int64_t row_bytes() const;          // and for each of its columns
  int64_t loaded_bytes(int p) const;  // for each element in pass p
  // Of columns in registers, each thread works out the values of one of its vector's, and tells its neighbours.
  bool has_own_column() const { return is_column() && !walking(); }
  const char* reducing_team() const { return is_column() ? "columns" : "team"; }
  bool is_told(int s) const;  // a value of a column that elements are computed from
  std::string stride(int operand, int a) const;
  std::string coordinate(int a, const std::string& i) const;

  // Element i of the vector that a thread is at, or of its row.
  struct At : Place {
    explicit At(const CudaEmitter& emitter) : emitter(emitter) {}
    std::string given(int s) const override { return emitter.given(s); }
    std::string load(int s) const override { return emitter.loaded(s); }
    std::string coordinate(int a) const override { return emitter.coordinate(a, "i"); }
    std::string quotient(int s) const override { return emitter.quotient(s); }
    const CudaEmitter& emitter;
  };
  // The same in a tap of a window, where operands come from elsewhere: `text` of one.
  struct Tap : At {
    Tap(const CudaEmitter& emitter, std::function<std::string(int)> text) : At(emitter), text(std::move(text)) {}
    std::string load(int s) const override { return text(s); }
    std::string quotient(int s) const override {  // taps share no reciprocals
      return "fw::div(" + emitter.use(emitter.step(s).operands[0]) + ", " + emitter.use(emitter.step(s).operands[1]) +
             ")";
    }
    const std::function<std::string(int)> text;
  };
  const Place& here() const override { return here_; }
  std::string given(int s) const;
  std::string loaded(int s) const;
  std::string quotient(int s) const;
  std::string row_offset(int operand) const;      // from the row's coordinates
  std::string element_offset(int operand) const;  // of the vector that a thread is at
  std::string element_address(int operand) const;
  bool operand_varies(int operand, int a) const;
  bool is_value_of_row(int operand) const;
  std::string lane_offset(int operand, const std::string& i) const;

  // ---- skeleton and rows: cuda_kernel.cpp, cuda_row.cpp ----------------------------------------------------

  bool is_divisor(int s) const;  // a value of the row that its elements are divided by
  bool counts_row(int s) const;
  std::string accumulator_type(int s) const;
  std::string combine(int s, const std::string& total, const std::string& value) const;
  std::string accumulate(int s, const std::string& total) const;  // an element, in a stage
  std::vector<int> moments_in(int p) const;                       // pairs of reductions taken in one, by their second
  bool is_position_side(int s) const;  // varies along the row; else one number for each anchor
  std::vector<int> sides(bool position) const;
  bool has_totals(int p) const;   // pass p adds to sums on the side that are one number for each anchor
  bool leaves_sums(int p) const;  // for another pass, or totals
  void write_header();
  void write_row_state();
  void write_sums(int p);
  void write_side_state();
  void write_place_row();
  void write_move_row();
  bool overwrites() const;
  std::string only_once(int s) const;
  void open_columns();
  void close_columns();
  void write_row_loads();
  void write_load_row(const std::string& row, const std::string& writer);
  void write_row_code(int p);
  std::string row_value(int s) const;
  std::string row_index(int s, int operand) const;
  void describe();
  void describe_walking();

  // ---- kernels: cuda_entry.cpp, cuda_held.cpp, cuda_walking.cpp --------------------------------------------

  void write_pointwise_entry();
  std::string a_sum_of(int p) const;
  std::string names_of_sums() const;
  void write_held_entry();
  void by_way_of_arrival(const std::function<void()>& in_shared_memory, const std::function<void()>& in_registers);
  // Of a row that a thread holds.
  void over_items(const std::vector<std::string>& what, const std::string& from = "0", const std::string& to = "ITEMS");
  void write_ask(const std::string& row, const std::string& turn);
  std::string ask_for(const std::string& row) const;
  // Of columns in registers with one loop to reduce over, a thread's vectors are equally far apart: `item` of them from
  // its first one. Their addresses are a product and a sum.
  bool by_items() const { return is_column() && !walking() && element_axes().size() == 1; }
  std::string place_of_item(const std::string& inside = "") const;
  // Whether vector `item` of a thread belongs to this row, and whether that is there at all.
  std::string item_in(const std::string& row) const;
  void write_first_arrivals();
  void write_arrivals();
  std::string first_thread() const;
  std::string take_item() const;
  void write_arrival_of_group();
  // Every other pass begins where the one before it ended: what was read last is still in the L2 cache.
  static bool goes_backwards(int p) { return p % 2 != 0; }
  void open_pass(int p, const std::string& beginning, const std::string& end, const std::string& step);
  std::string load_ahead(int p) const;
  void over_vectors(int p, const std::string& from, const std::vector<std::string>& what);
  void write_pass(int p, const std::string& put_side);
  void write_row_values_after(int p);
  void write_walking_entry();
  void write_team_part();
  void write_place(const std::string& row, const std::string& turn);
  void write_team_end(bool held);
  void write_phase_entry(int p);
  void write_place_of_lane();
  void write_merge_entry(int p);
  void write_merge_loop(int p, const std::string& sums, const std::string& count);
  std::string partial(int p, const std::string& split) const;
  void write_row_values_until(int p);
  void write_sides_entry();

  // ---- mixed layouts: cuda_tile.cpp ------------------------------------------------------------------------

  std::string tile_of(int operand) const;
  std::string only_if(bool tiled, int operand) const;
  void write_tile_memory();
  void write_tiled_entry();

  // ---- one vector: cuda_stage.cpp --------------------------------------------------------------------------

  bool is_element_load(int s) const;
  std::string manner_of_reading(int s) const;
  bool is_fixed(int s) const;  // a load that is the same for all rows that a team walks over
  void write_values();
  void write_ahead();
  void write_element_place();
  void write_load(const std::string& name, const std::vector<int>& steps, const std::string& what);
  void write_stage(int p);

  // ---- windows: cuda_window.cpp ----------------------------------------------------------------------------

  bool always_inside(int s) const;  // no window reaches beyond the edge
  bool loads_together(int s) const;
  bool is_span(int s, int load) const;  // read as a stretch of the line that serves neighbouring windows
  std::string span(int s, int load) const;
  void declare_spans(int s);
  void write_window(int s);
  void open_tap(int s, size_t k);
  void write_spans(int s);
  void write_window_steps(int s, const std::string& window);
  std::string tap_operand(int s, int load, const std::string& window) const;
  void write_window_body(int s, const std::string& best, int index);
  void write_taps(int s, const std::string& best, int index);
  bool gathers_by_windows(int s) const;
  std::string given_by_window(int s);
  void write_gathered_windows(int s);
  std::string tap_line(int s, int operand) const;
  void write_what_all_taps_share(int s);
  bool is_used_in_taps(int s, int shared) const;
  void open_lanes(int s);

  const At here_{*this};
  const Text kind_;
  std::vector<int> needed_;  // steps of the stage that is being written
  int pass_ = 0;             // its number
  bool own_column_ = false;  // what is being written is for the thread's own column
  std::vector<int> anchor_axes_, walked_axes_;
  std::string at_ = "at.";  // where coordinates of the element stand
};

}  // namespace fusewright
