#include "cli/pull.hpp"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "cli/pull_mark.hpp"
#include "cli/pulled_logs.hpp"
#include "cli/screen.hpp"
#include "launcher/cluster/counted.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/stop.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/downloads.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct PullFlags {
  std::string job;
  std::string output;
  bool checkpoints = false;
  bool logs = false;
  bool best = false;
};

constexpr int kDownloadTries = 5;
constexpr std::size_t kAhead = 256;  // files that are looked at before the first of them is here

// "checkpoint_000003" of the job's best checkpoint.
std::string best_folder(const nlohmann::json& job) {
  const nlohmann::json& best = child(job, "best_checkpoint");
  if (best.is_null()) {
    throw Error(ErrorCode::not_found, text_or(job, "job") + " has no checkpoint yet");
  }
  return fs::path(text_or(best, "path")).filename().string();
}

bool has_component(const std::string& path, const std::string& name) {
  for (const std::string& part : split(path, '/')) {
    if (part == name) return true;
  }
  return false;
}

bool is_wanted(const std::string& path, bool checkpoint, const PullFlags& options,
               const std::string& best) {
  if (!options.checkpoints && !options.logs && !options.best) return true;
  return (options.logs && !checkpoint) || (options.checkpoints && checkpoint) ||
         (options.best && checkpoint && has_component(path, best));
}

std::vector<RemoteFile> wanted_files(const nlohmann::json& list, const PullFlags& options,
                                     const std::string& best) {
  std::vector<RemoteFile> files;
  for (const nlohmann::json& entry : list) {
    RemoteFile file;
    file.path = wire::get_string(entry, "path");
    file.size = static_cast<std::uint64_t>(wire::get_int(entry, "size", 0, INT64_MAX));
    if (entry.contains("sha256") && entry["sha256"].is_string()) {
      file.sha256 = entry["sha256"].get<std::string>();
    }
    file.released = static_cast<std::uint64_t>(wire::get_int(entry, "released", 0, INT64_MAX, 0));
    const bool checkpoint = file.path.starts_with("checkpoints/") || file.sha256.has_value();
    if (is_wanted(file.path, checkpoint, options, best)) files.push_back(std::move(file));
  }
  return files;
}

// What the head has of the job and cannot read, as far as it was asked for.
std::vector<std::string> troubles(const nlohmann::json& answer, const PullFlags& options,
                                  const std::string& best) {
  std::vector<std::string> found;
  for (const nlohmann::json& row : child(answer, "troubles")) {
    const std::string path = text_or(row, "path");
    if (!is_wanted(path, path.starts_with("checkpoints/"), options, best)) continue;
    found.push_back(path + ": " + wire::error_from_json(row).message());
  }
  return found;
}

// Brings files here over one connection, in their order.
class Puller {
 public:
  Puller(Context& context, std::string job, fs::path folder, std::stop_token stop)
      : stop_(std::move(stop)),
        job_(std::move(job)),
        folder_(std::move(folder)),
        logs_(folder_, job_),
        screen_(context.terminal, !context.globals.quiet && !context.globals.json),
        downloads_(context.client(stop_).socket(), context.cluster()) {}

  void pull(const std::vector<RemoteFile>& files);

  const nlohmann::json& listed() const { return listed_; }
  std::uint64_t moved() const { return moved_; }
  std::size_t kept() const { return kept_; }
  // Why logs are not whole; empty: they are.
  std::string cut() const {
    if (cut_ == 0) return {};
    return counted(cut_, "log") + (cut_ == 1 ? " begins" : " begin") +
           " with a line for what was released by log_limit, " + human_bytes(released_) + " in all";
  }

 private:
  void begin(const RemoteFile& file);
  void ask(const Incoming& file);
  void end_first();
  void fetch(Incoming& file);
  void done(const Incoming& file, Pulled how);
  void name_all();
  void show(const std::string& path);

