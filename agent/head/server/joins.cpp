#include "agent/head/server/joins.hpp"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/head/join_script.hpp"
#include "agent/node/facts.hpp"
#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using nlohmann::json;

namespace {

constexpr const char* kAgentPath = "/v1/join/agent";
constexpr const char* kRequestPath = "/v1/join/request";
constexpr std::size_t kMostIncarnation = 64;
constexpr auto kTellRefusedEvery = std::chrono::minutes(1);  // docs/join.md

nlohmann::json end_of(const JoinRecord& record) {
  return record.begins ? json(rfc3339(*record.begins + record.valid_for)) : json();
}

struct Refusal {
  int status = 503;  // for now: it may be asked again
  std::string why;
};

}  // namespace

// The program that runs this head, as machines that join get it. The sum of its own file costs the
// engine's thread too much: loaded by the disk's, once, and then only read.
struct Joins::Agent {
  std::shared_ptr<const UniqueFd> file;
  FileSum sum;

  void load() {
    if (file) return;
    const auto opened = std::make_shared<const UniqueFd>(open_file("/proc/self/exe", O_RDONLY));
    sum = sum_open(opened->get());
    file = opened;
  }
};

Joins::Joins(asio::io_context& context, asio::io_context& sending, ConfigFile& config,
             Engine& engine, const Clock& clock)
    : context_(context),
      sending_(sending),
      config_(config),
      engine_(engine),
      clock_(clock),
      agent_(std::make_shared<Agent>()) {
  for (JoinRecord& record : read_joins(config.root())) {
    const NodeId node = record.node;
    open_[node].record = std::move(record);
  }
}

const JoinRecord* Joins::of(const NodeId& node) const {
  const auto found = open_.find(node);
  if (found == open_.end() || found->second.record.revoked) return nullptr;
  return &found->second.record;
}

void Joins::forget(const NodeId& node) {
  const auto found = open_.find(node);
  if (found == open_.end()) return;
  if (found->second.record.used()) {
    found->second.record.revoked = clock_.wall();
  } else {
    open_.erase(found);
  }
}

void Joins::told(const NodeId& node) {
  const auto found = open_.find(node);
  if (found != open_.end()) found->second.told = true;
}

bool Joins::is_taken(const NodeId& node) const {
  if (open_.contains(node) || engine_.has_seen(node)) return true;
  try {
    return config_.is_let_in(node);
  } catch (const Error&) {
    return false;  // where nothing can be seen none is let in either: that says why
  }
}

std::vector<NodeId> Joins::made() const {
  std::vector<NodeId> nodes;
  for (const auto& [node, open] : open_) {
    const JoinState state = state_of(open.record, clock_.wall());
    const bool counts = state != JoinState::expired && state != JoinState::revoked;
    if (open.record.made && counts) nodes.push_back(node);
  }
  return nodes;
}

bool Joins::has_left(const NodeId& node) const {
  const auto found = open_.find(node);
  return found != open_.end() && found->second.record.revoked;
}

Joins::Open& Joins::known(const NodeId& node) {
  const auto found = open_.find(node);
  if (found == open_.end() || found->second.record.revoked) {
    throw Error(ErrorCode::not_found,
                "there is no join credential of " + printable(node.str(), false))
        .with_hint("dtrain join-command --list shows them");
  }
  return found->second;
}

// ---- For the API.

// A name is not given twice: what the head keeps of a node that left stays that node's.
NodeId Joins::free_name() const {
  for (int number = 1;; ++number) {
    NodeId node("joined-" + std::to_string(number));
    if (!open_.contains(node) && !engine_.has_seen(node)) return node;
  }
}

void Joins::check_new(const NodeId& node) const {
  if (!valid_name(node.str()) || node.str() == "head") {
    throw Error(ErrorCode::invalid, "not a name for a node: " + printable(node.str(), false));
  }
  if (is_taken(node)) {
    throw Error(ErrorCode::conflict, "there is a node " + node.str() + ", or was, or is to be one")
        .with_hint("another name is wanted, or none");
  }
}

