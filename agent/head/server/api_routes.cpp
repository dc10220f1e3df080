#include <chrono>

#include "agent/head/server/api_impl.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/tune/search_spec.hpp"

// Which requests there are, and who answers them.
namespace dtrain::head {

using nlohmann::json;

namespace {

constexpr std::chrono::seconds kShutdownLimit{10};
constexpr int kMostNodes = 100000;
constexpr std::int64_t kLongestJoin = std::int64_t{7} * 24 * 3600;  // seconds

std::set<int> checkpoint_numbers(const json& list) {
  std::set<int> numbers;
  if (!list.is_array()) throw Error(ErrorCode::invalid, "\"checkpoints\" is no list");
  for (const json& number : list) {
    if (!number.is_number_unsigned() || number > INT32_MAX) {
      throw Error(ErrorCode::invalid, "\"checkpoints\" holds what is no number of one");
    }
    numbers.insert(number.get<int>());
  }
  return numbers;
}

std::optional<std::chrono::seconds> grace_of(const json& body) {
  if (!body.contains("grace_s")) return std::nullopt;
  return std::chrono::seconds(wire::get_int(body, "grace_s", 0, 86400));
}

std::map<std::string, std::string> secrets_of(const json& body) {
  std::map<std::string, std::string> secrets;
  const auto found = body.find("secrets");
  if (found == body.end()) return secrets;
  if (!found->is_object()) throw Error(ErrorCode::invalid, "\"secrets\" is no object");
  for (const auto& [name, value] : found->items()) {
    if (!value.is_string()) throw Error(ErrorCode::invalid, "secret " + name + " is no string");
    secrets[name] = value.get<std::string>();
  }
  return secrets;
}

std::size_t number_or(const std::map<std::string, std::size_t>& numbers, const char* name,
                      std::size_t otherwise) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? otherwise : found->second;
}

Joins::Wanted join_wanted(const json& body) {
  Joins::Wanted wanted;
  wanted.node = NodeId(wire::get_string(body, "node", ""));
  wanted.type = wire::get_string(body, "type", "");
  wanted.valid_for = std::chrono::seconds(wire::get_int(body, "valid_s", 1, kLongestJoin));
  wanted.begins = wire::get_bool(body, "begins", true);
  if (body.contains("addresses")) wanted.addresses = wire::get_strings(body, "addresses");
  if (body.contains("other_addresses")) {
    wanted.other_addresses = wire::get_strings(body, "other_addresses");
  }
  return wanted;
}

}  // namespace

