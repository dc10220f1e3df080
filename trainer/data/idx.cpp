#include "trainer/data/idx.hpp"

#include <fcntl.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "trainer/core/error.hpp"
#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace {

constexpr std::uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::int64_t kMostPixelsInFile = std::int64_t{1} << 36;

// Reads a file through zlib, which passes through what is not gzipped, and counts the offset.
class IdxReader {
 public:
  explicit IdxReader(const std::filesystem::path& path) : path_(path) {
    FileDescriptor fd = open_file(path, O_RDONLY);
    file_ = gzdopen(fd.get(), "rb");
    if (file_ == nullptr) throw Error("cannot read " + path.string() + ": out of memory");
    fd.release();
    gzbuffer(file_, 1U << 18);
  }
  ~IdxReader() { gzclose(file_); }
  IdxReader(const IdxReader&) = delete;
  IdxReader& operator=(const IdxReader&) = delete;

  void read(std::uint8_t* into, std::int64_t size, const std::string& what) {
    const std::int64_t begin = offset_;
    while (size > 0) {
      const auto piece = static_cast<unsigned>(std::min<std::int64_t>(size, 1 << 24));
      const int got = gzread(file_, into, piece);
      check_zlib(got, what);
      if (got == 0) {
        fail(what + " from offset " + std::to_string(begin) + ", " +
                 std::to_string(offset_ - begin + size) + " bytes",
             "the end of the file");
      }
      into += got;
      size -= got;
      offset_ += got;
    }
  }

  std::uint32_t read_number(const std::string& what) {
    std::array<std::uint8_t, 4> b{};
    read(b.data(), 4, what);
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  }

  void expect_number(std::uint32_t expected, const std::string& what) {
    const std::uint32_t found = read_number(what);
    if (found != expected) {
      offset_ -= 4;
      fail(what + " " + std::to_string(expected), std::to_string(found));
    }
  }

  void expect_end() {
    std::uint8_t more = 0;
    const int got = gzread(file_, &more, 1);
    check_zlib(got, "the end of the file");
    if (got != 0) fail("the end of the file", "more bytes");
  }

  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error(path_.string() + ": at offset " + std::to_string(offset_) + ": expected " +
                expected + ", found " + found);
  }

 private:
  // A gzip stream that is cut off gives its bytes first and Z_BUF_ERROR at its end.
  void check_zlib(int got, const std::string& what) const {
    int error = Z_OK;
    const char* text = gzerror(file_, &error);
    if (error == Z_OK || error == Z_STREAM_END) return;
    if (got > 0 && error == Z_BUF_ERROR) return;
    if (error == Z_ERRNO) throw errno_error("cannot read " + path_.string(), errno);
    fail(what, error == Z_BUF_ERROR ? "the end of the file inside of its gzip stream"
                                    : "a damaged gzip stream (" + std::string(text) + ")");
  }

  std::filesystem::path path_;
  gzFile file_ = nullptr;
  std::int64_t offset_ = 0;
};

std::int64_t take(std::int64_t count, std::optional<std::int64_t> limit) {
  if (!limit) return count;
  if (*limit < 0) throw Error("a limit of " + std::to_string(*limit) + " images is not possible");
  return std::min(count, *limit);
}

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    std::filesystem::path path = folder / (name + ending);
    if (std::filesystem::exists(path)) return path;
  }
  throw Error("cannot find " + name + " or " + name + ".gz in " + folder.string());
}

class IdxSource : public ImageSource {
 public:
  explicit IdxSource(std::shared_ptr<const LabelledImages> data) : data_(std::move(data)) {}

  std::string name() const override { return data_->source.string(); }
  std::int64_t size() const override { return data_->size(); }
  const std::vector<std::string>& classes() const override { return no_names_; }
  std::int64_t class_count() const override { return 10; }
  ImageView image(std::int64_t index, std::vector<std::uint8_t>& /*scratch*/,
                  std::int64_t /*least*/) const override {
    const IdxImages& images = data_->images;
    return ImageView::planar(images.pixels.data() + index * images.pixels_of_one(), 1, images.rows,
                             images.columns);
  }
  std::int64_t label(std::int64_t index) const override {
    return data_->labels[static_cast<std::size_t>(index)];
  }

