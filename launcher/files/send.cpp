#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/archive.hpp"
#include "launcher/files/beneath.hpp"
#include "launcher/files/blocks.hpp"
#include "launcher/files/file_facts.hpp"
#include "launcher/files/parcel.hpp"
#include "launcher/files/scan.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/files/sync_wire.hpp"

namespace dtrain {

using namespace sync;

namespace {

constexpr int kReadTries = 3;
constexpr std::uint64_t kSparseFrom = 64 << 10;  // bytes: smaller files are not looked at for holes
constexpr std::uint64_t kMeasuredFrom = 1 << 20;  // bytes: what a larger one takes is asked for

struct Source {
  const SyncMount* mount = nullptr;
  Scan scan;
  std::unique_ptr<Beneath> files;  // null for a single file

  fs::path shown(std::uint32_t entry) const {
    return scan.tree.single ? mount->source : mount->source / scan.tree.entries[entry].path;
  }
  UniqueFd open(std::uint32_t entry) {
    if (scan.tree.single) return open_file(mount->source, O_RDONLY);
    return files->open(scan.tree.entries[entry].path, O_RDONLY);
  }
};

// Reads what is wanted into an archive and cuts that into blocks, on a thread of its own.
class Reader {
 public:
  Reader(std::vector<Source>& sources, BoundedQueue<std::string>& blocks, SyncProgress progress,
         const SyncWatcher& watch)
      : sources_(sources),
        blocks_(blocks),
        progress_(progress),
        watch_(watch),
        buffer_(kBlockSize, '\0'),
        zeros_(kBlockSize, '\0'),
        archive_([this](std::string_view bytes) { take(bytes); }) {
    fresh();
  }

  void run(const std::vector<EntryName>& wanted) {
    for (const EntryName& name : wanted) {
      if (!read(name)) changing_.push_back(name);
      ++progress_.files;
      watch(false);
    }
    archive_.finish();
    if (block_.size() > 1) blocks_.push(std::move(block_));
    blocks_.close();
    watch(true);
  }

  // After the end.
  const std::vector<EntryName>& changing() const noexcept { return changing_; }

 private:
  void fresh() {
    block_.clear();
    block_.reserve(kBlockSize + 1);
    block_ += kPlainBlock;
  }

  void take(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t part = std::min(bytes.size(), kBlockSize + 1 - block_.size());
      block_.append(bytes, 0, part);
      bytes.remove_prefix(part);
      if (block_.size() == kBlockSize + 1) {
        blocks_.push(std::move(block_));
        fresh();
      }
    }
  }

  // False when the file is no longer what was scanned, or changes meanwhile.
  bool read(const EntryName& name) {
    Source& source = sources_[name.mount];
    const FileIdentity& scanned = source.scan.identities[name.entry];
    for (int attempt = 0; attempt < kReadTries; ++attempt) {
      UniqueFd fd;
      try {
        fd = source.open(name.entry);
      } catch (const Error& error) {
        std::error_code ignored;
        if (!fs::exists(fs::symlink_status(source.shown(name.entry), ignored))) return false;
        throw;
      }
      struct stat status {};
      if (::fstat(fd.get(), &status) != 0) throw cannot_read(source, name, errno);
      if (!S_ISREG(status.st_mode) || !is_same(identity_of(status), scanned)) return false;
      if (scanned.size > kBlockSize) return read_large(source, name, fd.get(), status);
      std::size_t got = 0;
      while (got < scanned.size) {
        const ssize_t part = ::read(fd.get(), buffer_.data() + got, scanned.size - got);
        if (part < 0 && errno == EINTR) continue;
        if (part < 0) throw cannot_read(source, name, errno);
        if (part == 0) break;
        got += static_cast<std::size_t>(part);
      }
      if (got < scanned.size || !is_still(fd.get(), scanned)) continue;
      const auto extents = holes(fd.get(), status);
      archive_.begin({name.mount, name.entry}, scanned.size, extents ? &*extents : nullptr);
      archive_.write({buffer_.data(), got});
      progress_.bytes += got;
      return true;
    }
    return false;
  }

