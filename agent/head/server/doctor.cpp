#include "agent/head/server/doctor.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "agent/head/store/store.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/collect.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {

namespace asio = boost::asio;
using link::Findings;
using nlohmann::json;
using namespace std::chrono_literals;
using Monotonic = std::chrono::steady_clock::time_point;

namespace {

constexpr auto kClockNote = 1s;
constexpr auto kClockProblem = 1h;
const std::string kHeadRow = "head";  // no node is called so

std::string attempt_name(const std::pair<JobId, int>& attempt) {
  return "attempt " + std::to_string(attempt.second) + " of " + attempt.first.str();
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json to_json(const link::Finding& finding) {
  return {{"kind", finding.kind},
          {"severity", finding.severity},
          {"what", finding.what},
          {"hint", finding.hint},
          {"fixable", finding.fixable},
          {"fixed", finding.fixed},
          {"error", finding.error.empty() ? json() : json(finding.error)}};
}

}  // namespace

struct Doctor::Row {
  std::string node;
  bool waits = false;  // for its answer
  Findings findings;
  std::optional<ClockOffset> clock;
  std::optional<Error> error;
  Monotonic sent;          // the ask
  Engine::NodeJobs asked;  // what was believed of it then
};

struct Doctor::Round {
  explicit Round(asio::io_context& context) : limit(context) {}
  bool fix = false;
  Engine::Answer done;
  std::vector<Row> rows;                      // in order; the head's is the first
  std::map<std::string, std::size_t> places;  // by node
  std::size_t waiting = 0;
  asio::steady_timer limit;
};

Doctor::Doctor(asio::io_context& context, Parts parts) : context_(context), parts_(parts) {
  NodeConnections::BulkHooks hooks;
  hooks.message = [this](const NodeId& node, const wire::BulkMessage& message, std::string&) {
    const auto* report = std::get_if<wire::DoctorReport>(&message);
    if (report != nullptr) answered(report->request, node.str(), *report);
  };
  hooks.gone = [this](const NodeId& node) {
    std::vector<std::string> requests;
    for (const auto& [request, round] : rounds_) requests.push_back(request);
    wire::DoctorReport gone;
    gone.error = Error(ErrorCode::unreachable, "the connection to it broke");
    for (const std::string& request : requests) answered(request, node.str(), gone);
  };
  parts_.nodes.on_bulk(std::move(hooks));
}

void Doctor::examine(bool fix, Engine::Answer done) {
  const std::string request = random_hex(8);
  const auto round = std::make_shared<Round>(context_);
  round->fix = fix;
  round->done = std::move(done);
  const json status = parts_.engine.status(0);
  std::map<std::string, const json*> rows;
  for (const json& row : status.at("nodes")) rows[text_of(row, "node")] = &row;
  const auto add = [&](const std::string& node) -> Row& {
    round->places[node] = round->rows.size();
    round->rows.push_back({});
    round->rows.back().node = node;
    return round->rows.back();
  };
  Row& head = add(kHeadRow);
  head.waits = true;
  round->waiting = 1;
  judge_cluster(status, head.findings);
  if (const std::string trouble = parts_.door.problem(); !trouble.empty()) {
    head.findings.problem("state", "no node can come: " + trouble, "free the port");
  }
  std::map<NodeId, Engine::NodeJobs> jobs = parts_.engine.jobs_by_node();
  for (const NodeId& node : parts_.engine.nodes()) {
    Row& row = add(node.str());
    const auto known = rows.find(node.str());
    if (known != rows.end()) judge_node(*known->second, row.findings);
    if (!parts_.nodes.connected(node)) {
      row.error = Error(ErrorCode::unreachable, "it is not connected")
                      .with_hint("`dtrain up` starts what does not run there");
    } else if (!parts_.nodes.has_feature(node, "doctor")) {
      row.error = agent_too_old("be asked");
    } else {
      row.waits = true;
      ++round->waiting;
      row.asked = std::move(jobs[node]);
      row.sent = std::chrono::steady_clock::now();
      wire::DoctorAsk ask{request, fix, {row.asked.open.begin(), row.asked.open.end()}};
      parts_.nodes.ask(node, ask);
    }
  }
  rounds_[request] = round;
  round->limit.expires_after(kPatience);
  round->limit.async_wait([this, request](boost::system::error_code stopped) {
    if (!stopped) finish(request);
  });
  look_at_head(request, fix);
}

void Doctor::look_at_head(const std::string& request, bool fix) {
  std::set<std::string> trees = parts_.engine.content_trees();
  trees.merge(parts_.preparations.trees());
  const std::vector<JobId> open = parts_.engine.open_jobs();
  worker_.add([this, request, fix, trees = std::move(trees), blobs = parts_.contents.held(),
               jobs = std::set<JobId>(open.begin(), open.end()), root = parts_.config.root(),
               moves = parts_.config->moves, gathered = std::chrono::system_clock::now(),
               guard = std::weak_ptr<int>(alive_)] {
    Findings findings;
    findings.look("disk", [&] {
      const auto disk = link::look_at_disk(root.root, "the head's folder",
                                           "`dtrain prune`, or `dtrain rm JOB`, gives disk back");
      if (!disk) return;
      link::judge_disks({*disk}, findings);
      const auto collect = [&](bool dry_run) {
        wire::CollectAsk ask;
        ask.dry_run = dry_run;
        ask.asked = true;
        ask.gathered = gathered;
        return wire::collect_store(root.content(), trees, blobs, ask);
      };
      link::judge_content(*disk, collect, fix, findings);
    });
    findings.look("permissions", [&] {
      const fs::path sockets = paths::socket_folder_name(root.root);
      link::check_private(
          {root.root, root.ca(), root.ca() / "key.pem", root.identity(),
           root.identity() / "key.pem", root.database(), sockets.parent_path(), sockets},
          fix, findings);
    });
    findings.look("checkpoints", [&] {
      std::vector<link::Unfinished> unfinished;
      for (const fs::path& entry : entries_of(root.storage())) {
        const JobId job(entry.filename().string());
        if (!valid_name(job.str()) || jobs.contains(job)) continue;
        auto found = link::unfinished_checkpoints(job, entry, gathered);
        std::move(found.begin(), found.end(), std::back_inserter(unfinished));
      }
      link::judge_unfinished(unfinished, fix, findings);
    });
    findings.look("state", [&] {
      link::judge_certificate("the head's certificate", read_file(root.identity() / "cert.pem"),
                              gathered, findings);
      link::check_watch(findings);
      if (moves) return;  // nobody else may open its database
      const std::string damage = database_damage(root.database());
      if (damage.empty()) {
        findings.looked.emplace_back("the head's database is whole");
      } else {
        findings.problem("state", "the head's database is damaged: " + damage,
                         "a head that is started anew restores it from its copy");
      }
    });
    asio::post(context_, [this, guard, request, findings = std::move(findings)] {
      if (!guard.lock()) return;
      wire::DoctorReport report;
      report.findings = findings.found;
      report.looked = findings.looked;
      answered(request, kHeadRow, report);
    });
  });
}

void Doctor::answered(const std::string& request, const std::string& who,
                      const wire::DoctorReport& report) {
  const auto found = rounds_.find(request);
  if (found == rounds_.end()) return;
  Round& round = *found->second;
  const auto place = round.places.find(who);
  if (place == round.places.end() || !round.rows[place->second].waits) return;
  Row& row = round.rows[place->second];
  row.waits = false;
  row.error = report.error;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(row.findings.found, report.findings);
  append(row.findings.looked, report.looked);
  if (who != kHeadRow && !report.error) {
    const WallTime now = std::chrono::system_clock::now();
    const auto took =
        std::chrono::duration_cast<WallTime::duration>(std::chrono::steady_clock::now() - row.sent);
    row.clock = clock_offset(now - took, report.received, report.sent, now);
    judge_clock(*row.clock, row.findings);
    const Still still{[&](const std::pair<JobId, int>& attempt) {
                        return parts_.engine.runs(NodeId(who), attempt.first, attempt.second);
                      },
                      [&](const JobId& job) { return parts_.engine.is_open(job); }};
    judge_attempts(row.asked, still, report, row.findings);
  }
  if (--round.waiting == 0) finish(request);
}

void Doctor::finish(const std::string& request) {
  const auto found = rounds_.find(request);
  if (found == rounds_.end()) return;
  const std::shared_ptr<Round> round = found->second;
  rounds_.erase(found);
  round->limit.cancel();
  bool complete = true;
  std::size_t problems = 0;
  std::size_t notes = 0;
  std::size_t fixed = 0;
  json nodes = json::array();
  for (Row& row : round->rows) {
    if (row.waits) {
      row.error = Error(ErrorCode::timeout,
                        "it has not answered within " + std::to_string(kPatience.count()) + " s");
    }
    complete = complete && !row.error;
    json list = json::array();
    for (const link::Finding& finding : row.findings.found) {
      ++(finding.fixed ? fixed : finding.severity == "problem" ? problems : notes);
      list.push_back(to_json(finding));
    }
    json clock;
    if (row.clock) {
      using std::chrono::milliseconds;
      clock = {{"offset_ms", std::chrono::duration_cast<milliseconds>(row.clock->by).count()},
               {"uncertainty_ms",
                std::chrono::duration_cast<milliseconds>(row.clock->uncertain).count()}};
    }
    nodes.push_back({{"node", row.node},
                     {"findings", std::move(list)},
                     {"looked", row.findings.looked},
                     {"clock", std::move(clock)},
                     {"error", row.error ? wire::error_to_json(*row.error)["error"] : json()}});
  }
  round->done({{"fix", round->fix},
               {"complete", complete},
               {"problems", problems},
               {"notes", notes},
               {"fixed", fixed},
               {"nodes", std::move(nodes)}});
}

void judge_attempts(const Engine::NodeJobs& asked, const Still& still,
                    const wire::DoctorReport& said, Findings& findings) {
  const std::set<std::pair<JobId, int>> has(said.attempts.begin(), said.attempts.end());
  std::size_t well = 0;
  for (const auto& attempt : asked.running) {
    if (!still.runs(attempt)) continue;
    if (has.contains(attempt)) {
      ++well;
      continue;
    }
    findings.problem("state",
                     attempt_name(attempt) + " is to run here, and the node knows nothing of it",
                     "dtrain stop " + attempt.first.str());
  }
  for (const auto& attempt : said.running) {
    if (asked.open.contains(attempt.first) || still.is_open(attempt.first)) continue;
    findings.problem("state", attempt_name(attempt) + " runs here, and the job is over",
                     "its agent ends it; if it stays: `dtrain exec --node NODE -- kill PID`");
  }
  findings.looked.push_back("state: head and node agree on what runs here, attempts: " +
                            std::to_string(well));
}

ClockOffset clock_offset(WallTime asked, WallTime received, WallTime sent, WallTime answered) {
  using std::chrono::milliseconds;
  const ClockOffset exact = clock_offset(asked.time_since_epoch(), received.time_since_epoch(),
                                         sent.time_since_epoch(), answered.time_since_epoch());
  return {std::chrono::round<milliseconds>(exact.by),
          std::chrono::ceil<milliseconds>(exact.uncertain) + 1ms};
}

void judge_clock(const ClockOffset& offset, Findings& findings) {
  const auto size = std::chrono::abs(offset.by);
  const auto sure = size - offset.uncertain;
  const std::string unsure = " (± " + human_duration(offset.uncertain) + ")";
  if (sure <= kClockNote) {
    findings.looked.push_back("clock: " + std::string(offset.by < 0ms ? "-" : "+") +
                              human_duration(size) + unsure + " against the head's");
    return;
  }
  const std::string what = "its clock is " + human_duration(size) + unsure +
                           (offset.by < 0ms ? " behind" : " ahead of") + " the head's";
  const char* hint = "let a time service set it (chronyd, systemd-timesyncd: timedatectl)";
  if (sure > kClockProblem) {
    findings.problem("clock", what + ": beyond 48 h its certificate is refused", hint);
  } else {
    findings.note("clock", what + ": times in its logs tell not what came first", hint);
  }
}

void judge_node(const json& row, Findings& findings) {
  const std::string node = text_of(row, "node");
  const std::string state = text_of(row, "state");
  const std::string reason = text_of(row, "reason");
  const std::string why = reason.empty() ? "" : ": " + reason;
  if (state == "lost") {
    findings.problem("state", "it is lost" + why, "`dtrain up` brings it back");
  } else if (state == "draining" || state == "drained") {
    findings.note("state", "it is " + state + why, "dtrain drain " + node + " --undo");
  } else if (!reason.empty()) {
    findings.note("state", "it is " + state + why);
  }
  const std::string version = text_of(row, "version");
  if (!version.empty() && version != DTRAIN_VERSION) {
    findings.note(
        "state",
        "its agent is of dtrain " + version + ", the head of " + std::string(DTRAIN_VERSION),
        "`dtrain up` brings both to one version");
  }
}

void judge_cluster(const json& status, Findings& findings) {
  const json& cluster = status.at("cluster");
  if (const std::string trouble = text_of(cluster, "trouble"); !trouble.empty()) {
    findings.problem("state", "the head cannot write its database: " + trouble,
                     "make room on the head's disk, or look for its errors (dmesg)");
  }
  const std::int64_t expected = wire::get_int(cluster, "expected_nodes", 0, INT32_MAX);
  const auto here =
      std::count_if(status.at("nodes").begin(), status.at("nodes").end(), [](const json& row) {
        return text_of(row, "state") != "gone" && !wire::get_bool(row, "joined", false);
      });
  if (here < expected) {
    findings.problem("state",
                     std::to_string(here) + " of " + std::to_string(expected) +
                         " nodes have come that the cluster is to have",
                     "`dtrain up` brings those that are missing");
  }
  for (const json& warning : wire::member(cluster, "warnings")) {
    findings.note("state", warning.get<std::string>());
  }
}

}  // namespace dtrain::head
