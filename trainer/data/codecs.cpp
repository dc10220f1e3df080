#include "trainer/data/codecs.hpp"

#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it before
#include <cstdlib>
#include <cstring>

extern "C" {
#include <jerror.h>
#include <jpeglib.h>
}

namespace dtrain::train {
namespace {

struct Size {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

enum class Outcome : std::uint8_t { fine, damaged, too_large };

// libjpeg reports by leaving through longjmp: between setjmp and that, nothing that has a
// destructor may come to life.
struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf leave;
  char message[JMSG_LENGTH_MAX];
};

void on_jpeg_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->leave, 1);
}

// Damage that libjpeg would paint over in grey is an error too: nobody should train on it. What
// cameras do wrong without harm is not.
void on_jpeg_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM &&
      code != JWRN_JFIF_MAJOR && code != JWRN_NOT_SEQUENTIAL) {
    on_jpeg_error(info);
  }
}

// A progressive file may have any number of scans, each of which costs a pass over the image.
void on_jpeg_progress(j_common_ptr info) {
  constexpr int kMostScans = 500;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMostScans) {
    ERREXIT(info, JERR_BAD_PROGRESSION);
  }
}

jpeg_error_mgr* prepare(JpegErrors& errors) {
  jpeg_error_mgr* base = jpeg_std_error(&errors.base);
  base->error_exit = on_jpeg_error;
  base->emit_message = on_jpeg_message;
  return base;
}

// `ink` and `black` are inverted: 255 is none of it. Pillow's rounding, so that its pixels and ours
// are the same.
std::uint8_t rgb_of(unsigned ink, unsigned black) {
  const unsigned product = (255 - ink) * black + 128;
  return static_cast<std::uint8_t>(black - ((product + (product >> 8)) >> 8));
}

// A row from 4 bytes a pixel to 3, in place.
void cmyk_to_rgb(std::uint8_t* row, std::int64_t columns) {
  for (std::int64_t i = 0; i < columns; ++i) {
    const std::uint8_t* from = row + 4 * i;
    const std::uint8_t black = from[3];
    const std::uint8_t rgb[3] = {rgb_of(from[0], black), rgb_of(from[1], black),
                                 rgb_of(from[2], black)};
    std::memcpy(row + 3 * i, rgb, sizeof rgb);
  }
}

Outcome decode_jpeg(std::span<const std::byte> bytes, std::vector<std::uint8_t>& pixels,
                    std::int64_t least, JpegErrors& errors, Size& size) {
  jpeg_decompress_struct info;
  info.err = prepare(errors);
  if (setjmp(errors.leave) != 0) {
    jpeg_destroy_decompress(&info);
    return Outcome::damaged;
  }
  jpeg_create_decompress(&info);
  jpeg_progress_mgr progress{};
  progress.progress_monitor = on_jpeg_progress;
  info.progress = &progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  size = {info.image_height, info.image_width};
  if (size.rows * size.columns > kMostPixels) {
    jpeg_destroy_decompress(&info);
    return Outcome::too_large;
  }
  // libjpeg makes CMYK of both, and nothing else.
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = 1;
  while (least > 0 && info.scale_denom < 8 &&
         std::min(size.rows, size.columns) / (2 * static_cast<std::int64_t>(info.scale_denom)) >=
             least) {
    info.scale_denom *= 2;
  }
  jpeg_start_decompress(&info);
  size = {info.output_height, info.output_width};
  const std::size_t row = static_cast<std::size_t>(info.output_width) * 3;
  // The last rows of CMYK reach behind the last ones of RGB until they are converted.
  pixels.resize(row * info.output_height + (inks ? 4 * std::size_t{info.output_width} : 0));
  while (info.output_scanline < info.output_height) {
    JSAMPROW rows[4];
    const unsigned left = info.output_height - info.output_scanline;
    const unsigned count = inks ? 1 : left < 4 ? left : 4;
    for (unsigned i = 0; i < count; ++i) {
      rows[i] = pixels.data() + (info.output_scanline + i) * row;
    }
    jpeg_read_scanlines(&info, rows, count);
    if (inks) cmyk_to_rgb(rows[0], info.output_width);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return Outcome::fine;
}

// libpng leaves through longjmp as well: what it needs outlives that.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : left(bytes) {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info = png == nullptr ? nullptr : png_create_info_struct(png);
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png, this, read);
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> left;
  std::jmp_buf leave{};
  char message[128] = {};

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->message, sizeof reader->message, "%s", message);
    std::longjmp(reader->leave, 1);
  }
  static void on_warning(png_structp /*png*/, png_const_charp /*message*/) {}
  static void read(png_structp png, png_bytep to, std::size_t size) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (size > reader->left.size()) png_error(png, "it ends too early");
    std::memcpy(to, reader->left.data(), size);
    reader->left = reader->left.subspan(size);
  }
};

