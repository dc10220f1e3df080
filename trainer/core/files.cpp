#include "trainer/core/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw errno_error("cannot write " + path.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

FileDescriptor open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) throw errno_error("cannot open " + path.string(), errno);
  return FileDescriptor(fd);
}

FileSink::FileSink(std::filesystem::path path)
    : path_(std::move(path)), file_(open_file(path_, O_WRONLY | O_CREAT | O_EXCL)) {}

void FileSink::write(std::span<const std::byte> bytes) {
  write_all(file_.get(), bytes, path_);
  sum_.update(bytes);
  size_ += bytes.size();
}

void FileSink::write(std::string_view text) {
  write(bytes_of(text));
}

void FileSink::finish() {
  if (::fsync(file_.get()) != 0) throw errno_error("cannot fsync " + path_.string(), errno);
  file_.reset();
  sha256_ = sum_.finish();
}

void write_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    const FileDescriptor file = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(file.get(), bytes_of(content), temporary);
    if (::fsync(file.get()) != 0) throw errno_error("cannot fsync " + temporary.string(), errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    throw errno_error("cannot rename " + temporary.string() + " to " + path.string(), errno);
  }
}

void sync_folder(const std::filesystem::path& folder) {
  sync_folder(open_file(folder, O_RDONLY | O_DIRECTORY), folder);
}

void sync_folder(const FileDescriptor& opened, const std::filesystem::path& folder) {
  // Some network file systems do not know fsync of a folder: EINVAL there is no failure.
  if (::fsync(opened.get()) != 0 && errno != EINVAL) {
    throw errno_error("cannot fsync " + folder.string(), errno);
  }
}

namespace {

[[noreturn]] void refuse_size(const std::filesystem::path& path, std::size_t limit) {
  throw Error(path.string() + ": larger than the " + std::to_string(limit) +
              " bytes that are allowed here");
}

}  // namespace

std::string read_text(const std::filesystem::path& path, std::size_t limit) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path.string(), errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > limit) refuse_size(path, limit);
  }
}

std::uint64_t size_of(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw errno_error("cannot stat " + path.string(), errno);
  if (!S_ISREG(status.st_mode)) throw Error(path.string() + ": not a regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> bytes,
             const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path.string(), errno);
    if (got == 0) {
      throw Error(path.string() + ": ends at byte " + std::to_string(offset) + ", " +
                  std::to_string(bytes.size()) + " more were expected");
    }
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

void read_bytes(const std::filesystem::path& path, std::size_t limit,
                std::vector<std::byte>& bytes) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  const std::uint64_t size = size_of(file, path);
  if (size > limit) refuse_size(path, limit);
  bytes.resize(size);
  read_at(file, 0, bytes, path);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  size_ = size_of(file, path);
  if (size_ == 0) return;
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (at == MAP_FAILED) throw errno_error("cannot map " + path.string(), errno);
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace dtrain::train
