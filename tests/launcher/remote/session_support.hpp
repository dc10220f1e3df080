#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/agent_session.hpp"
#include "launcher/remote/local.hpp"
#include "tests/support/end_processes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable_is.hpp"

// A machine of its own for sessions: a home in a temporary folder, and this machine's processes.
namespace dtrain::testing {

// As sshd runs a command: by the user's shell, whatever it is, after what its profile prints.
class ShellTransport final : public Transport {
 public:
  explicit ShellTransport(std::string shell, std::string before = "")
      : shell_(std::move(shell)), before_(std::move(before)) {}

  std::unique_ptr<Channel> open(const std::vector<std::string>& argv) override {
    return here_.open({shell_, "-c", before_ + shell_join(argv)});
  }
  Captured run(const std::vector<std::string>& argv, std::string_view input,
               std::chrono::milliseconds deadline) override {
    return here_.run(argv, input, deadline);
  }
  void put(std::string_view content, const fs::path& path, mode_t mode) override {
    here_.put(content, path, mode);
  }
  void start_detached(const std::vector<std::string>& argv) override { here_.start_detached(argv); }
  fs::path head_socket(const HeadPlace& head) override { return here_.head_socket(head); }

 private:
  LocalTransport here_;
  std::string shell_;
  std::string before_;
};

class Home {
 public:
  Home() : home_("HOME", folder_.path().string()) {}
  ~Home() { end_processes(folder_.path()); }

  fs::path path() const { return folder_.path(); }
  fs::path agent_file() const { return agents() / binary()->sha256 / "dtrain-agent"; }
  fs::path agents() const { return path() / ".dtrain/agents"; }

  static std::shared_ptr<const AgentBinary> binary() {
    return AgentBinary::load(DTRAIN_AGENT_BINARY);
  }

  AgentSession open() const {
    LocalTransport here;
    return AgentSession::open(here, binary());
  }
  // With a node opened and prepared.
  AgentSession open_node(bool head = false) const {
    AgentSession session = open();
    session.open_node(node(head));
    return session;
  }
  static wire::OpenNode node(bool head = false) {
    wire::OpenNode open;
    open.cluster = ClusterId("lab-abcdef");
    open.node = NodeId("node-0");
    open.prepare = true;
    open.head = head;
    return open;
  }
  fs::path root() const { return path() / ".dtrain/lab-abcdef/node-0"; }
  fs::path head_root() const { return path() / ".dtrain/lab-abcdef/head"; }

 private:
  TemporaryFolder folder_;
  VariableIs home_;
  VariableIs spare_{"DTRAIN_SPARE_ROOT", (folder_.path() / "spare").string()};
  VariableIs config_{"XDG_CONFIG_HOME", std::nullopt};
};

}  // namespace dtrain::testing
