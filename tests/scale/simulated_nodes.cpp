// Nodes that are not there: what node agents and their supervisors say to a head, for many nodes in
// one process, over real mutual TLS. No rank runs. tests/scale/README.md says how it is used.
//
//   simulated_nodes HEAD_ROOT FIRST COUNT RANKS
//
// The nodes sim-FIRST, … are let in by the head of that root, which is on this machine, and stay
// connected, with RANKS processors each. The command of a job says what its ranks do:
//
//   sim SECONDS [REPORTS] [LINES]
//
// each runs so long and sends REPORTS metrics reports and LINES lines of output a second, spread
// over it (1 and 0). Commands on stdin, one a line, each answered by one line of JSON on stdout:
//
//   wait        answered once all nodes are connected, with both connections
//   cut         drops all connections at once; they come back as agents do
//   kill N      N more nodes lose their power: they never come back
//   figures     what was measured since the last `figures`, and forgets it
//   (the end)   ends
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <random>
#include <sstream>

#include "agent/head/setup.hpp"
#include "agent/node/reconnect.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/wire/frames.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/node.hpp"
#include "tests/support/temporary_folder.hpp"

namespace dtrain::scale {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kDialLimit = 10s;
constexpr int kMasterPort = 29500;
constexpr std::size_t kMostUnacked = 10000;  // of a supervisor: then it keeps reports back

class Latencies {
 public:
  void add(Clock::duration took) {
    all_.push_back(std::chrono::duration<double, std::milli>(took).count());
  }
  nlohmann::json take() {
    std::sort(all_.begin(), all_.end());
    const auto at = [this](double part) {
      return all_.empty()
                 ? 0.0
                 : all_[static_cast<std::size_t>(part * static_cast<double>(all_.size() - 1))];
    };
    nlohmann::json figures = {
        {"count", all_.size()}, {"p50_ms", at(0.5)}, {"p99_ms", at(0.99)}, {"max_ms", at(1)}};
    all_.clear();
    return figures;
  }

 private:
  std::vector<double> all_;
};

struct World {
  asio::io_context context{1};
  head::HeadConfig head;
  int ranks = 8;
  std::mt19937 random{std::random_device{}()};
  std::string machine_boot = random_hex(8);

  int in = 0;            // nodes with both connections
  Latencies heartbeats;  // from one to its answer
  Latencies acks;        // from an event to its acknowledgement
  std::uint64_t events = 0;
  std::uint64_t dials_failed = 0;
};

// What runs of an attempt on a node.
struct Attempt {
  wire::AttemptSpec spec;
  std::uint64_t seq = 0;
  std::deque<std::pair<wire::AttemptEvent, Clock::time_point>> unacked;
  std::optional<std::uint64_t> beats;  // on their way
  bool stopped = false;
  bool ends = false;  // its ranks have
  bool over = false;  // and the head has been told
  std::int64_t seconds = 0;
  double reports = 1;
  double lines = 0;
  struct Output {
    std::string text;
    std::optional<std::size_t> sent;  // absent: the head has not said yet from where
    std::size_t taken = 0;            // what the head has on disk
  };
  std::vector<Output> output;  // of each rank
};

class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(World& world, NodeId id, std::shared_ptr<asio::ssl::context> tls)
      : world_(world), id_(std::move(id)), tls_(std::move(tls)), wait_(world.context) {}

  void begin() {
    asio::co_spawn(
        world_.context, [self = shared_from_this()] { return self->stay_connected(); },
        asio::detached);
  }

  void cut() {
    if (control_) control_->abort();
    if (bulk_) bulk_->abort();
  }

  void kill() {
    dead_ = true;
    for (auto& [key, attempt] : attempts_) attempt->over = true;
    cut();
    wait_.cancel();
  }
  bool dead() const { return dead_; }
  const std::string& name() const { return id_.str(); }

 private:
  using Key = std::pair<JobId, int>;
  using AttemptPtr = std::shared_ptr<Attempt>;

  asio::awaitable<void> sleep(Clock::duration time) {
    asio::steady_timer timer(world_.context, time);
    co_await timer.async_wait(asio::use_awaitable);
  }

  asio::awaitable<wire::FrameStreamPtr> dial(std::string path) {
    wire::FrameStreamPtr stream = co_await wire::dial_tls(
        "127.0.0.1", static_cast<std::uint16_t>(world_.head.port), tls_, wire::PeerName::Role::head,
        world_.head.cluster, std::move(path), kDialLimit);
    co_return stream;
  }

