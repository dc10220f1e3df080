#include "agent/head/server/prunes.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/wire/collect.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

constexpr auto kFirst = 5min;  // after the head's start
constexpr auto kEvery = 60min;
const std::string kHead = "head";  // no node is called so

json row_of(const std::string& node, const wire::Collected& answer) {
  json items = json::array();
  for (const wire::Collected::Item& item : answer.items) {
    items.push_back({{"kind", item.kind}, {"count", item.count}, {"bytes", item.bytes}});
  }
  json row{{"node", node}, {"items", std::move(items)}};
  row["error"] = answer.error ? wire::error_to_json(*answer.error)["error"] : json();
  return row;
}

wire::Collected failed(ErrorCode code, const std::string& why) {
  wire::Collected answer;
  answer.error = Error(code, why);
  return answer;
}

}  // namespace

struct Prunes::Round {
  explicit Round(asio::io_context& context) : limit(context) {}
  bool dry_run = false;
  Engine::Answer done;
  // Who was asked, in order; absent: has not answered yet.
  std::vector<std::pair<std::string, std::optional<wire::Collected>>> rows;
  asio::steady_timer limit;
};

Prunes::Prunes(asio::io_context& context, Engine& engine, NodeConnections& nodes,
               ContentServer& contents, const Preparations& preparations,
               const paths::HeadRoot& root)
    : context_(context),
      engine_(engine),
      nodes_(nodes),
      contents_(contents),
      preparations_(preparations),
      store_(root.content()),
      clock_(context) {
  NodeConnections::BulkHooks hooks;
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& message, std::string&) {
    const auto* answer = std::get_if<wire::Collected>(&message);
    if (answer != nullptr) answered(answer->request, node.str(), *answer);
  };
  hooks.gone = [this](const NodeId& node) {
    std::vector<std::string> requests;
    for (const auto& [request, round] : rounds_) requests.push_back(request);
    for (const std::string& request : requests) {
      answered(request, node.str(), failed(ErrorCode::unreachable, "the connection to it broke"));
    }
  };
  nodes_.on_bulk(std::move(hooks));
}

void Prunes::serve() {
  by_the_clock(kFirst);
}

void Prunes::by_the_clock(std::chrono::minutes after) {
  clock_.expires_after(after);
  clock_.async_wait([this](boost::system::error_code stopped) {
    if (stopped) return;
    // What is in the way may be of jobs that are lost or cannot be read, until somebody asks.
    const bool is_kept = engine_.restored_lately() || engine_.has_unread_jobs();
    if (!is_kept) round(false, false, [](const json&) {});
    by_the_clock(kEvery);
  });
}

void Prunes::prune(bool dry_run, Engine::Answer done) {
  round(true, dry_run, std::move(done));
}

void Prunes::round(bool asked, bool dry_run, Engine::Answer done) {
  wire::CollectAsk ask;
  ask.request = random_hex(8);
  ask.dry_run = dry_run;
  ask.asked = asked;
  ask.cache_size = engine_.storage().content_cache_size;
  ask.gathered = std::chrono::system_clock::now();
  const auto round = std::make_shared<Round>(context_);
  round->dry_run = dry_run;
  round->done = std::move(done);
  rounds_[ask.request] = round;
  round->rows.emplace_back(kHead, std::nullopt);
  for (const NodeId& node : engine_.nodes()) {
    auto& row = round->rows.emplace_back(node.str(), std::nullopt);
    if (!nodes_.connected(node)) {
      row.second = failed(ErrorCode::unreachable, "it is not connected");
    } else if (!nodes_.has_feature(node, "collect")) {
      row.second = failed(ErrorCode::conflict, "its agent is too old to give disk back");
    } else {
      nodes_.ask(node, ask);
    }
  }
  round->limit.expires_after(kPatience);
  round->limit.async_wait([this, request = ask.request](boost::system::error_code stopped) {
    if (!stopped) finish(request);
  });
  std::set<std::string> trees = engine_.content_trees();
  trees.merge(preparations_.trees());
  worker_.add([this, ask, trees = std::move(trees), blobs = contents_.held(),
               guard = std::weak_ptr<int>(alive_)] {
    wire::Collected answer = wire::collect_store(store_, trees, blobs, ask);
    asio::post(context_, [this, guard, request = ask.request, answer = std::move(answer)] {
      if (guard.lock()) answered(request, kHead, answer);
    });
  });
}

void Prunes::answered(const std::string& request, const std::string& who, wire::Collected answer) {
  const auto found = rounds_.find(request);
  if (found == rounds_.end()) return;
  auto& rows = found->second->rows;
  const auto open = std::find_if(rows.begin(), rows.end(),
                                 [&](const auto& row) { return row.first == who && !row.second; });
  if (open != rows.end()) open->second = std::move(answer);
  const auto has_answer = [](const auto& row) { return row.second.has_value(); };
  if (std::all_of(rows.begin(), rows.end(), has_answer)) finish(request);
}

void Prunes::finish(const std::string& request) {
  const auto found = rounds_.find(request);
  if (found == rounds_.end()) return;
  const std::shared_ptr<Round> round = found->second;
  rounds_.erase(found);
  round->limit.cancel();
  json answer{{"dry_run", round->dry_run}, {"nodes", json::array()}};
  std::uint64_t bytes = 0;
  for (const auto& [node, row] : round->rows) {
    const wire::Collected said = row.value_or(
        failed(ErrorCode::timeout,
               "it is not done after " + std::to_string(kPatience.count()) + " s, and goes on"));
    for (const wire::Collected::Item& item : said.items) bytes += item.bytes;
    answer["nodes"].push_back(row_of(node, said));
  }
  answer["bytes"] = bytes;
  round->done(std::move(answer));
}

}  // namespace dtrain::head
