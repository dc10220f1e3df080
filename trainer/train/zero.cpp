#include "trainer/train/zero.hpp"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{25} << 20;

std::shared_ptr<Optimizer> checked(std::shared_ptr<Optimizer> inside) {
  if (!inside->updates_apart()) {
    throw Error("zero1: " + inside->kind() +
                " cannot be shared out among ranks: it does not say that it updates each parameter "
                "by itself (Optimizer::updates_apart)");
  }
  if (inside->state_is_sharded()) throw Error("zero1: the optimizer is shared out already");
  return inside;
}

}  // namespace

std::map<std::string, int> ZeroOptimizer::share_out(const std::vector<NamedParameter>& parameters,
                                                    int ranks) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parameters[a].tensor.numel() > parameters[b].tensor.numel();
  });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::map<std::string, int> owners;
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += parameters[i].tensor.numel();
    owners[parameters[i].name] = static_cast<int>(least - load.begin());
  }
  return owners;
}

ZeroOptimizer::ZeroOptimizer(std::shared_ptr<Optimizer> inside, Context& context)
    : Optimizer(one_group(inside->parameters())),
      inside_(checked(std::move(inside))),
      context_(context) {
  lr_ = inside_->lr();
  const std::map<std::string, int> owners = share_out(parameters_, context.world_size());
  of_rank_.resize(static_cast<std::size_t>(context.world_size()));
  for (const NamedParameter& parameter : parameters_) {
    of_rank_[static_cast<std::size_t>(owners.at(parameter.name))].push_back(
        parameter.tensor.detach());
  }
  inside_->keep_only([&](const std::string& name) { return owners.at(name) == context.rank(); });
}

void ZeroOptimizer::step() {
  inside_->set_lr(lr_);
  inside_->step();
  if (context_.process_group() == nullptr) return;
  const c10::NoGradGuard no_grad;
  const auto group = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(context_.process_group());
  for (std::size_t rank = 0; rank < of_rank_.size(); ++rank) {
    if (of_rank_[rank].empty()) continue;
    c10d::broadcast_coalesced(group, of_rank_[rank], kBroadcastBytes, static_cast<int>(rank));
  }
}

void ZeroOptimizer::load_state(const std::map<std::string, at::Tensor>& state) {
  std::map<std::string, at::Tensor> mine;
  std::set<std::string> names;
  for (const NamedParameter& parameter : parameters_) names.insert(parameter.name);
  const std::map<std::string, at::Tensor> known = inside_->state();
  for (const auto& [key, tensor] : state) {
    if (!names.contains(key.substr(0, key.rfind('/')))) {
      throw Error("optimizer state: '" + key + "' is not known here");
    }
    if (known.contains(key)) mine.emplace(key, tensor);
  }
  inside_->load_state(mine);
}

std::map<std::string, double> ZeroOptimizer::numbers() const {
  std::map<std::string, double> numbers = inside_->numbers();
  numbers["lr"] = lr_;
  return numbers;
}

}  // namespace dtrain::train
