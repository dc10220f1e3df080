// Samples a second, by one thread, of each format and form of batch. Prints one JSON object.
// bench_loader [FOLDER FOR JPEG FILES]

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/files.hpp"
#include "trainer/core/run.hpp"
#include "trainer/data/codecs.hpp"
#include "trainer/data/open.hpp"
#include "trainer/data/synthetic.hpp"
#include "trainer/train/batches.hpp"

using namespace dtrain::train;
using Clock = std::chrono::steady_clock;

namespace {

Images in_memory(std::int64_t count, std::int64_t channels, std::int64_t side) {
  MemoryImages::Content content;
  content.name = "in memory";
  content.channels = channels;
  content.rows = content.columns = side;
  content.labels.resize(static_cast<std::size_t>(count));
  content.pixels.resize(static_cast<std::size_t>(count * channels * side * side));
  for (std::size_t i = 0; i < content.pixels.size(); ++i) {
    content.pixels[i] = static_cast<std::uint8_t>(i * 2654435761U >> 24);
  }
  content.class_count = 10;
  return std::make_shared<MemoryImages>(std::move(content));
}

// The best of three seconds, shuffled, in batches of 128.
double samples_per_second(const Images& images, const ImageBatches& options) {
  auto make = image_batches(images, options);
  DistributedSampler sampler(images->size(), 0, 1, {.seed = 1});
  sampler.set_epoch(0);
  double best = 0;
  std::int64_t at = 0;
  std::vector<std::int64_t> indices(128);
  for (int round = 0; round < 3; ++round) {
    std::int64_t samples = 0;
    const auto start = Clock::now();
    std::chrono::duration<double> took{};
    for (; took.count() < 1; took = Clock::now() - start) {
      for (std::int64_t& index : indices) index = sampler.at(at++ % images->size());
      make(indices);
      samples += static_cast<std::int64_t>(indices.size());
    }
    best = std::max(best, static_cast<double>(samples) / took.count());
  }
  return best;
}

// libjpeg-turbo and nothing else, on the same files.
double decodes_per_second(const std::filesystem::path& folder) {
  std::vector<std::vector<std::byte>> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const MappedFile file(entry.path());
    files.emplace_back(file.bytes().begin(), file.bytes().end());
  }
  std::vector<std::uint8_t> pixels;
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto start = Clock::now();
    for (const auto& file : files) decode_image(file, pixels, 224);
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::max(best, static_cast<double>(files.size()) / took.count());
  }
  return best;
}

int bench() {
  const test::TemporaryFolder temporary;
  nlohmann::json result;
  ImageBatches plain;
  plain.transform.mean = {0.5F};
  result["idx_float"] = samples_per_second(in_memory(60000, 1, 28), plain);
  ImageBatches bytes;
  bytes.as_bytes = true;
  const Images cifar = in_memory(50000, 3, 32);
  result["cifar_bytes"] = samples_per_second(cifar, bytes);
  bytes.transform.rows = bytes.transform.columns = 32;
  bytes.transform.pad = 4;
  bytes.transform.random_crop = bytes.transform.random_flip = true;
  result["cifar_bytes_augmented"] = samples_per_second(cifar, bytes);
  ImageBatches floats = bytes;
  floats.as_bytes = false;
  floats.transform.mean = kCifar10Mean;
  floats.transform.std = kCifar10Std;
  result["cifar_float_augmented"] = samples_per_second(cifar, floats);

  write_image_folder(temporary.path(), {.samples = 200, .rows = 375, .columns = 500},
                     ImageFile::jpeg);
  ImageBatches photos;
  photos.transform.rows = photos.transform.columns = 224;
  photos.transform.fit = Transform::Fit::resize;
  photos.transform.mean = {0.45F};
  result["jpeg_float_224"] =
      samples_per_second(open_images(temporary.path(), Split::train), photos);
  result["jpeg_decode_only"] = decodes_per_second(temporary.path());
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace

int main() {
  return run(bench);
}