 private:
  std::shared_ptr<const LabelledImages> data_;
  std::vector<std::string> no_names_;
};

}  // namespace

IdxImages read_idx_images(const std::filesystem::path& path, std::optional<std::int64_t> limit) {
  IdxReader reader(path);
  reader.expect_number(kImagesMagic, "the magic number of IDX images");
  const std::int64_t count = reader.read_number("the number of images");
  IdxImages images;
  images.rows = reader.read_number("the number of rows");
  images.columns = reader.read_number("the number of columns");
  if (images.rows < 1 || images.rows > 65536 || images.columns < 1 || images.columns > 65536) {
    reader.fail("images of at least 1x1 and at most 65536x65536 pixels",
                std::to_string(images.rows) + "x" + std::to_string(images.columns));
  }
  images.count = take(count, limit);
  if (images.count > kMostPixelsInFile / images.pixels_of_one()) {
    reader.fail("at most " + std::to_string(kMostPixelsInFile) + " pixels",
                std::to_string(count) + " images of " + std::to_string(images.rows) + "x" +
                    std::to_string(images.columns));
  }
  // In pieces: a header that promises more than the file has must not take the memory for it.
  const std::int64_t total = images.count * images.pixels_of_one();
  constexpr std::int64_t kPiece = std::int64_t{64} << 20;
  for (std::int64_t have = 0; have < total;) {
    const std::int64_t piece = std::min(kPiece, total - have);
    images.pixels.resize(static_cast<std::size_t>(have + piece));
    reader.read(images.pixels.data() + have, piece, "the pixels");
    have += piece;
  }
  if (images.count == count) reader.expect_end();
  return images;
}

std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& path,
                                          std::optional<std::int64_t> limit) {
  IdxReader reader(path);
  reader.expect_number(kLabelsMagic, "the magic number of IDX labels");
  const std::int64_t count = reader.read_number("the number of labels");
  const std::int64_t wanted = take(count, limit);
  std::vector<std::uint8_t> labels;
  constexpr std::int64_t kPiece = std::int64_t{16} << 20;
  for (std::int64_t have = 0; have < wanted;) {
    const std::int64_t piece = std::min(kPiece, wanted - have);
    labels.resize(static_cast<std::size_t>(have + piece));
    reader.read(labels.data() + have, piece, "the labels");
    have += piece;
  }
  if (wanted == count) reader.expect_end();
  return labels;
}

LabelledImages read_mnist(const std::filesystem::path& folder, MnistSplit split,
                          std::optional<std::int64_t> limit) {
  const std::string prefix = split == MnistSplit::train ? "train" : "t10k";
  LabelledImages data;
  data.source = find_file(folder, prefix + "-images-idx3-ubyte");
  const std::filesystem::path label_file = find_file(folder, prefix + "-labels-idx1-ubyte");
  data.images = read_idx_images(data.source, limit);
  data.labels = read_idx_labels(label_file, limit);
  if (static_cast<std::int64_t>(data.labels.size()) != data.images.count) {
    throw Error(label_file.string() + ": " + std::to_string(data.labels.size()) + " labels, but " +
                data.source.string() + " has " + std::to_string(data.images.count) + " images");
  }
  for (std::size_t i = 0; i < data.labels.size(); ++i) {
    if (data.labels[i] > 9) {
      throw Error(label_file.string() + ": at offset " + std::to_string(8 + i) +
                  ": expected a label from 0 to 9, found " + std::to_string(data.labels[i]));
    }
  }
  return data;
}

std::shared_ptr<const ImageSource> as_image_source(std::shared_ptr<const LabelledImages> data) {
  return std::make_shared<IdxSource>(std::move(data));
}

bool has_mnist(const std::filesystem::path& folder) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                           "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored) &&
        !std::filesystem::exists(folder / (std::string(name) + ".gz"), ignored)) {
      return false;
    }
  }
  return true;
}

}  // namespace dtrain::train