  bool read_large(Source& source, const EntryName& name, int fd, const struct stat& status) {
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    const auto extents = holes(fd, status);
    archive_.begin({name.mount, name.entry}, size, extents ? &*extents : nullptr);
    bool whole = true;
    std::uint64_t at = 0;
    const ArchiveWriter::Extents all{{0, size}};
    for (const auto& [offset, length] : extents ? *extents : all) {
      zeros_until(at, offset);
      const std::uint64_t end = offset + length;
      while (at < end) {
        const std::size_t room = std::min<std::uint64_t>(buffer_.size(), end - at);
        const ssize_t got = ::pread(fd, buffer_.data(), room, static_cast<off_t>(at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw cannot_read(source, name, errno);
        if (got == 0) {  // it was cut; what was announced must be sent all the same
          whole = false;
          zeros_until(at, end);
          break;
        }
        archive_.write({buffer_.data(), static_cast<std::size_t>(got)});
        at += static_cast<std::uint64_t>(got);
        progress_.bytes += static_cast<std::uint64_t>(got);
        watch(false);
      }
    }
    zeros_until(at, size);
    return whole && is_still(fd, identity_of(status));
  }

  void zeros_until(std::uint64_t& at, std::uint64_t end) {
    while (at < end) {
      const std::size_t part = std::min<std::uint64_t>(zeros_.size(), end - at);
      archive_.write({zeros_.data(), part});
      at += part;
    }
  }

  // The parts that are data, when there are holes.
  static std::optional<ArchiveWriter::Extents> holes(int fd, const struct stat& status) {
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size < kSparseFrom || static_cast<std::uint64_t>(status.st_blocks) * 512 >= size) {
      return std::nullopt;
    }
    ArchiveWriter::Extents extents;
    off_t at = 0;
    while (at < status.st_size) {
      const off_t data = ::lseek(fd, at, SEEK_DATA);
      if (data < 0 && errno == ENXIO) break;  // a hole up to the end
      if (data < 0) return std::nullopt;      // a file system that does not say
      const off_t hole = ::lseek(fd, data, SEEK_HOLE);
      if (hole < 0) return std::nullopt;
      const off_t end = std::min<off_t>(hole, status.st_size);
      if (end > data) {
        extents.emplace_back(static_cast<std::uint64_t>(data),
                             static_cast<std::uint64_t>(end - data));
      }
      at = hole;
    }
    if (extents.size() == 1 && extents[0].first == 0 && extents[0].second == size) {
      return std::nullopt;
    }
    return extents;
  }

  static bool is_same(const FileIdentity& now, const FileIdentity& then) {
    return now.device == then.device && now.inode == then.inode && now.size == then.size &&
           now.mtime_ns == then.mtime_ns;
  }
  static bool is_still(int fd, const FileIdentity& then) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 && is_same(identity_of(status), then);
  }

  static Error cannot_read(const Source& source, const EntryName& name, int error) {
    return errno_error("cannot read " + printable_path(source.shown(name.entry)), error);
  }

  void watch(bool now) {
    if (!watch_) return;
    const auto moment = std::chrono::steady_clock::now();
    if (!now && moment - watched_ < kProgressEvery) return;
    watched_ = moment;
    watch_(progress_);
  }

  std::vector<Source>& sources_;
  BoundedQueue<std::string>& blocks_;
  SyncProgress progress_;
  const SyncWatcher& watch_;
  std::chrono::steady_clock::time_point watched_;
  std::string block_;
  std::string buffer_;
  std::string zeros_;
  std::vector<EntryName> changing_;
  ArchiveWriter archive_;
};

class Sender {
 public:
  Sender(Wire& wire, const std::vector<SyncMount>& mounts, const SendOptions& options)
      : wire_(wire), mounts_(mounts), options_(options) {}

