#include "launcher/tune/keys.hpp"

#include <algorithm>
#include <cmath>

#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::tune {

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t kShown = 60;  // bytes of a value in a message
  const std::string text = printable(wire::dump(value), false);
  return text.size() <= kShown ? text : std::string(cut(text, kShown)) + "…";
}

nlohmann::json spelled_out(const nlohmann::json& json) {
  if (!json.is_string()) return json;
  nlohmann::json object = nlohmann::json::object();
  object["algorithm"] = json;
  return object;
}

Keys::Keys(const nlohmann::json& object, Path path, Problems& problems)
    : path_(std::move(path)), problems_(problems) {
  if (object.is_object()) {
    object_ = &object;
  } else if (!object.is_null()) {
    problems_.add(path_, "must be an object with keys, not " + shown(object));
  }
}

const nlohmann::json* Keys::find(const std::string& key) {
  known_.push_back(key);
  if (!object_) return nullptr;
  const auto found = object_->find(key);
  return found == object_->end() ? nullptr : &*found;
}

void Keys::wrong(const std::string& key, const std::string& message, const std::string& hint) {
  problems_.add(path(key), message, hint);
}

void Keys::number(const std::string& key, double& to, double min, double max, bool above) {
  const nlohmann::json* value = find(key);
  if (!value) return;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (number >= min && number <= max && !(above && number == min)) {
    to = number;
  } else {
    wrong(key, std::string("must be a number ") + (above ? "above " : "from ") + shown(min) +
                   (above ? " and up to " : " to ") + shown(max) + ", not " + shown(*value));
  }
}

std::optional<std::int64_t> Keys::whole_of(const std::string& key, std::int64_t min,
                                           std::int64_t max) {
  const nlohmann::json* value = find(key);
  if (!value || value->is_null()) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (number == std::floor(number) && number >= static_cast<double>(min) &&
      number <= static_cast<double>(max)) {
    return static_cast<std::int64_t>(number);
  }
  wrong(key, "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max) +
                 ", not " + shown(*value));
  return std::nullopt;
}

void Keys::flag(const std::string& key, bool& to) {
  const nlohmann::json* value = find(key);
  if (!value) return;
  if (value->is_boolean()) {
    to = value->get<bool>();
  } else {
    wrong(key, "must be true or false, not " + shown(*value));
  }
}

void Keys::text(const std::string& key, std::string& to) {
  const nlohmann::json* value = find(key);
  if (!value) return;
  if (value->is_string() && !value->get_ref<const std::string&>().empty()) {
    to = value->get<std::string>();
  } else {
    wrong(key, "must be a text, not " + shown(*value));
  }
}

void Keys::index_of(const std::string& key, std::size_t& to,
                    const std::vector<std::string>& names) {
  const nlohmann::json* value = find(key);
  if (!value) return;
  const std::string name = value->is_string() ? value->get<std::string>() : std::string();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) {
    to = static_cast<std::size_t>(found - names.begin());
  } else {
    wrong(key, "must be one of " + join(names, ", ") + ", not " + shown(*value));
  }
}

void Keys::finish() {
  if (!object_) return;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const auto near = nearest(key, known_);
    wrong(key, "is not known here",
          near ? "did you mean \"" + *near + "\"?" : "known are " + join(known_, ", "));
  }
}

}  // namespace dtrain::tune
