#include "trainer/data/synthetic.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numbers>

#include "trainer/data/codecs.hpp"
#include "trainer/data/random.hpp"
#include "trainer/data/shards.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

class SyntheticImages : public ImageSource {
 public:
  explicit SyntheticImages(const Synthetic& what) : what_(what) {
    constexpr std::int64_t kMost = std::int64_t{1} << 32;
    if (what.samples < 1 || what.samples > kMost || what.classes < 1 || what.classes > 65536 ||
        (what.channels != 1 && what.channels != 3) || what.rows < 1 || what.rows > 8192 ||
        what.columns < 1 || what.columns > 8192) {
      throw Error("synthetic images: impossible numbers");
    }
    for (std::int64_t i = 0; i < what.classes; ++i) {
      char name[32];
      std::snprintf(name, sizeof name, "class_%03d", static_cast<int>(i));
      classes_.emplace_back(name);
    }
  }

  std::string name() const override { return "synthetic images"; }
  std::int64_t size() const override { return what_.samples; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int64_t class_count() const override { return what_.classes; }
  std::int64_t label(std::int64_t index) const override { return index % what_.classes; }

  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t /*least*/) const override {
    SampleRandom of_class(7, 0, label(index));
    const double angle = of_class.uniform() * std::numbers::pi;
    const double width = 3 + 6 * of_class.uniform();  // waves over the image
    double colour[3];
    for (double& c : colour) c = 40 + 80 * of_class.uniform();
    SampleRandom random(what_.seed, 1, index);
    const double phase = random.uniform() * 2 * std::numbers::pi;
    scratch.resize(static_cast<std::size_t>(what_.channels * what_.rows * what_.columns));
    std::uint8_t* out = scratch.data();
    const double across =
        std::cos(angle) * width * 2 * std::numbers::pi / static_cast<double>(what_.columns);
    const double down =
        std::sin(angle) * width * 2 * std::numbers::pi / static_cast<double>(what_.rows);
    for (std::int64_t row = 0; row < what_.rows; ++row) {
      for (std::int64_t column = 0; column < what_.columns; ++column) {
        const double wave = std::sin(phase + across * static_cast<double>(column) +
                                     down * static_cast<double>(row));
        std::uint64_t bits = random.next();
        for (std::int64_t channel = 0; channel < what_.channels; ++channel, bits >>= 16) {
          const double noise = static_cast<double>(bits & 63) - 31.5;
          const double value = 128 + wave * colour[channel] + noise;
          *out++ = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
        }
      }
    }
    return ImageView::interleaved(scratch.data(), what_.channels, what_.rows, what_.columns);
  }

 private:
  Synthetic what_;
  std::vector<std::string> classes_;
};

class Out {
 public:
  explicit Out(const fs::path& path) : path_(path) {
    fs::create_directories(path.parent_path());
    file_.open(path, std::ios::binary | std::ios::trunc);
    if (!file_) throw Error("cannot write " + path.string());
  }
  void put(std::uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) file_.put(static_cast<char>(value >> (8 * i) & 0xff));
  }
  void put(std::span<const std::byte> bytes) {
    file_.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
  }
  void put(const std::string& text) { file_ << text; }
  void put_planes(const ImageView& image) {
    for (std::int64_t channel = 0; channel < image.channels; ++channel) {
      for (std::int64_t row = 0; row < image.rows; ++row) {
        for (std::int64_t column = 0; column < image.columns; ++column) {
          put(image.pixels[channel * image.channel_stride + row * image.row_stride +
                           column * image.column_stride],
              1);
        }
      }
    }
  }
  void close() {
    file_.close();
    if (!file_) throw Error("cannot write " + path_.string());
  }

 private:
  fs::path path_;
  std::ofstream file_;
};

Synthetic test_of(Synthetic what, std::int64_t test) {
  what.samples = test;
  what.seed += 1;
  return what;
}

void write_idx_split(const fs::path& folder, const std::string& prefix, const Synthetic& what) {
  const Images images = make_images(what);
  Out pixels(folder / (prefix + "-images-idx3-ubyte"));
  Out labels(folder / (prefix + "-labels-idx1-ubyte"));
  const auto count = static_cast<std::uint64_t>(what.samples);
  for (const std::uint64_t number :
       {std::uint64_t{0x803}, count, static_cast<std::uint64_t>(what.rows),
        static_cast<std::uint64_t>(what.columns)}) {
    pixels.put(number, 4);
  }
  for (const std::uint64_t number : {std::uint64_t{0x801}, count}) labels.put(number, 4);
  std::vector<std::uint8_t> scratch;
  for (std::int64_t i = 0; i < what.samples; ++i) {
    pixels.put_planes(images->image(i, scratch));
    labels.put(static_cast<std::uint64_t>(images->label(i)), 1);
  }
  pixels.close();
  labels.close();
}

// Records begin..end of a CIFAR file; with `coarse` a coarse label comes first.
void write_cifar_file(const fs::path& path, const ImageSource& images, std::int64_t begin,
                      std::int64_t end, bool coarse) {
  Out out(path);
  std::vector<std::uint8_t> scratch;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto label = static_cast<std::uint64_t>(images.label(i));
    if (coarse) out.put(label / 5, 1);
    out.put(label, 1);
    out.put_planes(images.image(i, scratch));
  }
  out.close();
}

