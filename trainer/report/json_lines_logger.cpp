#include "trainer/report/json_lines_logger.hpp"

#include <chrono>
#include <nlohmann/json.hpp>

namespace dtrain::train {
namespace {

using nlohmann::json;

std::string stamped_line(json line) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  line["time"] = now.count();
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What is no line of ours is left as it is.
bool comes_again(const std::string& text, std::int64_t resumed_step) {
  const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const json step = line.is_object() ? line.value("step", json()) : json();
  return step.is_number_integer() && step.get<std::int64_t>() > resumed_step;
}

}  // namespace

void JsonLinesLogger::start(std::optional<std::int64_t> resumed_step) {
  if (!resumed_step) {
    file_.begin();
    return;
  }
  std::vector<std::string> lines = file_.resume();
  std::erase_if(lines, [&](const std::string& line) { return comes_again(line, *resumed_step); });
  file_.replace(lines);
}

void JsonLinesLogger::log_hyperparams(const json& hyperparameters) {
  file_.append(stamped_line({{"hyperparameters", hyperparameters}}));
}

void JsonLinesLogger::log_metrics(std::int64_t step, std::optional<std::int64_t> epoch,
                                  const Metrics& metrics) {
  json line = {{"step", step}, {"metrics", metrics_to_json(metrics)}};
  if (epoch) line["epoch"] = *epoch;
  file_.append(stamped_line(std::move(line)));
}

}  // namespace dtrain::train
