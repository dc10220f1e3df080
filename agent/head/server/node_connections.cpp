#include "agent/head/server/node_connections.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "agent/head/server/checkpoint_transfers.hpp"
#include "agent/head/server/joins.hpp"
#include "agent/head/server/preparations.hpp"
#include "agent/node/facts.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr auto kSendOffLimit = 10s;
std::string text_of(const wire::HeadMessage& message) {
  return wire::dump(wire::to_json(message));
}

void tell_broken(const std::exception_ptr& broken) {
  try {
    if (broken) std::rethrow_exception(broken);
  } catch (const std::exception& error) {
    log::info("a connection ended", {{"reason", error.what()}});
  }
}

}  // namespace

Error agent_too_old(const std::string& for_what) {
  return Error(ErrorCode::conflict, "its agent is too old to " + for_what)
      .with_hint("`dtrain up` with this dtrain brings it up to date");
}

NodeConnections::NodeConnections(asio::io_context& context, ConfigFile& config, NodeDoor& door)
    : context_(context),
      config_(config),
      door_(door),
      machine_(node::gather_facts().machine),
      pairs_(
          context,
          [this](const NodeId& node, const wire::HeadMessage& message) { tell(node, message); },
          [this](const JobId& job, int attempt, const std::vector<Nodes::BrokenPair>& broken) {
            engine_->pairs_checked(job, attempt, broken);
          }) {}

void NodeConnections::serve(Engine& engine) {
  engine_ = &engine;
  door_.serve(*joins_, [this](const wire::CallerPtr& caller) { speak(caller); });
}

void NodeConnections::speak(const wire::CallerPtr& caller) {
  const std::string& path = caller->path();
  if (path == "/v1/node/content") {
    if (take_content_) take_content_(caller);
    return;
  }
  if (path == "/v1/node/checkpoint") return transfers_->serve_node(caller);
  const bool control = path == "/v1/node/control";
  if (!control && path != "/v1/node/bulk") return;  // a node of another dtrain: it is hung up on
  caller->accept_on(context_.get_executor(), [this, control, name = caller->name(),
                                              path](wire::FrameStreamPtr stream) {
    wire::AcceptedPeer peer{std::move(stream), name, path};
    asio::co_spawn(context_, control ? serve_control(std::move(peer)) : serve_bulk(std::move(peer)),
                   tell_broken);
  });
}

