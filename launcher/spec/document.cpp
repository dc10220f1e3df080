#include "launcher/spec/document.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "launcher/core/number.hpp"

namespace dtrain::spec {
namespace {

bool any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// digits, at least one; returns how many characters
std::size_t digits(std::string_view text) {
  return std::min(text.size(), text.find_first_not_of("0123456789"));
}

}  // namespace

ScalarType scalar_type(std::string_view text) {
  if (any_of(text, {"", "~", "null", "Null", "NULL"})) return ScalarType::null;
  if (any_of(text, {"true", "True", "TRUE", "false", "False", "FALSE", "yes", "Yes", "YES", "no",
                    "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})) {
    return ScalarType::boolean;
  }
  if (any_of(text, {".inf", ".Inf", ".INF", "+.inf", "-.inf", ".nan", ".NaN", ".NAN"})) {
    return ScalarType::number;
  }
  std::string_view rest = text;
  if (rest.front() == '-' || rest.front() == '+') rest.remove_prefix(1);
  const std::size_t before = digits(rest);
  const bool zero_first = before > 1 && rest.front() == '0';  // octal to some: leave it a text
  rest.remove_prefix(before);
  if (rest.empty()) {
    return before > 0 && !zero_first ? ScalarType::whole : ScalarType::text;
  }
  std::size_t after = 0;
  if (rest.front() == '.') {
    rest.remove_prefix(1);
    after = digits(rest);
    rest.remove_prefix(after);
  }
  if (before + after == 0) return ScalarType::text;
  if (!rest.empty() && (rest.front() == 'e' || rest.front() == 'E')) {
    rest.remove_prefix(1);
    if (!rest.empty() && (rest.front() == '-' || rest.front() == '+')) rest.remove_prefix(1);
    const std::size_t exponent = digits(rest);
    if (exponent == 0) return ScalarType::text;
    rest.remove_prefix(exponent);
  }
  return rest.empty() ? ScalarType::number : ScalarType::text;
}

bool boolean_value(std::string_view text) {
  const char c = text.empty() ? 'n' : text.front();
  if (c == 't' || c == 'T' || c == 'y' || c == 'Y') return true;
  return text.size() == 2 && (c == 'o' || c == 'O');  // on, not off
}

std::optional<double> number_value(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto value = number_from<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return entry.value;
  }
  return nullptr;
}

ScalarType Node::type() const {
  if (kind == Kind::null) return ScalarType::null;
  return plain ? scalar_type(text) : ScalarType::text;
}

std::string Node::kind_name() const {
  switch (kind) {
    case Kind::sequence:
      return "a list";
    case Kind::mapping:
      return "a mapping";
    case Kind::null:
    case Kind::scalar:
      break;
  }
  switch (type()) {
    case ScalarType::null:
      return "empty";
    case ScalarType::boolean:
      return "true or false";
    case ScalarType::whole:
    case ScalarType::number:
      return "a number";
    case ScalarType::text:
      break;
  }
  return "a text";
}

Place Document::place(const Path& path) const {
  const Node* node = root_;
  Place best = root_->place;
  for (const std::string& step : path) {
    if (node->kind == Node::Kind::sequence && step.size() > 2 && step.size() < 12) {
      std::size_t index = 0;
      for (const char c : step) {
        if (c >= '0' && c <= '9') index = index * 10 + static_cast<std::size_t>(c - '0');
      }
      if (index >= node->items.size()) return best;
      node = node->items[index];
      best = node->place;
      continue;
    }
    const auto found = std::find_if(node->entries.begin(), node->entries.end(),
                                    [&](const Entry& entry) { return entry.key == step; });
    if (found == node->entries.end()) return best;
    node = found->value;
    best = node->kind == Node::Kind::scalar ? node->place : found->place;
  }
  return best;
}

}  // namespace dtrain::spec
