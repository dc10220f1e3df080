#pragma once

#include "trainer/trainer.hpp"

// FashionMNIST, normalized as the tutorials do: (x / 255 - 0.5) / 0.5. All images, or the first
// `images` of them.
inline dtrain::train::DataLoader fashion_mnist(
    const std::string& folder, std::int64_t images, dtrain::train::DataLoaderOptions options,
    dtrain::train::MnistSplit split = dtrain::train::MnistSplit::train) {
  using namespace dtrain::train;
  const auto limit = images > 0 ? std::optional(images) : std::nullopt;
  const Images source = as_image_source(std::make_shared<const LabelledImages>(
      read_mnist(folder.empty() ? "/usr/share/datasets/fashion-mnist" : folder, split, limit)));
  ImageBatches batches;
  batches.transform.rows = batches.transform.columns = 28;
  return DataLoader::of_images(source, batches, options);
}