// Who had the name has left, and nobody else may have it.
void Joins::check_again(const NodeId& node) const {
  const auto found = open_.find(node);
  const Engine::Presence now = engine_.presence(node);
  const bool is_in = now == Engine::Presence::here || now == Engine::Presence::away ||
                     (found != open_.end() && !found->second.record.revoked);
  if (is_in || config_.is_leaving(node)) {
    throw Error(ErrorCode::conflict, node.str() + " has not left yet");
  }
}

// Nobody can come with them any more.
void Joins::drop_expired() {
  const WallTime now = clock_.wall();
  std::erase_if(open_, [&](const auto& each) {
    if (state_of(each.second.record, now) != JoinState::expired) return false;
    config_.work([root = config_.root(), node = each.first] { remove_join(root, node); },
                 [](const std::optional<Error>& failed) {
                   if (failed)
                     log::warn("an expired join credential stays", {{"why", failed->what()}});
                 });
    return true;
  });
}

std::vector<std::string> Joins::addresses(const Wanted& wanted) const {
  if (wanted.addresses.size() > kMostAddresses) {
    throw Error(ErrorCode::invalid,
                "a machine tries " + std::to_string(kMostAddresses) + " addresses at most");
  }
  std::vector<std::string> all;
  const auto add = [&](const std::string& as_written) {
    const std::string address = canonical_address(as_written);
    // A zone means something on one machine alone.
    if (!is_numeric_address(address) || address.find('%') != std::string::npos) return false;
    if (all.size() < kMostAddresses && std::find(all.begin(), all.end(), address) == all.end()) {
      all.push_back(address);
    }
    return true;
  };
  for (const std::string& address : wanted.addresses) {
    if (!add(address)) {
      throw Error(ErrorCode::invalid, "not an address: " + printable(address, false))
          .with_hint("one in numbers is wanted, without a zone, as 203.0.113.5 or 2001:db8::5");
    }
  }
  for (const std::string& address : wanted.other_addresses) add(address);
  for (const wire::Interface& each : node::gather_interfaces()) add(each.address);
  return all;
}

void Joins::keep(const NodeId& node, ConfigFile::Done done) {
  config_.work([root = config_.root(), record = known(node).record] { write_join(root, record); },
               std::move(done));
}

void Joins::issue(const Wanted& wanted, Engine::Answer done) {
  if (config_->is_local()) {
    throw Error(ErrorCode::conflict, "the head of this cluster listens to this machine alone")
        .with_hint("a cluster of provider ssh, also of this machine only, is open to others");
  }
  if (!wanted.type.empty() && !valid_name(wanted.type)) {
    throw Error(ErrorCode::invalid,
                "not the name of a node type: " + printable(wanted.type, false));
  }
  drop_expired();
  if (!wanted.made) {  // those are as many as the cluster's node types allow
    const auto unused = std::count_if(open_.begin(), open_.end(), [](const auto& each) {
      return !each.second.record.used() && !each.second.record.made;
    });
    if (static_cast<std::size_t>(unused) >= kMostCredentials) {
      throw Error(ErrorCode::exhausted,
                  std::to_string(unused) + " join credentials are not used yet")
          .with_hint("dtrain join-command --list shows them, --revoke takes one back");
    }
  }
  const NodeId node = wanted.node.empty() ? free_name() : wanted.node;
  wanted.again ? check_again(node) : check_new(node);
  const WallTime now = clock_.wall();
  JoinScript parts;
  parts.cluster = config_->cluster;
  parts.node = node;
  parts.addresses = addresses(wanted);
  parts.port = config_->port;
  if (config_->moves) parts.place = config_.root().place().string();
  parts.credential = join_credential(config_.root(), node, now);
  parts.ca_pem = read_file(config_.root().ca() / "cert.pem");
  if (parts.addresses.empty()) {
    throw Error(ErrorCode::conflict, "the head has no address that others could use")
        .with_hint("say one: dtrain join-command --address ADDRESS");
  }
  JoinRecord& record = (open_[node] = Open{}).record;
  record.node = node;
  record.type = wanted.type;
  record.credential = wire::fingerprint(parts.credential.certificate_pem);
  record.valid_for = wanted.valid_for;
  record.issued = now;
  record.made = wanted.made;
  if (wanted.begins) record.begins = now;
  json answer{{"node", node.str()},
              {"type", record.type},
              {"valid_s", record.valid_for.count()},
              {"valid_until", end_of(record)}};
  config_.work(
      [root = config_.root(), record, agent = agent_] {
        agent->load();
        write_join(root, record);
      },
      [this, node, parts = std::move(parts), answer = std::move(answer),
       done = std::move(done)](const std::optional<Error>& failed) mutable {
        if (failed) {
          open_.erase(node);
          return done(wire::error_to_json(*failed));
        }
        log::info("a join credential was made", {{"node", node.str()}});
        parts.agent = agent_->sum.sha256;
        answer["script"] = join_script(parts);
        done(std::move(answer));
      });
}

