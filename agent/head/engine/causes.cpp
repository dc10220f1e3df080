#include "agent/head/engine/causes.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "agent/head/engine/placement.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::head {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

namespace {

// By the head's clock: not before `from`, not after `until`.
struct Span {
  std::optional<nanoseconds> from;  // absent: nobody knows
  nanoseconds until;
};

Span span_of(const Failure& failure) {
  if (!failure.at || !failure.offset) return {std::nullopt, failure.heard};
  const nanoseconds last = *failure.at - failure.offset->by;
  const nanoseconds from = last - failure.loose - failure.offset->uncertain;
  // What has been heard of has happened: a clock that says otherwise was set, and says nothing.
  if (from > failure.heard) return {std::nullopt, failure.heard};
  return {from, std::min(last + failure.offset->uncertain, failure.heard)};
}

nanoseconds guess_of(const Failure& failure) {
  return time_of(failure).value_or(failure.guess);
}

std::string words(const std::vector<Failure>& failures, const Causes& causes) {
  if (causes.first.empty()) return {};
  std::string text = failures[causes.first.front()].what;
  std::vector<std::string> others;
  std::set<std::string> unmeasured;
  for (const std::size_t each : causes.first) {
    const Failure& failure = failures[each];
    if (each != causes.first.front()) others.push_back(failure.what);
    if (!span_of(failure).from) unmeasured.insert(failure.node.str());
  }
  if (!others.empty()) {
    const std::vector<std::string> nodes(unmeasured.begin(), unmeasured.end());
    text += causes.known
                ? "; at the same time, as far as clocks can tell (within " +
                      human_duration(std::chrono::ceil<milliseconds>(causes.within)) + "): "
                : "; what came first is not known, since no clock's offset is of " +
                      join_some(nodes, kNamedNodes) + ": ";
    text += join_some(others, kNamedNodes, "; ");
  }
  // That a node is lost later on follows from no rank's failure.
  const auto ranks = std::count_if(causes.later.begin(), causes.later.end(), [&](std::size_t each) {
    return failures[each].rank.has_value();
  });
  if (ranks == 0) return text;
  return text + " (and " + std::to_string(ranks) +
         (ranks == 1 ? " consequence)" : " consequences)");
}

}  // namespace

std::optional<nanoseconds> time_of(const Failure& failure) {
  const Span span = span_of(failure);
  if (!span.from) return std::nullopt;
  return *span.from + (span.until - *span.from) / 2;
}

std::optional<nanoseconds> uncertainty_of(const Failure& failure) {
  const Span span = span_of(failure);
  if (!span.from) return std::nullopt;
  return (span.until - *span.from) / 2;
}

Causes decide_causes(const std::vector<Failure>& failures) {
  const bool all_for_peers = std::all_of(failures.begin(), failures.end(),
                                         [](const Failure& each) { return each.for_peer; });
  const auto may_be_root = [&](const Failure& failure) {
    return all_for_peers || !failure.for_peer;
  };
  // By then one has happened; by then one of that machine, by its own clock.
  nanoseconds by_then = nanoseconds::max();
  std::map<std::string, nanoseconds> by_clock;
  for (const Failure& failure : failures) {
    if (!may_be_root(failure)) continue;
    by_then = std::min(by_then, span_of(failure).until);
    if (!failure.at) continue;
    const auto [found, is_new] = by_clock.emplace(failure.clock, *failure.at);
    if (!is_new) found->second = std::min(found->second, *failure.at);
  }
  Causes causes;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const Failure& failure = failures[i];
    const Span span = span_of(failure);
    const bool after_another = span.from && *span.from > by_then;
    const bool after_one_there =
        failure.at && *failure.at - failure.loose > by_clock[failure.clock];
    const bool is_first = may_be_root(failure) && !after_another && !after_one_there;
    (is_first ? causes.first : causes.later).push_back(i);
  }
  // Clocks that contradict each other tell nothing: the first is what was heard first.
  if (causes.first.empty() && !failures.empty()) {
    const auto heard = std::min_element(
        causes.later.begin(), causes.later.end(),
        [&](std::size_t a, std::size_t b) { return failures[a].heard < failures[b].heard; });
    causes.first.push_back(*heard);
    causes.later.erase(heard);
  }
  const auto earlier = [&](std::size_t a, std::size_t b) {
    return guess_of(failures[a]) < guess_of(failures[b]);
  };
  std::stable_sort(causes.first.begin(), causes.first.end(), earlier);
  std::stable_sort(causes.later.begin(), causes.later.end(), earlier);
  if (causes.first.size() > 1) {
    nanoseconds from = nanoseconds::max();
    nanoseconds until = nanoseconds::min();
    for (const std::size_t each : causes.first) {
      const Span span = span_of(failures[each]);
      causes.known = causes.known && span.from;
      from = std::min(from, span.from.value_or(from));
      until = std::max(until, span.until);
    }
    if (causes.known) causes.within = until - from;
  }
  causes.reason = words(failures, causes);
  return causes;
}

bool says_peer_gone(const std::string& words) {
  static constexpr std::string_view kSigns[] = {
      "Connection closed by peer",       "Connection reset by peer",
      "remote process exited",           "ncclRemoteError",
      "NCCL's connection is lost",       " died: rank ",
      " gave up while this rank was in "};
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](std::string_view sign) { return words.find(sign) != std::string::npos; });
}

}  // namespace dtrain::head
