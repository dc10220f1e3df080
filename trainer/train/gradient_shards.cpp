#include "trainer/train/gradient_shards.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "trainer/comm/elements.hpp"
#include "trainer/comm/group.hpp"
#include "trainer/core/error.hpp"
#include "trainer/train/gradients.hpp"

namespace dtrain::train {

ShardPlan::ShardPlan(const std::vector<NamedParameter>& parameters, int ranks, bool cuts)
    : pieces(parameters.size(), std::vector<ElementRange>(static_cast<std::size_t>(ranks))),
      first(parameters.size()) {
  // The largest first, each to who has the least so far: of those that are not cut this is the
  // load, and of the others who has the first piece.
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return parameters[a].tensor.numel() > parameters[b].tensor.numel();
  });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  for (const std::size_t i : order) {
    const at::Tensor& tensor = parameters[i].tensor;
    const auto least = std::min_element(load.begin(), load.end());
    first[i] = static_cast<int>(least - load.begin());
    const std::int64_t blocks = norm_blocks(tensor.numel());
    if (!cuts || blocks < ranks || !tensor.is_non_overlapping_and_dense()) {
      *least += tensor.numel();
      pieces[i][static_cast<std::size_t>(first[i])] = {0, tensor.numel()};
      continue;
    }
    for (int n = 0; n < ranks; ++n) {
      const std::int64_t begin = blocks * n / ranks * kNormBlock;
      const std::int64_t end = std::min(tensor.numel(), blocks * (n + 1) / ranks * kNormBlock);
      pieces[i][static_cast<std::size_t>((first[i] + n) % ranks)] = {begin, end - begin};
    }
    // Odd numbers of blocks: whoever has the first piece has the least of them.
    for (std::int64_t& each : load) each += tensor.numel() / ranks;
    *least += 1;
  }
}

bool ShardPlan::is_cut(std::size_t parameter, std::int64_t elements) const {
  return pieces[parameter][static_cast<std::size_t>(first[parameter])].length != elements;
}

bool ShardPlan::has(std::size_t parameter, std::size_t rank) const {
  return pieces[parameter][rank].length > 0 || first[parameter] == static_cast<int>(rank);
}

GradientShards::GradientShards(std::vector<NamedParameter> parameters, ShardPlan plan,
                               std::vector<at::Tensor> own, Context& context, bool frees_buckets)
    : plan_(std::move(plan)), context_(context), frees_buckets_(frees_buckets) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    const auto element = comm::element_of(tensor.scalar_type());
    if (!element || !comm::can_scale(*element)) {
      throw Error("zero: '" + parameters[i].name + "' is of " +
                  c10::toString(tensor.scalar_type()) + ", whose gradients cannot be sharded");
    }
    const at::Tensor placeholder = at::full({}, std::numeric_limits<double>::quiet_NaN(),
                                            tensor.options().requires_grad(false))
                                       .expand(tensor.sizes());
    index_.emplace(tensor.unsafeGetTensorImpl(), i);
    entries_.push_back({tensor, placeholder, std::move(own[i]), {}});
    names_.push_back(std::move(parameters[i].name));
  }
}

bool GradientShards::stands_for(const Entry& entry) const {
  return entry.parameter.grad().is_same(entry.placeholder);
}

void GradientShards::expect(const at::Tensor& parameter, bool will_reduce) {
  const auto found = index_.find(parameter.unsafeGetTensorImpl());
  if (found == index_.end()) return;
  Entry& entry = entries_[found->second];
  if (stands_for(entry)) {
    entry.parameter.mutable_grad().reset();  // what comes is added to the part
  } else if (!entry.parameter.grad().defined() && entry.own.defined()) {
    entry.own.mutable_grad().reset();
  }
  if (will_reduce && !frees_buckets_ && entry.own.defined() && entry.own.grad().defined()) {
    entry.own.mutable_grad() = entry.own.grad().clone();  // what is reduced comes where it lies
  }
}

at::Tensor GradientShards::place_in(const at::Tensor& bucket, const Entry& entry,
                                    std::int64_t begin) {
  const at::Tensor& own = entry.own;
  const at::Tensor flat = bucket.narrow(0, begin, own.numel());
  if (!own.is_non_overlapping_and_dense()) return flat.view(own.sizes());
  return flat.as_strided(own.sizes(), own.strides(), flat.storage_offset());
}

