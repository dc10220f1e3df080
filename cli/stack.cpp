#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/exec_channel.hpp"
#include "cli/jobs.hpp"
#include "cli/numbers.hpp"
#include "cli/stack_tree.hpp"
#include "cli/staging.hpp"
#include "cli/sync_transfer.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/own_programs.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/downloads.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;

struct StackFlags {
  std::string job;
  std::optional<int> rank;
  std::optional<int> watch_s;
  std::optional<int> attempt;  // of those that are kept
  bool threads = false;
  bool kept = false;
};

constexpr std::size_t kMostOutput = std::size_t{256} << 20;  // bytes, of one node
constexpr std::chrono::seconds kPatience{60};                // until it has said all
constexpr std::chrono::seconds kProfilerEnd{5};
constexpr const char* kNoProcess = "there is no process of it";

// A job as it runs now.
struct Running {
  std::string cluster;  // its id
  bool local = false;
  std::string job;
  int attempt = 0;
  std::map<std::string, std::set<int>> ranks;  // by node
};

Error no_rank(const std::string& job, const StackFlags& options) {
  return {ErrorCode::not_found, job + " has no rank " + std::to_string(options.rank.value_or(0))};
}

Running look_at(const wire::ApiClient& client, const StackFlags& options) {
  const json status = client.get("/v1/status");
  Running running;
  running.cluster = text_or(child(status, "cluster"), "id");
  running.local = text_or(child(status, "cluster"), "provider") == "local";
  running.job = text_or(find_job(client, options.job, DefaultJob::newest), "job");
  const json job = client.get(job_target(running.job));
  const json& attempts = child(job, "attempts");
  const std::string state = text_or(job, "state");
  if (attempts.empty() || job_ended(state)) {
    throw Error(ErrorCode::conflict, running.job + " is " + state + ": it has no ranks to look at");
  }
  running.attempt = static_cast<int>(number_or(attempts.back(), "attempt"));
  for (const json& share : child(attempts.back(), "nodes")) {
    for (const json& rank : child(share, "ranks")) {
      const int number = rank.get<int>();
      if (!options.rank || options.rank == number)
        running.ranks[text_or(share, "node")].insert(number);
    }
  }
  if (running.ranks.empty()) {
    throw no_rank(running.job, options);
  }
  return running;
}

// The profiler and the libraries that nodes may lack, and where they go there.
std::vector<SyncMount> profiler_mounts(const std::string& cluster) {
  FileFactsCache cache(paths::file_sums());
  const BundlePlan plan = profiler_plan(cache);
  cache.save();
  std::map<std::string, fs::path> files{{"bin/dtrain-profiler", plan.program}};
  for (const BundleFile& file : plan.files) {
    if (file.taken) files["lib/" + file.name] = file.file;
  }
  std::vector<SyncMount> mounts;
  for (const auto& [name, file] : files) {
    SyncMount& mount = mounts.emplace_back();
    mount.source = file;
    mount.target = "~/.dtrain/" + cluster + "/sync/profiler/" + name;
    mount.overwrite = true;
  }
  return mounts;
}

// What to start on a node.
std::vector<std::string> profiler_command(const Running& running, const std::set<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(std::to_string(rank));
  std::vector<std::string> words{
      "stacks",  "--job",           running.job, "--attempt", std::to_string(running.attempt),
      "--ranks", join(numbers, ",")};
  if (running.local) {
    words.insert(words.begin(), find_profiler().string());
    return words;
  }
  return {
      "/bin/sh", "-c",
      "d=$DTRAIN_NODE_SYNC/profiler; LD_LIBRARY_PATH=\"$d/lib\" exec \"$d/bin/dtrain-profiler\" " +
          shell_join(words)};
}

