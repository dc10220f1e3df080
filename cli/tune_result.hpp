#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace dtrain::cli {

// A search with its trials, a row for each: what it is, its parameters as config/NAME as Ray's
// dataframe has them, its last metrics. Numbers are as they were reported, to the last bit.
std::string trials_csv(const nlohmann::json& search);

// The command that trains a trial again, typed in `folder`: `submit` where all of its parameters
// stand in the job's command or environment, else `tune` with them as constants. `cluster`: another
// than the current one.
struct TrainAgain {
  std::vector<std::string> words;
  std::vector<std::string> unsaid;  // keys of its job that no flag has
};
TrainAgain train_again(const nlohmann::json& search, const nlohmann::json& trial,
                       const std::string& folder, const std::string& cluster = {});

}  // namespace dtrain::cli
