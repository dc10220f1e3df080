#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/wire/frames.hpp"
#include "launcher/wire/node.hpp"

// Commands that the head asks this node to run for `exec` and `attach`: their pipes or terminal on
// one side, the bulk connection on the other. All on the executor's thread.
namespace dtrain::node {

// `down` looks for it too (launcher/cluster/processes.cpp).
inline constexpr const char* kExecMark = "DTRAIN_EXEC_ROOT";

class Execs {
 public:
  // `environment` is the node's login environment, as NAME=VALUE. Every command carries kExecMark
  // with the value `mark`, which is the node's root; commands that carry it already are ended.
  Execs(boost::asio::any_io_executor executor,
        std::function<std::vector<std::string>()> environment, std::string mark);
  ~Execs();

  // The bulk connection, newly open; the commands of the one before end with SIGHUP.
  void use(wire::FrameStreamPtr bulk);
  // A message of the head's on it, with the bytes of the binary frame behind an ExecInput.
  void message(const wire::BulkMessage& message, std::string bytes);
  void start(const wire::StartExec& start);
  // Some child has ended.
  void reap();
  std::vector<pid_t> pids() const;

 private:
  class Command;
  boost::asio::any_io_executor executor_;
  std::function<std::vector<std::string>()> environment_;
  std::string mark_;
  wire::FrameStreamPtr bulk_;
  std::map<std::string, std::shared_ptr<Command>> commands_;
};

}  // namespace dtrain::node