asio::awaitable<void> NodeConnections::serve_control(wire::AcceptedPeer peer) {
  const wire::FrameStreamPtr stream = peer.stream;
  const NodeId id = peer.name.node;
  const wire::Frame first = co_await stream->read();
  wire::NodeMessage message =
      wire::node_message_from_json(wire::parse_json(first.bytes, "a node's hello"));
  const auto* hello = std::get_if<wire::Hello>(&message);
  if (hello == nullptr || hello->node != id || hello->cluster != config_->cluster) {
    stream->abort();
    throw Error(ErrorCode::denied, id.str() + " does not say who its certificate says it is");
  }
  if (!config_.is_let_in(id)) {  // revoked while it kept silent
    stream->abort();
    throw Error(ErrorCode::denied, id.str() + " is not let in any more");
  }
  if (hello->version != wire::kNodeVersion) {
    Error refusal(ErrorCode::conflict, "the node speaks version " + std::to_string(hello->version) +
                                           " and this head version " +
                                           std::to_string(wire::kNodeVersion));
    refusal.with_hint("run `dtrain up` with one dtrain for all nodes");
    const wire::HeadMessage refused = wire::Refused{refusal};
    stream->send_text(text_of(refused));
    stream->close();
    throw refusal;
  }
  Connection& connection = connections_[id];
  if (connection.control) connection.control->abort();
  end_bulk(id, connection);
  connection.control = stream;
  // What a node says of its machine is believed of ours only when it comes from here: on it stands
  // which of its files are taken to be the head's own.
  const bool claims_ours = hello->machine == machine_;
  // What joined by itself takes its files along when it goes.
  connection.same_machine = claims_ours && stream->peer_is_here() && joins_->of(id) == nullptr;
  connection.features = {hello->features.begin(), hello->features.end()};
  wire::Welcome welcome;
  welcome.features = wire::kNodeFeatures;
  welcome.mirror = !connection.same_machine && connection.features.contains("mirror");
  welcome.provider = config_->provider;
  welcome.sent = boot_time();
  const wire::HeadMessage greeting = welcome;
  stream->send_text(text_of(greeting));
  log::info("a node joined", {{"node", id.str()}, {"address", hello->address}});
  NodeInfo info;
  info.node = id;
  info.address = hello->address;
  info.head_address = stream->local_address();
  info.interfaces = hello->interfaces;
  info.features = hello->features;
  info.boot_id = hello->boot_id;
  info.machine = hello->machine;
  if (claims_ours && !connection.same_machine) info.machine += " seen from " + id.str();
  info.version = hello->agent_version;
  info.root = hello->root;
  info.log = hello->log;
  info.cpus = hello->cpus;
  info.gpus = hello->gpus;
  info.memory = hello->memory;
  info.glibc = hello->glibc;
  info.slurm = hello->slurm;
  info.attempts = hello->attempts;
  info.jobs = hello->jobs;
  if (const JoinRecord* join = joins_->of(id)) {
    info.joined = true;
    info.type = join->type;
    info.preparing = preparations_->why_not(id, *hello);
  }
  info.leaving = hello->leaving;
  engine_->joined(info);
  preparations_->welcomed(id);
  if (on_change_) on_change_(id);

  std::string reason;
  try {
    while (true) {
      const wire::Frame frame = co_await stream->read();
      const auto mine = connections_.find(id);
      if (mine == connections_.end() || mine->second.control != stream) break;  // revoked, or anew
      engine_->heard(id);
      const nlohmann::json json = wire::parse_json(frame.bytes, "a node's message");
      wire::handler_does(wire::get_string(json, "type") + " of " + id.str());
      handle(id, wire::node_message_from_json(json), stream);
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  stream->abort();
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.control != stream) co_return;  // it came anew
  log::warn("a node is gone", {{"node", id.str()}, {"reason", reason}});
  Connection ended = std::move(found->second);
  connections_.erase(found);
  end_bulk(id, ended);
  pairs_.gone(id);
  preparations_->gone(id);
  engine_->gone(id);
  if (on_change_) on_change_(id);
}

void NodeConnections::handle(const NodeId& node, wire::NodeMessage message,
                             const wire::FrameStreamPtr& stream) {
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    engine_->heartbeat(node, *beat);
    wire::Heartbeat head;
    head.sent = boot_time();
    const wire::HeadMessage answer = head;
    stream->send_text(text_of(answer));
  } else if (const auto* event = std::get_if<wire::FromSupervisor>(&message)) {
    failpoint("event.take.before");
    engine_->event(node, event->job, event->attempt, event->event);
    failpoint("event.take.after");
  } else if (const auto* lost = std::get_if<wire::SupervisorLost>(&message)) {
    engine_->supervisor_lost(node, lost->job, lost->attempt, lost->reason, lost->unkillable);
  } else if (const auto* failed = std::get_if<wire::StartFailed>(&message)) {
    engine_->start_failed(node, failed->job, failed->attempt, failed->error);
  } else if (const auto* staging = std::get_if<wire::Staging>(&message)) {
    engine_->staging(node, *staging);
  } else if (const auto* stacks = std::get_if<wire::StacksTaken>(&message)) {
    engine_->stacks_taken(node, *stacks);
  } else if (const auto* released = std::get_if<wire::LogsReleased>(&message)) {
    engine_->logs_released(node.str(), released->job, released->error);
  } else if (const auto* prepared = std::get_if<wire::AttemptPrepared>(&message)) {
    engine_->attempt_prepared(node, prepared->job, prepared->attempt, prepared->error);
  } else if (const auto* opened = std::get_if<wire::PairOpened>(&message)) {
    pairs_.opened(node, *opened);
  } else if (const auto* pairs = std::get_if<wire::PairResult>(&message)) {
    pairs_.dialled(node, *pairs);
  } else if (const auto* request = std::get_if<wire::RenewCertificate>(&message)) {
    renew(node, request->request);
  } else if (const auto* preparing = std::get_if<wire::Preparing>(&message)) {
    preparations_->heard(node, *preparing);
  } else if (const auto* leaving = std::get_if<wire::Leaving>(&message)) {
    // The machine that the head has asked for ends with it.
    const JoinRecord* join = joins_->of(node);
    const bool made = join != nullptr && join->made;
    engine_->leaving(node, leaving->reason, leaving->over, [stream, made] {
      const wire::HeadMessage shutdown = wire::Shutdown{made};
      stream->send_text(text_of(shutdown));
    });
    if (on_change_ && !leaving->over) on_change_(node);
  } else {
    throw Error(ErrorCode::invalid, "a second hello");
  }
}

