#include <archive.h>
#include <archive_entry.h>
#include <doctest/doctest.h>
#include <png.h>

#include <array>
#include <cstdio>  // jpeglib.h needs it before
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

extern "C" {
#include <jpeglib.h>
}

#include "tests/trainer/support/temporary.hpp"
#include "trainer/data/codecs.hpp"
#include "trainer/data/open.hpp"
#include "trainer/data/shards.hpp"
#include "trainer/data/synthetic.hpp"

using namespace dtrain::train;
using test::contains;
using test::message_of;
using test::TemporaryFolder;

namespace {

std::vector<int> pixels_of(const ImageView& image) {
  std::vector<int> pixels;
  for (std::int64_t c = 0; c < image.channels; ++c) {
    for (std::int64_t row = 0; row < image.rows; ++row) {
      for (std::int64_t column = 0; column < image.columns; ++column) {
        pixels.push_back(image.pixels[c * image.channel_stride + row * image.row_stride +
                                      column * image.column_stride]);
      }
    }
  }
  return pixels;
}

std::vector<int> pixels_of(const ImageSource& images, std::int64_t index) {
  std::vector<std::uint8_t> scratch;
  return pixels_of(images.image(index, scratch));
}

// That `images` holds what was made, in whatever order its format keeps: `place` gives the index
// of the made image i.
template <typename Place>
void check_same(const ImageSource& images, const Synthetic& what, const Place& place) {
  const Images made = make_images(what);
  REQUIRE(images.size() == what.samples);
  for (std::int64_t i = 0; i < what.samples; ++i) {
    CHECK(images.label(place(i)) == made->label(i));
    CHECK(pixels_of(images, place(i)) == pixels_of(*made, i));
  }
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::int64_t as_made(std::int64_t i) {
  return i;
}

// A tar file with these members, in the form that carries long names too.
void write_tar(const std::filesystem::path& path,
               const std::vector<std::pair<std::string, std::string>>& members, bool gzip = false) {
  archive* tar = archive_write_new();
  archive_write_set_format_pax_restricted(tar);
  if (gzip) archive_write_add_filter_gzip(tar);
  REQUIRE(archive_write_open_filename(tar, path.c_str()) == ARCHIVE_OK);
  for (const auto& [name, content] : members) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, content == "/" ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(content == "/" ? 0 : content.size()));
    archive_write_header(tar, entry);
    if (content != "/") archive_write_data(tar, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_close(tar);
  archive_write_free(tar);
}

std::string png_of(int value) {
  const std::vector<std::uint8_t> pixels(12, static_cast<std::uint8_t>(value));
  return text_of(encode_png(ImageView::interleaved(pixels.data(), 3, 2, 2)));
}

}  // namespace

TEST_CASE("CIFAR-10 and CIFAR-100: what is written is read") {
  const TemporaryFolder folder;
  const Synthetic ten{.samples = 23};
  write_cifar10(folder / "ten/cifar-10-batches-bin", ten, 4);
  CHECK(detect_format(folder / "ten") == DataFormat::cifar10);
  const Images train = open_images(folder / "ten", Split::train);
  check_same(*train, ten, as_made);
  CHECK(train->classes()[3] == "class_003");
  CHECK(has_test_split(folder / "ten", DataFormat::cifar10));
  CHECK(open_images(folder / "ten", Split::test)->size() == 4);

  const Synthetic hundred{.samples = 120, .classes = 100};
  write_cifar100(folder / "hundred", hundred, 7);
  CHECK(detect_format(folder / "hundred") == DataFormat::cifar100);
  check_same(*open_images(folder / "hundred", Split::train), hundred, as_made);
  CHECK_THROWS_AS(write_cifar10(folder / "x", {.rows = 28}, 1), Error);
}

TEST_CASE("CIFAR files that are not as they should be are refused with the place") {
  const TemporaryFolder folder;
  write_cifar10(folder.path(), {.samples = 5}, 1);
  const auto path = folder / "data_batch_3.bin";
  const auto refusal = [&] {
    return message_of<Error>([&] { open_images(folder.path(), Split::train); });
  };
  const std::string whole = test::read_file(path);
  test::write_file(path, whole.substr(0, 3072));
  CHECK(contains(refusal(), "whole records of 3073 bytes, found 3072"));
  test::write_file(path, "");
  CHECK(contains(refusal(), "found 0 bytes"));
  test::write_file(path, "\x0b" + whole.substr(1));
  CHECK(contains(refusal(), "data_batch_3.bin: at offset 0: expected a label below 10, found 11"));
  test::write_file(path, whole);
  test::write_file(folder / "batches.meta.txt", "one\ntwo\n");
  CHECK(contains(refusal(), "names of 10 classes, found 2"));
}

TEST_CASE("IDX: what is written is read") {
  const TemporaryFolder folder;
  const Synthetic what{.samples = 12, .channels = 1, .rows = 28, .columns = 20};
  write_idx(folder.path(), what, 3);
  CHECK(detect_format(folder.path()) == DataFormat::idx);
  check_same(*open_images(folder.path(), Split::train), what, as_made);
  CHECK(open_images(folder.path(), Split::test)->size() == 3);
}

TEST_CASE("an image folder: classes and files by name") {
  const TemporaryFolder folder;
  const Synthetic what{.samples = 12, .classes = 3, .rows = 9, .columns = 7};
  write_image_folder(folder / "train", what, ImageFile::png);
  CHECK(detect_format(folder.path()) == DataFormat::image_folder);
  CHECK_FALSE(has_test_split(folder.path(), DataFormat::image_folder));
  CHECK(contains(message_of<Error>([&] { open_images(folder.path(), Split::test); }),
                 "no test or val folder"));
  const Images images = open_images(folder.path(), Split::train);
  check_same(*images, what, [](std::int64_t i) { return i % 3 * 4 + i / 3; });

  const auto broken = folder / "train/class_001/00000004.png";
  const std::string whole = test::read_file(broken);
  test::write_file(broken, whole.substr(0, whole.size() / 2));
  std::vector<std::uint8_t> scratch;
  CHECK(contains(message_of<Error>([&] { images->image(5, scratch); }),
                 "00000004.png: a damaged PNG"));
  std::filesystem::create_directory(folder / "train/empty");
  CHECK(contains(message_of<Error>([&] { open_images(folder.path(), Split::train); }),
                 "has no JPEG or PNG file"));
}

TEST_CASE(
    "an image folder: the test split's labels are by the classes of train, in test or in val") {
  const TemporaryFolder folder;
  const auto add = [&](const std::string& file, int value) {
    test::write_file(folder / file, png_of(value));
  };
  const auto opened = [&] { return open_images(folder.path(), Split::test); };
  for (const char* name : {"ant", "bee", "cat"}) add("train/" + std::string(name) + "/0.png", 1);
  add("val/cat/0.png", 2);
  add("val/ant/0.png", 3);
  REQUIRE(opened()->size() == 2);
  CHECK(opened()->classes() == std::vector<std::string>{"ant", "bee", "cat"});
  CHECK(opened()->class_count() == 3);
  CHECK(opened()->label(0) == 0);
  CHECK(opened()->label(1) == 2);
  CHECK(pixels_of(*opened(), 1) == std::vector<int>(12, 2));

  // Pictures without labels, in no folder or in one: the labelled ones are in val.
  add("test/0.png", 4);
  CHECK(opened()->name() == (folder / "val").string());
  add("test/images/0.png", 4);
  CHECK(opened()->name() == (folder / "val").string());
  std::filesystem::remove_all(folder / "test");
  add("test/bee/0.png", 5);
  CHECK(opened()->name() == (folder / "test").string());
  CHECK(opened()->label(0) == 1);

  std::filesystem::remove_all(folder / "test");
  add("val/dog/0.png", 6);
  CHECK(has_test_split(folder.path(), DataFormat::image_folder));
  CHECK(contains(message_of<Error>(opened), "val: 'dog' is not one of the training's classes"));
}

TEST_CASE("a JPEG is near to what it was made from, and comes smaller where that is enough") {
  const Images images = make_images({.samples = 1, .rows = 64, .columns = 96});
  std::vector<std::uint8_t> scratch;
  const ImageView original = images->image(0, scratch);
  const auto jpeg = encode_jpeg(original, 95);
  std::vector<std::uint8_t> pixels;
  const ImageView decoded = decode_image(jpeg, pixels);
  CHECK(decoded.rows == 64);
  CHECK(decoded.columns == 96);
  const auto a = pixels_of(original);
  const auto b = pixels_of(decoded);
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += std::abs(a[i] - b[i]);
  CHECK(difference / static_cast<double>(a.size()) < 16);  // the noise in colours is lost
  CHECK(decode_image(jpeg, pixels, 32).rows == 32);
  CHECK(decode_image(jpeg, pixels, 33).rows == 64);
  CHECK(decode_image(jpeg, pixels, 8).columns == 12);
  CHECK(decode_image(jpeg, pixels, 1).columns == 12);  // an eighth is the least
}

TEST_CASE("damaged images are refused") {
  std::vector<std::uint8_t> pixels;
  const auto refusal = [&](const std::string& bytes) {
    return message_of<Error>([&] { decode_image(bytes_of(bytes), pixels); });
  };
  const Images images = make_images({.samples = 1});
  std::vector<std::uint8_t> scratch;
  const std::string jpeg = text_of(encode_jpeg(images->image(0, scratch)));
  CHECK(contains(refusal(jpeg.substr(0, jpeg.size() / 2)), "a damaged JPEG"));
  CHECK(contains(refusal(jpeg.substr(0, 20)), "a damaged JPEG"));
  CHECK(contains(refusal(png_of(1).substr(0, 30)), "PNG"));
  CHECK(contains(refusal("GIF89a"), "neither a JPEG nor a PNG"));
  CHECK(contains(refusal(""), "neither a JPEG nor a PNG"));
  // What a camera may write wrong in a scan's header is not damage: the end of its spectrum.
  const std::vector<int> whole = pixels_of(decode_image(bytes_of(jpeg), pixels));
  std::string camera = jpeg;
  const auto scan = camera.find("\xff\xda");
  REQUIRE(scan != std::string::npos);
  const std::size_t end = scan + 6 + 2 * static_cast<unsigned char>(camera[scan + 4]);
  REQUIRE(camera[end] == 63);
  camera[end] = 0;
  CHECK(pixels_of(decode_image(bytes_of(camera), pixels)) == whole);
  // A header that promises 30000x30000 pixels.
  std::string huge = jpeg;
  const auto frame = huge.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  huge.replace(frame + 5, 4, "\x75\x30\x75\x30");
  CHECK(contains(refusal(huge), "30000x30000 pixels is too large"));
}

namespace {

// A picture of one colour in four inks, inverted as Adobe writes them. Without an error handler of
// its own: libjpeg ends the program, and the test with it.
std::vector<std::byte> ink_jpeg(const std::array<std::uint8_t, 4>& inks, J_COLOR_SPACE space) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = 20;
  info.image_height = 12;
  info.input_components = 4;
  info.in_color_space = JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, space);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  std::vector<std::uint8_t> row;
  for (int i = 0; i < 20; ++i) row.insert(row.end(), inks.begin(), inks.end());
  while (info.next_scanline < info.image_height) {
    JSAMPROW rows[1] = {row.data()};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(out);
  std::vector<std::byte> bytes(begin, begin + size);
  std::free(out);
  return bytes;
}

}  // namespace

