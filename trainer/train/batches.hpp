#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/data/idx.hpp"
#include "trainer/data/image_source.hpp"
#include "trainer/data/loader.hpp"
#include "trainer/data/transform.hpp"
#include "trainer/train/buffer_pool.hpp"

namespace dtrain::train {

struct ImageBatch {
  at::Tensor images;                  // float32, or uint8, [batch, channels, rows, columns]
  at::Tensor labels;                  // int64 [batch]
  std::vector<std::int64_t> indices;  // of the samples in their data set
};

// How batches are made from a source of images.
struct ImageBatches {
  Transform transform;     // its rows and columns, if 0, are those of the first image
  std::uint64_t seed = 0;  // of the transform's randomness
  std::int64_t epoch = 0;
  bool as_bytes = false;      // uint8, not normalized: a quarter to copy to a device
  std::int64_t channels = 0;  // 0: as the first image has them
  BufferPool pool{};          // give the same one to each epoch's loader
  // A batch of which no sample can be read is an error all the same.
  BadSamples bad_samples = BadSamples::error;
  std::shared_ptr<SkippedSamples> skipped = std::make_shared<SkippedSamples>();
};

// The same with rows, columns and channels of the first image where they are 0; with `skip`, of
// the first that can be read among kMostTriedForShape.
inline constexpr std::int64_t kMostTriedForShape = 100;
ImageBatches with_shape(const ImageSource& images, ImageBatches options);

// Each sample goes from where it lies (or from its decoder) to its place in the batch in one pass:
// no tensor for each sample, no copy between. A sample that fails arrives as SampleError, or, with
// BadSamples::skip, makes the batch shorter. May be called from several threads at once, and copied
// at no cost. What it needs to know of the first image it finds out once, when it is made.
class ImageBatcher {
 public:
  ImageBatcher(Images images, ImageBatches options);
  // options.epoch is not looked at.
  ImageBatch operator()(std::span<const std::int64_t> indices, std::int64_t epoch) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

// The same for one epoch, options.epoch.
Loader<ImageBatch>::Make image_batches(Images images, ImageBatches options);

// A value for all channels: (x / 255 - mean) / std.
struct Normalize {
  float mean = 0.5F;
  float std = 0.5F;
};

// The same for an IDX data set, as it is.
Loader<ImageBatch>::Make image_batches(std::shared_ptr<const LabelledImages> data,
                                       Normalize normalize = {});

// The same for any data set: sample(i) gives one sample, collate joins a batch of them. What
// sample(i) throws arrives as SampleError with the data set's name and i.
template <typename Batch, typename Sample, typename Collate>
typename Loader<Batch>::Make map_batches(std::string dataset, Sample sample, Collate collate) {
  return [dataset = std::move(dataset), sample = std::move(sample),
          collate = std::move(collate)](std::span<const std::int64_t> indices) -> Batch {
    std::vector<decltype(sample(std::int64_t{}))> samples;
    samples.reserve(indices.size());
    for (const std::int64_t index : indices) {
      try {
        samples.push_back(sample(index));
      } catch (const std::exception& error) {
        throw SampleError(dataset, index, error.what());
      }
    }
    return collate(std::move(samples));
  };
}

}  // namespace dtrain::train
