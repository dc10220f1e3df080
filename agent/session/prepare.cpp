#include "agent/session/prepare.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "agent/node/config.hpp"
#include "agent/node/facts.hpp"
#include "agent/node/fetch.hpp"
#include "agent/session/host.hpp"
#include "agent/session/probe.hpp"
#include "agent/session/setup.hpp"
#include "agent/session/shell.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/mount_pack.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::session {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr auto kSayEvery = 2s;
constexpr std::int64_t kWaitMs = 5000;
constexpr std::size_t kPreparationLimit = std::size_t{4} << 20;
constexpr std::size_t kNamed = 3;  // files that were left as they are

class Work {
 public:
  Work(const paths::NodeRoot& root, const fs::path& program)
      : root_(root), program_(program), config_(node::read_node_config(root)) {
    const std::string text = read_file(root.preparation(), kPreparationLimit);
    const auto message =
        wire::head_message_from_json(wire::parse_json(text, "the preparation", kPreparationLimit));
    const auto* wanted = std::get_if<wire::PrepareNode>(&message);
    if (wanted == nullptr) throw Error(ErrorCode::invalid, "there is no preparation");
    wanted_ = *wanted;
    const auto again = read_file_if_there(root_.prepared_again());
    if (again && *again != wanted_.preparation.again) return;
    wanted_.preparation.overwrite = false;
    wanted_.preparation.from_start = false;
  }

  int run() {
    std::optional<Error> error;
    try {
      if (fs::exists(root_.prepared()))
        write_file_atomic(root_.prepared(), wire::kPreparedIsChanging);
      clear_unpacked();
      files();
      end_unwanted();
      do_again();
      for (const wire::SetupList& list : wanted_.preparation.lists) setup(list);
      ready();
      write_file_atomic(root_.prepared(), wanted_.key);
    } catch (const std::exception& thrown) {
      Error whole = as_defect(thrown);
      if (!step_.empty()) whole.while_doing(step_ + " on " + config_.node.str());
      error.emplace(whole.code(), wire::preparation_words(whole.what()));
      error->with_hint(wire::preparation_words(whole.hint()));
    }
    print({wanted_.key, step_, wire::preparation_words(join(left_, "; ")), true, error});
    return error ? 1 : 0;
  }

 private:
  void begin(const std::string& step, const std::string& text) {
    step_ = step;
    said_ = {};
    say(text);
  }

  void say(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    if (now - said_ < kSayEvery) return;
    said_ = now;
    print({wanted_.key, step_, wire::preparation_words(text), false, std::nullopt});
  }

  static void print(const wire::Preparing& news) {
    write_all(STDOUT_FILENO, wire::dump(wire::to_json(wire::NodeMessage(news))) + "\n");
  }