TEST_CASE("a JPEG in CMYK or YCCK is RGB when it is decoded, of Pillow's values") {
  for (const J_COLOR_SPACE space : {JCS_CMYK, JCS_YCCK}) {
    CAPTURE(space);
    const auto bytes = ink_jpeg({200, 100, 50, 180}, space);
    std::vector<std::uint8_t> pixels;
    const ImageView image = decode_image(bytes, pixels);
    CHECK(image.channels == 3);
    CHECK(image.rows == 12);
    CHECK(image.columns == 20);
    // Pillow 13: Image.open(...).convert("RGB").
    const std::array<int, 3> expected{141, 71, 35};
    for (const std::int64_t at : {0, 19, 11 * 20, 12 * 20 - 1}) {
      for (std::int64_t c = 0; c < 3; ++c) {
        CHECK(std::abs(image.pixels[at * 3 + c] - expected[static_cast<std::size_t>(c)]) <= 2);
      }
    }
    CHECK(decode_image(bytes, pixels, 6).rows == 6);
    // Cut off, it is damaged as any other is.
    const auto half = std::span(bytes).first(bytes.size() / 2);
    CHECK(contains(message_of<Error>([&] { decode_image(half, pixels); }), "a damaged JPEG"));
  }
}

namespace {

struct PngForm {
  int depth = 8;
  int type = PNG_COLOR_TYPE_RGB;
  png_fixed_point gamma = 0;  // 0: no gAMA chunk
  int interlace = PNG_INTERLACE_NONE;
};

// Rows of bytes as they are in the file. libpng ends the program where it finds an error.
std::string png_file(png_uint_32 columns, std::vector<std::vector<std::uint8_t>> rows,
                     const PngForm& form) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string file;
  png_set_write_fn(
      png, &file,
      [](png_structp from, png_bytep bytes, std::size_t size) {
        static_cast<std::string*>(png_get_io_ptr(from))
            ->append(reinterpret_cast<const char*>(bytes), size);
      },
      nullptr);
  png_set_IHDR(png, info, columns, static_cast<png_uint_32>(rows.size()), form.depth, form.type,
               form.interlace, PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
  if (form.gamma > 0) png_set_gAMA_fixed(png, info, form.gamma);
  png_write_info(png, info);
  std::vector<png_bytep> pointers;
  for (std::vector<std::uint8_t>& row : rows) pointers.push_back(row.data());
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

}  // namespace

TEST_CASE("a PNG's values are those in the file, whatever is said about their gamma") {
  std::vector<std::uint8_t> pixels;
  const auto values_of = [&](const std::string& file) {
    return pixels_of(decode_image(bytes_of(file), pixels));
  };
  using Values = std::vector<int>;
  for (const png_fixed_point gamma : {0, 45455, 55556, 100000}) {
    CAPTURE(gamma);
    CHECK(values_of(png_file(1, {{64, 100, 200}}, {.gamma = gamma})) == Values{64, 100, 200});
    const PngForm grey{.type = PNG_COLOR_TYPE_GRAY, .gamma = gamma};
    CHECK(values_of(png_file(1, {{64}}, grey)) == Values{64, 64, 64});
    // Of 16 bits the upper 8.
    const PngForm deep{.depth = 16, .gamma = gamma};
    CHECK(values_of(png_file(1, {{64, 64, 100, 0, 200, 255}}, deep)) == Values{64, 100, 200});
    // Half of it over black, as light of sRGB.
    const PngForm alpha{.type = PNG_COLOR_TYPE_RGB_ALPHA, .gamma = gamma};
    CHECK(values_of(png_file(1, {{200, 200, 0, 128}}, alpha)) == Values{146, 146, 0});
    CHECK(values_of(png_file(1, {{200, 100, 1, 255}}, alpha)) == Values{200, 100, 1});
    CHECK(values_of(png_file(1, {{200, 100, 1, 0}}, alpha)) == Values{0, 0, 0});
  }
  // Fewer bits, and rows that come in several passes.
  const PngForm bits{.depth = 1, .type = PNG_COLOR_TYPE_GRAY};
  CHECK(values_of(png_file(2, {{0x80}}, bits)) == Values{255, 0, 255, 0, 255, 0});
  std::vector<std::vector<std::uint8_t>> rows;
  for (std::uint8_t row = 0; row < 11; ++row) {
    rows.emplace_back();
    for (std::uint8_t i = 0; i < 3 * 9; ++i) {
      rows.back().push_back(static_cast<std::uint8_t>(row * 20 + i));
    }
  }
  CHECK(values_of(png_file(9, rows, {.interlace = PNG_INTERLACE_ADAM7})) ==
        values_of(png_file(9, rows, {})));
}

TEST_CASE("shards: what is written is read, by index") {
  const TemporaryFolder folder;
  const Synthetic what{.samples = 25, .classes = 4, .rows = 8, .columns = 8};
  write_shards(folder.path(), what, ImageFile::png, 10);
  CHECK(detect_format(folder.path()) == DataFormat::shards);
  const ShardIndex index = read_shard_index(folder.path());
  REQUIRE(index.shards.size() == 3);
  CHECK(index.shards[2].samples == 5);
  check_same(*open_images(folder.path(), Split::train), what, as_made);
  // With room for one open shard, from the last sample to the first.
  const Images images = open_shards(folder.path(), 1);
  for (std::int64_t i = 24; i >= 0; --i) CHECK(images->label(i) == i % 4);
}

TEST_CASE("the headers of a shard are read once, though it is closed and opened again") {
  const TemporaryFolder folder;
  const Synthetic what{.samples = 20, .classes = 4, .rows = 8, .columns = 8};
  write_shards(folder.path(), what, ImageFile::png, 10);
  const Images images = open_shards(folder.path(), 1);
  CHECK(images->label(3) == 3);
  CHECK(images->label(13) == 1);  // the first one is closed
  const auto path = folder / read_shard_index(folder.path()).shards[0].file;
  std::string content = test::read_file(path);
  content.replace(0, 512, std::string(512, '?'));
  test::write_file(path, content);
  CHECK(images->label(3) == 3);
  CHECK_FALSE(message_of<Error>([&] { open_shards(folder.path())->label(3); }).empty());
  test::write_file(path, content + "more");
  CHECK(images->label(13) == 1);
  CHECK(contains(message_of<Error>([&] { images->label(3); }), "another size"));
}

TEST_CASE("a shard that is made shorter while it is open is an error, and not the process's end") {
  const TemporaryFolder folder;
  write_shards(folder.path(), {.samples = 4, .rows = 8, .columns = 8}, ImageFile::png, 10);
  const Images images = open_shards(folder.path());
  std::vector<std::uint8_t> scratch;
  images->image(1, scratch);
  const auto path = folder / read_shard_index(folder.path()).shards[0].file;
  std::filesystem::resize_file(path, 0);
  CHECK(contains(message_of<Error>([&] { images->image(1, scratch); }), path.string() + ": ends"));
  CHECK(contains(message_of<Error>([&] { images->label(1); }), path.string() + ": ends"));
}

TEST_CASE("shards of others: folders, long names, further members") {
  const TemporaryFolder folder;
  const std::string deep = std::string(120, 'd') + "/" + std::string(90, 'k');
  write_tar(folder / "a.tar", {{"sub", "/"},
                               {"sub/one.png", png_of(7)},
                               {"sub/one.cls", "1\n"},
                               {"sub/one.depth.png", png_of(200)},
                               {"sub/one.seg.json", "{}"},
                               {deep + ".cls", "0"},
                               {deep + ".PNG", png_of(9)}});
  CHECK(contains(message_of<Error>([&] { open_shards(folder.path()); }), "shards.json"));
  write_shard_index(folder.path(), {"cat", "dog"});
  const Images images = open_shards(folder.path());
  REQUIRE(images->size() == 2);
  CHECK(images->label(0) == 1);
  CHECK(images->label(1) == 0);
  CHECK(pixels_of(*images, 0) == std::vector<int>(12, 7));
  CHECK(pixels_of(*images, 1) == std::vector<int>(12, 9));
  CHECK(images->classes() == std::vector<std::string>{"cat", "dog"});
  CHECK(write_shard_index(folder.path()).classes.size() == 2);  // kept
  const TarShard shard(folder / "a.tar");
  CHECK(shard.key(0) == "sub/one");
  CHECK(shard.members(0).size() == 4);
  CHECK(shard.members(0).contains("seg.json"));
}

namespace {

// One header of a tar file and what belongs to it.
std::string tar_member(const std::string& name, char type, const std::string& content) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  const auto octal = [](std::size_t value, int digits) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%0*zo", digits, value);
    return std::string(text.data());
  };
  put(0, name);
  put(100, "0000644");
  put(124, octal(content.size(), 11));
  put(136, octal(0, 11));
  put(148, "        ");
  put(156, std::string(1, type));
  put(257, std::string("ustar\00000", 8));
  std::size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

}  // namespace

