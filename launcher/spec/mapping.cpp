#include "launcher/spec/mapping.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::spec {
namespace {

bool is_true(std::string_view text) {
  const char c = text.empty() ? 'n' : text.front();
  if (c == 't' || c == 'T' || c == 'y' || c == 'Y') return true;
  return text.size() == 2 && (c == 'o' || c == 'O');  // on, not off
}

std::optional<double> parse_number(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string article(const std::string& words) {
  return (std::string_view("aeiou").find(words.front()) != std::string_view::npos ? "an " : "a ") +
         words;
}

// "a whole number of 1 to 4096", "true or false", "one of: auto, off"
std::string expectation(const Shape& shape) {
  if (shape.kind == Shape::Kind::choice) return "one of: " + join(shape.choices, ", ");
  if (shape.kind == Shape::Kind::boolean || shape.kind == Shape::Kind::open) {
    return shape.in_words();
  }
  return article(shape.in_words());
}

std::string found(const Node& node) {
  if (node.kind != Node::Kind::scalar) return node.kind_name();
  if (node.type() == ScalarType::boolean) return node.text;
  if (node.type() == ScalarType::null) return "empty";
  const std::string shortened = shown(node.text);
  return node.type() == ScalarType::text ? "the text " + shortened : "the number " + node.text;
}

bool blank(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return true;
    case Node::Kind::scalar:
      return node.text.empty();
    case Node::Kind::sequence:
      return node.items.empty();
    case Node::Kind::mapping:
      return node.entries.empty();
  }
  return false;
}

}  // namespace

void warn_ray_only(const Node& node, Place place, const Path& path, Report& report) {
  if (!blank(node)) report.warning(path, place, "only makes sense for Ray; it has no effect here");
}

void warn_obsolete(const Node& node, Place place, const Path& path, Report& report) {
  if (!blank(node)) report.warning(path, place, "has no effect; Ray itself has given it up");
}

Mapping::Mapping(const Node* node, const Table& table, Path path, Source source)
    : Mapping(node, table, std::move(path), source, nullptr) {}

Mapping::Mapping(const Node* node, const Table& table, Path path, Source source,
                 const Explain& explain)
    : node_(node), table_(table), path_(std::move(path)), source_(source) {
  if (node_ == nullptr) return;
  if (node_->kind == Node::Kind::null && path_.empty()) {
    // an empty file: only what is missing is wrong
  } else if (node_->kind != Node::Kind::mapping) {
    source_.report.problem(
        path_, node_->place,
        path_.empty() ? "the file must be a mapping (key: value), but it is " + node_->kind_name()
                      : "must be a mapping, not " + node_->kind_name());
    node_ = nullptr;
    return;
  }
  for (const Entry& entry : node_->entries) {
    if (!source_.report.open()) break;
    const Key* key = table_.find(entry.key);
    if (key != nullptr) {
      if (key->use == Use::ray_only) {
        warn_ray_only(*entry.value, entry.place, path_of(entry.key), source_.report);
      } else if (key->use == Use::obsolete) {
        warn_obsolete(*entry.value, entry.place, path_of(entry.key), source_.report);
      }
      continue;
    }
    std::string hint = explain ? explain(entry.key) : "";
    if (hint.empty()) {
      if (const auto near = nearest(entry.key, table_.names())) {
        hint = "did you mean " + *near + "?";
      }
    }
    source_.report.problem(path_of(entry.key), entry.place, "no such key in " + table_.title,
                           std::move(hint));
  }
  for (const Key& key : table_.keys) {
    if (!key.required || has(key.name.c_str())) continue;
    const Node* empty = node_->find(key.name);
    source_.report.problem(path_of(key.name), empty != nullptr ? empty->place : node_->place,
                           empty != nullptr ? "is empty" : "is missing",
                           key.example.empty() ? "" : "for example: " + key.example);
  }
}

Path Mapping::path_of(const std::string& name) const {
  Path path = path_;
  path.push_back(name);
  return path;
}

void Mapping::problem(const char* name, const std::string& message, std::string hint) {
  const Node* node = given(name);
  const Place place = node != nullptr ? node->place : node_ != nullptr ? node_->place : Place{};
  source_.report.problem(path_of(name), place, message, std::move(hint));
}

