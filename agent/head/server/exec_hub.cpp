#include "agent/head/server/exec_hub.hpp"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/limits.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using boost::system::error_code;
using nlohmann::json;

namespace {

constexpr std::chrono::seconds kBulkLimit{2};  // from a node's joining to its bulk connection
constexpr std::size_t kClientQueue = std::size_t{512} << 10;

}  // namespace

struct ExecHub::Client {
  explicit Client(wire::FrameStreamPtr frames) : stream(std::move(frames)) {}

  wire::FrameStreamPtr stream;
  bool raw = false;                            // bytes go as they are: a forward
  std::map<std::string, std::uint64_t> execs;  // still running; bytes of input that each has taken
  std::uint64_t input = 0;                     // bytes that came
  std::uint64_t credited = 0;                  // of these, those that the client was told are taken
  std::map<std::string, std::size_t> owed;     // bytes of output, credit for which is to come

  void send(const json& frame) { stream->send_text(wire::dump(frame)); }

  void take_input(std::size_t bytes) {
    input += bytes;
    if (input - credited > 2 * wire::kInputWindow) {
      throw Error(ErrorCode::invalid, "a client sends more input than its commands take");
    }
  }

  // Now and then, not for each key.
  void return_credit() {
    std::uint64_t taken = input;
    for (const auto& [exec, of_it] : execs) taken = std::min(taken, of_it);
    if (taken < credited + wire::kInputWindow / 4) return;
    send({{"type", "credit"}, {"bytes", taken - credited}});
    credited = taken;
  }
};

ExecHub::ExecHub(asio::io_context& context, NodeConnections& nodes)
    : context_(context), nodes_(nodes) {
  NodeConnections::BulkHooks hooks;
  hooks.opened = [this](const NodeId&) {
    for (asio::steady_timer* timer : waiting_) timer->cancel();
  };
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& message, std::string& bytes) {
    from_node(node, message, bytes);
  };
  hooks.gone = [this](const NodeId& node) { node_gone(node); };
  nodes_.on_bulk(std::move(hooks));
}

