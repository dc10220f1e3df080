#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/data/augment.hpp"
#include "trainer/data/image_source.hpp"
#include "trainer/data/random.hpp"

namespace dtrain::train {

// What is done to each image on its way into a batch, in this order, whatever the order of the
// fields: fit (with resize, pad and crop), flip, rand_augment, color_jitter, normalize. As
//     transforms.Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(mean, std)])
//     transforms.Compose([RandomResizedCrop(224), RandomHorizontalFlip(), RandAugment(),
//                         ColorJitter(0.4, 0.4, 0.4), ToTensor(), Normalize(mean, std)])
// are {.rows = 224, .columns = 224, .resize = 256} and {.rows = 224, .columns = 224,
// .fit = Fit::random_resized, .random_flip = true, .rand_augment = RandAugment{}, .color_jitter =
// ColorJitter{0.4, 0.4, 0.4}}. Scaling is antialiased (resample.hpp). What only cuts, flips and
// normalizes is one pass from the image's bytes to the batch's memory.
struct Transform {
  // Of the output. 0: as the first image of the source has it.
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  enum class Fit : std::uint8_t {
    exact,           // the image, scaled and with its padding, must be at least that large
    resize,          // the largest part of the right shape, scaled
    random_resized,  // a random part of 8 % to 100 %, of sides 3:4 to 4:3, scaled
  };
  Fit fit = Fit::exact;
  // All three for Fit::exact.
  std::int64_t resize = 0;   // above 0: the image is scaled first, its shorter side to this
  std::int64_t pad = 0;      // black around the image, before it is cropped
  bool random_crop = false;  // else the middle

  bool random_flip = false;                 // left and right, one time in two
  std::optional<RandAugment> rand_augment;  // of images with 1 or 3 channels, as the next
  std::optional<ColorJitter> color_jitter;

  // (x / 255 - mean) / std for each channel; one value stands for all channels. Black is
  // normalized as well.
  std::vector<float> mean{0.5F};
  std::vector<float> std{0.5F};
};

// The values that CIFAR-10's images have.
inline const std::vector<float> kCifar10Mean{0.4914F, 0.4822F, 0.4465F};
inline const std::vector<float> kCifar10Std{0.2470F, 0.2435F, 0.2616F};

// A transform made ready for images of so many channels. May be used by several threads at once.
class Transformer {
 public:
  // Throws Error on sizes and values that make no sense.
  Transformer(const Transform& transform, std::int64_t channels);

  std::int64_t values() const { return channels_ * transform_.rows * transform_.columns; }
  // The shorter side that an image needs: what ImageSource::image is told.
  std::int64_t least() const;

  // Writes one image, plane by plane: values() normalized floats, or bytes as they are. A grey
  // image is taken as three equal channels where three are wanted. Throws Error when the image is
  // too small, too thin to be scaled within kMostPixels, or has other channels.
  void write(const ImageView& image, SampleRandom random, float* out) const;
  void write(const ImageView& image, SampleRandom random, std::uint8_t* out) const;

 private:
  template <typename Value, typename Convert>
  void write_as(const ImageView& image, SampleRandom random, Value* out,
                const Convert& convert) const;
  template <typename Value, typename Convert>
  void crop(const ImageView& image, bool flip, SampleRandom& random, Value* out,
            const Convert& convert) const;
  template <typename Value, typename Convert>
  void fit(const ImageView& image, SampleRandom& random, Value* out, const Convert& convert) const;

  Transform transform_;
  std::int64_t channels_;
  std::vector<std::array<float, 256>> tables_;  // by channel
};

}  // namespace dtrain::train