TEST_CASE("a shard of Python's tarfile: names that are not ASCII") {
  const TemporaryFolder folder;
  const auto member = [](const std::string& name, const std::string& content) {
    const std::string record = " path=" + name + "\n";
    const std::size_t length = record.size() + 2;  // with its own two digits
    return tar_member("PaxHeader", 'x', std::to_string(length) + record) +
           tar_member("short", '0', content);
  };
  test::write_file(folder / "a.tar", member("grün/öl.png", png_of(3)) + member("grün/öl.cls", "1") +
                                         std::string(1024, '\0'));
  write_shard_index(folder.path());
  const Images images = open_shards(folder.path());
  REQUIRE(images->size() == 1);
  CHECK(images->label(0) == 1);
  CHECK(pixels_of(*images, 0) == std::vector<int>(12, 3));
  CHECK(TarShard(folder / "a.tar").key(0) == "grün/öl");
}

TEST_CASE("shards that are not as they should be are refused with the place") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::pair<std::string, std::string>>& members) {
    write_tar(folder / "a.tar", members);
    return message_of<Error>([&] {
      write_shard_index(folder.path(), {"cat", "dog"});
      const Images images = open_shards(folder.path());
      std::vector<std::uint8_t> scratch;
      for (std::int64_t i = 0; i < images->size(); ++i) {
        images->image(i, scratch);
        images->label(i);
      }
    });
  };
  CHECK(refusal({{"x.png", png_of(1)}, {"x.cls", "1"}}).empty());
  CHECK(contains(refusal({{"x.png", png_of(1)}, {"x.cls", "2"}}),
                 "a.tar, sample 'x': its class is 2 of 2"));
  CHECK(contains(refusal({{"x.png", png_of(1)}, {"x.cls", "-1"}}), "not the number of a class"));
  CHECK(contains(refusal({{"x.png", png_of(1)}}), "has no cls"));
  CHECK(contains(refusal({{"x.cls", "1"}}), "has no image"));
  CHECK(contains(refusal({{"x.seg.png", png_of(1)}, {"x.cls", "1"}}), "has no image"));
  CHECK(contains(refusal({{"x.png", png_of(1)}, {"x.JPG", "a"}, {"x.cls", "1"}}),
                 "a.tar, sample 'x': has two images, JPG and png"));
  CHECK(contains(refusal({{"x.png", "nothing"}, {"x.cls", "1"}}), "neither a JPEG nor a PNG"));
  CHECK(contains(refusal({{"x.png", "a"}, {"x.png", "b"}}), "'x.png' is there twice"));
  CHECK(contains(refusal({{"Makefile", "a"}}), "has no ending"));

  write_tar(folder / "a.tar", {{"x.png", png_of(1)}, {"x.cls", "1"}}, /*gzip=*/true);
  CHECK(contains(message_of<Error>([&] { TarShard(folder / "a.tar"); }), "not a plain tar"));
  const std::string large(5000, 'x');
  write_tar(folder / "a.tar", {{"x.png", large}});
  test::write_file(folder / "a.tar", test::read_file(folder / "a.tar").substr(0, 2048));
  CHECK_FALSE(message_of<Error>([&] { TarShard(folder / "a.tar"); }).empty());

  write_tar(folder / "a.tar", {{"x.png", png_of(1)}, {"x.cls", "1"}});
  write_shard_index(folder.path());
  write_tar(folder / "a.tar", {{"x.png", large}, {"x.cls", "1"}});
  CHECK(contains(message_of<Error>([&] { open_shards(folder.path()); }), "another size"));
  test::write_file(folder / "shards.json",
                   R"({"format":"dtrain-shards","version":1,"classes":[],)"
                   R"("shards":[{"file":"../a.tar","size":1,"samples":1}]})");
  CHECK(contains(message_of<Error>([&] { open_shards(folder.path()); }), "cannot be a shard"));
}

TEST_CASE("made images are a function of seed and index, and a folder of nothing is no data set") {
  const Images a = make_images({.samples = 20, .seed = 5});
  const Images b = make_images({.samples = 10, .seed = 5});
  CHECK(pixels_of(*a, 7) == pixels_of(*b, 7));
  CHECK(pixels_of(*a, 7) != pixels_of(*make_images({.samples = 20, .seed = 6}), 7));
  CHECK(first_images(a, 3)->size() == 3);
  const TemporaryFolder folder;
  CHECK_FALSE(detect_format(folder.path()).has_value());
  CHECK(contains(message_of<Error>([&] { open_images(folder.path(), Split::train); }),
                 "no data set is found"));
}
