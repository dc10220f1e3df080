#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include "agent/head/machines/keeper.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "tests/support/asked_machines.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

// A keeper of machines, with all that is around it in memory.
namespace dtrain::head::testing_desk {

using namespace std::chrono_literals;
using namespace dtrain::testing;
using Presence = Engine::Presence;
using Strings = std::vector<std::string>;

// A provider in memory. Jobs are numbered as they are asked for.
struct FakeSite {
  std::mutex mutex;
  std::vector<Machine> machines;
  int jobs = 0;
  std::optional<Error> deaf;
  std::optional<Error> refuses;
  std::optional<Error> keeps;  // nothing is given back
  std::optional<Error> no_stop;
  std::optional<Error> no_start;
  std::vector<std::string> boots;

  void set(const std::string& job, MachineState state, const std::string& reason = "",
           bool taken_back = false) {
    const std::lock_guard lock(mutex);
    for (Machine& each : machines) {
      if (group_of(each) != job) continue;
      each.state = state;
      each.reason = reason;
      each.taken_back = taken_back;
    }
  }
};

class FakeSource final : public MachineSource {
 public:
  explicit FakeSource(FakeSite& site) : site_(site) {}

  std::vector<Machine> list() override {
    const std::lock_guard lock(site_.mutex);
    if (site_.deaf) throw Error(*site_.deaf);
    return site_.machines;
  }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override {
    const std::lock_guard lock(site_.mutex);
    for (const Request& request : requests) {
      const std::string job = std::to_string(++site_.jobs);
      for (std::size_t i = 0; i < request.nodes.size(); ++i) {
        Machine machine;
        machine.joins = true;
        machine.node = request.nodes[i];
        machine.type = request.type;
        machine.launch = request.launch;
        machine.cluster = request.cluster;
        machine.id = job + "/" + std::to_string(i);
        machine.state = MachineState::pending;
        machine.created = std::chrono::system_clock::time_point(std::chrono::seconds(site_.jobs));
        if (!site_.refuses) {
          site_.boots.push_back(request.boot(machine.node));
          site_.machines.push_back(machine);
        }
        tell({machine, site_.refuses});
      }
    }
  }
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    turn(machines, MachineState::gone, site_.keeps, tell);
  }
  void stop(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    turn(machines, MachineState::stopped, site_.no_stop, tell);
  }
  void start(const std::vector<Machine>& machines, const BootScript& boot,
             const OutcomeSink& tell) override {
    for (const Machine& machine : machines) site_.boots.push_back(boot(machine.node));
    turn(machines, MachineState::pending, site_.no_start, tell);
  }

 private:
  void turn(const std::vector<Machine>& machines, MachineState to,
            const std::optional<Error>& refused, const OutcomeSink& tell) {
    const std::lock_guard lock(site_.mutex);
    for (Machine machine : machines) {
      for (Machine& each : site_.machines) {
        if (each.id == machine.id && !refused) each.state = machine.state = to;
      }
      tell({machine, refused});
    }
  }

  FakeSite& site_;
};

// Where calls of a source are held up, those of one name.
class Gate {
 public:
  void close(const std::string& call) {
    const std::lock_guard lock(mutex_);
    closed_ = call;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_.clear();
    changed_.notify_all();
  }
  void pass(const std::string& call) {
    std::unique_lock lock(mutex_);
    if (closed_ != call) return;
    is_held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return closed_ != call; });
    is_held_ = false;
  }
  // False when it took too long.
  bool await() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, dtrain::testing::kPatience, [&] { return is_held_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string closed_;
  bool is_held_ = false;
};

// A hang-up lets go who waits at the gate, if it is this one.
class HeldSource final : public MachineSource {
 public:
  HeldSource(FakeSite& site, Gate& gate) : site_(site), gate_(gate) {}
  std::vector<Machine> list() override {
    wait("list");
    return site_.list();
  }
  void create(const std::vector<Request>& requests, const OutcomeSink& tell) override {
    wait("create");
    site_.create(requests, tell);
  }
  void release(const std::vector<Machine>& machines, const OutcomeSink& tell) override {
    site_.release(machines, tell);
  }
  void hang_up() override {
    if (waits_) gate_.open();
  }

 private:
  void wait(const std::string& call) {
    waits_ = true;
    gate_.pass(call);
    waits_ = false;
  }

  FakeSource site_;
  Gate& gate_;
  std::atomic<bool> waits_ = false;
};

// A keeper with the rest of a head played by maps; its thread's answers come when they are awaited.
struct Desk {
  Desk() { begin(); }
  ~Desk() { keeper.reset(); }

