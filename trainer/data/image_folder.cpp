#include "trainer/data/image_folder.hpp"

#include <algorithm>

#include "trainer/core/files.hpp"
#include "trainer/data/codecs.hpp"

namespace dtrain::train {
namespace fs = std::filesystem;
namespace {

class ImageFolder : public ImageSource {
 public:
  explicit ImageFolder(const fs::path& folder) : folder_(folder) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_directory() && !name.starts_with(".")) classes_.push_back(name);
    }
    if (error) throw Error("cannot read " + folder.string() + ": " + error.message());
    if (classes_.empty()) throw Error(folder.string() + ": has no folder for a class");
    std::sort(classes_.begin(), classes_.end());
    for (std::size_t label = 0; label < classes_.size(); ++label) add(label);
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
      const MappedFile mapped(path);
      return decode_image(mapped.bytes(), scratch, least);
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

Images open_image_folder(const fs::path& folder) {
  return std::make_shared<ImageFolder>(folder);
}

}  // namespace dtrain::train
