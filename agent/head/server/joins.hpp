#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/joins.hpp"
#include "agent/head/server/config_file.hpp"
#include "agent/head/server/greeter.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/wire/frames.hpp"

namespace dtrain::head {

// What machines may do that are to become nodes and are none yet: GET /v1/join/agent and POST
// /v1/join/request, each with a join credential. All on the engine's thread; the disk is waited for
// by that of `config`, and answers are sent by `sending`'s, in whose idle priority gigabytes keep
// nobody waiting.
class Joins {
 public:
  Joins(boost::asio::io_context& context, boost::asio::io_context& sending, ConfigFile& config,
        Engine& engine, const Clock& clock);

  // Of one credential: answered at a time, agents fetched and requests made ever, in this head's
  // life. Of all: answered at a time, and refused at a time; beyond that callers are hung up on.
  static constexpr int kMostAtOnceOfOne = 2;
  static constexpr int kMostFetches = 20;
  static constexpr int kMostRequests = 100;
  static constexpr int kMostAtOnce = 64;
  static constexpr int kMostRefusedAtOnce = 64;
  static constexpr std::size_t kRequestLimit = std::size_t{8} << 10;  // bytes
  static constexpr std::size_t kMostCredentials = 4096;               // of people's, not used yet
  static constexpr std::size_t kMostAddresses = 8;
  static constexpr std::chrono::seconds kMostWait{10};  // less than a script takes for silence

  // ---- For the API. Answers as those of Engine.
  struct Wanted {
    NodeId node;  // empty: the first free one of joined-1, joined-2, …
    std::string type;
    std::chrono::seconds valid_for{};
    bool begins = true;  // else with begin(), when its machine is known to run
    // Of the head. What a person has said must be right; of the others, and of those that it has
    // itself, whatever fits is tried after them.
    std::vector<std::string> addresses;
    std::vector<std::string> other_addresses;
    bool made = false;   // its machine is asked for by the head
    bool again = false;  // the machine that had this name, and left, comes again
  };
  // {"node", "type", "valid_s", "valid_until", "script"}
  void issue(const Wanted& wanted, Engine::Answer done);
  void begin(const NodeId& node, Engine::Answer done);  // {"node", "valid_until"}
  // {"node", "state": "revoked"}; a node that has come with it leaves, as by remove().
  void revoke(const NodeId& node, Engine::Answer done);
  // As Engine::remove_node; of one that joined by itself "told" says whether it has hung up, as it
  // does once it cleans up.
  void remove(const NodeId& node, bool force, Engine::Answer done);
  nlohmann::json list() const;  // {"joins": [{"node", "type", "state", "issued", "valid_until"}…]}

  // ---- For the nodes' connections.
  // A caller of role `join`, who has proven nothing else.
  boost::asio::awaitable<void> serve(Greeter::Greeted greeted);
  // Absent: that node came, or is to come, another way, or may come no more.
  const JoinRecord* of(const NodeId& node) const;
  void forget(const NodeId& node);          // it has been shut out
  void told(const NodeId& node);            // that it has; it hung up
  bool is_taken(const NodeId& node) const;  // that name is some node's, or was not long ago
  std::vector<NodeId> made() const;         // those that count, or are to, by name
  // Called when a machine that the head has asked for shows a credential that does not count yet;
  // its request waits for begin(), kMostWait at most.
  void on_early(std::function<void()> look) { early_ = std::move(look); }
  bool has_left(const NodeId& node) const;  // with a certificate that may last; it may not come

 private:
  struct Open {
    JoinRecord record;
    int at_once = 0;
    int fetches = 0;
    int requests = 0;
    bool told = false;
  };
  struct Agent;
  // Held while an answer is on its way; its end is counted on the engine's thread.
  using Turn = std::shared_ptr<void>;

  Open& known(const NodeId& node);
  NodeId free_name() const;
  void check_new(const NodeId& node) const;
  void check_again(const NodeId& node) const;
  boost::asio::awaitable<void> until_begun(NodeId node);
  void drop_expired();
  std::vector<std::string> addresses(const Wanted& wanted) const;
  void keep(const NodeId& node, ConfigFile::Done done);
  Turn enter(Open& open);
  Turn counted(int& count);
  void tell_refused(const wire::CallerPtr& caller, const Error& why);
  void refuse(const wire::CallerPtr& caller, int status, const std::string& why);
  void send(const wire::CallerPtr& caller, wire::HttpAnswer answer, Turn turn);
  void give_agent(const wire::CallerPtr& caller, Turn turn);
  void take_request(const wire::CallerPtr& caller, const std::string& text, Turn turn);
  void grant(const wire::CallerPtr& caller, const JoinRecord& record, Turn turn);

  boost::asio::io_context& context_;
  boost::asio::io_context& sending_;
  ConfigFile& config_;
  Engine& engine_;
  const Clock& clock_;
  std::map<NodeId, Open> open_;
  std::function<void()> early_;
  std::multimap<NodeId, boost::asio::steady_timer*> waiting_;  // for their begin()
  const std::shared_ptr<Agent> agent_;
  int answered_ = 0;  // now
  int refused_ = 0;
  std::uint64_t refused_untold_ = 0;
  std::optional<std::chrono::steady_clock::time_point> refused_told_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrain::head
