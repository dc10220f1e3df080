#include "launcher/cluster/asked_machines.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/wire/client.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/preparation.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstGlance{50};
constexpr milliseconds kLastGlance{1000};
constexpr std::chrono::seconds kAnswerLimit{10};

std::string with_reason(const std::string& state, const std::string& reason) {
  return reason.empty() ? state : state + ": " + reason;
}

class Awaited {
 public:
  explicit Awaited(UpRun& run) : run_(run) {}

  // True once none is to come any more.
  bool look(const wire::ApiClient& head) {
    nlohmann::json status;
    try {
      status = head.get("/v1/status", kAnswerLimit);
      heard_ = std::chrono::steady_clock::now();
    } catch (const Error& error) {  // it is started anew, say
      const bool passes =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      if (!passes || std::chrono::steady_clock::now() - heard_ > run_.options.ready_limit) throw;
      waits(head_name(), error.message());
      return false;
    }
    const nlohmann::json& machines = wire::member(status, "machines");
    std::map<std::string, const nlohmann::json*> nodes;
    for (const nlohmann::json& node : wire::member(status, "nodes")) {
      nodes.emplace(wire::get_string(node, "node"), &node);
    }
    for (AskedType& type : run_.report.asked) {
      type.ready.clear();
      type.error.reset();
    }
    for (const nlohmann::json& machine : wire::member(machines, "machines")) {
      const std::string node = wire::get_string(machine, "node");
      const auto here = nodes.find(node);
      AskedType* type = type_of(wire::get_string(machine, "type"));
      if (type == nullptr) continue;
      if (here == nodes.end()) {
        waits(node,
              with_reason(wire::get_string(machine, "state"), wire::get_string(machine, "reason")));
      } else {
        look_at(*type, node, *here->second);
      }
    }
    const bool troubled = has_trouble(machines);  // both are to be looked at
    return is_over(machines) || troubled;
  }

 private:
  std::string head_name() const { return run_.spec.promised().front().node.str(); }

  AskedType* type_of(const std::string& name) {
    auto& types = run_.report.asked;
    const auto found = std::find_if(types.begin(), types.end(),
                                    [&](const AskedType& type) { return type.type == name; });
    return found == types.end() ? nullptr : &*found;
  }

  // Often many wait for the same: it is told of the first as what takes long.
  void waits(const std::string& node, const std::string& text) {
    if (std::exchange(said_[node], text) == text) return;
    const bool is_news = waits_.insert(text).second;
    run_.options.progress({NodeId(node),
                           is_news ? NodeProgress::State::waiting : NodeProgress::State::at_work,
                           "machine", text, milliseconds(0)});
  }

  void look_at(AskedType& type, const std::string& node, const nlohmann::json& status) {
    const std::string state = wire::get_string(status, "state");
    const std::string reason = wire::get_string(status, "reason", "");
    const bool failed = reason.starts_with(wire::kCannotBePrepared);
    if (state == "ready" && !failed && !reason.starts_with(wire::kIsBeingPrepared)) {
      type.ready.emplace_back(node);
      if (std::exchange(said_[node], state) == state) return;
      run_.options.progress(
          {NodeId(node), NodeProgress::State::ready, "join", "", milliseconds(0)});
      return;
    }
    const std::string text = with_reason(state, reason);
    if (std::exchange(said_[node], text) != text) {
      run_.options.progress(
          {NodeId(node), NodeProgress::State::at_work, "join", text, milliseconds(0)});
    }
    if (failed) {
      type.error = Error(ErrorCode::failed, node + " " + reason)
                       .with_hint("dtrain logs --setup " + node + " shows what was printed");
    }
  }

  // It cannot ask, and not only for a moment.
  bool has_trouble(const nlohmann::json& machines) {
    const auto now = std::chrono::steady_clock::now();
    const auto found = machines.find("trouble");
    if (found == machines.end() || found->is_null()) {
      trouble_since_.reset();
      return false;
    }
    const Error why = wire::error_from_body(*found);
    waits(head_name(), "the head cannot ask: " + why.message());
    if (!trouble_since_) trouble_since_ = now;
    if (now - *trouble_since_ < run_.options.ready_limit) return false;
    for (AskedType& type : run_.report.asked) {
      if (!type.error) type.error = why;
    }
    return true;
  }