  void begin() {
    MachineKeeper::Hooks hooks;
    hooks.post = [this](std::function<void()> work) {
      const std::lock_guard lock(mutex);
      posted.push_back(std::move(work));
      changed.notify_one();
    };
    hooks.timer = [this](std::chrono::milliseconds delay, std::function<void()> work) {
      due = {delay, std::move(work)};
    };
    hooks.source = [this](const wire::WantedMachines& what) -> std::unique_ptr<MachineSource> {
      if (what.provider != "fake") throw Error(ErrorCode::invalid, "who is " + what.provider);
      if (other_source) return other_source();
      return std::make_unique<FakeSource>(site);
    };
    hooks.is_taken = [this](const NodeId& node) { return nodes.contains(node); };
    hooks.issue = [this](const NodeId& node, const std::string&, const Strings&,
                         const MachineKeeper::Hooks::Issued& done) {
      nodes[node] = Presence::unseen;
      credentials.insert(node);
      done("script of " + node.str(), std::nullopt);
    };
    hooks.begin = [this](const NodeId& node) { begun.insert(node); };
    hooks.made = [this] { return std::vector<NodeId>(credentials.begin(), credentials.end()); };
    hooks.node = [this](const NodeId& node) {
      const auto found = nodes.find(node);
      return found == nodes.end() ? Presence::unseen : found->second;
    };
    hooks.busy = [this] {
      std::map<NodeId, std::string> all = sessions;
      for (const NodeId& node : busy) all[node] = "";
      return all;
    };
    hooks.leaves = [this](const NodeId& node) { return leaving.contains(node); };
    hooks.is_drained = [this](const NodeId& node) { return drained.contains(node); };
    hooks.drain = [this](const NodeId& node, bool undo) {
      ++drains;
      if (undo) {
        drained.erase(node);
      } else {
        drained.insert(node);
      }
    };
    hooks.remove = [this](const NodeId& node, const std::string& why) {
      removed[node] = why;
      credentials.erase(node);
      if (nodes[node] == Presence::unseen) {
        nodes.erase(node);
      } else {
        nodes[node] = Presence::lost;
      }
    };
    hooks.explain = [this](const NodeId& node, const std::string& why, bool back) {
      words[node] = why;
      if (back) taken_back.insert(node);
    };
    hooks.expect_machines = [this](const MachinesToCome& machines) {
      to_come = machines;
      return decide ? decide(machines) : growth;
    };
    hooks.capacity = [this](const NodeId&) { return capacity; };
    hooks.broken = [this](const NodeId& node) { return broken.contains(node) ? "is broken" : ""; };
    hooks.is_prepared = [this](const NodeId& node) {
      return !preparing.contains(node) && !broken.contains(node);
    };
    keeper.emplace(ClusterId("lab-id"), folder.path() / "machines.json",
                   folder.path() / "costs.json", clock, hooks);
  }

  // As a head that is started anew.
  void again() {
    keeper.reset();
    due.reset();
    begin();
  }

  // The next answer of one of its threads.
  void step() {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex);
      REQUIRE(changed.wait_for(lock, dtrain::testing::kPatience, [&] { return !posted.empty(); }));
      work = std::move(posted.front());
      posted.pop_front();
    }
    work();
  }
  // Until it rests: with a timer, or without.
  void settle() {
    while (!keeper->rests()) step();
  }
  void want(const wire::WantedMachines& what) {
    answer = nullptr;
    keeper->want(wire::to_json(what), [this](const nlohmann::json& said) { answer = said; });
    settle();
    CHECK_FALSE(answer.contains("error"));
  }
  void look() {
    keeper->look();
    settle();
  }
  // The next look, which there must be.
  std::chrono::milliseconds tick() {
    REQUIRE(due.has_value());
    const auto [delay, work] = std::move(*due);
    due.reset();
    clock.advance(delay);
    work();
    settle();
    return delay;
  }
  void come(const std::string& node) { goes(node, Presence::here); }
  void goes(const std::string& node, Presence now) {
    nodes[NodeId(node)] = now;
    keeper->changed(NodeId(node));
    settle();
  }
  // Jobs that wait need machines: these, and so many more.
  void needs(std::set<NodeId> these, Growth::Gang gang = {}) {
    growth = {};
    growth.needed = std::move(these);
    if (gang.count > 0) growth.gangs = {std::move(gang)};
    keeper->needs();
    settle();
    growth.gangs.clear();  // they are coming
  }
  // So many of type gpu run as job 1, and have been there for long.
  void have(int count) {
    want(wanted(count));
    site.set("1", MachineState::running);
    tick();
    for (int i = 1; i <= count; ++i) come("gpu-" + std::to_string(i));
    clock.advance(2min);
  }
  // "gpu-1 pending, gpu-2 pending"
  std::string machines() const {
    Strings rows;
    const nlohmann::json view = keeper->view();
    for (const auto& each : view["machines"]) {
      rows.push_back(each["node"].get<std::string>() + " " + each["state"].get<std::string>());
    }
    return join(rows, ", ");
  }
  std::string error() const {
    const nlohmann::json view = keeper->view();
    const nlohmann::json& type = view["types"][0];
    return type["error"].is_null() ? "" : type["error"]["message"].get<std::string>();
  }

  testing::TemporaryFolder folder;
  testing::FakeClock clock;
  FakeSite site;
  std::map<NodeId, Presence> nodes;
  std::set<NodeId> credentials;
  std::set<NodeId> begun;
  std::set<NodeId> drained;
  std::set<NodeId> leaving;
  std::set<NodeId> busy;
  std::map<NodeId, std::string> sessions;
  int drains = 0;  // asked for, or taken back
  std::map<NodeId, std::string> removed;
  std::set<NodeId> taken_back;
  std::map<NodeId, std::string> words;                           // of the provider
  std::function<std::unique_ptr<MachineSource>()> other_source;  // than `site`
  MachinesToCome to_come;
  std::function<Growth(const MachinesToCome&)> decide;  // absent: it is `growth`
  Growth growth;
  std::optional<NodeCapacity> capacity;
  std::set<NodeId> broken;
  std::set<NodeId> preparing;
  nlohmann::json answer;
  std::optional<std::pair<std::chrono::milliseconds, std::function<void()>>> due;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> posted;
  std::optional<MachineKeeper> keeper;
};

}  // namespace dtrain::head::testing_desk
