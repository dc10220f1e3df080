#include "agent/node/staging.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <chrono>
#include <iterator>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/node/fetch.hpp"
#include "agent/supervise/setup_mark.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/files/store.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

constexpr auto kSayEvery = 300ms;

// Attempt N's of "workdir-N" and of "workdir-N.part"; absent for any other name.
std::optional<int> workdir_number(const std::string& name) {
  constexpr std::string_view kPrefix = "workdir-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* const begin = name.data() + kPrefix.size();
  const char* const end = name.data() + name.size();
  int number = 0;
  const auto [rest, failed] = std::from_chars(begin, end, number);
  const std::string_view tail(rest, static_cast<std::size_t>(end - rest));
  if (failed != std::errc() || number < 1 || !(tail.empty() || tail == ".part")) {
    return std::nullopt;
  }
  return number;
}

// Those of attempts before `attempt` go, but for the newest: it failed, and can be looked at until
// the next one fails.
void clear_old_workdirs(const fs::path& job, int attempt) {
  std::map<int, std::vector<fs::path>> old;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(job, none)) {
    const std::string name = entry.path().filename().string();
    const auto number = workdir_number(name);
    if (number && *number < attempt) old[*number].push_back(entry.path());
  }
  if (!old.empty()) old.erase(std::prev(old.end()));
  for (const auto& [number, folders] : old) {
    for (const fs::path& folder : folders) {
      try {
        remove_tree(folder);
      } catch (const Error& error) {
        log::warn("an old workdir stays", {{"why", error.what()}});
      }
    }
  }
}

}  // namespace

// One attempt's bringing. Its thread touches what stands above the line; the rest is the
// executor's.
struct Staging::Work : std::enable_shared_from_this<Staging::Work> {
  explicit Work(Relay& giver) : relay(giver) {}

  Relay& relay;
  Key key;
  JobContent content;
  paths::NodeRoot root;
  NodeConfig config;
  std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  std::unique_ptr<asio::io_context> context = std::make_unique<asio::io_context>(1);

  // ----
  std::thread thread;
  bool running = false;  // until its thread is joined
  std::optional<Error> failure;
  bool done = false;
  bool asked = false;  // the head wants to hear of it
  std::vector<std::function<void()>> then;

  // On its thread.
  void run() {
    const ContentStore store(root.content());
    // Twice: what turns out to be damaged when it is used is fetched anew.
    for (int attempt = 1;; ++attempt) {
      fetch(store);
      try {
        put_in_place(store);
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::not_found || attempt == 2) throw;
        log::warn("content was damaged and is fetched again", {{"why", error.what()}});
      }
    }
  }

  void fetch(const ContentStore& store) {
    if (content_is_here(store, content)) return;
    auto job = std::make_shared<FetchJob>();
    job->root = root;
    job->config = config;
    job->job = key.first;
    job->attempt = key.second;
    job->content = content;
    job->stop = stop;
    job->progress = progress;
    std::exception_ptr failed;
    bool wanted = false;
    context->restart();
    asio::co_spawn(*context, fetch_content(job), [&](const std::exception_ptr& error, bool others) {
      failed = error;
      wanted = others;
    });
    context->run();
    // Stopped from outside: what was awaited is gone with the context.
    if (stop->load()) throw Error(ErrorCode::conflict, "it was given up");
    if (failed) std::rethrow_exception(failed);
    if (!wanted) return;
    wire::ContentOffer offer;
    offer.job = key.first;
    offer.attempt = key.second;
    relay.offer(offer, content);
  }

  void put_in_place(const ContentStore& store) {
    for (const std::string& tree : {content.bundle_tree, content.profiler_tree}) {
      if (!tree.empty()) make_bundle(store, store.tree(tree), tree, stop.get());
    }
    const fs::path folder = root.workdir(key.first, key.second);
    supervise::hand_on_workdir(root, key.first, key.second);
    std::error_code none;
    if (fs::exists(folder, none)) return;
    make_folders(folder.parent_path());
    clear_old_workdirs(folder.parent_path(), key.second);
    const ContentTree tree =
        content.workdir_tree.empty() ? ContentTree{} : store.tree(content.workdir_tree);
    make_copy(store, tree, folder, stop.get());
  }

  void tell_to_stop() {
    stop->store(true);
    // Not stop(): a context that is about to begin must see it too.
    if (context) asio::post(*context, [this] { context->stop(); });
  }
};

Staging::Staging(asio::any_io_executor executor, paths::NodeRoot root, NodeConfig config,
                 Relay& relay, std::function<void(wire::NodeMessage)> say)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      config_(std::move(config)),
      relay_(relay),
      say_(std::move(say)) {}

Staging::~Staging() {
  for (const auto& [key, work] : works_) stop(work);
  for (const auto& work : ending_) {
    if (work->thread.joinable()) work->thread.join();
  }
}

