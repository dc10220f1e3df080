#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/engine.hpp"
#include "agent/head/server/guests.hpp"
#include "agent/head/server/turns.hpp"
#include "agent/link/content_sources.hpp"
#include "agent/link/idle_thread.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/files/store.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/frames.hpp"

// What was submitted, by content: taken from the CLI, given to the nodes, by turns where they are
// many. The bytes pass through a thread of its own in idle priority, TLS and compression included:
// gigabytes on their way to eight nodes must take no time from heartbeats, nor from the ranks of
// this machine.
namespace dtrain::head {

class Preparations;

class ContentServer {
 public:
  // `engine_context` is where the engine runs; `root` is the store's.
  ContentServer(boost::asio::io_context& engine_context, Engine& engine, Turns& turns,
                fs::path root);
  // Ends the thread; nothing is served from then on.
  void stop() { idle_.stop(); }

  // Engine's thread, as the rest. Which of a job's trees are not here, whole: {"missing": [sums…]}.
  void missing(const std::vector<std::string>& trees, std::function<void(nlohmann::json)> done);
  // The socket's request, head and all, is a WebSocket upgrade for /v1/content/upload.
  // `held` is let go of when it is over, on any thread.
  void upload(boost::asio::local::stream_protocol::socket socket, std::string request,
              std::shared_ptr<void> held = nullptr);
  // Set before serve_node().
  void use(const Preparations& preparations) { preparations_ = &preparations; }
  // A node wants what an attempt of it needs, or what it is to be prepared with.
  void serve_node(const wire::CallerPtr& caller);
  // The node gets nothing any more, in the middle of a file too; until it calls again.
  void end(const NodeId& node);
  // Its thread, for whatever else takes long to send; until stop().
  boost::asio::io_context& thread() { return idle_.context(); }
  // Any thread: what uploads that are under way have offered: jobs that are about to be.
  std::set<std::string> held() const;

 private:
  class Held;
  boost::asio::awaitable<void> take_upload(boost::asio::local::stream_protocol::socket socket,
                                           std::string request);
  boost::asio::awaitable<void> serve(GuestPtr guest);
  boost::asio::awaitable<void> give(GuestPtr guest, JobContent content, bool zstd, bool elsewhere);
  // What the attempt's nodes may have, or those that are to be prepared; throws Error for
  // another's.
  boost::asio::awaitable<JobContent> content_of(NodeId node, JobId job, int attempt);
  boost::asio::awaitable<JobContent> content_of(NodeId node, std::string preparation);

  boost::asio::io_context& engine_context_;
  Engine& engine_;
  Turns& turns_;
  const Preparations* preparations_ = nullptr;
  ContentStore store_;
  link::ContentSources sources_;  // of its thread
  Guests guests_;
  mutable std::mutex held_mutex_;
  std::list<std::set<std::string>> held_;  // by each upload
  link::IdleThread idle_;
  Worker checks_;
};

}  // namespace dtrain::head
