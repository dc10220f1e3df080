#include "agent/head/server/setup_asks.hpp"

#include <boost/asio/steady_timer.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using nlohmann::json;
using namespace std::chrono_literals;

struct SetupAsks::Question {
  NodeId node;
  Engine::Answer done;
  asio::steady_timer limit;
};

SetupAsks::SetupAsks(asio::io_context& context, NodeConnections& nodes)
    : context_(context), nodes_(nodes) {
  NodeConnections::BulkHooks hooks;
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& message, std::string&) {
    const auto* logs = std::get_if<wire::SetupLogs>(&message);
    if (logs == nullptr) return;
    const auto found = questions_.find(logs->request);
    if (found == questions_.end() || found->second->node != node) return;
    json list = json::array();
    for (const wire::SetupLogs::Log& each : logs->logs) {
      list.push_back({{"name", each.name}, {"text", each.text}});
    }
    json with;
    with["node"] = node.str();
    with["logs"] = std::move(list);
    answer(logs->request, std::move(with));
  };
  hooks.gone = [this](const NodeId& node) {
    std::vector<std::string> lost;
    for (const auto& [request, question] : questions_) {
      if (question->node == node) lost.push_back(request);
    }
    for (const std::string& request : lost) {
      answer(request, wire::error_to_json(Error(ErrorCode::unreachable,
                                                "the connection to " + node.str() + " broke")));
    }
  };
  nodes_.on_bulk(std::move(hooks));
}

void SetupAsks::ask(const NodeId& node, Engine::Answer done) {
  if (!nodes_.connected(node)) {
    throw Error(ErrorCode::not_found, "node " + printable(node.str(), false) + " is not connected")
        .with_hint("`dtrain status` lists the nodes");
  }
  const std::string request = random_hex(8);
  const auto question = std::make_shared<Question>(
      Question{node, std::move(done), asio::steady_timer(context_, 10s)});
  question->limit.async_wait([this, request, node](boost::system::error_code stopped) {
    if (stopped) return;
    answer(request, wire::error_to_json(Error(ErrorCode::timeout,
                                              node.str() + " does not say what its setup did")));
  });
  questions_[request] = question;
  nodes_.ask(node, wire::SetupAsk{request});
}

void SetupAsks::answer(const std::string& request, json with) {
  const auto found = questions_.find(request);
  if (found == questions_.end()) return;
  const std::shared_ptr<Question> question = found->second;
  questions_.erase(found);
  question->limit.cancel();
  question->done(std::move(with));
}

}  // namespace dtrain::head
