#include "trainer/train/zero.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_map>

#include "trainer/core/error.hpp"
#include "trainer/train/gradients.hpp"
#include "trainer/train/tensor_cache.hpp"

namespace dtrain::train {
namespace {

std::shared_ptr<Optimizer> checked(std::shared_ptr<Optimizer> inside) {
  if (!inside->updates_apart()) {
    throw Error("zero: " + inside->kind() +
                " cannot be shared out among ranks: it does not say that it updates each parameter "
                "by itself (Optimizer::updates_apart)");
  }
  if (inside->state_is_sharded()) throw Error("zero: the optimizer is shared out already");
  return inside;
}

}  // namespace

ZeroOptimizer::ZeroOptimizer(std::shared_ptr<Optimizer> inside, Context& context,
                             DistributedDataParallel* ddp, ZeroStage stage)
    : Optimizer(one_group(inside->parameters())),
      inside_(checked(std::move(inside))),
      context_(context),
      plan_(parameters_, context.world_size(), inside_->updates_elementwise()) {
  const c10::NoGradGuard no_grad;
  lr_ = inside_->lr();
  note_places();
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index[parameters_[i].name] = i;
  for (const auto& [key, tensor] : inside_->state()) {
    const std::size_t i = index.at(key.substr(0, key.rfind('/')));
    states_[key] = {i, tensor.sizes() == parameters_[i].tensor.sizes(), tensor.scalar_type(),
                    tensor.sizes().vec()};
  }
  const auto rank = static_cast<std::size_t>(context.rank());
  inside_->keep_only([&](const std::string& name) -> std::optional<ElementRange> {
    const std::size_t i = index.at(name);
    return plan_.has(i, rank) ? std::optional(plan_.pieces[i][rank]) : std::nullopt;
  });
  trim_tensor_cache();  // the whole state is gone
  own_.resize(parameters_.size());
  for (const NamedParameter& piece : inside_->parameters()) {
    own_[index.at(piece.name)] = piece.tensor;
  }
  if (ddp != nullptr) {
    auto shards = std::make_shared<GradientShards>(parameters_, plan_, own_, context,
                                                   stage == ZeroStage::gradients);
    if (ddp->shard_gradients(shards)) shards_ = std::move(shards);
  }
  if (stage == ZeroStage::gradients && !shards_ && context.world_size() > 1) {
    throw Error(
        "zero2: gradients can be sharded with DDP only, and not with find_unused_parameters, "
        "static_graph or a gradient_type, nor without gradient_as_bucket_view; zero1 shares out "
        "the optimizer's state alone");
  }
}

void ZeroOptimizer::note_places() {
  for (const NamedParameter& p : parameters_) places_.push_back(p.tensor.const_data_ptr());
  const bool has_runs =
      std::all_of(parameters_.begin(), parameters_.end(), [](const NamedParameter& p) {
        return p.tensor.is_cpu() && p.tensor.is_non_overlapping_and_dense();
      });
  if (context_.shared_group() == nullptr || !has_runs) return;
  of_rank_.resize(static_cast<std::size_t>(context_.world_size()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    const auto unit = static_cast<std::int64_t>(tensor.element_size());
    auto* const base = static_cast<std::byte*>(tensor.mutable_data_ptr());
    for (std::size_t r = 0; r < of_rank_.size(); ++r) {
      const ElementRange& piece = plan_.pieces[i][r];
      if (piece.length == 0) continue;
      of_rank_[r].emplace_back(base + piece.begin * unit,
                               static_cast<std::size_t>(piece.length * unit));
    }
  }
}

// Otherwise the pieces would be updated where nobody looks.
void ZeroOptimizer::check_places() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.const_data_ptr() == places_[i]) continue;
    throw Error("zero: the memory of parameter '" + parameters_[i].name +
                "' was replaced (to(), set_data()) after the optimizer was made: do that before");
  }
}

const std::vector<NamedParameter>& ZeroOptimizer::stepped() {
  if (!shards_) return parameters_;
  shards_->settle();
  return inside_->parameters();
}

void ZeroOptimizer::zero_grad() {
  Optimizer::zero_grad();
  if (shards_) shards_->zero_grad();
}

double ZeroOptimizer::gradient_norm() {
  if (!shards_) return Optimizer::gradient_norm();
  const c10::NoGradGuard no_grad;
  shards_->settle();
  std::vector<double> squares;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t first = squares.size();
    squares.resize(first + static_cast<std::size_t>(norm_blocks(parameters_[i].tensor.numel())));
    if (!own_[i].defined() || !own_[i].grad().defined()) continue;
    const std::int64_t begin =
        plan_.pieces[i][static_cast<std::size_t>(context_.rank())].begin / kNormBlock;
    const std::vector<double> mine = gradient_squares(own_[i].grad());
    std::copy(mine.begin(), mine.end(),
              squares.begin() + static_cast<std::ptrdiff_t>(first) + begin);
  }
  double sum = 0;
  for (const double each : context_.all_reduce_sum(std::move(squares))) sum += each;
  return std::sqrt(sum);
}

