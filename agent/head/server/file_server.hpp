#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <string>
#include <utility>
#include <vector>

#include "agent/head/engine/engine.hpp"
#include "agent/link/idle_thread.hpp"

// Serves the files of jobs, for `pull`: their list, and their bytes. It has a thread of its own, in
// idle priority, whose reads may block it. A connection is handed to it with its first request, and
// is answered here from then on, so that ten thousand small files cost the engine one request.
namespace dtrain::head {

class FileServer {
 public:
  // `engine_context` is where the engine runs.
  FileServer(boost::asio::io_context& engine_context, Engine& engine);
  // Ends the thread; nothing is served from then on.
  void stop() { idle_.stop(); }

  // Engine's thread. `request`, head and all, is a GET below /v1/jobs/JOB/files; `behind` are the
  // bytes that were read after it.
  // `held` is let go of when it is over, on any thread.
  void serve(boost::asio::local::stream_protocol::socket socket, const std::string& request,
             const std::string& behind, JobId job, std::shared_ptr<void> held = nullptr);

 private:
  class Visit;
  boost::asio::io_context& engine_context_;
  Engine& engine_;
  link::IdleThread idle_;
};

// The files that a job has for `pull`, as the engine knows them.
struct JobFiles {
  std::vector<fs::path> checkpoints;                   // folders
  std::vector<std::pair<std::string, fs::path>> logs;  // by their names in the API
};
// Engine's thread.
JobFiles job_files(const Engine& engine, const JobId& job);
// The answer to GET …/files: "files", and in "troubles" what should be there and cannot be read.
nlohmann::json list_files(const JobFiles& files);
// The names that a checkpoint's manifest lists. Throws Error.
nlohmann::json manifest_files(const fs::path& folder);

}  // namespace dtrain::head
