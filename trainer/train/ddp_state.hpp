#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trainer/train/ddp.hpp"
#include "trainer/train/ddp_reducer.hpp"
#include "trainer/train/ddp_tuner.hpp"

namespace dtrain::train {

inline constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

// What DistributedDataParallel holds: ddp.cpp has its steps, ddp_join.cpp those of a rank that has
// no more batches.
struct DistributedDataParallel::State {
  State(std::shared_ptr<torch::nn::Module> its_module, Context& its_context, DdpOptions its_options)
      : module(std::move(its_module)), context(its_context), options(std::move(its_options)) {}

  std::shared_ptr<torch::nn::Module> module;
  Context& context;
  DdpOptions options;
  Group group;
  ReducerArguments arguments;
  std::unique_ptr<DdpReducer> reducer;
  std::vector<at::Tensor> buffers;
  std::optional<BucketTuner> tuner;
  bool sync = true;             // false inside of no_sync
  bool buffers_behind = false;  // a synchronized forward came before: buffers may differ by now
  int buffers_from = 0;

  // Static graph: its first synchronized backward calls delay_all_reduce() at its end, once.
  bool first_backward_done = false;
  std::optional<DdpReducer::HookCounts> hook_counts;

  bool joining = false;

  // Sharded gradients: ddp_shards.cpp.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // they hold our hooks
  bool collects = false;  // the running backward will collect the parts at its end

  bool shard(const std::shared_ptr<State>& self, std::shared_ptr<GradientShards> shards);
  void expect_gradient(const std::weak_ptr<State>& self, std::size_t parameter);
  void rebuild_buckets();
  void begin_step();
  void tune();
  void keep_hook_counts();
  std::pair<int, bool> announce(bool active);
  std::int64_t index_of(const at::Tensor& parameter) const;
  void follow(const std::function<void()>& step);
};

}  // namespace dtrain::train
