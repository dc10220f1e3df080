#include "launcher/provider/aws/prices.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"

namespace dtrain::aws {
namespace {

using nlohmann::json;

constexpr std::chrono::hours kKept{7 * 24};
// Nobody waits long for a price.
constexpr std::chrono::milliseconds kAnswerLimit{8000};

CallOptions quick() {
  CallOptions options;
  options.deadline = kAnswerLimit;
  options.timeout = kAnswerLimit;
  return options;
}

// The first price of a product's terms that is above nothing.
std::optional<double> price_of(const json& product) {
  for (const auto& [id, term] : product.at("terms").at("OnDemand").items()) {
    for (const auto& [dimension, said] : term.at("priceDimensions").items()) {
      const auto price = number_from<double>(said.at("pricePerUnit").value("USD", std::string()));
      if (price && *price > 0) return price;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> Prices::ask(const std::map<std::string, std::string>& fields) {
  json filters = json::array();
  for (const auto& [field, value] : fields) {
    filters.push_back({{"Type", "TERM_MATCH"}, {"Field", field}, {"Value", value}});
  }
  const json answer = client_.pricing("GetProducts",
                                      {{"ServiceCode", "AmazonEC2"},
                                       {"Filters", filters},
                                       {"FormatVersion", "aws_v1"},
                                       {"MaxResults", 10}},
                                      quick());
  try {
    for (const json& each : answer.at("PriceList")) {  // each is JSON in a text
      if (const auto price = price_of(json::parse(each.get<std::string>()))) return price;
    }
  } catch (const json::exception&) {
    throw Error(ErrorCode::invalid, "AWS's price list is not as it was");
  }
  return std::nullopt;
}

std::optional<double> Prices::ask_spot(const std::string& type,
                                       const std::set<std::string>& zones) {
  Form form{{"InstanceType.1", type},
            {"ProductDescription.1", "Linux/UNIX"},
            {"StartTime", rfc3339(client_.world().clock.wall())}};
  if (zones.size() == 1) form.emplace_back("AvailabilityZone", *zones.begin());
  std::optional<double> most;
  client_.ec2_pages(
      "DescribeSpotPriceHistory", form,
      [&](const Xml& page) {
        for (const Xml& each : page.list("spotPriceHistorySet")) {
          if (!zones.empty() && !zones.contains(each.at("availabilityZone"))) continue;
          most = std::max(most, number_from<double>(each.at("spotPrice")));
        }
      },
      quick());
  return most;
}

std::optional<double> Prices::listed(const std::string& what,
                                     const std::map<std::string, std::string>& fields,
                                     const Warn& warn) {
  const std::lock_guard lock(mutex_);
  const std::string key = client_.region() + "/" + what;
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const WallTime now = client_.world().clock.wall();
  json kept = json::object();
  try {
    kept = json::parse(read_file_if_there(file_).value_or("{}"));
    const json& old = kept.at(key);
    if (now - from_millis(old.at("asked")) < kKept) return known_[key] = old.at("usd");
  } catch (const std::exception&) {  // what is damaged is written anew
    if (!kept.is_object()) kept = json::object();
  }
  std::optional<double>& price = known_[key];
  try {
    price = ask(fields);
    if (!price) return price;
    kept[key] = {{"usd", *price}, {"asked", to_millis(now)}};
    make_folders(file_.parent_path());
    write_file_atomic(file_, kept.dump(2) + "\n");
  } catch (const Error& error) {
    if (warn && !std::exchange(warned_, true)) {
      warn("what machines cost is not known: " + std::string(error.message()));
    }
  }
  return price;
}

std::optional<double> Prices::instance_hour(const std::string& type,
                                            const std::set<std::string>& zones, bool spot,
                                            const Warn& warn) {
  if (type.empty()) return std::nullopt;
  if (!spot) {
    return listed(type,
                  {{"instanceType", type},
                   {"regionCode", client_.region()},
                   {"operatingSystem", "Linux"},
                   {"tenancy", "Shared"},
                   {"preInstalledSw", "NA"},
                   {"capacitystatus", "Used"}},
                  warn);
  }
  try {
    return ask_spot(type, zones);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (warn && !std::exchange(warned_, true)) {
      warn("what machines cost is not known: " + std::string(error.message()));
    }
    return std::nullopt;
  }
}

std::optional<double> Prices::volume_month(const std::string& type, double gib, const Warn& warn) {
  auto price = listed(
      "volume " + type,
      {{"volumeApiName", type}, {"regionCode", client_.region()}, {"productFamily", "Storage"}},
      warn);
  if (price) *price *= gib;
  return price;
}

}  // namespace dtrain::aws
