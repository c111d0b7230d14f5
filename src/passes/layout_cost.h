#pragma once
// What memory orders cost on a GPU: what `layout` compares whole graphs by. docs/passes.md tells it in words.
#include "passes/program.h"

namespace fusewright {

Order channels_last(int rank);  // {0, 2, 3, 1} for images, {0, 2, 3, 4, 1} for volumes

// The value lies so, or its elements would lie at the same places: dimensions of size 1 are nowhere.
bool lies_in(const Graph& graph, Value v, const Order& order);

// A convolution that is many times slower in channels last.
bool wants_row_major(const Graph& graph, Value v, const Options& options);

// A convolution of images or volumes that the library runs in either order.
bool takes_both_orders(const Graph& graph, Value v, const Options& options);

// The bytes that are moved for the sake of memory orders alone, read and written at the speed of a copy, for the sizes
// at capture.
int64_t layout_cost(const Graph& graph, const Options& options);

}  // namespace fusewright