void ZeroOptimizer::step() {
  check_places();
  inside_->set_lr(lr_);
  if (shards_) {
    shards_->settle();
    inside_->step();
  } else {
    const auto rank = static_cast<std::size_t>(context_.rank());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].tensor.grad();
      if (!own_[i].defined() || !gradient.defined()) continue;
      const ElementRange& piece = plan_.pieces[i][rank];
      const bool same_order = gradient.strides() == parameters_[i].tensor.strides();
      own_[i].mutable_grad() =
          piece.length == gradient.numel() || same_order
              ? elements_of(gradient, piece)
              : elements_of(at::empty_like(parameters_[i].tensor).copy_(gradient), piece);
    }
    inside_->step();
    inside_->zero_grad();
  }
  if (context_.process_group() != nullptr) gather();
}

// The others' pieces of the parameters.
void ZeroOptimizer::gather() {
  const c10::NoGradGuard no_grad;
  if (!of_rank_.empty()) return context_.shared_group()->gather_parts(of_rank_);
  // By type, each rank's pieces one after the other, all of the same length.
  std::map<at::ScalarType, std::vector<std::size_t>> by_type;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    by_type[parameters_[i].tensor.scalar_type()].push_back(i);
  }
  const auto rank = static_cast<std::size_t>(context_.rank());
  const auto ranks = static_cast<std::size_t>(context_.world_size());
  for (const auto& [type, indices] : by_type) {
    std::vector<std::vector<at::Tensor>> pieces(ranks);
    std::vector<std::int64_t> lengths(ranks);
    for (const std::size_t i : indices) {
      const at::Tensor whole = parameters_[i].tensor.detach();
      for (std::size_t r = 0; r < pieces.size(); ++r) {
        if (plan_.pieces[i][r].length == 0) continue;
        pieces[r].push_back(elements_of(whole, plan_.pieces[i][r]));
        lengths[r] += plan_.pieces[i][r].length;
      }
    }
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const at::TensorOptions options = parameters_[indices[0]].tensor.options().requires_grad(false);
    std::vector<at::Tensor> mine;
    for (const at::Tensor& piece : pieces[rank]) mine.push_back(piece.reshape({-1}));
    mine.push_back(at::zeros({longest - lengths[rank]}, options));
    const std::vector<at::Tensor> all = context_.all_gather(at::cat(mine));
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      std::int64_t offset = 0;
      for (const at::Tensor& piece : pieces[r]) {
        if (r != rank) piece.copy_(all[r].narrow(0, offset, piece.numel()).view(piece.sizes()));
        offset += piece.numel();
      }
    }
  }
}

std::map<std::string, at::Tensor> ZeroOptimizer::state() const {
  const c10::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> mine = inside_->state();
  std::map<std::string, at::Tensor> whole;
  for (const auto& [key, its] : states_) {
    const at::Tensor& parameter = parameters_[its.parameter].tensor;
    const bool is_first = plan_.first[its.parameter] == context_.rank();
    if (!its.like_parameter || !plan_.is_cut(its.parameter, parameter.numel())) {
      if (is_first) whole.emplace(key, mine.at(key).clone());
      continue;
    }
    const std::vector<ElementRange>& pieces = plan_.pieces[its.parameter];
    std::int64_t longest = 0;
    for (const ElementRange& piece : pieces) longest = std::max(longest, piece.length);
    at::Tensor sent = at::zeros({longest}, mine.at(key).options());
    sent.narrow(0, 0, mine.at(key).numel()).copy_(mine.at(key));
    const std::vector<at::Tensor> all = context_.all_gather(sent);
    if (!is_first) continue;
    const at::Tensor joined = at::empty_like(parameter.detach(), its.type);
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      elements_of(joined, pieces[r]).copy_(all[r].narrow(0, 0, pieces[r].length));
    }
    whole.emplace(key, joined);
  }
  return whole;
}

void ZeroOptimizer::load_state(const std::map<std::string, at::Tensor>& state) {
  const c10::NoGradGuard no_grad;
  for (const auto& [key, tensor] : state) {
    const auto its = states_.find(key);
    if (its == states_.end()) throw Error("optimizer state: '" + key + "' is not known here");
    if (tensor.sizes() != its->second.sizes || tensor.scalar_type() != its->second.type) {
      throw Error("optimizer state: '" + key + "' has another shape or type");
    }
  }
  std::map<std::string, at::Tensor> mine;
  const auto rank = static_cast<std::size_t>(context_.rank());
  for (const auto& [key, its] : states_) {
    const auto found = state.find(key);
    if (found == state.end()) throw Error("optimizer state: '" + key + "' is missing");
    if (!plan_.has(its.parameter, rank)) continue;
    const ElementRange& piece = plan_.pieces[its.parameter][rank];
    const at::Tensor& parameter = parameters_[its.parameter].tensor;
    if (!its.like_parameter || piece.length == parameter.numel()) {
      mine.emplace(key, found->second);
    } else {
      const at::Tensor in_order = at::empty_like(parameter.detach(), its.type).copy_(found->second);
      mine.emplace(key, elements_of(in_order, piece));
    }
  }
  inside_->load_state(mine);
}

std::map<std::string, double> ZeroOptimizer::numbers() const {
  std::map<std::string, double> numbers = inside_->numbers();
  numbers["lr"] = lr_;
  return numbers;
}

}  // namespace dtrain::train
