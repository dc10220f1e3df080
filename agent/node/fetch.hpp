#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/files/store.hpp"
#include "launcher/spec/job_spec.hpp"
#include "launcher/wire/frames.hpp"

// Brings an attempt's content to this node: what its trees name and the store lacks, from the head
// over a connection of its own, or from the node that the head names. For a thread that may block
// on the disk.
namespace dtrain::node {

// Dials the head's `path` and talks; again, with pauses of up to 5 s, after what is `worth_another`
// connection, and after the first few whose content arrived damaged. Throws what else `talk`
// throws, and what `check` does, which is asked before each further try.
using Talk = std::function<boost::asio::awaitable<void>(wire::FrameStreamPtr)>;
boost::asio::awaitable<void> over_connections(paths::NodeRoot root, std::string path,
                                              std::function<void()> check, Talk talk,
                                              std::function<bool(const Error&)> worth_another);
// A broken connection is; the rest will not change by itself.
bool connection_broke(const Error& error);

struct FetchJob {
  paths::NodeRoot root;
  NodeConfig config;
  JobId job;
  int attempt = 0;
  std::string preparation;  // its key, where it is no attempt's
  JobContent content;
  std::shared_ptr<std::atomic<bool>> stop;
  // Bytes that are here, and that there will be.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

// Returns when all of it is in the store. Goes on where it was over new connections, until `stop`.
// Throws Error(exhausted) when it will not fit the disk, Error(denied) when the head does not grant
// it, Error(conflict) when stopped. True when other nodes may want it of this one now.
boost::asio::awaitable<bool> fetch_content(std::shared_ptr<FetchJob> job);

// True when nothing is missing, without a connection.
bool content_is_here(const ContentStore& store, const JobContent& content);

}  // namespace dtrain::node