  asio::awaitable<void> stay_connected() {
    node::Reconnect pauses;
    while (!dead_) {
      bool was_in = false;
      try {
        co_await serve(was_in);
      } catch (const std::exception& error) {
        if (!was_in) ++world_.dials_failed;
      }
      if (bulk_) {
        bulk_->abort();
        bulk_.reset();
        --world_.in;
      }
      control_.reset();
      if (dead_) break;
      if (was_in) pauses.begin();
      wait_.expires_after(pauses.next());
      error_code ignored;
      co_await wait_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
  }

  wire::Hello hello() const {
    wire::Hello hello;
    hello.features = wire::kNodeFeatures;
    hello.cluster = world_.head.cluster;
    hello.node = id_;
    hello.agent_version = DTRAIN_VERSION;
    hello.address = "10.0.0.1";
    hello.boot_id = world_.machine_boot + id_.str();
    hello.machine = "simulated " + id_.str();
    hello.root = "/nowhere/" + id_.str();
    hello.log = hello.root + "/log";
    hello.cpus = world_.ranks;
    hello.memory = std::uint64_t{64} << 30;
    for (const auto& [key, attempt] : attempts_) hello.attempts.push_back(key);
    return hello;
  }

  asio::awaitable<void> serve(bool& was_in) {
    const wire::FrameStreamPtr control = co_await dial("/v1/node/control");
    say(control, hello());
    const wire::HeadMessage answer = read_message(co_await control->read());
    const auto* welcome = std::get_if<wire::Welcome>(&answer);
    if (welcome == nullptr) throw Error(ErrorCode::invalid, "no welcome");
    control_ = control;
    was_in = true;
    for (auto& [key, attempt] : attempts_) send_again(*attempt);
    asio::co_spawn(
        world_.context,
        [self = shared_from_this(), control, every = welcome->heartbeat] {
          return self->beat(control, every);
        },
        asio::detached);
    asio::co_spawn(
        world_.context, [self = shared_from_this(), control] { return self->serve_bulk(control); },
        asio::detached);
    while (true) obey(read_message(co_await control->read()));
  }

  static wire::HeadMessage read_message(const wire::Frame& frame) {
    return wire::head_message_from_json(wire::parse_json(frame.bytes, "the head's message"));
  }

  static void say(const wire::FrameStreamPtr& stream, const wire::NodeMessage& message) {
    stream->send_text(wire::dump(wire::to_json(message)));
  }
  void tell(const wire::NodeMessage& message) {
    if (control_) say(control_, message);
  }

  asio::awaitable<void> beat(wire::FrameStreamPtr control, std::chrono::milliseconds every) {
    // Not all in step.
    co_await sleep(every * (world_.random() % 1000) / 1000);
    while (control->is_open()) {
      beaten_ = Clock::now();
      say(control, wire::Heartbeat{});
      co_await sleep(every);
    }
  }

  asio::awaitable<void> serve_bulk(wire::FrameStreamPtr control) {
    try {
      const wire::FrameStreamPtr bulk = co_await dial("/v1/node/bulk");
      if (control != control_) throw Error(ErrorCode::conflict, "it has come anew meanwhile");
      say_bulk(bulk, wire::BulkHello{id_});
      bulk_ = bulk;
      ++world_.in;
      for (auto& [key, attempt] : attempts_) open_logs(*attempt);
      while (true) {
        const wire::Frame frame = co_await bulk->read();
        const wire::BulkMessage message =
            wire::bulk_message_from_json(wire::parse_json(frame.bytes, "a bulk message"));
        if (wire::carries_bytes(message)) (void)co_await bulk->read();
        if (const auto* from = std::get_if<wire::LogFrom>(&message)) send_output(*from);
        if (const auto* taken = std::get_if<wire::LogTaken>(&message)) {
          note_taken(taken->log, taken->offset);
        }
        if (const auto* refused = std::get_if<wire::LogRefused>(&message)) {
          note_taken(refused->log, std::nullopt);
        }
        if (const auto* ask = std::get_if<wire::DoctorAsk>(&message)) {
          wire::DoctorReport report;
          report.request = ask->request;
          report.received = report.sent = std::chrono::system_clock::now();
          for (const auto& [key, attempt] : attempts_) report.attempts.push_back(key);
          say_bulk(bulk, report);
        }
      }
    } catch (const std::exception&) {
      control->abort();  // both are dialled anew
    }
  }

  static void say_bulk(const wire::FrameStreamPtr& stream, const wire::BulkMessage& message) {
    stream->send_text(wire::dump(wire::to_json(message)));
  }

  void obey(const wire::HeadMessage& message) {
    if (std::holds_alternative<wire::Heartbeat>(message)) {
      if (beaten_) world_.heartbeats.add(Clock::now() - *std::exchange(beaten_, std::nullopt));
    } else if (const auto* stage = std::get_if<wire::Stage>(&message)) {
      tell(wire::Staging{stage->job, stage->attempt, 0, 0, true});
    } else if (const auto* prepare = std::get_if<wire::PrepareAttempt>(&message)) {
      tell(wire::AttemptPrepared{prepare->job, prepare->attempt, std::nullopt});
    } else if (const auto* open = std::get_if<wire::OpenPair>(&message)) {
      tell(wire::PairOpened{open->test, kMasterPort, std::nullopt});
    } else if (const auto* pairs = std::get_if<wire::DialPairs>(&message)) {
      tell(wire::PairResult{pairs->test, {}});
    } else if (const auto* start = std::get_if<wire::StartAttempt>(&message)) {
      begin_attempt(start->spec);
    } else if (const auto* command = std::get_if<wire::ToSupervisor>(&message)) {
      const auto found = attempts_.find({command->job, command->attempt});
      if (found != attempts_.end()) supervise(found->second, command->command);
    } else if (const auto* forget = std::get_if<wire::ForgetJob>(&message)) {
      std::erase_if(attempts_, [&](const auto& each) { return each.first.first == forget->job; });
    }
  }

  void begin_attempt(const wire::AttemptSpec& spec) {
    const auto attempt = std::make_shared<Attempt>();
    if (!attempts_.emplace(Key{spec.job, spec.attempt}, attempt).second) return;
    attempt->spec = spec;
    const auto word = [&](std::size_t at, double otherwise) {
      return spec.command.size() > at ? std::atof(spec.command[at].c_str()) : otherwise;
    };
    attempt->seconds = static_cast<std::int64_t>(word(1, 1));
    attempt->reports = word(2, 1);
    attempt->lines = word(3, 0);
    attempt->output.resize(static_cast<std::size_t>(spec.nproc));
    asio::co_spawn(
        world_.context, [self = shared_from_this(), attempt] { return self->run(attempt); },
        asio::detached);
  }

  void emit(Attempt& attempt, wire::AttemptEventBody body) {
    attempt.unacked.push_back({{++attempt.seq, std::move(body)}, Clock::now()});
    ++world_.events;
    tell(
        wire::FromSupervisor{attempt.spec.job, attempt.spec.attempt, attempt.unacked.back().first});
  }

  void send_again(Attempt& attempt) {
    for (auto& [event, since] : attempt.unacked) {
      tell(wire::FromSupervisor{attempt.spec.job, attempt.spec.attempt, event});
    }
  }

  // By value: the last acknowledgement lets go of it.
  void supervise(AttemptPtr attempt, const wire::AttemptCommand& command) {  // NOLINT
    std::optional<std::uint64_t> heard;
    if (const auto* ack = std::get_if<wire::EventAck>(&command)) {
      const auto now = Clock::now();
      while (!attempt->unacked.empty() && attempt->unacked.front().first.seq <= ack->seq) {
        world_.acks.add(now - attempt->unacked.front().second);
        attempt->unacked.pop_front();
      }
      heard = ack->seq;
      if (attempt->over && attempt->unacked.empty()) {
        attempts_.erase({attempt->spec.job, attempt->spec.attempt});
      }
    } else if (const auto* beats = std::get_if<wire::EventHeard>(&command)) {
      heard = beats->seq;
      std::erase_if(attempt->unacked,
                    [&](const auto& each) { return each.first.seq == beats->seq; });
    } else if (std::holds_alternative<wire::StopRanks>(command)) {
      attempt->stopped = true;
    }
    if (heard && attempt->beats && *attempt->beats <= *heard) attempt->beats.reset();
  }

  wire::LogName log_of(const Attempt& attempt, int local) const {
    return {attempt.spec.job, attempt.spec.attempt,
            std::to_string(attempt.spec.first_rank + local) + ".out"};
  }

  void open_logs(Attempt& attempt) {
    if (!bulk_) return;
    for (int i = 0; i < attempt.spec.nproc; ++i) {
      attempt.output[static_cast<std::size_t>(i)].sent.reset();
      say_bulk(bulk_, wire::LogOpen{log_of(attempt, i)});
    }
  }

  static Attempt::Output& output_of(Attempt& attempt, const wire::LogName& log) {
    const int local = std::atoi(log.file.c_str()) - attempt.spec.first_rank;
    return attempt.output.at(static_cast<std::size_t>(local));
  }

  void send_output(const wire::LogFrom& from) {
    const auto found = attempts_.find({from.log.job, from.log.attempt});
    if (found == attempts_.end()) return;
    Attempt::Output& output = output_of(*found->second, from.log);
    output.sent = output.taken = from.offset;
    send_rest(from.log, output);
    finish_behind_logs(*found->second);
  }

  // `offset` absent: no more of it is wanted.
  void note_taken(const wire::LogName& log, std::optional<std::uint64_t> offset) {
    const auto found = attempts_.find({log.job, log.attempt});
    if (found == attempts_.end()) return;
    Attempt::Output& output = output_of(*found->second, log);
    output.taken = offset.value_or(output.text.size());
    finish_behind_logs(*found->second);
  }

  void send_rest(const wire::LogName& log, Attempt::Output& output) {
    if (!bulk_ || !output.sent || *output.sent >= output.text.size()) return;
    const std::string bytes = output.text.substr(*output.sent);
    say_bulk(bulk_, wire::LogData{log, *output.sent, bytes.size()});
    bulk_->send({false, bytes});
    output.sent = output.text.size();
  }

  void write_lines(Attempt& attempt, int local, std::uint64_t first, std::uint64_t count) {
    Attempt::Output& output = attempt.output[static_cast<std::size_t>(local)];
    for (std::uint64_t i = first; i < first + count; ++i) {
      output.text += "rank " + std::to_string(attempt.spec.first_rank + local) + " line " +
                     std::to_string(i) + "\n";
    }
    send_rest(log_of(attempt, local), output);
  }

  // A second of each rank after the other, until their time is over.
  asio::awaitable<void> run(AttemptPtr attempt) {
    const auto self = shared_from_this();
    const wire::AttemptSpec& spec = attempt->spec;
    if (spec.node_rank == 0 && spec.master_port == 0)
      emit(*attempt, wire::MasterReady{kMasterPort});
    wire::RanksStarted started;
    started.time = std::chrono::system_clock::now();
    for (int i = 0; i < spec.nproc; ++i) started.ranks.push_back({spec.first_rank + i, 1000 + i});
    emit(*attempt, started);
    open_logs(*attempt);
    std::int64_t step = 0;
    double reports = 0;
    double lines = 0;
    std::uint64_t line = 0;
    co_await sleep(std::chrono::milliseconds(world_.random() % 1000));
    while (!attempt->stopped && !attempt->over && step < attempt->seconds) {
      ++step;
      for (reports += attempt->reports; reports >= 1; --reports) {
        for (int i = 0; i < spec.nproc && attempt->unacked.size() < kMostUnacked; ++i) {
          emit(*attempt,
               wire::RankReport{spec.first_rank + i,
                                {{"type", "metrics"},
                                 {"step", step},
                                 {"metrics", {{"loss", 1.0 / static_cast<double>(step)}}}}});
        }
      }
      lines += attempt->lines;
      const auto whole = static_cast<std::uint64_t>(lines);
      lines -= static_cast<double>(whole);
      for (int i = 0; whole > 0 && i < spec.nproc; ++i) write_lines(*attempt, i, line, whole);
      line += whole;
      if (spec.beats && !attempt->beats) {
        wire::RankBeats beats;
        for (int i = 0; i < spec.nproc; ++i) {
          wire::RankBeat& beat = beats.beats.emplace_back();
          beat.rank = spec.first_rank + i;
          beat.step = step;
          beat.phase = "compute";
          wire::RankBeat::Collective call;
          call.sequence = static_cast<std::uint64_t>(step);
          call.name = "all_reduce";
          call.bytes = 1 << 20;
          beat.collective = std::move(call);
        }
        attempt->beats = attempt->seq + 1;
        emit(*attempt, std::move(beats));
      }
      co_await sleep(1s);
    }
    if (dead_) co_return;
    for (int i = 0; i < spec.nproc; ++i) {
      wire::RankExited exited;
      exited.rank = spec.first_rank + i;
      exited.exit = attempt->stopped ? ProcessExit{0, SIGTERM} : ProcessExit{0, 0};
      exited.stopped = attempt->stopped;
      exited.time = std::chrono::system_clock::now();
      emit(*attempt, exited);
    }
    attempt->ends = true;
    finish_behind_logs(*attempt);
  }

  // As the real one: who follows the logs until the end sees all of them.
  void finish_behind_logs(Attempt& attempt) {
    if (!attempt.ends || attempt.over || dead_) return;
    for (const Attempt::Output& each : attempt.output) {
      if (each.taken < each.text.size()) return;
    }
    wire::NodeFinished finished;
    finished.outcome = attempt.stopped ? wire::NodeFinished::Outcome::stopped
                                       : wire::NodeFinished::Outcome::succeeded;
    if (attempt.stopped) finished.reason = "stopped";
    attempt.over = true;
    emit(attempt, finished);
  }

  World& world_;
  const NodeId id_;
  const std::shared_ptr<asio::ssl::context> tls_;
  asio::steady_timer wait_;
  wire::FrameStreamPtr control_;
  wire::FrameStreamPtr bulk_;
  std::optional<Clock::time_point> beaten_;
  std::map<Key, AttemptPtr> attempts_;
  bool dead_ = false;
};

double processor_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class Simulation {
 public:
  Simulation(paths::HeadRoot root, int first, int count, int ranks) : input_(world_.context) {
    world_.head = head::read_head_config(root);
    world_.ranks = ranks;
    const wire::CertifiedKey ca{read_file(root.ca() / "key.pem"),
                                read_file(root.ca() / "cert.pem")};
    const auto now = std::chrono::system_clock::now();
    for (int i = first; i < first + count; ++i) {
      const NodeId id("sim-" + std::to_string(i));
      const wire::PeerName name{world_.head.cluster, wire::PeerName::Role::node, id};
      const std::string key = wire::make_key();
      const fs::path identity = identities_.path() / id.str();
      wire::save_identity(identity, key,
                          wire::sign_request(ca, wire::make_request(key, name), name, now),
                          ca.certificate_pem);
      // As let_in() does, but for the disk's time.
      write_file(root.nodes() / id.str());
      nodes_.push_back(std::make_shared<Node>(
          world_, id, wire::tls_context(identity, wire::PeerName::Role::node)));
    }
  }

  void run() {
    for (const auto& node : nodes_) node->begin();
    input_.assign(::dup(STDIN_FILENO));
    asio::co_spawn(
        world_.context, [this] { return listen(); },
        [](const std::exception_ptr& failed) {
          if (failed) std::rethrow_exception(failed);
        });
    world_.context.run();
  }

 private:
  static void write_file(const fs::path& path) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
    if (!file) throw Error(ErrorCode::io, "cannot write " + path.string());
  }

