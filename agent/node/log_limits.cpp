#include "agent/node/log_limits.hpp"

#include <boost/asio/post.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds kPeriod{500};

}  // namespace

struct LogLimits::Look {
  struct One {
    Key key;
    paths::AttemptRoot root;
    std::optional<Rule> rule;
    std::optional<Taken> taken;
    bool last = false;
    // Found:
    bool released = false;
    std::string error;
  };
  std::vector<One> all;
  std::string trouble;  // why something could not be looked at

  void run() {
    for (One& one : all) {
      try {
        look_at(one);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
    }
  }

  static void look_at(One& one) {
    const bool first = !one.rule;
    if (first) {
      const std::optional<std::string> text = read_file_if_there(one.root.spec());
      if (!text) return;  // it is being written
      const wire::AttemptSpec spec =
          wire::attempt_spec_from_json(wire::parse_json(*text, one.root.spec().string()));
      one.rule = {spec.log_limit, spec.first_rank, spec.nproc};
    }
    if (one.rule->limit == 0) return;
    for (int i = 0; i < one.rule->nproc; ++i) {
      const int rank = one.rule->first_rank + i;
      for (const fs::path& log : {one.root.out(rank), one.root.err(rank)}) {
        if (first && released_of(log) > 0) one.released = true;
        const Release done = hold_to_limit(log, one.rule->limit, safe(one, log));
        if (done.what == Release::What::some) one.released = true;
        if (done.what == Release::What::impossible) one.error = done.why;
      }
    }
  }

  static std::uint64_t safe(const One& one, const fs::path& log) {
    if (!one.taken || one.last) return UINT64_MAX;
    const auto found = one.taken->find(log.filename().string());
    return found == one.taken->end() ? 0 : found->second;
  }
};

LogLimits::LogLimits(asio::any_io_executor executor, paths::NodeRoot root, Hooks hooks)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      hooks_(std::move(hooks)),
      timer_(executor_) {}

LogLimits::~LogLimits() {
  alive_.reset();
}

void LogLimits::head_joined() {
  joined_ = true;
  for (auto& [key, attempt] : attempts_) attempt.said = false;
  wake();
}

void LogLimits::follow(const Key& key) {
  attempts_.try_emplace(key);
  wake();
}

void LogLimits::end(const Key& key, bool whole) {
  const auto found = attempts_.find(key);
  if (found == attempts_.end() || found->second.ended) return;
  found->second.ended = true;
  if (!whole) attempts_.erase(found);
}

void LogLimits::forget(const JobId& job) {
  std::erase_if(attempts_, [&](const auto& entry) { return entry.first.first == job; });
}

void LogLimits::wake() {
  if (!joined_ || looking_ || attempts_.empty()) return;
  timer_.expires_after(kPeriod);
  timer_.async_wait([this, guard = std::weak_ptr<int>(alive_)](boost::system::error_code stopped) {
    if (!stopped && guard.lock()) look();
  });
}

void LogLimits::look() {
  if (looking_ || attempts_.empty()) return;
  looking_ = true;
  const auto look = std::make_shared<Look>();
  for (const auto& [key, attempt] : attempts_) {
    Look::One one{key, paths::attempt(root_, key.first, key.second), attempt.rule, {}};
    one.taken = hooks_.taken(key);
    one.last = attempt.ended;
    look->all.push_back(std::move(one));
  }
  worker_.add([this, look, executor = executor_, guard = std::weak_ptr<int>(alive_)] {
    look->run();
    asio::post(executor, [this, look, guard] {
      if (guard.lock()) looked(*look);
    });
  });
}

void LogLimits::looked(const Look& look) {
  looking_ = false;
  if (look.trouble.empty()) {
    trouble_said_ = false;
  } else if (!std::exchange(trouble_said_, true)) {
    log::warn("logs cannot be held to their limit; trying again", {{"why", look.trouble}});
  }
  for (const Look::One& one : look.all) {
    const auto found = attempts_.find(one.key);
    if (found == attempts_.end()) continue;
    Attempt& attempt = found->second;
    attempt.rule = one.rule;
    attempt.released = attempt.released || one.released;
    if (!one.error.empty()) attempt.error = one.error;
    if ((attempt.released || !attempt.error.empty()) && !std::exchange(attempt.said, true)) {
      hooks_.say({one.key.first, one.key.second, attempt.error});
    }
    if (one.last || (one.rule && one.rule->limit == 0)) attempts_.erase(found);
  }
  wake();
}

}  // namespace dtrain::node