  SyncOutcome run() {
    watch(SyncPhase::scanning);
    json list = json::array();
    std::vector<std::string> encoded;
    for (const SyncMount& mount : mounts_) {
      Source source;
      source.mount = &mount;
      ScanOptions scan_options;
      scan_options.exclude = mount.exclude;
      scan_options.filter_files = mount.filter_files;
      source.scan = scan_tree(mount.source, scan_options);
      const Tree& tree = source.scan.tree;
      if (!tree.single) source.files = std::make_unique<Beneath>(mount.source);
      encoded.push_back(encode_tree(tree));
      Sha256 sum;
      sum.add(encoded.back());
      list.push_back({{"target", mount.target},
                      {"name", tree.single ? tree.entries[0].path : ""},
                      {"single", tree.single},
                      {"tree", sum.hex()},
                      {"entries", tree.entries.size()},
                      {"bytes", total_size(tree)},
                      {"remove", mount.remove},
                      {"overwrite", mount.overwrite}});
      sources_.push_back(std::move(source));
    }
    wire_.say({{"type", "sync"},
               {"version", kVersion},
               {"dry_run", options_.dry_run},
               {"mounts", std::move(list)}});
    watch(SyncPhase::comparing);
    while (true) {
      const json message = wire_.parse(wire_.next());
      const std::string type = text_in(message, "type");
      if (type == "need") {
        for (const json& each : list_in(message, "trees")) {
          if (!each.is_number_unsigned() || each.get<std::uint64_t>() >= encoded.size()) {
            throw Error(ErrorCode::invalid, "the other side asks for a mount that there is not");
          }
          wire_.say({{"type", "tree"}, {"mount", each}});
          wire_.blob(encoded[each.get<std::size_t>()]);
        }
      } else if (type == "hash") {
        hashes();
      } else if (type == "want") {
        archive(names());
      } else if (type == "result") {
        return result(message);
      } else {
        throw Error(ErrorCode::invalid,
                    "the other side says what is not understood: " + as_text(type));
      }
    }
  }

 private:
  std::vector<EntryName> names() {
    std::vector<EntryName> names = decode_names(wire_.blob());
    for (const EntryName& name : names) {
      if (name.mount >= sources_.size() ||
          name.entry >= sources_[name.mount].scan.tree.entries.size() ||
          sources_[name.mount].scan.tree.entries[name.entry].kind != EntryKind::file) {
        throw Error(ErrorCode::invalid, "the other side asks for a file that there is not");
      }
    }
    return names;
  }

  void hashes() {
    FileFactsCache cache(options_.hash_cache);
    std::string sums;
    for (const EntryName& name : names()) {
      const Source& source = sources_[name.mount];
      std::string sum;
      try {
        fs::path path = source.shown(name.entry);
        if (source.scan.tree.single) path = fs::canonical(path);
        sum = cache.facts(path, source.scan.identities[name.entry]).sha256;
      } catch (const Error&) {  // it changes, or is gone: the receiver will want it, and hear so
      } catch (const fs::filesystem_error&) {
      }
      if (sum.empty()) sum.assign(64, '0');
      for (std::size_t i = 0; i < sum.size(); i += 2) {
        sums += static_cast<char>(std::stoi(sum.substr(i, 2), nullptr, 16));
      }
    }
    cache.save();
    wire_.say({{"type", "hashes"}});
    wire_.blob(sums);
  }

