#include "trainer/data/cifar.hpp"

#include <sstream>

#include "trainer/core/files.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kPixels = std::size_t{3} * 32 * 32;
constexpr std::size_t kMostBytes = std::size_t{8} << 30;
constexpr std::size_t kLargestNames = 1 << 20;

struct Kind {
  const char* folder;  // that the archive unpacks to
  std::vector<std::string> train;
  std::vector<std::string> test;
  const char* names;
  std::size_t labels;  // bytes of labels before the pixels; the last one counts
  std::int64_t classes;
};

Kind kind_of(CifarKind kind) {
  if (kind == CifarKind::cifar10) {
    return {"cifar-10-batches-bin",
            {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
             "data_batch_5.bin"},
            {"test_batch.bin"},
            "batches.meta.txt",
            1,
            10};
  }
  return {"cifar-100-binary", {"train.bin"}, {"test.bin"}, "fine_label_names.txt", 2, 100};
}

std::vector<std::string> read_names(const fs::path& path, std::int64_t classes) {
  std::vector<std::string> names;
  if (!fs::exists(path)) return names;
  std::istringstream in(read_text(path, kLargestNames));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<std::int64_t>(names.size()) != classes) {
    throw Error(path.string() + ": expected the names of " + std::to_string(classes) +
                " classes, found " + std::to_string(names.size()));
  }
  return names;
}

void append(MemoryImages::Content& content, const fs::path& path, const Kind& kind) {
  std::vector<std::byte> bytes;
  read_bytes(path, kMostBytes, bytes);
  const std::size_t record = kind.labels + kPixels;
  if (bytes.empty() || bytes.size() % record != 0) {
    throw Error(path.string() + ": expected whole records of " + std::to_string(record) +
                " bytes, found " + std::to_string(bytes.size()) + " bytes");
  }
  if (bytes.size() + content.pixels.size() > kMostBytes) {
    throw Error(path.string() + ": larger than what is allowed here");
  }
  const std::size_t count = bytes.size() / record;
  content.pixels.reserve(content.pixels.size() + count * kPixels);
  content.labels.reserve(content.labels.size() + count);
  const auto* at = reinterpret_cast<const std::uint8_t*>(bytes.data());
  for (std::size_t i = 0; i < count; ++i, at += record) {
    const std::uint8_t label = at[kind.labels - 1];
    if (label >= kind.classes) {
      throw Error(path.string() + ": at offset " + std::to_string(i * record + kind.labels - 1) +
                  ": expected a label below " + std::to_string(kind.classes) + ", found " +
                  std::to_string(label));
    }
    content.labels.push_back(label);
    content.pixels.insert(content.pixels.end(), at + kind.labels, at + record);
  }
}

}  // namespace

fs::path find_cifar(const fs::path& folder, CifarKind which) {
  const Kind kind = kind_of(which);
  for (const fs::path& path : {folder, folder / kind.folder}) {
    std::error_code ignored;
    if (fs::exists(path / kind.train.front(), ignored)) return path;
  }
  return {};
}

Images read_cifar(const fs::path& folder, CifarKind which, Split split) {
  const Kind kind = kind_of(which);
  const fs::path found = find_cifar(folder, which);
  if (found.empty()) throw Error("cannot find " + kind.train.front() + " in " + folder.string());
  MemoryImages::Content content;
  content.name = found.string();
  content.channels = 3;
  content.rows = content.columns = 32;
  content.class_count = kind.classes;
  content.classes = read_names(found / kind.names, kind.classes);
  for (const std::string& name : split == Split::train ? kind.train : kind.test) {
    append(content, found / name, kind);
  }
  return std::make_shared<MemoryImages>(std::move(content));
}

}  // namespace dtrain::train
