#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/wire/session.hpp"

namespace dtrain {

// What the machines of one `up` have to wait for each other for.
class HeadDesk {
 public:
  struct Head {
    ClusterId cluster;
    wire::HeadFound found;
    std::vector<std::string> addresses;  // numeric, the likeliest first
    std::string agent;                   // the binary's path there
    std::int64_t uid = 0;
  };

  // The head's thread: it is there (the first call counts), or it failed.
  void open(Head head, std::function<std::string(const NodeId&, const std::string&)> sign);
  void open_files(fs::path folder);  // what the head gives to the others lies in this folder here
  void fail(const Error& error);

  // The others wait here. Error(failed) when the head failed, or `stop` was asked for;
  // Error(not_found) when there is none and a dry run makes none.
  Head head(const std::stop_token& stop);
  std::string sign(const NodeId& node, const std::string& request);
  fs::path files(const std::stop_token& stop);
  std::optional<Head> head_if_open();

 private:
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const std::stop_token& stop, Ready ready);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Head> head_;
  std::optional<fs::path> files_;
  std::optional<Error> error_;
  std::mutex signing_;
  std::function<std::string(const NodeId&, const std::string&)> sign_;
};

}  // namespace dtrain
