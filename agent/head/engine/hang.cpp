#include "agent/head/engine/hang.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

using std::chrono::nanoseconds;
using Collective = wire::RankBeat::Collective;
using Entry = std::pair<const int, RankPlace>;
using Ranks = std::vector<const Entry*>;

constexpr std::int64_t kStepsKept = 100;
constexpr std::size_t kGroups = 3;  // that are told apart

Ranks those(const Ranks& ranks, const std::function<bool(const RankPlace&)>& which) {
  Ranks found;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found),
               [&](const Entry* entry) { return which(entry->second); });
  return found;
}

Ranks without(const Ranks& ranks, const Ranks& others) {
  Ranks found;
  std::set_difference(ranks.begin(), ranks.end(), others.begin(), others.end(),
                      std::back_inserter(found),
                      [](const Entry* a, const Entry* b) { return a->first < b->first; });
  return found;
}

std::string number(const Entry* entry) {
  return std::to_string(entry->first);
}

// "rank 5 on node-2", "ranks 3 and 4 on node-1", "ranks 3, 5 and 12 more on 4 nodes"
std::string names(const Ranks& ranks) {
  std::vector<std::string> nodes;
  for (const Entry* entry : ranks) nodes.push_back(entry->second.node.str());
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const std::string where =
      " on " + (nodes.size() == 1 ? nodes[0] : std::to_string(nodes.size()) + " nodes");
  switch (ranks.size()) {
    case 1:
      return "rank " + number(ranks[0]) + where;
    case 2:
      return "ranks " + number(ranks[0]) + " and " + number(ranks[1]) + where;
    case 3:
      return "ranks " + number(ranks[0]) + ", " + number(ranks[1]) + " and " + number(ranks[2]) +
             where;
    default:
      return "ranks " + number(ranks[0]) + ", " + number(ranks[1]) + " and " +
             std::to_string(ranks.size() - 2) + " more" + where;
  }
}

// "the other 7 wait", "the other waits", "6 of 8 wait": `part` of all but the `named`.
std::string others(std::size_t part, std::size_t named, std::size_t all, const std::string& does,
                   const std::string& they_do) {
  if (part + named < all) {
    return std::to_string(part) + " of " + std::to_string(all) + " " + (part == 1 ? does : they_do);
  }
  return part == 1 ? "the other " + does : "the other " + std::to_string(part) + " " + they_do;
}

const Collective* call_of(const RankPlace& place) {
  return place.beat.collective && place.beat.collective->sequence > 0 ? &*place.beat.collective
                                                                      : nullptr;
}

std::uint64_t sequence_of(const RankPlace& place) {
  const Collective* call = call_of(place);
  return call == nullptr ? 0 : call->sequence;
}

bool is_inside(const RankPlace& place) {
  const Collective* call = call_of(place);
  return call != nullptr && call->done == false;
}

// "all_reduce #1042"
std::string name_of(const Collective& call) {
  return (call.name.empty() ? "collective" : call.name) + " #" + std::to_string(call.sequence);
}

std::string name_with_size(const Collective& call) {
  return name_of(call) + (call.bytes ? " (" + human_bytes(*call.bytes) + ")" : "");
}

// Of equal sequence. All ranks bring as much to those that add up, and to a broadcast; to others
// they may bring different amounts.
bool same_call(const Collective& a, const Collective& b) {
  if (a.name != b.name) return false;
  const bool alike = a.name.find("reduce") != std::string::npos || a.name == "broadcast";
  return !alike || !a.bytes || !b.bytes || *a.bytes == *b.bytes;
}

// " (step 12, data)" of a single one.
std::string details(const Ranks& ranks) {
  if (ranks.size() != 1) return "";
  const wire::RankBeat& beat = ranks[0]->second.beat;
  std::string text;
  if (beat.step) text = "step " + std::to_string(*beat.step);
  if (!beat.phase.empty()) text += (text.empty() ? "" : ", ") + beat.phase;
  return text.empty() ? "" : " (" + text + ")";
}

// Where those that do not lag are: "the other 7 wait in all_reduce #1042".
std::string rest(const Ranks& lag, const Ranks& all) {
  const Ranks inside = those(without(all, lag), is_inside);
  if (inside.empty()) {
    return others(all.size() - lag.size(), lag.size(), all.size(), "sends heartbeats",
                  "send heartbeats");
  }
  const std::string in = " in " + name_of(*call_of(inside[0]->second));
  return others(inside.size(), lag.size(), all.size(), "waits" + in, "wait" + in);
}

// Ranks that are inside of collectives of one sequence: by what they call, the fewest first.
std::vector<Ranks> by_call(const Ranks& inside) {
  std::vector<Ranks> groups;
  for (const Entry* entry : inside) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Ranks& group) {
      return same_call(*call_of(group[0]->second), *call_of(entry->second));
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(entry);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Ranks& a, const Ranks& b) { return a.size() < b.size(); });
  return groups;
}

