#include "trainer/train/ddp.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <torch/csrc/autograd/engine.h>
#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_set>

#include "trainer/comm/allocator.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/ddp_state.hpp"

namespace dtrain::train {
namespace {

// broadcast_coalesced writes in place, which autograd forbids on the parameters themselves.
std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

// One line for each parameter: what must be equal on all ranks.
std::vector<std::string> describe(const ReducerArguments& arguments) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < arguments.parameters.size(); ++i) {
    const at::Tensor& p = arguments.parameters[i];
    std::ostringstream line;
    line << arguments.names.at(i) << " " << c10::toString(p.scalar_type()) << p.sizes();
    if (!p.is_contiguous()) line << " strides " << p.strides();
    lines.push_back(line.str());
  }
  return lines;
}

// c10d's own check compares shapes only and does not say which parameter it was. Every rank learns
// of a difference and throws: none is left waiting for the others.
void verify_same_model(Context& context, const std::vector<std::string>& mine) {
  std::string text;
  for (const std::string& line : mine) text += line + "\n";
  std::istringstream first(context.broadcast(text));
  std::string problem;
  std::string theirs;
  std::size_t i = 0;
  for (; problem.empty() && std::getline(first, theirs); ++i) {
    if (i < mine.size() && mine[i] == theirs) continue;
    problem = "rank " + std::to_string(context.rank()) + " has " +
              (i < mine.size() ? mine[i] : "no more parameters") + " where rank 0 has " + theirs;
  }
  if (problem.empty() && i < mine.size()) {
    problem = "rank " + std::to_string(context.rank()) + " has " + mine[i] +
              " where rank 0 has no more parameters";
  }
  const double others = context.all_reduce_sum(problem.empty() ? 0.0 : 1.0);
  if (others == 0) return;
  if (problem.empty()) {
    problem =
        std::to_string(static_cast<int>(others)) + " other ranks have another model than rank 0";
  }
  throw Error("DDP: the ranks' models differ: " + problem);
}

BucketIndices indices_of(const BucketLayout& layout, const ReducerArguments& arguments) {
  std::unordered_map<std::string, std::size_t> index_of;
  for (const auto& [index, name] : arguments.names) index_of.emplace(name, index);
  BucketIndices indices;
  for (const std::vector<std::string>& bucket : layout) {
    indices.emplace_back();
    for (const std::string& name : bucket) {
      const auto found = index_of.find(name);
      if (found == index_of.end()) {
        throw Error("DDP: the layout of buckets names '" + name +
                    "', which is given twice or not a parameter of the model");
      }
      indices.back().push_back(found->second);
      index_of.erase(found);
    }
  }
  if (!index_of.empty()) {
    throw Error("DDP: the layout of buckets misses '" + index_of.begin()->first + "'");
  }
  return indices;
}

bool layout_changes_nothing(const Context& context, const ReducerArguments& arguments) {
  return layout_changes_nothing(context.transport(), arguments.parameters.at(0).device(),
                                context.world_size());
}

}  // namespace

