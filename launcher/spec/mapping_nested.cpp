#include <utility>

#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/spec/mapping.hpp"

// What of Mapping reaches further down: mappings within, values of any shape, skipping.
namespace dtrain::spec {

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
  if (node.type() == ScalarType::boolean) return boolean_value(node.text);
  const std::string_view digits =
      std::string_view(node.text).substr(node.text.front() == '+' ? 1 : 0);
  if (const auto whole = number_from<std::int64_t>(digits)) return *whole;
  const auto value = number_value(node.text);
  if (value) return *value;
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
