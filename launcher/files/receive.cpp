#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/comparison.hpp"
#include "launcher/files/parcel.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/files/sync_wire.hpp"
#include "launcher/files/unarchiver.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain {

using namespace sync;

namespace {

constexpr std::size_t kMounts = 1000;
constexpr std::size_t kListed = 1000;  // of each list of the result

class Receiver {
 public:
  Receiver(Wire& wire, const ReceiveOptions& options) : wire_(wire), options_(options) {}

  SyncOutcome run() {
    hello();
    open();
    trees();
    ask();
    if (!dry_run_) {
      fetch();
      apply();
    }
    return finish();
  }

 private:
  struct Mount {
    Offer offer;
    std::unique_ptr<Landing> landing;
    bool needed = false;
    Tree tree;
    std::unique_ptr<Comparison> comparison;
    MountOutcome outcome;
  };

  void hello() {
    const json message = wire_.expect("sync");
    if (wire::get_int(message, "version", 0, INT64_MAX) != kVersion) {
      throw Error(ErrorCode::conflict, "the other side's dtrain syncs in another way than this one")
          .with_hint("`dtrain up` brings the nodes to the version of this dtrain");
    }
    dry_run_ = wire::get_bool(message, "dry_run");
    const json& list = wire::get_list(message, "mounts");
    if (list.size() > kMounts) throw Error(ErrorCode::invalid, "too many mounts in one sync");
    if (!options_.targets.empty() && options_.targets.size() != list.size()) {
      throw Error(ErrorCode::invalid, "the other side sends another number of mounts");
    }
    for (const json& each : list) {
      Mount mount;
      wire::read(each, mount.offer);
      const std::string& name = mount.offer.name;
      if (mount.offer.single && (name.empty() || name == "." || name == ".." ||
                                 name.find_first_of(std::string_view("/\0", 2)) != name.npos)) {
        throw Error(ErrorCode::invalid, "the source's name is no file's name");
      }
      mounts_.push_back(std::move(mount));
    }
  }

