#include "agent/supervise/reports.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/supervise/listener.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/failpoint.hpp"
#include "launcher/core/open_files.hpp"
#include "launcher/wire/attempt.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::supervise {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;

constexpr std::size_t kConnectionsMax = 256;               // of one rank that are read, or fewer
constexpr int kBacklogMax = SOMAXCONN + 1;                 // of one rank that wait to be
constexpr std::size_t kAnswersMax = std::size_t{1} << 20;  // bytes that a rank has not read
constexpr std::size_t kWaitingMax = 1024;                  // answers owed on one connection
// Of one connection, before the next: to parse a MiB of long lines takes some 20 ms, on a busy
// machine more than 50.
constexpr int kReadsATurn = 4;
constexpr std::chrono::seconds kWarningEvery{1};

const std::string kOk = "{\"ok\":true}\n";
const std::string kTooLong =
    "the line is longer than " + std::to_string(wire::kReportLimit) + " bytes";
constexpr std::size_t kAckMax = 64;  // bytes of `"ack": true`, with all blanks

// Whether the writer of a line that is dropped waits for an answer: it need be no JSON.
bool asks_for_answer(std::string_view line) {
  constexpr std::string_view key = "\"ack\"";
  const auto skip_blanks = [](std::string_view& text) {
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  };
  for (auto at = line.find(key); at != line.npos; at = line.find(key, at + 1)) {
    std::string_view rest = line.substr(at + key.size());
    skip_blanks(rest);
    if (!rest.starts_with(':')) continue;
    rest.remove_prefix(1);
    skip_blanks(rest);
    if (rest.starts_with("true")) return true;
  }
  return false;
}

}  // namespace

struct Reports::Connection {
  Connection(asio::io_context& io, int rank_of, int fd) : rank(rank_of), socket(io, fd) {}

  // One request's place in the order of answers.
  struct Slot {
    std::uint64_t seq = 0;
    std::string line;  // empty: not known yet
  };

  int rank;
  Descriptor socket;
  std::string in;           // the beginning of a line; of one that is skipped its newest bytes
  bool skipping = false;    // the rest of a line that is too long
  bool asked = false;       // that line, for an answer
  bool reading = false;     // a wait is pending
  bool read_ended = false;  // the rank will say no more here
  bool writing = false;
  bool closed = false;
  std::deque<Slot> slots;
  std::string out;
};

struct Reports::Impl : std::enable_shared_from_this<Reports::Impl> {
  Impl(asio::io_context& context, const Clock& clock_of, Hooks callbacks)
      : io(context), clock(clock_of), hooks(std::move(callbacks)) {}

  struct Rank {
    Rank(asio::io_context& io, const fs::path& path, std::function<void()> come)
        : listener(io, path, std::move(come)) {}

    Listener listener;
    std::vector<std::shared_ptr<Connection>> connections;
    bool limit_told = false;  // that others wait
    std::optional<Monotonic> warned;
    std::uint64_t silent_warnings = 0;  // not said, for there were too many
  };
  // Which connection waits for the answer to an event.
  struct Waiting {
    std::weak_ptr<Connection> connection;
    bool metrics = false;
  };

  asio::io_context& io;
  const Clock& clock;
  Hooks hooks;
  std::map<int, Rank> ranks;
  std::map<std::uint64_t, Waiting> waiting;
  bool paused = false;

  // All ranks together leave half of the descriptors to all else, the node agent's connection too.
  std::size_t most_connections() const {
    return std::clamp<std::size_t>(most_open_files() / 2 / ranks.size(), 1, kConnectionsMax);
  }

  // None is closed that a rank may have written to: who is one too many waits at the listener until
  // another is closed.
  void accept(int rank) {
    Rank& of = ranks.at(rank);
    const std::size_t most = most_connections();
    while (of.connections.size() < most) {
      const auto connection = accept_one(rank);
      if (!connection) return;
      wait_read(connection);
    }
    of.listener.pause(true);
    if (std::exchange(of.limit_told, true)) return;
    hooks.warning(rank, "there are " + std::to_string(of.connections.size()) +
                            " connections for reports: others wait until one is closed");
  }

  // Null: nobody waits, or nobody can be taken.
  std::shared_ptr<Connection> accept_one(int rank) {
    Rank& of = ranks.at(rank);
    auto fd = of.listener.accept();
    if (!fd) return nullptr;
    return of.connections.emplace_back(std::make_shared<Connection>(io, rank, fd->release()));
  }

