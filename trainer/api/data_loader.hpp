#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trainer/data/loader.hpp"
#include "trainer/data/sampler.hpp"
#include "trainer/train/batches.hpp"
#include "trainer/train/context.hpp"

namespace dtrain::train {

// What a step gets: as a tuple of tensors in Python, batch[0] the inputs and batch[1] the labels.
struct Batch {
  std::vector<at::Tensor> tensors;    // each [batch, …]
  std::vector<std::int64_t> indices;  // of the samples in their data set

  const at::Tensor& operator[](std::size_t i) const { return tensors.at(i); }
  std::int64_t size() const { return static_cast<std::int64_t>(indices.size()); }
};

struct DataLoaderOptions {
  std::int64_t batch_size = 1;  // of one rank
  bool shuffle = false;
  bool drop_last = false;
  int workers = 1;   // threads that make batches; 0: inside of next()
  int prefetch = 2;  // batches for each worker
  std::uint64_t seed = 0;
};

// A map-style data set and how batches are made of it. A value that is cheap to copy. The order of
// an epoch is a function of (seed, epoch, index): a resume costs nothing, and any number of ranks
// sees the same one.
class DataLoader {
 public:
  // Makes the batch of these samples; from several threads at once. A transform's randomness
  // should come from (seed, epoch, index) alone: SampleRandom (trainer/data/random.hpp).
  using Make = std::function<Batch(std::span<const std::int64_t> indices, std::int64_t epoch)>;

  // Throws Error if there are no samples or the options make no sense.
  DataLoader(std::int64_t samples, Make make, DataLoaderOptions options);

  // Rows of tensors of equal length, as torch.utils.data.TensorDataset.
  static DataLoader of_tensors(std::vector<at::Tensor> tensors, DataLoaderOptions options);
  // Images and labels, through a transform; `batches` has no epoch yet.
  static DataLoader of_images(Images images, const ImageBatches& batches,
                              DataLoaderOptions options);

  // This rank's share: what prepare_data_loader does. With `evaluates` each sample comes to exactly
  // one rank, so ranks may have different numbers of batches; else all have as many.
  DataLoader shared(const Context& context, bool evaluates) const;

  std::int64_t samples() const { return samples_; }
  const DataLoaderOptions& options() const { return options_; }
  int ranks() const { return ranks_; }
  // Of a whole epoch, for this rank.
  std::int64_t batches() const;

  // One pass, from a place in the epoch on.
  class Pass {
   public:
    std::optional<Batch> next() { return loader_->next(); }
    std::int64_t batches() const { return loader_->batches(); }
    LoaderStats stats() const { return loader_->stats(); }
    // Where all ranks together stand after this rank has taken so many samples.
    std::int64_t position_after(std::int64_t taken) const { return sampler_.position_after(taken); }

   private:
    friend class DataLoader;
    Pass(DistributedSampler sampler, std::unique_ptr<Loader<Batch>> loader)
        : sampler_(std::move(sampler)), loader_(std::move(loader)) {}
    DistributedSampler sampler_;
    std::unique_ptr<Loader<Batch>> loader_;
  };
  Pass pass(std::int64_t epoch, std::int64_t position = 0) const;

 private:
  DistributedSampler sampler(std::int64_t epoch, std::int64_t position) const;

  std::int64_t samples_;
  Make make_;
  DataLoaderOptions options_;
  int rank_ = 0;
  int ranks_ = 1;
  bool evaluates_ = false;
};

// A batch on the device; copies nothing that is there already.
Batch to_device(Batch batch, c10::Device device);

}  // namespace dtrain::train