std::string different_calls(const std::vector<Ranks>& groups, std::size_t all) {
  std::string text = "ranks are in different collectives: ";
  std::size_t told = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Ranks& group = groups[i];
    const std::string in = " in " + name_with_size(*call_of(group[0]->second));
    if (i + 1 == groups.size() && told + group.size() == all && group.size() > 1) {
      return text + "the other " + std::to_string(group.size()) + in;
    }
    if (i == kGroups) {
      const std::size_t left = all - told;
      return text + "and " + std::to_string(left) + " in others";
    }
    text += names(group) + in + (i + 1 == groups.size() ? "" : ", ");
    told += group.size();
  }
  return text;
}

// No rank lags by the number of its collective, and none is inside of one.
std::string by_step(const Ranks& all) {
  const auto step_of = [](const Entry* entry) { return entry->second.beat.step.value_or(-1); };
  const auto [low, high] =
      std::minmax_element(all.begin(), all.end(),
                          [&](const Entry* a, const Entry* b) { return step_of(a) < step_of(b); });
  const std::int64_t least = step_of(*low);
  if (least != step_of(*high)) {
    const Ranks lag =
        those(all, [&](const RankPlace& place) { return place.beat.step.value_or(-1) == least; });
    const std::string at = least < 0 ? " before any step" : " at step " + std::to_string(least);
    const Ranks ahead = without(all, lag);
    std::int64_t next = step_of(*high);
    for (const Entry* entry : ahead) next = std::min(next, step_of(entry));
    const std::string further = next == step_of(*high) ? "" : " and above";
    return names(lag) + (lag.size() == 1 ? " is" : " are") + at +
           (lag.size() == 1 && !lag[0]->second.beat.phase.empty()
                ? " (" + lag[0]->second.beat.phase + ")"
                : "") +
           ", " +
           others(ahead.size(), lag.size(), all.size(), "at step " + std::to_string(next) + further,
                  "at step " + std::to_string(next) + further);
  }
  // By what they are at: those that are the fewest differ.
  std::map<std::string, Ranks> phases;
  for (const Entry* entry : all) phases[entry->second.beat.phase].push_back(entry);
  const auto few = std::min_element(phases.begin(), phases.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const std::string at = least < 0 ? "" : " at step " + std::to_string(least);
  if (phases.size() == 2 && !few->first.empty()) {
    const auto other = few == phases.begin() ? std::next(few) : phases.begin();
    const std::string elsewhere = other->first.empty() ? "are not" : "are in " + other->first;
    return names(few->second) + (few->second.size() == 1 ? " is" : " are") + " in " + few->first +
           at + ", " +
           others(other->second.size(), few->second.size(), all.size(),
                  other->first.empty() ? "is not" : "is in " + other->first, elsewhere);
  }
  const std::string phase =
      phases.size() == 1 && !few->first.empty() ? ", in " + few->first : std::string();
  const std::string who =
      all.size() == 1 ? names(all) + " is" : "all " + std::to_string(all.size()) + " ranks are";
  return who + (at.empty() ? " before any step" : at) + phase + ", in no collective";
}

// Of ranks of which all are heard.
std::string by_place(const Ranks& all) {
  std::uint64_t top = 0;
  for (const Entry* entry : all) top = std::max(top, sequence_of(entry->second));
  const Ranks at_top =
      those(all, [&](const RankPlace& place) { return top > 0 && sequence_of(place) == top; });
  const Ranks inside = those(at_top, is_inside);
  if (const auto groups = by_call(inside); groups.size() > 1) {
    return different_calls(groups, all.size());
  }
  const Ranks behind = without(all, at_top);
  if (!at_top.empty() && !behind.empty()) {
    const Collective& call = *call_of(at_top[0]->second);
    // In an older one, all of them in the same.
    const Ranks stuck = those(behind, is_inside);
    const bool one = stuck.size() == behind.size() &&
                     std::all_of(stuck.begin(), stuck.end(), [&](const Entry* entry) {
                       return sequence_of(entry->second) == sequence_of(stuck[0]->second);
                     });
    const std::string is = behind.size() == 1 ? " is" : " are";
    const std::string has = behind.size() == 1 ? " has" : " have";
    const std::string lag = names(behind) + details(behind) +
                            (one ? is + " still in " + name_of(*call_of(stuck[0]->second))
                                 : has + " not entered " + name_of(call));
    const std::string it = one ? name_of(call) : "it";
    if (inside.size() == at_top.size()) {
      return lag + "; " +
             others(inside.size(), behind.size(), all.size(), "waits in " + it, "wait in " + it);
    }
    return lag + "; " +
           others(at_top.size(), behind.size(), all.size(), "has entered " + it,
                  "have entered " + it);
  }
  if (inside.empty()) return by_step(all);
  const std::string call = name_with_size(*call_of(inside[0]->second));
  if (inside.size() < all.size()) {
    const Ranks out = those(all, [](const RankPlace& place) {
      return call_of(place) != nullptr && call_of(place)->done == true;
    });
    if (!out.empty()) {
      return names(inside) + details(inside) + (inside.size() == 1 ? " is" : " are") +
             " still in " + call + "; " +
             others(out.size(), inside.size(), all.size(), "has come out of it",
                    "have come out of it");
    }
  }
  if (all.size() == 1) return names(all) + " waits in " + call;
  return "all " + std::to_string(all.size()) + " ranks wait in " + call +
         ": none of them lags, so that it is the network between them, or a process outside of "
         "the job";
}

}  // namespace

