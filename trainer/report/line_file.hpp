#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/core/files.hpp"

namespace dtrain::train {

// Writes all of it at the file's end, or nothing: what comes next must not lie behind half of it.
// Throws Error with the path.
void append_whole(int file, const std::string& bytes, const std::filesystem::path& path);

// A text file that grows by lines, and that a resume may shorten. Readers may follow it: a line
// comes by one write. Everything throws Error with the path.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }
  // False for what can only be written to: a pipe, /dev/stdout. Nothing of it is read or replaced.
  bool is_rewritable() const;

  // A new file. One that is there is kept as NAME.1.EXT, NAME.2.EXT, …: returns its new name
  // without the extension, empty if there was none.
  std::string begin();
  // Goes on with the file that is there, or with a new one. Returns its lines, without the piece of
  // one that a crash has left at its end.
  std::vector<std::string> resume();
  // The whole content, at once: a reader sees the old lines or the new ones.
  void replace(const std::vector<std::string>& lines);
  void append(const std::string& line);  // without its newline

 private:
  void open();

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace dtrain::train