std::span<const Api::Route> Api::routes() {
  static const Route kRoutes[] = {
      {"GET", "/v1/status",
       [](Api& api, const Request& of, const std::string&) {
         const auto wanted = numbers_query(of.query, "a status", {"jobs", "trials"});
         const auto jobs = wanted.find("jobs");
         json status = api.parts_.engine.status(
             jobs == wanted.end() ? std::nullopt : std::optional(jobs->second),
             wanted.contains("trials") && wanted.at("trials") > 0);
         status["cluster"]["head"]["port"] = api.parts_.door.port();
         status["cluster"]["head"]["problem"] = api.parts_.door.problem();
         if (api.parts_.succession != nullptr) {
           status["cluster"]["head"]["succession"] = api.parts_.succession->view();
         }
         for (json& node : status["nodes"]) {
           const NodeId id(node["node"].get<std::string>());
           node["head"] = api.parts_.nodes.shares_machine(id);
         }
         status["machines"] = api.parts_.machines.view();
         status["costs"] = api.parts_.machines.cost_view();
         status["cluster"]["down_when_idle"] = api.parts_.idle.view();
         status["cluster"]["open_ports"] = api.parts_.nodes.pair_tests().open_ports();
         return status;
       }},
      {"GET", "/v1/jobs",
       [](Api& api, const Request& of, const std::string&) {
         const auto reference = reference_query(of.query);
         return reference ? api.parts_.engine.jobs_meant(*reference) : api.parts_.engine.jobs();
       }},
      {"POST", "/v1/jobs", [](Api& api, const Request& of) { return api.submit(of.body()); }},
      {"GET", "/v1/jobs/{}",
       [](Api& api, const Request&, const std::string& id) {
         return api.parts_.engine.job(JobId(id));
       }},
      {"DELETE", "/v1/jobs/{}",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.engine.remove(JobId(id), std::move(done));
       }},
      {"GET", "/v1/jobs/{}/metrics",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         api.parts_.engine.job_metrics(JobId(id), metrics_query(of.query), std::move(done));
       }},
      {"GET", "/v1/jobs/{}/events",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.engine.job_events(JobId(id), std::move(done));
       }},
      {"POST", "/v1/jobs/{}/stop",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         api.parts_.engine.stop(JobId(id), grace_of(of.body()), std::move(done));
       }},
      {"POST", "/v1/jobs/{}/pulled",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         const std::set<int> numbers = checkpoint_numbers(wire::member(of.body(), "checkpoints"));
         api.parts_.engine.pulled(JobId(id), numbers, std::move(done));
       }},
      {"GET", "/v1/searches",
       [](Api& api, const Request& of, const std::string&) {
         const auto wanted = numbers_query(of.query, "a list of searches", {"count"});
         const auto count = wanted.find("count");
         return api.parts_.engine.searches(count == wanted.end() ? std::nullopt
                                                                 : std::optional(count->second));
       }},
      {"POST", "/v1/searches",
       [](Api& api, const Request& of) { return api.submit_search(of.body()); }},
      {"GET", "/v1/searches/{}",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         const auto wanted = numbers_query(of.query, "a search", {"trials"});
         api.parts_.engine.search(SearchId(id), number_or(wanted, "trials", 0), std::move(done));
       }},
      {"GET", "/v1/searches/{}/trials",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         const auto wanted = numbers_query(of.query, "a list of trials", {"from", "count"});
         api.parts_.engine.search_trials(SearchId(id), number_or(wanted, "from", 0),
                                         number_or(wanted, "count", Engine::kMostTrialsShown),
                                         std::move(done));
       }},
      {"POST", "/v1/searches/{}/stop",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         api.parts_.engine.stop_search(SearchId(id), grace_of(of.body()), std::move(done));
       }},
      {"POST", "/v1/searches/{}/resume",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         api.parts_.engine.resume_search(SearchId(id), secrets_of(of.body()), std::move(done));
       }},
      {"DELETE", "/v1/searches/{}",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.engine.remove_search(SearchId(id), std::move(done));
       }},
      {"POST", "/v1/nodes/{}/drain",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         const bool undo = wire::get_bool(of.body(), "undo", false);
         api.parts_.engine.drain(NodeId(id), undo, std::move(done));
       }},
      {"POST", "/v1/nodes/{}/remove",
       [](Api& api, const Request& of, const std::string& id, Engine::Answer done) {
         const bool force = wire::get_bool(of.body(), "force", false);
         api.parts_.joins.remove(NodeId(id), force, std::move(done));
       }},
      {"GET", "/v1/joins",
       [](Api& api, const Request&, const std::string&) { return api.parts_.joins.list(); }},
      {"POST", "/v1/joins",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.joins.issue(join_wanted(of.body()), std::move(done));
       }},
      {"POST", "/v1/joins/{}/begin",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.joins.begin(NodeId(id), std::move(done));
       }},
      {"DELETE", "/v1/joins/{}",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.joins.revoke(NodeId(id), std::move(done));
       }},
      {"GET", "/v1/preparation",
       [](Api& api, const Request&, const std::string&) { return api.parts_.preparations.get(); }},
      {"POST", "/v1/preparation",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.preparations.set(of.body(), std::move(done));
       }},
      {"GET", "/v1/machines",
       [](Api& api, const Request&, const std::string&) { return api.parts_.machines.view(); }},
      {"POST", "/v1/machines",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.machines.want(of.body(), std::move(done));
       }},
      {"GET", "/v1/costs",
       [](Api& api, const Request&, const std::string&) {
         return api.parts_.machines.cost_view();
       }},
      {"POST", "/v1/costs",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.machines.costs(of.body(), std::move(done));
       }},
      {"GET", "/v1/nodes/{}/setup",
       [](Api& api, const Request&, const std::string& id, Engine::Answer done) {
         api.parts_.setups.ask(NodeId(id), std::move(done));
       }},
      {"POST", "/v1/cluster",
       [](Api& api, const Request& of) { return api.expect_nodes(of.body()); }},
      {"POST", "/v1/node_types",
       [](Api& api, const Request& of) { return api.node_types(of.body()); }},
      {"POST", "/v1/settings", [](Api& api, const Request& of) { return api.settings(of.body()); }},
      {"POST", "/v1/prune",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.prunes.prune(wire::get_bool(of.body(), "dry_run", false), std::move(done));
       }},
      {"POST", "/v1/backup",
       [](Api& api, const Request&, const std::string&, Engine::Answer done) {
         api.parts_.engine.make_copy(std::move(done));
       }},
      {"POST", "/v1/doctor",
       [](Api& api, const Request& of, const std::string&, Engine::Answer done) {
         api.parts_.doctor.examine(wire::get_bool(of.body(), "fix", false), std::move(done));
       }},
      {"POST", "/v1/shutdown", [](Api& api, const Request&) { return api.shut_down(); }, true},
  };
  return kRoutes;
}

