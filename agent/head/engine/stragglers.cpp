#include "agent/head/engine/stragglers.hpp"

#include <algorithm>
#include <limits>

#include "launcher/core/text.hpp"

namespace dtrain::head {
namespace {

using Times = wire::RankBeat::StepTimes;
using Seconds = std::optional<double>;

// NaN where one is not known.
float less(const Seconds& now, const Seconds& before) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const double more = now.value_or(kUnknown) - before.value_or(kUnknown);
  return static_cast<float>(more < 0 ? 0 : more);
}

// Of an even number the lower one of the middle.
Seconds median_of(std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// What lies between this heartbeat and the last one that said something of steps.
std::optional<Stragglers::Piece> Stragglers::Rank::piece(const wire::RankBeat& beat,
                                                         Monotonic now) {
  const auto begin_anew = [this] {
    pieces.clear();
    own.reset();
    row = 0;
    row_beats = 0;
  };
  if (beat.step_times) {
    const Times& here = *beat.step_times;
    const std::optional<Times> before = std::exchange(last, here);
    if (!before || here.steps < before->steps || here.seconds < before->seconds) {
      begin_anew();  // what came before the first may have been anything
      return std::nullopt;
    }
    if (here.steps == before->steps) return std::nullopt;
    return Piece{static_cast<std::int64_t>(here.steps - before->steps),
                 static_cast<float>(here.seconds - before->seconds),
                 less(here.data, before->data),
                 less(here.compute, before->compute),
                 less(here.communication, before->communication),
                 less(here.wait, before->wait)};
  }
  if (last || !beat.step) return std::nullopt;
  if (last_step && *beat.step == last_step->first) return std::nullopt;
  const auto before = std::exchange(last_step, std::pair(*beat.step, now));
  if (!before || *beat.step < before->first) {
    begin_anew();
    return std::nullopt;
  }
  Piece its;
  its.steps = *beat.step - before->first;
  its.seconds = std::chrono::duration<float>(now - before->second).count();
  return its;
}

void Stragglers::Rank::keep(const Piece& piece) {
  pieces.push_back(piece);
  std::int64_t steps = 0;
  for (const Piece& each : pieces) steps += each.steps;
  while (pieces.size() > kBeats && steps - pieces.front().steps >= kSteps) {
    steps -= pieces.front().steps;
    pieces.erase(pieces.begin());
  }
  own.reset();
  if (pieces.size() < kBeats) return;
  const Piece all = sum(/*with_slowest=*/false);
  const double mean = static_cast<double>(all.own()) / static_cast<double>(all.steps);
  if (!std::isnan(all.wait) && std::isfinite(mean)) own = mean;
}

Stragglers::Piece Stragglers::Rank::sum(bool with_slowest) const {
  auto slowest = pieces.end();
  if (!with_slowest && pieces.size() > 1) {
    slowest = std::max_element(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.own() / static_cast<float>(a.steps) < b.own() / static_cast<float>(b.steps);
    });
  }
  Piece all{0, 0, 0, 0, 0, 0};
  for (auto each = pieces.begin(); each != pieces.end(); ++each) {
    if (each == slowest) continue;
    all.steps += each->steps;
    all.seconds += each->seconds;
    all.data += each->data;
    all.compute += each->compute;
    all.communication += each->communication;
    all.wait += each->wait;
  }
  return all;
}

void Stragglers::Rank::judge(const Piece& newest, double median) {
  const bool other_side = slow ? *own < kFast * median || *own - median < kLeast
                               : *own > kSlow * median && *own - median > kLeast;
  row = other_side ? row + newest.steps : 0;
  row_beats = other_side ? row_beats + 1 : 0;
  if (slow) {
    untold += newest.steps;
    ++untold_beats;
  }
  const std::int64_t wanted = slow ? kSteps : kSteps << std::min(times, kDoubled);
  if (row < wanted || row_beats < kBeats) return;
  slow = !slow;
  row = 0;
  row_beats = 0;
  untold = 0;
  untold_beats = 0;
}

void Stragglers::heard(const wire::RankBeat& beat, Monotonic now) {
  Rank& rank = ranks_[beat.rank];
  const std::optional<Piece> newest = rank.piece(beat, now);
  if (!newest) return;
  rank.keep(*newest);
  if (++since_ >= ranks_.size()) find_median();
  if (median_ && rank.own) rank.judge(*newest, *median_);
}

void Stragglers::ended(int number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  if (std::exchange(rank.told, false)) --told_;
  rank.slow = false;
  rank.ended = true;
}

// Once for as many heartbeats as there are ranks, so that it costs each of them the same.
void Stragglers::find_median() {
  since_ = 0;
  std::size_t live = 0;
  std::vector<double> owns;
  for (const auto& [number, rank] : ranks_) {
    if (rank.ended) continue;
    ++live;
    if (rank.own) owns.push_back(*rank.own);
  }
  median_.reset();
  if (owns.size() >= 2 && owns.size() * 2 > live) median_ = median_of(owns);
}

// "; the difference is data (230 ms of 232 ms)": the part in which the group is furthest from the
// median of all ranks' parts.
std::string Stragglers::difference(const Group& group) const {
  constexpr std::pair<const char*, float Piece::*> kParts[] = {
      {"data", &Piece::data},
      {"compute", &Piece::compute},
      {"communication", &Piece::communication}};
  const auto size = static_cast<double>(group.size());
  double all = 0;
  for (const auto& [number, rank] : group) all += (*rank->own - *median_) / size;
  std::string where;
  double most = 0;
  for (const auto& [name, its] : kParts) {
    const auto a_step = [part = its](const Rank& rank) {
      const Piece sums = rank.sum(/*with_slowest=*/false);
      return static_cast<double>(sums.*part) / static_cast<double>(sums.steps);
    };
    std::vector<double> each;
    for (const auto& [number, rank] : ranks_) {
      if (rank.ended || !rank.own) continue;
      if (const double seconds = a_step(rank); !std::isnan(seconds)) each.push_back(seconds);
    }
    double more = -median_of(each).value_or(0);
    for (const auto& [number, rank] : group) more += a_step(*rank) / size;
    if (!(more > most)) continue;  // nor where it is not known
    most = more;
    where = name;
  }
  if (where.empty()) return "; what makes the difference is not known";
  return "; the difference is " + where + " (" + short_time(most) + " of " + short_time(all) + ")";
}

namespace {

std::string many(std::size_t count, const std::string& node) {
  return "all " + std::to_string(count) + " ranks of " + node;
}

}  // namespace

std::string Stragglers::beginning(const Group& group, const std::string& node, bool whole) const {
  double own = 0;
  std::int64_t steps = 0;
  for (const auto& [number, rank] : group) {
    own += *rank->own;
    steps = std::max(steps, rank->sum(/*with_slowest=*/true).steps);
  }
  own /= static_cast<double>(group.size());
  return (whole ? many(group.size(), node) + " are"
                : "rank " + std::to_string(group[0].first) + " on " + node + " is") +
         " slow: " + short_time(own) + " a step of " + (whole ? "their" : "its") +
         " own over the last " + std::to_string(steps) + ", the median is " + short_time(*median_) +
         difference(group);
}

std::string Stragglers::end(const Group& group, const std::string& node, bool whole) const {
  double own = 0;
  for (const auto& [number, rank] : group) own += rank->own.value_or(0);
  return (whole ? "the ranks of " + node + " are"
                : "rank " + std::to_string(group[0].first) + " on " + node + " is") +
         " slow no more: " + short_time(own / static_cast<double>(group.size())) + " a step of " +
         (whole ? "their" : "its") + " own, the median is " + short_time(median_.value_or(0));
}

std::vector<std::string> Stragglers::judge(const NodeId& node, int first, int count) {
  std::vector<std::string> events;
  Group live;
  const auto last = ranks_.lower_bound(first + count);
  for (auto each = ranks_.lower_bound(first); each != last; ++each) {
    if (!each->second.ended) live.emplace_back(each->first, &each->second);
  }
  const auto slow = [](const auto& each) { return each.second->slow; };
  if (nodes_.contains(node)) {
    if (std::any_of(live.begin(), live.end(), slow)) return events;
    nodes_.erase(node);
    --told_;
    if (!live.empty()) events.push_back(end(live, node.str(), /*whole=*/true));
    return events;
  }
  bool any_on_its_way = false;
  bool any_told = false;
  bool has_waited = false;
  Group found;
  for (const auto& [number, rank] : live) {
    if (rank->told && !rank->slow) {
      rank->told = false;
      --told_;
      events.push_back(end({{number, rank}}, node.str(), /*whole=*/false));
    }
    any_told = any_told || rank->told;
    any_on_its_way = any_on_its_way || (!rank->slow && (rank->row > 0 || !rank->own));
    if (!rank->slow || rank->told || !rank->own || !median_) continue;
    found.emplace_back(number, rank);
    has_waited = has_waited || (rank->untold >= kSteps && rank->untold_beats >= kBeats);
  }
  // Others of the node may turn out to be slow as well.
  if (found.empty() || (any_on_its_way && !has_waited)) return events;
  const bool whole = found.size() == live.size() && live.size() > 1 &&
                     static_cast<std::size_t>(count) == live.size() && !any_told;
  const auto tell = [&](const Group& group) {
    if (told_ >= kTold) return;
    std::string words = beginning(group, node.str(), whole);
    if (++told_ == kTold) words += "; of further slow ranks only dtrain status -v tells";
    for (const auto& [number, rank] : group) {
      ++rank->times;
      rank->told = !whole;
    }
    if (whole) nodes_.insert(node);
    events.push_back(std::move(words));
  };
  if (whole) {
    tell(found);
  } else {
    for (const auto& each : found) tell({each});
  }
  return events;
}

std::optional<Pace> Stragglers::pace(int number) const {
  const auto found = ranks_.find(number);
  if (found == ranks_.end() || found->second.pieces.empty()) return std::nullopt;
  const Rank& rank = found->second;
  const Piece all = rank.sum(/*with_slowest=*/true);
  const auto steps = static_cast<double>(all.steps);
  const auto mean = [&](float sum) {
    return std::isnan(sum) ? std::nullopt : Seconds(static_cast<double>(sum) / steps);
  };
  Pace its;
  its.steps = all.steps;
  its.step = static_cast<double>(all.seconds) / steps;
  if (!std::isnan(all.wait)) its.own = mean(all.own());
  its.data = mean(all.data);
  its.compute = mean(all.compute);
  its.communication = mean(all.communication);
  its.wait = mean(all.wait);
  its.slow = rank.slow;
  std::vector<std::pair<double, std::int64_t>> sorted;
  for (const Piece& each : rank.pieces) {
    sorted.emplace_back(static_cast<double>(each.seconds) / static_cast<double>(each.steps),
                        each.steps);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double part) {
    std::int64_t below = 0;
    for (const auto& [took, how_many] : sorted) {
      below += how_many;
      if (static_cast<double>(below) >= part * steps) return took;
    }
    return sorted.back().first;
  };
  const Times said = rank.last.value_or(Times{});
  its.p50 = said.p50.value_or(quantile(0.5));
  its.p90 = said.p90.value_or(quantile(0.9));
  its.max = said.max.value_or(sorted.back().first);
  return its;
}

}  // namespace dtrain::head
