#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/metrics.hpp"

namespace dtrain::train {

// Where a training's metrics go: what Lightning calls a logger. Ours are JsonLinesLogger, CsvLogger
// and TensorBoardLogger; one's own derives from this. Every rank makes it, only rank 0's is called,
// on the training's thread: so a constructor opens and writes nothing, start() does.
//
// start() comes first, before anything is logged; what it throws ends the training. After that the
// training is worth more than its log: what a logger throws is told once, with its name, later
// records are tried all the same, and at the end it is told how many are missing.
class Logger {
 public:
  enum class Status : std::uint8_t { success, failed };

  virtual ~Logger() = default;
  virtual std::string name() const = 0;  // for messages: "csv (runs/metrics.csv)"

  // The training begins, or goes on from a checkpoint of `resumed_step`: steps behind it that are
  // logged already are trained and logged again, so they are to be forgotten.
  virtual void start(std::optional<std::int64_t> /*resumed_step*/) {}
  virtual void log_hyperparams(const nlohmann::json& /*hyperparameters*/) {}  // once, after start
  // Steps never fall. The epoch counts from 0; none where a program has not said it.
  virtual void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                           const Metrics& metrics) = 0;
  // The end, once: also that of a training that fails. Write here what is still held back.
  virtual void finalize(Status /*status*/) {}
};

// A training's loggers, called as the contract above says. One thread.
class Loggers {
 public:
  // Throws Error where one is null.
  explicit Loggers(std::vector<std::shared_ptr<Logger>> loggers);

  bool started() const { return started_; }
  // Throws Error that names the logger.
  void start(std::optional<std::int64_t> resumed_step, const nlohmann::json& hyperparameters);
  void log_metrics(std::int64_t step, std::optional<std::int64_t> epoch, const Metrics& metrics);
  void finalize(Logger::Status status);

 private:
  struct Entry {
    std::shared_ptr<Logger> logger;
    std::int64_t missing = 0;  // records that it could not take
    bool told = false;
  };
  template <typename Call>
  bool attempt(Entry& entry, Call call);  // false, and told, where it throws

  std::vector<Entry> entries_;
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace dtrain::train
