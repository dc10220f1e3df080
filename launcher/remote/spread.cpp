#include "launcher/remote/spread.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/stop.hpp"

namespace dtrain {
namespace {

// How many hosts stand between it and somebody who has it whole; absent when `who` is one of them,
// or when one of them has nobody just now.
std::optional<int> depth_of(const std::vector<SpreadHost>& hosts, std::size_t host,
                            std::size_t who) {
  for (int depth = 0;; ++depth) {
    if (host == who) return std::nullopt;
    const SpreadHost& each = hosts[host];
    if (each.whole || each.here) return depth;
    if (!each.peer || each.gone) return std::nullopt;
    host = *each.peer;
  }
}

// How many hosts stand one behind the other behind `who`.
int height_of(const std::vector<SpreadHost>& hosts, std::size_t who) {
  int height = 0;
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    std::size_t each = host;
    int steps = 0;
    while (each != who && hosts[each].peer && !hosts[each].gone) {
      each = *hosts[each].peer;
      ++steps;
    }
    if (each == who) height = std::max(height, steps);
  }
  return height;
}

bool is_sound(const SpreadHost& host) {
  return !host.gone && !host.suspect && !host.silent;
}

}  // namespace

SpreadChoice choose_source(const std::vector<SpreadHost>& hosts, std::size_t who,
                           const SpreadLimits& limits) {
  using From = SpreadChoice::From;
  if (limits.seeds <= 0 || hosts[who].failures >= limits.failures) return {From::here};
  int seeds = 0;
  int failures = 0;
  bool anyone_met = false;
  bool is_coming = false;
  std::vector<int> readers(hosts.size(), 0);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const SpreadHost& each = hosts[i];
    failures += each.failures;
    anyone_met = anyone_met || each.met;
    if (each.gone || i == who) continue;
    if (each.here && is_sound(each) && (each.gives || !each.announced)) ++seeds;
    if (!each.announced) is_coming = true;
    if (each.peer && !each.whole) ++readers[*each.peer];
  }
  if (seeds < limits.seeds && !hosts[who].failures) {
    // One that is whole serves as well as this machine does.
    const bool is_first = std::none_of(hosts.begin(), hosts.end(), [](const SpreadHost& each) {
      return each.whole && each.gives && is_sound(each);
    });
    if (is_first) return {From::here};
  }
  if (failures >= limits.out_of_reach && !anyone_met) return {From::here};
  // Who brings others along brings them below its own place.
  const int height = readers[who] == 0 ? 0 : height_of(hosts, who);
  // The least busy, so that it is a chain, and of these the nearest to the source.
  std::optional<std::tuple<int, int, std::size_t>> best;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const SpreadHost& each = hosts[i];
    if (i == who || !each.gives || !is_sound(each)) continue;
    if (readers[i] >= limits.readers || hosts[who].lost == i) continue;
    const std::optional<int> depth = depth_of(hosts, i, who);
    if (!depth || *depth + 1 + height >= limits.chain) continue;
    const std::tuple<int, int, std::size_t> found{readers[i], *depth, i};
    if (!best || found < *best) best = found;
  }
  if (best) return {From::peer, std::get<2>(*best), std::get<1>(*best)};
  return {is_coming ? From::wait : From::here};
}

Spread::Spread(const SpreadLimits& limits, std::stop_token stop,
               std::function<void(const std::string&, const std::string&)> say)
    : limits_(limits), stop_(std::move(stop)), say_(std::move(say)) {}

std::unique_ptr<Spread::Seat> Spread::join(const std::string& name) {
  const std::lock_guard lock(mutex_);
  hosts_.emplace_back();
  const std::string token = random_hex(16);
  places_.push_back({name, {"", token, {}}});
  return std::make_unique<Seat>(shared_from_this(), hosts_.size() - 1, name, token);
}

Spread::Seat::Seat(std::shared_ptr<Spread> spread, std::size_t index, std::string name,
                   std::string token)
    : spread_(std::move(spread)), index_(index), name_(std::move(name)), token_(std::move(token)) {}

Spread::Seat::~Seat() {
  const std::lock_guard lock(spread_->mutex_);
  spread_->hosts_[index_].gone = true;
  spread_->changed_.notify_all();
}

void Spread::Seat::announce(const std::optional<std::string>& address) {
  const std::lock_guard lock(spread_->mutex_);
  spread_->hosts_[index_].announced = true;
  spread_->hosts_[index_].gives = address.has_value();
  spread_->places_[index_].peer.address = address.value_or("");
  spread_->changed_.notify_all();
}

std::optional<Spread::Peer> Spread::Seat::source() {
  Spread& all = *spread_;
  std::optional<Peer> peer;
  std::string words = "from this machine";
  {
    std::unique_lock lock(all.mutex_);
    SpreadChoice choice;
    const auto decided = [&] {
      choice = choose_source(all.hosts_, index_, all.limits_);
      return choice.from != SpreadChoice::From::wait;
    };
    all.changed_.wait_for(lock, all.stop_, all.limits_.wait, decided);
    throw_if_stopped(all.stop_);
    SpreadHost& own = all.hosts_[index_];
    own.here = choice.from != SpreadChoice::From::peer;
    own.silent = false;
    if (!own.here) {
      own.peer = choice.peer;
      peer = all.places_[choice.peer].peer;
      peer->silence = all.limits_.silence + choice.depth * all.limits_.silence_each;
      words = "from " + all.places_[choice.peer].name;
    }
    all.changed_.notify_all();
  }
  all.say_(name_, words);
  return peer;
}

void Spread::Seat::failed(const std::string& why, SpreadLoss how) {
  Spread& all = *spread_;
  std::string words;
  {
    const std::lock_guard lock(all.mutex_);
    SpreadHost& own = all.hosts_[index_];
    words = "not by its relay";
    if (own.peer) {
      ++own.failures;
      own.lost = own.peer;
      SpreadHost& lost = all.hosts_[*own.peer];
      lost.met = lost.met || how != SpreadLoss::unmet;
      // One that lost its own source gives again when it has another.
      lost.suspect = lost.suspect || how == SpreadLoss::unmet;
      lost.silent = lost.silent || how == SpreadLoss::silent;
      words = "not from " + all.places_[*own.peer].name;
    }
    own.peer.reset();
    own.here = false;
    all.changed_.notify_all();
  }
  all.say_(name_, words + ": " + why);
}

void Spread::Seat::got_more() {
  const std::lock_guard lock(spread_->mutex_);
  if (!spread_->hosts_[index_].silent) return;
  spread_->hosts_[index_].silent = false;
  spread_->changed_.notify_all();
}

void Spread::Seat::got_it_whole() {
  Spread& all = *spread_;
  const std::lock_guard lock(all.mutex_);
  SpreadHost& own = all.hosts_[index_];
  if (own.peer) all.hosts_[*own.peer].met = true;
  own.whole = true;
  own.silent = false;
  own.peer.reset();
  all.changed_.notify_all();
}

}  // namespace dtrain