// Everything that it says. Throws Error when it could not be run, failed, or took too long.
std::string output_of(const wire::ApiClient& client, const std::string& node,
                      const std::vector<std::string>& command) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  ExecChannel channel(client, node, command);
  ::shutdown(channel.fd(), SHUT_WR);
  std::string text;
  std::array<char, 65536> buffer{};
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd ready{channel.fd(), POLLIN, 0};
    const int found = ::poll(&ready, 1, static_cast<int>(std::max<long>(0, left.count())));
    if (found < 0 && errno == EINTR) continue;
    if (found == 0) {
      throw Error(ErrorCode::timeout,
                  "dtrain-profiler has not answered within " + human_duration(kPatience));
    }
    const ssize_t got = ::read(channel.fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostOutput) {
      throw Error(ErrorCode::exhausted,
                  "dtrain-profiler says more than " + human_bytes(kMostOutput));
    }
  }
  const std::optional<int> code = channel.wait(kProfilerEnd);
  if (code != 0) {
    std::string why = printable(trimmed(channel.errors()), false);
    if (why.empty()) why = code ? "exit code " + std::to_string(*code) : "it does not end";
    throw Error(ErrorCode::failed, "dtrain-profiler failed: " + why);
  }
  return text;
}

void sort_by_rank(json& processes) {
  std::stable_sort(processes.begin(), processes.end(), [](const json& a, const json& b) {
    return number_or(a, "rank", -1) < number_or(b, "rank", -1);
  });
}

// One look at all of the job's nodes: [a process each, with its node]. What could not be looked at
// has an "error".
json look(const Context& context, const wire::ApiClient& client, const Running& running) {
  const bool local = running.local;
  std::vector<SyncMount> mounts;
  if (!local) mounts = profiler_mounts(running.cluster);
  Transfers transfers;
  for (const auto& [node, ranks] : running.ranks) {
    transfers.push_back(std::make_unique<Transfer>());
    transfers.back()->node = node;
  }
  std::mutex mutex;
  json processes = json::array();
  run_transfers(context, transfers, [&](Transfer& each) {
    if (!local) {
      run_transfer(client, sync_command(false, each.node), each, [&](FramedStream& stream) {
        request_receive(stream);
        return send_trees(stream, mounts);
      });
    }
    json found = json::array();
    std::set<int> missing = running.ranks.at(each.node);
    try {
      if (each.error) throw *each.error;
      if (each.outcome && !each.outcome->complete()) {
        throw Error(ErrorCode::failed, "dtrain-profiler there is not as it is here");
      }
      const std::string text = output_of(client, each.node, profiler_command(running, missing));
      for (const std::string& line : split(trimmed(text), '\n')) {
        if (line.empty()) continue;
        json process = wire::parse_json(line, "what dtrain-profiler says");
        process["node"] = each.node;
        const int rank = static_cast<int>(number_or(process, "rank", -1));
        missing.erase(rank);
        found.push_back(std::move(process));
      }
      if (!missing.empty()) throw Error(ErrorCode::not_found, kNoProcess);
    } catch (const std::exception& thrown) {
      const Error error = as_defect(thrown);
      for (const int rank : missing) {
        found.push_back({{"node", each.node},
                         {"rank", rank},
                         {"first", true},
                         {"error", wire::error_to_json(error)["error"]}});
      }
    }
    const std::lock_guard lock(mutex);
    for (json& process : found) processes.push_back(std::move(process));
  });
  sort_by_rank(processes);
  return processes;
}