  std::stop_token stop_;
  std::string job_;
  fs::path folder_;
  PulledLogs logs_;
  Screen screen_;
  wire::Downloads downloads_;
  Arrivals arrivals_;
  std::set<std::string> unnamed_;  // of arrivals_, the paths without a sum
  std::deque<Incoming> coming_;    // those that want bytes are asked for, in this order
  std::set<std::string> again_;    // paths that are asked for a second time
  nlohmann::json listed_ = nlohmann::json::array();
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t moved_ = 0;
  std::size_t kept_ = 0;
  std::size_t cut_ = 0;  // logs of which something was released
  std::uint64_t released_ = 0;
};

void Puller::show(const std::string& path) {
  if (!screen_.has_live()) return;
  screen_.live(human_bytes(done_) + " of " + human_bytes(total_) + "  " + printable(path, false));
  screen_.flush();
}

void Puller::done(const Incoming& file, Pulled how) {
  static constexpr const char* kHow[] = {"already_here", "resumed", "whole"};
  const RemoteFile& of = file.file();
  listed_.push_back({{"path", file.target().string()},
                     {"size", of.size},
                     {"sha256", of.sha256 ? nlohmann::json(*of.sha256) : nlohmann::json()},
                     {"how", kHow[static_cast<int>(how)]}});
  const std::uint64_t released = how == Pulled::already_here ? of.released : file.released();
  if (released == 0) return;
  listed_.back()["released"] = released;
  released_ += released;
  ++cut_;
}

void Puller::ask(const Incoming& file) {
  downloads_.ask(job_target(job_, "/files/" + wire::percent_encode(file.file().path, true)),
                 file.offset());
}

void Puller::begin(const RemoteFile& file) {
  throw_if_stopped(stop_);
  Incoming incoming(file, safe_below(folder_, file.path), job_);
  if ((file.sha256 || logs_.has(file.path)) && incoming.already_here()) {
    ++kept_;
    done_ += file.size;
    done(incoming, Pulled::already_here);
    return;
  }
  if (incoming.wants_bytes()) ask(incoming);
  coming_.push_back(std::move(incoming));
}

void Puller::fetch(Incoming& file) {
  for (int attempt = 1;; ++attempt) {
    try {
      downloads_.take(
          [&](std::string_view bytes) {
            throw_if_stopped(stop_);
            file.take(bytes);
            moved_ += bytes.size();
            done_ += bytes.size();
            show(file.file().path);
          },
          [&](std::uint64_t bytes) { file.gap(bytes); });
      return;
    } catch (const Error& error) {
      // A head that is started again meanwhile: go on where the bytes stopped.
      throw_if_stopped(stop_);
      if (error.code() != ErrorCode::unreachable || attempt == kDownloadTries) throw;
      ::usleep(200000U * static_cast<unsigned>(attempt));
    }
  }
}

// The first of those that come is brought to its end.
void Puller::end_first() {
  Incoming file = std::move(coming_.front());
  coming_.pop_front();
  try {
    done_ += file.offset();
    if (file.wants_bytes()) fetch(file);
    if (!file.whole()) {
      // A part of something else, or damaged on the way: once more from its beginning, behind the
      // others that are asked for already.
      if (!again_.insert(file.file().path).second) {
        std::error_code ignored;
        fs::remove(file.part(), ignored);
        throw Error(ErrorCode::failed, file.file().path +
                                           " arrives damaged: its size or SHA-256 is not what "
                                           "its manifest says");
      }
      done_ -= std::min(done_, file.file().size);
      file.start_over();
      ask(file);
      coming_.push_back(std::move(file));
      return;
    }
    if (!file.file().sha256) unnamed_.insert(file.file().path);
    if (arrivals_.add(file)) name_all();
    done(file, file.how());
  } catch (Error& error) {
    error.while_doing("pulling " + file.file().path);
    if (error.hint().empty()) error.with_hint("the same command again goes on where it stopped");
    throw;
  }
}