  static void answer(const nlohmann::json& json) { std::cout << json.dump() << std::endl; }

  asio::awaitable<void> listen() {
    std::string text;
    while (true) {
      error_code failed;
      const std::size_t size =
          co_await asio::async_read_until(input_, asio::dynamic_buffer(text), '\n',
                                          asio::redirect_error(asio::use_awaitable, failed));
      if (failed) break;
      std::istringstream words(text.substr(0, size));
      text.erase(0, size);
      std::string command;
      words >> command;
      if (command == "wait") {
        co_await wait();
      } else if (command == "cut") {
        for (const auto& node : nodes_) node->cut();
        answer({{"cut", nodes_.size()}});
      } else if (command == "kill") {
        std::size_t count = 0;
        words >> count;
        kill(count);
      } else if (command == "figures") {
        answer({{"connected", world_.in},
                {"heartbeats", world_.heartbeats.take()},
                {"acks", world_.acks.take()},
                {"events", std::exchange(world_.events, 0)},
                {"dials_failed", std::exchange(world_.dials_failed, 0)},
                {"processor_s", processor_seconds()}});
      } else {
        answer({{"error", "no command: " + command}});
      }
    }
    world_.context.stop();
  }

  asio::awaitable<void> wait() {
    const auto begin = Clock::now();
    asio::steady_timer timer(world_.context);
    const auto wanted =
        std::count_if(nodes_.begin(), nodes_.end(), [](const auto& node) { return !node->dead(); });
    while (world_.in < wanted) {
      timer.expires_after(5ms);
      co_await timer.async_wait(asio::use_awaitable);
    }
    answer({{"connected", world_.in},
            {"s", std::chrono::duration<double>(Clock::now() - begin).count()}});
  }

  void kill(std::size_t count) {
    nlohmann::json names = nlohmann::json::array();
    for (const auto& node : nodes_) {
      if (names.size() == count) break;
      if (node->dead()) continue;
      node->kill();
      names.push_back(node->name());
    }
    answer({{"killed", names}});
  }

  World world_;
  testing::TemporaryFolder identities_;
  std::vector<std::shared_ptr<Node>> nodes_;
  asio::posix::stream_descriptor input_;
};

}  // namespace
}  // namespace dtrain::scale

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: simulated_nodes HEAD_ROOT FIRST COUNT RANKS\n");
    return 2;
  }
  try {
    dtrain::scale::Simulation simulation({argv[1]}, std::atoi(argv[2]), std::atoi(argv[3]),
                                         std::atoi(argv[4]));
    simulation.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simulated_nodes: %s\n", error.what());
    return 1;
  }
  return 0;
}
