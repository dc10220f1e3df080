#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"

namespace dtrain::supervise {

// The report sockets of all ranks of one node. Lines that break docs/rank_contract.md are dropped
// with a warning, at most one a second for each rank, and with an answer to who asked for one.
class Reports {
 public:
  struct Hooks {
    // A line that passed parse_report. Returns the number under which its answer will come, or
    // nothing when it is taken as it is.
    std::function<std::optional<std::uint64_t>(int rank, nlohmann::json body)> report;
    std::function<void(int rank, std::string message)> warning;
  };

  Reports(boost::asio::io_context& io, const Clock& clock, Hooks hooks);
  // Closes everything and removes the sockets.
  ~Reports();
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;

  void listen(int rank, const fs::path& path);

  // Stops reading and accepting, so that ranks that report faster than the head stores are held up;
  // and goes on.
  void set_paused(bool paused);

  // The rank has ended: reads what it left in its connections, those too that wait to be accepted,
  // paused or not.
  void drain(int rank);

  // The answer to the report of that number; no such question is fine.
  void answer(std::uint64_t seq, const nlohmann::json& line);
  // All up to `seq` is durable: for metrics this is the answer, a checkpoint's comes by itself.
  void durable(std::uint64_t seq);
  // This one is, whatever is before it.
  void durable_alone(std::uint64_t seq);
  // Everybody who still waits is told so.
  void refuse_all(const std::string& reason);

 private:
  struct Connection;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dtrain::supervise
