#include "cli/follow.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/colours.hpp"
#include "cli/jobs.hpp"
#include "cli/log_printer.hpp"
#include "cli/screen.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using What = wire::ApiStream::What;

constexpr auto kLostLimit = seconds(60);
constexpr auto kLivePeriod = milliseconds(200);
// In a busy queue reasons to wait change with every job that ends: so many lines of them are
// printed as they come, then one in so long.
constexpr int kWaitsAtOnce = 20;
constexpr auto kWaitPause = seconds(60);
constexpr std::uint64_t kMuchOutput = std::uint64_t{1} << 20;

// The ranks' machine may be this one: following takes what they leave.
void go_idle() {
  const sched_param parameter{};
  ::sched_setscheduler(0, SCHED_IDLE, &parameter);
  ::setpriority(PRIO_PROCESS, 0, 19);
}

class Follower {
 public:
  Follower(const Context& context, const wire::ApiClient& client, const FollowOptions& options)
      : context_(context),
        options_(options),
        signals_{SIGINT, SIGTERM, SIGHUP, SIGWINCH},
        client_(client.stopped_by(stop_.token())),
        screen_(context.terminal,
                options.follow && options.states && !context.globals.json && !context.globals.quiet,
                &signals_),
        printer_(screen_,
                 {options.prefix, context.globals.json, options.setup == SetupOutput::alone}),
        begin_(std::chrono::steady_clock::now()) {}

  FollowResult run();

 private:
  enum class Ended : std::uint8_t { end, closed, interrupted };

  void follow();
  std::string target(std::optional<int> attempt, bool follow, bool events, bool tail) const;
  Ended pump(wire::ApiStream& stream, bool only_logs);
  wire::ApiStream open_first();
  wire::ApiStream open_again();
  bool without_setup(const Error& refusal);
  bool reconnect(std::optional<wire::ApiStream>& stream);
  void text_frame(const nlohmann::json& frame, bool only_logs);
  void say(const std::string& text, Color color = Color::none);
  void state(const nlohmann::json& frame);
  void event(const nlohmann::json& frame);
  bool catch_up(int newest);
  void show_live();
  bool waits_otherwise(const std::string& state, const std::string& reason);
  bool interrupted(int signal);

  const Context& context_;
  const FollowOptions& options_;
  Signals signals_;
  StopOnSignal stop_{signals_};
  wire::ApiClient client_;
  Screen screen_;
  LogPrinter printer_;
  Monotonic begin_;

  FollowResult result_;
  std::string said_;     // the event that was printed last
  std::string doing_;    // why it waits, or how far the nodes are with its files
  std::string waits_;    // as was said last
  int waits_said_ = 0;   // of this state
  Monotonic next_wait_;  // after many: not before
  std::optional<nlohmann::json> late_wait_;
  int attempt_ = 0;  // the newest that we were told of
  bool reconnected_ = false;
  bool start_over_ = false;  // what was missed could not be caught up with
  bool idle_ = false;
  std::uint64_t reported_missing_ = 0;
  nlohmann::json progress_;
  int progress_rank_ = -1;
  long long last_event_ = 0;           // its number
  int first_attempt_ = 0;              // that was followed; 0: none yet
  bool takes_start_ = true;            // the head begins where it is told to; older ones do not
  bool takes_setup_ = true;            // nor do those give what setup prints
  std::optional<nlohmann::json> log_;  // its bytes are the next frame
};

std::string Follower::target(std::optional<int> attempt, bool follow, bool events,
                             bool tail) const {
  std::string query = std::string("/follow?logs=") + (options_.logs ? "1" : "0") +
                      "&events=" + (events ? "1" : "0") + "&follow=" + (follow ? "1" : "0");
  if (attempt) query += "&attempt=" + std::to_string(*attempt);
  if (options_.rank) query += "&rank=" + std::to_string(*options_.rank);
  if (options_.setup == SetupOutput::alone) query += "&stream=setup";
  if (options_.setup == SetupOutput::too && takes_setup_) query += "&setup=1";
  if (!options_.stream.empty()) query += "&stream=" + options_.stream;
  if (tail && options_.tail) query += "&tail=" + std::to_string(*options_.tail);
  return job_target(options_.job, query);
}

