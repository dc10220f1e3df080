#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// Made-up images with something to learn: each class is a pattern of its own colour, direction and
// width, at a random place, under noise. Image i is a function of (seed, i), of class i % classes.
struct Synthetic {
  std::int64_t samples = 1000;
  std::int64_t classes = 10;
  std::int64_t channels = 3;
  std::int64_t rows = 32;
  std::int64_t columns = 32;
  std::uint64_t seed = 0;
};

// Throws Error on numbers that make no sense.
Images make_images(const Synthetic& what);

// Writes them in a format. Folders are made, files of the same names replaced. Throws Error on
// what a format cannot hold. (IDX: grey, 10 classes; CIFAR: 3x32x32.) `test` samples of another
// seed go where a format keeps its test split.
void write_idx(const std::filesystem::path& folder, const Synthetic& what, std::int64_t test);
void write_cifar10(const std::filesystem::path& folder, const Synthetic& what, std::int64_t test);
void write_cifar100(const std::filesystem::path& folder, const Synthetic& what, std::int64_t test);
enum class ImageFile : std::uint8_t { jpeg, png };
void write_image_folder(const std::filesystem::path& folder, const Synthetic& what, ImageFile file);
void write_shards(const std::filesystem::path& folder, const Synthetic& what, ImageFile file,
                  std::int64_t samples_per_shard);

}  // namespace dtrain::train
