#include "agent/node/node.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdlib>
#include <set>
#include <utility>

#include "agent/node/attempts.hpp"
#include "agent/node/checkpoint_transfers.hpp"
#include "agent/node/collector.hpp"
#include "agent/node/config.hpp"
#include "agent/node/departure.hpp"
#include "agent/node/dial.hpp"
#include "agent/node/doctor.hpp"
#include "agent/node/exec.hpp"
#include "agent/node/facts.hpp"
#include "agent/node/forward.hpp"
#include "agent/node/log_limits.hpp"
#include "agent/node/mirror.hpp"
#include "agent/node/pairs.hpp"
#include "agent/node/preparing.hpp"
#include "agent/node/reconnect.hpp"
#include "agent/node/setup_logs.hpp"
#include "agent/node/spot.hpp"
#include "agent/node/stacks.hpp"
#include "agent/node/staging.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/loop.hpp"
#include "launcher/wire/node.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr auto kLateLogs = 10min;  // to bring stacks that were there only after all else
constexpr auto kLookAtCertificate = 1h;
constexpr auto kLookForWhy = 10ms;
constexpr int kLooksForWhy = 20;
constexpr const char* kSpotProvider = "aws";

class Agent {
 public:
  explicit Agent(const NodeOptions& options)
      : root_(options.root),
        agent_(options.agent_binary),
        config_(read_node_config(root_)),
        facts_(gather_facts()),
        mirror_(context_.get_executor(), root_,
                [this](const wire::BulkMessage& message, std::string bytes) {
                  send_bulk(message, std::move(bytes));
                }),
        log_limits_(context_.get_executor(), root_, log_limit_hooks()),
        relay_(root_, config_.cluster),
        transfers_(context_.get_executor(), root_, config_.cluster, relay_,
                   [this](const wire::AttemptPrepared& answer) { tell_head(answer); }),
        pairs_(context_.get_executor(), root_.identity(), config_.cluster,
               [this](const wire::NodeMessage& message) { tell_head(message); }),
        forwards_(context_.get_executor()),
        attempts_(context_.get_executor(), root_, options.agent_binary, attempt_hooks(), {}),
        staging_(context_.get_executor(), root_, config_, relay_,
                 [this](const wire::NodeMessage& message) { tell_head(message); }),
        stacks_(context_.get_executor(), root_,
                [this](const wire::StacksTaken& taken) {
                  // Of an attempt that has ended meanwhile the head had all that there was.
                  const Mirror::Key key{taken.job, taken.attempt};
                  if (!mirror_.follows(key)) mirror_.drain(key, kLateLogs, [](bool) {});
                  tell_head(taken);
                }),
        preparing_(context_.get_executor(), root_, options.agent_binary, relay_,
                   [this](const wire::NodeMessage& message) { tell_head(message); }),
        collector_(
            context_.get_executor(), root_, [this] { return content_in_use(); },
            [this](const wire::BulkMessage& message, const std::string&) {
              send_bulk(message, {});
            }),
        execs_(
            context_.get_executor(),
            [this, agent = options.agent_binary] {
              std::vector<std::string> env = login_environment(root_);
              // So that `dtrain sync` finds its other end here.
              env.push_back("DTRAIN_NODE_AGENT=" + agent);
              const char* home = std::getenv("HOME");
              env.push_back(
                  "DTRAIN_NODE_SYNC=" +
                  paths::sync_records(home == nullptr ? "/" : home, config_.cluster).string());
              return env;
            },
            root_.root.string()),
        doctor_(context_.get_executor(), root_, doctor_hooks()),
        signals_(context_, SIGTERM, SIGINT, SIGCHLD),
        heartbeat_(context_),
        dial_timer_(context_),
        renewal_(context_),
        why_timer_(context_),
        contained_(options.contained),
        departure_(context_.get_executor(), config_.node, departure_hooks()),
        spot_(context_.get_executor(), root_, {},
              [this](const SpotNotice& notice) { taken_back(notice); }) {
    // For tests: nodes of one machine that must not know so of each other.
    if (const char* apart = std::getenv("DTRAIN_TEST_MACHINES");
        apart != nullptr && std::string(apart) == "apart") {
      facts_.machine += " " + config_.node.str();
    }
  }

