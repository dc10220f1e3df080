#include "agent/head/server/distribution.hpp"

#include <algorithm>
#include <utility>

namespace dtrain::head {

namespace {

constexpr std::size_t kMissedBy = 2;  // nodes, until a giver is asked no more

}  // namespace

Distribution::Number Distribution::want(const std::string& what, const NodeId& node,
                                        Decided decided) {
  const Number number = ++last_;
  wishes_[number] = {what, node, std::move(decided)};
  contents_[what].waiting.insert(number);
  settle(what);
  return number;
}

void Distribution::missed(Number number, Time now, Decided decided) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return;
  Wish& wish = found->second;
  uncount(wish, now);
  if (const auto offer = offers_.find(wish.giver); offer != offers_.end()) {
    offer->second.missed.insert(wish.node);
    if (offer->second.missed.size() >= kMissedBy) dismiss(offer->first);
  }
  wish.giver = 0;
  wish.decided = std::move(decided);
  contents_[wish.what].for_head.insert(number);
  settle(wish.what);
}

void Distribution::slow(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end() || !found->second.counted) return;
  uncount(found->second, now);
  settle(found->second.what);
}

bool Distribution::whole(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return false;
  Wish& wish = found->second;
  Content& content = contents_[wish.what];
  if (!content.waits()) return false;
  if (wish.counted && content.leaving.emplace(wish.node, number).second) {
    wish.leaving = true;
    leaving_.emplace_back(now, number);
  }
  return true;
}

void Distribution::over(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found != wishes_.end() && !found->second.leaving) leave(number, now);
}

// It is forgotten, and does not count any more.
void Distribution::leave(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return;
  uncount(found->second, now);
  const Wish wish = std::move(found->second);
  wishes_.erase(found);
  Content& content = contents_[wish.what];
  if (wish.leaving) content.leaving.erase(wish.node);
  content.waiting.erase(number);
  content.for_head.erase(number);
  settle(wish.what);
  tidy(wish.what);
}

Distribution::Number Distribution::offer(const std::string& what, const Giver& giver, Time now,
                                         std::function<void()> dismiss) {
  const Number number = ++last_;
  Content& content = contents_[what];
  const auto leaving = content.leaving.find(giver.node);
  if (!content.waits()) {
    if (leaving != content.leaving.end()) leave(leaving->second, now);
    tidy(what);
    dismiss();
    return number;
  }
  Offer& offer = offers_[number];
  offer.what = what;
  offer.giver = giver;
  offer.dismiss = std::move(dismiss);
  content.offers.insert(number);
  set_unused(number, offer, now);
  if (leaving != content.leaving.end()) {
    leave(leaving->second, now);
  } else {
    settle(what);
  }
  return number;
}

void Distribution::withdraw(Number number) {
  const auto found = offers_.find(number);
  if (found == offers_.end()) return;
  set_unused(number, found->second, std::nullopt);
  const std::string what = found->second.what;
  offers_.erase(found);
  contents_[what].offers.erase(number);
  tidy(what);
}

void Distribution::dismiss(Number number) {
  const std::function<void()> say = std::move(offers_.at(number).dismiss);
  withdraw(number);
  say();
}

void Distribution::look(Time now) {
  while (!leaving_.empty() && leaving_.front().first + limits_.about_to_give <= now) {
    const Number number = leaving_.front().second;
    leaving_.pop_front();
    leave(number, now);
  }
  while (!unused_.empty() && unused_.begin()->first + limits_.kept <= now) {
    dismiss(unused_.begin()->second);
  }
}

std::optional<Distribution::Time> Distribution::next_look() const {
  std::optional<Time> next;
  if (!unused_.empty()) next = unused_.begin()->first + limits_.kept;
  if (!leaving_.empty()) {
    const Time leaves = leaving_.front().first + limits_.about_to_give;
    next = next ? std::min(*next, leaves) : leaves;
  }
  return next;
}

void Distribution::clear() {
  contents_.clear();
  wishes_.clear();
  offers_.clear();
  unused_.clear();
  leaving_.clear();
}

// Sends those that wait to whoever may give to one more.
void Distribution::settle(const std::string& what) {
  Content& content = contents_[what];
  while (!content.for_head.empty() && content.readers < limits_.readers) {
    begin(content, *content.for_head.begin(), 0);
  }
  bool is_passed_over = false;  // the first one, which may not be served by whom there is
  for (auto at = content.waiting.begin(); at != content.waiting.end();) {
    const Number number = *at++;
    const Number giver = least_busy(content, wishes_.at(number).node);
    if (giver != 0 || content.readers < limits_.readers) {
      begin(content, number, giver);
    } else if (std::exchange(is_passed_over, true)) {
      return;
    }
  }
}

// 0: none that may give to one more.
Distribution::Number Distribution::least_busy(const Content& content, const NodeId& reader) const {
  Number best = 0;
  int least = limits_.readers;
  for (const Number number : content.offers) {
    const Offer& offer = offers_.at(number);
    const bool is_no_use = offer.giver.node == reader || offer.missed.contains(reader);
    if (is_no_use || offer.readers >= least) continue;
    best = number;
    least = offer.readers;
    if (least == 0) break;
  }
  return best;
}

void Distribution::begin(Content& content, Number number, Number giver) {
  content.waiting.erase(number);
  content.for_head.erase(number);
  Wish& wish = wishes_.at(number);
  wish.giver = giver;
  wish.counted = true;
  std::optional<Giver> from;
  if (giver == 0) {
    ++content.readers;
  } else {
    Offer& offer = offers_.at(giver);
    ++offer.readers;
    set_unused(giver, offer, std::nullopt);
    from = offer.giver;
  }
  std::exchange(wish.decided, nullptr)(from);
}

void Distribution::uncount(Wish& wish, Time now) {
  if (!std::exchange(wish.counted, false)) return;
  if (wish.giver == 0) {
    --contents_[wish.what].readers;
    return;
  }
  const auto found = offers_.find(wish.giver);
  if (found == offers_.end()) return;
  if (--found->second.readers == 0) set_unused(wish.giver, found->second, now);
}

void Distribution::set_unused(Number number, Offer& offer, std::optional<Time> since) {
  if (offer.unused) unused_.erase({*offer.unused, number});
  offer.unused = since;
  if (since) unused_.emplace(*since, number);
}

void Distribution::tidy(const std::string& what) {
  const auto found = contents_.find(what);
  if (found == contents_.end()) return;
  const Content& content = found->second;
  const bool is_over = !content.waits() && content.readers == 0 && content.offers.empty();
  if (is_over && content.leaving.empty()) contents_.erase(found);
}

}  // namespace dtrain::head
