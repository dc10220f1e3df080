#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/remote/ssh/new_key.hpp"
#include "launcher/remote/transport.hpp"

namespace dtrain::aws {

// The host keys of instances, each known under its instance's id.
//
// An instance begins with a key out of its boot data, which its tag names: so the first session is
// with that instance. But boot data can be read by others of the account; so that session has a key
// made there, and puts it in the place of the first. The tag names both before that is done and
// that one after it, so that any laptop that may ask AWS knows it, whoever ended in between.
// Thread-safe.
class HostKeys {
 public:
  // What is kept of an instance's key, by its id; both throw Error.
  struct Tags {
    // Empty: it has none. `fresh`: asked now, whatever was listed before.
    std::function<std::string(const std::string& id, bool fresh)> read;
    std::function<void(const std::string& id, const std::string& value)> write;
  };
  HostKeys(fs::path known_hosts, Tags tags)
      : known_hosts_(std::move(known_hosts)), tags_(std::move(tags)) {}

  // The tag's value for the key of an instance's boot data.
  static std::string tag_of_first(const ssh::HostKey& key);

  // Reaches instance `id` by `reach`, to which its key is known under that id, and has a key made
  // there where there is the first one still. Where that cannot be (nobody there may become root,
  // say) it is told to `warn`, and tried again the next time.
  std::unique_ptr<Transport> reach(const std::string& id,
                                   const std::function<std::unique_ptr<Transport>()>& reach,
                                   const std::function<void(const std::string&)>& warn);

 private:
  void ask_for(const std::string& id, bool fresh);
  void forget_first(const std::string& id, const ssh::HostKey& own);
  void replace(const std::string& id, Transport& transport);

  fs::path known_hosts_;
  Tags tags_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<std::mutex>> at_work_;  // by id
};

}  // namespace dtrain::aws
