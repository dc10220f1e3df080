// A dtrain-agent that does nothing but be there: enough for the plans of launcher/cluster. Its
// `watch` starts children once, its `head` answers status and shutdown.
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_table.hpp"
#include "tests/support/fake_head.hpp"

namespace {

using namespace dtrain;
using nlohmann::json;

void wait_for_end(const sigset_t& signals) {
  int number = 0;
  ::sigwait(&signals, &number);
}

int head(const fs::path& root, const sigset_t& signals) {
  const fs::path cluster = root.parent_path();
  const FileLock lock = FileLock::wait(root / "lock");  // as the real one: a second waits
  const testing::FakeHead server(
      paths::head_socket(root),
      [&](const testing::FakeHead::Request& request) -> testing::FakeHead::Response {
        if (request.target == "/v1/shutdown") {
          for (const FoundProcess& process : cluster_processes(cluster)) {
            if (process.what != "node") continue;
            signal_process(process, SIGTERM);
            wait_gone(process, std::chrono::seconds(5));
          }
          // The answer first, as the real one: what hears none kills what is left.
          return {200, R"({"nodes":[]})", std::nullopt, [] { ::kill(::getpid(), SIGTERM); }};
        }
        json nodes = json::array();
        for (const auto& entry : fs::directory_iterator(cluster / "nodes")) {
          nodes.push_back({{"node", entry.path().filename().string()}, {"state", "ready"}});
        }
        return {
            200,
            json{{"cluster", {{"head", {{"port", 0}}}}}, {"nodes", nodes}, {"jobs", json::array()}}
                .dump()};
      },
      [](testing::FakeHead::Connection&) {});
  wait_for_end(signals);
  return 0;
}

int watch(const fs::path& root, const sigset_t& signals) {
  const json config = json::parse(read_file(root / "watch.json"));
  for (const json& child : config["children"]) {
    SpawnOptions options;
    options.argv = child["argv"].get<std::vector<std::string>>();
    options.new_session = true;
    spawn(options);
  }
  const json pid = {
      {"pid", ::getpid()}, {"start_time", *start_time(::getpid())}, {"boot_id", boot_id()}};
  write_file_atomic(root / "watch.pid", pid.dump());
  wait_for_end(signals);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const std::string verb = argc > 1 ? argv[1] : "";
  const fs::path root = options["--root"];
  const char* failing = std::getenv("FAKE_AGENT_FAILS");
  if (failing != nullptr && verb == failing) {
    std::cerr << "this is what went wrong\n";
    return 1;
  }
  if (verb == "init-head") {
    make_folders(root);
    write_file_atomic(root / "head.json", R"({"port": 0})");
  } else if (verb == "init-node") {
    std::cout << "request of " << options["--node"] << "\n";
  } else if (verb == "sign") {
    std::cout << "signed " << std::string(std::istreambuf_iterator<char>(std::cin), {});
  } else if (verb == "install-identity") {
    write_file_atomic(root / "identity.txt",
                      std::string(std::istreambuf_iterator<char>(std::cin), {}));
  } else if (verb == "head") {
    return head(root, signals);
  } else if (verb == "node") {
    const FileLock lock = FileLock::wait(root / "lock");
    wait_for_end(signals);
  } else if (verb == "watch") {
    return watch(root, signals);
  }
  return 0;
}