const Key& Mapping::key(const char* name, Shape::Kind kind) {
  const Key* key = table_.find(name);
  if (key == nullptr || key->shape.kind != kind) {
    throw Error(ErrorCode::internal, table_.title + " has no such key of this shape: " + name);
  }
  read_.insert(name);
  return *key;
}

// The value in the file; null when absent, or null where that means absent.
const Node* Mapping::given(const char* name) const {
  const Node* node = node_ == nullptr ? nullptr : node_->find(name);
  if (node == nullptr) return nullptr;
  const Key* key = table_.find(name);
  const bool absent = node->kind == Node::Kind::null && key != nullptr &&
                      (key->fallback.is_null() || key->required);
  return absent ? nullptr : node;
}

bool Mapping::has(const char* name) const {
  const Node* node = given(name);
  return node != nullptr && node->kind != Node::Kind::null;
}

void Mapping::wrong(const Key& key, const Node& node) {
  std::string hint;
  if (!key.example.empty()) hint = "for example: " + key.example;
  const bool other_scalar = node.kind == Node::Kind::scalar && node.type() != ScalarType::text;
  if (key.shape.kind == Shape::Kind::text && other_scalar) hint = "put quotes around it";
  if (key.shape.kind == Shape::Kind::texts && node.kind == Node::Kind::scalar && hint.empty()) {
    hint = "for example: " + key.name + ": [\"" +
           (node.text.size() < 40 ? printable(node.text, false) : "…") + "\"]";
  }
  if (node.kind == Node::Kind::null && hint.empty()) hint = "remove the key for its default";
  source_.report.problem(path_of(key.name), node.place,
                         "must be " + expectation(key.shape) + ", not " + found(node),
                         std::move(hint));
}

std::optional<std::string> Mapping::scalar(const Key& key, const Node& node,
                                           std::initializer_list<ScalarType> types) {
  if (node.kind != Node::Kind::scalar) {
    wrong(key, node);
    return std::nullopt;
  }
  ScalarType type = node.type();
  std::string text = node.text;
  if (key.expands && text.find('$') != std::string::npos) {
    try {
      text = source_.expander.expand(text);
    } catch (const Error& error) {
      source_.report.problem(path_of(key.name), node.place, error.message(), error.hint());
      return std::nullopt;
    }
    // What came out of a variable may be a number where a number is wanted, and is a text else.
    type = node.plain ? scalar_type(text) : ScalarType::text;
    if (*types.begin() == ScalarType::text) type = ScalarType::text;
  }
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    wrong(key, node);
    return std::nullopt;
  }
  return text;
}

std::string Mapping::text(const char* name) {
  const Key& key = this->key(name, Shape::Kind::text);
  const std::string fallback = key.fallback.is_string() ? key.fallback.get<std::string>() : "";
  const Node* node = given(name);
  if (node == nullptr) return fallback;
  return scalar(key, *node, {ScalarType::text}).value_or(fallback);
}

std::optional<std::string> Mapping::optional_text(const char* name) {
  const Key& key = this->key(name, Shape::Kind::text);
  const Node* node = given(name);
  if (node == nullptr) return std::nullopt;
  return scalar(key, *node, {ScalarType::text});
}

std::string Mapping::choice(const char* name) {
  const Key& key = this->key(name, Shape::Kind::choice);
  const std::string fallback = key.fallback.is_string() ? key.fallback.get<std::string>() : "";
  const Node* node = given(name);
  if (node == nullptr) return fallback;
  // `off` is false to YAML, and still the word off.
  const auto text = scalar(key, *node, {ScalarType::text, ScalarType::boolean});
  if (!text) return fallback;
  const auto& choices = key.shape.choices;
  if (std::find(choices.begin(), choices.end(), *text) != choices.end()) return *text;
  const auto near = nearest(*text, choices);
  source_.report.problem(path_of(name), node->place,
                         "must be " + expectation(key.shape) + ", not " + shown(*text),
                         near ? "did you mean " + *near + "?" : "");
  return fallback;
}