bool Advance::heard(const NodeId& node, const wire::RankBeat& beat, bool heartbeat, Monotonic now) {
  RankPlace& place = ranks_[beat.rank];
  place.node = node;
  bool moved = !heartbeat;
  if (heartbeat) {
    const auto in = [](const wire::RankBeat& of) {
      const auto& call = of.collective;
      return std::tuple(of.step, of.phase, call ? call->sequence : 0,
                        call ? call->done.value_or(false) : false);
    };
    moved = !place.heard || in(place.beat) != in(beat);
    place.beat = beat;
    place.heard = now;
  } else if (beat.step) {
    place.beat.step = beat.step;
  }
  if (beat.step) step(*beat.step, now);
  if (moved) move(now);
  return moved;
}

void Advance::ended(int rank, Monotonic now) {
  ranks_[rank].ended = true;
  move(now);
}

void Advance::move(Monotonic now) {
  if (has_moved_) longest_pause_ = std::max<nanoseconds>(longest_pause_, now - moved_);
  has_moved_ = true;
  moved_ = now;
}

void Advance::step(std::int64_t step, Monotonic now) {
  if (top_ && step <= top_->first) return;
  if (top_) {
    const std::int64_t count = step - top_->first;
    const nanoseconds each = nanoseconds(now - top_->second) / count;
    known_steps_ += count;
    steps_.emplace_back(each, std::min(count, kStepsKept));
    std::int64_t kept = 0;
    for (const auto& entry : steps_) kept += entry.second;
    while (kept - steps_.front().second >= kStepsKept) {
      kept -= steps_.front().second;
      steps_.pop_front();
    }
    std::vector<std::pair<nanoseconds, std::int64_t>> sorted(steps_.begin(), steps_.end());
    std::sort(sorted.begin(), sorted.end());
    std::int64_t below = 0;
    for (const auto& [took, how_many] : sorted) {
      below += how_many;
      median_ = took;
      if (2 * below >= kept) break;
    }
  }
  top_ = {step, now};
}

std::optional<nanoseconds> Advance::limit(std::optional<std::chrono::seconds> asked) const {
  if (asked) return *asked;
  if (known_steps_ < kSteps) return std::nullopt;
  return std::max({nanoseconds(kShortest), 10 * median_, 2 * longest_pause_});
}

std::optional<Hang> find_hang(const std::map<int, RankPlace>& ranks, Monotonic moved,
                              std::optional<nanoseconds> limit, Monotonic now, WallTime wall) {
  if (!limit || now - moved < *limit) return std::nullopt;
  Ranks all;
  for (const Entry& entry : ranks) all.push_back(&entry);
  const Ranks ended = those(all, [](const RankPlace& place) { return place.ended; });
  const Ranks live = without(all, ended);
  const Ranks never = those(live, [](const RankPlace& place) { return !place.heard; });
  // Where the one or other sends heartbeats, the rest is not silent but another program.
  const Ranks beating = without(live, never);
  const Ranks awaited = never.size() * 2 < live.size() ? live : beating;
  const Ranks silent = those(awaited, [&](const RankPlace& place) {
    return !place.heard || now - *place.heard >= kSilent;
  });
  const auto at = [&](Monotonic then) {
    return time_of_day(wall - std::chrono::duration_cast<WallTime::duration>(now - then));
  };
  if (awaited.empty() || silent.size() == awaited.size()) {
    return Hang{"no rank has reported anything since " + at(moved), ""};
  }
  const std::string text = "no progress for " + human_duration(now - moved);
  const bool waits = std::any_of(awaited.begin(), awaited.end(),
                                 [](const Entry* entry) { return is_inside(entry->second); });
  if (!ended.empty() && waits) {
    Ranks both = ended;
    both.insert(both.end(), awaited.begin(), awaited.end());
    std::sort(both.begin(), both.end(),
              [](const Entry* a, const Entry* b) { return a->first < b->first; });
    return Hang{text, names(ended) + (ended.size() == 1 ? " has" : " have") + " ended; " +
                          rest(ended, both)};
  }
  if (!silent.empty()) {
    const std::string has = silent.size() == 1 ? " has" : " have";
    std::optional<Monotonic> since;  // of those that were heard once, the first that fell silent
    for (const Entry* entry : silent) {
      const auto& heard = entry->second.heard;
      if (heard && (!since || *heard < *since)) since = heard;
    }
    const std::string said =
        since ? has + " not been heard of since " + at(*since) : has + " reported nothing yet";
    return Hang{text, names(silent) + details(silent) + said + "; " + rest(silent, awaited)};
  }
  return Hang{text, by_place(awaited)};
}

}  // namespace dtrain::head