bool layout_changes_nothing(Transport of_cpu, c10::Device device, int ranks) {
  return ranks <= 2 || (device.is_cpu() && of_cpu == Transport::shared_memory);
}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 Context& context, DdpOptions options)
    : state_(std::make_shared<State>(std::move(module), context, std::move(options))) {
  State& state = *state_;
  if (context.process_group() == nullptr) return;
  state.group = Group::reclaim_copy(context.process_group());

  ReducerArguments& arguments = state.arguments;
  arguments.group = state.group;
  std::unordered_set<c10::TensorImpl*> seen;  // tied parameters come by several names
  std::int64_t bytes = 0;
  for (const auto& item : state.module->named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    arguments.names[arguments.parameters.size()] = item.key();
    arguments.parameters.push_back(item.value());
    bytes += static_cast<std::int64_t>(item.value().nbytes());
  }
  if (arguments.parameters.empty()) {
    throw Error("DDP: the model has no parameter that needs a gradient");
  }
  arguments.expect_sparse.assign(arguments.parameters.size(), false);
  state.buffers = detached(state.module->buffers());

  verify_same_model(context, describe(arguments));
  std::vector<at::Tensor> all = detached(state.module->parameters());
  all.insert(all.end(), state.buffers.begin(), state.buffers.end());
  c10d::broadcast_coalesced(state.group, all, kBroadcastBytes, 0);

  const DdpOptions& o = state.options;
  if (o.bucket_layout) {
    arguments.buckets = indices_of(*o.bucket_layout, arguments);
  } else {
    // One bucket without a limit until the first backward has shown the order of the gradients;
    // the reducer then makes its own by the two sizes. With find_unused_parameters it never does,
    // so they are made here at once, from the last parameter to the first.
    std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max()};
    if (o.find_unused_parameters && !o.static_graph) {
      limits = {static_cast<std::size_t>(o.first_bucket_bytes),
                static_cast<std::size_t>(o.bucket_bytes)};
    }
    std::vector<std::int64_t> order(arguments.parameters.size());
    std::iota(order.rbegin(), order.rend(), 0);
    arguments.buckets = buckets_of(arguments, order, limits);
  }
  state.reducer = make_reducer(arguments, o);
  if (o.bucket_layout) state.reducer->keep_buckets();
  const bool bits_are_safe = layout_changes_nothing(context, arguments);
  if (!o.bucket_layout && !o.deterministic && !o.find_unused_parameters && !o.static_graph &&
      o.tune_buckets.value_or(bits_are_safe && o.bucket_bytes == DdpOptions{}.bucket_bytes)) {
    state.tuner.emplace(bytes);
  }
}

DistributedDataParallel::~DistributedDataParallel() {
  if (state_->reducer) state_->reducer->remove_autograd_hooks();
}

BucketLayout DistributedDataParallel::bucket_layout() const {
  BucketLayout layout;
  if (!state_->reducer) return layout;
  for (const auto& bucket : state_->reducer->layout()) {
    layout.emplace_back();
    for (const std::size_t index : bucket) {
      layout.back().push_back(state_->arguments.names.at(index));
    }
  }
  return layout;
}

BucketLayout DistributedDataParallel::layout_to_keep() {
  State& state = *state_;
  if (!state.reducer || layout_changes_nothing(state.context, state.arguments)) return {};
  if (!state.reducer->has_final_buckets()) state.rebuild_buckets();  // as the next step would
  return state.reducer->has_final_buckets() ? bucket_layout() : BucketLayout{};
}

void DistributedDataParallel::use_layout(const BucketLayout& layout) {
  State& state = *state_;
  if (!state.reducer) return;
  state.arguments.buckets = indices_of(layout, state.arguments);
  state.tuner.reset();
  const GradientShards::Hidden hidden(state.arguments.sharding.shards);
  state.reducer.reset();  // takes its hooks along
  state.reducer = make_reducer(state.arguments, state.options);
  state.reducer->keep_buckets();
}

bool DistributedDataParallel::tuning() const {
  return state_->tuner.has_value();
}

// What every rank does at the beginning of a step, also one that has no batch for it.
void DistributedDataParallel::State::begin_step() {
  collects = false;
  rebuild_buckets();
  if (tuner && sync && reducer->has_final_buckets()) tune();
  if (options.broadcast_buffers && buffers_behind) {
    buffers_behind = false;
    if (!buffers.empty()) {
      c10d::broadcast_coalesced(group, buffers, kBroadcastBytes, buffers_from);
    }
  }
}

