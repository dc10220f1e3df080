#include "trainer/checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "trainer/checkpoint/safetensors_header.hpp"
#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

constexpr std::uint64_t kLongestHeader = 100'000'000;  // as the format's own library has it
constexpr std::size_t kLengthBytes = 8;

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 15> kDTypes{{
    {DType::boolean, "BOOL", 1},
    {DType::u8, "U8", 1},
    {DType::i8, "I8", 1},
    {DType::f8_e4m3, "F8_E4M3", 1},
    {DType::f8_e5m2, "F8_E5M2", 1},
    {DType::i16, "I16", 2},
    {DType::u16, "U16", 2},
    {DType::f16, "F16", 2},
    {DType::bf16, "BF16", 2},
    {DType::i32, "I32", 4},
    {DType::u32, "U32", 4},
    {DType::f32, "F32", 4},
    {DType::i64, "I64", 8},
    {DType::u64, "U64", 8},
    {DType::f64, "F64", 8},
}};

// Bytes of a tensor, or nullopt if they do not fit 64 bits.
std::optional<std::uint64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

}  // namespace

std::string_view to_string(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

std::optional<DType> dtype_from(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::size_t size_of(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.size;
  }
  return 1;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(path.string() + ": not a valid safetensors file: " + reason);
  };
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    refuse(std::to_string(bytes.size()) + " bytes, too short for the header's length");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  if (length > kLongestHeader) {
    refuse("a header of " + std::to_string(length) + " bytes, more than the " +
           std::to_string(kLongestHeader) + " that are allowed");
  }
  if (length > bytes.size() - kLengthBytes) {
    refuse("a header of " + std::to_string(length) + " bytes in a file of " +
           std::to_string(bytes.size()));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (header.empty() || header.front() != '{') refuse("the header does not begin with '{'");
  data_begin_ = kLengthBytes + length;
  const std::uint64_t data_size = bytes.size() - data_begin_;

  try {
    SafetensorsHeader parsed = parse_safetensors_header(header);
    tensors_ = std::move(parsed.tensors);
    metadata_ = std::move(parsed.metadata);
  } catch (const Error& error) {
    refuse(error.what());
  }

  std::stable_sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& entry : tensors_) {
    const std::string name = "tensor '" + entry.name + "'";
    if (entry.end < entry.begin || entry.end > data_size) {
      refuse(name + ": offsets " + std::to_string(entry.begin) + " to " +
             std::to_string(entry.end) + " are not within the " + std::to_string(data_size) +
             " bytes of data");
    }
    const std::optional<std::uint64_t> size = bytes_of(entry.dtype, entry.shape);
    if (!size || *size != entry.end - entry.begin) {
      refuse(name + ": its shape needs " + (size ? std::to_string(*size) : "too many") +
             " bytes, its offsets give " + std::to_string(entry.end - entry.begin));
    }
    if (entry.begin != covered) {
      refuse(name +
             (entry.begin < covered ? ": overlaps the tensor before it at offset "
                                    : ": leaves a gap before it, from offset ") +
             std::to_string(std::min(entry.begin, covered)));
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    refuse("tensors take " + std::to_string(covered) + " bytes of data, the file has " +
           std::to_string(data_size));
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(data_begin_ + entry.begin, entry.end - entry.begin);
}

void write_safetensors(FileSink& sink, std::vector<TensorSource> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void()>& between) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const std::size_t left = size_of(a.dtype);
    const std::size_t right = size_of(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    const auto refuse = [&](const std::string& reason) {
      throw Error("cannot write " + sink.path().string() + ": tensor '" + tensor.name + "' " +
                  reason);
    };
    if (tensor.name == "__metadata__") refuse("has a reserved name");
    if (header.contains(tensor.name)) refuse("is given twice");
    if (bytes_of(tensor.dtype, tensor.shape) != tensor.bytes.size()) {
      refuse("has " + std::to_string(tensor.bytes.size()) + " bytes, which do not fit its shape");
    }
    const std::uint64_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", to_string(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data begins aligned
  if (text.size() > kLongestHeader) {
    throw Error("cannot write " + sink.path().string() + ": too many tensors for one header");
  }
  std::array<std::byte, kLengthBytes> length{};
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length[i] = static_cast<std::byte>(text.size() >> (8 * i) & 0xff);
  }
  sink.write(length);
  sink.write(text);
  for (const TensorSource& tensor : tensors) {
    for (std::size_t at = 0; at < tensor.bytes.size(); at += kWritePiece) {
      if (between) between();
      sink.write(tensor.bytes.subspan(at, std::min(kWritePiece, tensor.bytes.size() - at)));
    }
  }
}

}  // namespace dtrain::train
