#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/spec/document.hpp"
#include "launcher/spec/expand.hpp"
#include "launcher/spec/report.hpp"
#include "launcher/spec/table.hpp"

namespace dtrain::spec {

// What the readers of one file share. `expander` and `report` outlive it.
struct Source {
  Report& report;
  Expander& expander;
};

// One mapping of a file, read by its table. A value that is absent, or wrong (which is reported),
// reads as the table's default. Asking for a key in another way than the table describes it, or
// leaving one unread, is a defect of the reader: Error(internal).
class Mapping {
 public:
  // Reports what is no mapping, unknown keys, missing keys, and warns about Ray's. `node` null:
  // nothing but defaults, and nothing is reported as missing.
  Mapping(const Node* node, const Table& table, Path path, Source source);
  // The same for another way to say which key is unknown: returns a hint, or nothing.
  using Explain = std::function<std::string(const std::string& key)>;
  Mapping(const Node* node, const Table& table, Path path, Source source, const Explain& explain);

  // True if the file gives the key a value other than null.
  bool has(const char* name) const;

  std::string text(const char* name);
  std::optional<std::string> optional_text(const char* name);
  std::string choice(const char* name);
  std::int64_t whole(const char* name);
  std::optional<std::int64_t> optional_whole(const char* name);
  double number(const char* name);
  std::optional<double> optional_number(const char* name);
  bool boolean(const char* name);
  std::vector<std::string> texts(const char* name);
  std::optional<std::vector<std::string>> optional_texts(const char* name);
  // A text as a path, made absolute; empty when absent.
  std::string path_text(const char* name);
  nlohmann::json open(const char* name);
  Mapping mapping(const char* name);
  // The entries of a key of shape `mappings` (and special keys that are mappings); reports what is
  // none.
  std::vector<Entry> entries(const char* name);
  // Those whose keys are the user's own, of a table with `others`.
  std::vector<Entry> others() const;
  // Any finite number; reports what is none.
  std::optional<double> amount(const Node& node, const Path& path);
  // The value of a `special` key, with ${VAR} not yet replaced; null when absent.
  const Node* special(const char* name);
  // Checks the type of a key that has no effect, and that of all its own keys. Nothing if the key
  // has been asked for.
  void skip(const char* name);
  void skip_all();

  const Table& table() const noexcept { return table_; }
  Path path_of(const std::string& name) const;
  void problem(const char* name, const std::string& message, std::string hint = {});

  // A text of any scalar as it is written, after ${VAR} if `expand`; reports a list, mapping or
  // null.
  std::optional<std::string> word(const Node& node, const Path& path, bool expand,
                                  const std::string& example = {});
  // Any value as JSON; ${VAR} in its texts is replaced if `expand`.
  nlohmann::json json(const Node& node, const Path& path, bool expand);

  // All keys have been asked for: throws Error(internal) if not.
  void finish() const;

 private:
  nlohmann::json json_below(const Node& node, Path& path, bool expand);
  bool unindented_below(const Key& key) const;
  std::string misplaced(const Entry& unknown) const;
  const Key& key(const char* name, Shape::Kind kind);
  const Node* given(const char* name) const;
  void wrong(const Key& key, const Node& node);
  // The scalar's text after ${VAR}, and its type; nothing if it is no scalar of one of `types`.
  std::optional<std::string> scalar(const Key& key, const Node& node,
                                    std::initializer_list<ScalarType> types);
  std::optional<double> number_of(const Key& key, const Node& node, bool whole);
  std::optional<std::vector<std::string>> list(const Key& key, const Node& node);

  const Node* node_ = nullptr;
  const Table& table_;
  Path path_;
  Source source_;
  std::set<std::string> read_;
  const Entry* owner_ = nullptr;  // an empty entry that the unknown keys below it belong to
};

// A hint for what is no mapping: for `key:value`, that the space is missing; else `otherwise`.
std::string colon_hint(const Node& node, std::string otherwise = {});

// Warns about what a Ray-only key has in it; says nothing about an empty one.
void warn_ray_only(const Node& node, Place place, const Path& path, Report& report);
void warn_obsolete(const Node& node, Place place, const Path& path, Report& report);

}  // namespace dtrain::spec