void Follower::say(const std::string& text, Color color) {
  if (context_.globals.json || context_.globals.quiet) return;
  const bool colors = context_.terminal.color_err;
  screen_.err(paint("dtrain:", Color::dim, colors) + " " +
              paint(printable(text, false), color, colors) + "\n");
}

// Slurm says why, say; or the nodes have come, and others are in the way.
bool Follower::waits_otherwise(const std::string& state, const std::string& reason) {
  const bool waits = state == "queued" || state == "restarting";
  return waits && !reason.empty() && other_wait(waits_, reason);
}

void Follower::state(const nlohmann::json& frame) {
  const std::string name = text_or(frame, "state");
  const std::string why = text_or(frame, "reason");
  const auto attempt = static_cast<int>(number_or(frame, "attempt", 0));
  const bool moved = name != result_.state || attempt != attempt_;
  if (reconnected_ && !takes_start_ && !options_.attempt && attempt > attempt_ && attempt_ > 0 &&
      !catch_up(attempt)) {
    start_over_ = true;  // the next connection begins with this state
    return;
  }
  attempt_ = std::max(attempt_, attempt);
  if (first_attempt_ == 0) first_attempt_ = std::max(1, attempt);
  doing_ = name == "staging" || name == "queued" || name == "restarting" ? why : "";
  late_wait_.reset();
  if (!moved && !waits_otherwise(name, why)) return;
  const auto now = std::chrono::steady_clock::now();
  if (moved) waits_said_ = 0;
  if (++waits_said_ > kWaitsAtOnce && now < next_wait_) {
    late_wait_ = frame;
    return;
  }
  next_wait_ = now + kWaitPause;
  result_.state = name;
  waits_ = why;
  if (!options_.states) return;
  if (context_.globals.json) {
    screen_.out(wire::dump(frame) + "\n");
    return;
  }
  std::string line = options_.job + " " + name;
  if (attempt > 1) line += " (attempt " + std::to_string(attempt) + ")";
  // Why it failed is said once, at the end, as the root cause; why it restarts, by an event.
  const std::string reason = name == "failed" ? "" : why;
  if (!reason.empty() && reason != said_) line += ": " + reason;
  say(line, job_ended(name) ? state_color(name) : Color::none);
}

void Follower::event(const nlohmann::json& frame) {
  if (!options_.states) return;
  // An older head begins a new connection with the events from the first on.
  const long long number = number_or(frame, "event", last_event_ + 1);
  if (number <= last_event_) return;
  last_event_ = number;
  if (context_.globals.json) {
    screen_.out(wire::dump(frame) + "\n");
    return;
  }
  const std::string level = text_or(frame, "level", "info");
  // Errors end attempts: the states tell them.
  if (level != "warning" && !context_.globals.verbose) return;
  said_ = text_or(frame, "message", text_or(frame, "event"));
  say(said_, level == "error" ? Color::red : level == "warning" ? Color::yellow : Color::dim);
}

// While we were away one attempt ended and another began: what the old ones wrote in between.
bool Follower::catch_up(int newest) {
  for (int attempt = attempt_; attempt < newest; ++attempt) {
    std::optional<nlohmann::json> kept;
    std::swap(kept, log_);
    Ended ended = Ended::closed;
    try {
      auto old = client_.open(target(attempt, false, false, false));
      ended = pump(old, true);
    } catch (const Error& error) {
      // The head went away again. Whoever follows finds that its own connection broke, too.
      if (error.code() != ErrorCode::unreachable && error.code() != ErrorCode::timeout) throw;
    }
    std::swap(kept, log_);
    if (ended != Ended::end) return false;
  }
  return true;
}

