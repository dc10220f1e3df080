#include "agent/head/server/preparations.hpp"

#include <memory>
#include <utility>

#include "agent/head/server/content_server.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

using nlohmann::json;

Preparations::Preparations(ConfigFile& config, ContentServer& contents, Engine& engine, Send send)
    : config_(config), contents_(contents), engine_(engine), send_(std::move(send)) {
  const fs::path file = config_.root().preparation();
  try {
    const auto text = read_file_if_there(file, kLimit);
    if (!text) return;
    current_ = Current(wire::preparation_from_json(wire::parse_json(*text, "the preparation")));
    given_ = true;
  } catch (const Error& error) {  // an `up` makes it anew
    damaged_ = true;
    log::error("what nodes prepare is not known", {{"why", error.what()}, {"file", file.string()}});
  }
}

void Preparations::set(const json& body, Engine::Answer done) {
  const auto next = std::make_shared<Current>(wire::preparation_from_json(body));
  std::string text = wire::dump(wire::to_json(next->preparation)) + "\n";
  if (text.size() > kLimit) {
    throw Error(ErrorCode::exhausted, "mounts and setup commands have " + human_bytes(text.size()) +
                                          " of text, and may have " + human_bytes(kLimit));
  }
  const auto keep = [this, next, text = std::move(text), done] {
    config_.work([file = config_.root().preparation(), text] { write_file_atomic(file, text); },
                 [this, next, done](const std::optional<Error>& failed) {
                   if (failed) return done(wire::error_to_json(*failed));
                   current_ = *next;
                   given_ = true;
                   damaged_ = false;
                   log::info("nodes that join are prepared anew", {{"key", next->key}});
                   for (auto& [node, told] : nodes_) begin(node, told);
                   done(get());
                 });
  };
  if (next->preparation.tree.empty()) return keep();
  contents_.missing({next->preparation.tree}, [keep, done](const json& answer) {
    if (answer.contains("error")) return done(answer);
    if (answer.at("missing").empty()) return keep();
    done(wire::error_to_json(
        Error(ErrorCode::conflict, "files of the preparation have not been sent, or are gone")));
  });
}

json Preparations::get() const {
  if (damaged_) return {{"preparation", nullptr}, {"key", "damaged"}};
  if (!given_) return {{"preparation", nullptr}, {"key", nullptr}};
  return {{"preparation", wire::to_json(current_.preparation)}, {"key", current_.key}};
}

std::string Preparations::why_not(const NodeId& node, const wire::Hello& hello) {
  const std::set<std::string> features(hello.features.begin(), hello.features.end());
  const bool too_old = !features.contains("preparation");
  nodes_[node] = {too_old, hello.prepared};
  const bool wanted = damaged_ || !current_.preparation.empty();
  if (too_old || !wanted || !hello.prepared.empty()) return "";
  return damaged_ ? "is not prepared: the head has lost how; dtrain up says it anew"
                  : wire::kIsBeingPrepared;
}

void Preparations::welcomed(const NodeId& node) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end()) begin(node, found->second);
}

void Preparations::gone(const NodeId& node) {
  nodes_.erase(node);
}

// Also where there is nothing to be done: the node keeps that it was ready once.
void Preparations::begin(const NodeId& node, Told& told) {
  if (damaged_ || told.prepared == current_.key) return;
  if (told.too_old) {
    const std::string why = "its agent is too old to be prepared: revoke it, and let it join anew";
    return engine_.preparing(node, current_.preparation.empty() ? "" : why, false);
  }
  const bool waits = told.prepared.empty() && !current_.preparation.empty();
  if (!told.prepared.empty()) told.prepared = wire::kPreparedIsChanging;
  engine_.preparing(node, wire::kIsBeingPrepared, waits);  // whatever was said of it before
  send_(node, wire::PrepareNode{current_.key, current_.preparation});
}

void Preparations::heard(const NodeId& node, const wire::Preparing& news) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || news.key != current_.key) return;
  std::string& prepared = found->second.prepared;
  const bool waits = prepared.empty() && !current_.preparation.empty();
  if (news.error) {
    log::warn("a node cannot be prepared", {{"node", node.str()}, {"why", news.error->what()}});
    std::string why = wire::preparation_words(news.error->what());
    if (const std::string& hint = news.error->hint(); !hint.empty()) {
      why += "; " + wire::preparation_words(hint);
    }
    engine_.preparing(node, wire::kCannotBePrepared + why, waits);
  } else if (news.done) {
    prepared = news.key;
    log::info("a node is prepared",
              {{"node", node.str()}, {"left", wire::preparation_words(news.text)}});
    engine_.preparing(node, wire::preparation_words(news.text), false);
  } else {
    const std::string at = news.step + (news.text.empty() ? "" : ": " + news.text);
    engine_.preparing(
        node, std::string(wire::kIsBeingPrepared) + ": " + wire::preparation_words(at), waits);
  }
}

std::optional<JobContent> Preparations::content_for(const NodeId& node,
                                                    const std::string& key) const {
  if (key != current_.key || !nodes_.contains(node)) return std::nullopt;
  JobContent content;
  content.workdir_tree = current_.preparation.tree;
  return content;
}

std::set<std::string> Preparations::trees() const {
  if (current_.preparation.tree.empty()) return {};
  return {current_.preparation.tree};
}

}  // namespace dtrain::head
