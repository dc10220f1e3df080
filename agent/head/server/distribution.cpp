#include "agent/head/server/distribution.hpp"

#include <algorithm>
#include <utility>

namespace dtrain::head {

Distribution::Number Distribution::want(const std::string& what, std::uint64_t bytes,
                                        const NodeId& node, Time now, Decided decided) {
  const Number number = ++last_;
  wishes_[number] = {what, bytes, node, std::move(decided), 0, std::nullopt};
  contents_[what].waiting.insert(number);
  settle(what, now);
  return number;
}

void Distribution::missed(Number number, Time now, Decided decided) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return;
  Wish& wish = found->second;
  uncount(number, wish, now);
  Content& content = contents_[wish.what];
  if (const auto offer = content.offers.find(wish.giver); offer != content.offers.end()) {
    dismiss(content, offer);
  }
  wish.giver = 0;
  wish.decided = std::move(decided);
  content.for_head.insert(number);
  settle(wish.what, now);
}

void Distribution::over(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return;
  const Wish& wish = found->second;
  Content& content = contents_[wish.what];
  const bool is_new = wish.counted && content.leaving.emplace(wish.node, number).second;
  if (!is_new) return leave(number, now);
  leaving_.emplace_back(now, number);
}

// It does not count any more.
void Distribution::leave(Number number, Time now) {
  const auto found = wishes_.find(number);
  if (found == wishes_.end()) return;
  uncount(number, found->second, now);
  const Wish wish = std::move(found->second);
  wishes_.erase(found);
  Content& content = contents_[wish.what];
  const auto leaving = content.leaving.find(wish.node);
  if (leaving != content.leaving.end() && leaving->second == number) {
    content.leaving.erase(leaving);
  }
  content.waiting.erase(number);
  content.for_head.erase(number);
  settle(wish.what, now);
  tidy(wish.what);
}

Distribution::Number Distribution::offer(const std::string& what, const Giver& giver, Time now,
                                         std::function<void()> dismiss) {
  const Number number = ++last_;
  Content& content = contents_[what];
  if (content.is_idle() && content.offers.size() >= limits_.idle) {
    dismiss();
    return number;
  }
  content.offers[number] = {giver, std::move(dismiss), 0, now};
  offered_[number] = what;
  const auto leaving = content.leaving.find(giver.node);
  if (leaving != content.leaving.end()) {
    leave(leaving->second, now);
  } else {
    settle(what, now);
  }
  return number;
}

void Distribution::withdraw(Number number) {
  const auto found = offered_.find(number);
  if (found == offered_.end()) return;
  const std::string what = found->second;
  contents_[what].offers.erase(number);
  offered_.erase(found);
  tidy(what);
}

void Distribution::look(Time now) {
  while (!leaving_.empty() && leaving_.front().first + limits_.about_to_give <= now) {
    const Number number = leaving_.front().second;
    leaving_.pop_front();
    leave(number, now);
  }
  while (!counting_.empty() && counting_.begin()->first <= now) {
    const Number number = counting_.begin()->second;
    Wish& wish = wishes_.at(number);
    uncount(number, wish, now);
    settle(wish.what, now);
  }
  for (auto& [what, content] : contents_) {
    for (auto at = content.offers.begin(); at != content.offers.end();) {
      const auto each = at++;
      const bool unused = each->second.readers == 0 && each->second.last + limits_.kept <= now;
      if (unused && content.is_idle()) dismiss(content, each);
    }
  }
  std::erase_if(contents_, [](const auto& each) {
    return each.second.is_idle() && each.second.readers == 0 && each.second.offers.empty();
  });
}

std::optional<Distribution::Time> Distribution::next_look() const {
  std::optional<Time> next;
  const auto at = [&next](Time time) { next = next ? std::min(*next, time) : time; };
  if (!leaving_.empty()) at(leaving_.front().first + limits_.about_to_give);
  if (!counting_.empty()) at(counting_.begin()->first);
  for (const auto& [what, content] : contents_) {
    if (!content.is_idle()) continue;
    for (const auto& [number, offer] : content.offers) {
      if (offer.readers == 0) at(offer.last + limits_.kept);
    }
  }
  return next;
}

// Sends those that wait to whoever may give to one more.
void Distribution::settle(const std::string& what, Time now) {
  Content& content = contents_[what];
  while (!content.for_head.empty() && content.readers < limits_.readers) {
    begin(content, *content.for_head.begin(), 0, now);
  }
  while (!content.waiting.empty()) {
    const Number number = *content.waiting.begin();
    Number giver = 0;
    const bool found = least_busy(content, wishes_.at(number).node, giver) != nullptr;
    if (!found && content.readers >= limits_.readers) return;
    begin(content, number, giver, now);
  }
}

Distribution::Offer* Distribution::least_busy(Content& content, const NodeId& reader,
                                              Number& number) {
  Offer* best = nullptr;
  for (auto& [each, offer] : content.offers) {
    if (offer.readers >= limits_.readers || offer.giver.node == reader) continue;
    if (best != nullptr && offer.readers >= best->readers) continue;
    best = &offer;
    number = each;
    if (offer.readers == 0) break;
  }
  return best;
}

void Distribution::begin(Content& content, Number number, Number giver, Time now) {
  content.waiting.erase(number);
  content.for_head.erase(number);
  Wish& wish = wishes_.at(number);
  wish.giver = giver;
  wish.counted = now + limits_.counted + std::chrono::seconds(wish.bytes / limits_.slow);
  counting_.emplace(*wish.counted, number);
  std::optional<Giver> from;
  if (giver == 0) {
    ++content.readers;
  } else {
    Offer& offer = content.offers.at(giver);
    ++offer.readers;
    offer.last = now;
    from = offer.giver;
  }
  std::exchange(wish.decided, nullptr)(from);
}

void Distribution::uncount(Number number, Wish& wish, Time now) {
  if (!wish.counted) return;
  counting_.erase({*wish.counted, number});
  wish.counted.reset();
  Content& content = contents_[wish.what];
  if (wish.giver == 0) {
    --content.readers;
  } else if (const auto offer = content.offers.find(wish.giver); offer != content.offers.end()) {
    --offer->second.readers;
    offer->second.last = now;
  }
}

void Distribution::dismiss(Content& content, std::map<Number, Offer>::iterator offer) {
  const std::function<void()> say = std::move(offer->second.dismiss);
  offered_.erase(offer->first);
  content.offers.erase(offer);
  say();
}

void Distribution::tidy(const std::string& what) {
  const auto found = contents_.find(what);
  if (found == contents_.end()) return;
  const Content& content = found->second;
  if (content.is_idle() && content.readers == 0 && content.offers.empty()) contents_.erase(found);
}

}  // namespace dtrain::head
