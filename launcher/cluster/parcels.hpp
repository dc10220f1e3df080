#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/core/files.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/remote/spread.hpp"
#include "launcher/remote/transport.hpp"

// The user's files on their way to many hosts of one `up`: what they want alike is read once, and
// goes from host to host as the agent does (launcher/remote/spread.hpp). It may be secret, so on
// that way it is encrypted; the key goes to each host over its own SSH.
namespace dtrain {

// Less than that goes to each host by itself.
inline constexpr std::uint64_t kParcelFrom = std::uint64_t{256} << 10;  // bytes of content
// Different ones in one `up`; hosts that want yet others get them by themselves.
inline constexpr std::size_t kMaxParcels = 4;

// Safe to use from several threads.
class Parcels {
 public:
  // A parcel lies in an unnamed file of `folder` as long as this lives. `say` as Spread's.
  Parcels(fs::path folder, SpreadLimits limits, std::stop_token stop,
          std::function<void(const std::string&, const std::string&)> say);

  struct Host {
    std::string name;
    Transport* transport = nullptr;
    std::string folder;      // there, which the receiver takes parcels from
    std::int64_t free = -1;  // bytes of its disk; -1: not known
    std::function<void(std::uint64_t done, std::uint64_t total)> watch;
  };
  // What a host gives to others while it lives; must not outlive the host's transport.
  struct Held {
    std::unique_ptr<Spread::Seat> seat;
    std::unique_ptr<Channel> channel;
  };
  // As SendOptions::parcel. Whatever hinders it makes it absent, and is said; Error(failed) alone
  // when the whole is to stop.
  std::optional<SyncParcel> bring(const SyncArchive& archive, const Host& host,
                                  std::vector<Held>& held);

 private:
  struct Parcel;
  std::shared_ptr<Parcel> parcel_of(const std::string& id);
  void make(Parcel& parcel, const SyncArchive& archive) const;

  const fs::path folder_;
  const SpreadLimits limits_;
  const std::stop_token stop_;
  const std::function<void(const std::string&, const std::string&)> say_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Parcel>> parcels_;
};

}  // namespace dtrain