  int run() {
    attempts_.recover();
    if (contained_) {
      signals_.add(SIGQUIT);
      if (contained_->told != 0) departure_.begin(why_told(contained_->told), contained_->limit);
    }
    wait_for_signal();
    asio::co_spawn(
        context_, [this] { return stay_connected(); },
        [](const std::exception_ptr& failed) {
          if (failed) std::rethrow_exception(failed);
        });
    wire::run_loop(context_);
    log::info("the node agent ends");
    return status_;
  }

 private:
  void wait_for_signal() {
    signals_.async_wait([this](error_code failed, int signal) {
      if (failed) return;
      if (signal == SIGCHLD) {
        execs_.reap();
        reap_orphans(execs_.pids());
        wait_for_signal();
        return;
      }
      if (!contained_) {
        context_.stop();
        return;
      }
      leave_when_told(signal, kLooksForWhy);
      wait_for_signal();
    });
  }

  // Slurm sends its signals to all processes of a step at once: the watch may be about to say why.
  void leave_when_told(int signal, int looks) {
    const bool waits =
        !departure_.under_way() && ::getppid() == parent_ && contained_->why().empty() && looks > 0;
    if (!waits) {
      departure_.begin(why_told(signal), contained_->limit);
      if (signal == SIGQUIT) departure_.hurry();
      return;
    }
    why_timer_.expires_after(kLookForWhy);
    why_timer_.async_wait([this, signal, looks](error_code failed) {
      if (!failed) leave_when_told(signal, looks - 1);
    });
  }

  std::string why_told(int signal) const {
    if (::getppid() != parent_) return "its watch has died";
    const std::string why = contained_->why();
    return why.empty() ? "its agent was told to end (" + signal_name(signal) + ")" : why;
  }

  LogLimits::Hooks log_limit_hooks() {
    LogLimits::Hooks hooks;
    hooks.taken = [this](const Mirror::Key& key) -> std::optional<LogLimits::Taken> {
      if (!mirror_.wanted()) return std::nullopt;
      return mirror_.taken(key);
    };
    hooks.say = [this](const wire::LogsReleased& news) {
      if (head_features_.contains("log_limit")) tell_head(news);
    };
    return hooks;
  }

  Departure::Hooks departure_hooks() {
    Departure::Hooks hooks;
    hooks.stop = [this](const wire::StopRanks& stop) { attempts_.command_all(stop); };
    hooks.tell = [this](const wire::Leaving& leaving) {
      if (head_features_.contains("leave")) {
        tell_head(leaving);
      } else if (leaving.over) {  // of an older head, which will miss us
        status_ = kNotAllTold;
        context_.stop();
      }
    };
    hooks.connected = [this] { return control_ && control_->is_open(); };
    hooks.running = [this] { return attempts_.running(); };
    hooks.unfinished = [this] { return attempts_.unheard(); };
    hooks.redial = [this] {
      reconnect_.begin();
      dial_timer_.cancel();
    };
    hooks.give_up = [this] {
      status_ = kNotAllTold;
      context_.stop();
    };
    return hooks;
  }

  Attempts::Hooks attempt_hooks() {
    Attempts::Hooks hooks;
    hooks.send = [this](const wire::NodeMessage& message) { tell_head(message); };
    hooks.known = [this](const Mirror::Key& key) {
      mirror_.follow(key);
      log_limits_.follow(key);
    };
    hooks.over = [this](const Mirror::Key& key) { log_limits_.end(key, false); };
    hooks.after_logs = [this](const Mirror::Key& key, std::chrono::milliseconds limit,
                              std::function<void(bool)> then) {
      mirror_.drain(key, limit, [this, key, then = std::move(then)](bool whole) {
        log_limits_.end(key, whole && !mirror_.refused(key));
        then(whole);
      });
    };
    hooks.complete = [this](wire::AttemptSpec& spec) { complete(spec); };
    hooks.changed = [this] { departure_.look(); };
    return hooks;
  }

