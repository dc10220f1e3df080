#include "trainer/report/logger.hpp"

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "trainer/core/error.hpp"

namespace dtrain::train {

Loggers::Loggers(std::vector<std::shared_ptr<Logger>> loggers) {
  for (std::shared_ptr<Logger>& logger : loggers) {
    if (!logger) throw Error("a logger is null");
    entries_.push_back({.logger = std::move(logger)});
  }
}

template <typename Call>
bool Loggers::attempt(Entry& entry, Call call) {
  try {
    call(*entry.logger);
    return true;
  } catch (const std::exception& error) {
    if (!std::exchange(entry.told, true)) {
      std::fprintf(stderr, "warning: logger %s fails, training goes on without it: %s\n",
                   entry.logger->name().c_str(), error.what());
    }
    return false;
  }
}

void Loggers::start(std::optional<std::int64_t> resumed_step,
                    const nlohmann::json& hyperparameters) {
  if (std::exchange(started_, true)) return;
  for (Entry& entry : entries_) {
    try {
      entry.logger->start(resumed_step);
      if (!hyperparameters.empty()) entry.logger->log_hyperparams(hyperparameters);
    } catch (const std::exception& error) {
      throw Error("logger " + entry.logger->name() + ": " + error.what());
    }
  }
}

void Loggers::log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                          const Metrics& metrics) {
  for (Entry& entry : entries_) {
    if (!attempt(entry, [&](Logger& logger) { logger.log_metrics(step, epoch, metrics); })) {
      ++entry.missing;
    }
  }
}

void Loggers::finalize(Logger::Status status) {
  if (!started_ || std::exchange(ended_, true)) return;
  for (Entry& entry : entries_) {
    attempt(entry, [&](Logger& logger) { logger.finalize(status); });
    if (entry.missing == 0) continue;
    std::fprintf(stderr, "warning: logger %s lacks %lld records\n", entry.logger->name().c_str(),
                 static_cast<long long>(entry.missing));
  }
}

}  // namespace dtrain::train
