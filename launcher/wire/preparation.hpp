#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/wire/session.hpp"

// What a machine that joined by itself does to itself before it is ready: what `up` does over SSH
// to the others. `dtrain join-command` and `dtrain up` give it to the head, and the head to nodes.
namespace dtrain::wire {

struct Preparation {
  struct Mount {
    std::string target;  // as SyncMount's
    std::string source;  // below the unpacked tree (files/mount_pack.hpp): a folder, or a file
  };

  std::string tree;  // content that holds all mounts; empty: none
  std::vector<Mount> mounts;
  std::vector<SetupList> lists;  // one after the other
  std::optional<int> gpus;       // that there must be at least
  std::string command;           // must end with 0; empty: none
  std::int64_t limit_ms = 60000;
  // Another text each time that all is to be done again: once by each node that has been prepared
  // before, with files also over what was changed there, and with commands from the first one on.
  std::string again;
  bool overwrite = false;
  bool from_start = false;

  bool empty() const { return mounts.empty() && lists.empty() && !gpus && command.empty(); }
};

nlohmann::json to_json(const Preparation& preparation);
// Error(invalid) names what is wrong.
Preparation preparation_from_json(const nlohmann::json& json);
// The same for the same preparation, however much of it is done again.
std::string key_of(Preparation preparation);

// What is said of a node that has not managed it begins so; and of one that is at it.
inline constexpr const char* kCannotBePrepared = "cannot be prepared: ";
inline constexpr const char* kIsBeingPrepared = "is being prepared";
// In place of the key of what a node has, while that is changed: no key is like it.
inline constexpr const char* kPreparedIsChanging = "-";
// What is said of it meanwhile, printable and cut: 300 bytes of it.
std::string preparation_words(const std::string& text);

}  // namespace dtrain::wire
