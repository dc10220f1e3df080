#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/files.hpp"

// Tensors in the safetensors format, as bytes: https://huggingface.co/docs/safetensors. Nothing
// here knows LibTorch; trainer/train/tensors.hpp makes tensors of it.
namespace dtrain::train {

enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
};

std::string_view to_string(DType dtype);  // "F32"
std::optional<DType> dtype_from(std::string_view name);
std::size_t size_of(DType dtype);  // bytes of one element

// One tensor of a file: where its bytes lie within the file's data, checked.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// A file opened for reading, its data mapped. The whole header is checked when it is opened: its
// size, JSON, names, types, shapes, and that the tensors cover the data exactly, without gap or
// overlap. Anything else throws Error with the file and the reason; a file from a stranger can do
// no more harm than that. A file that another process truncates while it is mapped raises SIGBUS.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;  // nullptr if there is none
  // Valid as long as this object lives. Aligned to the element's size only if the writer did so.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::uint64_t data_begin_ = 0;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to write: contiguous bytes, row-major, little-endian.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes header and tensors into `sink` (which the caller finishes). Larger elements come first,
// so that every tensor is aligned; among equals by name, so that equal content gives equal files.
// Throws Error on a name given twice, "__metadata__", or bytes that do not fit the shape. `between`
// is called before each piece of at most kWritePiece bytes: it may throw, to give the file up.
inline constexpr std::size_t kWritePiece = std::size_t{16} << 20;
void write_safetensors(FileSink& sink, std::vector<TensorSource> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       const std::function<void()>& between = {});

}  // namespace dtrain::train