std::span<const Api::StreamRoute> Api::stream_routes() {
  static const StreamRoute kRoutes[] = {
      {"/v1/exec",
       [](Api& api, Socket& socket, const Request& of, const std::string&) {
         ExecHub& execs = api.parts_.execs;
         api.serve_stream(std::move(socket), of, "an exec",
                          [&execs](wire::FrameStreamPtr stream) { return execs.serve(stream); });
       }},
      {"/v1/forward",
       [](Api& api, Socket& socket, const Request& of, const std::string&) {
         ExecHub& execs = api.parts_.execs;
         const auto [node, port] = forward_query(of.query);
         if (!node.str().empty() && !api.parts_.nodes.connected(node)) {
           throw Error(ErrorCode::not_found, "node " + node.str() + " is not connected")
               .with_hint("`dtrain status` lists the nodes");
         }
         api.serve_stream(std::move(socket), of, "a forward",
                          [&execs, to = node, to_port = port](wire::FrameStreamPtr stream) {
                            return execs.forward(stream, to, to_port);
                          });
       }},
      {"/v1/content/upload",
       [](Api& api, Socket& socket, const Request& of, const std::string&) {
         api.parts_.contents.upload(std::move(socket), of.text(), api.parts_.sessions.enter());
       }},
      {"/v1/jobs/{}/follow",
       [](Api& api, Socket& socket, const Request& of, const std::string& id) {
         const JobId job(id);
         (void)api.parts_.engine.newest_attempt(job);  // Error(not_found) is answered in plain HTTP
         const FollowQuery query = parse_follow_query(of.query);
         api.parts_.logs.follow(std::move(socket), of.text(), job, query);
       }},
  };
  return kRoutes;
}

void Api::keep(const std::function<void(HeadConfig&)>& change, Engine::Answer done) {
  parts_.config.change(change, [done = std::move(done)](const std::optional<Error>& failed) {
    done(failed ? wire::error_to_json(*failed) : json::object());
  });
}

asio::awaitable<json> Api::expect_nodes(json body) {
  const int count = static_cast<int>(wire::get_int(body, "expected_nodes", 1, kMostNodes));
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    keep([count](HeadConfig& config) { config.expected_nodes = count; }, std::move(done));
  };
  co_await answer_of(std::move(start));
  parts_.engine.expect_nodes(count);
  json answer;
  answer["expected_nodes"] = count;
  co_return answer;
}

