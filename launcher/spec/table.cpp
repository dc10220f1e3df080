#include "launcher/spec/table.hpp"

#include <cstdio>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::spec {
namespace {

std::string plain(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

}  // namespace

Shape Shape::whole(double min, double max) {
  Shape shape;
  shape.kind = Kind::whole;
  shape.min = min;
  shape.max = max;
  return shape;
}

Shape Shape::number(double min, double max) {
  Shape shape = whole(min, max);
  shape.kind = Kind::number;
  return shape;
}

Shape Shape::boolean() {
  Shape shape;
  shape.kind = Kind::boolean;
  return shape;
}

Shape Shape::choice(std::vector<std::string> choices) {
  Shape shape;
  shape.kind = Kind::choice;
  shape.choices = std::move(choices);
  return shape;
}

Shape Shape::texts() {
  Shape shape;
  shape.kind = Kind::texts;
  return shape;
}

Shape Shape::mapping(const Table& table) {
  Shape shape;
  shape.kind = Kind::mapping;
  shape.table = &table;
  return shape;
}

Shape Shape::mappings(const Table& table) {
  Shape shape = mapping(table);
  shape.kind = Kind::mappings;
  return shape;
}

Shape Shape::open() {
  Shape shape;
  shape.kind = Kind::open;
  return shape;
}

Shape Shape::special(std::string words, nlohmann::json schema) {
  Shape shape;
  shape.kind = Kind::special;
  shape.words = std::move(words);
  shape.schema = std::move(schema);
  return shape;
}

bool Shape::holds_mapping() const {
  return kind == Kind::mapping || kind == Kind::mappings || kind == Kind::open ||
         (kind == Kind::special && words.starts_with("mapping"));
}

std::string Shape::in_words() const {
  switch (kind) {
    case Kind::text:
      return "text";
    case Kind::whole:
      return "whole number of " + plain(min) + " to " + plain(max);
    case Kind::number:
      return "number of " + plain(min) + " to " + plain(max);
    case Kind::boolean:
      return "true or false";
    case Kind::choice:
      return join(choices, " or ");
    case Kind::texts:
      return "list of texts";
    case Kind::mapping:
      return "mapping";
    case Kind::mappings:
      return "mapping of names to mappings";
    case Kind::open:
      return "any mapping";
    case Kind::special:
      return words;
  }
  return "?";
}

const Key* Table::find(std::string_view name) const {
  for (const Key& key : keys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> Table::names() const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const Key& key : keys) names.push_back(key.name);
  return names;
}

Key key(std::string name, Shape shape, nlohmann::json fallback, std::string doc) {
  Key key;
  key.name = std::move(name);
  key.shape = std::move(shape);
  key.fallback = std::move(fallback);
  key.doc = std::move(doc);
  return key;
}

Key ray_only(Key key) {
  key.use = Use::ray_only;
  return key;
}

Key obsolete(Key key) {
  key.use = Use::obsolete;
  return key;
}

Key silent(Key key) {
  key.use = Use::silent;
  return key;
}

Key expands(Key key) {
  key.expands = true;
  return key;
}

Key required(Key key) {
  key.required = true;
  return key;
}

Key clamped(Key key) {
  key.clamped = true;
  key.doc += " A larger number means the largest, with a warning.";
  return key;
}

Key example(Key key, std::string text) {
  key.example = std::move(text);
  return key;
}

}  // namespace dtrain::spec
