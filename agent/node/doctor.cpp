#include "agent/node/doctor.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <set>
#include <utility>

#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {
namespace {

using namespace std::chrono_literals;

constexpr auto kEnding = 5s;  // what an attempt or command leaves takes so long at most to end
constexpr std::size_t kLongestSpec = std::size_t{16} << 20;
constexpr const char* kMakeRoom = "`dtrain prune`, or `dtrain rm JOB`, gives disk back";

using AttemptKeys = std::vector<std::pair<JobId, int>>;

// Where the attempts under way write their checkpoints.
std::set<fs::path> storages(const paths::NodeRoot& root, const AttemptKeys& attempts) {
  std::set<fs::path> found;
  for (const auto& [job, number] : attempts) {
    const auto text = read_file_if_there(paths::attempt(root, job, number).spec(), kLongestSpec);
    if (!text) continue;
    found.insert(wire::attempt_spec_from_json(wire::parse_json(*text, "spec.json", kLongestSpec))
                     .storage_path);
  }
  return found;
}

void look_at_disks(const paths::NodeRoot& root, const AttemptKeys& attempts,
                   const std::function<wire::Collected(bool)>& collect, bool fix,
                   Findings& findings) {
  std::vector<link::Disk> disks;
  const auto look = [&](const fs::path& path, const char* for_what, const char* hint) {
    findings.look("disk", [&] {
      if (auto disk = link::look_at_disk(path, for_what, hint)) disks.push_back(std::move(*disk));
    });
  };
  look(root.root, "the node's folder", kMakeRoom);
  for (const fs::path& storage : storages(root, attempts)) {
    look(storage, "a job's storage", "make room there: checkpoints wait for it");
  }
  look("/tmp", "", "remove what nobody needs from /tmp");
  look("/dev/shm", "",
       "remove what ended programs left there; docker run --shm-size makes it larger");
  const auto own = disks.empty() ? std::nullopt : std::optional(disks.front());
  link::judge_disks(std::move(disks), findings);
  if (own) link::judge_content(*own, collect, fix, findings);
}

void look_at_permissions(const paths::NodeRoot& root, bool fix, Findings& findings) {
  const fs::path sockets = paths::socket_folder_name(root.root);
  link::check_private({root.root, root.identity(), root.identity() / "key.pem", root.login_env(),
                       sockets.parent_path(), sockets},
                      fix, findings);
}

void look_at_checkpoints(const paths::NodeRoot& root, const std::vector<JobId>& open, bool fix,
                         Findings& findings) {
  const std::set<JobId> still(open.begin(), open.end());
  std::vector<link::Unfinished> unfinished;
  for (const fs::path& entry : entries_of(root.jobs())) {
    const JobId job(entry.filename().string());
    if (!valid_name(job.str()) || still.contains(job)) continue;
    auto found =
        link::unfinished_checkpoints(job, root.storage(job), std::chrono::system_clock::now());
    std::move(found.begin(), found.end(), std::back_inserter(unfinished));
  }
  link::judge_unfinished(unfinished, fix, findings);
}

}  // namespace

// One ask, on its way between the two threads.
struct Doctor::Look {
  wire::DoctorAsk ask;
  wire::DoctorReport report;
  Findings findings;
  std::vector<FoundProcess> processes;
  KnownHere known;
  Collector::InUse in_use;
  WallTime gathered;
};

Doctor::Doctor(boost::asio::any_io_executor executor, paths::NodeRoot root, Hooks hooks)
    : executor_(std::move(executor)), root_(std::move(root)), hooks_(std::move(hooks)) {}

void Doctor::work(std::function<void()> task, std::function<void()> then) {
  worker_.add(
      [this, task = std::move(task), then = std::move(then), guard = std::weak_ptr<int>(alive_)] {
        task();
        boost::asio::post(executor_, [guard, then] {
          if (guard.lock()) then();
        });
      });
}

void Doctor::message(const wire::BulkMessage& message) {
  const auto* ask = std::get_if<wire::DoctorAsk>(&message);
  if (ask == nullptr) return;
  const auto look = std::make_shared<Look>();
  look->ask = *ask;
  look->report.request = ask->request;
  look->report.received = std::chrono::system_clock::now();
  // What runs is looked at before we ask what may: of an attempt that starts then nothing is seen.
  work(
      [this, look] {
        look->findings.look("processes", [&] { look->processes = cluster_processes(root_.root); });
      },
      [this, look] { judge(look); });
}

void Doctor::judge(const std::shared_ptr<Look>& look) {
  look->known = hooks_.known();
  look->gathered = std::chrono::system_clock::now();
  look->in_use = hooks_.in_use();
  work(
      [this, look] {
        const bool fix = look->ask.fix;
        Findings& findings = look->findings;
        const auto collect_content = [&](bool dry_run) {
          wire::CollectAsk ask;
          ask.dry_run = dry_run;
          ask.asked = true;
          ask.gathered = look->gathered;
          return collect(root_, look->in_use, ask);
        };
        findings.look("processes", [&] {
          Strays found = strays(root_, look->processes, look->known);
          leave_out_ending(found, kEnding);
          judge_strays(found, fix, findings);
        });
        findings.look("sockets", [&] {
          const fs::path folders = paths::socket_folders();
          judge_sockets(folders, stale_sockets(folders, std::chrono::system_clock::now()), fix,
                        findings);
        });
        findings.look("disk", [&] {
          look_at_disks(root_, look->known.attempts, collect_content, fix, findings);
        });
        findings.look("permissions", [&] { look_at_permissions(root_, fix, findings); });
        findings.look("checkpoints",
                      [&] { look_at_checkpoints(root_, look->ask.jobs, fix, findings); });
        findings.look("state", [&] {
          link::judge_certificate("the node's certificate",
                                  read_file(root_.identity() / "cert.pem"),
                                  std::chrono::system_clock::now(), findings);
          link::check_watch(findings);
        });
        findings.look("limits", [&] { judge_limits(look_at_limits(), findings); });
        findings.look("drivers", [&] {
          if (const auto driver = look_at_driver(login_environment(root_))) {
            judge_driver(*driver, findings);
          }
        });
      },
      [this, look] { answer(look); });
}

// What has come or gone meanwhile is neither missing here nor too much.
void Doctor::answer(const std::shared_ptr<Look>& look) {
  wire::DoctorReport& report = look->report;
  const KnownHere now = hooks_.known();
  const auto sorted = [](AttemptKeys list) {
    std::sort(list.begin(), list.end());
    return list;
  };
  const AttemptKeys before = sorted(look->known.attempts);
  const AttemptKeys after = sorted(now.attempts);
  std::set_union(before.begin(), before.end(), after.begin(), after.end(),
                 std::back_inserter(report.attempts));
  const AttemptKeys ran = sorted(look->known.running);
  const AttemptKeys runs = sorted(now.running);
  std::set_intersection(ran.begin(), ran.end(), runs.begin(), runs.end(),
                        std::back_inserter(report.running));
  report.findings = std::move(look->findings.found);
  report.looked = std::move(look->findings.looked);
  for (const link::Finding& finding : report.findings) {
    if (finding.fixed) log::info("put right", {{"kind", finding.kind}, {"what", finding.what}});
  }
  report.sent = std::chrono::system_clock::now();
  hooks_.send(report);
}

}  // namespace dtrain::node