  void archive(const std::vector<EntryName>& wanted) {
    SyncProgress progress;
    progress.phase = SyncPhase::sending;
    progress.files_total = wanted.size();
    std::vector<std::uint64_t> space(sources_.size());
    for (const EntryName& name : wanted) {
      Source& source = sources_[name.mount];
      const std::uint64_t size = source.scan.tree.entries[name.entry].size;
      progress.bytes_total += size;
      std::uint64_t takes = size;
      struct stat status {};
      if (size >= kMeasuredFrom && ::stat(source.shown(name.entry).c_str(), &status) == 0) {
        takes = std::min<std::uint64_t>(size, static_cast<std::uint64_t>(status.st_blocks) * 512);
      }
      space[name.mount] += takes;
    }
    json archive{{"type", "archive"}, {"bytes", space}};
    if (options_.parcel) {
      SyncArchive whole;
      whole.id = id_of(wanted);
      whole.bytes = progress.bytes_total;
      whole.read = [&](const std::function<void(std::string_view)>& sink) {
        return read(wanted, progress, {}, sink).dump();
      };
      if (const auto parcel = options_.parcel(whole)) {
        const auto* key = reinterpret_cast<const unsigned char*>(parcel->key.data());
        archive["parcel"] = {{"file", parcel->file}, {"key", to_hex({key, parcel->key.size()})}};
        wire_.throw_if_refused();
        wire_.say(archive);
        wire_.say(json::parse(parcel->after));
        return watch(SyncPhase::applying);
      }
    }
    wire_.say(archive);
    wire_.say(read(wanted, progress, options_.watch, [&](std::string_view block) {
      wire_.throw_if_refused();
      wire_.bytes(block);
    }));
    watch(SyncPhase::applying);
  }

  // What is wanted of which trees, whoever wants it.
  std::string id_of(const std::vector<EntryName>& wanted) const {
    Sha256 sum;
    for (const Source& source : sources_) {
      sum.add(source.mount->source.string());
      sum.add(std::string_view("", 1));
      Sha256 tree;
      tree.add(encode_tree(source.scan.tree));
      sum.add(tree.hex());
    }
    sum.add(encode_names(wanted));
    return sum.hex();
  }

  // Gives the archive's blocks to `sink`, and returns what is said after them.
  json read(const std::vector<EntryName>& wanted, const SyncProgress& progress,
            const SyncWatcher& watch, const std::function<void(std::string_view)>& sink) {
    BoundedQueue<std::string> plain(kBlocksWaiting);
    BoundedQueue<std::string> packed(kBlocksWaiting);
    std::exception_ptr failure;
    std::mutex failing;
    const auto failed = [&](std::exception_ptr error) {
      {
        const std::lock_guard lock(failing);
        if (!failure) failure = error;
      }
      plain.fail(error);
      packed.fail(error);
    };
    Reader reader(sources_, plain, progress, watch);
    {
      Stage reading([&] { reader.run(wanted); }, failed);
      Stage packing(
          [&] {
            Packer packer(options_.compression);
            while (auto block = plain.pop()) packed.push(packer.pack(std::move(*block)));
            packed.close();
          },
          failed);
      try {
        while (const auto block = packed.pop()) sink(*block);
      } catch (...) {
        failed(std::current_exception());
      }
    }
    if (failure) std::rethrow_exception(failure);
    json changing = json::array();
    for (const EntryName& name : reader.changing()) {
      changing.push_back(json::array({name.mount, name.entry}));
    }
    return {{"type", "sent"}, {"changing", std::move(changing)}};
  }

  SyncOutcome result(const json& message) {
    SyncOutcome outcome = outcome_from_json(message);
    if (outcome.mounts.size() != sources_.size()) {
      throw Error(ErrorCode::invalid, "the other side reports of other mounts");
    }
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      for (const LeftOut& left : sources_[i].scan.left_out) {
        outcome.mounts[i].left_out.push_back({left.path, left.reason});
      }
    }
    return outcome;
  }

  void watch(SyncPhase phase) const {
    if (!options_.watch) return;
    SyncProgress progress;
    progress.phase = phase;
    options_.watch(progress);
  }

  Wire& wire_;
  const std::vector<SyncMount>& mounts_;
  const SendOptions& options_;
  std::vector<Source> sources_;
};

}  // namespace

SyncOutcome send_trees(FramedStream& stream, const std::vector<SyncMount>& mounts,
                       const SendOptions& options) {
  Wire wire(stream, options.silence);
  try {
    SyncOutcome outcome = Sender(wire, mounts, options).run();
    wire.done();
    return outcome;
  } catch (...) {
    wire.fail();
  }
}

}  // namespace dtrain
