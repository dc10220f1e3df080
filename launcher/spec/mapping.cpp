#include "launcher/spec/mapping.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/syntax.hpp"

namespace dtrain::spec {
namespace {

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

constexpr double kMostClamped = 1e9;  // what is larger was hardly meant as "as many as can be"

// True if `node` is a text in quotes that would be what `shape` wants without them.
bool needlessly_quoted(const Node& node, const Shape& shape) {
  if (node.kind != Node::Kind::scalar || node.plain) return false;
  const ScalarType type = scalar_type(node.text);
  if (shape.kind == Shape::Kind::boolean) return type == ScalarType::boolean;
  if (shape.kind == Shape::Kind::whole) return type == ScalarType::whole;
  return shape.kind == Shape::Kind::number &&
         (type == ScalarType::whole || type == ScalarType::number);
}

// What was meant by an unknown key: a slip of writing, the end of a longer name (user: ssh_user),
// a key and its value without a space between.
std::string near_key(const Table& table, const std::string& key) {
  const std::vector<std::string> names = table.names();
  if (const auto spaced = with_space_after_colon(key);
      spaced && table.find(key.substr(0, key.find(':'))) != nullptr) {
    return "put a space after the colon: " + *spaced;
  }
  if (const auto near = nearest(key, names)) return "did you mean " + *near + "?";
  std::vector<std::string> longer;
  for (const std::string& name : names) {
    if (name.ends_with("_" + key)) longer.push_back(name);
  }
  return longer.size() == 1 ? "did you mean " + longer.front() + "?" : "";
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

// A value that changes nothing, also where the key has its effect.
bool says_default(const Key& key, const Node& node) {
  return key.fallback.is_boolean() && node.kind == Node::Kind::scalar &&
         node.type() == ScalarType::boolean && boolean_value(node.text) == key.fallback.get<bool>();
}

}  // namespace

std::string colon_hint(const Node& node, std::string otherwise) {
  if (node.kind != Node::Kind::scalar || !node.plain) return otherwise;
  const auto spaced = with_space_after_colon(node.text);
  return spaced ? "put a space after the colon: " + *spaced : otherwise;
}

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
                      : "must be a mapping, not " + node_->kind_name(),
        colon_hint(*node_));
    node_ = nullptr;
    return;
  }
  for (const Entry& entry : node_->entries) {
    if (!source_.report.open()) break;
    const Key* key = table_.find(entry.key);
    if (key != nullptr) {
      owner_ = unindented_below(*key) ? &entry : nullptr;
      if (says_default(*key, *entry.value)) continue;
      if (key->use == Use::ray_only) {
        warn_ray_only(*entry.value, entry.place, path_of(entry.key), source_.report);
      } else if (key->use == Use::obsolete) {
        warn_obsolete(*entry.value, entry.place, path_of(entry.key), source_.report);
      }
      continue;
    }
    if (table_.others) continue;
    std::string hint = misplaced(entry);
    if (hint.empty() && explain) hint = explain(entry.key);
    if (hint.empty()) hint = near_key(table_, entry.key);
    source_.report.problem(path_of(entry.key), entry.place, "no such key in " + table_.title,
                           std::move(hint));
  }
  for (const Key& key : table_.keys) {
    if (!key.required || has(key.name.c_str())) continue;
    const Node* empty = node_->find(key.name);
    std::string hint = key.example.empty() ? "" : "for example: " + key.example;
    if (unindented_below(key)) hint = "indent the lines below it";
    source_.report.problem(path_of(key.name), empty != nullptr ? empty->place : node_->place,
                           empty != nullptr ? "is empty" : "is missing", std::move(hint));
  }
}

// True if `key` wants a mapping and is empty, and the entry right below it is no key of this one:
// it was to be within.
bool Mapping::unindented_below(const Key& key) const {
  const auto& entries = node_->entries;
  const auto empty = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.key == key.name; });
  if (empty == entries.end() || empty->value->kind != Node::Kind::null) return false;
  const auto next = std::next(empty);
  return key.shape.holds_mapping() && next != entries.end() &&
         next->place.column == empty->place.column && table_.find(next->key) == nullptr;
}

// A hint for an unknown key that stands below such an empty one.
std::string Mapping::misplaced(const Entry& unknown) const {
  if (owner_ == nullptr || unknown.place.column != owner_->place.column) return "";
  return "indent it: it seems to belong to " + printable(owner_->key, false) + " in line " +
         std::to_string(owner_->place.line);
}

std::vector<Entry> Mapping::others() const {
  std::vector<Entry> found;
  if (node_ == nullptr || !table_.others) return found;
  std::copy_if(node_->entries.begin(), node_->entries.end(), std::back_inserter(found),
               [&](const Entry& entry) { return table_.find(entry.key) == nullptr; });
  return found;
}

std::optional<double> Mapping::amount(const Node& node, const Path& path) {
  const ScalarType type = node.type();
  const bool is_number =
      node.kind == Node::Kind::scalar && (type == ScalarType::whole || type == ScalarType::number);
  if (is_number) return json(node, path, false).get<double>();
  source_.report.problem(path, node.place, "must be a number, not " + node.kind_name(),
                         "for example: " + printable(path.back(), false) + ": 1");
  return std::nullopt;
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
  if (key.shape.holds_mapping()) hint = colon_hint(node, std::move(hint));
  if (unindented_below(key)) hint = "indent the lines below it";
  if (needlessly_quoted(node, key.shape)) hint = "remove the quotes";
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
  std::string fallback = key.fallback.is_string() ? key.fallback.get<std::string>() : "";
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
  std::string fallback = key.fallback.is_string() ? key.fallback.get<std::string>() : "";
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
  const auto value = number_value(*text);
  const bool possible =
      value && *value >= key.shape.min && (!whole || *value == std::floor(*value));
  if (possible && *value <= key.shape.max) return value;
  if (possible && key.clamped && *value <= kMostClamped) {
    const std::string most = std::to_string(static_cast<std::int64_t>(key.shape.max));
    source_.report.warning(path_of(key.name), node.place,
                           "is more than there can be: " + most + " is taken");
    return key.shape.max;
  }
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
  return text ? boolean_value(*text) : fallback;
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
  std::string text = this->text(name);
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

}  // namespace dtrain::spec
