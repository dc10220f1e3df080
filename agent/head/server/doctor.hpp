#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "agent/head/engine/engine.hpp"
#include "agent/head/engine/node_clock.hpp"
#include "agent/head/server/config_file.hpp"
#include "agent/head/server/content_server.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/node_door.hpp"
#include "agent/head/server/preparations.hpp"
#include "agent/link/findings.hpp"
#include "launcher/core/worker.hpp"

// What is wrong with the cluster (`dtrain doctor`): asks all nodes, looks at the head's own machine
// and adds what only the head can know. All on the io_context's thread, but for the work on files.
namespace dtrain::head {

class Doctor {
 public:
  struct Parts {
    Engine& engine;
    ConfigFile& config;
    NodeDoor& door;
    NodeConnections& nodes;
    ContentServer& contents;
    const Preparations& preparations;
  };
  Doctor(boost::asio::io_context& context, Parts parts);

  // Answers docs/api.md's POST /v1/doctor, the head first; a node that is away or says nothing
  // within kPatience has an error. Without `fix` nothing is changed.
  void examine(bool fix, Engine::Answer done);

  // Longer than a node takes whose driver hangs, and that waits for processes to end.
  static constexpr std::chrono::seconds kPatience{30};

 private:
  struct Round;
  struct Row;
  void look_at_head(const std::string& request, bool fix);
  void answered(const std::string& request, const std::string& who,
                const wire::DoctorReport& report);
  void finish(const std::string& request);

  boost::asio::io_context& context_;
  Parts parts_;
  std::map<std::string, std::shared_ptr<Round>> rounds_;  // by request
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

// ---- What is judged, apart from who is asked.

// What the head believes of a node's attempts, and what the node has. Only what was so when it was
// asked and still is: in between things come and go.
struct Still {
  std::function<bool(const std::pair<JobId, int>&)> runs;
  std::function<bool(const JobId&)> is_open;
};
void judge_attempts(const Engine::NodeJobs& asked, const Still& still,
                    const wire::DoctorReport& said, link::Findings& findings);

// Of times of the day that were sent in milliseconds.
ClockOffset clock_offset(WallTime asked, WallTime received, WallTime sent, WallTime answered);
// A note above 1 s: logs and events of two nodes no longer tell what came first. A problem above an
// hour: it was never set, and certificates stand 48 h at most.
void judge_clock(const ClockOffset& offset, link::Findings& findings);

// By its row of Engine::status().
void judge_node(const nlohmann::json& row, link::Findings& findings);
// By all of it.
void judge_cluster(const nlohmann::json& status, link::Findings& findings);

}  // namespace dtrain::head
