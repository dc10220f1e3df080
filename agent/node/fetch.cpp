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

#include "agent/node/dial.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/files/blob_stream.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

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

wire::ContentMessage read_message(const wire::Frame& frame) {
  return wire::content_message_from_json(wire::parse_json(frame.bytes, "a message of content"));
}

void send(const wire::FrameStreamPtr& stream, const wire::ContentMessage& message) {
  stream->send_text(wire::dump(wire::to_json(message)));
}

// One question and the stream that answers it.
asio::awaitable<void> one_round(std::shared_ptr<FetchJob> job, wire::FrameStreamPtr stream,
                                const ContentStore& store, Lack lack, bool zstd) {
  wire::ContentWant want;
  std::map<std::string, std::uint64_t> expected;
  std::uint64_t here = lack.total - std::min(lack.total, lack.missing);
  for (const auto& [sha256, size] : lack.blobs) {
    if (want.blobs.size() == wire::kWantLimit) break;
    const std::uint64_t partial = store.partial(sha256, size);
    here += lack.whole ? partial : 0;
    want.blobs.push_back({sha256, partial});
    expected[sha256] = size;
  }
  send(stream, want);
  BlobReceiver receiver(store, std::move(expected), zstd);
  bool begun = false;
  while (true) {
    const wire::Frame frame = co_await stream->read();
    check_stop(*job);
    if (!frame.text) {
      if (!begun) throw Error(ErrorCode::invalid, "content before it was announced");
      receiver.take(frame.bytes);
      if (lack.whole) job->progress(here + receiver.received(), lack.total);
      continue;
    }
    const wire::ContentMessage message = read_message(frame);
    if (std::holds_alternative<wire::ContentStream>(message)) {
      begun = true;
    } else if (std::holds_alternative<wire::ContentEnd>(message)) {
      receiver.finish();
      co_return;
    } else if (const auto* refused = std::get_if<wire::ContentRefused>(&message)) {
      throw refused->error;
    } else {
      throw Error(ErrorCode::invalid, "an unexpected message of content");
    }
  }
}

// One connection, until nothing is missing or it breaks.
asio::awaitable<void> over_one_connection(std::shared_ptr<FetchJob> job) {
  const ContentStore store(job->root.content());
  const bool zstd = !all_loopback(head_place(job->config));
  const wire::FrameStreamPtr stream = co_await dial_head(job->root, "/v1/node/content");
  // Hung up on however this ends.
  const std::shared_ptr<void> hang_up(nullptr, [stream](void*) { stream->abort(); });
  const wire::ContentMessage hello = wire::ContentHello{job->job, job->attempt, zstd};
  send(stream, hello);
  const wire::ContentMessage answer = read_message(co_await stream->read());
  if (const auto* refused = std::get_if<wire::ContentRefused>(&answer)) throw refused->error;
  if (!std::holds_alternative<wire::ContentGrant>(answer)) {
    throw Error(ErrorCode::invalid, "the head did not answer for content");
  }
  std::size_t before = SIZE_MAX;
  int bad_rounds = 0;
  while (true) {
    Lack lack = lacking(store, job->content);
    if (lack.blobs.empty()) co_return;
    if (lack.whole) check_room(job->root.root, lack.missing + lack.copies + kSpare);
    // Somebody else may be bringing some of it; but not forever.
    bad_rounds = lack.blobs.size() >= before ? bad_rounds + 1 : 0;
    if (bad_rounds > kBadRounds) {
      throw Error(ErrorCode::failed, "content that the head sends does not become whole");
    }
    before = lack.whole ? lack.blobs.size() : SIZE_MAX;
    co_await one_round(job, stream, store, std::move(lack), zstd);
  }
}

// A broken connection is worth another try; the rest will not change by itself.
bool worth_another(const Error& error) {
  return error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
}

}  // namespace

bool content_is_here(const ContentStore& store, const JobContent& content) {
  return lacking(store, content).blobs.empty();
}

asio::awaitable<void> fetch_content(std::shared_ptr<FetchJob> job) {
  const ContentStore store(job->root.content());
  adopt_from_head(*job, store);
  if (content_is_here(store, job->content)) co_return;
  asio::steady_timer timer(co_await asio::this_coro::executor);
  std::chrono::milliseconds pause = kFirstFetchRetry;
  int damaged = 0;
  while (true) {
    std::optional<Error> trouble;
    try {
      co_await over_one_connection(job);
      co_return;
    } catch (const Error& error) {
      trouble = error;
    }
    check_stop(*job);
    const bool again = trouble->code() == ErrorCode::failed && ++damaged < kBadRounds;
    if (!worth_another(*trouble) && !again) throw *trouble;
    log::info("content is fetched again", {{"job", job->job.str()}, {"why", trouble->what()}});
    timer.expires_after(pause);
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    pause = std::min<std::chrono::milliseconds>(pause * 2, kLastFetchRetry);
    check_stop(*job);
  }
}

}  // namespace dtrain::node
