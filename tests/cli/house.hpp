#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/core/capture.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "tests/support/fake_head.hpp"
#include "tests/support/temporary_folder.hpp"

// The real `dtrain` in a folder of its own, with a head that says what a test wants it to say.
namespace dtrain::cli::test {

using dtrain::testing::FakeHead;
using nlohmann::json;

inline constexpr auto kLimit = std::chrono::seconds(60);

inline json summary(const std::string& id, const std::string& state, int world_size = 2) {
  return {{"job", id},
          {"name", "job"},
          {"state", state},
          {"reason", ""},
          {"exit_code", nullptr},
          {"attempt", 1},
          {"world_size", world_size},
          {"nodes", {"node-0"}},
          {"created", "2026-01-02T03:04:05.678Z"},
          {"started", nullptr},
          {"ended", nullptr},
          {"progress", nullptr}};
}

// What a follower is told.
inline std::string state_frame(const std::string& state, int attempt = 1) {
  return json{{"type", "state"}, {"job", "job-aaaaaa"}, {"state", state},
              {"reason", ""},    {"attempt", attempt},  {"time", "2026-01-02T03:04:05.678Z"}}
      .dump();
}

inline std::string end_frame(const std::string& state, int code) {
  return json{{"type", "end"}, {"state", state}, {"exit_code", code}}.dump();
}

struct House {
  House() {
    work = fs::absolute(folder.path());
    write_file_atomic(work / "train", "#!/bin/sh\n", 0755);
  }

  void serve(
      FakeHead::OnRequest on_request, FakeHead::OnSocket on_socket = [](auto&) {}) {
    head = std::make_unique<FakeHead>(socket(), std::move(on_request), std::move(on_socket));
  }
  // A head that takes any job as job-aaaaaa and follows it with `on_socket`.
  void serve_job(FakeHead::OnSocket on_socket) {
    serve(
        [this](const FakeHead::Request& request) -> FakeHead::Response {
          if (request.method == "POST") submitted = json::parse(request.body);
          if (request.target == "/v1/jobs" && request.method == "GET") {
            return {200, json{{"jobs", {summary("job-aaaaaa", "running")}}}.dump()};
          }
          if (request.target == "/v1/jobs/job-aaaaaa") {
            json all = summary("job-aaaaaa", "failed");
            all["error"] = {{"message", "rank 1 on node-0: exit code 3"},
                            {"error_message", "boom"}};
            return {200, all.dump()};
          }
          return {200, R"({"job":"job-aaaaaa","name":"job","state":"queued"})"};
        },
        std::move(on_socket));
  }

  // The cluster is one of a host over SSH, as `up` has noted it.
  void note_host() const {
    const json machine = {{"node", "10.0.0.9"}, {"address", "10.0.0.9"}, {"root", "/x"}};
    const fs::path its = work / "state/dtrain/clusters/c";
    fs::create_directories(its);
    write_file_atomic(its / "cluster.json", json{{"name", "c"},
                                                 {"id", "c-abcdef"},
                                                 {"provider", "ssh"},
                                                 {"nodes", {machine}},
                                                 {"head_root", "/x"},
                                                 {"agent", ""},
                                                 {"spec", json::object()}}
                                                .dump());
  }

  fs::path socket() const { return work / "head.sock"; }
  SpawnOptions options(std::vector<std::string> words) const {
    SpawnOptions spawned;
    spawned.argv = std::move(words);
    spawned.argv.insert(spawned.argv.begin(), DTRAIN_BIN);
    spawned.env = {"PATH=/usr/bin:/bin",
                   "HOME=" + work.string(),
                   "XDG_STATE_HOME=" + (work / "state").string(),
                   "DTRAIN_CLUSTER=c",
                   "DTRAIN_HEAD_SOCKET=" + socket().string(),
                   "TOKEN=very-secret"};
    spawned.workdir = work.string();
    return spawned;
  }
  Captured run(std::vector<std::string> words, const std::string& input = {}) const {
    return capture(options(std::move(words)), input, kLimit);
  }
  // Sends it a signal once it is at something.
  Captured leave(std::vector<std::string> words, std::promise<void>& at_it,
                 int signal = SIGINT) const {
    SpawnOptions how = options(std::move(words));
    const UniqueFd out = open_file(work / "out", O_RDWR | O_CREAT | O_TRUNC);
    const UniqueFd err = open_file(work / "err", O_RDWR | O_CREAT | O_TRUNC);
    how.stdout_fd = out.get();
    how.stderr_fd = err.get();
    const pid_t pid = spawn(how);
    CHECK(at_it.get_future().wait_for(kLimit) == std::future_status::ready);
    ::kill(pid, signal);
    const ProcessExit exit = wait(pid);
    return {exit, read_file(work / "out"), read_file(work / "err")};
  }

  dtrain::testing::TemporaryFolder folder;
  fs::path work;
  json submitted;
  std::unique_ptr<FakeHead> head;
};

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace dtrain::cli::test