// Values come as they are in the file, of 16 bits the upper 8, whatever a gAMA chunk or a profile
// says about them. Transparent parts are laid on black, all taken as sRGB.
Outcome decode_png(PngReader& reader, std::vector<std::uint8_t>& pixels, Size& size) {
  if (setjmp(reader.leave) != 0) return Outcome::damaged;
  png_structp png = reader.png;
  // Chunks that no pixel is made of are passed over.
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, reader.info);
  size = {png_get_image_height(png, reader.info), png_get_image_width(png, reader.info)};
  if (size.rows * size.columns > kMostPixels) return Outcome::too_large;
  png_set_gamma_fixed(png, PNG_DEFAULT_sRGB, PNG_DEFAULT_sRGB);
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  const png_color_16 black{};
  png_set_background_fixed(png, &black, PNG_BACKGROUND_GAMMA_SCREEN, 0, 0);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  const std::size_t row = static_cast<std::size_t>(size.columns) * 3;
  if (png_get_rowbytes(png, reader.info) != row) png_error(png, "not of three channels");
  pixels.resize(row * static_cast<std::size_t>(size.rows));
  for (int pass = 0; pass < passes; ++pass) {
    for (std::int64_t i = 0; i < size.rows; ++i) {
      png_read_row(png, pixels.data() + static_cast<std::size_t>(i) * row, nullptr);
    }
  }
  return Outcome::fine;
}

ImageView view_of(Outcome outcome, const std::vector<std::uint8_t>& pixels, const Size& size,
                  const char* format, const char* message) {
  switch (outcome) {
    case Outcome::fine:
      break;
    case Outcome::damaged:
      throw Error(std::string("a damaged ") + format + ": " + message);
    case Outcome::too_large:
      throw Error("an image of " + std::to_string(size.rows) + "x" + std::to_string(size.columns) +
                  " pixels is too large");
  }
  return ImageView::interleaved(pixels.data(), 3, size.rows, size.columns);
}

// Pixel after pixel, whatever the view's strides.
std::vector<std::uint8_t> interleave(const ImageView& image) {
  if (image.channels != 1 && image.channels != 3) {
    throw Error("an image of " + std::to_string(image.channels) + " channels cannot be encoded");
  }
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(image.rows * image.columns * image.channels));
  for (std::int64_t row = 0; row < image.rows; ++row) {
    for (std::int64_t column = 0; column < image.columns; ++column) {
      for (std::int64_t channel = 0; channel < image.channels; ++channel) {
        pixels.push_back(image.pixels[channel * image.channel_stride + row * image.row_stride +
                                      column * image.column_stride]);
      }
    }
  }
  return pixels;
}

bool write_jpeg(const std::uint8_t* pixels, const ImageView& image, int quality, JpegErrors& errors,
                unsigned char** out, unsigned long* size) {
  jpeg_compress_struct info;
  info.err = prepare(errors);
  if (setjmp(errors.leave) != 0) {
    jpeg_destroy_compress(&info);
    return false;
  }
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, out, size);
  info.image_width = static_cast<JDIMENSION>(image.columns);
  info.image_height = static_cast<JDIMENSION>(image.rows);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row =
        const_cast<std::uint8_t*>(pixels) + info.next_scanline * image.columns * image.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  return true;
}

}  // namespace

ImageView decode_image(std::span<const std::byte> bytes, std::vector<std::uint8_t>& pixels,
                       std::int64_t least) {
  constexpr std::uint8_t kPng[] = {0x89, 'P', 'N', 'G'};
  constexpr std::uint8_t kJpeg[] = {0xff, 0xd8, 0xff};
  Size size;
  if (bytes.size() > sizeof kPng && std::memcmp(bytes.data(), kPng, sizeof kPng) == 0) {
    PngReader reader(bytes);
    return view_of(decode_png(reader, pixels, size), pixels, size, "PNG", reader.message);
  }
  if (bytes.size() <= sizeof kJpeg || std::memcmp(bytes.data(), kJpeg, sizeof kJpeg) != 0) {
    throw Error("neither a JPEG nor a PNG");
  }
  JpegErrors errors{};
  return view_of(decode_jpeg(bytes, pixels, least, errors, size), pixels, size, "JPEG",
                 errors.message);
}

std::vector<std::byte> encode_png(const ImageView& view) {
  const std::vector<std::uint8_t> pixels = interleave(view);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(view.columns);
  image.height = static_cast<png_uint_32>(view.rows);
  image.format = view.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::byte> bytes(size);
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr) == 0) {
    throw Error(std::string("cannot encode a PNG: ") + image.message);
  }
  bytes.resize(size);
  return bytes;
}

std::vector<std::byte> encode_jpeg(const ImageView& image, int quality) {
  const std::vector<std::uint8_t> pixels = interleave(image);
  JpegErrors errors{};
  unsigned char* out = nullptr;
  unsigned long size = 0;
  const bool fine = write_jpeg(pixels.data(), image, quality, errors, &out, &size);
  std::vector<std::byte> bytes;
  if (fine) {
    const auto* begin = reinterpret_cast<const std::byte*>(out);
    bytes.assign(begin, begin + size);
  }
  std::free(out);
  if (!fine) throw Error(std::string("cannot encode a JPEG: ") + errors.message);
  return bytes;
}

bool is_image_ending(std::string ending) {
  for (char& c : ending) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  return ending == "jpg" || ending == "jpeg" || ending == "png";
}

bool has_image_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot != std::string::npos && is_image_ending(name.substr(dot + 1));
}

}  // namespace dtrain::train
