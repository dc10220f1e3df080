#include <doctest/doctest.h>
#include <sys/stat.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/head/machines/scaler.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::head;

namespace {

constexpr const char* kMachine =
    R"({"machine": {"node": "gpu-1", "type": "gpu", "id": "i-1", "state": "pending", "reason": "",
"address": "", "external_address": "", "zone": "z", "cluster": "c-1", "launch": "", "created": 5,
"head": false, "joins": true}, "error": null})";
constexpr const char* kOver = R"({"machine": null, "error": null})";

// For what plays a scaler: frames as FramedStream has them.
constexpr const char* kFrames = R"py(#!/usr/bin/env python3
import os, struct, sys, time
def hear():
    head = sys.stdin.buffer.read(5)
    if not head: sys.exit(0)
    return sys.stdin.buffer.read(struct.unpack(">I", head[1:])[0]).decode()
def say(*texts):
    for text in texts:
        sys.stdout.buffer.write(b"j" + struct.pack(">I", len(text)) + text.encode())
    sys.stdout.buffer.flush()
def note(name, text):
    with open(sys.argv[0] + "." + name, "a") as file: file.write(text + "\n")
note("begun", hear())
while True:
    task = hear()
)py";

std::string saying(const std::vector<const char*>& texts) {
  std::string line = "    say(";
  for (const char* text : texts) line += std::string("r\'\'\'") + text + "\'\'\',";
  return line + ")\n";
}

// What a scaler's program is played by.
struct Site {
  // `body`: Python, for each task, which is `task`.
  explicit Site(const std::string& body) {
    const fs::path program = folder.path() / "scaler";
    write_file_atomic(program, kFrames + body);
    ::chmod(program.c_str(), 0700);
    wire::WantedMachines wanted;
    wanted.provider = "aws";
    wanted.scaler = program.string();
    scaler.emplace(wanted, "lab", folder.path() / "notes");
  }
  fs::path noted(const char* name) const { return folder.path() / (std::string("scaler.") + name); }

  testing::TemporaryFolder folder;
  std::optional<Scaler> scaler;
};

std::string failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("scaler: a task's answers come as they are said") {
  Site site(saying({kMachine, kOver}));
  for (int turn = 0; turn < 2; ++turn) {
    const std::vector<Machine> machines = site.scaler->list();
    REQUIRE(machines.size() == 1);
    CHECK(machines.front().node == NodeId("gpu-1"));
    CHECK(machines.front().state == MachineState::pending);
    CHECK(machines.front().joins);
    CHECK(machines.front().created.time_since_epoch() == std::chrono::milliseconds(5));
  }
  const ScalerBegin begin = scaler_begin_from(read_file(site.noted("begun")));  // once
  CHECK(begin.cluster_name == "lab");
  CHECK(begin.notes == site.folder.path() / "notes");
  CHECK(begin.wanted.provider == "aws");
}

TEST_CASE("scaler: what it is told is what it hears") {
  Request request;
  request.type = "gpu";
  request.nodes = {NodeId("gpu-1"), NodeId("gpu-2")};
  request.cluster = ClusterId("c-1");
  request.boot = [](const NodeId& node) { return "#!/bin/sh\necho '" + node.str() + "'\n"; };
  Site site("    note('tasks', task)\n" + saying({kMachine, kOver}));
  int told = 0;
  site.scaler->create({request}, [&](const MachineOutcome&) { ++told; });
  site.scaler->release({Machine{.node = NodeId("gpu-1"), .id = "i-1"}},
                       [&](const MachineOutcome&) { ++told; });
  CHECK(told == 2);
  const std::vector<std::string> lines = split(read_file(site.noted("tasks")), '\n');
  const ScalerTask create = scaler_task_from(lines.at(0));
  CHECK(create.kind == ScalerTask::Kind::create);
  REQUIRE(create.requests.size() == 1);
  CHECK(create.requests.front().nodes == request.nodes);
  CHECK(create.requests.front().scripts.at("gpu-2") == request.boot(NodeId("gpu-2")));
  const ScalerTask release = scaler_task_from(lines.at(1));
  CHECK(release.kind == ScalerTask::Kind::release);
  REQUIRE(release.machines.size() == 1);
  CHECK(release.machines.front().id == "i-1");
}

TEST_CASE("scaler: its end is an error, and the next task is asked of another") {
  Site site("    if '\"list\"' in task:\n    " + saying({kMachine}) +
            "        print('no more', file=sys.stderr); sys.exit(3)\n" + saying({kOver}));
  CHECK(failure([&] { site.scaler->list(); }).find("dtrain-scaler has ended") == 0);
  CHECK(failure([&] { site.scaler->list(); }).find("no more") != std::string::npos);
  CHECK(failure([&] { site.scaler->release({}, [](const MachineOutcome&) {}); }).empty());
}

TEST_CASE("scaler: what it cannot do is said, and it goes on") {
  Site site(saying({R"({"machine": null, "error": {"code": "denied", "message": "no rights"}})"}));
  for (int turn = 0; turn < 3; ++turn) CHECK(failure([&] { site.scaler->list(); }) == "no rights");
}

TEST_CASE("scaler: what it says is not believed") {
  for (const char* nonsense :
       {"{}", "not JSON", R"({"machine": {"node": "../x"}, "error": null})"}) {
    Site site(saying({nonsense}));
    CHECK_FALSE(failure([&] { site.scaler->list(); }).empty());
  }
}

TEST_CASE("scaler: one that ended while nobody asked is followed by another") {
  Site site(saying({kMachine, kOver}) +
            "    os.close(0); os.close(1); note('ended', ''); os._exit(0)\n");
  for (std::size_t turn = 1; turn <= 3; ++turn) {
    CHECK(site.scaler->list().size() == 1);
    while (read_file_if_there(site.noted("ended")).value_or("").size() < turn) {
      std::this_thread::yield();
    }
  }
}

TEST_CASE("scaler: four thousand machines are asked for in parts") {
  Request request;
  request.type = "gpu";
  for (int i = 0; i < 4000; ++i) request.nodes.emplace_back("gpu-" + std::to_string(i));
  request.boot = [](const NodeId&) { return std::string(6000, 'x'); };
  Site site("    note('tasks', '')\n" + saying({kMachine, kOver}));
  int told = 0;
  site.scaler->create({request}, [&](const MachineOutcome&) { ++told; });
  CHECK(told == 4);
  CHECK(read_file(site.noted("tasks")) == "\n\n\n\n");
}

TEST_CASE("scaler: hanging up ends what waits, and all that comes after") {
  Site site("    time.sleep(1000)\n");
  std::string said;
  std::thread waits([&] { said = failure([&] { site.scaler->list(); }); });
  while (!read_file_if_there(site.noted("begun"))) std::this_thread::yield();
  site.scaler->hang_up();
  waits.join();
  CHECK(said.find("dtrain-scaler has ended") == 0);
  CHECK(failure([&] { site.scaler->list(); }) == "the head asks for no more machines");
}

TEST_CASE("scaler: one that is not there") {
  wire::WantedMachines wanted;
  wanted.scaler = "/nowhere/dtrain-scaler";
  Scaler scaler(wanted, "lab", "/nowhere");
  CHECK(failure([&] { scaler.list(); }).find("/nowhere/dtrain-scaler") != std::string::npos);
}
