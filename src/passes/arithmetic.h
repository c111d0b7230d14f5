#pragma once
#include "passes/program.h"

namespace fusewright {

// How many operations on numbers a group's work is, for the sizes at capture: one for each element of a pointwise
// result, each term of a reduction and each tap of a window, two for each product of a contraction. Functions count as
// one, whatever they cost; what a schedule computes twice counts once.
int64_t operations(const Graph& graph, const Group& group);

// Of forward and backward together.
int64_t operations(const Program& program);

// What the same program would be without some of the rewrite rules: for who wants to know what they saved.
Program without_rules(const Graph& graph, const Program& program, const std::set<std::string>& rules);

}  // namespace fusewright