  void open() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < mounts_.size(); ++i) {
      Mount& mount = mounts_[i];
      const fs::path target = options_.targets.empty()
                                  ? resolve_target(mount.offer.target, options_.home)
                                  : options_.targets[i];
      mount.landing = std::make_unique<Landing>(mount.offer, target, options_);
      order.push_back(i);
    }
    // Always in the same order, so that two syncs cannot wait for each other.
    const auto target_of = [this](std::size_t i) { return mounts_[i].landing->target(); };
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return target_of(a) < target_of(b); });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (target_of(order[i]) == target_of(order[i - 1])) {
        throw Error(ErrorCode::invalid,
                    "two mounts go to the same place: " + printable_path(target_of(order[i])));
      }
    }
    for (const std::size_t i : order) mounts_[i].landing->open(dry_run_);
  }

  void trees() {
    json needed = json::array();
    for (std::size_t i = 0; i < mounts_.size(); ++i) {
      Mount& mount = mounts_[i];
      mount.outcome.target = mount.landing->target().string();
      mount.outcome.entries = mount.offer.entries;
      mount.needed =
          mount.landing->record().tree != mount.offer.tree || !mount.landing->is_intact();
      if (mount.needed) needed.push_back(i);
    }
    if (needed.empty()) return;
    wire_.say({{"type", "need"}, {"trees", needed}});
    for (Mount& mount : mounts_) {
      if (!mount.needed) continue;
      const json message = wire_.expect("tree");
      if (wire::get_int(message, "mount", 0, INT64_MAX) != &mount - mounts_.data()) {
        throw Error(ErrorCode::invalid, "the other side sends another tree than was asked for");
      }
      const std::string bytes = wire_.blob();
      Sha256 sum;
      sum.add(bytes);
      if (sum.hex() != mount.offer.tree) {
        throw Error(ErrorCode::invalid, "the list of files is not the one that was announced");
      }
      mount.tree = decode_tree(bytes);
      if (mount.tree.single != mount.offer.single) {
        throw Error(ErrorCode::invalid, "the list of files is of another kind than was announced");
      }
      if (mount.tree.single) mount.tree.entries[0].path = mount.landing->name();
      mount.comparison = std::make_unique<Comparison>(mount.tree, *mount.landing, mount.offer);
    }
  }

  void ask() {
    std::vector<EntryName> names;
    for (std::uint32_t m = 0; m < mounts_.size(); ++m) {
      if (!mounts_[m].comparison) continue;
      for (const std::uint32_t entry : mounts_[m].comparison->questions()) {
        names.push_back({m, entry});
      }
    }
    if (names.empty()) return;
    wire_.say({{"type", "hash"}});
    wire_.blob(encode_names(names));
    wire_.expect("hashes");
    const std::string sums = wire_.blob();
    if (sums.size() != names.size() * 32) {
      throw Error(ErrorCode::invalid, "the other side answers with another number of sums");
    }
    std::size_t at = 0;
    for (Mount& mount : mounts_) {
      if (!mount.comparison) continue;
      std::vector<std::string> answers;
      for (std::size_t i = 0; i < mount.comparison->questions().size(); ++i, at += 32) {
        const std::string raw = sums.substr(at, 32);
        const bool known = raw != std::string(32, '\0');
        answers.push_back(
            known ? to_hex({reinterpret_cast<const unsigned char*>(raw.data()), raw.size()}) : "");
      }
      if (!answers.empty()) mount.comparison->answer(answers);
    }
  }

  void fetch() {
    staged_.resize(mounts_.size());
    std::vector<EntryName> names;
    SyncProgress progress;
    progress.phase = SyncPhase::sending;
    for (std::uint32_t m = 0; m < mounts_.size(); ++m) {
      Mount& mount = mounts_[m];
      if (!mount.comparison) continue;
      staged_[m].tree = &mount.tree;
      staged_[m].landing = mount.landing.get();
      for (const std::uint32_t entry : mount.comparison->wanted()) {
        names.push_back({m, entry});
        staged_[m].wanted.insert(entry);
        progress.bytes_total += mount.tree.entries[entry].size;
      }
    }
    progress.files_total = names.size();
    if (!names.empty()) {
      wire_.say({{"type", "want"}, {"files", names.size()}, {"bytes", progress.bytes_total}});
      wire_.blob(encode_names(names));
    }
    const json announced = names.empty() ? json() : wire_.expect("archive");
    const json space = names.empty() ? json() : wire::get_list(announced, "bytes");
    if (!names.empty() && space.size() != mounts_.size()) {
      throw Error(ErrorCode::invalid, "the other side counts other mounts");
    }
    for (std::size_t m = 0; m < mounts_.size(); ++m) {
      Mount& mount = mounts_[m];
      if (!mount.comparison) continue;
      const bool sized = !names.empty() && space[m].is_number_unsigned();
      mount.landing->begin(sized ? space[m].get<std::uint64_t>() : 0, mount.tree.mode);
    }
    if (names.empty()) return;
    std::optional<ParcelFile> parcel;
    if (announced.contains("parcel")) {
      const json& said = announced["parcel"];
      parcel.emplace(options_.parcels, wire::get_string(said, "file"),
                     wire::get_string(said, "key"));
    }
    archive(progress, parcel);
  }

  void archive(const SyncProgress& progress, std::optional<ParcelFile>& parcel) {
    BoundedQueue<std::string> packed(kBlocksWaiting);
    BoundedQueue<std::string> plain(kBlocksWaiting);
    std::exception_ptr failure;
    std::mutex failing;
    const auto failed = [&](std::exception_ptr error) {
      {
        const std::lock_guard lock(failing);
        if (!failure) failure = error;
      }
      packed.fail(error);
      plain.fail(error);
    };
    json sent;
    Unarchiver unarchiver(staged_, options_, progress);
    {
      Stage unpacking(
          [&] {
            Unpacker unpacker;
            while (auto block = packed.pop()) plain.push(unpacker.unpack(std::move(*block)));
            plain.close();
          },
          failed);
      Stage writing([&] { unarchiver.run(plain); }, failed);
      try {
        while (parcel) {
          auto block = parcel->next();
          if (!block) break;
          packed.push(std::move(*block));
        }
        while (true) {
          FramedStream::Message message = wire_.next();
          if (message.kind == FrameKind::bytes) {
            outcome_.wire_bytes += message.bytes.size();
            packed.push(std::move(message.bytes));
            continue;
          }
          sent = wire_.parse(message);
          if (wire::get_string(sent, "type") != "sent") {
            throw Error(ErrorCode::invalid, "the other side broke the archive off");
          }
          packed.close();
          break;
        }
      } catch (...) {
        failed(std::current_exception());
      }
    }
    if (failure) std::rethrow_exception(failure);
    check(sent);
  }

  // All that was wanted is staged, but for what changed while it was read.
  void check(const json& sent) {
    for (const json& each : wire::get_list(sent, "changing")) {
      if (!each.is_array() || each.size() != 2 || !each[0].is_number_unsigned() ||
          !each[1].is_number_unsigned() || each[0].get<std::uint64_t>() >= mounts_.size() ||
          staged_[each[0].get<std::size_t>()].wanted.erase(each[1].get<std::uint32_t>()) == 0) {
        throw Error(ErrorCode::invalid, "the other side names a file that was not asked for");
      }
      const auto m = each[0].get<std::size_t>();
      const auto entry = each[1].get<std::uint32_t>();
      Mount& mount = mounts_[m];
      if (staged_[m].staged.erase(entry) > 0) {
        ::unlinkat(mount.landing->stage(), std::to_string(entry).c_str(), 0);
      }
      mount.outcome.changing.push_back(mount.tree.entries[entry].path);
    }
    for (const Unarchiver::Mount& mount : staged_) {
      if (mount.wanted.size() != mount.staged.size()) {
        throw Error(ErrorCode::invalid, "the archive ends before all files are there");
      }
    }
  }

  void apply() {
    if (options_.watch) options_.watch({SyncPhase::applying, 0, 0, 0, 0});
    for (std::size_t m = 0; m < mounts_.size(); ++m) {
      Mount& mount = mounts_[m];
      if (!mount.comparison) continue;
      for (const std::uint32_t link : mount.comparison->links()) {
        const TreeEntry& entry = mount.tree.entries[link];
        if (::symlinkat(entry.target.c_str(), mount.landing->stage(),
                        std::to_string(link).c_str()) != 0) {
          throw errno_error(
              "cannot make the link " + printable_path(mount.landing->base() / entry.path), errno);
        }
      }
    }
    for (std::size_t m = 0; m < mounts_.size(); ++m) {
      Mount& mount = mounts_[m];
      if (mount.comparison) mount.landing->commit(mount.comparison->journal(staged_[m].staged));
    }
    for (Mount& mount : mounts_) {
      if (mount.comparison) late_left_.push_back(mount.landing->apply());
    }
    for (const Mount& mount : mounts_) mount.landing->throw_if_refused();
  }

  SyncOutcome finish() {
    std::size_t applied = 0;
    for (Mount& mount : mounts_) {
      if (mount.comparison) {
        MountOutcome done = mount.comparison->outcome();
        done.changing = std::move(mount.outcome.changing);
        for (const std::string& path : done.changing) {
          --done.files;
          std::erase(done.sent_paths, path);
        }
        if (!dry_run_) {
          for (SyncNote& note : late_left_[applied++]) {
            if (std::erase(done.removed_paths, note.path) > 0) --done.removed;
            done.left.push_back(std::move(note));
            ++done.left_count;
          }
        }
        mount.outcome = std::move(done);
      }
      outcome_.mounts.push_back(std::move(mount.outcome));
    }
    outcome_.dry_run = dry_run_;
    return std::move(outcome_);
  }

  Wire& wire_;
  const ReceiveOptions& options_;
  bool dry_run_ = false;
  std::vector<Mount> mounts_;
  std::vector<Unarchiver::Mount> staged_;
  std::vector<std::vector<SyncNote>> late_left_;
  SyncOutcome outcome_;
};

SyncOutcome receive(Wire& wire, const ReceiveOptions& options) {
  try {
    return Receiver(wire, options).run();
  } catch (PeerError&) {
    throw;
  } catch (Error& error) {
    if (!options.name.empty()) error.while_doing("receiving on " + options.name);
    throw;
  }
}

}  // namespace

SyncOutcome receive_trees(FramedStream& stream, const ReceiveOptions& options) {
  Wire wire(stream, options.silence);
  try {
    SyncOutcome outcome = receive(wire, options);
    json message = outcome_to_json(outcome, kListed);
    message["type"] = "result";
    wire.result(message);
    return outcome;
  } catch (...) {
    wire.fail();
  }
}

}  // namespace dtrain
