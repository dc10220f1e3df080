#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/core/sha256.hpp"

namespace dtrain::train {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// open(2) with O_CLOEXEC. Throws Error that names the path.
FileDescriptor open_file(const std::filesystem::path& path, int flags, unsigned mode = 0644);

// Writes one new file from its beginning, and sums it on the way. finish() makes it durable; a
// sink that is destroyed without it leaves a file that nobody may rely on.
class FileSink {
 public:
  // Throws Error when the file exists already.
  explicit FileSink(std::filesystem::path path);

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  void finish();  // fsync and close

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  const std::string& sha256() const { return sha256_; }  // after finish()

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  Sha256 sum_;
  std::uint64_t size_ = 0;
  std::string sha256_;
};

// Replaces `path` as a whole: a temporary beside it, fsync, rename. Readers see the old content
// or the new one.
void write_atomically(const std::filesystem::path& path, std::string_view content);

// fsync of a folder: makes the names in it durable. The second form is for one that is opened,
// which others may have moved meanwhile; `folder` is for the error.
void sync_folder(const std::filesystem::path& folder);
void sync_folder(const FileDescriptor& opened, const std::filesystem::path& folder);

// The whole file, at most `limit` bytes: a larger one is an Error, as is one that cannot be read.
std::string read_text(const std::filesystem::path& path, std::size_t limit);

// Of a regular file. Throws Error, with the path, if it is none.
std::uint64_t size_of(const FileDescriptor& file, const std::filesystem::path& path);

// The bytes of a file from `offset` on, as many as there is room for. Throws Error that names the
// path where it cannot be read, and where it ends before.
void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> bytes,
             const std::filesystem::path& path);

// The whole file into `bytes`, whose memory may serve for several. Throws Error as read_text does.
void read_bytes(const std::filesystem::path& path, std::size_t limit,
                std::vector<std::byte>& bytes);

// A file mapped read-only into memory for as long as the object lives. Where the medium fails, or
// the file is made shorter, the process ends by SIGBUS: for what may be anywhere there is
// read_bytes.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace dtrain::train
