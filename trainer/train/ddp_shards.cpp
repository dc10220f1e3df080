// Sharded gradients: what DistributedDataParallel does around a backward of which each rank keeps
// its own part (gradient_shards.hpp).
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>

#include <torch/csrc/autograd/variable.h>
#include <algorithm>
#include <numeric>

#include "trainer/comm/allocator.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/ddp_state.hpp"

namespace dtrain::train {
namespace {

// Runs before a gradient comes to its parameter.
class BeforeGradient final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeGradient(std::function<void()> calls) : calls_(std::move(calls)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    calls_();
    return gradients;
  }

 private:
  std::function<void()> calls_;
};

}  // namespace

void BucketMemory::expect(const std::vector<at::Tensor>& buckets) {
  free_.clear();
  used_ = 0;
  size_ = 0;
  for (const at::Tensor& bucket : buckets) size_ = std::max(size_, bucket.storage().nbytes());
  // They were made with memory that nobody has touched yet: it goes back at once.
  for (const at::Tensor& bucket : buckets) {
    bucket.storage().set_data_ptr_noswap(at::DataPtr(nullptr, bucket.device()));
  }
}

void BucketMemory::release(const at::Tensor& bucket) {
  if (bucket.storage().data() == nullptr) return;
  used_ -= static_cast<std::int64_t>(size_);
  free_.push_back(bucket.storage().set_data_ptr(at::DataPtr(nullptr, bucket.device())));
}

void BucketMemory::provide(const at::Tensor& bucket) {
  if (bucket.storage().data() != nullptr) return;
  used_ += static_cast<std::int64_t>(size_);
  peak_ = std::max(peak_, used_);
  if (free_.empty()) {
    const comm::SharedTensors in_shared_memory;
    const at::Tensor memory = at::empty({static_cast<std::int64_t>(size_)},
                                        bucket.options().dtype(at::kByte).requires_grad(false));
    free_.push_back(memory.storage().set_data_ptr(at::DataPtr(nullptr, bucket.device())));
  }
  bucket.storage().set_data_ptr_noswap(std::move(free_.back()));
  free_.pop_back();
}

void DistributedDataParallel::State::rebuild_buckets() {
  const comm::SharedTensors in_shared_memory;
  const GradientShards::Hidden hidden(arguments.sharding.shards);
  if (reducer->rebuild_buckets() && arguments.sharding.memory) {
    arguments.sharding.memory->expect(reducer->buckets());
  }
}

bool DistributedDataParallel::State::shard(const std::shared_ptr<State>& self,
                                           std::shared_ptr<GradientShards> shards) {
  if (!reducer || options.find_unused_parameters || options.static_graph ||
      options.gradient_type != GradientType::as_it_is) {
    return false;
  }
  // Without views the reducer copies out of the buckets at the end of the backward.
  if (shards->frees_buckets() && !options.gradient_as_bucket_view) return false;
  if (arguments.sharding.shards) {
    throw Error("DDP: the gradients of this model are sharded already, by another optimizer");
  }
  arguments.sharding = {std::move(shards), nullptr, std::make_shared<int>(context.world_size())};
  if (arguments.sharding.shards->frees_buckets()) {
    arguments.sharding.memory = std::make_shared<BucketMemory>();
    tuner.reset();  // large buckets would be what is to be saved
    if (!reducer->has_final_buckets()) {
      // Not one of everything for the first step.
      std::vector<std::int64_t> order(arguments.parameters.size());
      std::iota(order.rbegin(), order.rend(), 0);
      arguments.buckets = buckets_of(arguments, order,
                                     {static_cast<std::size_t>(options.first_bucket_bytes),
                                      static_cast<std::size_t>(options.bucket_bytes)});
    }
  }
  for (std::size_t i = 0; i < arguments.parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(arguments.parameters[i]);
    accumulator->add_pre_hook(
        std::make_unique<BeforeGradient>([weak = std::weak_ptr<State>(self), i] {
          if (const std::shared_ptr<State> its = weak.lock()) its->expect_gradient(weak, i);
        }));
    accumulators.push_back(std::move(accumulator));
  }
  const bool has_final_buckets = reducer->has_final_buckets();
  if (has_final_buckets) arguments.buckets = reducer->layout();
  reducer.reset();  // takes its hooks along
  reducer = make_reducer(arguments, options);
  if (has_final_buckets) reducer->keep_buckets();
  return true;
}

void DistributedDataParallel::State::expect_gradient(const std::weak_ptr<State>& self,
                                                     std::size_t parameter) {
  const Sharding& sharding = arguments.sharding;
  sharding.shards->expect(arguments.parameters[parameter], sync);
  if (!sync) return;
  if (sharding.memory) sharding.memory->provide(reducer->bucket_of(parameter));
  if (std::exchange(collects, true)) return;
  // After what the reducer does at the end of this backward, which it has not asked for yet. A
  // backward inside of a backward (a checkpoint's) may end before all gradients are there.
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.queue_callback([self, &engine] {
    engine.queue_callback([self] {
      const std::shared_ptr<State> its = self.lock();
      if (!its) return;
      its->collects = false;
      if (!its->reducer->is_reducing()) its->arguments.sharding.shards->collect();
    });
  });
}

bool DistributedDataParallel::shard_gradients(std::shared_ptr<GradientShards> shards) {
  return state_->shard(state_, std::move(shards));
}

std::int64_t DistributedDataParallel::peak_bucket_bytes() const {
  const State& state = *state_;
  if (!state.reducer) return 0;
  const auto& memory = state.arguments.sharding.memory;
  return memory ? memory->peak_bytes() : state.reducer->bucket_bytes();
}

}  // namespace dtrain::train
