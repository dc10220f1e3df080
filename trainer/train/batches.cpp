#include "trainer/train/batches.hpp"

#include <ATen/core/Tensor.h>

#include <utility>

namespace dtrain::train {

Loader<ImageBatch>::Make image_batches(Images images, ImageBatches options) {
  if (images->size() > 0) {
    Transform& t = options.transform;
    std::vector<std::uint8_t> scratch;
    if (t.rows == 0 || t.columns == 0 || options.channels == 0) {
      const ImageView first = images->image(0, scratch, 0);
      if (t.rows == 0) t.rows = first.rows;
      if (t.columns == 0) t.columns = first.columns;
      if (options.channels == 0) options.channels = first.channels;
    }
  } else {
    throw Error("data set " + images->name() + " is empty");
  }
  const auto transformer = std::make_shared<const Transformer>(options.transform, options.channels);
  return [images = std::move(images), options,
          transformer](std::span<const std::int64_t> indices) mutable {
    const Transform& t = options.transform;
    const auto count = static_cast<std::int64_t>(indices.size());
    ImageBatch batch{options.pool.take({count, options.channels, t.rows, t.columns},
                                       options.as_bytes ? at::kByte : at::kFloat),
                     options.pool.take({count}, at::kLong),
                     {indices.begin(), indices.end()}};
    const std::int64_t one = transformer->values();
    const std::int64_t least = transformer->least();
    auto* bytes = options.as_bytes ? batch.images.mutable_data_ptr<std::uint8_t>() : nullptr;
    auto* floats = options.as_bytes ? nullptr : batch.images.mutable_data_ptr<float>();
    auto* labels = batch.labels.mutable_data_ptr<std::int64_t>();
    // Decoders fill it; each thread keeps its own from batch to batch.
    thread_local std::vector<std::uint8_t> scratch;
    for (const std::int64_t index : indices) {
      if (index < 0 || index >= images->size()) {
        throw SampleError(images->name(), index,
                          "there are " + std::to_string(images->size()) + " samples");
      }
      try {
        const ImageView image = images->image(index, scratch, least);
        const SampleRandom random(options.seed, options.epoch, index);
        if (bytes != nullptr) {
          transformer->write(image, random, bytes);
          bytes += one;
        } else {
          transformer->write(image, random, floats);
          floats += one;
        }
        *labels++ = images->label(index);
      } catch (const std::exception& error) {
        throw SampleError(images->name(), index, error.what());
      }
    }
    return batch;
  };
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
