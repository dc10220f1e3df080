#include "trainer/train/batches.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

namespace dtrain::train {

ImageBatches with_shape(const ImageSource& images, ImageBatches options) {
  if (images.size() == 0) throw Error("data set " + images.name() + " is empty");
  Transform& t = options.transform;
  const bool skips = options.bad_samples == BadSamples::skip;
  std::vector<std::uint8_t> scratch;
  for (std::int64_t index = 0; t.rows == 0 || t.columns == 0 || options.channels == 0; ++index) {
    try {
      const ImageView first = images.image(index, scratch, 0);
      if (t.rows == 0) t.rows = first.rows;
      if (t.columns == 0) t.columns = first.columns;
      if (options.channels == 0) options.channels = first.channels;
    } catch (const std::exception& error) {
      // It is told and counted where a batch wants it.
      if (skips && index + 1 < std::min(kMostTriedForShape, images.size())) continue;
      throw SampleError(images.name(), index, error.what());
    }
  }
  return options;
}

struct ImageBatcher::State {
  Images images;
  ImageBatches options;
  Transformer transformer;
};

ImageBatcher::ImageBatcher(Images images, ImageBatches options) {
  options = with_shape(*images, std::move(options));
  Transformer transformer(options.transform, options.channels);
  state_ = std::make_shared<const State>(
      State{std::move(images), std::move(options), std::move(transformer)});
}

ImageBatch ImageBatcher::operator()(std::span<const std::int64_t> indices,
                                    std::int64_t epoch) const {
  const auto& [images, options, transformer] = *state_;
  const Transform& t = options.transform;
  const auto count = static_cast<std::int64_t>(indices.size());
  BufferPool pool = options.pool;
  ImageBatch batch{pool.take({count, options.channels, t.rows, t.columns},
                             options.as_bytes ? at::kByte : at::kFloat),
                   pool.take({count}, at::kLong),
                   {indices.begin(), indices.end()}};
  const std::int64_t one = transformer.values();
  const std::int64_t least = transformer.least();
  auto* bytes = options.as_bytes ? batch.images.mutable_data_ptr<std::uint8_t>() : nullptr;
  auto* floats = options.as_bytes ? nullptr : batch.images.mutable_data_ptr<float>();
  auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
  std::int64_t good = 0;
  std::string last;  // of those that were left out
  // Decoders fill it; each thread keeps its own from batch to batch.
  thread_local std::vector<std::uint8_t> scratch;
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= images->size()) {
      throw SampleError(images->name(), index,
                        "there are " + std::to_string(images->size()) + " samples");
    }
    try {
      const ImageView image = images->image(index, scratch, least);
      const SampleRandom random(options.seed, epoch, index);
      if (bytes != nullptr) {
        transformer.write(image, random, bytes + good * one);
      } else {
        transformer.write(image, random, floats + good * one);
      }
      labels[good] = images->label(index);
      batch.indices[static_cast<std::size_t>(good++)] = index;
    } catch (const std::exception& error) {
      const SampleError failed(images->name(), index, error.what());
      if (options.bad_samples == BadSamples::error) throw failed;
      options.skipped->add(failed);
      last = failed.what();
    }
  }
  if (good == 0 && count > 0) {
    throw Error("none of the " + std::to_string(count) +
                " samples of a batch can be read; the last one: " + last);
  }
  if (good < count) {
    batch.images = batch.images.narrow(0, 0, good);
    batch.labels = batch.labels.narrow(0, 0, good);
    batch.indices.resize(static_cast<std::size_t>(good));
  }
  return batch;
}

Loader<ImageBatch>::Make image_batches(Images images, ImageBatches options) {
  const std::int64_t epoch = options.epoch;
  return [batcher = ImageBatcher(std::move(images), std::move(options)),
          epoch](std::span<const std::int64_t> indices) { return batcher(indices, epoch); };
}

Loader<ImageBatch>::Make image_batches(std::shared_ptr<const LabelledImages> data,
                                       Normalize normalize) {
  ImageBatches options;
  options.transform.mean = {normalize.mean};
  options.transform.std = {normalize.std};
  options.transform.rows = data->images.rows;
  options.transform.columns = data->images.columns;
  options.channels = 1;
  return image_batches(as_image_source(std::move(data)), std::move(options));
}

}  // namespace dtrain::train