std::shared_ptr<Staging::Work> Staging::begin(const Key& key, const JobContent& content) {
  auto& found = works_[key];
  // One that failed is tried again when it is asked for again.
  if (found && !(found->done && found->failure)) return found;
  found = std::make_shared<Work>(relay_);
  std::shared_ptr<Work> work = found;
  work->key = key;
  work->content = content;
  work->root = root_;
  work->config = config_;
  auto last = std::make_shared<std::chrono::steady_clock::time_point>();
  work->progress = [this, weak = std::weak_ptr<Work>(work), last, executor = executor_](
                       std::uint64_t done, std::uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now - *last < kSayEvery) return;
    *last = now;
    asio::post(executor, [this, weak, done, total] {
      const auto living = weak.lock();
      if (!living || living->stop->load() || !living->asked || living->done) return;
      say_(wire::Staging{living->key.first, living->key.second, done, total, false});
    });
  };
  once_ended(key.first, [this, weak = std::weak_ptr<Work>(work)] {
    if (const auto living = weak.lock()) start(living);
  });
  return work;
}

void Staging::start(const std::shared_ptr<Work>& work) {
  const auto tell = [this, weak = std::weak_ptr<Work>(work),
                     executor = executor_](const std::optional<Error>& failure) {
    asio::post(executor, [this, weak, failure] {
      if (const auto living = weak.lock()) thread_ended(living, failure);
    });
  };
  work->running = true;
  try {
    work->thread = std::thread([work, tell] {
      std::optional<Error> failure;
      try {
        work->run();
      } catch (const std::exception& error) {
        failure = as_defect(error);
      }
      tell(failure);
    });
  } catch (const std::system_error& error) {
    tell(Error(ErrorCode::exhausted, std::string("no thread for it: ") + error.what()));
  }
}

void Staging::thread_ended(const std::shared_ptr<Work>& work, const std::optional<Error>& failure) {
  if (work->thread.joinable()) work->thread.join();
  work->running = false;
  if (!work->stop->load()) {
    work->failure = failure;
    work->done = true;
    return ended(work);
  }
  std::erase(ending_, work);
  const JobId& job = work->key.first;
  if (is_ending(job)) return;
  const auto waited = waiting_.extract(job);
  if (!waited) return;
  for (const auto& each : waited.mapped()) each();
}

void Staging::stop(const std::shared_ptr<Work>& work) {
  work->tell_to_stop();
  if (work->running) ending_.push_back(work);
}

bool Staging::is_ending(const JobId& job) const {
  return std::any_of(ending_.begin(), ending_.end(),
                     [&](const auto& work) { return work->key.first == job; });
}

void Staging::once_ended(const JobId& job, std::function<void()> then) {
  if (is_ending(job)) {
    waiting_[job].push_back(std::move(then));
  } else {
    then();
  }
}

void Staging::ended(const std::shared_ptr<Work>& work) {
  work->context.reset();  // and its descriptors; that it is done is remembered as long as its job
  const auto& [job, attempt] = work->key;
  std::vector<std::function<void()>> then = std::move(work->then);
  work->then.clear();
  if (work->failure) {
    Error error = *work->failure;
    error.while_doing("bringing its files here");
    log::warn("an attempt's content cannot be had", {{"job", job.str()}, {"why", error.what()}});
    if (work->asked || !then.empty()) say_(wire::StartFailed{job, attempt, error});
    return;
  }
  if (work->asked) say_(wire::Staging{job, attempt, work->content.size, work->content.size, true});
  for (const auto& each : then) each();
}

void Staging::stage(const wire::Stage& wanted) {
  const std::shared_ptr<Work> work = begin({wanted.job, wanted.attempt}, wanted.content);
  work->asked = true;
  if (work->done) ended(work);
}

wire::StartAttempt Staging::placed(const wire::StartAttempt& start) const {
  wire::StartAttempt here = start;
  wire::AttemptSpec& spec = here.spec;
  const JobContent& content = *spec.content;
  spec.workdir = root_.workdir(spec.job, spec.attempt).string();
  if (content.bundle_tree.empty()) return here;
  const fs::path bundle = ContentStore(root_.content()).bundle(content.bundle_tree);
  spec.library_path = (bundle / "lib").string();
  if (!content.program.empty()) spec.command.front() = (bundle / content.program).string();
  return here;
}

void Staging::before_start(const wire::StartAttempt& start,
                           std::function<void(const wire::StartAttempt&)> go) {
  const wire::AttemptSpec& spec = start.spec;
  std::error_code none;
  const bool started = fs::exists(paths::attempt(root_, spec.job, spec.attempt).spec(), none);
  if (!spec.content || started) {
    go(start);  // started: a repeat, which has its files
    return;
  }
  const std::shared_ptr<Work> work = begin({spec.job, spec.attempt}, *spec.content);
  work->then.push_back([this, start, go = std::move(go)] { go(placed(start)); });
  if (work->done) {
    work->asked = false;
    ended(work);
  }
}

std::set<std::string> Staging::trees() const {
  std::set<std::string> trees;
  for (const auto& [key, work] : works_) {
    std::error_code none;
    const paths::AttemptRoot attempt = paths::attempt(root_, key.first, key.second);
    if (fs::exists(attempt.exit(), none)) continue;  // it is over
    for (const std::string& tree : work->content.trees()) trees.insert(tree);
  }
  return trees;
}

void Staging::give_up(const JobId& job, int attempt) {
  const auto found = works_.find({job, attempt});
  if (found == works_.end()) return;
  stop(found->second);
  works_.erase(found);
}

void Staging::forget(const JobId& job, std::function<void()> then) {
  for (auto at = works_.lower_bound({job, 0}); at != works_.end() && at->first.first == job;) {
    stop(at->second);
    at = works_.erase(at);
  }
  once_ended(job, std::move(then));
}

}  // namespace dtrain::node
