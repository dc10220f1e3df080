#include <algorithm>
#include <set>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/table.hpp"
#include "launcher/spec/yaml.hpp"

namespace dtrain {
namespace spec {
namespace {

using nlohmann::json;

json object_schema(const Table& table);

json bounded(const char* type, const Shape& shape) {
  json schema{{"type", type}};
  const auto number = [&](double value) {
    return shape.kind == Shape::Kind::whole ? json(static_cast<std::int64_t>(value)) : json(value);
  };
  schema["minimum"] = number(shape.min);
  schema["maximum"] = number(shape.max);
  return schema;
}

json shape_schema(const Shape& shape) {
  switch (shape.kind) {
    case Shape::Kind::text:
      return {{"type", "string"}};
    case Shape::Kind::whole:
      return bounded("integer", shape);
    case Shape::Kind::number:
      return bounded("number", shape);
    case Shape::Kind::boolean:
      return {{"type", "boolean"}};
    case Shape::Kind::choice:
      return {{"enum", shape.choices}};
    case Shape::Kind::texts:
      return {{"type", "array"}, {"items", {{"type", "string"}}}};
    case Shape::Kind::mapping:
      return object_schema(*shape.table);
    case Shape::Kind::mappings:
      return {{"type", "object"}, {"additionalProperties", object_schema(*shape.table)}};
    case Shape::Kind::open:
      return {{"type", "object"}};
    case Shape::Kind::special:
      return shape.schema;
  }
  return json::object();
}

json key_schema(const Key& key) {
  json schema = shape_schema(key.shape);
  if (key.clamped) schema.erase("maximum");
  // An empty value means the default where that is "absent".
  if (key.fallback.is_null() && !key.required && schema.contains("type") &&
      schema["type"].is_string()) {
    schema["type"] = json::array({schema["type"], "null"});
  }
  std::string doc = key.doc;
  if (key.use == Use::obsolete) {
    doc = "No effect; Ray itself has given it up. " + doc;
    schema["deprecated"] = true;
  }
  if (key.use == Use::ray_only) {
    doc = "Ray only, no effect here: " + doc;
    schema["deprecated"] = true;
  }
  if (!doc.empty()) schema["description"] = doc;
  if (!key.fallback.is_null()) schema["default"] = key.fallback;
  return schema;
}

json object_schema(const Table& table) {
  json properties = json::object();
  json required = json::array();
  for (const Key& key : table.keys) {
    properties[key.name] = key_schema(key);
    if (key.required) required.push_back(key.name);
  }
  const json others = table.others ? json{{"type", "number"}, {"minimum", 0}} : json(false);
  json schema{
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", others}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string row(const Key& key) {
  std::string doc = key.doc;
  if (key.use == Use::ray_only) doc = "*Ray only: a warning.* " + doc;
  if (key.use == Use::obsolete) doc = "*No effect: a warning; Ray itself has given it up.* " + doc;
  if (key.required) doc = "*Needed.* " + doc;
  if (key.expands) doc += " `${VAR}` is replaced.";
  const std::string fallback = key.fallback.is_null() ? "" : "`" + key.fallback.dump() + "`";
  return "| `" + key.name + "` | " + cell(key.shape.in_words()) + " | " + cell(fallback) + " | " +
         cell(doc) + " |\n";
}

}  // namespace

json file_schema(const Table& table, const char* title, const char* id) {
  json schema = object_schema(table);
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["$id"] = id;
  schema["title"] = title;
  return schema;
}

std::string keys_markdown(const std::string& heading, const std::vector<Key>& keys) {
  std::string text =
      "### " + heading + "\n\n| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const Key& key : keys) text += row(key);
  return text + "\n";
}

std::string job_keys_markdown() {
  std::string text = keys_markdown("The file", job_table().keys);
  for (const Key& key : job_table().keys) {
    if (key.shape.kind != Shape::Kind::mapping) continue;
    text += keys_markdown("`" + key.name + "`", key.shape.table->keys);
  }
  return text;
}

std::string cluster_keys_markdown() {
  std::string text = keys_markdown("The file", cluster_table().keys);
  const auto in_all = [](const Key& key) {
    return std::all_of(std::begin(kProviderKinds), std::end(kProviderKinds),
                       [&](ProviderKind kind) {
                         const Key* there = provider_table(kind).find(key.name);
                         return there != nullptr && there->doc == key.doc;
                       });
  };
  std::vector<Key> common;
  for (const Key& key : provider_table(ProviderKind::local).keys) {
    if (in_all(key)) common.push_back(key);
  }
  text += keys_markdown("`provider`, of every type", common);
  for (const ProviderKind kind : kProviderKinds) {
    std::vector<Key> own;
    for (const Key& key : provider_table(kind).keys) {
      if (!in_all(key)) own.push_back(key);
    }
    text += keys_markdown("`provider` with `type: " + std::string(to_string(kind)) + "`", own);
  }
  text += keys_markdown("Each of `provider.hosts` that is a mapping", host_table().keys);
  text += keys_markdown("`auth`", auth_table().keys);
  text += keys_markdown("`ready`", ready_table().keys);
  text += keys_markdown("`down_when_idle`", down_when_idle_table().keys);
  text += keys_markdown("`retention`", retention_table().keys);
  text += keys_markdown("Each of `available_node_types`", node_type_table().keys);
  text += keys_markdown("`docker`", docker_table().keys);
  text += keys_markdown("`docker` of a node type", node_type_docker_table().keys);
  return text;
}

}  // namespace spec

nlohmann::json job_schema() {
  return spec::file_schema(spec::job_table(), "dtrain job",
                           "https://dtrain.invalid/job.schema.json");
}

nlohmann::json cluster_schema() {
  using nlohmann::json;
  json schema = spec::file_schema(spec::cluster_table(), "dtrain cluster",
                                  "https://dtrain.invalid/cluster.schema.json");
  json& provider = schema["properties"]["provider"];
  json names = json::array();
  json branches = json::array();
  for (const ProviderKind kind : kProviderKinds) {
    const char* name = to_string(kind);
    names.push_back(name);
    schema["$defs"]["provider_" + std::string(name)] =
        spec::object_schema(spec::provider_table(kind));
    branches.push_back(
        json{{"if",
              {{"properties", {{"type", {{"const", name}}}}}, {"required", json::array({"type"})}}},
             {"then", {{"$ref", "#/$defs/provider_" + std::string(name)}}}});
  }
  provider["type"] = "object";
  provider["required"] = json::array({"type"});
  provider["properties"]["type"]["enum"] = std::move(names);
  provider["allOf"] = std::move(branches);
  return schema;
}

}  // namespace dtrain