// Logs of this job are noted as soon as they have their names and not before, for it may be killed.
void Puller::name_all() {
  const std::set<std::string> arrived = std::exchange(unnamed_, {});
  arrivals_.name_all();
  logs_.add(arrived);
}

void Puller::pull(const std::vector<RemoteFile>& files) {
  bool without_sum = false;
  for (const RemoteFile& file : files) {
    total_ += file.size;
    without_sum = without_sum || !file.sha256;
  }
  if (without_sum) logs_.begin();
  try {
    for (std::size_t next = 0; next < files.size() || !coming_.empty();) {
      while (next < files.size() && coming_.size() < kAhead) begin(files[next++]);
      if (!coming_.empty()) end_first();
    }
  } catch (const Error&) {
    try {
      name_all();             // what came is kept
    } catch (const Error&) {  // the first error is the one to tell
    }
    throw;
  }
  name_all();
  screen_.live({});
  screen_.flush();
}

PulledJob pull(Context& context, const PullFlags& options, const std::stop_token& stop = {}) {
  const wire::ApiClient client = context.client(stop);
  const std::string id = wire::get_string(find_job(client, options.job, DefaultJob::newest), "job");
  const std::string best = options.best ? best_folder(client.get(job_target(id))) : "";
  const nlohmann::json answer = client.get(job_target(id, "/files"));
  const std::vector<RemoteFile> files = wanted_files(wire::member(answer, "files"), options, best);
  const fs::path folder = options.output.empty() ? fs::path(id) : fs::path(options.output);

  Puller puller(context, id, folder, stop);
  puller.pull(files);
  const std::vector<std::string> missing = troubles(answer, options, best);
  // With troubles some checkpoint is not whole here.
  const std::string unmarked = missing.empty() ? tell_pulled(client, id, files) : "";
  if (!unmarked.empty()) context.warn(unmarked);
  PulledJob pulled;
  pulled.complete = missing.empty();
  pulled.json = {
      {"job", id}, {"folder", folder.string()}, {"files", puller.listed()}, {"troubles", missing}};
  pulled.line = counted(files.size(), "file") + " of " + id + " in " + folder.string() + " (" +
                human_bytes(puller.moved()) + " moved";
  if (puller.kept() > 0) pulled.line += ", " + std::to_string(puller.kept()) + " were here already";
  pulled.line += ")";
  if (!puller.cut().empty()) context.warn(puller.cut());
  for (const std::string& each : missing) context.warn("the head cannot read " + each);
  return pulled;
}

int run_pull(Context& context, const PullFlags& options) {
  const PulledJob pulled = pull(context, options);
  if (context.globals.json) {
    context.print_json(pulled.json);
  } else if (!context.globals.quiet) {
    context.print(pulled.line + "\n");
  }
  return pulled.complete ? 0 : 1;
}

}  // namespace

PulledJob pull_job(Context& context, const std::string& job, const std::string& folder,
                   const std::stop_token& stop) {
  PullFlags options;
  options.job = job;
  options.output = folder;
  return pull(context, options, stop);
}

Verb add_pull(CLI::App& root) {
  auto options = std::make_shared<PullFlags>();
  CLI::App* app = add_verb(root, "pull", "Bring a job's checkpoints and logs here",
                           "  dtrain pull                    all of the newest job\n"
                           "  dtrain pull mnist --best -o ./model\n"
                           "  dtrain pull mnist --logs\n");
  app->add_option("job", options->job, "Id, name or beginning of an id (default: the newest)")
      ->type_name("JOB");
  app->add_option("-o,--output", options->output, "Where to (default: a folder named by the job)")
      ->type_name("DIR");
  app->add_flag("--checkpoints", options->checkpoints, "Only committed checkpoints");
  app->add_flag("--logs", options->logs, "Only logs");
  app->add_flag("--best", options->best, "Only the best checkpoint");
  return {app, [options](Context& context) { return run_pull(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