asio::awaitable<void> NodeConnections::serve_bulk(wire::AcceptedPeer peer) {
  const wire::FrameStreamPtr stream = peer.stream;
  const NodeId id = peer.name.node;
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    stream->abort();
    throw Error(ErrorCode::conflict, id.str() + " opened its bulk connection before it joined");
  }
  if (found->second.bulk) end_bulk(id, found->second);
  found->second.bulk = stream;
  for (const wire::BulkMessage& message : std::exchange(found->second.asked, {})) {
    send_bulk(id, message);
  }
  for (const BulkHooks& hooks : bulk_hooks_) {
    if (hooks.opened) hooks.opened(id);
  }
  std::string reason;
  try {
    while (true) {
      const wire::Frame frame = co_await stream->read();
      engine_->heard(id);
      const wire::BulkMessage message =
          wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a bulk message"));
      std::string bytes;
      if (wire::carries_bytes(message)) {
        wire::Frame data = co_await stream->read();
        bytes = std::move(data.bytes);
      }
      const auto mine = connections_.find(id);
      if (mine == connections_.end() || mine->second.bulk != stream) break;  // revoked, or anew
      for (const BulkHooks& hooks : bulk_hooks_) {
        if (hooks.message) hooks.message(id, message, bytes);
      }
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  stream->abort();
  const auto still = connections_.find(id);
  if (still != connections_.end() && still->second.bulk == stream) {
    end_bulk(id, still->second);
  }
}

void NodeConnections::end_bulk(const NodeId& node, Connection& connection) {
  const bool awaited = connection.bulk != nullptr || !connection.asked.empty();
  if (connection.bulk) connection.bulk->abort();
  connection.bulk.reset();
  connection.asked.clear();
  if (!awaited) return;
  for (const BulkHooks& hooks : bulk_hooks_) {
    if (hooks.gone) hooks.gone(node);
  }
}

// For exactly the name of the certificate that this connection was made with.
void NodeConnections::renew(const NodeId& node, const std::string& request) {
  try {
    tell(node, wire::NewCertificate{
                   sign_again(config_.root(), node, request, std::chrono::system_clock::now())});
    log::info("a node's certificate is renewed", {{"node", node.str()}});
  } catch (const Error& error) {
    log::warn("a node's certificate is not renewed", {{"node", node.str()}, {"why", error.what()}});
  }
}

void NodeConnections::tell(const NodeId& node, const wire::HeadMessage& message) {
  const auto found = connections_.find(node);
  if (found != connections_.end()) found->second.control->send_text(text_of(message));
}

void NodeConnections::start(const NodeId& node, const wire::AttemptSpec& spec,
                            const std::map<std::string, std::string>& secrets) {
  failpoint("start.send.before");
  tell(node, wire::StartAttempt{spec, secrets});
  failpoint("start.send.after");
}

void NodeConnections::send(const NodeId& node, const JobId& job, int attempt,
                           const wire::AttemptCommand& command) {
  failpoint("command.send.before");
  tell(node, wire::ToSupervisor{job, attempt, command});
  failpoint("command.send.after");
}

void NodeConnections::forget(const NodeId& node, const JobId& job) {
  failpoint("forget.send.before");
  tell(node, wire::ForgetJob{job});
  failpoint("forget.send.after");
}

void NodeConnections::stage(const NodeId& node, const wire::Stage& wanted) {
  const auto found = connections_.find(node);
  if (found == connections_.end()) return;
  if (found->second.features.contains("content")) {
    tell(node, wanted);
    return;
  }
  asio::post(context_, [this, node, wanted] {
    engine_->start_failed(node, wanted.job, wanted.attempt, agent_too_old("bring a job's files"));
  });
}

void NodeConnections::unstage(const NodeId& node, const JobId& job, int attempt) {
  const auto found = connections_.find(node);
  if (found != connections_.end() && found->second.features.contains("content")) {
    tell(node, wire::Unstage{job, attempt});
  }
}

void NodeConnections::take_stacks(const NodeId& node, const wire::TakeStacks& wanted) {
  tell(node, wanted);
}

void NodeConnections::prepare(const NodeId& node, const wire::PrepareAttempt& what) {
  if (!what.checkpoint || !connected(node) || has_feature(node, "shards")) {
    tell(node, what);
    return;
  }
  asio::post(context_, [this, node, what] {
    engine_->attempt_prepared(node, what.job, what.attempt, agent_too_old("bring a checkpoint"));
  });
}

void NodeConnections::check_pairs(const JobId& job, int attempt, std::vector<PairMember> members) {
  pairs_.start(job, attempt, std::move(members));
}

std::string NodeConnections::fetch_shard(const NodeId& node, wire::ShardAsk ask,
                                         const fs::path& folder, Fetched done) {
  return transfers_->fetch(node, std::move(ask), folder, std::move(done));
}

void NodeConnections::shard_taken(const NodeId& node, const std::string& transfer,
                                  const std::optional<Error>& error) {
  transfers_->taken(node, transfer, error);
}

void NodeConnections::give_up(const NodeId& node) {
  transfers_->give_up(node);
  if (end_content_) end_content_(node);
  transfers_->end(node);
  if (on_change_) on_change_(node);
}

void NodeConnections::revoke(const NodeId& node, bool counted, Revoked done) {
  const bool joined = joins_->of(node) != nullptr;
  config_.shut_out(
      node, counted,
      [this, node, joined, done = std::move(done)](const std::optional<Error>& failed) {
        if (failed) return done(failed);
        if (joined) {
          joins_->forget(node);
          asio::co_spawn(context_, send_off(node, done), asio::detached);
          return;
        }
        end_all(node);
        done(failed);
      });
}

bool NodeConnections::is_let_in(const NodeId& node) const {
  return config_.is_let_in(node);
}

// One that joined by itself cleans up, as nobody else could there, and hangs up itself: the end of
// its other connections could overtake what it is told.
asio::awaitable<void> NodeConnections::send_off(NodeId node, Revoked done) {
  const bool was_here = connected(node);
  tell(node, wire::Shutdown{true});
  std::function<bool()> is_gone = [&] { return !connections_.contains(node); };
  co_await until(is_gone, kSendOffLimit);
  if (was_here && is_gone()) joins_->told(node);
  end_all(node);
  done(std::nullopt);
}

void NodeConnections::end_all(const NodeId& node) {
  if (end_content_) end_content_(node);
  transfers_->end(node);
  if (forbid_content_) forbid_content_(node);
  const auto found = connections_.find(node);
  if (found == connections_.end()) return;
  Connection ended = std::move(found->second);
  connections_.erase(found);
  end_bulk(node, ended);
  pairs_.gone(node);
  preparations_->gone(node);
  // What it is still to be told, that its ranks are to end, goes out first; nothing is heard.
  ended.control->close();
}

bool NodeConnections::connected(const NodeId& node) const {
  return connections_.contains(node);
}

bool NodeConnections::has_feature(const NodeId& node, const std::string& feature) const {
  const auto found = connections_.find(node);
  return found != connections_.end() && found->second.features.contains(feature);
}

bool NodeConnections::shares_machine(const NodeId& node) const {
  const auto found = connections_.find(node);
  return found != connections_.end() && found->second.same_machine;
}

bool NodeConnections::takes_commands(const NodeId& node) const {
  const auto found = connections_.find(node);
  return found != connections_.end() && found->second.bulk && found->second.bulk->is_open();
}

std::vector<NodeId> NodeConnections::nodes_for_commands() const {
  std::vector<NodeId> nodes;
  for (const bool here : {true, false}) {
    for (const auto& [id, connection] : connections_) {
      if (connection.same_machine == here && takes_commands(id)) nodes.push_back(id);
    }
  }
  return nodes;
}

bool NodeConnections::opens_bulk() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& each) { return each.second.control && !each.second.bulk; });
}

