#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/config_file.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/node.hpp"
#include "launcher/wire/preparation.hpp"

namespace dtrain::head {

class ContentServer;

// What nodes that join by themselves make of their machines, told to each of them when it joins and
// when it changes; nothing, until something was given. One that has never been prepared is not
// ready before it is; one that has been stays ready meanwhile. Kept in preparation.json. On the
// engine's thread.
class Preparations {
 public:
  using Send = std::function<void(const NodeId& node, const wire::HeadMessage& message)>;
  Preparations(ConfigFile& config, ContentServer& contents, Engine& engine, Send send);

  // ---- For the API.
  static constexpr std::size_t kLimit = std::size_t{1} << 20;  // bytes of one, without its files
  // From now on this is it. Nodes that could not be prepared try again, also with the same. The
  // answer is get()'s, or Error(conflict) while content of it is missing here.
  void set(const nlohmann::json& body, Engine::Answer done);
  // {"preparation": {…}, "key": …}; null where none was given.
  nlohmann::json get() const;

  // ---- For the nodes' connections.
  // Why a node that says this is not ready yet; empty: it is.
  std::string why_not(const NodeId& node, const wire::Hello& hello);
  void welcomed(const NodeId& node);  // and joined to the engine
  void gone(const NodeId& node);
  void heard(const NodeId& node, const wire::Preparing& news);

  // What a node may fetch; absent: not this one, or not any more.
  std::optional<JobContent> content_for(const NodeId& node, const std::string& key) const;
  std::set<std::string> trees() const;  // in use

 private:
  struct Current {
    explicit Current(wire::Preparation what)
        : key(wire::key_of(what)), preparation(std::move(what)) {}
    std::string key;
    wire::Preparation preparation;
  };
  struct Told {
    bool too_old = false;  // to know what this is
    std::string prepared;  // the key of what it has got to, or came with; empty: nothing ever
  };
  void begin(const NodeId& node, Told& told);

  ConfigFile& config_;
  ContentServer& contents_;
  Engine& engine_;
  Send send_;
  Current current_{{}};
  bool given_ = false;
  bool damaged_ = false;          // what was given cannot be read
  std::map<NodeId, Told> nodes_;  // that joined by themselves, and are connected
};

}  // namespace dtrain::head