  bool is_over(const nlohmann::json& machines) {
    for (const nlohmann::json& each : wire::member(machines, "types")) {
      AskedType* type = type_of(wire::get_string(each, "type"));
      const bool failed = type != nullptr && each.contains("error") && !each["error"].is_null();
      if (failed) type->error = wire::error_from_body(each["error"]);
    }
    std::size_t ready = 0;
    bool is_over = true;
    for (const AskedType& type : run_.report.asked) {
      ready += type.ready.size();
      const bool is_full = type.ready.size() >= static_cast<std::size_t>(type.wanted);
      is_over = is_over && (is_full || type.error);
    }
    const int enough = run_.options.min_nodes;
    return is_over || (enough > 0 && ready >= static_cast<std::size_t>(enough));
  }

  UpRun& run_;
  std::map<std::string, std::string> said_;  // last, of each node
  std::set<std::string> waits_;              // texts that were told
  std::optional<std::chrono::steady_clock::time_point> trouble_since_;
  std::chrono::steady_clock::time_point heard_ = std::chrono::steady_clock::now();
};

wire::WantedMachines tell(UpRun& run, const wire::ApiClient& head) {
  wire::WantedMachines wanted = run.provider->wanted(run.state.id);
  wanted.replace = run.options.replace;
  for (auto& type : wanted.types) type.launch = launch_hash(run.spec, type.name);
  try {
    head.post("/v1/machines", wire::to_json(wanted));
  } catch (Error& error) {
    error.while_doing("telling the head which machines to keep");
    throw;
  }
  return wanted;
}

void conclude(UpRun& run) {
  std::size_t ready = 0;
  bool all = true;
  for (const AskedType& type : run.report.asked) {
    ready += type.ready.size();
    all = all && type.ready.size() >= static_cast<std::size_t>(type.wanted);
  }
  const int enough = run.options.min_nodes;
  const bool is_enough = enough > 0 && ready >= static_cast<std::size_t>(enough);
  run.report.complete = run.report.complete && (all || is_enough);
  if (run.report.complete) return;
  run.report.warnings.push_back(
      "the head goes on asking for what is missing: dtrain status shows "
      "it, dtrain down ends it");
}

}  // namespace

void plan_machines(UpRun& run) {
  run.report.asked.clear();
  for (const auto& type : run.provider->wanted(run.state.id).types) {
    run.report.asked.push_back({type.name, type.count, type.max_workers, {}, {}});
  }
}

void tell_growth(UpRun& run, const fs::path& socket) {
  run.report.asked.clear();
  try {
    const wire::WantedMachines wanted = tell(run, wire::ApiClient(socket, run.state.name));
    for (const auto& type : wanted.types) {
      if (type.grows()) run.report.asked.push_back({type.name, 0, type.max_workers, {}, {}});
    }
  } catch (const std::exception& thrown) {
    const Error error = as_defect(thrown);
    std::string text =
        "jobs get no more machines than there are" +
        std::string(run.spec.down_when_idle ? ", and down_when_idle has no effect" : "") + ": " +
        error.message();
    if (!error.hint().empty()) text += " (" + error.hint() + ")";
    run.report.warnings.push_back(std::move(text));
  }
}

void keep_machines(UpRun& run, const fs::path& socket) {
  plan_machines(run);
  const wire::ApiClient head(socket, run.state.name);
  tell(run, head);
  run.let_go();  // this may take days, and whoever ends the cluster meanwhile need not wait
  Awaited awaited(run);
  std::mutex mutex;
  std::condition_variable_any wake;
  milliseconds pause = kFirstGlance;
  const std::stop_token& stop = run.options.access.stop;
  while (!awaited.look(head) && !stop.stop_requested()) {
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, pause, [] { return false; });
    pause = std::min(kLastGlance, pause + pause / 2);
  }
  conclude(run);
}

}  // namespace dtrain