void require_cifar(const Synthetic& what, std::int64_t classes) {
  if (what.channels != 3 || what.rows != 32 || what.columns != 32 || what.classes != classes) {
    throw Error("CIFAR-" + std::to_string(classes) + " holds 3x32x32 images of " +
                std::to_string(classes) + " classes");
  }
}

void write_names(const fs::path& path, const Images& images) {
  Out out(path);
  for (const std::string& name : images->classes()) out.put(name + "\n");
  out.close();
}

std::vector<std::byte> encode(const ImageView& image, ImageFile file) {
  return file == ImageFile::jpeg ? encode_jpeg(image) : encode_png(image);
}

std::string numbered(std::int64_t number) {
  char name[32];
  std::snprintf(name, sizeof name, "%08lld", static_cast<long long>(number));
  return name;
}

const char* ending_of(ImageFile file) {
  return file == ImageFile::jpeg ? ".jpg" : ".png";
}

struct CloseTarOut {
  void operator()(archive* a) const { archive_write_free(a); }
};

class TarOut {
 public:
  explicit TarOut(const fs::path& path) : path_(path), tar_(archive_write_new()) {
    check(archive_write_set_format_ustar(tar_.get()));
    check(archive_write_open_filename(tar_.get(), path.c_str()));
  }
  void add(const std::string& name, std::span<const std::byte> bytes) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    const int result = archive_write_header(tar_.get(), entry);
    archive_entry_free(entry);
    check(result);
    if (archive_write_data(tar_.get(), bytes.data(), bytes.size()) < 0) check(ARCHIVE_FATAL);
  }
  void close() { check(archive_write_close(tar_.get())); }

 private:
  void check(int result) const {
    if (result == ARCHIVE_OK) return;
    const char* why = archive_error_string(tar_.get());
    throw Error("cannot write " + path_.string() + ": " + (why == nullptr ? "unknown" : why));
  }
  fs::path path_;
  std::unique_ptr<archive, CloseTarOut> tar_;
};

}  // namespace

Images make_images(const Synthetic& what) {
  return std::make_shared<SyntheticImages>(what);
}

void write_idx(const fs::path& folder, const Synthetic& what, std::int64_t test) {
  if (what.channels != 1 || what.classes > 10) {
    throw Error("IDX holds grey images, here of at most 10 classes");
  }
  write_idx_split(folder, "train", what);
  write_idx_split(folder, "t10k", test_of(what, test));
}

void write_cifar10(const fs::path& folder, const Synthetic& what, std::int64_t test) {
  require_cifar(what, 10);
  if (what.samples < 5) throw Error("CIFAR-10 needs a sample for each of its five files");
  const Images images = make_images(what);
  for (std::int64_t part = 0; part < 5; ++part) {
    write_cifar_file(folder / ("data_batch_" + std::to_string(part + 1) + ".bin"), *images,
                     what.samples * part / 5, what.samples * (part + 1) / 5, false);
  }
  write_cifar_file(folder / "test_batch.bin", *make_images(test_of(what, test)), 0, test, false);
  write_names(folder / "batches.meta.txt", images);
}

void write_cifar100(const fs::path& folder, const Synthetic& what, std::int64_t test) {
  require_cifar(what, 100);
  const Images images = make_images(what);
  write_cifar_file(folder / "train.bin", *images, 0, what.samples, true);
  write_cifar_file(folder / "test.bin", *make_images(test_of(what, test)), 0, test, true);
  write_names(folder / "fine_label_names.txt", images);
}

void write_image_folder(const fs::path& folder, const Synthetic& what, ImageFile file) {
  const Images images = make_images(what);
  std::vector<std::uint8_t> scratch;
  for (std::int64_t i = 0; i < what.samples; ++i) {
    const std::string& name = images->classes()[static_cast<std::size_t>(images->label(i))];
    Out out(folder / name / (numbered(i) + ending_of(file)));
    out.put(encode(images->image(i, scratch), file));
    out.close();
  }
}

void write_shards(const fs::path& folder, const Synthetic& what, ImageFile file,
                  std::int64_t samples_per_shard) {
  if (samples_per_shard < 1) throw Error("a shard holds at least one sample");
  fs::create_directories(folder);
  const Images images = make_images(what);
  std::vector<std::uint8_t> scratch;
  for (std::int64_t begin = 0; begin < what.samples; begin += samples_per_shard) {
    TarOut tar(folder / (numbered(begin / samples_per_shard) + ".tar"));
    const std::int64_t end = std::min(begin + samples_per_shard, what.samples);
    for (std::int64_t i = begin; i < end; ++i) {
      tar.add(numbered(i) + ending_of(file), encode(images->image(i, scratch), file));
      const std::string label = std::to_string(images->label(i));
      tar.add(numbered(i) + ".cls", std::as_bytes(std::span(label)));
    }
    tar.close();
  }
  write_shard_index(folder, images->classes());
}

}  // namespace dtrain::train