void Joins::begin(const NodeId& node, Engine::Answer done) {
  JoinRecord& record = known(node).record;
  if (record.begins) return done({{"node", node.str()}, {"valid_until", end_of(record)}});
  record.begins = clock_.wall();
  const auto [first, last] = waiting_.equal_range(node);
  for (auto each = first; each != last; ++each) each->second->cancel();
  keep(node, [this, node, done = std::move(done)](const std::optional<Error>& failed) {
    const auto found = open_.find(node);
    if (failed) {
      if (found != open_.end()) found->second.record.begins.reset();
      done(wire::error_to_json(*failed));
    } else if (found == open_.end()) {
      done(wire::error_to_json(Error(ErrorCode::conflict, node.str() + " was taken back")));
    } else {
      done({{"node", node.str()}, {"valid_until", end_of(found->second.record)}});
    }
  });
}

void Joins::revoke(const NodeId& node, Engine::Answer done) {
  known(node);
  const std::vector<NodeId> nodes = engine_.nodes();
  if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
    return remove(node, false, std::move(done));
  }
  config_.shut_out(node, false,
                   [this, node, done = std::move(done)](const std::optional<Error>& failed) {
                     if (failed) return done(wire::error_to_json(*failed));
                     forget(node);
                     log::info("a join credential was taken back", {{"node", node.str()}});
                     done({{"node", node.str()}, {"state", "revoked"}});
                   });
}

void Joins::remove(const NodeId& node, bool force, Engine::Answer done) {
  engine_.remove_node(node, force, [this, node, done = std::move(done)](json answer) {
    const auto found = open_.find(node);
    if (found != open_.end() && found->second.record.revoked && !answer.contains("error")) {
      answer["told"] = found->second.told;
    }
    done(std::move(answer));
  });
}

json Joins::list() const {
  json joins = json::array();
  for (const auto& [node, open] : open_) {
    joins.push_back({{"node", node.str()},
                     {"type", open.record.type},
                     {"state", to_string(state_of(open.record, clock_.wall()))},
                     {"issued", rfc3339(open.record.issued)},
                     {"valid_until", end_of(open.record)}});
  }
  json answer;
  answer["joins"] = std::move(joins);
  return answer;
}

// ---- For the nodes' connections.

Joins::Turn Joins::counted(int& count) {
  ++count;
  // Let go of on any thread.
  return Turn(nullptr, [&context = context_, &count, guard = std::weak_ptr<int>(alive_)](void*) {
    asio::post(context, [&count, guard] {
      if (guard.lock()) --count;
    });
  });
}

