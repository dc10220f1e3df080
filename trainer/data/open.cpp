#include "trainer/data/open.hpp"

#include <algorithm>

#include "trainer/data/codecs.hpp"
#include "trainer/data/idx.hpp"
#include "trainer/data/image_folder.hpp"
#include "trainer/data/shards.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Where the training split of an image folder or of shards lies.
fs::path train_folder(const fs::path& folder) {
  return is_folder(folder / "train") ? folder / "train" : folder;
}

template <typename Matches>
bool any_entry(const fs::path& folder, const Matches& matches) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (matches(entry)) return true;
  }
  return false;
}

bool has_shards(const fs::path& folder) {
  return any_entry(folder, [](const auto& entry) { return entry.path().extension() == ".tar"; });
}

bool has_classes(const fs::path& folder) {
  return any_entry(folder, [](const auto& entry) {
    return entry.is_directory() && any_entry(entry.path(), [](const auto& file) {
             return has_image_name(file.path().filename().string()) || file.is_directory();
           });
  });
}

// Whether a split is labelled as train/ is: test/ of a contest's data is often pictures alone.
bool is_labelled(const fs::path& folder, const fs::path& train, DataFormat format) {
  if (format == DataFormat::shards) return has_shards(folder);
  const std::vector<std::string> classes = class_folders(train);
  const std::vector<std::string> own = class_folders(folder);
  return !own.empty() && std::includes(classes.begin(), classes.end(), own.begin(), own.end());
}

// Where the test split of an image folder or of shards lies: in test/, but in val/ where only that
// may be labelled; empty if neither is there.
fs::path test_folder(const fs::path& folder, DataFormat format) {
  const fs::path train = folder / "train";
  if (!is_folder(train)) return {};
  const fs::path test = folder / "test";
  const fs::path val = folder / "val";
  if (!is_folder(val)) return is_folder(test) ? test : fs::path();
  return is_folder(test) && is_labelled(test, train, format) ? test : val;
}

}  // namespace

std::string to_string(DataFormat format) {
  switch (format) {
    case DataFormat::idx:
      return "IDX";
    case DataFormat::cifar10:
      return "CIFAR-10";
    case DataFormat::cifar100:
      return "CIFAR-100";
    case DataFormat::shards:
      return "tar shards";
    case DataFormat::image_folder:
      break;
  }
  return "image folder";
}

std::optional<DataFormat> detect_format(const fs::path& folder) {
  if (has_mnist(folder)) return DataFormat::idx;
  if (!find_cifar(folder, CifarKind::cifar10).empty()) return DataFormat::cifar10;
  if (!find_cifar(folder, CifarKind::cifar100).empty()) return DataFormat::cifar100;
  const fs::path train = train_folder(folder);
  if (has_shards(train)) return DataFormat::shards;
  if (has_classes(train)) return DataFormat::image_folder;
  return std::nullopt;
}

bool has_test_split(const fs::path& folder, DataFormat format) {
  switch (format) {
    case DataFormat::idx:
      return true;
    case DataFormat::cifar10:
      return fs::exists(find_cifar(folder, CifarKind::cifar10) / "test_batch.bin");
    case DataFormat::cifar100:
      return fs::exists(find_cifar(folder, CifarKind::cifar100) / "test.bin");
    case DataFormat::shards:
    case DataFormat::image_folder:
      break;
  }
  return !test_folder(folder, format).empty();
}

Images open_images(const fs::path& folder, DataFormat format, Split split) {
  switch (format) {
    case DataFormat::idx:
      return as_image_source(std::make_shared<const LabelledImages>(
          read_mnist(folder, split == Split::train ? MnistSplit::train : MnistSplit::test)));
    case DataFormat::cifar10:
      return read_cifar(folder, CifarKind::cifar10, split);
    case DataFormat::cifar100:
      return read_cifar(folder, CifarKind::cifar100, split);
    case DataFormat::shards:
    case DataFormat::image_folder:
      break;
  }
  const bool tests = split == Split::test;
  const fs::path train = train_folder(folder);
  const fs::path place = tests ? test_folder(folder, format) : train;
  if (place.empty()) throw Error(folder.string() + ": has no test or val folder beside train");
  if (format == DataFormat::shards) return open_shards(place);
  return tests ? open_image_folder(place, class_folders(train)) : open_image_folder(place);
}

Images open_images(const fs::path& folder, Split split) {
  const auto format = detect_format(folder);
  if (!format) {
    throw Error(folder.string() +
                ": no data set is found there: neither IDX nor CIFAR files, tar shards, nor a "
                "folder of images for each class");
  }
  return open_images(folder, *format, split);
}

}  // namespace dtrain::train
