// Graphs that must not pass, and that the message names the operation.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

Graph good() {
  return parse(
      "graph(%x: f32[n, c], %m: f32[c]) { %a = mul(%x, %m) %b = sum(%a) {dims = (1), keepdim = 0} return %b }");
}

TEST(Verify, AcceptsWhatTheBuilderMade) { EXPECT_NO_THROW(verify(good())); }

TEST(Verify, WrongShape) {
  Graph graph = good();
  graph.nodes[2].type.shape[0] = 7;
  EXPECT_ERROR(verify(graph), "%2 = mul(f32[n, c], f32[c]): has shape [7, c], should be [n, c]");
}

TEST(Verify, WrongType) {
  Graph graph = good();
  graph.nodes[3].type.dtype = DType::f64;
  EXPECT_ERROR(verify(graph), "%3 = sum(f32[n, c]): is f64, should be f32");
}

TEST(Verify, UseBeforeDefinition) {
  Graph graph = good();
  graph.nodes[2].operands[1] = 3;
  EXPECT_ERROR(verify(graph), "%2 = mul: operand %3 is not defined before its use");
}

TEST(Verify, NumberOfOperands) {
  Graph graph = good();
  graph.nodes[2].operands.pop_back();
  EXPECT_ERROR(verify(graph), "%2 = mul(f32[n, c]): has 1 operands");
}

TEST(Verify, OperandsThatDoNotFit) {
  Graph graph = good();
  graph.nodes[1].type.shape[0] = Size::symbol("h");
  graph.hints["h"] = 5;
  EXPECT_ERROR(verify(graph), "mul(");
}

TEST(Verify, MissingAttribute) {
  Graph graph = good();
  graph.nodes[3].attrs.erase("dims");
  EXPECT_ERROR(verify(graph), "sum: attribute 'dims' is missing");
}

TEST(Verify, MemoryOrder) {
  Graph graph = good();
  graph.nodes[2].type.order = {0};
  EXPECT_ERROR(verify(graph), "%2 = mul(f32[n, c], f32[c]): memory order does not name each of 2 dimensions once");
  graph.nodes[2].type.order = {0, 0};
  EXPECT_ERROR(verify(graph), "memory order");
}

TEST(Verify, OutputsExist) {
  Graph graph = good();
  graph.outputs[0].value = 9;
  EXPECT_ERROR(verify(graph), "output %9 does not exist");
  graph = good();
  graph.outputs[0].order = {1, 0};
  EXPECT_ERROR(verify(graph), "output %3");
}

TEST(Verify, WhatReplacesAnInputFitsIt) {
  const std::string head = "graph(%x: f32[n, c], %y: f32[n, c], %s: scalar f32[]) { %1 = add(%x, %y) ";
  EXPECT_NO_THROW(verify(parse(head + "%2 = mul(%1, %x) return %1 -> %x, %2 -> %y }")));
  EXPECT_ERROR(parse(head + "return %1 -> %1 }"), "is no input");
  EXPECT_ERROR(verify(parse(head + "%2 = mul(%1, %x) return %1 -> %x, %2 -> %x }")), "two outputs go into 'x'");
  EXPECT_ERROR(verify(parse(head + "%2 = gt(%1, %x) return %2 -> %x }")), "does not fit into 'x'");
  EXPECT_ERROR(parse(head + "%2 = sum(%1) {dims = (0), keepdim = 0} return %2 -> %x }"), "rank");
  EXPECT_ERROR(verify(parse(head + "%2 = mul(%s, %s) return %2 -> %s }")), "goes into a number");
}

TEST(Verify, NothingIsLeftToUnify) {
  // Inference could make [n] and [m] equal; in a finished graph that would be a missed substitution.
  Graph graph = good();
  graph.hints["m"] = graph.hints["c"];
  graph.nodes[1].type.shape[0] = Size::symbol("m");
  EXPECT_ERROR(verify(graph), "%2 = mul");
}

}  // namespace
}  // namespace fusewright::testing