Joins::Turn Joins::enter(Open& open) {
  if (answered_ >= kMostAtOnce) throw Refusal{503, "many machines join at the moment"};
  if (open.at_once >= kMostAtOnceOfOne) throw Refusal{503, "this credential is being used"};
  ++open.at_once;
  const auto whole = counted(answered_);
  return Turn(nullptr, [this, whole, node = open.record.node, shown = open.record.credential,
                        &context = context_, guard = std::weak_ptr<int>(alive_)](void*) {
    asio::post(context, [this, node, shown, guard] {
      if (!guard.lock()) return;
      const auto found = open_.find(node);
      if (found != open_.end() && found->second.record.credential == shown) {
        --found->second.at_once;
      }
    });
  });
}

// A machine that starts again and again with what is no good any more shall not fill the log.
void Joins::tell_refused(const wire::CallerPtr& caller, const Error& why) {
  ++refused_untold_;
  const auto now = std::chrono::steady_clock::now();
  if (refused_told_ && now - *refused_told_ < kTellRefusedEvery) return;
  log::info("a machine may not join", {{"node", caller->name().node.str()},
                                       {"from", caller->where()},
                                       {"why", why.what()},
                                       {"times", std::to_string(refused_untold_)}});
  refused_untold_ = 0;
  refused_told_ = now;
}

asio::awaitable<void> Joins::serve(Greeter::Greeted greeted) {
  const wire::CallerPtr& caller = greeted.caller;
  Refusal refusal;
  try {
    const bool fetches = caller->method() == "GET" && caller->path() == kAgentPath;
    const bool asks = caller->method() == "POST" && caller->path() == kRequestPath;
    if (!fetches && !asks) {
      throw Error(ErrorCode::denied,
                  "with a join credential the agent can be fetched and a certificate asked for, "
                  "nothing else");
    }
    const wire::PeerName& name = caller->name();
    co_await until_begun(name.node);
    const auto found = open_.find(name.node);
    check_credential(
        name.cluster == config_->cluster && found != open_.end() ? &found->second.record : nullptr,
        name.node, caller->fingerprint(), clock_.wall());
    Open& open = found->second;
    const Turn turn = enter(open);
    if (++(fetches ? open.fetches : open.requests) > (fetches ? kMostFetches : kMostRequests)) {
      throw Refusal{429, "this join credential has been used too often"};
    }
    if (fetches) {
      give_agent(caller, turn);
    } else {
      if (greeted.no_body) throw *greeted.no_body;
      take_request(caller, greeted.body, turn);
    }
    co_return;
  } catch (const Refusal& refused) {
    refusal = refused;
  } catch (const Error& error) {
    refusal.status = error.code() == ErrorCode::exhausted  ? 413
                     : error.code() == ErrorCode::conflict ? 503
                                                           : 403;
    refusal.why = error.what() + (error.hint().empty() ? "" : "; " + error.hint());
    tell_refused(caller, error);
  }
  refuse(caller, refusal.status, refusal.why);
}

// Nobody tells when a machine begins to run but itself, by asking.
asio::awaitable<void> Joins::until_begun(NodeId node) {
  const auto found = open_.find(node);
  const bool waits = found != open_.end() && found->second.record.made && early_ &&
                     state_of(found->second.record, clock_.wall()) == JoinState::waiting;
  if (!waits || waiting_.count(node) >= kMostAtOnceOfOne) co_return;
  early_();
  asio::steady_timer timer(context_, kMostWait);
  const auto place = waiting_.emplace(node, &timer);
  boost::system::error_code begun;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, begun));
  waiting_.erase(place);
}

void Joins::refuse(const wire::CallerPtr& caller, int status, const std::string& why) {
  if (refused_ >= kMostRefusedAtOnce) return;
  wire::HttpAnswer answer;
  answer.status = status;
  answer.body = why + "\n";
  send(caller, std::move(answer), counted(refused_));
}

void Joins::send(const wire::CallerPtr& caller, wire::HttpAnswer answer, Turn turn) {
  try {
    caller->answer_on(sending_.get_executor(), std::move(answer), [turn = std::move(turn)] {});
  } catch (const std::exception& error) {  // it is gone
    log::debug("a machine that would join is not answered", {{"why", error.what()}});
  }
}

