#include "trainer/data/idx.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include "tests/trainer/support/temporary.hpp"
#include "trainer/core/error.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

namespace {

std::string number(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

std::string images(std::uint32_t count, std::uint32_t magic = 0x803) {
  std::string text = number(magic) + number(count) + number(2) + number(3);
  for (std::uint32_t i = 0; i < count * 6; ++i) text += static_cast<char>(i);
  return text;
}

std::string labels(std::uint32_t count) {
  std::string text = number(0x801) + number(count);
  for (std::uint32_t i = 0; i < count; ++i) text += static_cast<char>(i % 10);
  return text;
}

void write_gzip(const std::filesystem::path& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

std::string refusal(const std::filesystem::path& path) {
  return message_of<Error>([&] { read_idx_images(path); });
}

}  // namespace

TEST_CASE("images are read, plain and gzipped, whole and in part") {
  const TemporaryFolder folder;
  write_file(folder / "plain", images(5));
  write_gzip(folder / "gzipped", images(5));
  for (const char* name : {"plain", "gzipped"}) {
    const IdxImages all = read_idx_images(folder / name);
    CHECK(all.count == 5);
    CHECK(all.rows == 2);
    CHECK(all.columns == 3);
    CHECK(all.pixels.size() == 30);
    CHECK(all.pixels[29] == 29);
    const IdxImages some = read_idx_images(folder / name, 2);
    CHECK(some.count == 2);
    CHECK(some.pixels.size() == 12);
    CHECK(read_idx_images(folder / name, 99).count == 5);
  }
}

TEST_CASE("wrong files: the file, the offset, what was expected") {
  const TemporaryFolder folder;
  const auto file = folder / "f";
  const std::string prefix = file.string() + ": at offset ";

  write_file(file, images(5, 0x801));
  CHECK(refusal(file) == prefix + "0: expected the magic number of IDX images 2051, found 2049");
  write_file(file, images(5).substr(0, 6));
  CHECK(contains(refusal(file), "expected the number of images"));
  CHECK(contains(refusal(file), "found the end of the file"));
  write_file(file, images(5).substr(0, 16 + 10));
  CHECK(refusal(file) == prefix +
                             "26: expected the pixels from offset 16, 30 bytes, found the "
                             "end of the file");
  write_file(file, images(5) + "x");
  CHECK(refusal(file) == prefix + "46: expected the end of the file, found more bytes");
  write_file(file, number(0x803) + number(0xffffffff) + number(65536) + number(65536));
  CHECK(contains(refusal(file), "pixels, found 4294967295 images of 65536x65536"));
  write_file(file, number(0x803) + number(1) + number(0) + number(1));
  CHECK(contains(refusal(file), "found 0x1"));
  write_file(file, "");
  CHECK(contains(refusal(file), "found the end of the file"));
  CHECK(contains(refusal(folder / "none"), "No such file"));
}

TEST_CASE("a header that promises terabytes takes no memory for them") {
  const TemporaryFolder folder;
  write_file(folder / "f", number(0x803) + number(60'000'000) + number(28) + number(28) + "abc");
  CHECK(contains(refusal(folder / "f"), "at offset 19"));
}

TEST_CASE("gzip streams that are cut off or damaged") {
  const TemporaryFolder folder;
  write_gzip(folder / "whole", images(4000));
  const std::string whole = read_file(folder / "whole");
  write_file(folder / "cut", whole.substr(0, whole.size() / 2));
  CHECK(contains(refusal(folder / "cut"), "found the end of the file"));
  write_file(folder / "no_sum", whole.substr(0, whole.size() - 4));
  CHECK(contains(refusal(folder / "no_sum"), "inside of its gzip stream"));
  std::string damaged = whole;
  damaged[damaged.size() - 6] = static_cast<char>(~damaged[damaged.size() - 6]);
  write_file(folder / "damaged", damaged);
  CHECK(contains(refusal(folder / "damaged"), "damaged gzip stream"));
}

TEST_CASE("MNIST's four files") {
  const TemporaryFolder folder;
  CHECK_FALSE(has_mnist(folder.path()));
  write_file(folder / "train-images-idx3-ubyte", images(4));
  write_gzip(folder / "train-labels-idx1-ubyte.gz", labels(4));
  write_file(folder / "t10k-images-idx3-ubyte", images(2));
  write_file(folder / "t10k-labels-idx1-ubyte", labels(3));
  CHECK(has_mnist(folder.path()));
  const LabelledImages train = read_mnist(folder.path(), MnistSplit::train);
  CHECK(train.size() == 4);
  CHECK(train.labels == std::vector<std::uint8_t>{0, 1, 2, 3});
  CHECK(read_mnist(folder.path(), MnistSplit::train, 3).labels.size() == 3);
  CHECK(contains(message_of<Error>([&] { read_mnist(folder.path(), MnistSplit::test); }),
                 "3 labels"));
  write_file(folder / "t10k-labels-idx1-ubyte", number(0x801) + number(2) + "\x01\x0a");
  CHECK(contains(message_of<Error>([&] { read_mnist(folder.path(), MnistSplit::test); }),
                 "at offset 9: expected a label from 0 to 9, found 10"));
  const TemporaryFolder empty;
  CHECK(contains(message_of<Error>([&] { read_mnist(empty.path(), MnistSplit::train); }),
                 "train-images-idx3-ubyte.gz in "));
}

TEST_CASE("the real FashionMNIST, where it is installed") {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!has_mnist(folder)) {
    MESSAGE("dataset-fashion-mnist is not installed");
    return;
  }
  const LabelledImages test = read_mnist(folder, MnistSplit::test);
  CHECK(test.size() == 10000);
  CHECK(test.images.rows == 28);
  CHECK(test.labels[0] == 9);
}