void Follower::text_frame(const nlohmann::json& frame, bool only_logs) {
  const std::string type = text_or(frame, "type");
  if (type.empty() && frame.contains("error")) {
    printer_.finish();
    screen_.live({});
    screen_.flush();
    throw wire::error_from_json(frame);
  }
  if (type == "log") {
    log_ = frame;
  } else if (only_logs) {
    return;
  } else if (type == "state") {
    state(frame);
  } else if (type == "event") {
    event(frame);
  } else if (type == "progress" || type == "metrics") {
    if (context_.globals.json) {
      if (options_.states) screen_.out(wire::dump(frame) + "\n");
      return;
    }
    if (type != "progress") return;
    const auto rank = static_cast<int>(number_or(frame, "rank", 0));
    if (progress_rank_ < 0 || rank <= progress_rank_) {
      progress_rank_ = rank;
      progress_ = frame;
    }
  }
}

bool Follower::interrupted(int signal) {
  if (signal == 0 || signal == SIGWINCH) return false;
  result_.interrupted = signal;
  return true;
}

void Follower::show_live() {
  if (!screen_.has_live() || result_.state.empty()) return;
  std::string line = options_.job + " " + result_.state;
  std::string progress = progress_line(progress_);
  if (progress.empty()) progress = with_colours(printer_.open_line(), false);
  if (progress.empty()) progress = printable(doing_, false);
  if (!progress.empty()) line += "  " + progress;
  const auto passed = std::chrono::floor<seconds>(std::chrono::steady_clock::now() - begin_);
  if (passed.count() > 0) line += "  " + human_duration(passed);
  screen_.live(std::move(line));
}

Follower::Ended Follower::pump(wire::ApiStream& stream, bool only_logs) {
  stream.watch(signals_.fd());
  Monotonic next_live = std::chrono::steady_clock::now();
  while (true) {
    // Written when nothing more is at hand, so that much output goes out in large pieces.
    if (!stream.ready()) {
      show_live();
      screen_.flush();
    }
    std::optional<Monotonic> deadline;
    if (screen_.has_live()) deadline = std::chrono::steady_clock::now() + seconds(1);
    if (late_wait_) deadline = std::min(next_wait_, deadline.value_or(next_wait_));
    const wire::ApiStream::Event event = stream.wait(deadline);
    switch (event.what) {
      case What::text: {
        const nlohmann::json frame = wire::parse_json(stream.data(), "a frame of the head");
        if (text_or(frame, "type") == "end") {
          if (only_logs) return Ended::end;
          result_.state = text_or(frame, "state", result_.state);
          if (frame.contains("exit_code") && frame["exit_code"].is_number_integer()) {
            result_.exit_code = frame["exit_code"].get<int>();
          }
          printer_.finish();
          if (context_.globals.json && options_.states) screen_.out(wire::dump(frame) + "\n");
          return Ended::end;
        }
        text_frame(frame, only_logs);
        if (result_.interrupted != 0) return Ended::interrupted;
        if (std::exchange(start_over_, false)) return Ended::closed;
        break;
      }
      case What::binary: {
        if (!log_) break;  // a kind of frame that a newer head sends
        LogPiece piece;
        piece.attempt = static_cast<int>(number_or(*log_, "attempt", 1));
        piece.rank = static_cast<int>(number_or(*log_, "rank", 0));
        const std::string node = text_or(*log_, "node");
        piece.node = node;
        piece.err = text_or(*log_, "stream") == "err";
        piece.setup = text_or(*log_, "stream") == "setup";
        piece.offset = static_cast<std::uint64_t>(number_or(*log_, "offset", 0));
        piece.released = static_cast<std::uint64_t>(number_or(*log_, "released", 0));
        piece.bytes = stream.data();
        printer_.piece(piece);
        log_.reset();
        if (!idle_ && printer_.received() > kMuchOutput) {
          idle_ = true;
          go_idle();
        }
        if (printer_.missing() > reported_missing_) {
          context_.warn(std::to_string(printer_.missing() - reported_missing_) +
                        " bytes of output are missing");
          reported_missing_ = printer_.missing();
        }
        break;
      }
      case What::input:
        if (interrupted(signals_.next())) return Ended::interrupted;
        break;
      case What::closed:
        log_.reset();
        return Ended::closed;
      case What::timeout:
        break;
    }
    if (late_wait_ && std::chrono::steady_clock::now() >= next_wait_) {
      state(nlohmann::json(*late_wait_));
    }
    if (screen_.has_live() && std::chrono::steady_clock::now() >= next_live) {
      show_live();
      screen_.flush();
      next_live = std::chrono::steady_clock::now() + kLivePeriod;
    }
  }
}