std::vector<NodeId> ExecHub::nodes_of(const json& wanted) const {
  const std::vector<NodeId> connected = nodes_.nodes_for_commands();
  if (wanted == "all" || wanted == "head") {
    if (connected.empty()) throw Error(ErrorCode::unreachable, "no node is connected to the head");
    // Those of the head's own machine come first.
    return wanted == "all" ? connected : std::vector<NodeId>{connected.front()};
  }
  if (!wanted.is_array() || wanted.empty()) {
    throw Error(ErrorCode::invalid, "\"nodes\" must be a list of nodes, \"all\" or \"head\"");
  }
  std::vector<NodeId> nodes;
  for (const json& name : wanted) {
    if (!name.is_string()) throw Error(ErrorCode::invalid, "a node's name must be a string");
    NodeId node(name.get<std::string>());
    if (!nodes_.takes_commands(node)) {
      throw Error(ErrorCode::not_found, "node " + node.str() + " is not connected")
          .with_hint("`dtrain status` lists the nodes");
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::set<NodeId> ExecHub::nodes() const {
  std::set<NodeId> nodes;
  for (const auto& [exec, running] : running_) nodes.insert(running.node);
  return nodes;
}

// A node that has just joined opens its bulk connection a moment later.
asio::awaitable<std::vector<NodeId>> ExecHub::nodes_that_joined(json wanted) {
  const auto until = std::chrono::steady_clock::now() + kBulkLimit;
  while (nodes_.opens_bulk() && std::chrono::steady_clock::now() < until) {
    asio::steady_timer timer(context_, until);
    waiting_.insert(&timer);
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    waiting_.erase(&timer);
  }
  co_return nodes_of(wanted);
}

asio::awaitable<void> ExecHub::serve(wire::FrameStreamPtr stream) {
  const auto client = std::make_shared<Client>(stream);
  try {
    const wire::Frame first = co_await stream->read();
    json request = wire::parse_json(first.bytes, "the request");
    const std::vector<NodeId> nodes = co_await nodes_that_joined(wire::member(request, "nodes"));
    for (const NodeId& node : nodes) {
      const std::string exec = random_hex(8);
      request["exec"] = exec;
      request["type"] = "exec";
      const wire::BulkMessage message = wire::bulk_message_from_json(request);
      client->execs[exec] = 0;
      running_[exec] = {client, node};
      nodes_.send_bulk(node, message);
    }
    co_await pass_on(client);
  } catch (const Error& error) {
    if (stream->is_open()) {
      client->send(wire::error_to_json(error));
      stream->close();
    }
  } catch (const std::exception& error) {
    log::error("a client of exec failed", {{"error", error.what()}});
    stream->abort();
  }
  hang_up(*client);
}

asio::awaitable<void> ExecHub::forward(wire::FrameStreamPtr stream, NodeId node, int port) {
  const auto client = std::make_shared<Client>(stream);
  client->raw = true;
  try {
    json wanted = "head";
    if (!node.str().empty()) wanted = json::array({node.str()});
    const std::vector<NodeId> nodes = co_await nodes_that_joined(std::move(wanted));
    node = nodes.front();
    const std::string exec = random_hex(8);
    client->execs[exec] = 0;
    running_[exec] = {client, node};
    nodes_.send_bulk(node, wire::StartForward{exec, port});
    co_await pass_on(client);
  } catch (const Error& error) {
    if (stream->is_open()) {
      json end = wire::error_to_json(error);
      end["type"] = "end";
      client->send(end);
      stream->close();
    }
  } catch (const std::exception& error) {
    log::debug("a forward's client is gone", {{"reason", error.what()}});
    stream->abort();
  }
  hang_up(*client);
}

asio::awaitable<void> ExecHub::pass_on(std::shared_ptr<Client> client) {
  const wire::FrameStreamPtr stream = client->stream;
  while (true) {
    wire::Frame frame = co_await stream->read();
    if (!frame.text) {
      client->take_input(frame.bytes.size());
      for (const auto& [exec, taken] : client->execs) {
        for (std::size_t at = 0; at < frame.bytes.size(); at += wire::kBulkFrame) {
          std::string part = frame.bytes.substr(at, wire::kBulkFrame);
          nodes_.send_bulk(running_[exec].node, wire::ExecInput{exec, part.size()}, part);
        }
      }
      continue;
    }
    const json control = wire::parse_json(frame.bytes, "a control frame");
    for (const auto& [exec, taken] : client->execs) {
      wire::ExecControl passed;
      passed.exec = exec;
      passed.kind = wire::get_string(control, "type");
      passed.rows = static_cast<int>(wire::get_int(control, "rows", 1, 10000, 24));
      passed.cols = static_cast<int>(wire::get_int(control, "cols", 1, 10000, 80));
      passed.signal = wire::get_string(control, "signal", "");
      nodes_.send_bulk(running_[exec].node, passed);
    }
  }
}

void ExecHub::hang_up(Client& client) {
  for (const auto& [exec, taken] : client.execs) {
    wire::ExecControl control;
    control.exec = exec;
    control.kind = "hangup";
    nodes_.send_bulk(running_[exec].node, control);
    forget(exec);
  }
  client.execs.clear();
}

void ExecHub::from_node(const NodeId& node, const wire::BulkMessage& message, std::string& bytes) {
  if (const auto* output = std::get_if<wire::ExecOutput>(&message)) {
    const auto found = running_.find(output->exec);
    if (found == running_.end() || found->second.node != node) return;
    const auto client = found->second.client;
    if (!client->raw) {
      client->send({{"type", "output"},
                    {"node", node.str()},
                    {"stream", output->error_stream ? "err" : "out"},
                    {"bytes", bytes.size()}});
    }
    const bool returns = !client->owed.empty();
    client->owed[output->exec] += bytes.size();
    client->stream->send({false, std::move(bytes)});
    if (!returns) asio::co_spawn(context_, return_output_credit(client), asio::detached);
  } else if (const auto* credit = std::get_if<wire::ExecCredit>(&message)) {
    const auto found = running_.find(credit->exec);
    if (found == running_.end() || found->second.node != node) return;
    Client& client = *found->second.client;
    std::uint64_t& taken = client.execs[credit->exec];
    taken = std::min(client.input, taken + credit->bytes);
    client.return_credit();
  } else if (const auto* exit = std::get_if<wire::ExecExit>(&message)) {
    json frame = exit->error ? wire::error_to_json(*exit->error) : json::object();
    if (exit->exit_code) frame["exit_code"] = *exit->exit_code;
    finish(exit->exec, std::move(frame));
  }
}

// One waits for all that a client is sent: each frame written wakes those that wait.
asio::awaitable<void> ExecHub::return_output_credit(std::shared_ptr<Client> client) {
  co_await client->stream->queue_below(kClientQueue);
  for (const auto& [exec, bytes] : std::exchange(client->owed, {})) {
    const auto found = running_.find(exec);
    if (found == running_.end()) continue;  // it has ended
    nodes_.send_bulk(found->second.node, wire::ExecCredit{exec, bytes});
  }
}

void ExecHub::forget(const std::string& exec) {
  running_.erase(exec);
  if (end_) asio::post(context_, end_);
}

void ExecHub::node_gone(const NodeId& node) {
  std::vector<std::string> lost;
  for (const auto& [exec, running] : running_) {
    if (running.node == node) lost.push_back(exec);
  }
  for (const std::string& exec : lost) {
    finish(exec, wire::error_to_json(
                     Error(ErrorCode::unreachable, "the connection to " + node.str() + " broke")));
  }
}

void ExecHub::finish(const std::string& exec, json exit) {
  const auto found = running_.find(exec);
  if (found == running_.end()) return;
  const Running running = found->second;
  forget(exec);
  running.client->execs.erase(exec);
  if (running.client->raw) {
    exit["type"] = "end";
    running.client->send(exit);
    running.client->stream->close();
    return;
  }
  exit["type"] = "exit";
  exit["node"] = running.node.str();
  running.client->send(exit);
  if (running.client->execs.empty()) {
    running.client->send({{"type", "end"}});
    running.client->stream->close();
  } else {
    running.client->return_credit();
  }
}

}  // namespace dtrain::head
