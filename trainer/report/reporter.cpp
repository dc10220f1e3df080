#include "trainer/report/reporter.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "trainer/core/error.hpp"

namespace dtrain::train {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestLine = 65536;  // with its newline
constexpr std::chrono::milliseconds kLook{100};

std::string line_of(const json& message) {
  return message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

Reporter::Reporter(std::filesystem::path socket) : Reporter(std::move(socket), Options{}) {}

Reporter::Reporter(std::filesystem::path socket, Options options)
    : path_(std::move(socket)), options_(std::move(options)) {
  if (!options_.warn) options_.warn = warn_on_stderr;
}

void Reporter::metrics(std::int64_t step, const Metrics& metrics) {
  send_quietly(
      line_of({{"type", "metrics"}, {"step", step}, {"metrics", metrics_to_json(metrics)}}));
}

bool Reporter::progress_due(std::int64_t step, std::optional<std::int64_t> total) const {
  return (total && step >= *total) || !last_progress_ ||
         options_.now() - *last_progress_ >= options_.progress_interval;
}

void Reporter::progress(const Progress& progress) {
  if (!progress_due(progress.step, progress.total)) return;
  last_progress_ = options_.now();
  json message = {{"type", "progress"}, {"step", progress.step}};
  if (progress.total) message["total"] = *progress.total;
  if (progress.epoch) message["epoch"] = *progress.epoch;
  if (!progress.message.empty()) message["message"] = progress.message;
  if (!progress.metrics.empty()) message["metrics"] = metrics_to_json(progress.metrics);
  send_quietly(line_of(message));
}

void Reporter::heartbeat(const Heartbeat& heartbeat) {
  json report = {{"type", "heartbeat"}, {"step", heartbeat.step}};
  if (!heartbeat.phase.empty()) report["phase"] = heartbeat.phase;
  if (const auto& its = heartbeat.collective) {
    if (its->done) {
      json& collective = report["collective"] = {{"sequence", its->sequence},
                                                 {"name", its->name},
                                                 {"entered", its->entered},
                                                 {"done", *its->done}};
      if (its->bytes > 0) collective["bytes"] = its->bytes;
    } else {
      report["collective"] = its->sequence;
    }
  }
  if (const auto& its = heartbeat.step_times) {
    json& times = report["step_times"] = {{"steps", its->steps}};
    const auto add = [&](const char* key, const std::optional<double>& seconds) {
      if (seconds) times[key] = std::round(*seconds * 1e6) / 1e6;
    };
    add("seconds", its->seconds);
    add("data", its->data);
    add("compute", its->compute);
    add("communication", its->communication);
    add("wait", its->wait);
    add("p50", its->p50);
    add("p90", its->p90);
    add("max", its->max);
  }
  send_quietly(line_of(report));
}

std::filesystem::path Reporter::checkpoint(
    std::int64_t step, const std::filesystem::path& folder, int shard, int shards,
    const Metrics& metrics, const std::stop_token& stop,
    const std::function<std::optional<std::string>()>& trouble) {
  try {
    deliver(line_of({{"type", "checkpoint"},
                     {"step", step},
                     {"path", folder.string()},
                     {"shard", shard},
                     {"shards", shards},
                     {"metrics", metrics_to_json(metrics)},
                     {"ack", true}}));
    const json answer =
        json::parse(receive_line(stop, trouble), nullptr, /*allow_exceptions=*/false);
    if (answer.is_object() && answer.value("ok", json()) == true) {
      const json path = answer.value("path", json());
      return path.is_string() ? std::filesystem::path(path.get<std::string>()) : folder;
    }
    const json error = answer.is_object() ? answer.value("error", json()) : json();
    throw Error(error.is_string() ? error.get<std::string>() : "an answer that is not understood");
  } catch (const Error& error) {
    socket_.reset();
    throw Error("checkpoint of step " + std::to_string(step) +
                " was not committed: " + error.what());
  }
}

void Reporter::send_quietly(const std::string& line) {
  if (line.size() > kLongestLine) {
    options_.warn("a report of " + std::to_string(line.size()) + " bytes is too long; left out");
    return;
  }
  if (failed_at_ && options_.now() - *failed_at_ < options_.retry_after) return;
  try {
    deliver(line);
    failed_at_.reset();
  } catch (const Error& error) {
    socket_.reset();
    failed_at_ = options_.now();
    if (!warned_) {
      options_.warn(std::string("reports are not delivered, training goes on: ") + error.what());
    }
    warned_ = true;
  }
}

void Reporter::deliver(const std::string& line) {
  if (socket_.valid()) {
    try {
      send(line);
      return;
    } catch (const Error&) {
      // The other side has closed the connection since the last report: once more, on a new one.
    }
  }
  connect();
  send(line);
}

void Reporter::connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = path_.string();
  if (text.size() >= sizeof address.sun_path) {
    throw Error("report socket " + text + ": the path is too long");
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) throw errno_error("cannot make a socket", errno);
  const auto timeout = options_.send_timeout;
  const timeval limit{timeout.count() / 1000,
                      static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw errno_error("cannot connect to report socket " + text, errno);
  }
  socket_ = std::move(fd);
}

void Reporter::send(const std::string& line) {
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t put = ::send(socket_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw errno_error("cannot write to report socket " + path_.string(), errno);
    sent += static_cast<std::size_t>(put);
  }
}

std::string Reporter::receive_line(const std::stop_token& stop,
                                   const std::function<std::optional<std::string>()>& trouble) {
  std::string line;
  for (;;) {
    pollfd event{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&event, 1, static_cast<int>(kLook.count()));
    if (ready < 0 && errno != EINTR) throw errno_error("cannot poll the report socket", errno);
    if (ready <= 0) {
      if (stop.stop_requested()) throw Error("it was given up");
      if (const auto why = trouble ? trouble() : std::nullopt) throw Error(*why);
      continue;
    }
    char c = 0;
    const ssize_t got = ::recv(socket_.get(), &c, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw errno_error("cannot read from report socket " + path_.string(), errno);
    if (got == 0) throw Error("report socket " + path_.string() + " was closed");
    if (c == '\n') return line;
    line += c;
    if (line.size() > kLongestLine) throw Error("an answer that is too long");
  }
}

}  // namespace dtrain::train
