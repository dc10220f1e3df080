#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/spec/report.hpp"

namespace dtrain::spec {

struct Node;

struct Entry {
  std::string key;
  Place place;  // of the key
  const Node* value = nullptr;
};

// What a plain scalar means. YAML's 1.2 rules, and yes, no, on and off as PyYAML reads them.
enum class ScalarType { null, boolean, whole, number, text };

// One value of the text. An alias is the same Node again: the document is a graph without cycles,
// its size after aliases is bounded.
struct Node {
  enum class Kind { null, scalar, sequence, mapping };

  Kind kind = Kind::null;
  Place place;
  std::string text;    // scalar, as written
  bool plain = false;  // scalar without quotes: its type is to be found
  std::vector<const Node*> items;
  std::vector<Entry> entries;  // no key twice; those of a merge (<<) come last

  // After aliases: nodes, bytes and levels of this value.
  std::size_t nodes = 1;
  std::size_t bytes = 0;
  std::size_t levels = 1;

  const Node* find(std::string_view key) const;  // null when absent
  ScalarType type() const;                       // of a scalar or null
  std::string kind_name() const;                 // "a list", "a number", …
};

ScalarType scalar_type(std::string_view plain_text);
bool boolean_value(std::string_view text);                  // of a scalar of type boolean
std::optional<double> number_value(std::string_view text);  // of whole or number, if it is finite

// A key that stands twice in one mapping. The last one counts, as with PyYAML.
struct Repeated {
  Path path;
  Place first;
  Place last;
};

class Document {
 public:
  const Node& root() const noexcept { return *root_; }
  // At most Report::kMost; whether they are problems is the reader's matter.
  const std::vector<Repeated>& repeated() const noexcept { return repeated_; }
  // The place of the value at `path`, or of the nearest that contains it and exists.
  Place place(const Path& path) const;

 private:
  friend class DocumentBuilder;
  std::deque<Node> nodes_;
  const Node* root_ = nullptr;
  std::vector<Repeated> repeated_;
};

inline constexpr std::size_t kMaxText = std::size_t{4} * 1024 * 1024;
inline constexpr std::size_t kMaxLevels = 100;
inline constexpr std::size_t kMaxNodes = 100'000;
inline constexpr std::size_t kMaxBytes = 4 * kMaxText;  // after aliases
inline constexpr std::size_t kMaxKey = 4'096;           // bytes of one key
inline constexpr std::size_t kMaxMarks = 500'000;       // [ ] { } , & * !, anywhere in the text

// Reads one YAML document. What makes the text unreadable or too large throws SpecError at once. An
// empty text is null.
Document parse_document(std::string_view text, Report& report);

}  // namespace dtrain::spec
