#include "agent/node/fetch.hpp"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "agent/link/content_exchange.hpp"
#include "agent/node/dial.hpp"
#include "agent/node/relay.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr auto kFirstFetchRetry = 50ms;
constexpr auto kLastFetchRetry = 5s;
constexpr int kBadRounds = 3;  // that bring nothing new

// Above what is wanted: the attempt's own files, logs and the like.
constexpr std::uint64_t kSpare = std::uint64_t{16} << 20;

// What is missing now, sum to size. The trees themselves come first: without them nobody knows what
// else is; they are told by `whole` being false.
struct Lack {
  std::map<std::string, std::uint64_t> blobs;
  std::uint64_t total = 0;  // bytes of all that the trees name
  std::uint64_t missing = 0;
  std::uint64_t copies = 0;  // bytes that the workdir's own copy will take
  bool whole = true;
};

Lack lacking(const ContentStore& store, const JobContent& content) {
  Lack lack;
  std::set<std::string> counted;
  for (const std::string& name : content.trees()) {
    if (!store.has(name)) {
      lack.blobs[name] = kContentTextLimit;
      lack.whole = false;
      continue;
    }
    const ContentTree tree = store.tree(name);
    for (const ContentEntry& entry : tree.entries) {
      if (entry.kind == ContentEntry::Kind::file && counted.insert(entry.sha256).second) {
        lack.total += entry.size;
      }
    }
    if (name == content.workdir_tree) lack.copies = total_size(tree);
    for (const MissingBlob& blob : missing_blobs(store, tree)) {
      if (lack.blobs.emplace(blob.sha256, blob.size).second) lack.missing += blob.size;
    }
  }
  return lack;
}

void check_stop(const FetchJob& job) {
  if (job.stop->load()) throw Error(ErrorCode::conflict, "it was given up");
}

// On the head's own machine its store is at hand: what is missing is linked, not sent. Only where
// tests want the network used is it not.
void adopt_from_head(const FetchJob& job, const ContentStore& store) {
  const char* fetch = std::getenv("DTRAIN_CONTENT_FETCH");
  if (job.config.head_file.empty() || (fetch != nullptr && std::string_view(fetch) == "network")) {
    return;
  }
  const paths::HeadRoot head{fs::path(job.config.head_file).parent_path()};
  const ContentStore heads(head.content());
  // The trees say what else there is.
  for (bool more = true; more;) {
    more = false;
    const Lack lack = lacking(store, job.content);
    for (const auto& [sha256, size] : lack.blobs) {
      check_stop(job);
      more = store.adopt(heads, sha256) || more;
    }
    if (lack.whole) return;
  }
}

bool all_loopback(const HeadPlace& place) {
  return std::all_of(place.addresses.begin(), place.addresses.end(),
                     [](const std::string& address) { return address.starts_with("127."); });
}

// By one connection, until nothing is missing or it breaks. True when others may want it.
asio::awaitable<bool> take_content(std::shared_ptr<FetchJob> job, wire::FrameStreamPtr stream,
                                   bool zstd, link::Elsewhere elsewhere) {
  const ContentStore store(job->root.content());
  bool by_turn = false;
  std::size_t before = SIZE_MAX;
  int bad_rounds = 0;
  while (true) {
    Lack lack = lacking(store, job->content);
    if (lack.blobs.empty()) co_return by_turn;
    if (lack.whole) check_room(job->root.root, lack.missing + lack.copies + kSpare);
    // Somebody else may be bringing some of it; but not forever.
    bad_rounds = lack.blobs.size() >= before ? bad_rounds + 1 : 0;
    if (bad_rounds > kBadRounds) {
      throw Error(ErrorCode::failed, "content that is sent does not become whole");
    }
    before = lack.whole ? lack.blobs.size() : SIZE_MAX;
    const link::Progress progress = [job, total = lack.total, missing = lack.missing,
                                     whole = lack.whole](std::uint64_t here) {
      check_stop(*job);
      if (whole) job->progress(total - std::min(total, missing) + here, total);
    };
    const bool came_by_turn =
        co_await link::bring(stream, store, std::move(lack.blobs), zstd, progress, elsewhere);
    by_turn = by_turn || came_by_turn;
  }
}

}  // namespace

bool connection_broke(const Error& error) {
  return error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
}

bool content_is_here(const ContentStore& store, const JobContent& content) {
  return lacking(store, content).blobs.empty();
}

asio::awaitable<void> over_connections(paths::NodeRoot root, std::string path,
                                       std::function<void()> check, Talk talk,
                                       std::function<bool(const Error&)> worth_another) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  std::chrono::milliseconds pause = kFirstFetchRetry;
  int damaged = 0;
  std::string told;
  while (true) {
    std::optional<Error> trouble;
    try {
      const wire::FrameStreamPtr stream = co_await dial_head(root, path, true);
      // Hung up on however this ends.
      const std::shared_ptr<void> hang_up(nullptr, [stream](void*) { stream->abort(); });
      co_await talk(stream);
      co_return;
    } catch (const std::exception& error) {
      trouble = as_error(error);
    }
    check();
    const bool again = trouble->code() == ErrorCode::failed && ++damaged < kBadRounds;
    if (!worth_another(*trouble) && !again) throw *trouble;
    if (told != trouble->what()) {
      log::info("the head is dialled again", {{"for", path}, {"why", trouble->what()}});
      told = trouble->what();
    }
    timer.expires_after(pause);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    pause = std::min<std::chrono::milliseconds>(pause * 2, kLastFetchRetry);
    check();
  }
}

asio::awaitable<bool> fetch_content(std::shared_ptr<FetchJob> job) {
  const ContentStore store(job->root.content());
  adopt_from_head(*job, store);
  if (content_is_here(store, job->content)) co_return false;
  const bool zstd = !all_loopback(head_place(job->config));
  const std::function<void()> check = [job] { check_stop(*job); };
  const Bring bring = [job](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    const link::Elsewhere nowhere_else;
    co_await take_content(job, stream, false, nowhere_else);
  };
  const link::Elsewhere elsewhere = [&](wire::ContentElsewhere giver) {
    return bring_from(job->root, job->config.cluster, std::move(giver), check, bring);
  };
  bool wanted = false;
  const Talk talk = [&](wire::FrameStreamPtr stream) -> asio::awaitable<void> {
    if (job->preparation.empty()) {
      link::say(stream, wire::ContentHello{job->job, job->attempt, zstd, true});
    } else {
      link::say(stream, wire::PreparationHello{job->preparation, zstd, true});
    }
    const wire::ContentMessage answer = co_await link::hear(stream);
    if (!std::holds_alternative<wire::ContentGrant>(answer)) {
      throw Error(ErrorCode::invalid, "the head did not answer for content");
    }
    const bool by_turn = co_await take_content(job, stream, zstd, elsewhere);
    if (by_turn) wanted = co_await is_wanted(stream);
  };
  co_await over_connections(job->root, "/v1/node/content", check, talk, connection_broke);
  co_return wanted;
}

}  // namespace dtrain::node