  Doctor::Hooks doctor_hooks() {
    Doctor::Hooks hooks;
    hooks.known = [this] {
      return KnownHere{attempts_.unfinished(), attempts_.running_ones(), execs_.pids()};
    };
    hooks.in_use = [this] { return content_in_use(); };
    hooks.send = [this](const wire::BulkMessage& message) { send_bulk(message, {}); };
    return hooks;
  }

  Collector::InUse content_in_use() {
    Collector::InUse in_use{staging_.trees(), attempts_.unfinished()};
    in_use.trees.merge(preparing_.trees());
    return in_use;
  }

  void taken_back(const SpotNotice& notice) {
    departure_.begin(notice.reason(), notice.left(std::chrono::system_clock::now()));
  }

  // Of an agent that is started again on an instance that is taken back: it joins if there is
  // something that the head must hear, and to leave again.
  asio::awaitable<void> may_stay() {
    bool waited = false;
    while (const std::optional<SpotNotice> notice = co_await spot_.standing()) {
      if (contained_ || attempts_.unheard()) {
        taken_back(*notice);
        break;
      }
      if (!std::exchange(waited, true)) log::warn("does not join", {{"why", notice->reason()}});
      co_await spot_.pause();
    }
  }

  // What this node knows of itself: its interface, unless the user has chosen.
  void complete(wire::AttemptSpec& spec) {
    if (spec.nnodes < 2 || spec.master_addr == "127.0.0.1" || interface_.empty()) return;
    const std::vector<std::string> login = login_environment(root_);
    for (const std::string name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
      const bool chosen = std::any_of(login.begin(), login.end(), [&](const std::string& entry) {
        return entry.starts_with(name + "=");
      });
      if (!chosen) spec.env.emplace(name, interface_);
    }
  }

  void send_bulk(const wire::BulkMessage& message, std::string bytes) {
    if (!bulk_) return;
    bulk_->send_text(wire::dump(wire::to_json(message)));
    if (wire::carries_bytes(message)) bulk_->send({false, std::move(bytes)});
  }

  void tell_head(const wire::NodeMessage& message) {
    if (control_ && control_->is_open()) {
      control_->send_text(wire::dump(wire::to_json(message)));
    }
  }

