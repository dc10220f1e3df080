#include "cli/sending.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/bring_up.hpp"
#include "cli/jobs.hpp"
#include "cli/origin.hpp"
#include "cli/program_check.hpp"
#include "cli/staging.hpp"
#include "launcher/cluster/state.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/provider/provider.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain::cli {
namespace {

constexpr auto kHeadBack = std::chrono::seconds(60);
constexpr auto kFirstAgain = std::chrono::milliseconds(50);
constexpr auto kLongestAgain = std::chrono::milliseconds(1000);
constexpr int kStageTries = 4;

bool is_silence(const Error& error) {
  return error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
}

// Whether a head that does not answer may yet: one of this machine has a watch that starts it
// again, elsewhere the way to it may be what broke.
bool may_come_back(const Error& error, const std::string& cluster) {
  if (!is_silence(error)) return false;
  const auto state = load_cluster(cluster);
  return (state && !is_here(state->provider)) ||
         living_watch(paths::cluster_state(cluster)).has_value();
}

// Repeated until the head answers: what it was asked before, and whose answer was lost, it does
// once by the submission's id. `client` becomes the way that led there.
nlohmann::json post_job(const Context& context, wire::ApiClient& client, const JobSpec& spec,
                        const Sending& sending) {
  const std::string cluster = context.cluster();
  const nlohmann::json request = sending.request(spec);
  std::optional<std::chrono::steady_clock::time_point> until;  // from the first failure on
  auto pause = kFirstAgain;
  bool new_way = false;
  bool is_unsure = false;  // an answer may have been lost
  while (true) {
    bool asks = false;
    try {
      if (new_way) client = context.new_client(sending.stop);
      asks = true;
      return client.post(sending.target, request, sending.limit);
    } catch (Error& error) {
      is_unsure = is_unsure || (asks && is_silence(error));
      const auto now = std::chrono::steady_clock::now();
      if (!until) until = now + kHeadBack;
      if (sending.stop.stop_requested() || now >= *until || !may_come_back(error, cluster)) {
        const bool has_answer = asks && !is_silence(error);
        if (!new_way || has_answer || !is_unsure || request.value("dry_run", false)) throw;
        throw error.while_doing("submitting " + spec.name +
                                ", which may be queued all the same: dtrain status" +
                                context.cluster_option());
      }
    }
    if (!new_way) context.note("the head does not answer, it is asked again");
    new_way = true;
    std::this_thread::sleep_for(pause);
    pause = std::min(kLongestAgain, pause * 2);
  }
}

JobPlace job_place(const std::string& cluster, bool sent) {
  JobPlace place;
  place.here = !sent;
  place.login_path = "";
  const auto state = sent ? std::nullopt : load_cluster(cluster);
  if (!state || state->nodes.empty()) return place;
  const auto login = read_file_if_there(paths::NodeRoot{state->nodes.front().root}.login_env());
  if (!login) return place;
  for (const std::string& entry : split(*login, '\0')) {
    if (entry.starts_with("PATH=")) place.login_path = entry.substr(5);
  }
  return place;
}

}  // namespace

std::string here() {
  std::error_code failed;
  const fs::path path = fs::current_path(failed);
  if (failed) throw errno_error("cannot tell the current folder", failed.value());
  return path.string();
}

void check_before_up(const JobSpec& spec, const std::string& cluster_yaml) {
  const ClusterSpec cluster = read_cluster_yaml(cluster_yaml, process_environment()).spec;
  check_program(spec, {.here = traits_of(cluster.provider.kind).here});
}

nlohmann::json send_job(const Context& context, wire::ApiClient client, JobSpec spec,
                        const Sending& sending) {
  const std::string cluster = context.cluster();
  const bool sent = sends_files(client, cluster);
  const JobPlace place = job_place(cluster, sent);
  if (!sent) {
    spec.content.reset();
    check_program(spec, place);
    return post_job(context, client, spec, sending);
  }
  // Over ssh every byte counts; between two processes of one machine none does.
  const auto state = load_cluster(cluster);
  const bool zstd = !state || !is_here(state->provider);
  FileFactsCache cache(paths::file_sums());
  if (spec.content) {
    // The files that the resumed job had, if the head still has them.
    nlohmann::json answer = post_job(context, client, spec, sending);
    if (!answer.contains("missing")) {
      context.note("its files are those of " + spec.resumes +
                   "; a job YAML or --workdir sends them as they are now");
      return answer;
    }
    context.note("the head has the files of " + spec.resumes + " no more; " + spec.workdir +
                 " is sent as it is now");
  }
  check_program(spec, place);
  for (int attempt = 1;; ++attempt) {
    StagedFiles files = stage_job(context, spec, cache, sending.stop);
    if (sends_start(spec)) stage_start(files, spec, cache);
    // What nobody changed is there already: then this is all.
    nlohmann::json answer = post_job(context, client, spec, sending);
    if (!answer.contains("missing")) return answer;
    if (attempt == kStageTries) {
      throw Error(ErrorCode::failed, "the job's files do not become whole on the head");
    }
    try {
      send_files(context, client, files, zstd, sending.stop);
    } catch (const Error& error) {
      if (sending.stop.stop_requested()) throw;
      // A file that changed while it was sent is read anew; a head that is away is asked again.
      const bool changed = error.code() == ErrorCode::conflict || error.code() == ErrorCode::failed;
      if ((!changed && !may_come_back(error, cluster)) || attempt + 1 == kStageTries) throw;
    }
  }
}

int show_plan(const Context& context, const std::string& name, const nlohmann::json& plan) {
  const bool fits = plan.is_object() && plan.value("fits", false);
  const bool now = plan.is_object() && plan.value("now", false);
  if (context.globals.json) {
    context.print_json(plan);
    return fits ? 0 : 1;
  }
  const bool color = context.terminal.color_out;
  const std::string reason = text_or(plan, "reason");
  std::string text = paint(name, Color::bold, color) + ": ";
  text += now ? "would start at once" : fits ? "would wait" : "does not fit this cluster";
  if (!reason.empty()) text += ": " + printable(reason, false);
  text += "\n";
  std::vector<std::vector<Cell>> rows;
  for (const nlohmann::json& place : child(plan, "placement")) {
    std::vector<std::string> ranks;
    for (const nlohmann::json& rank : child(place, "ranks")) ranks.push_back(rank.dump());
    rows.push_back({text_or(place, "node"), join(ranks, " ")});
  }
  if (!rows.empty()) text += table({"NODE", "RANKS"}, rows, color);
  context.print(text);
  return fits ? 0 : 1;
}

void use_local(Context& context) {
  context.globals.cluster = "local";
  const auto state = load_cluster("local");
  ClusterSpec cluster = built_in_local();
  if (state && !state->source.empty()) {
    cluster = read_cluster_yaml(state->source, process_environment()).spec;
  } else if (state) {
    cluster.provider.local_nodes = static_cast<int>(state->nodes.size());
  }
  UpOptions options;
  options.no_restart = true;  // whose version they are is for `up`
  bring_up(context, cluster, std::move(options));
  if (!current_cluster()) set_current_cluster("local");
}

}  // namespace dtrain::cli
