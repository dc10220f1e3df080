#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>

#include <unordered_set>

#include "trainer/core/files.hpp"
#include "trainer/data/shards.hpp"

namespace dtrain::train {
namespace {

constexpr std::size_t kMostMembers = 1 << 22;
constexpr std::size_t kBlock = 64 << 10;

struct CloseArchive {
  void operator()(archive* a) const { archive_read_free(a); }
};

struct Member {
  std::string ending;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
};

struct Sample {
  std::string key;
  std::vector<Member> members;
};

}  // namespace

struct TarShard::State {
  std::filesystem::path path;
  MappedFile file;
  std::vector<Sample> samples;

  explicit State(const std::filesystem::path& from) : path(from), file(from) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(path.string() + ": " + why);
  }

  void add(const std::string& name, std::uint64_t begin, std::uint64_t size) {
    const auto slash = name.rfind('/');
    const auto dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
    if (dot == std::string::npos || dot + 1 == name.size()) {
      refuse("member '" + name + "' has no ending");
    }
    const std::string key = name.substr(0, dot);
    if (samples.empty() || samples.back().key != key) samples.push_back({key, {}});
    Sample& sample = samples.back();
    const std::string ending = name.substr(dot + 1);
    for (const Member& other : sample.members) {
      if (other.ending == ending) refuse("member '" + name + "' is there twice");
    }
    sample.members.push_back({ending, begin, size});
  }
};

TarShard::TarShard(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  State& state = *state_;
  const std::span<const std::byte> bytes = state.file.bytes();
  const std::unique_ptr<archive, CloseArchive> tar(archive_read_new());
  if (!tar) state.refuse("out of memory");
  archive_read_support_format_tar(tar.get());  // and no filter: what is compressed is refused
  if (archive_read_open_memory(tar.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    state.refuse("not a plain tar file: " + std::string(archive_error_string(tar.get())));
  }
  archive_entry* entry = nullptr;
  for (std::size_t members = 0;; ++members) {
    const int got = archive_read_next_header(tar.get(), &entry);
    if (got == ARCHIVE_EOF) break;
    if (got != ARCHIVE_OK) {
      const char* why = archive_error_string(tar.get());
      state.refuse("not a plain tar file: " + std::string(why == nullptr ? "unknown" : why));
    }
    if (members >= kMostMembers) state.refuse("has too many members");
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr ||
        archive_entry_sparse_count(entry) > 0) {
      continue;
    }
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) state.refuse("a member has no name that can be read");
    // The reader takes a header and what extends it exactly, so this is where the data begins.
    const auto begin = static_cast<std::uint64_t>(archive_filter_bytes(tar.get(), 0));
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (begin > bytes.size() || size > bytes.size() - begin) {
      state.refuse("member '" + std::string(name) + "' goes beyond the end of the file");
    }
    state.add(name, begin, size);
  }
}

TarShard::~TarShard() = default;

std::int64_t TarShard::samples() const {
  return static_cast<std::int64_t>(state_->samples.size());
}

const std::string& TarShard::key(std::int64_t sample) const {
  return state_->samples.at(static_cast<std::size_t>(sample)).key;
}

std::map<std::string, std::span<const std::byte>> TarShard::members(std::int64_t sample) const {
  std::map<std::string, std::span<const std::byte>> members;
  for (const Member& member : state_->samples.at(static_cast<std::size_t>(sample)).members) {
    members.emplace(member.ending, state_->file.bytes().subspan(member.begin, member.size));
  }
  return members;
}

}  // namespace dtrain::train