  void files() {
    if (wanted_.preparation.mounts.empty()) return;
    begin("files", "fetching");
    const ContentStore store(root_.content());
    const std::string& tree = wanted_.preparation.tree;
    const std::shared_ptr<void> cleared(nullptr, [this](void*) { clear_unpacked(); });
    // Twice: what turns out to be damaged when it is used is fetched anew.
    for (int attempt = 1;; ++attempt) {
      fetch();
      try {
        clear_unpacked();
        const ContentTree mounts = store.tree(tree);
        check_room(root_.root, total_size(mounts));
        unpack_mounts(store, mounts, root_.unpacked());
        break;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::not_found || attempt == 2) throw;
      }
    }
    begin("files", "comparing");
    for (const MountOutcome& mount : bring_to_places().mounts) {
      for (std::string& words : left_in_words(mount, kNamed)) left_.push_back(std::move(words));
    }
  }

  // Also what a process that was killed had begun.
  void clear_unpacked() const {
    std::error_code ignored;
    for (const char* suffix : {"", ".part"}) fs::remove_all(root_.unpacked() += suffix, ignored);
  }

  // Lists that are wanted no more, and still run.
  void end_unwanted() const {
    for (const std::string& list : running_lists(root_)) {
      const auto& wanted = wanted_.preparation.lists;
      const bool stays =
          std::any_of(wanted.begin(), wanted.end(),
                      [&](const wire::SetupList& each) { return each.list == list; });
      if (!stays) cancel_setup(root_, list);
    }
  }

  // Files have come by now. Commands that fail from here on are gone on with once they are mended.
  void do_again() const {
    if (wanted_.preparation.from_start) {
      for (const wire::SetupList& list : wanted_.preparation.lists) forget_setup(root_, list.list);
    }
    write_file_atomic(root_.prepared_again(), wanted_.preparation.again);
  }

  void fetch() {
    auto job = std::make_shared<node::FetchJob>();
    job->root = root_;
    job->config = config_;
    job->preparation = wanted_.key;
    job->content.workdir_tree = wanted_.preparation.tree;
    job->stop = std::make_shared<std::atomic<bool>>(false);
    job->progress = [this](std::uint64_t done, std::uint64_t total) {
      say(human_bytes(done) + " of " + human_bytes(total));
    };
    std::exception_ptr failed;
    bool wanted = false;
    asio::io_context context(1);
    asio::co_spawn(context, node::fetch_content(job),
                   [&](const std::exception_ptr& error, bool others) {
                     failed = error;
                     wanted = others;
                   });
    context.run();
    if (failed) std::rethrow_exception(failed);
    if (wanted) print({wanted_.key, step_, "", false, std::nullopt, true});
  }

  // Both ends of a sync are here, so that it is one: with its records, for the next one and for
  // `down`, and with what was changed here left alone.
  SyncOutcome bring_to_places() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      throw errno_error("cannot make a pair of sockets", errno);
    }
    const UniqueFd here(ends[0]);
    UniqueFd there(ends[1]);
    std::vector<SyncMount> mounts;
    for (const wire::Preparation::Mount& each : wanted_.preparation.mounts) {
      SyncMount mount;
      mount.target = each.target;
      mount.source = root_.unpacked() / each.source;
      mount.overwrite = wanted_.preparation.overwrite;
      mounts.push_back(std::move(mount));
    }
    std::exception_ptr failed;
    std::thread sender([&] {
      try {
        FramedStream stream(there.get(), there.get());
        SendOptions options;
        options.compression = 0;
        send_trees(stream, mounts, options);
      } catch (const std::exception&) {
        failed = std::current_exception();
      }
      ::shutdown(there.get(), SHUT_RDWR);
    });
    const std::shared_ptr<void> joined(nullptr, [&](void*) {
      ::shutdown(here.get(), SHUT_RDWR);
      if (sender.joinable()) sender.join();
    });
    ReceiveOptions options;
    options.home = home_folder();
    options.state = paths::sync_records(options.home, config_.cluster);
    options.name = config_.node.str();
    options.watch = [this](const SyncProgress& progress) { say(to_string(progress.phase)); };
    FramedStream stream(here.get(), here.get());
    SyncOutcome outcome = receive_trees(stream, options);
    sender.join();
    if (failed) std::rethrow_exception(failed);
    return outcome;
  }

  void setup(const wire::SetupList& list) {
    begin("setup", list.list);
    wire::StartSetup start;
    start.list = list.list;
    start.commands = list.commands;
    start.env = environment();
    const bool is_busy = setup_status(root_, list.list).state == wire::SetupState::running;
    if (is_busy && !plan_setup(root_, list.list, list.commands).running) {
      say(list.list + ": ending its earlier commands");
      cancel_setup(root_, list.list);
    }
    wire::SetupStatus status = start_setup(root_, program_, start);
    wire::ReadSetup from{list.list, status.run, 0, kWaitMs};
    while (status.state == wire::SetupState::running) {
      std::string output;
      const wire::SetupOutput read = read_setup(root_, from, -1, output);
      from.offset = read.offset;
      status = read.status;
      const std::vector<std::string> last = last_lines(output, 1);
      if (!last.empty()) say(list.list + ": " + last.front());
    }
    if (status.state != wire::SetupState::succeeded) {
      throw setup_error(status).with_hint("all it printed: dtrain logs --setup " +
                                          config_.node.str());
    }
  }

  void ready() {
    const wire::Preparation& wanted = wanted_.preparation;
    if (!wanted.gpus && wanted.command.empty()) return;
    begin("ready", wanted.command);
    const int gpus = wanted.gpus ? node::gather_facts().gpus : 0;
    if (wanted.gpus && gpus < *wanted.gpus) {
      throw Error(ErrorCode::failed, "it has " + std::to_string(gpus) +
                                         " GPUs, and ready.gpus wants " +
                                         std::to_string(*wanted.gpus));
    }
    if (wanted.command.empty()) return;
    const wire::ProbeResult result =
        probe(root_, home_folder(), {wanted.command, environment(), wanted.limit_ms});
    if (const auto error = wire::probe_error(result, wanted.command, wanted.limit_ms)) {
      throw Error(*error).with_hint(result.tail.empty() ? ""
                                                        : "its last line: " + result.tail.back());
    }
  }

  std::map<std::string, std::string> environment() const {
    return {{"RAY_HEAD_IP", config_.head_addresses.empty() ? "" : config_.head_addresses.front()},
            {"DTRAIN_NODE", config_.node.str()}};
  }

  const paths::NodeRoot& root_;
  const fs::path& program_;
  node::NodeConfig config_;
  wire::PrepareNode wanted_;
  std::string step_;
  std::chrono::steady_clock::time_point said_;
  std::vector<std::string> left_;
};

}  // namespace

int prepare_main(const paths::NodeRoot& root, const fs::path& program) {
  ::signal(SIGPIPE, SIG_IGN);
  ::umask(077);
  const FileLock lock = FileLock::wait(root.preparation_lock());
  return Work(root, program).run();
}

}  // namespace dtrain::session