bool GradientShards::reduce(at::Tensor& bucket, const std::vector<at::Tensor>& parameters,
                            int ranks) {
  const c10::NoGradGuard no_grad;
  const auto rank = static_cast<std::size_t>(context_.rank());
  const std::size_t unit = bucket.element_size();
  std::vector<comm::Range> parts;
  std::vector<at::Tensor> outs;
  std::vector<Entry*> reduced;  // their places are `outs`
  bool whole = false;           // somebody needs all of it
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    const auto found = index_.find(parameter.unsafeGetTensorImpl());
    if (found == index_.end()) {
      whole = true;
    } else if (Entry& entry = entries_[found->second]; true) {
      entry.reduced = true;
      if (entry.own.defined()) {
        const ElementRange& piece = plan_.pieces[found->second][rank];
        parts.push_back({static_cast<std::size_t>(offset + piece.begin) * unit,
                         static_cast<std::size_t>(piece.length) * unit});
        entry.gradient = frees_buckets_ ? at::empty_like(entry.own)
                                        : place_in(bucket, entry, offset + piece.begin);
        outs.push_back(entry.gradient);
        reduced.push_back(&entry);
      }
    }
    offset += parameter.numel();
  }
  bool done = false;
  if (comm::SharedGroup* const group = context_.shared_group();
      group != nullptr && bucket.is_cpu() && !whole) {
    std::vector<void*> places;
    for (const at::Tensor& out : outs) places.push_back(out.mutable_data_ptr());
    done = group->reduce_parts(bucket.const_data_ptr(), bucket.nbytes(),
                               *comm::element_of(bucket.scalar_type()), 1.0 / ranks, parts, places);
  }
  if (!done) reduce_by_group(bucket, parameters, ranks, outs, whole);
  for (Entry* const entry : reduced) {
    if (entry->own.grad().defined()) entry->gradient.add_(entry->own.grad());
  }
  return !whole;
}

// Through c10d. NCCL sums each rank's parts where they belong; the others get the sum of all.
void GradientShards::reduce_by_group(at::Tensor& bucket, const std::vector<at::Tensor>& parameters,
                                     int ranks, const std::vector<at::Tensor>& outs, bool whole) {
  bucket.mul_(1.0 / ranks);
  // By rank: its parts of the bucket, one after the other.
  std::vector<std::vector<at::Tensor>> parts(static_cast<std::size_t>(context_.world_size()));
  std::int64_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    if (const auto found = index_.find(parameter.unsafeGetTensorImpl()); found != index_.end()) {
      for (std::size_t r = 0; r < parts.size(); ++r) {
        const ElementRange& piece = plan_.pieces[found->second][r];
        if (plan_.has(found->second, r)) {
          parts[r].push_back(bucket.narrow(0, offset + piece.begin, piece.length));
        }
      }
    }
    offset += parameter.numel();
  }
  std::vector<at::Tensor> mine = parts[static_cast<std::size_t>(context_.rank())];
  if (bucket.is_cuda() && !whole) {
    std::int64_t longest = 0;
    std::vector<std::int64_t> lengths;
    for (const auto& list : parts) {
      lengths.push_back(0);
      for (const at::Tensor& part : list) lengths.back() += part.numel();
      longest = std::max(longest, lengths.back());
    }
    std::vector<at::Tensor> rows;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      rows.insert(rows.end(), parts[r].begin(), parts[r].end());
      rows.push_back(at::zeros({longest - lengths[r]}, bucket.options()));
    }
    at::Tensor input = at::cat(rows);
    at::Tensor output = at::empty({longest}, bucket.options());
    context_.process_group()->_reduce_scatter_base(output, input)->wait();
    offset = 0;
    for (at::Tensor& part : mine) {
      part = output.narrow(0, offset, part.numel());
      offset += part.numel();
    }
  } else {
    context_.all_reduce_sum(bucket);
  }
  for (std::size_t i = 0; i < outs.size(); ++i) {
    elements_of(outs[i], {0, outs[i].numel()})
        .as_strided({outs[i].numel()}, {1}, outs[i].storage_offset())
        .copy_(mine[i]);
  }
}

void GradientShards::collect() {
  for (Entry& entry : entries_) {
    if (!std::exchange(entry.reduced, false)) continue;
    if (entry.own.defined()) entry.own.mutable_grad() = std::move(entry.gradient);
    entry.parameter.mutable_grad() = entry.placeholder;
  }
}

GradientShards::Hidden::Hidden(const std::shared_ptr<GradientShards>& shards) : shards_(shards) {
  if (!shards_) return;
  for (std::size_t i = 0; i < shards_->entries_.size(); ++i) {
    if (!shards_->stands_for(shards_->entries_[i])) continue;
    shards_->entries_[i].parameter.mutable_grad().reset();
    hidden_.push_back(i);
  }
}

GradientShards::Hidden::~Hidden() {
  for (const std::size_t i : hidden_) {
    Entry& entry = shards_->entries_[i];
    entry.parameter.mutable_grad() = entry.placeholder;
  }
}

void GradientShards::settle() {
  collect();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (stands_for(entry)) continue;
    if (entry.parameter.grad().defined()) {
      throw Error("zero: the gradient of '" + names_[i] +
                  "' is this rank's alone: it was gathered inside of no_sync, and no backward "
                  "outside of it has sent it");
    }
    if (entry.own.defined()) entry.own.mutable_grad().reset();
  }
}

void GradientShards::zero_grad() {
  for (Entry& entry : entries_) {
    entry.parameter.mutable_grad().reset();
    if (entry.own.defined()) entry.own.mutable_grad().reset();
  }
}

}  // namespace dtrain::train