void NodeConnections::ask(const NodeId& node, const wire::BulkMessage& message) {
  const auto found = connections_.find(node);
  if (found == connections_.end()) return;
  if (found->second.bulk) return send_bulk(node, message);
  found->second.asked.push_back(message);
}

void NodeConnections::send_bulk(const NodeId& node, const wire::BulkMessage& message,
                                std::string bytes) {
  const auto found = connections_.find(node);
  if (found == connections_.end() || !found->second.bulk) return;
  found->second.bulk->send_text(wire::dump(wire::to_json(message)));
  if (wire::carries_bytes(message)) found->second.bulk->send({false, std::move(bytes)});
}

asio::awaitable<std::vector<NodeId>> NodeConnections::shut_down(std::chrono::milliseconds limit) {
  std::vector<NodeId> told;
  for (const auto& [id, connection] : connections_) told.push_back(id);
  for (const NodeId& node : told) tell(node, wire::Shutdown{joins_->of(node) != nullptr});
  while (!connections_.empty()) {
    const std::size_t left = connections_.size();
    std::function<bool()> fewer = [this, left] { return connections_.size() < left; };
    co_await until(std::move(fewer), limit);
    if (connections_.size() >= left) break;
  }
  co_return told;
}

asio::awaitable<void> NodeConnections::until(std::function<bool()> is_so,
                                             std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  asio::steady_timer timer(context_);
  while (!is_so() && std::chrono::steady_clock::now() < end) {
    timer.expires_after(2ms);
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

}  // namespace dtrain::head
