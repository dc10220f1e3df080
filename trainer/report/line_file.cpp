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

void LineFile::begin() {
  std::error_code error;
  if (is_rewritable() && fs::exists(path_) && fs::file_size(path_, error) > 0) {
    for (int i = 1;; ++i) {
      fs::path aside = path_;
      aside.replace_filename(path_.stem().string() + "." + std::to_string(i) +
                             path_.extension().string());
      if (fs::exists(aside)) continue;
      fs::rename(path_, aside);
      break;
    }
  }
  open();
}

std::vector<std::string> LineFile::resume() {
  std::vector<std::string> lines;
  if (!is_rewritable()) {
    open();
    return lines;
  }
  std::ifstream in(path_, std::ios::binary);
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
  const std::string text = line + "\n";
  const ::off_t before = ::lseek(file_.get(), 0, SEEK_END);
  const ::ssize_t put = ::write(file_.get(), text.data(), text.size());
  if (put == static_cast<::ssize_t>(text.size())) return;
  const int error = put < 0 ? errno : ENOSPC;
  // The next line must not begin behind half of this one.
  if (put > 0 && before >= 0 && ::ftruncate(file_.get(), before) != 0) file_.reset();
  throw errno_error("cannot write " + path_.string(), error);
}

}  // namespace dtrain::train
