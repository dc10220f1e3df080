#include "agent/node/collector.hpp"

#include <sched.h>

#include <boost/asio/post.hpp>
#include <memory>

#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/collect.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {
namespace {

constexpr std::size_t kSpecLimit = std::size_t{16} << 20;

}  // namespace

Collector::Collector(boost::asio::any_io_executor executor, paths::NodeRoot root,
                     std::function<InUse()> in_use, Send send)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      in_use_(std::move(in_use)),
      send_(std::move(send)) {}

void Collector::message(const wire::BulkMessage& message) {
  const auto* ask = std::get_if<wire::CollectAsk>(&message);
  if (ask == nullptr) return;
  // In this order: what an attempt begins to use from here on is noted by the store itself.
  const WallTime now = std::chrono::system_clock::now();
  worker_.add(
      [this, ask = *ask, in_use = in_use_(), now, guard = std::weak_ptr<int>(alive_)]() mutable {
        const sched_param none{};
        ::sched_setscheduler(0, SCHED_IDLE, &none);
        ask.gathered = now;
        boost::asio::post(executor_, [this, guard, answer = collect(root_, in_use, ask)] {
          if (guard.lock()) send_(answer, {});
        });
      });
}

wire::Collected collect(const paths::NodeRoot& root, const Collector::InUse& in_use,
                        const wire::CollectAsk& ask) {
  std::set<std::string> trees = in_use.trees;
  try {
    for (const auto& [job, number] : in_use.attempts) {
      const auto text = read_file_if_there(paths::attempt(root, job, number).spec(), kSpecLimit);
      if (!text) continue;
      const wire::AttemptSpec spec =
          wire::attempt_spec_from_json(wire::parse_json(*text, "spec.json", kSpecLimit));
      if (!spec.content) continue;
      for (const std::string& tree : spec.content->trees()) trees.insert(tree);
    }
  } catch (const Error& error) {
    wire::Collected failed;
    failed.request = ask.request;
    failed.error = error;
    return failed;
  }
  return wire::collect_store(root.content(), std::move(trees), {}, ask);
}

}  // namespace dtrain::node
