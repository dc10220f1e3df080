#pragma once

// Inside of ddp.cpp: c10d's reducer, and what Python's wrapper adds to it around each step. Costs
// 20 s to include.

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <vector>

#include "trainer/train/ddp.hpp"
#include "trainer/train/gradient_shards.hpp"

namespace dtrain::train {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using BucketIndices = std::vector<std::vector<std::size_t>>;

// c10d's reducer, of which some of the protected state must be seen.
class DdpReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  BucketIndices layout() const {
    BucketIndices indices;
    for (const auto& bucket : buckets_) indices.push_back(bucket.variable_indices);
    return indices;
  }
  std::int64_t bucket_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& bucket : buckets_)
      bytes += static_cast<std::int64_t>(bucket.gradients.nbytes());
    return bytes;
  }
  std::vector<at::Tensor> buckets() const {
    std::vector<at::Tensor> all;
    for (const auto& bucket : buckets_) all.push_back(bucket.gradients);
    return all;
  }
  const at::Tensor& bucket_of(std::size_t parameter) const {
    return buckets_[variable_locators_[parameter].bucket_index].gradients;
  }
  // This backward's gradients are not yet with the parameters.
  bool is_reducing() const { return require_finalize_; }
  // The buckets stay as they were given: none are made from the order of the first backward.
  void keep_buckets() { has_rebuilt_bucket_ = true; }
  bool has_final_buckets() const { return has_rebuilt_bucket_; }
  // With find_unused_parameters the first step whose unused parameters are others than those of the
  // step before is told to c10d's Logger, without asking whether there is one: SIGSEGV. Nobody
  // needs to be told.
  void let_graphs_differ() { ddp_graph_static_ = false; }
  long synchronized_steps() const { return num_iterations_; }

  // As if there had been no backward yet: the next one is the static graph's first.
  void forget_backwards() {
    num_bwd_calls_ = 0;
    first_autograd_hook_called_ = false;
    for (auto& [index, count] : numGradHooksTriggeredMap_) count = 0;
  }

  // How often each parameter's hook ran in the static graph's first step.
  using HookCounts = std::unordered_map<std::size_t, int>;
  const HookCounts& hook_counts() const { return numGradHooksTriggeredMap_; }
  void set_hook_counts(HookCounts counts) { numGradHooksTriggeredMap_ = std::move(counts); }
};

// Memory of buckets that comes and goes with their gradients (ZeRO-2). As much is kept as was ever
// needed at one time.
class BucketMemory {
 public:
  // Takes a bucket's memory away: what is in it is lost. Nothing if it has none.
  void release(const at::Tensor& bucket);
  void provide(const at::Tensor& bucket);  // nothing if it has some
  // The sizes that will be asked for, so that any memory suits any of these buckets.
  void expect(const std::vector<at::Tensor>& buckets);
  std::int64_t peak_bytes() const { return peak_; }

 private:
  std::vector<at::DataPtr> free_;
  std::size_t size_ = 0;  // of each
  std::int64_t used_ = 0;
  std::int64_t peak_ = 0;
};

// How gradients are sharded, where they are.
struct Sharding {
  std::shared_ptr<GradientShards> shards;
  std::shared_ptr<BucketMemory> memory;  // null: buckets keep theirs
  std::shared_ptr<int> ranks;            // that have a batch
};

struct ReducerArguments {
  std::vector<at::Tensor> parameters;
  BucketIndices buckets;
  Group group;
  std::vector<bool> expect_sparse;
  std::unordered_map<std::size_t, std::string> names;
  Sharding sharding;
};

// With the hooks that the options ask for. Its buckets lie in shared memory if there is any.
std::unique_ptr<DdpReducer> make_reducer(const ReducerArguments& arguments,
                                         const DdpOptions& options);

// Buckets by size of the parameters in this order (all of them, by index).
BucketIndices buckets_of(const ReducerArguments& arguments, const std::vector<std::int64_t>& order,
                         const std::vector<std::size_t>& limits);

// Passes outputs on, so that something of ours is in the graph before all else of backward.
// `begins` runs when backward reaches it, before any parameter has its gradient; outputs that the
// loss does not use stay without a gradient.
std::vector<at::Tensor> sink(std::vector<at::Tensor> outputs, std::function<void()> begins);

}  // namespace dtrain::train
