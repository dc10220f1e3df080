#include "launcher/provider/aws/host_keys.hpp"

#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::aws {
namespace {

constexpr std::chrono::milliseconds kScriptLimit{60000};
// Before a key in a tag: it is the boot data's; it is the one that is to take its place.
constexpr const char* kFirst = "first:";
constexpr const char* kOwn = "own:";
constexpr const char* kType = "ssh-ed25519";

// $1 is a script for root.
constexpr const char* kAsRoot =
    R"sh(if [ "$(id -u)" = 0 ]; then exec sh -c "$1"; else exec sudo -n sh -c "$1"; fi)sh";
// Each does nothing where it is done already: whoever comes second finds the key of the first.
constexpr const char* kMake = R"sh(set -e
key=/etc/ssh/ssh_host_dtrain
exec 9>$key.lock; ! command -v flock >/dev/null || flock 9
test -s $key.pub || { rm -f $key; ssh-keygen -q -t ed25519 -N '' -C '' -f $key; }
echo dtrain-key; cat $key.pub
)sh";
constexpr const char* kInstall = R"sh(set -e
key=/etc/ssh/ssh_host_dtrain own=/etc/ssh/ssh_host_ed25519_key
exec 9>$key.lock; ! command -v flock >/dev/null || flock 9
cmp -s $key $own || {
  cp $key.pub $own.pub.new; mv -f $own.pub.new $own.pub
  cp -p $key $own.new; mv -f $own.new $own
}
pid=$(cat /run/sshd.pid /var/run/sshd.pid 2>/dev/null | head -n 1)
if [ -n "$pid" ]; then kill -HUP "$pid"; else systemctl reload ssh || systemctl reload sshd; fi
)sh";

std::string as_root(Transport& transport, const char* script, const std::string& what) {
  return run_or_throw(transport, {"sh", "-c", kAsRoot, "sh", script}, {}, kScriptLimit, what);
}

// The marker of an instance whose first key may be there still.
std::string marker(const std::string& id) {
  return id + ".first";
}

// "first:A", "first:A own:B", and once that is in its place "B".
struct Tagged {
  std::optional<ssh::HostKey> first;
  std::optional<ssh::HostKey> own;
};
Tagged parse_tag(const std::string& tag) {
  Tagged keys;
  for (const std::string& word : split(tag, ' ')) {
    const bool is_first = word.starts_with(kFirst);
    const std::size_t name = word.find(':') + 1;  // 0 where there is none
    const ssh::HostKey key{kType, word.substr(name)};
    ssh::fingerprint(key);  // throws for what is none
    (is_first ? keys.first : keys.own) = key;
  }
  return keys;
}

std::vector<ssh::HostKey> pinned(const fs::path& file, const std::string& name) {
  std::vector<ssh::HostKey> keys;
  for (ssh::KnownKey& each : ssh::known_keys({file}, name).keys) keys.push_back(each.key);
  return keys;
}

}  // namespace

std::string HostKeys::tag_of_first(const ssh::HostKey& key) {
  return kFirst + key.blob;
}

std::unique_ptr<Transport> HostKeys::reach(const std::string& id,
                                           const std::function<std::unique_ptr<Transport>()>& reach,
                                           const std::function<void(const std::string&)>& warn) {
  std::shared_ptr<std::mutex> mine;
  {
    const std::lock_guard lock(mutex_);
    auto& found = at_work_[id];
    if (!found) found = std::make_shared<std::mutex>();
    mine = found;
  }
  std::unique_lock lock(*mine);
  if (pinned(known_hosts_, id).empty()) {
    ask_for(id, false);
  } else if (!pinned(known_hosts_, marker(id)).empty()) {
    ask_for(id, true);  // since then another laptop may have been there
  }
  if (pinned(known_hosts_, marker(id)).empty()) {
    lock.unlock();
    return reach();
  }
  std::unique_ptr<Transport> transport = reach();
  try {
    replace(id, *transport);
  } catch (const Error& error) {
    if (warn) {
      warn(id + " keeps the host key of its boot data, which others of the account can read: " +
           error.message());
    }
  }
  return transport;
}

void HostKeys::ask_for(const std::string& id, bool fresh) {
  const std::string tag = tags_.read(id, fresh);
  if (tag.empty()) return;  // whoever reaches it is asked, as with any host
  const Tagged keys = parse_tag(tag);
  std::vector<ssh::Pin> pins;
  if (keys.own) pins.push_back({id, *keys.own});
  if (keys.first) {
    pins.push_back({marker(id), *keys.first});
    pins.push_back({id, *keys.first});
  }
  ssh::change_pins(known_hosts_, pins, {});
  if (!keys.first) forget_first(id, *keys.own);
}

void HostKeys::forget_first(const std::string& id, const ssh::HostKey& own) {
  std::vector<ssh::Pin> gone;
  for (const ssh::HostKey& first : pinned(known_hosts_, marker(id))) {
    gone.push_back({marker(id), first});
    if (first != own) gone.push_back({id, first});
  }
  ssh::change_pins(known_hosts_, {}, gone);
}

// Its own key is pinned before it is that of the machine, and the first one until it is told: who
// ends in between goes on the next time.
void HostKeys::replace(const std::string& id, Transport& transport) {
  const std::string said = as_root(transport, kMake, "making a host key there");
  const std::vector<std::string> lines = split(said, '\n');
  ssh::HostKey own;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    if (lines[i] != "dtrain-key") continue;
    const std::vector<std::string> words = split(lines[i + 1], ' ');
    if (words.size() > 1) own = {words[0], words[1]};
  }
  if (own.type != kType) throw Error(ErrorCode::failed, "the host has told no key");
  ssh::fingerprint(own);
  ssh::pin(known_hosts_, id, own);
  const std::vector<ssh::HostKey> first = pinned(known_hosts_, marker(id));
  tags_.write(id, (first.empty() ? "" : tag_of_first(first.front()) + " ") + kOwn + own.blob);
  as_root(transport, kInstall, "putting its own host key in the first one's place");
  tags_.write(id, own.blob);
  forget_first(id, own);
}

}  // namespace dtrain::aws
