#include "trainer/report/line_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "trainer/core/error.hpp"

namespace dtrain::train {

namespace fs = std::filesystem;

void LineFile::open() {
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path());
  file_ = open_file(path_, O_WRONLY | O_CREAT | O_APPEND);
}

bool LineFile::is_rewritable() const {
  std::error_code error;
  return !fs::exists(path_, error) || fs::is_regular_file(path_, error);
}

std::string LineFile::begin() {
  std::error_code error;
  std::string kept;
  if (is_rewritable() && fs::exists(path_) && fs::file_size(path_, error) > 0) {
    for (int i = 1;; ++i) {
      kept = path_.stem().string() + "." + std::to_string(i);
      fs::path aside = path_;
      aside.replace_filename(kept + path_.extension().string());
      if (fs::exists(aside)) continue;
      fs::rename(path_, aside);
      break;
    }
  }
  open();
  return kept;
}

std::vector<std::string> LineFile::resume() {
  std::vector<std::string> lines;
  if (!is_rewritable()) {
    open();
    return lines;
  }
  std::ifstream in(path_, std::ios::binary);
  if (!in.is_open() && errno != ENOENT) throw errno_error("cannot read " + path_.string(), errno);
  for (std::string line; std::getline(in, line);) {
    if (!in.eof()) lines.push_back(line);  // else its newline is missing
  }
  if (in.bad()) throw errno_error("cannot read " + path_.string(), errno);
  open();
  return lines;
}

void LineFile::replace(const std::vector<std::string>& lines) {
  if (!is_rewritable()) return;
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  file_.reset();
  write_atomically(path_, text);
  open();
}

void LineFile::append(const std::string& line) {
  if (!file_.valid()) open();
  append_whole(file_.get(), line + "\n", path_);
}

void append_whole(int file, const std::string& bytes, const fs::path& path) {
  const ::off_t before = ::lseek(file, 0, SEEK_END);
  const ::ssize_t put = ::write(file, bytes.data(), bytes.size());
  if (put == static_cast<::ssize_t>(bytes.size())) return;
  const int error = put < 0 ? errno : ENOSPC;
  if (put > 0 && before >= 0 && ::ftruncate(file, before) != 0) {
    throw errno_error("cannot take half a record back from " + path.string(), errno);
  }
  throw errno_error("cannot write " + path.string(), error);
}

}  // namespace dtrain::train