std::optional<double> Mapping::number_of(const Key& key, const Node& node, bool whole) {
  const auto text = scalar(key, node, {ScalarType::whole, ScalarType::number});
  if (!text) return std::nullopt;
  const auto value = parse_number(*text);
  const bool fits = value && std::isfinite(*value) && *value >= key.shape.min &&
                    *value <= key.shape.max && (!whole || *value == std::floor(*value));
  if (fits) return value;
  source_.report.problem(path_of(key.name), node.place,
                         "must be " + expectation(key.shape) + ", not " + printable(*text, false),
                         key.example.empty() ? "" : "for example: " + key.example);
  return std::nullopt;
}

std::int64_t Mapping::whole(const char* name) {
  const Key& key = this->key(name, Shape::Kind::whole);
  return optional_whole(name).value_or(key.fallback.get<std::int64_t>());
}

std::optional<std::int64_t> Mapping::optional_whole(const char* name) {
  const Key& key = this->key(name, Shape::Kind::whole);
  const Node* node = given(name);
  if (node == nullptr) return std::nullopt;
  const auto value = number_of(key, *node, true);
  if (!value) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

double Mapping::number(const char* name) {
  const Key& key = this->key(name, Shape::Kind::number);
  return optional_number(name).value_or(key.fallback.get<double>());
}

std::optional<double> Mapping::optional_number(const char* name) {
  const Key& key = this->key(name, Shape::Kind::number);
  const Node* node = given(name);
  return node == nullptr ? std::nullopt : number_of(key, *node, false);
}

bool Mapping::boolean(const char* name) {
  const Key& key = this->key(name, Shape::Kind::boolean);
  const bool fallback = key.fallback.get<bool>();
  const Node* node = given(name);
  if (node == nullptr) return fallback;
  const auto text = scalar(key, *node, {ScalarType::boolean});
  return text ? is_true(*text) : fallback;
}

std::optional<std::vector<std::string>> Mapping::list(const Key& key, const Node& node) {
  if (node.kind != Node::Kind::sequence) {
    wrong(key, node);
    return std::nullopt;
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < node.items.size() && source_.report.open(); ++i) {
    const Node& item = *node.items[i];
    Path path = path_of(key.name);
    path.push_back("[" + std::to_string(i) + "]");
    if (item.kind != Node::Kind::scalar || item.type() != ScalarType::text) {
      source_.report.problem(path, item.place, "must be a text, not " + found(item),
                             item.kind == Node::Kind::scalar ? "put quotes around it"
                             : item.kind == Node::Kind::mapping
                                 ? "put quotes around a text that contains ': ' or begins with {"
                                 : "");
      continue;
    }
    if (auto text = word(item, path, key.expands)) texts.push_back(std::move(*text));
  }
  return texts;
}

std::vector<std::string> Mapping::texts(const char* name) {
  key(name, Shape::Kind::texts);
  return optional_texts(name).value_or(std::vector<std::string>{});
}

std::optional<std::vector<std::string>> Mapping::optional_texts(const char* name) {
  const Key& key = this->key(name, Shape::Kind::texts);
  const Node* node = given(name);
  return node == nullptr ? std::nullopt : list(key, *node);
}

std::string Mapping::path_text(const char* name) {
  const std::string text = this->text(name);
  if (text.empty()) {
    if (has(name) && !source_.report.knows(path_of(name))) problem(name, "is empty");
    return text;
  }
  try {
    return source_.expander.path(text);
  } catch (const Error& error) {
    problem(name, error.message(), error.hint());
    return {};
  }
}

nlohmann::json Mapping::open(const char* name) {
  const Key& key = this->key(name, Shape::Kind::open);
  const Node* node = given(name);
  if (node == nullptr) return key.fallback.is_null() ? nlohmann::json::object() : key.fallback;
  if (node->kind == Node::Kind::mapping) return json(*node, path_of(name), key.expands);
  wrong(key, *node);
  return nlohmann::json::object();
}

Mapping Mapping::mapping(const char* name) {
  const Key& key = this->key(name, Shape::Kind::mapping);
  return Mapping(given(name), *key.shape.table, path_of(name), source_);
}

std::vector<Entry> Mapping::entries(const char* name) {
  const Key* known = table_.find(name);
  const bool special = known != nullptr && known->shape.kind == Shape::Kind::special;
  const Key& key = this->key(name, special ? Shape::Kind::special : Shape::Kind::mappings);
  const Node* node = given(name);
  if (node == nullptr) return {};
  if (node->kind == Node::Kind::mapping) return node->entries;
  wrong(key, *node);
  return {};
}

const Node* Mapping::special(const char* name) {
  key(name, Shape::Kind::special);
  return given(name);
}

void Mapping::skip(const char* name) {
  const Key* key = table_.find(name);
  if (key == nullptr) throw Error(ErrorCode::internal, table_.title + " has no key " + name);
  if (read_.contains(name)) return;
  switch (key->shape.kind) {
    case Shape::Kind::text:
      optional_text(name);
      return;
    case Shape::Kind::whole:
      optional_whole(name);
      return;
    case Shape::Kind::number:
      optional_number(name);
      return;
    case Shape::Kind::boolean:
      this->key(name, key->shape.kind);
      if (const Node* node = given(name)) scalar(*key, *node, {ScalarType::boolean});
      return;
    case Shape::Kind::choice:
      choice(name);
      return;
    case Shape::Kind::texts:
      optional_texts(name);
      return;
    case Shape::Kind::mapping: {
      mapping(name).skip_all();
      return;
    }
    case Shape::Kind::open:
      this->key(name, key->shape.kind);
      if (const Node* node = given(name); node != nullptr && node->kind != Node::Kind::mapping) {
        wrong(*key, *node);
      }
      return;
    case Shape::Kind::mappings:
    case Shape::Kind::special:
      read_.insert(name);
      return;
  }
}

void Mapping::skip_all() {
  for (const Key& key : table_.keys) skip(key.name.c_str());
}

std::optional<std::string> Mapping::word(const Node& node, const Path& path, bool expand,
                                         const std::string& example) {
  if (node.kind != Node::Kind::scalar) {
    source_.report.problem(path, node.place, "must be a text, not " + node.kind_name(),
                           node.kind == Node::Kind::null ? "write \"\" for an empty text"
                           : example.empty()             ? ""
                                                         : "for example: " + example);
    return std::nullopt;
  }
  if (!expand || node.text.find('$') == std::string::npos) return node.text;
  try {
    return source_.expander.expand(node.text);
  } catch (const Error& error) {
    source_.report.problem(path, node.place, error.message(), error.hint());
    return std::nullopt;
  }
}

nlohmann::json Mapping::json(const Node& node, const Path& path, bool expand) {
  Path here = path;
  return json_below(node, here, expand);
}

nlohmann::json Mapping::json_below(const Node& node, Path& path, bool expand) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::sequence: {
      nlohmann::json list = nlohmann::json::array();
      for (std::size_t i = 0; i < node.items.size() && source_.report.open(); ++i) {
        path.push_back("[" + std::to_string(i) + "]");
        list.push_back(json_below(*node.items[i], path, expand));
        path.pop_back();
      }
      return list;
    }
    case Node::Kind::mapping: {
      nlohmann::json object = nlohmann::json::object();
      for (const Entry& entry : node.entries) {
        if (!source_.report.open()) break;
        path.push_back(entry.key);
        object[entry.key] = json_below(*entry.value, path, expand);
        path.pop_back();
      }
      return object;
    }
    case Node::Kind::scalar:
      break;
  }
  if (node.type() == ScalarType::text) return word(node, path, expand).value_or("");
  if (node.type() == ScalarType::boolean) return is_true(node.text);
  std::int64_t whole = 0;
  const std::string_view digits =
      std::string_view(node.text).substr(node.text.front() == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
  if (error == std::errc{} && end == digits.data() + digits.size()) return whole;
  const auto value = parse_number(node.text);
  if (value && std::isfinite(*value)) return *value;
  source_.report.problem(path, node.place,
                         "the number " + printable(node.text, false) + " is not possible",
                         "put quotes around it if it is a text");
  return nullptr;
}

void Mapping::finish() const {
  for (const Key& key : table_.keys) {
    if (!read_.contains(key.name)) {
      throw Error(ErrorCode::internal, "the reader of " + table_.title + " left out " + key.name);
    }
  }
}

}  // namespace dtrain::spec
