#include "launcher/cluster/parcels.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/stop.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/files/sealed.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/remote/bootstrap.hpp"

namespace dtrain {
namespace {

// A parcel and what is unpacked from it, side by side, and some room for others.
constexpr std::uint64_t kRoom = 3;

// A file of no name: it goes with the program, however that ends.
UniqueFd unnamed_file(const fs::path& folder) {
  std::string name = (folder / ".parcel-XXXXXX").string();
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) throw errno_error("cannot make a file in " + folder.string(), errno);
  ::unlink(name.c_str());
  return file;
}

class Mapped {
 public:
  Mapped(int fd, std::size_t size) : size_(size) {
    at_ = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at_ == MAP_FAILED) throw errno_error("cannot map a file", errno);
  }
  ~Mapped() { ::munmap(at_, size_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(at_), size_}; }

 private:
  void* at_;
  std::size_t size_;
};

}  // namespace

struct Parcels::Parcel {
  std::mutex making;
  bool is_tried = false;
  std::unique_ptr<Mapped> file;  // null: it could not be made
  std::string sha256;
  std::string key;
  std::string after;
  std::shared_ptr<Spread> spread;
  const std::string name = ".parcel-" + random_hex(8);
};

Parcels::Parcels(fs::path folder, SpreadLimits limits, std::stop_token stop,
                 std::function<void(const std::string&, const std::string&)> say)
    : folder_(std::move(folder)), limits_(limits), stop_(std::move(stop)), say_(std::move(say)) {}

std::shared_ptr<Parcels::Parcel> Parcels::parcel_of(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = parcels_.find(id);
  if (found != parcels_.end()) return found->second;
  if (parcels_.size() == kMaxParcels) return nullptr;
  auto parcel = std::make_shared<Parcel>();
  parcel->spread = std::make_shared<Spread>(limits_, stop_, say_);
  return parcels_[id] = std::move(parcel);
}

void Parcels::make(Parcel& parcel, const SyncArchive& archive) const {
  make_folders(folder_);
  const UniqueFd file = unnamed_file(folder_);
  Sha256 sum;
  std::size_t size = 0;
  parcel.key = make_seal_key();
  Sealer sealer(parcel.key, [&](std::string_view bytes) {
    throw_if_stopped(stop_);
    write_all(file.get(), bytes);
    sum.add(bytes);
    size += bytes.size();
  });
  parcel.after = archive.read([&](std::string_view block) { sealer.add(block); });
  sealer.finish();
  parcel.sha256 = sum.hex();
  parcel.file = std::make_unique<Mapped>(file.get(), size);
}

std::optional<SyncParcel> Parcels::bring(const SyncArchive& archive, const Host& host,
                                         std::vector<Held>& held) {
  if (archive.bytes < kParcelFrom) return std::nullopt;
  const std::shared_ptr<Parcel> parcel = parcel_of(archive.id);
  if (!parcel) return std::nullopt;
  if (host.free >= 0 && static_cast<std::uint64_t>(host.free) / kRoom < archive.bytes) {
    say_(host.name, "from this machine: its disk has no room for them twice");
    return std::nullopt;
  }
  try {
    {
      const std::lock_guard lock(parcel->making);
      if (!parcel->is_tried) {
        parcel->is_tried = true;
        make(*parcel, archive);
      }
      if (!parcel->file) return std::nullopt;
    }
    Held mine;
    mine.seat = parcel->spread->join(host.name);
    const std::string_view bytes = parcel->file->bytes();
    mine.channel = bring_by_relay(*host.transport, *mine.seat, {bytes, parcel->sha256}, host.folder,
                                  parcel->name, AgentSessionOptions(), [&](std::size_t done) {
                                    if (host.watch) host.watch(done, bytes.size());
                                  });
    if (!mine.channel) return std::nullopt;
    held.push_back(std::move(mine));
    return SyncParcel{parcel->name, parcel->key, parcel->after};
  } catch (const Error& error) {
    if (stop_.stop_requested()) throw;
    say_(host.name, "from this machine: " + error.message());
    return std::nullopt;
  }
}

}  // namespace dtrain
