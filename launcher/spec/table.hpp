#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "launcher/spec/cluster_spec.hpp"

// Which keys there are. One table per mapping of the YAML files: the reader checks against it,
// takes its defaults and its suggestions from it, and the JSON Schemas and the pages in docs/ are
// written from it, so that the four cannot differ.
namespace dtrain::spec {

struct Table;

// What a value looks like.
struct Shape {
  enum class Kind {
    text,
    whole,   // a whole number of min to max
    number,  // any finite number of min to max
    boolean,
    choice,    // one of `choices`
    texts,     // a list of texts
    mapping,   // `table`
    mappings,  // name: `table`
    open,      // any mapping: the provider's own matter
    special,   // `schema` says it, and the reader of that key checks it
  };

  Kind kind = Kind::text;
  double min = 0;
  double max = 0;
  std::vector<std::string> choices;
  const Table* table = nullptr;
  nlohmann::json schema;
  std::string words;  // special: the type in words, for docs and messages

  static Shape text() { return {}; }
  static Shape whole(double min, double max);
  static Shape number(double min, double max);
  static Shape boolean();
  static Shape choice(std::vector<std::string> choices);
  static Shape texts();
  static Shape mapping(const Table& table);
  static Shape mappings(const Table& table);
  static Shape open();
  static Shape special(std::string words, nlohmann::json schema);

  bool holds_mapping() const;    // what belongs to it stands below it, indented
  std::string in_words() const;  // "whole number of 1 to 10000"
};

enum class Use {
  honoured,
  ray_only,  // a warning with its line, if there is anything in it
  obsolete,  // the same, in other words: Ray itself has given it up
  silent,    // known and without any effect, as in Ray
};

struct Key {
  std::string name;
  Shape shape;
  nlohmann::json fallback;  // null: absent, and a null in the file means the same
  std::string doc;
  Use use = Use::honoured;
  bool expands = false;  // ${VAR} is replaced in it
  bool required = false;
  bool clamped = false;  // a number that is too large means the largest, with a warning
  std::string example;   // shown when the value is of the wrong type
};

struct Table {
  std::string title;
  std::vector<Key> keys;
  bool others = false;  // any other key is a name of the user's own, and has a number

  const Key* find(std::string_view name) const;
  std::vector<std::string> names() const;
};

// A Key in one line: {"name", shape, default, "doc"} and then what is out of the ordinary.
Key key(std::string name, Shape shape, nlohmann::json fallback, std::string doc);
Key ray_only(Key key);
Key obsolete(Key key);
Key silent(Key key);
Key expands(Key key);
Key required(Key key);
Key clamped(Key key);
Key example(Key key, std::string text);

const Table& job_table();
const Table& job_resources_table();
const Table& job_checkpoint_table();
const Table& job_restart_table();

const Table& cluster_table();
const Table& auth_table();
const Table& host_table();
const Table& ready_table();
const Table& down_when_idle_table();
const Table& retention_table();
const Table& node_type_table();
const Table& docker_table();
const Table& node_type_docker_table();
// The keys of `provider` with that type: the common ones and its own.
const Table& provider_table(ProviderKind kind);

// A JSON Schema (draft 2020-12) of a file.
nlohmann::json file_schema(const Table& table, const char* title, const char* id);

// The tables as Markdown: the part of docs/cluster_yaml.md and docs/job_yaml.md between
// `<!-- keys -->` and `<!-- end of keys -->`.
std::string cluster_keys_markdown();
std::string keys_markdown(const std::string& heading, const std::vector<Key>& keys);
std::string job_keys_markdown();

}  // namespace dtrain::spec
