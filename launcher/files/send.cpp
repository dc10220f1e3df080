#include <sys/stat.h>

#include <algorithm>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/archiver.hpp"
#include "launcher/files/file_facts.hpp"
#include "launcher/files/landing.hpp"
#include "launcher/files/parcel.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/files/sync_wire.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain {

using namespace sync;

namespace {

constexpr std::uint64_t kMeasuredFrom = 1 << 20;  // bytes: what a larger one takes is asked for

class Sender {
 public:
  Sender(Wire& wire, const std::vector<SyncMount>& mounts, const SendOptions& options)
      : wire_(wire), mounts_(mounts), options_(options) {}

  SyncOutcome run() {
    watch(SyncPhase::scanning);
    json list = json::array();
    std::vector<std::string> encoded;
    for (const SyncMount& mount : mounts_) {
      refuse_unless_utf8(mount.target);
      Source source;
      source.mount = &mount;
      ScanOptions scan_options;
      scan_options.exclude = mount.exclude;
      scan_options.filter_files = mount.filter_files;
      source.scan = scan_tree(mount.source, scan_options);
      const Tree& tree = source.scan.tree;
      if (tree.single) refuse_unless_utf8(tree.entries[0].path);
      if (!tree.single) source.files = std::make_unique<Beneath>(mount.source);
      encoded.push_back(encode_tree(tree));
      Sha256 sum;
      sum.add(encoded.back());
      list.push_back(wire::written(Offer{.target = mount.target,
                                         .name = tree.single ? tree.entries[0].path : "",
                                         .single = tree.single,
                                         .tree = sum.hex(),
                                         .entries = tree.entries.size(),
                                         .bytes = total_size(tree),
                                         .remove = mount.remove,
                                         .overwrite = mount.overwrite}));
      sources_.push_back(std::move(source));
    }
    wire_.say({{"type", "sync"},
               {"version", kVersion},
               {"dry_run", options_.dry_run},
               {"mounts", std::move(list)}});
    watch(SyncPhase::comparing);
    while (true) {
      const json message = wire_.parse(wire_.next());
      const std::string type = wire::get_string(message, "type");
      if (type == "need") {
        for (const json& each : wire::get_list(message, "trees")) {
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
      sum.add(std::string_view("\0", 1));
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
    Archiver archiver(sources_, plain, progress, watch);
    {
      Stage reading([&] { archiver.run(wanted); }, failed);
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
    for (const EntryName& name : archiver.changing()) {
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
