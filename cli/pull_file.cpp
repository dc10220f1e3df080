#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "cli/pull.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/sha256.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kNameFiles = 1000;
constexpr std::uint64_t kNameBytes = std::uint64_t{64} << 20;

std::optional<std::uint64_t> size_of(const fs::path& file) {
  struct stat status {};
  if (::lstat(file.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

// The first `bytes` of a file.
void add_file(Sha256& sum, const fs::path& path, std::uint64_t bytes) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  std::array<char, 65536> piece;
  while (bytes > 0) {
    const ssize_t got =
        ::read(fd.get(), piece.data(), std::min<std::uint64_t>(bytes, piece.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read " + path.string(), errno);
    if (got == 0) return;
    sum.add({piece.data(), static_cast<std::size_t>(got)});
    bytes -= static_cast<std::uint64_t>(got);
  }
}

void fsync_or_throw(const fs::path& path, bool whole_file_system) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  if ((whole_file_system ? ::syncfs(fd.get()) : ::fsync(fd.get())) != 0) {
    throw errno_error("cannot write " + path.string(), errno);
  }
}

std::string gap_line(std::uint64_t bytes) {
  return missing_mark(bytes, kReleasedReason) + "\n";
}

}  // namespace

fs::path safe_below(const fs::path& folder, const std::string& relative) {
  if (!is_plain_relative_path(relative)) {
    throw Error(ErrorCode::denied,
                "the head names a file outside of the job: " + printable(relative, false));
  }
  return folder / relative;
}

struct Incoming::Writing {
  UniqueFd fd;
  Sha256 sum;
  char last = '\n';  // byte that was written
};

Incoming::Incoming(RemoteFile file, fs::path target, std::string job)
    : file_(std::move(file)), target_(std::move(target)), job_(std::move(job)) {
  offset_ = size_of(part()).value_or(0);
  // Which part of a file with a hole that is, is not known.
  if (offset_ > file_.size || file_.released > 0) offset_ = file_.released;
}
Incoming::~Incoming() = default;
Incoming::Incoming(Incoming&&) noexcept = default;
Incoming& Incoming::operator=(Incoming&&) noexcept = default;

fs::path Incoming::part() const {
  return target_.string() + (file_.sha256 || job_.empty() ? "" : "." + job_) + ".part";
}

bool Incoming::already_here() const {
  if (file_.released > 0) {
    const std::string line = gap_line(file_.released);
    if (size_of(target_) != line.size() + file_.size - file_.released) return false;
    const UniqueFd fd = open_file(target_, O_RDONLY);
    std::string there(line.size(), '\0');
    return ::pread(fd.get(), there.data(), there.size(), 0) == static_cast<ssize_t>(line.size()) &&
           there == line;
  }
  if (size_of(target_) != file_.size) return false;
  if (!file_.sha256) return true;
  return sum_file(target_).sha256 == *file_.sha256;
}

void Incoming::open() {
  std::error_code failed;
  fs::create_directories(target_.parent_path(), failed);
  if (failed) throw errno_error("cannot make " + target_.parent_path().string(), failed.value());
  auto writing = std::make_unique<Writing>();
  if (file_.sha256 && offset_ > 0) add_file(writing->sum, part(), offset_);
  const bool anew = how() == Pulled::whole;
  writing->fd = open_file(part(), O_RDWR | O_CREAT | O_NOFOLLOW | (anew ? O_TRUNC : 0), 0644);
  position_ = offset_;
  released_ = 0;
  if (!anew) {
    const auto behind = static_cast<off_t>(offset_);
    if (::lseek(writing->fd.get(), behind, SEEK_SET) < 0 ||
        ::pread(writing->fd.get(), &writing->last, 1, behind - 1) != 1) {
      throw errno_error("cannot seek in " + part().string(), errno);
    }
  }
  writing_ = std::move(writing);
  if (file_.released > 0) {
    position_ = 0;
    gap(file_.released);
  }
}

void Incoming::take(std::string_view bytes) {
  if (!writing_) open();
  write_all(writing_->fd.get(), bytes);
  if (file_.sha256) writing_->sum.add(bytes);
  if (!bytes.empty()) writing_->last = bytes.back();
  position_ += bytes.size();
}

void Incoming::gap(std::uint64_t bytes) {
  if (!writing_) open();
  write_all(writing_->fd.get(), (writing_->last == '\n' ? "" : "\n") + gap_line(bytes));
  writing_->last = '\n';
  position_ += bytes;
  released_ += bytes;
}

bool Incoming::whole() {
  if (!writing_) open();
  const std::unique_ptr<Writing> written = std::move(writing_);
  const std::uint64_t size = size_of(part()).value_or(0);
  // A log may have grown since it was listed.
  if (!file_.sha256) return position_ >= file_.size;
  return size == file_.size && written->sum.hex() == *file_.sha256;
}

void Incoming::start_over() {
  writing_.reset();
  offset_ = file_.released;
}

bool Arrivals::add(const Incoming& file) {
  waiting_.push_back({file.part(), file.target()});
  bytes_ += file.file().size;
  return waiting_.size() >= kNameFiles || bytes_ >= kNameBytes;
}

void Arrivals::name_all() {
  // Whatever fails: the kernel tells of what it could not write only once.
  const std::vector<Arrival> waiting = std::exchange(waiting_, {});
  bytes_ = 0;
  std::set<dev_t> disks;
  std::set<fs::path> folders;
  for (const Arrival& each : waiting) {
    struct stat status {};
    if (::lstat(each.part.c_str(), &status) != 0) {
      throw errno_error("cannot look at " + each.part.string(), errno);
    }
    if (disks.insert(status.st_dev).second || waiting.size() == 1) {
      fsync_or_throw(each.part, waiting.size() > 1);
    }
  }
  for (const Arrival& each : waiting) {
    if (::rename(each.part.c_str(), each.target.c_str()) != 0) {
      throw errno_error("cannot rename " + each.part.string(), errno);
    }
    folders.insert(each.target.parent_path());
  }
  for (const fs::path& folder : folders) fsync_folder(folder.empty() ? "." : folder);
}

}  // namespace dtrain::cli
