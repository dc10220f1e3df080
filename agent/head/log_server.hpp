#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/head/engine.hpp"
#include "launcher/wire/frames.hpp"

// Serves the bytes of logs and files. It has a thread of its own, in idle priority: reading logs
// must not take the ranks' time, nor the head's. Connections are handed to it once their request is
// read; what it needs to know it asks the engine for on the engine's thread.
namespace dtrain::head {

struct FollowQuery {
  bool logs = true;
  bool events = true;
  bool follow = true;
  std::optional<int> rank;
  std::optional<int> attempt;
  std::optional<std::string> stream;  // out, err, or setup: what the job's setup wrote
  bool setup = false;                 // that too
  std::optional<int> tail;            // lines
};

// From the part of a request's target behind '?'. Error(invalid) names the key.
FollowQuery parse_follow_query(const std::string& query);

// Where the last `lines` lines of a file begin; 0 when it has no more.
std::uint64_t tail_offset(int fd, int lines);

class LogServer {
 public:
  // `engine_context` is where the engine runs.
  LogServer(boost::asio::io_context& engine_context, Engine& engine);
  ~LogServer();
  // Ends the thread; nothing is served from then on.
  void stop();

  // Engine's thread: something is new of a job; its followers hear of it.
  void news(const JobNews& news);

  // Engine's thread. The socket's request, head and all, is a WebSocket upgrade for a job's follow.
  void follow(boost::asio::local::stream_protocol::socket socket, std::string request, JobId job,
              FollowQuery query);
  // Engine's thread. Answers a GET of `path` from byte `from` on, and closes.
  void send_file(boost::asio::local::stream_protocol::socket socket, fs::path path,
                 std::uint64_t from, bool is_range);

 private:
  class Follower;
  void forget(const std::shared_ptr<Follower>& follower);
  boost::asio::local::stream_protocol::socket move_here(
      boost::asio::local::stream_protocol::socket socket);

  boost::asio::io_context& engine_context_;
  Engine& engine_;
  boost::asio::io_context context_{1};
  std::multimap<JobId, std::weak_ptr<Follower>> followers_;  // engine's thread
  std::thread thread_;
};

}  // namespace dtrain::head