  asio::awaitable<void> stay_connected() {
    co_await may_stay();
    std::string last_trouble;
    while (true) {
      bool was_in = false;
      std::string trouble;
      try {
        co_await serve(was_in);
      } catch (const std::exception& error) {
        trouble = error.what();
      }
      control_.reset();
      heartbeat_.cancel();
      pairs_.close_all();
      departure_.look();
      // Said once, not at each try.
      if (was_in) {
        reconnect_.begin();
        log::warn("lost the head", {{"reason", trouble}});
        last_trouble.clear();
      } else if (trouble != last_trouble) {
        log::warn("cannot reach the head", {{"reason", trouble}});
        last_trouble = trouble;
      }
      dial_timer_.expires_after(reconnect_.next());
      error_code ignored;
      co_await dial_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<wire::FrameStreamPtr> dial(std::string path) {
    wire::FrameStreamPtr stream = co_await dial_head(root_, std::move(path));
    co_return stream;
  }

  // One connection's life: dial, greet, obey until it ends (an Error says how).
  asio::awaitable<void> serve(bool& was_in) {
    const wire::FrameStreamPtr control = co_await dial("/v1/node/control");
    address_ = config_.address.empty() ? control->local_address() : config_.address;
    interface_ = config_.interface.empty() ? interface_with(address_) : config_.interface;
    control->send_text(wire::dump(wire::to_json(wire::NodeMessage(hello()))));
    const wire::HeadMessage answer = read_head_message(co_await control->read());
    if (const auto* refused = std::get_if<wire::Refused>(&answer)) throw refused->error;
    if (std::holds_alternative<wire::Shutdown>(answer)) {  // it was removed while it was away
      obey(answer);
      co_return;
    }
    const auto* welcome = std::get_if<wire::Welcome>(&answer);
    if (welcome == nullptr) throw Error(ErrorCode::invalid, "the head did not say welcome");
    control_ = control;
    was_in = true;
    head_features_ = {welcome->features.begin(), welcome->features.end()};
    mirror_.enable(welcome->mirror, head_features_.contains("stacks"));
    note_head_time(welcome->sent);
    log::info("joined the head");
    asio::co_spawn(
        context_, [this, control] { return serve_bulk(control); }, asio::detached);
    asio::co_spawn(
        context_, [this, control, every = welcome->heartbeat] { return beat(control, every); },
        asio::detached);
    log_limits_.head_joined();
    attempts_.head_joined();
    departure_.look();
    if (welcome->provider == kSpotProvider) spot_.begin();
    renew_if_due();
    while (true) {
      const wire::Frame frame = co_await control->read();
      obey(read_head_message(frame));
    }
  }

  // An older head says no time: then nothing is to be sent back.
  void note_head_time(std::chrono::nanoseconds sent) {
    echo_ = {};
    if (sent.count() == 0) return;
    echo_.echoed = sent;
    echo_.received = boot_time();
  }

  wire::Heartbeat next_beat() {
    wire::Heartbeat beat = std::exchange(echo_, {});
    beat.sent = boot_time();
    beat.wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
    if (beat.wall_ns < 0 || beat.wall_ns > wire::kMostClockTime) beat.wall_ns = 0;  // not known
    return beat;
  }

  asio::awaitable<void> beat(wire::FrameStreamPtr control, std::chrono::milliseconds every) {
    while (control->is_open() && control == control_) {
      control->send_text(wire::dump(wire::to_json(wire::NodeMessage(next_beat()))));
      heartbeat_.expires_after(every);
      error_code ignored;
      co_await heartbeat_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  asio::awaitable<void> serve_bulk(wire::FrameStreamPtr control) {
    wire::FrameStreamPtr bulk;
    try {
      bulk = co_await dial("/v1/node/bulk");
      if (control_ != control) {  // lost meanwhile
        bulk->abort();
        co_return;
      }
      const wire::BulkMessage hello_there = wire::BulkHello{config_.node};
      bulk->send_text(wire::dump(wire::to_json(hello_there)));
      use_bulk(bulk);
      while (true) {
        const wire::Frame frame = co_await bulk->read();
        const nlohmann::json json = wire::parse_json(frame.bytes, "a bulk message");
        wire::handler_does(wire::get_string(json, "type"));
        const wire::BulkMessage message = wire::bulk_message_from_json(json);
        std::string bytes;
        if (wire::carries_bytes(message)) {
          wire::Frame data = co_await bulk->read();
          bytes = std::move(data.bytes);
        }
        take_bulk(message, std::move(bytes));
      }
    } catch (const std::exception& error) {
      log::debug("the bulk connection ended", {{"reason", error.what()}});
    }
    // Whichever of the two is found to be lost first: who uses this one is told.
    if (bulk && bulk_ == bulk) use_bulk(nullptr);
    // One without the other is of no use: both are dialled anew.
    control->abort();
  }

  void use_bulk(wire::FrameStreamPtr bulk) {
    bulk_ = bulk;
    execs_.use(bulk);
    forwards_.use(bulk);
    mirror_.connected(bulk != nullptr);
  }

  void take_bulk(const wire::BulkMessage& message, std::string bytes) {
    if (std::holds_alternative<wire::LogFrom>(message) ||
        std::holds_alternative<wire::LogTaken>(message) ||
        std::holds_alternative<wire::LogRefused>(message)) {
      mirror_.message(message);
    } else if (const auto* shard = std::get_if<wire::ShardAsk>(&message)) {
      if (head_features_.contains("shards")) {
        transfers_.send(*shard);
      } else {
        const Error old = head_too_old("take a checkpoint");
        log::error(old.what(), {{"path", shard->path}, {"hint", old.hint()}});
      }
    } else if (const auto* setup = std::get_if<wire::SetupAsk>(&message)) {
      send_bulk(read_setup_logs(root_, setup->request), {});
    } else {
      collector_.message(message);
      doctor_.message(message);
      forwards_.message(message, bytes);
      execs_.message(message, std::move(bytes));
    }
  }

  // Half of the certificate's life is over: a new key, for which the head signs.
  void renew_if_due() {
    renewal_.expires_after(kLookAtCertificate);
    renewal_.async_wait([this](error_code stopped) {
      if (!stopped) renew_if_due();
    });
    if (!control_ || !head_features_.contains("renew")) return;
    try {
      const std::string certificate = read_file(root_.identity() / "cert.pem");
      if (!wire::renewal_due(certificate, std::chrono::system_clock::now())) return;
      new_key_ = wire::make_key();
      const wire::PeerName name{config_.cluster, wire::PeerName::Role::node, config_.node};
      tell_head(wire::RenewCertificate{wire::make_request(new_key_, name)});
    } catch (const Error& error) {
      log::warn("the certificate cannot be renewed", {{"why", error.what()}});
    }
  }

  void take_certificate(const wire::NewCertificate& message) {
    if (new_key_.empty()) return;
    try {
      renew_identity(root_, std::exchange(new_key_, {}), message.certificates);
      log::info("the certificate is renewed; the next connection shows it");
    } catch (const Error& error) {
      log::warn("the new certificate cannot be kept", {{"why", error.what()}});
    }
  }

  wire::Hello hello() const {
    wire::Hello hello;
    hello.cluster = config_.cluster;
    hello.node = config_.node;
    hello.agent_version = DTRAIN_VERSION;
    hello.features = wire::kNodeFeatures;
    hello.address = address_;
    hello.interface = interface_;
    hello.interfaces = gather_interfaces();
    hello.boot_id = facts_.boot_id;
    hello.machine = facts_.machine;
    hello.root = root_.root.string();
    hello.log = root_.log().string();
    hello.cpus = facts_.cpus;
    hello.gpus = facts_.gpus;
    hello.memory = facts_.memory;
    hello.attempts = attempts_.unfinished();
    hello.jobs = attempts_.on_disk();
    hello.glibc = facts_.glibc;
    hello.slurm = facts_.slurm;
    hello.leaving = departure_.reason();
    hello.prepared = preparing_.prepared();
    return hello;
  }

  static wire::HeadMessage read_head_message(const wire::Frame& frame) {
    const nlohmann::json json = wire::parse_json(frame.bytes, "the head's message");
    wire::handler_does(wire::get_string(json, "type"));
    return wire::head_message_from_json(json);
  }

  void begin(const wire::StartAttempt& start) {
    if (!departure_.under_way()) return attempts_.start(start);
    tell_head(wire::StartFailed{start.spec.job, start.spec.attempt,
                                Error(ErrorCode::conflict, departure_.what())});
  }

  void obey(const wire::HeadMessage& message) {
    if (const auto* start = std::get_if<wire::StartAttempt>(&message)) {
      staging_.before_start(*start, [this](const wire::StartAttempt& ready) { begin(ready); });
    } else if (const auto* command = std::get_if<wire::ToSupervisor>(&message)) {
      attempts_.command(*command);
    } else if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
      note_head_time(beat->sent);
      attempts_.renew_leases();
    } else if (const auto* preparation = std::get_if<wire::PrepareNode>(&message)) {
      preparing_.begin(*preparation);
    } else if (const auto* stage = std::get_if<wire::Stage>(&message)) {
      staging_.stage(*stage);
    } else if (const auto* stacks = std::get_if<wire::TakeStacks>(&message)) {
      stacks_.take(*stacks);
    } else if (const auto* unstage = std::get_if<wire::Unstage>(&message)) {
      staging_.give_up(unstage->job, unstage->attempt);
    } else if (const auto* forget = std::get_if<wire::ForgetJob>(&message)) {
      staging_.forget(forget->job, [this, job = forget->job] {
        transfers_.forget(job);
        attempts_.forget(job);
        mirror_.forget(job);
        log_limits_.forget(job);
      });
    } else if (const auto* prepare = std::get_if<wire::PrepareAttempt>(&message)) {
      prepare_attempt(*prepare);
    } else if (const auto* open = std::get_if<wire::OpenPair>(&message)) {
      pairs_.open(*open);
    } else if (const auto* dial = std::get_if<wire::DialPairs>(&message)) {
      pairs_.dial(*dial);
    } else if (const auto* close = std::get_if<wire::ClosePair>(&message)) {
      pairs_.close(*close);
    } else if (const auto* certificate = std::get_if<wire::NewCertificate>(&message)) {
      take_certificate(*certificate);
    } else if (const auto* shutdown = std::get_if<wire::Shutdown>(&message)) {
      if (shutdown->remove) leave();
      context_.stop();
    }
  }

  // This agent and its watch are among what goes, whereby a contained watch ends all that runs.
  void leave() {
    log::info("told to leave; what is here of this node goes");
    SpawnOptions options;
    options.argv = {agent_, "leave", "--root", root_.root.string()};
    options.workdir = "/";
    options.new_session = true;
    try {
      if (contained_) return write_file_atomic(root_.removed(), "");
      spawn(options);
    } catch (const Error& error) {
      log::error("what is here of this node stays", {{"why", error.what()}});
      if (contained_) status_ = kLeftFiles;
    }
  }

  void prepare_attempt(const wire::PrepareAttempt& request) {
    if (!request.checkpoint || head_features_.contains("shards")) {
      transfers_.prepare(request);
      return;
    }
    tell_head(
        wire::AttemptPrepared{request.job, request.attempt, head_too_old("send a checkpoint")});
  }

  static Error head_too_old(const std::string& what) {
    return Error(ErrorCode::conflict, "the head's agent is too old to " + what)
        .with_hint("`dtrain up` with this dtrain brings it up to date");
  }

  asio::io_context context_{1};
  paths::NodeRoot root_;
  std::string agent_;  // the file of this program
  NodeConfig config_;
  Facts facts_;
  std::string address_;    // by which it reaches the head, unless node.json says another
  std::string interface_;  // that has it
  std::set<std::string> head_features_;
  std::string new_key_;  // for which a certificate has been asked
  wire::FrameStreamPtr control_;
  wire::FrameStreamPtr bulk_;
  Mirror mirror_;
  LogLimits log_limits_;
  Relay relay_;
  CheckpointTransfers transfers_;
  Pairs pairs_;
  Forwards forwards_;
  Attempts attempts_;
  Staging staging_;
  Stacks stacks_;
  Preparing preparing_;
  Collector collector_;
  Execs execs_;
  Doctor doctor_;
  asio::signal_set signals_;
  asio::steady_timer heartbeat_;
  wire::Heartbeat echo_;  // what the next one sends back
  asio::steady_timer dial_timer_;
  Reconnect reconnect_;
  asio::steady_timer renewal_;
  asio::steady_timer why_timer_;
  std::optional<NodeOptions::Contained> contained_;
  Departure departure_;
  SpotWatch spot_;
  const pid_t parent_ = ::getppid();
  int status_ = 0;
};

}  // namespace

int node_main(const NodeOptions& options) {
  log::open("node", options.root.log().string());
  ::signal(SIGPIPE, SIG_IGN);
  // A second agent stands by until the first ends: so a new watch may start its children beside
  // those that a killed one left.
  auto lock = FileLock::try_lock(options.root.lock());
  if (!lock) {
    log::info("another agent holds this root; waiting for its end");
    lock = FileLock::wait(options.root.lock());
  }
  Agent agent(options);
  return agent.run();
}

}  // namespace dtrain::node
