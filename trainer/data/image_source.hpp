#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/sample_error.hpp"

namespace dtrain::train {

// Of an image, as it is decoded and as it is scaled: more are an Error.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

// One image of 8-bit channels as it lies in memory, by whatever strides: planes one after the
// other, or pixels. It owns nothing.
struct ImageView {
  const std::uint8_t* pixels = nullptr;
  std::int64_t channels = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t channel_stride = 0;  // all three in bytes
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;

  static ImageView planar(const std::uint8_t* pixels, std::int64_t channels, std::int64_t rows,
                          std::int64_t columns) {
    return {pixels, channels, rows, columns, rows * columns, columns, 1};
  }
  static ImageView interleaved(const std::uint8_t* pixels, std::int64_t channels, std::int64_t rows,
                               std::int64_t columns) {
    return {pixels, channels, rows, columns, 1, columns * channels, channels};
  }
};

// Labelled images by index. All of it may be called from several threads at once.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual std::string name() const = 0;  // a path, for messages
  virtual std::int64_t size() const = 0;
  // Names of the classes by label; empty if the data set has none.
  virtual const std::vector<std::string>& classes() const = 0;
  virtual std::int64_t class_count() const = 0;

  // `index` is from 0 to size() - 1. A decoder writes to `scratch`, which belongs to the caller
  // and must outlive the view; an image that is in memory already is only pointed at. With
  // `least` above 0 the decoder may leave out detail, as long as neither side of the image gets
  // shorter than that. Throws Error with the reason.
  virtual ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                          std::int64_t least = 0) const = 0;
  virtual std::int64_t label(std::int64_t index) const = 0;
};

using Images = std::shared_ptr<const ImageSource>;

// Images of one size, in memory, planes one after the other.
class MemoryImages : public ImageSource {
 public:
  struct Content {
    std::string name;
    std::int64_t channels = 1;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::vector<std::uint8_t> pixels;
    std::vector<std::uint8_t> labels;
    std::vector<std::string> classes;
    std::int64_t class_count = 0;
  };
  // Throws Error when pixels and labels are not of as many images.
  explicit MemoryImages(Content content);

  std::string name() const override { return content_.name; }
  std::int64_t size() const override { return static_cast<std::int64_t>(content_.labels.size()); }
  const std::vector<std::string>& classes() const override { return content_.classes; }
  std::int64_t class_count() const override { return content_.class_count; }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t least) const override;
  std::int64_t label(std::int64_t index) const override {
    return content_.labels[static_cast<std::size_t>(index)];
  }

 private:
  Content content_;
};

// The first `count` images of a source, or all if it has fewer.
Images first_images(Images images, std::int64_t count);

}  // namespace dtrain::train
