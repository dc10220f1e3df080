#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/follow_query.hpp"
#include "agent/head/server/log_files.hpp"
#include "agent/link/idle_thread.hpp"
#include "launcher/wire/frames.hpp"

// Serves followers of jobs. It has a thread of its own, in idle priority: reading logs
// must not take the ranks' time, nor the head's. Connections are handed to it once their request is
// read; what it needs to know it asks the engine for on the engine's thread.
namespace dtrain::head {

class LogServer {
 public:
  // `engine_context` is where the engine runs.
  LogServer(boost::asio::io_context& engine_context, Engine& engine);
  // Ends the thread; nothing is served from then on.
  void stop() { idle_.stop(); }

  // Engine's thread: something is new of a job; its followers hear of it.
  void news(const JobNews& news);

  // Engine's thread. The socket's request, head and all, is a WebSocket upgrade for a job's follow.
  void follow(boost::asio::local::stream_protocol::socket socket, std::string request, JobId job,
              FollowQuery query);

 private:
  class Follower;
  void forget(const std::shared_ptr<Follower>& follower);

  boost::asio::io_context& engine_context_;
  Engine& engine_;
  LogFiles files_;                                           // log thread's
  std::multimap<JobId, std::weak_ptr<Follower>> followers_;  // engine's thread
  link::IdleThread idle_;
};

}  // namespace dtrain::head