// What nodes have kept of an attempt, the newest look at it: {"at", "reason", "processes"}, with an
// error for each rank that is not in it; null: there is none.
json newest_look(wire::Downloads& downloads, const std::string& job, const json& attempt) {
  const std::string folder =
      "logs/attempt-" + std::to_string(static_cast<int>(number_or(attempt, "attempt"))) + "/";
  std::map<std::string, json> looks;  // each node's newest
  std::string at;
  std::string reason;
  for (const json& share : child(attempt, "nodes")) {
    const std::string path = folder + text_or(share, "node") + "/stacks.jsonl";
    downloads.ask(job_target(job, "/files/" + wire::percent_encode(path, true)), 0);
  }
  for (const json& share : child(attempt, "nodes")) {
    const std::string node = text_or(share, "node");
    std::string text;
    try {
      downloads.take([&text](std::string_view part) { text += part; }, [](std::uint64_t) {});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found) throw;
    }
    // The last, but for what is a part of one: the disk was full, or the rest is on its way.
    const std::vector<std::string> lines = split(text, '\n');
    for (auto line = lines.rbegin(); line != lines.rend() && looks[node].is_null(); ++line) {
      json look = json::parse(*line, nullptr, /*allow_exceptions=*/false);
      if (!text_or(look, "at").empty()) looks[node] = std::move(look);
    }
    if (const std::string its = text_or(looks[node], "at"); its > at) {
      at = its;
      reason = text_or(looks[node], "reason");
    }
  }
  if (at.empty()) return nullptr;
  json processes = json::array();
  for (const json& share : child(attempt, "nodes")) {
    const std::string node = text_or(share, "node");
    const json& look = looks[node];
    const bool is_its = text_or(look, "at") == at;
    // Those that had ended by then are not among its own.
    std::set<int> missing;
    for (const json& number : child(is_its ? look : share, "ranks")) {
      missing.insert(number.get<int>());
    }
    json error = wire::error_to_json(
        Error(ErrorCode::not_found, is_its ? kNoProcess : "its node has kept none"))["error"];
    if (is_its) {
      for (const json& each : child(look, "processes")) {
        if (!each.is_object()) continue;
        json process = each;
        process["node"] = node;
        missing.erase(static_cast<int>(number_or(process, "rank", -1)));
        processes.push_back(std::move(process));
      }
      if (child(look, "error").is_object()) error = child(look, "error");
    }
    for (const int each : missing) {
      processes.push_back({{"node", node}, {"rank", each}, {"first", true}, {"error", error}});
    }
  }
  sort_by_rank(processes);
  return {{"at", at}, {"reason", reason}, {"processes", std::move(processes)}};
}

// Whether a rank's own first thread was not looked at.
bool is_unseen(const json& process) {
  if (!process.value("first", true)) return false;
  const json& threads = child(process, "threads");
  return process.contains("error") || threads.empty() || threads.front().contains("error");
}

std::string in_words(const json& processes, bool threads) {
  // By what the thread is: first threads with each other, the others likewise.
  std::map<std::string, std::vector<RankStack>> kinds;
  std::string errors;
  for (const json& process : processes) {
    const int rank = static_cast<int>(number_or(process, "rank", -1));
    const std::string who = ranks_in_words({rank}) + " on " + text_or(process, "node");
    if (process.contains("error")) {
      const json& error = child(process, "error");
      errors += who + ": " + printable(text_or(error, "message"), false) + "\n";
      if (const std::string hint = text_or(error, "hint"); !hint.empty())
        errors += "  " + printable(hint, false) + "\n";
    }
    bool is_first = true;
    for (const json& thread : child(process, "threads")) {
      const bool is_main = std::exchange(is_first, false);
      if (!is_main && !threads) continue;
      if (thread.contains("error")) {
        errors += who + ", thread " + std::to_string(number_or(thread, "tid")) + ": " +
                  printable(text_or(thread, "error"), false) + "\n";
        continue;
      }
      RankStack stack{rank, {}};
      for (const json& frame : child(thread, "frames"))
        stack.frames.push_back(frame_in_words(frame));
      if (const std::string cut = text_or(thread, "cut"); !cut.empty())
        stack.frames.push_back("… (" + printable(cut, false) + ")");
      std::reverse(stack.frames.begin(), stack.frames.end());
      const bool own = process.value("first", true);
      kinds[own && is_main ? ""
            : own          ? "other threads"
                           : "processes that ranks have started"]
          .push_back(std::move(stack));
    }
  }
  std::string text;
  for (const auto& [kind, stacks] : kinds) {
    if (!kind.empty()) text += "\n" + kind + "\n";
    text += stack_tree(stacks);
  }
  return text + errors;
}

// The exit code.
int print_look(const Context& context, const StackFlags& options, const std::string& job,
               int attempt, const json& look) {
  const json& processes = child(look, "processes");
  const std::string at = text_or(look, "at");
  if (context.globals.json) {
    json answer = {{"job", job}, {"attempt", attempt}, {"processes", processes}};
    if (!at.empty()) {
      answer["at"] = at;
      answer["reason"] = text_or(look, "reason");
    }
    context.print_json(answer);
  } else {
    if (!at.empty()) {
      context.print("at " + printable(at, false) + ", attempt " + std::to_string(attempt) + ": " +
                    printable(text_or(look, "reason"), false) + "\n");
    }
    context.print(in_words(processes, options.threads));
  }
  return std::any_of(processes.begin(), processes.end(), is_unseen) ? 1 : 0;
}

