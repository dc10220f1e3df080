#include "trainer/data/image_folder.hpp"

#include <algorithm>

#include "trainer/core/files.hpp"
#include "trainer/data/codecs.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

class ImageFolder : public ImageSource {
 public:
  ImageFolder(const fs::path& folder, std::vector<std::string> classes)
      : folder_(folder), classes_(std::move(classes)) {
    const std::vector<std::string> own = class_folders(folder);
    if (own.empty()) throw Error(folder.string() + ": has no folder for a class");
    if (classes_.empty()) classes_ = own;
    for (const std::string& name : own) {
      const auto at = std::lower_bound(classes_.begin(), classes_.end(), name);
      if (at == classes_.end() || *at != name) {
        throw Error(folder.string() + ": '" + name + "' is not one of the training's classes");
      }
      add(static_cast<std::size_t>(at - classes_.begin()));
    }
  }

  std::string name() const override { return folder_.string(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int64_t class_count() const override { return static_cast<std::int64_t>(classes_.size()); }

  ImageView image(std::int64_t index, std::vector<std::uint8_t>& scratch,
                  std::int64_t least) const override {
    const File& file = files_[static_cast<std::size_t>(index)];
    const fs::path path = folder_ / classes_[file.label] / file.name;
    try {
      thread_local std::vector<std::byte> bytes;
      read_bytes(path, kMostImageBytes, bytes);
      return decode_image(bytes, scratch, least);
    } catch (const Error& failed) {
      throw Error(path.string() + ": " + failed.what());
    }
  }
  std::int64_t label(std::int64_t index) const override {
    return static_cast<std::int64_t>(files_[static_cast<std::size_t>(index)].label);
  }

 private:
  struct File {
    std::size_t label = 0;
    std::string name;  // relative to the class
  };

  void add(std::size_t label) {
    const fs::path folder = folder_ / classes_[label];
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!has_image_name(entry.path().filename().string()) || !entry.is_regular_file()) continue;
      names.push_back(entry.path().lexically_relative(folder).string());
    }
    if (names.empty()) throw Error(folder.string() + ": has no JPEG or PNG file");
    std::sort(names.begin(), names.end());
    for (std::string& name : names) files_.push_back({label, std::move(name)});
  }

  fs::path folder_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

}  // namespace

std::vector<std::string> class_folders(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with(".")) names.push_back(name);
  }
  if (error) throw Error("cannot read " + folder.string() + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

Images open_image_folder(const fs::path& folder, std::vector<std::string> classes) {
  return std::make_shared<ImageFolder>(folder, std::move(classes));
}

}  // namespace dtrain::train
