#pragma once

#include <set>
#include <string>

#include "launcher/core/files.hpp"

namespace dtrain::cli {

// Which files without a sum are in a folder to which jobs are pulled, and of which job: size and
// path alone would take another job's log for this one's. Kept in a file there; one that is missing
// or tells of another job means that none is. All throw Error.
class PulledLogs {
 public:
  PulledLogs(fs::path folder, std::string job);

  // That file, whole as it was when it was pulled, is this job's.
  bool has(const std::string& path) const { return paths_.contains(path); }
  // Before the first of this job gets its name: none of another job counts any more.
  void begin();
  // These have their names.
  void add(const std::set<std::string>& paths);

  static constexpr const char* kName = ".dtrain-pulled";

 private:
  void save() const;

  fs::path folder_;
  std::string job_;
  bool is_ours_ = false;  // what the file there tells of
  std::set<std::string> paths_;
};

}  // namespace dtrain::cli
