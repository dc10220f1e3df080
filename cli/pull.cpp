#include "cli/pull.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/jobs.hpp"
#include "cli/pull_mark.hpp"
#include "cli/screen.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

struct Options {
  std::string job;
  std::string output;
  bool checkpoints = false;
  bool logs = false;
  bool best = false;
};

constexpr int kTries = 5;

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

std::vector<RemoteFile> wanted_files(const nlohmann::json& list, const Options& options,
                                     const std::string& best) {
  std::vector<RemoteFile> files;
  const bool everything = !options.checkpoints && !options.logs && !options.best;
  for (const nlohmann::json& entry : list) {
    RemoteFile file;
    file.path = wire::get_string(entry, "path");
    file.size = static_cast<std::uint64_t>(wire::get_int(entry, "size", 0, INT64_MAX));
    if (entry.contains("sha256") && entry["sha256"].is_string()) {
      file.sha256 = entry["sha256"].get<std::string>();
    }
    const bool checkpoint = file.path.starts_with("checkpoints/") || file.sha256.has_value();
    const bool wanted = everything || (options.logs && !checkpoint) ||
                        (options.checkpoints && checkpoint) ||
                        (options.best && checkpoint && has_component(file.path, best));
    if (wanted) files.push_back(std::move(file));
  }
  return files;
}

int run_pull(Context& context, const Options& options) {
  const wire::ApiClient client = context.client();
  const std::string id = wire::get_string(find_job(client, options.job, DefaultJob::newest), "job");
  const std::string best = options.best ? best_folder(client.get(job_target(id))) : "";
  const nlohmann::json answer = client.get(job_target(id, "/files"));
  const std::vector<RemoteFile> files = wanted_files(wire::member(answer, "files"), options, best);
  const fs::path folder = options.output.empty() ? fs::path(id) : fs::path(options.output);

  std::uint64_t total = 0;
  for (const RemoteFile& file : files) total += file.size;
  Screen screen(context.terminal, !context.globals.quiet && !context.globals.json);
  nlohmann::json listed = nlohmann::json::array();
  std::uint64_t done = 0;
  std::uint64_t moved = 0;
  std::size_t kept = 0;
  for (const RemoteFile& file : files) {
    const fs::path target = safe_below(folder, file.path);
    const std::string source = job_target(id, "/files/" + wire::percent_encode(file.path, true));
    std::uint64_t here = 0;
    const auto fetch = [&](std::uint64_t offset, const auto& sink) {
      here = offset;
      // A head that is started again meanwhile: go on where the bytes stopped.
      for (int attempt = 1;; ++attempt) {
        try {
          client.download(source, here, [&](std::string_view bytes) {
            sink(bytes);
            here += bytes.size();
            moved += bytes.size();
            if (screen.has_live()) {
              screen.live(human_bytes(done + here) + " of " + human_bytes(total) + "  " +
                          printable(file.path, false));
              screen.flush();
            }
          });
          return;
        } catch (const Error& error) {
          if (error.code() != ErrorCode::unreachable || attempt == kTries) throw;
          ::usleep(200000U * static_cast<unsigned>(attempt));
        }
      }
    };
    Pulled how{};
    try {
      how = pull_file(file, target, fetch);
    } catch (Error& error) {
      error.while_doing("pulling " + file.path);
      if (error.hint().empty()) error.with_hint("the same command again goes on where it stopped");
      throw;
    }
    done += file.size;
    if (how == Pulled::already_here) ++kept;
    static constexpr const char* kHow[] = {"already_here", "resumed", "whole"};
    listed.push_back({{"path", target.string()},
                      {"size", file.size},
                      {"sha256", file.sha256 ? nlohmann::json(*file.sha256) : nlohmann::json()},
                      {"how", kHow[static_cast<int>(how)]}});
  }
  screen.live({});
  screen.flush();
  if (const std::string trouble = tell_pulled(client, id, files); !trouble.empty()) {
    context.warn(trouble);
  }
  if (context.globals.json) {
    context.print_json({{"job", id}, {"folder", folder.string()}, {"files", listed}});
  } else if (!context.globals.quiet) {
    std::string line = std::to_string(files.size()) + (files.size() == 1 ? " file" : " files") +
                       " of " + id + " in " + folder.string() + " (" + human_bytes(moved) +
                       " moved";
    if (kept > 0) line += ", " + std::to_string(kept) + " were here already";
    context.print(line + ")\n");
  }
  return 0;
}

}  // namespace

Verb add_pull(CLI::App& root) {
  auto options = std::make_shared<Options>();
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