asio::awaitable<json> Api::node_types(json body) {
  const wire::NodeTypes types = wire::node_types_from_json(body);
  if (types != parts_.config->node_types) {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      keep([&](HeadConfig& config) { config.node_types = types; }, std::move(done));
    };
    co_await answer_of(std::move(start));
  }
  parts_.engine.set_node_types(types);
  co_return wire::to_json(types);
}

asio::awaitable<json> Api::settings(json body) {
  const StorageSpec wanted = storage_spec_from_json(body);
  const bool changed = wanted != parts_.engine.storage();
  if (changed) {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      keep([&](HeadConfig& config) { config.storage = wanted; }, std::move(done));
    };
    co_await answer_of(std::move(start));
    parts_.engine.set_storage(wanted);
  }
  json answer = to_json(wanted);
  answer["changed"] = changed;
  answer["warnings"] = parts_.engine.warnings();
  co_return answer;
}

// What the job is made of and is not here: {"missing": […]}, or an empty object.
asio::awaitable<json> Api::missing_for(JobSpec spec, bool wait) {
  parts_.engine.check_content(spec);
  if (!wait) parts_.engine.check_fits(spec);
  const std::vector<std::string> trees = parts_.engine.content_wanted(spec);
  if (trees.empty()) co_return json::object();
  std::function<void(Engine::Answer)> look = [&](Engine::Answer done) {
    parts_.contents.missing(trees, std::move(done));
  };
  json missing = co_await answer_of(std::move(look));
  if (missing["missing"].empty()) co_return json::object();
  co_return missing;
}

asio::awaitable<json> Api::submit_search(json body) {
  tune::Problems problems;
  tune::SearchSpec spec = while_doing(
      "reading the search (this head is of dtrain " DTRAIN_VERSION ")",
      [&] { return tune::search_spec_from_json(wire::member(body, "spec"), problems); });
  problems.check();
  if (wire::get_bool(body, "dry_run", false)) co_return parts_.engine.plan_search(spec);
  const std::string submission = wire::get_string(body, "submission_id");
  const std::map<std::string, std::string> secrets = secrets_of(body);
  json missing =
      co_await missing_for(Engine::first_trial(spec), wire::get_bool(body, "wait", false));
  if (!missing.empty()) co_return missing;
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.submit_search(submission, spec, secrets, std::move(done));
  };
  json answered = co_await answer_of(std::move(start));
  co_return answered;
}

asio::awaitable<json> Api::submit(json body) {
  JobSpec spec = while_doing("reading the job (this head is of dtrain " DTRAIN_VERSION ")", [&] {
    return job_spec_from_json(wire::member(body, "spec"), UnknownKeys::refuse);
  });
  const std::vector<Error> problems = validate(spec);
  if (!problems.empty()) throw problems.front();
  if (wire::get_bool(body, "dry_run", false)) co_return parts_.engine.plan(spec);
  const std::string submission = wire::get_string(body, "submission_id");
  const std::map<std::string, std::string> secrets = secrets_of(body);
  json missing = co_await missing_for(spec, wire::get_bool(body, "wait", false));
  if (!missing.empty()) co_return missing;
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.submit(submission, spec, secrets, std::move(done));
  };
  json answered = co_await answer_of(std::move(start));
  co_return answered;
}

asio::awaitable<json> Api::shut_down() {
  log::info("shutting down");
  parts_.machines.end();
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.stop_all(std::move(done));
  };
  (void)co_await answer_of(std::move(start));
  const std::vector<NodeId> told = co_await parts_.nodes.shut_down(kShutdownLimit);
  json answer;
  answer["nodes"] = json::array();
  for (const NodeId& node : told) {
    json row;
    row["node"] = node.str();
    row["state"] = parts_.nodes.connected(node) ? "lost" : "gone";
    answer["nodes"].push_back(std::move(row));
  }
  co_return answer;
}

}  // namespace dtrain::head
