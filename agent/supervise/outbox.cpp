#include "agent/supervise/outbox.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

constexpr std::chrono::seconds kBeatsEvery{1};
constexpr std::chrono::seconds kOthersEvery{1};  // progress of ranks other than 0

std::string line_of(std::uint64_t seq, const wire::AttemptEventBody& body) {
  return wire::dump(wire::to_json(wire::AttemptEvent{seq, body}));
}

}  // namespace

std::uint64_t Outbox::append(const wire::AttemptEventBody& body, bool passing) {
  events_.push_back({++last_seq_, line_of(last_seq_, body) + "\n", passing});
  bytes_ += events_.back().line.size();
  return last_seq_;
}

std::uint64_t Outbox::push(const wire::AttemptEventBody& body) {
  return append(body, false);
}

void Outbox::push_passing(int rank, nlohmann::json body, Monotonic now) {
  Passing& passing = passing_[rank];
  if (wire::get_string(body, "type") != "heartbeat") {
    passing.waiting = std::move(body);
    return;
  }
  // Anything else that is on its way says as well that the rank is alive.
  if (passing.on_its_way != 0) return;
  if (passing.last_heartbeat != Monotonic{} && now - passing.last_heartbeat < kBeatsEvery) return;
  passing.last_heartbeat = now;
  passing.on_its_way = append(wire::RankReport{rank, std::move(body)}, true);
}

void Outbox::push_beat(wire::RankBeat beat) {
  const int rank = beat.rank;
  beats_[rank] = std::move(beat);
}

std::optional<Monotonic> Outbox::send_due(Monotonic now) {
  std::optional<Monotonic> next;
  const auto is_due = [&](const std::optional<Monotonic>& sent, Monotonic::duration every) {
    if (!sent || now >= *sent + every) return true;
    next = std::min(next.value_or(*sent + every), *sent + every);
    return false;
  };
  for (auto& [rank, passing] : passing_) {
    if (passing.waiting.is_null() || passing.on_its_way != 0) continue;
    if (!is_due(passing.sent, rank == 0 ? kProgressEvery : kOthersEvery)) continue;
    passing.sent = now;
    passing.on_its_way =
        append(wire::RankReport{rank, std::exchange(passing.waiting, nullptr)}, true);
  }
  if (beats_.empty() || beats_on_their_way_ != 0 || !is_due(beats_sent_, kBeatsEvery)) return next;
  beats_sent_ = now;
  wire::RankBeats all;
  for (auto& [rank, beat] : beats_) all.beats.push_back(std::move(beat));
  beats_.clear();
  beats_on_their_way_ = append(all, true);
  return next;
}

void Outbox::flush_passing(int rank) {
  beats_.erase(rank);  // its end says more
  const auto found = passing_.find(rank);
  if (found == passing_.end() || found->second.waiting.is_null()) return;
  append(wire::RankReport{rank, std::exchange(found->second.waiting, nullptr)}, true);
}

void Outbox::acknowledge(std::uint64_t seq) {
  if (seq > last_seq_) {
    throw Error(ErrorCode::invalid, "event " + std::to_string(seq) + " has not been sent");
  }
  while (!events_.empty() && events_.front().seq <= seq) {
    bytes_ -= events_.front().line.size();
    events_.pop_front();
  }
  if (beats_on_their_way_ <= seq) beats_on_their_way_ = 0;
  for (auto& [rank, passing] : passing_) {
    if (passing.on_its_way <= seq) passing.on_its_way = 0;
  }
}

void Outbox::heard(std::uint64_t seq) {
  const auto found =
      std::lower_bound(events_.begin(), events_.end(), seq,
                       [](const Event& event, std::uint64_t number) { return event.seq < number; });
  // Else it was acknowledged meanwhile, with the others.
  if (found == events_.end() || found->seq != seq) return;
  bytes_ -= found->line.size();
  events_.erase(found);
  if (beats_on_their_way_ == seq) beats_on_their_way_ = 0;
  for (auto& [rank, passing] : passing_) {
    if (passing.on_its_way == seq) passing.on_its_way = 0;
  }
}

const Outbox::Event* Outbox::after(std::uint64_t seq) const {
  const auto found =
      std::upper_bound(events_.begin(), events_.end(), seq,
                       [](std::uint64_t number, const Event& event) { return number < event.seq; });
  return found == events_.end() ? nullptr : &*found;
}

std::vector<std::string> Outbox::lasting(const wire::AttemptEventBody& last) const {
  std::vector<std::string> lines;
  for (const Event& event : events_) {
    if (!event.passing) lines.push_back(event.line.substr(0, event.line.size() - 1));
  }
  lines.push_back(line_of(last_seq_ + 1, last));
  return lines;
}

}  // namespace dtrain::supervise
