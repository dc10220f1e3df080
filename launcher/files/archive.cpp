#include "launcher/files/archive.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <charconv>
#include <new>

#include "launcher/core/error.hpp"

namespace dtrain {
namespace {

struct ::archive* archive_of(void* archive) {
  return static_cast<struct ::archive*>(archive);
}
archive_entry* entry_of(void* entry) {
  return static_cast<archive_entry*>(entry);
}

std::optional<ArchiveName> name_from(std::string_view text) {
  ArchiveName name;
  const char* end = text.data() + text.size();
  const auto mount = std::from_chars(text.data(), end, name.mount);
  if (mount.ec != std::errc() || mount.ptr == end || *mount.ptr != '.') return std::nullopt;
  const auto entry = std::from_chars(mount.ptr + 1, end, name.entry);
  if (entry.ec != std::errc() || entry.ptr != end) return std::nullopt;
  return name;
}

}  // namespace

ArchiveWriter::ArchiveWriter(std::function<void(std::string_view)> sink)
    : sink_(std::move(sink)), archive_(archive_write_new()), entry_(archive_entry_new()) {
  if (archive_ == nullptr || entry_ == nullptr) throw std::bad_alloc();
  struct ::archive* archive = archive_of(archive_);
  archive_write_set_format_pax_restricted(archive);
  archive_write_add_filter_none(archive);
  archive_write_set_bytes_per_block(archive, 0);  // what is written goes on at once
  check(archive_write_open(
      archive, this, nullptr,
      [](struct ::archive* a, void* self, const void* bytes, std::size_t size) -> la_ssize_t {
        return give(a, self, bytes, size);
      },
      nullptr));
}

ArchiveWriter::~ArchiveWriter() {
  archive_entry_free(entry_of(entry_));
  // One that was not finished stays so: the end that the library writes now goes nowhere. (After
  // archive_write_fail it would not give back all of its memory.)
  dropped_ = true;
  archive_write_free(archive_of(archive_));
}

long ArchiveWriter::give(void* archive, void* self, const void* bytes, std::size_t size) {
  auto& writer = *static_cast<ArchiveWriter*>(self);
  if (writer.dropped_) return static_cast<long>(size);
  try {
    if (!writer.failure_) writer.sink_({static_cast<const char*>(bytes), size});
    if (!writer.failure_) return static_cast<long>(size);
  } catch (...) {  // not through the library's frames, which are C
    writer.failure_ = std::current_exception();
  }
  archive_set_error(archive_of(archive), EIO, "the archive's reader failed");
  return -1;
}

void ArchiveWriter::check(long result) {
  if (failure_) std::rethrow_exception(failure_);
  if (result >= 0) return;
  const char* text = archive_error_string(archive_of(archive_));
  throw Error(ErrorCode::internal,
              std::string("cannot write an archive: ") + (text != nullptr ? text : "no reason"));
}

void ArchiveWriter::begin(ArchiveName name, std::uint64_t size, const Extents* data) {
  archive_entry* entry = entry_of(entry_);
  archive_entry_clear(entry);
  const std::string text = std::to_string(name.mount) + "." + std::to_string(name.entry);
  archive_entry_set_pathname(entry, text.c_str());
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0600);
  archive_entry_set_size(entry, static_cast<la_int64_t>(size));
  if (data != nullptr) {
    for (const auto& [offset, length] : *data) {
      archive_entry_sparse_add_entry(entry, static_cast<la_int64_t>(offset),
                                     static_cast<la_int64_t>(length));
    }
    // A file that is one hole: a part of no length at its end says so.
    if (data->empty()) archive_entry_sparse_add_entry(entry, static_cast<la_int64_t>(size), 0);
  }
  check(archive_write_header(archive_of(archive_), entry));
}

void ArchiveWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const la_ssize_t wrote = archive_write_data(archive_of(archive_), bytes.data(), bytes.size());
    check(wrote);
    if (wrote == 0) throw Error(ErrorCode::internal, "a file is longer than its archive entry");
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

void ArchiveWriter::finish() {
  check(archive_write_close(archive_of(archive_)));
}

ArchiveReader::ArchiveReader(std::function<std::string_view()> source)
    : source_(std::move(source)), archive_(archive_read_new()) {
  if (archive_ == nullptr) throw std::bad_alloc();
  struct ::archive* archive = archive_of(archive_);
  archive_read_support_format_tar(archive);
  if (archive_read_open(
          archive, this, nullptr,
          [](struct ::archive* a, void* self, const void** bytes) -> la_ssize_t {
            return take(a, self, bytes);
          },
          nullptr) != ARCHIVE_OK) {
    // A constructor that throws leaves what it made.
    const std::exception_ptr failure = failure_;
    archive_read_free(archive);
    if (failure) std::rethrow_exception(failure);
    throw Error(ErrorCode::invalid, "the other side sends no archive");
  }
}

ArchiveReader::~ArchiveReader() {
  archive_read_free(archive_of(archive_));
}

long ArchiveReader::take(void* archive, void* self, const void** bytes) {
  auto& reader = *static_cast<ArchiveReader*>(self);
  try {
    if (!reader.failure_) {
      const std::string_view piece = reader.source_();
      *bytes = piece.data();
      return static_cast<long>(piece.size());
    }
  } catch (...) {  // not through the library's frames, which are C
    reader.failure_ = std::current_exception();
  }
  archive_set_error(archive_of(archive), EIO, "the archive's source failed");
  return -1;
}

void ArchiveReader::damaged(const char* how) const {
  throw Error(ErrorCode::invalid, std::string("the archive is damaged: ") + how);
}

void ArchiveReader::rethrow() {
  if (failure_) std::rethrow_exception(failure_);
}

std::optional<ArchiveReader::File> ArchiveReader::next() {
  archive_entry* entry = nullptr;
  const int result = archive_read_next_header(archive_of(archive_), &entry);
  rethrow();
  if (result == ARCHIVE_EOF) return std::nullopt;
  if (result != ARCHIVE_OK) damaged("no header where one should be");
  const char* path = archive_entry_pathname(entry);
  const auto name = name_from(path != nullptr ? path : "");
  if (!name) damaged("a file's name is not of our kind");
  if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
      archive_entry_symlink(entry) != nullptr || archive_entry_size_is_set(entry) == 0) {
    damaged("it holds something that is no file");
  }
  const la_int64_t size = archive_entry_size(entry);
  if (size < 0) damaged("a size below zero");
  size_ = static_cast<std::uint64_t>(size);
  offset_ = 0;
  return File{*name, size_};
}

std::optional<ArchiveReader::Piece> ArchiveReader::piece() {
  while (true) {
    const void* bytes = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    const int result = archive_read_data_block(archive_of(archive_), &bytes, &size, &offset);
    rethrow();
    if (result == ARCHIVE_EOF) return std::nullopt;
    if (result != ARCHIVE_OK) damaged("a file ends early");
    if (size == 0) continue;
    const auto at = static_cast<std::uint64_t>(offset);
    if (offset < 0 || at < offset_ || at > size_ || size > size_ - at) {
      damaged("a piece lies outside of its file");
    }
    offset_ = at + size;
    return Piece{at, {static_cast<const char*>(bytes), size}};
  }
}

}  // namespace dtrain
