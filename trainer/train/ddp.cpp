#include "trainer/train/ddp.hpp"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <unordered_set>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct ReducerArguments {
  std::vector<at::Tensor> parameters;
  std::vector<std::vector<std::size_t>> buckets;
  Group group;
  std::vector<bool> expect_sparse;
  std::unordered_map<std::size_t, std::string> names;
};

// The constructor grows arguments from release to release; take the form that this one has.
template <typename Reducer>
std::unique_ptr<Reducer> make_reducer(ReducerArguments a, const DdpOptions& o) {
  constexpr bool kSkipUnused = false;
  constexpr bool kPythonReducer = false;
  const std::vector<std::int64_t> caps{};
  if constexpr (requires {
                  Reducer(a.parameters, a.buckets, a.group, a.expect_sparse, o.bucket_bytes,
                          o.find_unused_parameters, o.gradient_as_bucket_view, a.names,
                          o.first_bucket_bytes, kSkipUnused, kPythonReducer, caps);
                }) {  // 2.11 and later, which default what comes after it
    return std::make_unique<Reducer>(std::move(a.parameters), std::move(a.buckets),
                                     std::move(a.group), std::move(a.expect_sparse), o.bucket_bytes,
                                     o.find_unused_parameters, o.gradient_as_bucket_view,
                                     std::move(a.names), o.first_bucket_bytes, kSkipUnused,
                                     kPythonReducer, caps);
  } else {  // without the list of caps
    return std::make_unique<Reducer>(std::move(a.parameters), std::move(a.buckets),
                                     std::move(a.group), std::move(a.expect_sparse), o.bucket_bytes,
                                     o.find_unused_parameters, o.gradient_as_bucket_view,
                                     std::move(a.names), o.first_bucket_bytes, kSkipUnused,
                                     kPythonReducer);
  }
}

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

}  // namespace

struct DistributedDataParallel::State {
  std::shared_ptr<torch::nn::Module> module;
  DdpOptions options;
  Group group;
  std::unique_ptr<c10d::Reducer> reducer;
  std::vector<at::Tensor> buffers;
  bool sync = true;             // false inside of no_sync
  bool buffers_behind = false;  // a synchronized forward came before: buffers may differ by now
};

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 Context& context, DdpOptions options)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.module = std::move(module);
  state.options = options;
  if (context.process_group() == nullptr) return;
  state.group = Group::reclaim_copy(context.process_group());

  ReducerArguments arguments;
  arguments.group = state.group;
  std::unordered_set<c10::TensorImpl*> seen;  // tied parameters come by several names
  for (const auto& item : state.module->named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) {
      continue;
    }
    arguments.names[arguments.parameters.size()] = item.key();
    arguments.parameters.push_back(item.value());
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

  // One bucket without a limit until the first backward has shown the order of the gradients; the
  // reducer then makes its own by the two sizes. With find_unused_parameters it never does, so
  // they are made here at once.
  std::vector<std::size_t> limits{std::numeric_limits<std::size_t>::max()};
  if (options.find_unused_parameters) {
    limits = {static_cast<std::size_t>(options.first_bucket_bytes),
              static_cast<std::size_t>(options.bucket_bytes)};
  }
  arguments.buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      arguments.parameters, limits, arguments.expect_sparse));
  std::reverse(arguments.buckets.begin(), arguments.buckets.end());
  state.reducer = make_reducer<c10d::Reducer>(std::move(arguments), options);
}

DistributedDataParallel::~DistributedDataParallel() {
  if (state_->reducer) state_->reducer->remove_autograd_hooks();
}

void DistributedDataParallel::prepare_forward() {
  State& state = *state_;
  if (!state.reducer || !c10::GradMode::is_enabled()) return;
  if (state.sync) state.reducer->prepare_for_forward();
  state.reducer->rebuild_buckets();
  if (state.options.broadcast_buffers && state.buffers_behind) sync_buffers();
}

void DistributedDataParallel::sync_buffers() {
  State& state = *state_;
  state.buffers_behind = false;
  if (!state.group || state.buffers.empty()) return;
  c10d::broadcast_coalesced(state.group, state.buffers, kBroadcastBytes, 0);
}

void DistributedDataParallel::prepare_backward(const std::vector<at::Tensor>& outputs) {
  State& state = *state_;
  if (!state.reducer || !c10::GradMode::is_enabled()) return;
  state.buffers_behind = state.sync;
  if (!state.sync) return;
  state.reducer->prepare_for_backward(
      state.options.find_unused_parameters ? outputs : std::vector<at::Tensor>{});
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp)
    : ddp_(ddp), before_(std::exchange(ddp.state_->sync, false)) {}

DistributedDataParallel::NoSync::~NoSync() {
  ddp_.state_->sync = before_;
}

}  // namespace dtrain::train
