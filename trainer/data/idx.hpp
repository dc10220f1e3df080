#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/data/image_source.hpp"

namespace dtrain::train {

// The IDX files of MNIST and FashionMNIST, plain or gzipped (told apart by content, not by name).

struct IdxImages {
  std::int64_t count = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> pixels;  // count * rows * columns, row by row

  std::int64_t pixels_of_one() const { return rows * columns; }
};

// Reads at most `limit` images, or all and makes sure that the file ends there. Throws Error with
// the file, the offset in its uncompressed content, what was expected and what was found.
IdxImages read_idx_images(const std::filesystem::path& path,
                          std::optional<std::int64_t> limit = std::nullopt);

std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& path,
                                          std::optional<std::int64_t> limit = std::nullopt);

// Images and their labels, as MNIST's four files hold them.
struct LabelledImages {
  std::filesystem::path source;  // the image file, for messages
  IdxImages images;
  std::vector<std::uint8_t> labels;

  std::int64_t size() const { return images.count; }
};

enum class MnistSplit : std::uint8_t { train, test };

// Reads train-images-idx3-ubyte and train-labels-idx1-ubyte (or t10k-…) in `folder`, with or
// without .gz. Labels must be as many as the images, and below 10.
LabelledImages read_mnist(const std::filesystem::path& folder, MnistSplit split,
                          std::optional<std::int64_t> limit = std::nullopt);

// The same images for loaders that take any source. `data` must not change.
std::shared_ptr<const ImageSource> as_image_source(std::shared_ptr<const LabelledImages> data);

// True if `folder` holds the files of both splits.
bool has_mnist(const std::filesystem::path& folder);

}  // namespace dtrain::train
