#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "trainer/train/context.hpp"
#include "trainer/train/optimizer.hpp"

namespace dtrain::train {

// Which rank has which elements of each parameter: the same on all ranks.
//
// A parameter that can be cut (large enough, dense) is cut into one piece for each rank, so that
// every bucket of gradients is equal work for all; the others go to one rank each. Borders lie on
// blocks of kNormBlock elements: an update has the same bits for a piece as for the whole, since
// no border is inside of a vector register, and so has a norm.
struct ShardPlan {
  // pieces[parameter][rank]; length 0: that rank has no element of it.
  std::vector<std::vector<ElementRange>> pieces;
  std::vector<int> first;  // who has the parameter's first piece

  ShardPlan(const std::vector<NamedParameter>& parameters, int ranks, bool cuts);
  bool is_cut(std::size_t parameter, std::int64_t elements) const;
  // Whether the rank has something of it. A parameter without elements is its first rank's.
  bool has(std::size_t parameter, std::size_t rank) const;
};

// The gradients of a model of which each rank keeps its own part (ZeRO), between
// DistributedDataParallel, which brings buckets of them, and ZeroOptimizer, which takes the part.
//
// After a backward that synchronizes, a parameter's grad() is a placeholder: of the right shape,
// all NaN, without memory. It says that this rank's average is in the part's gradient; zero_grad(),
// by whatever name, drops both, and a further backward without it adds to the part. Inside of
// no_sync grad() is the whole sum of this rank, as with DDP.
class GradientShards {
 public:
  // `own`: this rank's part of parameter i, undefined if it has none. The context must outlive it.
  GradientShards(std::vector<NamedParameter> parameters, ShardPlan plan,
                 std::vector<at::Tensor> own, Context& context, bool frees_buckets);

  const ShardPlan& plan() const { return plan_; }
  // Buckets give their memory back when they are reduced (ZeRO-2): DistributedDataParallel.
  bool frees_buckets() const { return frees_buckets_; }

  // Before a gradient comes to a parameter: what stands for its last one goes. `will_reduce`: not
  // inside of no_sync. Parameters that are not of this are left alone.
  void expect(const at::Tensor& parameter, bool will_reduce);
  // Averages a flat bucket of gradients of these parameters, one after the other, over `ranks`
  // ranks: into this rank's parts, and into the bucket where a parameter is not of this. True if
  // nobody needs the bucket any more. Collective.
  bool reduce(at::Tensor& bucket, const std::vector<at::Tensor>& parameters, int ranks);
  // At the end of a backward whose buckets were reduced.
  void collect();
  // While one lives, parameters do not have their placeholders: the reducer would take them for
  // gradients when it makes its buckets.
  class Hidden {
   public:
    explicit Hidden(const std::shared_ptr<GradientShards>& shards);  // may be null
    ~Hidden();
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;

   private:
    std::shared_ptr<GradientShards> shards_;
    std::vector<std::size_t> hidden_;
  };

  // Before a step: parts whose parameter was given up by zero_grad() have no gradient. Throws Error
  // where gradients were gathered inside of no_sync and never sent.
  void settle();
  void zero_grad();

 private:
  struct Entry {
    at::Tensor parameter;
    at::Tensor placeholder;
    at::Tensor own;  // undefined: none here
    // Of this backward, until collect(): in the bucket, or apart where buckets give memory back.
    at::Tensor gradient;
    bool reduced = false;
  };
  bool stands_for(const Entry& entry) const;
  // Of the entry's own part, which begins at element `begin` of the bucket.
  static at::Tensor place_in(const at::Tensor& bucket, const Entry& entry, std::int64_t begin);
  void reduce_by_group(at::Tensor& bucket, const std::vector<at::Tensor>& parameters, int ranks,
                       const std::vector<at::Tensor>& outs, bool whole);

  std::vector<Entry> entries_;
  std::vector<std::string> names_;
  std::unordered_map<c10::TensorImpl*, std::size_t> index_;
  ShardPlan plan_;
  Context& context_;
  bool frees_buckets_;
};

}  // namespace dtrain::train
