#include "trainer/data/image_source.hpp"

#include <algorithm>
#include <utility>

namespace dtrain::train {
namespace {

class FirstImages : public ImageSource {
 public:
  FirstImages(Images all, std::int64_t count)
      : all_(std::move(all)), size_(std::min(count, all_->size())) {}

  std::string name() const override { return all_->name(); }
  std::int64_t size() const override { return size_; }
  const std::vector<std::string>& classes() const override { return all_->classes(); }
  std::int64_t class_count() const override { return all_->class_count(); }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t least) const override {
    return all_->image(index, scratch, least);
  }
  std::int64_t label(std::int64_t index) const override { return all_->label(index); }

 private:
  Images all_;
  std::int64_t size_;
};

}  // namespace

MemoryImages::MemoryImages(Content content) : content_(std::move(content)) {
  const std::int64_t one = content_.channels * content_.rows * content_.columns;
  if (one < 1 || static_cast<std::int64_t>(content_.pixels.size()) != one * size()) {
    throw Error(content_.name + ": " + std::to_string(content_.pixels.size()) +
                " bytes of pixels are not those of " + std::to_string(size()) + " images");
  }
}

ImageView MemoryImages::image(std::int64_t index, std::vector<std::uint8_t>& /*scratch*/,
                              std::int64_t /*least*/) const {
  const std::int64_t one = content_.channels * content_.rows * content_.columns;
  return ImageView::planar(content_.pixels.data() + index * one, content_.channels, content_.rows,
                           content_.columns);
}

Images first_images(Images images, std::int64_t count) {
  if (count < 0) throw Error(std::to_string(count) + " images are not possible");
  return std::make_shared<FirstImages>(std::move(images), count);
}

}  // namespace dtrain::train
