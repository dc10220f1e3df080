#include "trainer/train/batches.hpp"

#include <ATen/ops/empty.h>

#include <array>

namespace dtrain::train {

Loader<ImageBatch>::Make image_batches(std::shared_ptr<const LabelledImages> data,
                                       Normalize normalize) {
  std::array<float, 256> table{};
  for (int i = 0; i < 256; ++i) {
    table[static_cast<std::size_t>(i)] =
        (static_cast<float>(i) / 255.0F - normalize.mean) / normalize.std;
  }
  return [data = std::move(data), table](std::span<const std::int64_t> indices) {
    const IdxImages& from = data->images;
    const auto count = static_cast<std::int64_t>(indices.size());
    ImageBatch batch{at::empty({count, 1, from.rows, from.columns}, at::kFloat),
                     at::empty({count}, at::kLong)};
    float* pixel = batch.images.mutable_data_ptr<float>();
    auto* label = batch.labels.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      if (index < 0 || index >= from.count) {
        throw SampleError(data->source.string(), index,
                          "there are " + std::to_string(from.count) + " samples");
      }
      const std::uint8_t* source = from.pixels.data() + index * from.pixels_of_one();
      for (std::int64_t i = 0; i < from.pixels_of_one(); ++i) *pixel++ = table[source[i]];
      *label++ = data->labels[static_cast<std::size_t>(index)];
    }
    return batch;
  };
}

}  // namespace dtrain::train
