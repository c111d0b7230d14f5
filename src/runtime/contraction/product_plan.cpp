#include "runtime/contraction/product_plan.h"

#include <algorithm>

namespace fusewright {
namespace {

constexpr int64_t most = int64_t{1} << 30;  // rows, columns and depth: the kernels count them in 32 bits
// The sample of `check` has one unit of 2^5 along the depth, and 8 units or more where there are so many.
constexpr uint32_t most_sample_shift = 5, least_sampled_units = 8;

// Measured on an H200: bytes read and written in a microsecond, and the time of 128 x 256 products of a block of 32.
constexpr double bytes_in_a_microsecond = 3.5e6, stage_microseconds = 1.12, tile_microseconds = 3;
constexpr double launch_microseconds = 2.5;
constexpr uint32_t most_splits = 8, least_pairs = 4;  // pairs of blocks along the depth of a part

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_matrix_of(const Tensor& t, int rank) { return t.dtype == DType::f32 && t.rank == rank; }

// The stride of all dimensions before the last as one; nothing: they do not lie behind each other.
std::optional<int64_t> rows_as_one(const Tensor& t) {
  int64_t stride = 0, count = 1;
  for (int d = t.rank - 2; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    if (t.sizes[i] == 1) continue;
    if (count == 1)
      stride = t.strides[i];
    else if (t.strides[i] != stride * count)
      return std::nullopt;
    count *= t.sizes[i];
  }
  return stride;
}

bool reads_vectors(const fw::GivenOperand& from, fw::PackedBy by) {
  const int64_t along = by == fw::packed_by_strips ? from.row_stride : from.depth_stride;
  const int64_t across = by == fw::packed_by_strips ? from.depth_stride : from.row_stride;
  return along == 1 && across % 4 == 0 && from.batch_stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(from.data) % 16 == 0;
}

fw::PackedBy packed_by(const fw::GivenOperand& from) {
  if (from.row_stride == 1 && from.depth_stride != 1) return fw::packed_by_strips;
  return from.depth <= 1024 ? fw::packed_by_warps : fw::packed_by_blocks;
}

fw::PackedShape shape_of(int64_t rows, int64_t depth) {
  fw::PackedShape shape{};
  shape.row_blocks = static_cast<uint32_t>(ceil_div(rows, fw::packed_rows));
  shape.depth_blocks = static_cast<uint32_t>(2 * ceil_div(depth, 2 * fw::packed_depth));
  const uint32_t units = shape.depth_blocks * (fw::packed_depth / fw::sample_unit);
  while (shape.sample_shift < most_sample_shift && units >> (shape.sample_shift + 1) >= least_sampled_units)
    ++shape.sample_shift;
  shape.sample_blocks =
      static_cast<uint32_t>(2 * ceil_div(fw::sampled_units(shape) * fw::sample_unit, 2 * fw::packed_depth));
  return shape;
}

}  // namespace

std::optional<ProductProblem> product_of(const std::vector<const Tensor*>& operands) {
  const Tensor &a = *operands[0], &b = *operands[1], &result = *operands.back();
  const bool batched = b.rank == 3;
  if (a.rank < 2 || !is_matrix_of(a, a.rank) || !is_matrix_of(b, batched ? 3 : 2)) return std::nullopt;
  if (batched && (a.rank != 3 || a.sizes[0] != b.sizes[0])) return std::nullopt;
  ProductProblem p;
  const auto last_a = static_cast<size_t>(a.rank - 1), last_b = static_cast<size_t>(b.rank - 1);
  p.depth = a.sizes[last_a];
  p.columns = b.sizes[last_b];
  p.batches = batched ? a.sizes[0] : 1;
  if (b.sizes[last_b - 1] != p.depth || p.depth == 0 || p.batches == 0) return std::nullopt;
  p.rows = a.elements() / p.depth / p.batches;
  if (batched) {
    p.a = {static_cast<const float*>(a.data), a.strides[1], a.strides[2], a.strides[0]};
    p.b = {static_cast<const float*>(b.data), b.strides[2], b.strides[1], b.strides[0]};
  } else {
    const std::optional<int64_t> rows = rows_as_one(a);
    if (!rows) return std::nullopt;
    p.a = {static_cast<const float*>(a.data), *rows, a.strides[last_a], 0};
    p.b = {static_cast<const float*>(b.data), b.strides[1], b.strides[0], 0};
  }
  if (operands.size() == 4) {
    const Tensor& bias = *operands[2];
    if (bias.dtype != DType::f32 || bias.rank != 1 || bias.sizes[0] != p.columns || bias.strides[0] != 1)
      return std::nullopt;
    p.bias = static_cast<const float*>(bias.data);
  }
  if (result.dtype != DType::f32 || result.elements() != p.rows * p.columns * p.batches) return std::nullopt;
  if (p.rows == 0 || p.columns == 0) return std::nullopt;
  if (std::max({p.rows * p.batches, p.columns * p.batches, p.depth}) > most) return std::nullopt;
  return p;
}

ProductPlan::ProductPlan(const ProductProblem& problem, int processors, int64_t large)
    : problem_(problem),
      strip_batches_(problem.batches),
      strip_rows_(problem.rows),
      strip_columns_(problem.columns),
      processors_(processors) {
  // A strip has a tile for each processor, or more where it is small even so.
  const bool cuts_rows = problem.rows > problem.columns;
  const int64_t row_tiles = ceil_div(problem.rows, fw::tile_rows);
  const int64_t column_tiles = ceil_div(problem.columns, fw::tile_columns);
  if (problem.batches > 1) {
    const int64_t for_processors = ceil_div(processors, row_tiles * column_tiles);
    const int64_t bytes = 4 * std::max(problem.rows, problem.columns) * problem.depth;
    strip_batches_ = std::min(problem.batches, std::max(for_processors, large / bytes));
  } else {
    // The larger operand is cut.
    const int64_t step = cuts_rows ? fw::tile_rows * std::max<int64_t>(processors / column_tiles, 1)
                                   : fw::tile_columns * std::max<int64_t>(processors / row_tiles, 1);
    const int64_t steps = std::max<int64_t>(large / (4 * step * problem.depth), 1);
    int64_t& strip = cuts_rows ? strip_rows_ : strip_columns_;
    strip = std::min(strip, steps * step);
  }
  strips_ = static_cast<size_t>(ceil_div(problem.batches, strip_batches_) * ceil_div(problem.rows, strip_rows_) *
                                ceil_div(problem.columns, strip_columns_));
  shape_a_ = shape_of(strip_rows_, problem.depth);
  shape_b_ = shape_of(strip_columns_, problem.depth);
  const double multiply = choose_splits(processors);
  a_ = place(shape_a_.row_blocks * strip_batches_);
  b_ = place(shape_b_.row_blocks * strip_batches_);
  const int64_t blocks = int64_t{shape_a_.row_blocks} * shape_b_.row_blocks * strip_batches_;
  flags_ = take(4 * blocks);
  if (splits_ > 1) partial_ = take(4 * splits_ * blocks * fw::packed_rows * fw::packed_rows);

  const double packed = 8.0 * static_cast<double>(problem.depth) *
                        static_cast<double>(problem.batches * (problem.rows + problem.columns));
  const double checked = static_cast<double>(shape_a_.sample_blocks) / (3 * static_cast<double>(shape_a_.depth_blocks));
  const double of_strip = multiply * (1 + checked) + 4 * launch_microseconds;
  microseconds_ = packed / bytes_in_a_microsecond + static_cast<double>(strips_) * of_strip;
}

int64_t ProductPlan::take(int64_t bytes) {
  const int64_t place = workspace_;
  workspace_ += ceil_div(bytes, 1024) * 1024;
  return place;
}

ProductPlan::Places ProductPlan::place(int64_t blocks) {
  const int64_t rows = blocks * fw::packed_rows;
  return {take(blocks * shape_a_.depth_blocks * fw::packed_bytes),
          take(blocks * shape_a_.sample_blocks * fw::packed_bytes),
          take(4 * rows),
          take(4 * rows),
          take(4 * rows),
          take(4 * rows)};
}

fw::Packed ProductPlan::packed(const Places& places, char* workspace) {
  return {workspace + places.blocks,
          workspace + places.sample,
          reinterpret_cast<fw::i32*>(workspace + places.exponents),
          reinterpret_cast<float*>(workspace + places.loss),
          reinterpret_cast<float*>(workspace + places.mass),
          reinterpret_cast<fw::u32*>(workspace + places.largest)};
}

// Where tiles are few, parts of the depth are summed side by side. Returns the microseconds of a strip.
double ProductPlan::choose_splits(int processors) {
  const int64_t tiles = shape_a_.row_blocks * ceil_div(shape_b_.row_blocks, fw::tile_halves) * strip_batches_;
  const uint32_t pairs = shape_a_.depth_blocks / 2;
  double least = 0;
  for (uint32_t splits = 1; splits <= most_splits && (splits == 1 || pairs / splits >= least_pairs); ++splits) {
    const auto waves = static_cast<double>(ceil_div(tiles * splits, processors));
    const double depth = static_cast<double>(ceil_div(pairs, splits)) * 2;
    double time = waves * (depth * stage_microseconds + tile_microseconds);
    if (splits > 1) {
      const double results = static_cast<double>(strip_rows_) * static_cast<double>(strip_columns_ * strip_batches_);
      time += 8 * results * splits / bytes_in_a_microsecond + launch_microseconds;
    }
    if (splits > 1 && time >= least) continue;
    least = time;
    splits_ = splits;
  }
  return least;
}

ProductPlan::Strip ProductPlan::strip(size_t number, char* workspace, float* result) const {
  const bool cuts_batches = strip_batches_ < problem_.batches, cuts_rows = strip_rows_ < problem_.rows;
  const int64_t first_batch = cuts_batches ? static_cast<int64_t>(number) * strip_batches_ : 0;
  const int64_t first_row = cuts_rows ? static_cast<int64_t>(number) * strip_rows_ : 0;
  const int64_t first_column = cuts_batches || cuts_rows ? 0 : static_cast<int64_t>(number) * strip_columns_;
  const int64_t rows = std::min(strip_rows_, problem_.rows - first_row);
  const int64_t columns = std::min(strip_columns_, problem_.columns - first_column);
  const auto given = [&](const ProductProblem::Operand& o, int64_t from, int64_t rows) {
    fw::GivenOperand g{};
    g.data = o.data + first_batch * o.batch_stride + from * o.row_stride;
    g.row_stride = o.row_stride;
    g.depth_stride = o.depth_stride;
    g.batch_stride = o.batch_stride;
    g.rows = static_cast<uint32_t>(rows);
    g.depth = static_cast<uint32_t>(problem_.depth);
    g.batches = static_cast<uint32_t>(std::min(strip_batches_, problem_.batches - first_batch));
    return g;
  };
  const auto operand = [&](const fw::GivenOperand& from, const Places& to, const fw::PackedShape& shape) {
    fw::PackOperand o{};
    o.from = from;
    o.to = packed(to, workspace);
    o.shape = shape;
    o.by = packed_by(from);
    o.vectors = reads_vectors(from, o.by);
    return o;
  };
  const auto blocks_of = [](const fw::PackOperand& o) {
    return o.shape.row_blocks * fw::packed_rows / fw::rows_packed_by_a_block(o.by) * o.from.batches;
  };
  const fw::PackedShape shape_a = shape_of(rows, problem_.depth), shape_b = shape_of(columns, problem_.depth);
  Strip s{};
  s.pack.a = operand(given(problem_.a, first_row, rows), a_, shape_a);
  s.pack.b = operand(given(problem_.b, first_column, columns), b_, shape_b);
  // The operand that is not cut is packed with the first strip.
  const bool packs_a = number == 0 || cuts_batches || cuts_rows, packs_b = number == 0 || cuts_batches || !cuts_rows;
  s.pack.blocks_of_a = packs_a ? blocks_of(s.pack.a) : 0;
  s.pack.flags = reinterpret_cast<fw::u32*>(workspace + flags_);
  s.pack.flag_count = shape_a.row_blocks * shape_b.row_blocks * s.pack.a.from.batches;
  s.pack_blocks = s.pack.blocks_of_a + (packs_b ? blocks_of(s.pack.b) : 0);

  fw::ProductArgs& p = s.product;
  p.shape.a_blocks = shape_a.row_blocks;
  p.shape.b_blocks = shape_b.row_blocks;
  p.shape.depth_blocks = shape_a_.depth_blocks;
  p.shape.batches = s.pack.a.from.batches;
  p.shape.a_batched = p.shape.b_batched = problem_.batches > 1;
  p.shape.splits = splits_;
  p.shape.rows_together = 16;
  p.a = s.pack.a.to;
  p.b = s.pack.b.to;
  p.given_a = s.pack.a.from;
  p.given_b = s.pack.b.from;
  p.result = result + (first_batch * problem_.rows + first_row) * problem_.columns + first_column;
  p.row_stride = problem_.columns;
  p.column_stride = 1;
  p.batch_stride = problem_.rows * problem_.columns;
  p.bias = problem_.bias ? problem_.bias + first_column : nullptr;
  p.partial = reinterpret_cast<float*>(workspace + partial_);
  p.flags = s.pack.flags;
  p.sample_blocks = shape_a_.sample_blocks;
  const uint32_t tiles = fw::tile_count(p.shape), most_blocks = static_cast<uint32_t>(processors_);
  s.multiply_blocks = std::min(tiles, most_blocks);
  s.check_blocks = std::min(tiles / splits_, most_blocks);
  s.finish_blocks = s.pack.flag_count * fw::finish_parts(p.shape);
  return s;
}

}  // namespace fusewright
