#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>

#include "trainer/core/files.hpp"
#include "trainer/data/shards.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostMembers = 1 << 22;
constexpr std::size_t kBlock = 16384;  // read at once for a header; data are skipped

struct CloseArchive {
  void operator()(archive* a) const { archive_read_free(a); }
};

}  // namespace

// Flat arrays, since all shards of a set may be held: a million samples of two members take some 75
// MB.
class TarIndex {
 public:
  struct Member {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    std::uint32_t ending = 0;  // in endings_
  };

  explicit TarIndex(std::filesystem::path path) : path_(std::move(path)) {}
  void read(const FileDescriptor& file, std::uint64_t size);

  std::uint64_t file_size() const { return file_size_; }
  std::size_t samples() const { return ends_.size(); }
  std::string key(std::size_t sample) const {
    const std::size_t begin = sample == 0 ? 0 : ends_.at(sample - 1).key;
    return keys_.substr(begin, ends_.at(sample).key - begin);
  }
  std::span<const Member> members(std::size_t sample) const {
    const std::size_t begin = sample == 0 ? 0 : ends_.at(sample - 1).member;
    return std::span(members_).subspan(begin, ends_.at(sample).member - begin);
  }
  const std::string& ending(const Member& member) const { return endings_[member.ending]; }

 private:
  struct Ends {  // of a sample's part in the arrays
    std::uint64_t key = 0;
    std::uint64_t member = 0;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(path_.string() + ": " + why);
  }
  void add(const std::string& name, std::uint64_t begin, std::uint64_t size);
  std::uint32_t number_of(const std::string& ending);

  const std::filesystem::path path_;
  std::uint64_t file_size_ = 0;
  std::string keys_;
  std::vector<Member> members_;
  std::vector<Ends> ends_;
  std::vector<std::string> endings_;
  std::map<std::string, std::uint32_t> ending_numbers_;
};

std::uint32_t TarIndex::number_of(const std::string& ending) {
  const auto [at, is_new] =
      ending_numbers_.emplace(ending, static_cast<std::uint32_t>(endings_.size()));
  if (is_new) endings_.push_back(ending);
  return at->second;
}

void TarIndex::add(const std::string& name, std::uint64_t begin, std::uint64_t size) {
  const auto slash = name.rfind('/');
  const auto dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos || dot + 1 == name.size()) {
    refuse("member '" + name + "' has no ending");
  }
  const std::string sample = name.substr(0, dot);
  if (ends_.empty() || key(ends_.size() - 1) != sample) {
    keys_ += sample;
    ends_.push_back({keys_.size(), members_.size()});
  }
  const std::uint32_t ending = number_of(name.substr(dot + 1));
  for (const Member& other : members(ends_.size() - 1)) {
    if (other.ending == ending) refuse("member '" + name + "' is there twice");
  }
  members_.push_back({begin, size, ending});
  ends_.back().member = members_.size();
}

void TarIndex::read(const FileDescriptor& file, std::uint64_t file_size) {
  file_size_ = file_size;
  const std::unique_ptr<archive, CloseArchive> tar(archive_read_new());
  if (!tar) refuse("out of memory");
  archive_read_support_format_tar(tar.get());  // and no filter: what is compressed is refused
  if (archive_read_open_fd(tar.get(), file.get(), kBlock) != ARCHIVE_OK) {
    refuse("not a plain tar file: " + std::string(archive_error_string(tar.get())));
  }
  archive_entry* entry = nullptr;
  for (std::size_t members = 0;; ++members) {
    const int got = archive_read_next_header(tar.get(), &entry);
    if (got == ARCHIVE_EOF) break;
    // A warning is of a header that was read: in the C locale, that a name is not ASCII.
    if (got != ARCHIVE_OK && got != ARCHIVE_WARN) {
      const char* why = archive_error_string(tar.get());
      refuse("not a plain tar file: " + std::string(why == nullptr ? "unknown" : why));
    }
    if (members >= kMostMembers) refuse("has too many members");
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
        archive_entry_sparse_count(entry) > 0) {
      continue;
    }
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) refuse("a member has no name that can be read");
    // The reader takes a header and what extends it exactly, so this is where the data begins.
    const auto begin = static_cast<std::uint64_t>(archive_filter_bytes(tar.get(), 0));
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (begin > file_size_ || size > file_size_ - begin) {
      refuse("member '" + std::string(name) + "' goes beyond the end of the file");
    }
    add(name, begin, size);
  }
  members_.shrink_to_fit();
  ends_.shrink_to_fit();
  keys_.shrink_to_fit();
}

struct TarShard::State {
  explicit State(std::filesystem::path its_path)
      : path(std::move(its_path)), file(open_file(path, O_RDONLY)), size(size_of(file, path)) {}
  std::filesystem::path path;
  FileDescriptor file;
  std::uint64_t size;
  std::shared_ptr<const TarIndex> index;
};

TarShard::TarShard(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  const auto index = std::make_shared<TarIndex>(path);
  index->read(state_->file, state_->size);
  state_->index = index;
}

TarShard::TarShard(const std::filesystem::path& path, std::shared_ptr<const TarIndex> index)
    : state_(std::make_unique<State>(path)) {
  if (state_->size != index->file_size()) {
    throw Error(path.string() + ": has another size than when its headers were read");
  }
  state_->index = std::move(index);
}

TarShard::~TarShard() = default;

std::int64_t TarShard::samples() const {
  return static_cast<std::int64_t>(state_->index->samples());
}

std::string TarShard::key(std::int64_t sample) const {
  return state_->index->key(static_cast<std::size_t>(sample));
}

std::map<std::string, TarShard::Member> TarShard::members(std::int64_t sample) const {
  std::map<std::string, Member> members;
  for (const TarIndex::Member& member : state_->index->members(static_cast<std::size_t>(sample))) {
    members.emplace(state_->index->ending(member), Member{member.begin, member.size});
  }
  return members;
}

void TarShard::read(const Member& member, std::size_t limit, std::vector<std::byte>& bytes) const {
  if (member.size > limit) {
    throw Error("has a member of " + std::to_string(member.size) + " bytes, " +
                std::to_string(limit) + " are allowed");
  }
  bytes.resize(member.size);
  read_at(state_->file, member.begin, bytes, state_->path);
}

const std::shared_ptr<const TarIndex>& TarShard::index() const {
  return state_->index;
}

}  // namespace dtrain::train
