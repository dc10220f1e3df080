// Join: ranks with different numbers of batches.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>

#include "trainer/core/error.hpp"
#include "trainer/train/ddp_state.hpp"

namespace dtrain::train {
namespace {

// A parameter's place in its flat bucket, in the layout that its gradient has.
at::Tensor view_of(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  const at::Tensor part = flat.narrow(0, offset, parameter.numel());
  if (parameter.is_non_overlapping_and_dense()) {
    return part.as_strided(parameter.sizes(), parameter.strides(), part.storage_offset());
  }
  return part.view(parameter.sizes());
}

}  // namespace

// Join: what each rank tells the others at the beginning of a step. Returns how many have a batch,
// and whether they synchronize.
std::pair<int, bool> DistributedDataParallel::State::announce(bool active) {
  const int world = context.world_size();
  std::vector<double> words(static_cast<std::size_t>(world) + 1);
  if (active) {
    words[static_cast<std::size_t>(context.rank())] = 1;
    words.back() = sync ? 1 : 0;
  }
  words = context.all_reduce_sum(words);
  int count = 0;
  for (int rank = world - 1; rank >= 0; --rank) {
    if (words[static_cast<std::size_t>(rank)] == 0) continue;
    ++count;
    buffers_from = rank;  // the first of those that have batches
  }
  const int syncing = static_cast<int>(words.back());
  if (syncing != 0 && syncing != count) {
    throw Error("DDP: " + std::to_string(syncing) + " of " + std::to_string(count) +
                " ranks synchronize in this step and the others are inside of no_sync");
  }
  return {count, syncing != 0};
}

std::int64_t DistributedDataParallel::State::index_of(const at::Tensor& parameter) const {
  const auto found = std::find_if(arguments.parameters.begin(), arguments.parameters.end(),
                                  [&](const at::Tensor& each) { return each.is_same(parameter); });
  return found - arguments.parameters.begin();
}

// A rank without batches: the collectives of the others' steps, in their order.
void DistributedDataParallel::State::follow(const std::function<void()>& step) {
  for (;;) {
    const auto [active, syncs] = announce(false);
    if (active == 0) break;
    keep_hook_counts();
    if (options.static_graph && !first_backward_done) {
      throw Error("DDP: with static_graph every rank needs a batch in the first step");
    }
    const bool before = std::exchange(sync, syncs);
    begin_step();
    sync = before;
    buffers_behind = syncs;
    if (!syncs) continue;

    const c10::NoGradGuard no_grad;
    const Sharding& sharding = arguments.sharding;
    if (sharding.shards) {
      *sharding.ranks = active;
      for (const at::Tensor& each : arguments.parameters) sharding.shards->expect(each, true);
    }
    const bool finds = options.find_unused_parameters && !options.static_graph;
    at::Tensor used = at::zeros({static_cast<std::int64_t>(arguments.parameters.size())}, at::kInt);
    if (sharding.memory) {
      for (const at::Tensor& bucket : reducer->buckets()) sharding.memory->provide(bucket);
    }
    // Where the hook gives a bucket's memory back it is to be that of the bucket itself, and not
    // that of a copy of zeros.
    std::vector<c10d::GradBucket> buckets = reducer->get_grad_buckets(!sharding.memory);
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    for (c10d::GradBucket& bucket : buckets) {
      // Zeros, but for what this rank has gathered inside of no_sync and not yet sent.
      std::int64_t offset = 0;
      for (const at::Tensor& parameter : bucket.getParameters()) {
        at::Tensor place = view_of(bucket.getBuffer(), offset, parameter);
        if (!parameter.grad().defined()) {
          if (sharding.memory) place.zero_();
        } else {
          place.copy_(parameter.grad());
          // A hook takes the average itself.
          if (options.gradient_type == GradientType::as_it_is && !sharding.shards) {
            place.div_(active);
          }
          used[index_of(parameter)] = 1;
        }
        offset += parameter.numel();
      }
      sums.push_back(reducer->run_comm_hook(bucket));
    }
    if (finds) {
      at::Tensor all = used.to(context.device());
      context.all_reduce_sum(all);
      used = all.cpu();
    }
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      sums[b]->waitAndThrow();
      const at::Tensor flat = c10d::detail::parseCppCommHookResult(sums[b]->constValue());
      std::int64_t offset = 0;
      for (const at::Tensor& parameter : buckets[b].getParameters()) {
        const bool is_used = !finds || used[index_of(parameter)].item<int>() != 0;
        if (is_used) parameter.mutable_grad() = view_of(flat, offset, parameter);
        offset += parameter.numel();
      }
    }
    if (sharding.shards) sharding.shards->collect();
    if (reducer->should_rebuild_buckets()) reducer->push_rebuilt_params_for_all_indices();
    step();
  }
  if (!buffers.empty()) c10d::broadcast_coalesced(group, buffers, kBroadcastBytes, buffers_from);
  buffers_behind = false;
  buffers_from = 0;
}

DistributedDataParallel::Join::Join(DistributedDataParallel& ddp) : ddp_(ddp) {
  ddp.state_->joining = ddp.state_->reducer != nullptr;
}

DistributedDataParallel::Join::~Join() {
  ddp_.state_->joining = false;
}

void DistributedDataParallel::Join::finish(const std::function<void()>& step) {
  State& state = *ddp_.state_;
  if (!state.joining) return;
  state.joining = false;
  state.follow(step);
}

}  // namespace dtrain::train