  void wait_read(const std::shared_ptr<Connection>& which) {
    if (paused || which->closed || which->reading || which->read_ended) return;
    if (which->slots.size() >= kWaitingMax) return;  // goes on when some are answered
    which->reading = true;
    which->socket.async_wait(Descriptor::wait_read,
                             [self = shared_from_this(), which](boost::system::error_code failed) {
                               which->reading = false;
                               if (failed || which->closed) return;
                               if (!self->paused) self->receive(which, kReadsATurn);
                               self->wait_read(which);
                             });
  }

  // Reads until nothing is there, at most `reads` times.
  void receive(const std::shared_ptr<Connection>& which, int reads) {
    std::array<char, 65536> buffer;
    while (!which->closed && !which->read_ended && reads-- > 0) {
      const ssize_t got =
          ::recv(which->socket.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        which->read_ended = true;
        if (which->skipping) {
          skip(which, {}, true);
        } else {
          line(which, std::exchange(which->in, {}));
        }
        close_if_done(which);
        return;
      }
      consume(which, {buffer.data(), static_cast<std::size_t>(got)});
    }
  }

  void consume(const std::shared_ptr<Connection>& which, std::string_view bytes) {
    while (!bytes.empty() && !which->closed) {
      const std::size_t end = bytes.find('\n');
      const std::string_view part = bytes.substr(0, end);
      const bool whole = end != std::string_view::npos;
      bytes.remove_prefix(whole ? end + 1 : bytes.size());
      if (which->skipping) {
        skip(which, part, whole);
      } else if (which->in.size() + part.size() >= wire::kReportLimit) {
        warn(which->rank, "a report was dropped: " + kTooLong);
        skip(which, part, whole);
      } else if (!whole) {
        which->in += part;
      } else if (which->in.empty()) {
        line(which, part);
      } else {
        which->in += part;
        line(which, std::exchange(which->in, {}));
      }
    }
  }

  // More of a line that is too long. Of what was read as many bytes are kept as `"ack": true` may
  // have, should it come in pieces.
  void skip(const std::shared_ptr<Connection>& which, std::string_view part, bool ended) {
    std::string& newest = which->in;
    newest += part;
    which->asked = which->asked || asks_for_answer(newest);
    which->skipping = !ended;
    newest.erase(0, ended ? newest.size() : newest.size() - std::min(newest.size(), kAckMax));
    if (ended && std::exchange(which->asked, false)) refuse(which, kTooLong);
  }

  // The answer to a report that is dropped, in its turn.
  void refuse(const std::shared_ptr<Connection>& which, const std::string& why) {
    which->slots.push_back({0, wire::dump({{"error", why}}) + "\n"});
    flush(which);
  }

  void line(const std::shared_ptr<Connection>& which, std::string_view text) {
    if (text.empty()) return;
    try {
      nlohmann::json body = wire::parse_report(text);
      const bool ack = wire::get_bool(body, "ack", false);
      const bool metrics = wire::get_string(body, "type") == "metrics";
      const auto seq = hooks.report(which->rank, std::move(body));
      if (!ack) return;
      which->slots.push_back({seq.value_or(0), seq ? "" : kOk});
      if (seq) {
        waiting[*seq] = {which, metrics};
      } else {
        flush(which);
      }
    } catch (const Error& error) {
      const std::string why =
          error.message() + (error.hint().empty() ? "" : " (" + error.hint() + ")");
      warn(which->rank, "a report was dropped: " + why);
      if (asks_for_answer(text)) refuse(which, why);
    }
  }

  void warn(int rank, std::string message) {
    Rank& of = ranks.at(rank);
    const Monotonic now = clock.now();
    if (of.warned && now - *of.warned < kWarningEvery) {
      ++of.silent_warnings;
      return;
    }
    of.warned = now;
    if (of.silent_warnings > 0) {
      message += "; and " + std::to_string(std::exchange(of.silent_warnings, 0)) + " more before";
    }
    hooks.warning(rank, std::move(message));
  }

  void answer(std::uint64_t seq, const std::string& text) {
    const auto found = waiting.find(seq);
    if (found == waiting.end()) return;
    const auto connection = found->second.connection.lock();
    waiting.erase(found);
    if (!connection || connection->closed) return;
    for (Connection::Slot& slot : connection->slots) {
      if (slot.seq == seq) slot.line = text;
    }
    failpoint("report.answer.before");
    flush(connection);
    failpoint("report.answer.after");
  }