// What was kept of the newest attempt of which something was, or of the one that is asked for;
// absent: nothing was.
std::optional<int> print_kept(const Context& context, const wire::ApiClient& client,
                              const StackFlags& options) {
  const std::string job = text_or(find_job(client, options.job, DefaultJob::newest), "job");
  const json status = client.get(job_target(job));
  const json& attempts = child(status, "attempts");
  wire::Downloads downloads(client.socket(), context.cluster());
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    const int number = static_cast<int>(number_or(*attempt, "attempt"));
    if (options.attempt && number != *options.attempt) continue;
    json look = newest_look(downloads, job, *attempt);
    if (look.is_null()) continue;
    auto& processes = look["processes"].get_ref<json::array_t&>();
    std::erase_if(processes, [&options](const json& process) {
      return options.rank && number_or(process, "rank", -1) != *options.rank;
    });
    if (processes.empty()) throw no_rank(job, options);
    return print_look(context, options, job, number, look);
  }
  return std::nullopt;
}

constexpr const char* kWhenKept = "stacks are kept when ranks get no further (hang_timeout_s)";

int run_stack(Context& context, StackFlags options) {
  // At any time; what runs on the nodes is hung up on by that.
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, [](int signal) { ::_exit(128 + signal); });
  }
  const wire::ApiClient client = context.client();
  if (options.kept || options.attempt) {
    if (const auto code = print_kept(context, client, options)) return *code;
    throw Error(ErrorCode::not_found, "no stacks are kept of it").with_hint(kWhenKept);
  }
  int code = 0;
  for (bool is_first = true;; is_first = false) {
    Running running;
    try {
      running = look_at(client, options);
    } catch (Error& error) {
      const bool has_ended = error.code() == ErrorCode::conflict;
      if (!is_first && has_ended) return code;
      if (!has_ended) throw;
      if (const auto kept = print_kept(context, client, options)) return *kept;
      throw error.with_hint(std::string("none are kept of it either: ") + kWhenKept);
    }
    options.job = running.job;  // that one, whatever is submitted meanwhile
    code = print_look(context, options, running.job, running.attempt,
                      {{"processes", look(context, client, running)}});
    if (!options.watch_s) return code;
    std::this_thread::sleep_for(std::chrono::seconds(*options.watch_s));
    if (!context.globals.json) context.print("\n");
  }
}

}  // namespace

Verb add_stack(CLI::App& root) {
  auto options = std::make_shared<StackFlags>();
  CLI::App* app =
      add_verb(root, "stack", "What the ranks of a job do now: their native stacks, merged",
               "  dtrain stack                   the newest job\n"
               "  dtrain stack mnist --rank 3 --threads\n"
               "  dtrain stack --watch 5         again every 5 s\n"
               "  dtrain stack --kept            what its nodes have kept when it hung\n"
               "Outermost function first; what ranks have in common stands once. A rank stands "
               "still for some\n"
               "milliseconds. Functions everywhere; lines where the code has them (-g1).\n"
               "Of a job that has ended it shows what is kept.\n"
               "Exit code: 0, or 1 when a rank could not be looked at.\n");
  app->add_option("job", options->job,
                  "Id, name (the newest of it) or beginning of an id (default: the newest)")
      ->type_name("JOB");
  app->add_option("--rank", options->rank, "Of this rank alone")
      ->check(at_least(0))
      ->type_name("R");
  app->add_flag("--threads", options->threads,
                "Of all threads; else of the first of each rank and of what it has started");
  app->add_option("--watch", options->watch_s, "Again after so many seconds, until Ctrl-C")
      ->check(CLI::Range(1, 86400))
      ->type_name("S")
      ->excludes(
          app->add_flag("--kept", options->kept,
                        "What was kept when its ranks got no further: the newest, also of a job "
                        "that runs"))
      ->excludes(app->add_option("--attempt", options->attempt, "What was kept of this attempt")
                     ->check(at_least(1))
                     ->type_name("N"));
  return {app, [options](Context& context) { return run_stack(context, *options); }, std::nullopt};
}

}  // namespace dtrain::cli