void Joins::give_agent(const wire::CallerPtr& caller, Turn turn) {
  config_.work([agent = agent_] { agent->load(); },
               [this, caller, turn](const std::optional<Error>& failed) {
                 if (failed) return refuse(caller, 500, failed->what());
                 wire::HttpAnswer answer;
                 answer.type = "application/octet-stream";
                 answer.file = agent_->file;
                 answer.size = agent_->sum.size;
                 answer.sha256 = agent_->sum.sha256;
                 send(caller, std::move(answer), turn);
               });
}

void Joins::take_request(const wire::CallerPtr& caller, const std::string& text, Turn turn) {
  const NodeId node = caller->name().node;
  const json body = wire::parse_json(text, "the request", kRequestLimit, 4);
  const std::string request = wire::get_string(body, "request");
  const std::string incarnation =
      printable(wire::get_string(body, "incarnation").substr(0, kMostIncarnation), false);
  const wire::PeerName wanted{config_->cluster, wire::PeerName::Role::node, node};
  if (const wire::PeerName asked = wire::requested_name(request); asked != wanted) {
    throw Error(ErrorCode::denied, "the request asks for " + asked.uri() +
                                       ", and the credential is for " + wanted.uri());
  }
  const std::string key = wire::key_fingerprint(request);
  // While it waited for the body it may have been taken back.
  const auto found = open_.find(node);
  check_credential(found == open_.end() ? nullptr : &found->second.record, node,
                   caller->fingerprint(), clock_.wall());
  JoinRecord& record = found->second.record;
  if (record.used() && record.key != key) {
    log::warn("another machine asked with a join credential that has been used",
              {{"node", node.str()},
               {"from", caller->where()},
               {"incarnation", incarnation},
               {"used_by", record.incarnation}});
    throw Error(ErrorCode::denied, "the join credential of " + node.str() +
                                       " has been used by another machine, or by this one under "
                                       "another key");
  }
  if (record.used() && record.certificates.empty()) throw Refusal{503, "it is being signed"};
  if (config_.is_leaving(node)) throw Error(ErrorCode::denied, node.str() + " is leaving");
  const bool again = record.used();
  if (!again) {
    record.key = key;
    record.incarnation = incarnation;
  }
  const auto made = std::make_shared<JoinRecord>(record);
  config_.work(
      [root = config_.root(), made, request, again, now = clock_.wall()] {
        if (!again) {
          made->certificates = sign_new(root, made->node, request, now);
          write_join(root, *made);
        }
        // Also when it asks again: the head may have died between the two.
        let_in(root, made->node);
      },
      [this, made, again, caller, turn](const std::optional<Error>& failed) {
        const auto still = open_.find(made->node);
        const bool ours = still != open_.end() && !still->second.record.revoked &&
                          still->second.record.credential == made->credential;
        if (failed) {
          if (ours && !again) still->second.record.key.clear();
          log::error("a machine cannot join",
                     {{"node", made->node.str()}, {"why", failed->what()}});
          return refuse(caller, 500, failed->what());
        }
        if (!ours) return refuse(caller, 403, "the join credential was taken back");
        still->second.record.certificates = made->certificates;
        log::info(again ? "a machine asked again for its certificate" : "a machine may join",
                  {{"node", made->node.str()},
                   {"from", caller->where()},
                   {"incarnation", made->incarnation}});
        grant(caller, *made, turn);
      });
}

void Joins::grant(const wire::CallerPtr& caller, const JoinRecord& record, Turn turn) {
  wire::HttpAnswer answer;
  answer.type = "application/json";
  answer.body =
      wire::dump(json{{"certificates", record.certificates}, {"time", rfc3339(clock_.wall())}});
  send(caller, std::move(answer), std::move(turn));
}

}  // namespace dtrain::head