  // Sends the answers at the front of the order that are known.
  void flush(const std::shared_ptr<Connection>& which) {
    while (!which->slots.empty() && !which->slots.front().line.empty()) {
      which->out += which->slots.front().line;
      which->slots.pop_front();
    }
    send(which);
    wait_read(which);
  }

  void send(const std::shared_ptr<Connection>& which) {
    while (!which->closed && !which->writing && !which->out.empty()) {
      const ssize_t sent = ::send(which->socket.native_handle(), which->out.data(),
                                  which->out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) {
        which->out.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        wait_write(which);
      } else if (errno != EINTR) {
        which->out.clear();  // nobody reads; what is said there still counts
        which->slots.clear();
      }
    }
    if (which->out.size() > kAnswersMax) {
      warn(which->rank, "a connection for reports was closed: its answers are not read");
      close(which);
      return;
    }
    close_if_done(which);
  }

  void wait_write(const std::shared_ptr<Connection>& which) {
    which->writing = true;
    which->socket.async_wait(Descriptor::wait_write,
                             [self = shared_from_this(), which](boost::system::error_code failed) {
                               which->writing = false;
                               if (!failed) self->send(which);
                             });
  }

  // A rank may stop sending and still wait for answers.
  void close_if_done(const std::shared_ptr<Connection>& which) {
    if (which->read_ended && which->slots.empty() && which->out.empty()) close(which);
  }

  void close(const std::shared_ptr<Connection>& which) {
    if (which->closed) return;
    which->closed = true;
    which->socket.close();
    Rank& of = ranks.at(which->rank);
    std::erase(of.connections, which);
    of.listener.pause(paused);
  }
};

Reports::Reports(asio::io_context& io, const Clock& clock, Hooks hooks)
    : impl_(std::make_shared<Impl>(io, clock, std::move(hooks))) {}

Reports::~Reports() {
  for (auto& [rank, of] : impl_->ranks) {
    of.listener.close();
    const auto connections = of.connections;
    for (const auto& connection : connections) impl_->close(connection);
  }
}

void Reports::listen(int rank, const fs::path& path) {
  const auto made = impl_->ranks.try_emplace(rank, impl_->io, path,
                                             [impl = impl_.get(), rank] { impl->accept(rank); });
  made.first->second.listener.pause(impl_->paused);
}

void Reports::set_paused(bool paused) {
  if (std::exchange(impl_->paused, paused) == paused) return;
  for (auto& [rank, of] : impl_->ranks) {
    of.listener.pause(paused);
    if (paused) continue;
    for (const auto& connection : of.connections) impl_->wait_read(connection);
  }
}

void Reports::drain(int rank) {
  const auto connections = impl_->ranks.at(rank).connections;
  // A socket's buffer holds a few hundred KiB; a grandchild that goes on writing must not keep us.
  for (const auto& connection : connections) impl_->receive(connection, 64);
  // However many there are: nobody is left who would close one.
  for (int waiting = 0; waiting < kBacklogMax; ++waiting) {
    const auto connection = impl_->accept_one(rank);
    if (!connection) break;
    impl_->receive(connection, 64);
    impl_->wait_read(connection);
  }
  Impl::Rank& of = impl_->ranks.at(rank);
  if (of.silent_warnings > 0) {
    impl_->hooks.warning(
        rank, std::to_string(std::exchange(of.silent_warnings, 0)) + " more reports were dropped");
  }
}

void Reports::answer(std::uint64_t seq, const nlohmann::json& line) {
  impl_->answer(seq, wire::dump(line) + "\n");
}

void Reports::durable(std::uint64_t seq) {
  while (true) {
    const auto found = std::find_if(impl_->waiting.begin(), impl_->waiting.upper_bound(seq),
                                    [](const auto& entry) { return entry.second.metrics; });
    if (found == impl_->waiting.upper_bound(seq)) return;
    impl_->answer(found->first, kOk);
  }
}

void Reports::durable_alone(std::uint64_t seq) {
  const auto found = impl_->waiting.find(seq);
  if (found != impl_->waiting.end() && found->second.metrics) impl_->answer(seq, kOk);
}

void Reports::refuse_all(const std::string& reason) {
  const std::string text = wire::dump({{"error", reason}}) + "\n";
  while (!impl_->waiting.empty()) impl_->answer(impl_->waiting.begin()->first, text);
}

}  // namespace dtrain::supervise
