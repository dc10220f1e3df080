#include "cli/origin.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/manifest.hpp"
#include "launcher/files/snapshot.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kManifestLimit = std::size_t{64} << 20;  // bytes
constexpr std::size_t kShownCheckpoints = 8;                   // checkpoints in a message

bool is_path(const std::string& text) {
  return text.find('/') != std::string::npos || text == "." || text == "..";
}

// "JOB:7" as JOB and 7.
std::pair<std::string, std::optional<int>> split_number(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, std::nullopt};
  const auto number = number_from<int>(std::string_view(text).substr(colon + 1));
  if (!number || *number < 0) {
    throw Error(ErrorCode::usage, "--from-checkpoint " + printable(text, false) +
                                      ": behind the colon comes a checkpoint's number")
        .with_hint("JOB:N, JOB for its newest one, or a folder: ./PATH");
  }
  return {text.substr(0, colon), number};
}

// Error that says what is there instead, when it is a folder with checkpoints in it.
Error no_checkpoint(const fs::path& folder) {
  Error error(ErrorCode::not_found,
              printable_path(folder) + " is no committed checkpoint: it has no manifest");
  std::vector<std::string> inside;
  std::error_code none;
  for (const fs::path& below : {folder, folder / "checkpoints"}) {
    for (const fs::directory_entry& entry : fs::directory_iterator(below, none)) {
      if (fs::exists(entry.path() / "manifest.json", none)) inside.push_back(entry.path().string());
    }
  }
  std::sort(inside.begin(), inside.end());
  return error.with_hint(inside.empty() ? "dtrain pull --best brings one here"
                                        : "the newest one in it: " + inside.back());
}

StartCheckpoint from_folder(const std::string& text, const std::string& here) {
  const fs::path folder = (fs::path(here) / text).lexically_normal();
  const auto manifest = read_file_if_there(folder / "manifest.json", kManifestLimit);
  if (!manifest) throw no_checkpoint(folder);
  while_doing("reading the checkpoint " + printable_path(folder), [&] {
    const nlohmann::json json = wire::parse_json(*manifest, "manifest.json", kManifestLimit);
    if (wire::get_string(json, "format") != "dtrain-checkpoint") {
      throw Error(ErrorCode::invalid, "its manifest is not of a checkpoint");
    }
    verify_sums(folder, file_entries_from_json(wire::member(json, "files")));
  });
  StartCheckpoint start;
  start.path = folder.has_filename() ? folder.string() : folder.parent_path().string();
  return start;
}

StartCheckpoint from_job(const wire::ApiClient& client, const std::string& text) {
  const auto [reference, number] = split_number(text);
  StartCheckpoint start;
  start.job = wire::get_string(find_job(client, reference, DefaultJob::newest), "job");
  const nlohmann::json job = client.get(job_target(start.job));
  std::vector<std::string> there;
  bool found = false;
  for (const nlohmann::json& checkpoint : child(job, "checkpoints")) {
    const auto each = static_cast<int>(number_or(checkpoint, "number"));
    there.push_back(std::to_string(each));
    if (number && each != *number) continue;
    start.number = each;  // without a number the last one: they come by number
    found = true;
  }
  if (found) return start;
  if (there.empty()) throw Error(ErrorCode::not_found, start.job + " has no checkpoint");
  if (there.size() > kShownCheckpoints) there.erase(there.begin(), there.end() - kShownCheckpoints);
  throw Error(ErrorCode::not_found,
              start.job + " has no checkpoint " + std::to_string(number.value_or(0)))
      .with_hint("the newest that it has: " + join(there, ", "));
}

}  // namespace

void add_origin_flags(CLI::App& app, OriginFlags& flags) {
  app.add_option("--resume", flags.resume,
                 "Go on with an ended job: its spec unless changed here, its checkpoints, metrics, "
                 "step")
      ->type_name("JOB");
  app.add_option("--from-checkpoint", flags.from_checkpoint,
                 "A warm start: a checkpoint of a job (default: its newest), or a folder here")
      ->type_name("JOB[:N]|PATH");
}

ResumedJob job_to_resume(const Context& context, const wire::ApiClient& client,
                         const std::string& reference) {
  ResumedJob resumed;
  resumed.id = wire::get_string(find_job(client, reference, DefaultJob::newest), "job");
  const nlohmann::json job = client.get(job_target(resumed.id));
  const std::string state = text_or(job, "state");
  if (!job_ended(state)) {
    throw Error(ErrorCode::conflict, resumed.id + " is " + state + ": it goes on by itself")
        .with_hint("dtrain logs -f" + context.cluster_option() + " " + resumed.id +
                   " follows it, dtrain stop ends it");
  }
  resumed.spec = job_spec_from_json(wire::member(job, "spec"));
  resumed.spec.resumes = resumed.id;
  resumed.spec.after.clear();  // it has had its turn
  std::string how = "goes on with " + resumed.id + ", which " +
                    (state == "stopped"  ? "was stopped"
                     : state == "failed" ? "failed"
                                         : "had succeeded");
  const nlohmann::json& checkpoints = child(job, "checkpoints");
  how += checkpoints.empty()
             ? "; it has no checkpoint, so the start is the beginning"
             : ", from step " + std::to_string(number_or(checkpoints.back(), "step"));
  context.note(how);
  return resumed;
}

void keep_content_if_same(JobSpec& changed, const JobSpec& old) {
  const bool same = changed.command == old.command && changed.shell == old.shell &&
                    changed.workdir == old.workdir && changed.bundle == old.bundle;
  changed.content = same ? old.content : std::nullopt;
}

std::optional<StartCheckpoint> start_from_folder(const std::string& text, const std::string& here) {
  if (!is_path(text)) return std::nullopt;
  return from_folder(text, here);
}

StartCheckpoint start_from_job(const wire::ApiClient& client, const std::string& text,
                               const std::string& here) {
  try {
    return from_job(client, text);
  } catch (Error& error) {
    std::error_code none;
    if (error.code() == ErrorCode::not_found && fs::is_directory(fs::path(here) / text, none)) {
      error.with_hint("the folder is ./" + text);
    }
    throw;
  }
}

bool sends_start(const JobSpec& spec) {
  if (!spec.start || !spec.start->job.empty() || !spec.resumes.empty()) return false;
  if (spec.storage_path.empty()) return true;
  const fs::path relative =
      fs::path(spec.start->path)
          .lexically_relative((fs::path(spec.storage_path) / "").lexically_normal());
  return relative.empty() || *relative.begin() == "..";
}

void stage_start(StagedFiles& files, JobSpec& spec, FileFactsCache& cache) {
  const Snapshot snapshot = take_snapshot(spec.start->path, {}, cache);
  spec.start->tree = add_tree(files, snapshot.tree, snapshot.files);
}

}  // namespace dtrain::cli
