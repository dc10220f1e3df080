#pragma once

#include <optional>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/files/sealed.hpp"

namespace dtrain::sync {

// An archive's blocks that came by another way than the stream: a sealed file in `folder`, which
// is gone as soon as it is opened. Error(invalid) for a name that is none, where there is no
// folder, and for what the key does not open.
class ParcelFile {
 public:
  ParcelFile(const fs::path& folder, const std::string& name, const std::string& hex_key);
  ParcelFile(const ParcelFile&) = delete;
  ParcelFile& operator=(const ParcelFile&) = delete;

  std::optional<std::string> next() { return blocks_.next(); }

 private:
  void read(char* to, std::size_t size) const;

  UniqueFd file_;
  Unsealer blocks_;
};

}  // namespace dtrain::sync