void DistributedDataParallel::State::tune() {
  const auto size = tuner->step([this](std::int64_t mine) {
    at::Tensor choice = at::full({1}, mine, at::TensorOptions(at::kLong).device(context.device()));
    context.broadcast(choice);
    return choice.item<std::int64_t>();
  });
  if (tuner->done()) tuner.reset();
  if (!size) return;
  options.bucket_bytes = *size;
  std::vector<std::int64_t> order;
  for (const auto& bucket : reducer->layout())
    order.insert(order.end(), bucket.begin(), bucket.end());
  arguments.buckets =
      buckets_of(arguments, order,
                 {static_cast<std::size_t>(std::min(options.first_bucket_bytes, *size)),
                  static_cast<std::size_t>(*size)});
  const GradientShards::Hidden hidden(arguments.sharding.shards);
  reducer.reset();  // takes its hooks along
  reducer = make_reducer(arguments, options);
  reducer->keep_buckets();
}

// The reducer counts hooks in every backward between the static graph's first two synchronized
// steps, those inside of no_sync too, and would then wait for as many in one step. The counts of
// the first one are the right ones.
void DistributedDataParallel::State::keep_hook_counts() {
  if (!options.static_graph || reducer->synchronized_steps() > 1) return;
  if (reducer->synchronized_steps() == 0) {
    reducer->forget_backwards();  // those inside of no_sync
    return;
  }
  if (!hook_counts) {
    hook_counts = reducer->hook_counts();
  } else {
    reducer->set_hook_counts(*hook_counts);
  }
}

void DistributedDataParallel::prepare_forward() {
  State& state = *state_;
  if (!state.reducer || !c10::GradMode::is_enabled()) return;
  state.keep_hook_counts();
  if (state.joining) {
    const auto [active, syncs] = state.announce(true);
    if (state.arguments.sharding.ranks) *state.arguments.sharding.ranks = active;
    // Gradients are divided by the number of ranks that have a batch.
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(
        c10::IValue(std::vector<at::Tensor>{at::full({1}, static_cast<double>(active))}));
    state.reducer->set_forward_pass_work_handle(c10d::Work::create_from_future(future), false);
  }
  if (!state.joining) {
    // All ranks count again, also after a Join that ended with fewer.
    state.reducer->set_forward_pass_work_handle({}, /*useStaticWorldSize=*/true);
    if (state.arguments.sharding.ranks) {
      *state.arguments.sharding.ranks = state.context.world_size();
    }
  }
  if (state.sync) state.reducer->prepare_for_forward();
  state.begin_step();
}

void DistributedDataParallel::sync_buffers() {
  State& state = *state_;
  state.buffers_behind = false;
  if (!state.group || state.buffers.empty()) return;
  c10d::broadcast_coalesced(state.group, state.buffers, kBroadcastBytes, 0);
}

std::vector<at::Tensor> DistributedDataParallel::prepare_backward(std::vector<at::Tensor> outputs) {
  State& state = *state_;
  if (!state.reducer || !c10::GradMode::is_enabled()) return outputs;
  state.buffers_behind = state.sync;
  if (!state.sync) return outputs;
  const bool finds = state.options.find_unused_parameters && !state.options.static_graph;
  state.reducer->prepare_for_backward(finds ? outputs : std::vector<at::Tensor>{});
  if (finds) return sink(std::move(outputs), {});
  if (!state.options.static_graph) return outputs;
  // In the first step the sink reaches all outputs, and the hooks of parameters behind those that
  // the loss does not use are counted too: of several outputs it must be there in each step.
  if (state.first_backward_done) {
    return outputs.size() > 1 ? sink(std::move(outputs), {}) : outputs;
  }
  // Without this the first step's gradients would never be reduced, and nobody would say so.
  const std::weak_ptr<State> weak = state_;
  return sink(std::move(outputs), [weak] {
    const std::shared_ptr<State> its = weak.lock();
    if (!its || its->first_backward_done) return;
    its->first_backward_done = true;
    torch::autograd::Engine::get_default_engine().queue_callback([weak] {
      if (const std::shared_ptr<State> still = weak.lock()) still->reducer->delay_all_reduce();
    });
  });
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : ddp_(ddp), before_(std::exchange(ddp.state_->sync, false)) {}

DistributedDataParallel::NoSync::~NoSync() {
  ddp_.state_->sync = before_;
}

}  // namespace dtrain::train
