// The order in which the backward's kernels and library calls run. As `fuse` leaves them, they stand in the order of
// the inputs whose gradients they lead to: the first layer's first. Its gradient is computed last, from those of all
// later layers, and the weights' gradients of these layers come behind it, so that all saved tensors and all gradients
// of activations would be held until the end. So gradients of weights are taken as soon as their operands are there,
// which frees these.
//
//   bundle   kernels and calls at whose end a gradient of the region stands, with those that compute for it alone (the
//            activation that a weight's gradient reads is recomputed for it)
//
// A bundle runs as soon as all that it reads from others is there, if its results take no more memory than what it
// reads that could be freed; else it only takes more memory sooner. The order is kept if it holds less memory at its
// peak, for the sizes at capture.
#include <algorithm>
#include <map>
#include <set>

#include "passes/program.h"

namespace fusewright {
namespace {

class Scheduler {
 public:
  // `freed`: inputs of the graph that nobody holds once their last reader has run.
  Scheduler(const Graph& graph, const std::vector<Group>& groups, const std::set<Value>& freed)
      : graph_(graph), freed_(freed), reads_(groups.size()), makes_(groups.size()), results_(groups.size()) {
    std::map<Value, size_t> maker;
    for (const Output& output : graph.outputs) kept_.insert(graph.base(output.value));
    for (size_t g = 0; g < groups.size(); ++g) {
      for (Value v : groups[g].kernel.loaded()) reads_[g].insert(graph.base(v));
      for (Value v : groups[g].kernel.stored()) {
        makes_[g].insert(v);
        maker[v] = g;
        results_[g] = results_[g] || kept_.count(v) != 0;
      }
    }
    before_.resize(groups.size());
    after_.resize(groups.size());
    for (size_t g = 0; g < groups.size(); ++g)
      for (Value v : reads_[g])
        if (auto made = maker.find(v); made != maker.end() && made->second != g) {
          before_[g].insert(made->second);
          after_[made->second].insert(g);
        }
  }

  std::vector<size_t> as_given() const {
    std::vector<size_t> order(reads_.size());
    for (size_t g = 0; g < order.size(); ++g) order[g] = g;
    return order;
  }

  std::vector<size_t> gradients_early() const {
    std::vector<std::vector<size_t>> bundles;
    for (size_t g = 0; g < reads_.size(); ++g) {
      if (!results_[g] || !after_[g].empty()) continue;
      std::vector<size_t> bundle = bundle_of(g);
      if (frees_enough(bundle)) bundles.push_back(std::move(bundle));
    }
    std::vector<size_t> order;
    std::vector<bool> done(reads_.size());
    auto run = [&](size_t g) {
      if (!done[g]) order.push_back(g);
      done[g] = true;
    };
    auto run_bundles = [&] {
      std::erase_if(bundles, [&](const std::vector<size_t>& bundle) {
        const bool ready = std::all_of(bundle.begin(), bundle.end(), [&](size_t g) {
          return std::all_of(before_[g].begin(), before_[g].end(), [&](size_t other) {
            return done[other] || std::find(bundle.begin(), bundle.end(), other) != bundle.end();
          });
        });
        if (ready) std::for_each(bundle.begin(), bundle.end(), run);
        return ready;
      });
    };
    run_bundles();
    for (size_t g = 0; g < reads_.size(); ++g) {
      if (done[g]) continue;
      run(g);
      run_bundles();
    }
    return order;
  }

  // The most that is held at a time, beside what is held in any case.
  int64_t peak(const std::vector<size_t>& order) const {
    std::map<Value, size_t> last;
    for (size_t at = 0; at < order.size(); ++at) {
      for (Value v : reads_[order[at]]) last[v] = at;
      for (Value v : makes_[order[at]]) last[v] = at;
    }
    int64_t held = 0, most = 0;
    for (Value v : freed_) held += last.count(v) ? graph_.bytes(v) : 0;
    for (size_t at = 0; at < order.size(); ++at) {
      for (Value v : makes_[order[at]]) held += graph_.bytes(v);
      most = std::max(most, held);
      std::set<Value> touched = reads_[order[at]];
      touched.insert(makes_[order[at]].begin(), makes_[order[at]].end());
      for (Value v : touched)
        if (last[v] == at && can_be_freed(v)) held -= graph_.bytes(v);
    }
    return most;
  }

 private:
  bool can_be_freed(Value v) const { return !kept_.count(v) && (graph_[v].op != Op::input || freed_.count(v) != 0); }

  // In an order that can be run: as given.
  std::vector<size_t> bundle_of(size_t last) const {
    std::set<size_t> bundle = {last};
    for (size_t g = last; g-- > 0;) {
      auto inside = [&](size_t user) { return bundle.count(user) != 0; };
      if (!results_[g] && !after_[g].empty() && std::all_of(after_[g].begin(), after_[g].end(), inside))
        bundle.insert(g);
    }
    return {bundle.begin(), bundle.end()};
  }

  bool frees_enough(const std::vector<size_t>& bundle) const {
    std::set<Value> read, made;
    for (size_t g : bundle) {
      read.insert(reads_[g].begin(), reads_[g].end());
      made.insert(makes_[g].begin(), makes_[g].end());
    }
    int64_t frees = 0, takes = 0;
    for (Value v : read)
      if (!made.count(v) && can_be_freed(v)) frees += graph_.bytes(v);
    for (Value v : made)
      if (kept_.count(v)) takes += graph_.bytes(v);
    return takes <= frees;
  }

  const Graph& graph_;
  const std::set<Value>& freed_;
  std::vector<std::set<Value>> reads_, makes_;  // by group: what holds the data
  std::vector<bool> results_;                   // groups that make a result
  std::set<Value> kept_;
  std::vector<std::set<size_t>> before_, after_;  // groups that each needs, and that need it
};

}  // namespace

void run_order(Program& program) {
  Graph& graph = program.backward;
  std::vector<Group>& groups = program.backward_fusion.groups;
  std::set<Value> freed;  // the region holds what the forward made for it, and gradients of its results
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const bool saved = i < program.saved.size();
    if (!saved || (!program.saved[i].is_input && program.saved[i].index >= static_cast<int>(program.user_outputs)))
      freed.insert(graph.inputs[i]);
  }
  const Scheduler scheduler(graph, groups, freed);
  const std::vector<size_t> early = scheduler.gradients_early();
  if (scheduler.peak(early) >= scheduler.peak(scheduler.as_given())) return;
  std::vector<Group> ordered;
  for (size_t g : early) ordered.push_back(std::move(groups[g]));
  groups = std::move(ordered);
}

}  // namespace fusewright
