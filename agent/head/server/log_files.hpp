#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launcher/core/files.hpp"

namespace dtrain::head {

// Logs that are open for reading. All who read a file share its descriptor, so that many followers
// of many ranks need no more of them than one follower does. For one thread; outlives what it gave.
class LogFiles {
 public:
  class File {
   public:
    ~File();
    int fd() const { return fd_.get(); }

   private:
    friend class LogFiles;
    File(LogFiles& owner, std::string path, UniqueFd fd);
    LogFiles& owner_;
    std::string path_;
    UniqueFd fd_;
  };
  using FilePtr = std::shared_ptr<const File>;

  // Absent when there is no such file. Throws Error for every other reason, with the path.
  FilePtr open(const fs::path& path);
  // Whether a file may be kept open between reads. With half of the process's descriptors in use
  // here it may not: then it is opened for each read.
  bool room() const;

 private:
  std::map<std::string, std::weak_ptr<const File>> files_;  // those that live
};

// Where the last `lines` lines of a file begin; `first`, before which nothing is read, when there
// are no more behind it. Throws Error.
std::uint64_t tail_offset(int fd, int lines, std::uint64_t first = 0);

}  // namespace dtrain::head
