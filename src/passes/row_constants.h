#pragma once
// Rewrite rules about values that are one number for a whole row: statistics of a norm, and what is made of them. They
// are computed once for a row; every operation that moves from the row's elements to them is nearly free.
#include "ir/builder.h"

namespace fusewright {

// v does not vary along any of `dims` of a shape with `rank` dimensions.
bool invariant(const Graph& graph, Value v, size_t rank, const Ints& dims);
int uses(const Graph& graph, Value v);
bool depends_on_reduction(const Graph& graph, Value v);

// Rules as rewrite.cpp lists them: the value that stands for `node`, or -1.
Value norm_is_affine(Builder& b, const Node& node, const std::vector<Value>& operands, const Graph& before);
Value common_factor_leaves_terms(Builder& b, const Node& node, const std::vector<Value>& operands, const Graph& before);
Value softmax_gradient_reads_result(Builder& b, const Node& node, const std::vector<Value>& operands,
                                    const Graph& before);

}  // namespace fusewright
