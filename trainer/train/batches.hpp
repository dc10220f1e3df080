#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "trainer/data/idx.hpp"
#include "trainer/data/loader.hpp"

namespace dtrain::train {

struct ImageBatch {
  at::Tensor images;  // float32 [batch, 1, rows, columns], normalized
  at::Tensor labels;  // int64 [batch]
};

// (x / 255 - mean) / std, for each pixel.
struct Normalize {
  float mean = 0.5F;
  float std = 0.5F;
};

// Batches straight from the bytes of an IDX data set: one table look-up a pixel, no tensor for
// each sample. The data set is shared with the loader's threads and must not change.
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
