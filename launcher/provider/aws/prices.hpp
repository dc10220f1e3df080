#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/provider/aws/client.hpp"

namespace dtrain::aws {

inline constexpr const char* kPricesFile = "aws-prices.json";  // below paths::state_home()

// What AWS takes, in US dollars, by its public price list and, for spot, by what was paid last.
// Those of the list are kept in a file for a week. Absent: AWS does not say, or cannot be asked,
// which never fails a command: `warn` is told why, once. Thread-safe.
class Prices {
 public:
  // The client outlives it.
  Prices(Client& client, fs::path file) : client_(client), file_(std::move(file)) {}

  using Warn = std::function<void(const std::string&)>;
  // An hour of an instance. Of spot alone: the dearest of these zones; none are all.
  std::optional<double> instance_hour(const std::string& type, const std::set<std::string>& zones,
                                      bool spot, const Warn& warn);
  // A month of a volume.
  std::optional<double> volume_month(const std::string& type, double gib, const Warn& warn);

 private:
  std::optional<double> listed(const std::string& what,
                               const std::map<std::string, std::string>& fields, const Warn& warn);
  std::optional<double> ask(const std::map<std::string, std::string>& fields);
  std::optional<double> ask_spot(const std::string& type, const std::set<std::string>& zones);

  Client& client_;
  fs::path file_;
  std::mutex mutex_;
  std::map<std::string, std::optional<double>> known_;
  bool warned_ = false;
};

}  // namespace dtrain::aws
