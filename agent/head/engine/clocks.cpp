#include <cmath>

#include "agent/head/engine/impl.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

// What clocks say: how far those of nodes are from the head's, and when ranks failed.
namespace dtrain::head {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

namespace {

constexpr nanoseconds kMillisecond = milliseconds(1);
constexpr std::size_t kListedCauses = 100;  // of an attempt's failures; the rest is counted

nanoseconds since_1970(WallTime time) {
  return std::chrono::duration_cast<nanoseconds>(time.time_since_epoch());
}

nlohmann::json millis_json(const std::optional<nanoseconds>& time) {
  if (!time) return nullptr;
  return std::round(std::chrono::duration<double, std::micro>(*time).count()) / 1e3;
}

bool is_for_peer(const RankRow& rank) {
  return says_peer_gone(rank.error_message) || says_peer_gone(join(rank.last_lines, "\n"));
}

}  // namespace

nanoseconds Engine::Impl::head_time() const {
  return head_epoch + clock.boot();
}

nanoseconds Engine::Impl::head_time(Monotonic time) const {
  return head_time() - (clock.now() - time);
}

void Engine::Impl::heartbeat(const NodeId& id, const wire::Heartbeat& beat) {
  const auto found = nodes.find(id);
  if (found == nodes.end() || beat.sent.count() == 0) return;
  Node& node = found->second;
  if (beat.wall_ns > 0) node.clock_epoch = nanoseconds(beat.wall_ns) - beat.sent;
  if (beat.echoed.count() == 0) return;
  node.clock.add(head_epoch + beat.echoed, beat.received, beat.sent, head_time());
}

void Engine::Impl::date(RankRow& rank, const Share& share, const wire::RankExited& exited) const {
  const Node& node = nodes.at(share.row.node);
  const bool is_heads = !options.machine.empty() && share.row.machine == options.machine;
  std::optional<ClockOffset> offset = node.clock.at(head_time());
  std::optional<nanoseconds> epoch = node.clock_epoch;
  if (is_heads) {
    offset = ClockOffset{-head_epoch, nanoseconds(0)};
    epoch = since_1970(clock.wall()) - clock.boot();
  }
  rank.heard = head_time().count();
  if (offset) {
    rank.clock_by = offset->by.count();
    rank.clock_uncertain = offset->uncertain.count();
  }
  const nanoseconds ended = since_1970(exited.time);
  nanoseconds at = exited.boot_time;
  nanoseconds loose{0};
  if (at.count() == 0) {
    // An older supervisor: as the clock of the day was when its node last spoke.
    if (!epoch) return;
    at = ended + kMillisecond - *epoch;
    loose = kMillisecond;
  }
  // Its error file says when it went wrong, often in whole seconds; not after its end.
  if (is_time(exited.error_time)) {
    const bool whole = exited.error_time == std::floor(exited.error_time);
    const nanoseconds step = whole ? nanoseconds(std::chrono::seconds(1)) : kMillisecond;
    const nanoseconds written(static_cast<std::int64_t>(exited.error_time * 1e9));
    if (written <= ended) {
      const nanoseconds from = at - loose - (ended - written);
      at = std::min(at, from + step);
      loose = at - from;
    }
  }
  rank.at = at.count();
  rank.loose = loose.count();
}

std::vector<Failure> Engine::Impl::failures_of(const Attempt& attempt) const {
  std::vector<Failure> all;
  std::set<NodeId> with_ranks;
  for (const auto& [number, rank] : attempt.ranks) {
    if (!failed_by_itself(rank)) continue;
    const Share* share = attempt.share(rank.node);
    Failure& failure = all.emplace_back();
    failure.rank = number;
    failure.node = rank.node;
    failure.what = describe(rank);
    failure.clock = share == nullptr ? "" : share->row.machine;
    if (rank.at) failure.at = nanoseconds(*rank.at);
    failure.loose = nanoseconds(rank.loose);
    if (rank.clock_by) {
      failure.offset = {nanoseconds(*rank.clock_by), nanoseconds(rank.clock_uncertain)};
    }
    failure.heard = rank.heard > 0 ? nanoseconds(rank.heard) : head_time();
    failure.guess = since_1970(failed_at(rank));
    failure.for_peer = is_for_peer(rank);
    with_ranks.insert(rank.node);
  }
  // A node that is gone explains why a rank elsewhere fails after its last word, and not the other
  // way round.
  for (const Share& share : attempt.shares) {
    const bool lost = share.row.outcome == "lost";
    if (!lost && (share.row.outcome != "failed" || with_ranks.contains(share.row.node))) continue;
    Failure& failure = all.emplace_back();
    failure.node = share.row.node;
    failure.what = share.row.reason;
    // By the head's timeline, as no machine's own.
    failure.heard = share.failed ? head_time(*share.failed) : head_time();
    failure.at = failure.guess = failure.heard;
    failure.offset = ClockOffset{};
  }
  return all;
}

std::string Engine::Impl::causes_text(const std::vector<Failure>& failures,
                                      const Causes& causes) const {
  if (failures.empty()) return {};
  // The head's own clock may have been set since it began.
  const nanoseconds set_by = since_1970(clock.wall()) - head_time();
  const std::optional<nanoseconds> root = time_of(failures[causes.first.front()]);
  nlohmann::json list = nlohmann::json::array();
  const auto add = [&](std::size_t index, const char* role) {
    if (list.size() == kListedCauses) return;
    const Failure& failure = failures[index];
    const std::optional<nanoseconds> time = time_of(failure);
    std::optional<nanoseconds> after;
    if (time && root) after = *time - *root;
    list.push_back(
        {{"role", role},
         {"rank", failure.rank ? nlohmann::json(*failure.rank) : nlohmann::json()},
         {"node", failure.node.str()},
         {"what", printable(failure.what, false)},
         {"time", time ? nlohmann::json(rfc3339(WallTime(
                             std::chrono::duration_cast<WallTime::duration>(*time + set_by))))
                       : nlohmann::json()},
         {"after_ms", millis_json(after)},
         {"uncertainty_ms", millis_json(uncertainty_of(failure))}});
  };
  for (const std::size_t each : causes.first) {
    add(each, each == causes.first.front() ? "root" : causes.known ? "concurrent" : "unknown");
  }
  for (const std::size_t each : causes.later) add(each, "consequence");
  return wire::dump({{"listed", std::move(list)}, {"count", failures.size()}});
}

void Engine::heartbeat(const NodeId& node, const wire::Heartbeat& beat) {
  impl_->heartbeat(node, beat);
}

}  // namespace dtrain::head
