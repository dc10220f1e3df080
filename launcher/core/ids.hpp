#pragma once

#include <compare>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

namespace dtrain {

// A name that cannot be taken for another kind of name. Holds any text: validity is checked where
// the text comes in, by valid_name() below.
template <typename Tag>
class Id {
 public:
  Id() = default;
  explicit Id(std::string text) : text_(std::move(text)) {}

  const std::string& str() const noexcept { return text_; }
  bool empty() const noexcept { return text_.empty(); }
  auto operator<=>(const Id&) const = default;

  friend std::ostream& operator<<(std::ostream& out, const Id& id) { return out << id.text_; }

 private:
  std::string text_;
};

using ClusterId = Id<struct ClusterTag>;  // one life of a cluster: NAME-xxxxxx
using NodeId = Id<struct NodeTag>;        // node-0, node-1, …: unique in its cluster
using JobId = Id<struct JobTag>;          // NAME-xxxxxx
using SearchId = Id<struct SearchTag>;    // NAME-xxxxxx

// The allow-list for names that become part of paths, host names and command lines: 1 to 63 of
// a-z A-Z 0-9 . _ -, not beginning with '.' or '-'.
bool valid_name(std::string_view text) noexcept;

// NAME- and 6 letters of base32 (a-z2-7) from the system's random numbers.
JobId make_job_id(std::string_view name);
SearchId make_search_id(std::string_view name);
ClusterId make_cluster_id(std::string_view name);
// `bytes` random bytes in hexadecimal, fit for a token: from getrandom(2).
std::string random_hex(std::size_t bytes);

}  // namespace dtrain

template <typename Tag>
struct std::hash<dtrain::Id<Tag>> {
  std::size_t operator()(const dtrain::Id<Tag>& id) const noexcept {
    return std::hash<std::string>{}(id.str());
  }
};