// Whether it may be an older head, which knows nothing of setup's output: it is not asked again.
bool Follower::without_setup(const Error& refusal) {
  if (refusal.code() != ErrorCode::invalid || options_.setup != SetupOutput::too) return false;
  return std::exchange(takes_setup_, false);
}

wire::ApiStream Follower::open_first() {
  while (true) {
    try {
      return client_.open(target(options_.attempt, options_.follow, true, true));
    } catch (const Error& error) {
      if (!without_setup(error)) throw;
    }
  }
}

// A connection that begins behind what is here already.
wire::ApiStream Follower::open_again() {
  const std::string usual = target(options_.attempt, options_.follow, true, !printer_.any());
  if (takes_start_ && first_attempt_ > 0) {
    try {
      wire::ApiStream stream = client_.open(usual + "&from=1");
      const nlohmann::json start = {{"type", "from"},
                                    {"attempt", first_attempt_},
                                    {"event", last_event_},
                                    {"logs", printer_.places()}};
      stream.send_text(wire::dump(start));
      return stream;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid) throw;
      if (without_setup(error)) return open_again();
      takes_start_ = false;
    }
  }
  return client_.open(usual);
}

// Gives false when a signal came while waiting.
bool Follower::reconnect(std::optional<wire::ApiStream>& stream) {
  stream.reset();
  const auto until = std::chrono::steady_clock::now() + kLostLimit;
  auto pause = milliseconds(10);
  bool said = false;
  while (true) {
    try {
      stream = open_again();
      if (said) say("the head is back");
      reconnected_ = true;
      return true;
    } catch (Error& error) {
      if (interrupted(signals_.next_ending())) return false;
      const bool away =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      if (!away || std::chrono::steady_clock::now() > until) {
        error.while_doing("following " + options_.job);
        throw;
      }
    }
    if (!said && pause > milliseconds(200)) {
      say("the head is away, waiting for it; the job goes on", Color::yellow);
      said = true;
      screen_.flush();
    }
    if (interrupted(signals_.wait(static_cast<int>(pause.count())))) return false;
    // Nobody there at all: the way to the head may be what broke.
    if (said && !client_.answers()) {
      try {
        client_ = context_.new_client(stop_.token());
      } catch (const Error&) {  // not yet
      }
      if (interrupted(signals_.next())) return false;
    }
    pause = std::min(milliseconds(1000), pause * 2);
  }
}

FollowResult Follower::run() {
  try {
    follow();
  } catch (const Interrupted& left) {
    result_.interrupted = left.signal;
    result_.torn = true;
  }
  result_.any_output = printer_.any();
  return result_;
}

void Follower::follow() {
  std::optional<wire::ApiStream> stream;
  try {
    stream = open_first();
  } catch (const Error&) {
    if (!interrupted(signals_.next_ending())) throw;
  }
  while (stream) {
    const Ended ended = pump(*stream, false);
    if (ended == Ended::end) break;
    if (ended == Ended::interrupted) break;
    if (!reconnect(stream)) break;
  }
  if (result_.interrupted != 0) {
    ::raise(result_.interrupted);  // for the screen: what a reader does not take now is dropped
    printer_.finish();
  }
  screen_.live({});
  screen_.flush();
}

}  // namespace

FollowResult follow(const Context& context, const wire::ApiClient& client,
                    const FollowOptions& options) {
  Follower follower(context, client, options);
  return follower.run();
}

}  // namespace dtrain::cli
