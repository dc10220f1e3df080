#include "cli/tune_follow.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "cli/follow.hpp"
#include "cli/render.hpp"
#include "cli/searches.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// The head is asked so often, and not more than a tenth of the time.
constexpr milliseconds kLookEvery{300};
constexpr milliseconds kLookAtLeastEvery{5000};
constexpr auto kHeadAway = std::chrono::seconds(60);
constexpr std::size_t kMostDrawn = 500;  // trials of one look, beside those that are asked for
constexpr std::size_t kMoreThanLast = 20;

enum class Form : std::uint8_t { live, plain, json, none };

Form form_of(const Context& context, bool silent) {
  if (silent) return Form::none;
  if (context.globals.json) return Form::json;
  if (context.globals.quiet) return Form::none;
  return context.terminal.out && !context.terminal.dumb ? Form::live : Form::plain;
}

winsize stdout_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    size.ws_row = 24;
    size.ws_col = 80;
  }
  return size;
}

class SearchFollower {
 public:
  SearchFollower(const Context& context, const wire::ApiClient& client, const std::string& search,
                 bool silent)
      : context_(context),
        search_(search),
        form_(form_of(context, silent)),
        signals_{SIGINT, SIGTERM, SIGHUP, SIGWINCH},
        client_(client.stopped_by(stop_.token())) {}

  FollowedSearch run();

 private:
  void look();
  void draw();
  void tell(const json& event);
  void print(std::string_view text) { write_interruptible(STDOUT_FILENO, text, signals_); }
  void print_json(const json& event) { print(wire::dump(event) + "\n"); }
  void follow();
  bool interrupted(int signal);
  // Waits; false when a signal came that detaches us.
  bool wait(milliseconds pause);
  bool reconnect();

  const Context& context_;
  const std::string search_;
  Form form_;
  Signals signals_;
  StopOnSignal stop_{signals_};
  wire::ApiClient client_;
  FollowedSearch result_;
  SearchNews news_;
  std::set<long long> told_;  // open trials whose parameters a line has told
  std::size_t drawn_ = 0;     // lines of the picture that stand on the terminal
};

void SearchFollower::tell(const json& event) {
  if (form_ == Form::json) {
    print_json(event);
    return;
  }
  const long long trial = number_or(event, "trial");
  bool known = false;  // by an earlier line, the parameters that it has now
  if (text_or(event, "type") == "trial") {
    const std::string state = text_or(event, "state");
    known = told_.contains(trial) && (number_or(event, "exploits") == 0 || trial_ended(state));
    // A trial begins when it runs: that it waits for a place is nothing to read.
    if (state == "waiting" && !told_.contains(trial)) return;
    if (trial_ended(state)) {
      told_.erase(trial);
    } else {
      told_.insert(trial);
    }
  }
  print(news_line(event, text_or(result_.search, "metric"), known) + "\n");
}

void SearchFollower::look() {
  // Those that run and wait come first: so many more that ended ones are among them.
  const json& counts = child(result_.search, "counts");
  const auto open =
      static_cast<std::size_t>(number_or(counts, "running") + number_or(counts, "waiting"));
  const std::size_t more = form_ == Form::live ? stdout_size().ws_row : kMoreThanLast;
  // With none of them the head gives what else there is, however much.
  const std::size_t most = form_ == Form::none ? 1 : std::min(open + more, kMostDrawn);
  result_.search = client_.get(search_target(search_, "?trials=" + std::to_string(most)));
  if (form_ == Form::live) return draw();
  if (form_ == Form::none) return;
  const bool ended = job_ended(text_or(result_.search, "state"));
  const auto state = news_.state(result_.search);
  if (state && !ended) tell(*state);
  const auto note = [&](const json& trial) {
    if (const auto event = news_.trial(trial)) tell(*event);
  };
  news_.begin_look();
  for (const json& trial : child(result_.search, "trials")) {
    if (news_.knows(static_cast<std::uint64_t>(number_or(trial, "trial")))) note(trial);
  }
  const auto begun = static_cast<std::uint64_t>(number_or(result_.search, "begun"));
  for (const auto& [from, count] : news_.wanted(begun, ended)) {
    each_trial(client_, search_, from, count, note);
  }
  if (const auto best = news_.best(result_.search)) tell(*best);
}

void SearchFollower::draw() {
  const winsize size = stdout_size();
  const std::string text =
      search_picture(result_.search, size.ws_col, size.ws_row, context_.terminal.color_out);
  std::string out;
  if (drawn_ > 0) out = "\x1b[" + std::to_string(drawn_) + "A\x1b[J";
  drawn_ = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  print(out + text);
}

bool SearchFollower::interrupted(int signal) {
  result_.interrupted = signal;
  return signal != 0;
}

bool SearchFollower::wait(milliseconds pause) {
  const auto until = std::chrono::steady_clock::now() + pause;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    if (left <= milliseconds(0)) return true;
    const int signal = signals_.wait(static_cast<int>(left.count()));
    if (signal == 0) return true;
    if (signal == SIGWINCH) {
      // What the terminal has made of the old picture is not known: the new one stands below it.
      drawn_ = 0;
      if (form_ == Form::live && !result_.search.is_null()) draw();
      continue;
    }
    return !interrupted(signal);
  }
}

// Gives false when a signal came while waiting.
bool SearchFollower::reconnect() {
  const auto until = std::chrono::steady_clock::now() + kHeadAway;
  auto pause = milliseconds(20);
  bool said = false;
  while (true) {
    try {
      look();
      if (said) context_.note("the head is back");
      return true;
    } catch (Error& error) {
      if (interrupted(signals_.next_ending())) return false;
      const bool away =
          error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout;
      if (!away || std::chrono::steady_clock::now() > until) {
        error.while_doing("following " + search_);
        throw;
      }
    }
    if (!said && pause > milliseconds(200)) {
      drawn_ = 0;
      context_.note("the head is away, waiting for it; the search goes on");
      said = true;
    }
    if (!wait(pause)) return false;
    // Nobody there at all: the way to the head may be what broke.
    if (said && !client_.answers()) {
      try {
        client_ = context_.new_client(stop_.token());
      } catch (const Error&) {  // not yet
      }
    }
    pause = std::min(milliseconds(1000), pause * 2);
  }
}

void SearchFollower::follow() {
  while (true) {
    const auto begin = std::chrono::steady_clock::now();
    if (!reconnect()) return;
    if (job_ended(text_or(result_.search, "state"))) break;
    const auto took = std::chrono::ceil<milliseconds>(std::chrono::steady_clock::now() - begin);
    if (!wait(std::clamp(took * 10, kLookEvery, kLookAtLeastEvery))) return;
  }
  if (form_ == Form::json) {
    json end = {{"type", "end"}, {"search", search_}};
    for (const char* key : {"state", "reason", "counts", "best"}) {
      end[key] = result_.search.contains(key) ? result_.search[key] : json();
    }
    print_json(end);
  }
  if (form_ == Form::plain) {
    const std::string reason = printable(text_or(result_.search, "reason"), false);
    print(search_ + " " + text_or(result_.search, "state") + ", " + begun_line(result_.search) +
          ": " + counts_line(child(result_.search, "counts")) +
          (reason.empty() ? "" : ": " + reason) + "\n");
    if (const std::string best = best_line(result_.search); !best.empty()) {
      print("best: " + best + "\n");
    }
  }
}

FollowedSearch SearchFollower::run() {
  try {
    follow();
  } catch (const Interrupted& left) {
    result_.interrupted = left.signal;
    result_.torn = true;
  }
  return std::move(result_);
}

}  // namespace

FollowedSearch follow_search(const Context& context, const wire::ApiClient& client,
                             const std::string& search, bool silent) {
  SearchFollower follower(context, client, search, silent);
  return follower.run();
}

int finish_search(const Context& context, const std::string& search, const FollowedSearch& result) {
  const std::string option = context.cluster_option();
  const std::string state = text_or(result.search, "state");
  if (result.interrupted != 0) {
    if (context.globals.json && !result.torn) {
      context.print_json({{"type", "detached"}, {"search", search}, {"state", state}});
    } else {
      context.warn("detached; " + search + " goes on. Back to it: dtrain tune status -f" + option +
                   " " + search + "; end it: dtrain tune stop" + option + " " + search);
    }
    return 128 + result.interrupted;
  }
  if (state == "failed" && context.globals.quiet && !context.globals.json) {
    context.warn(search + " failed: " + text_or(result.search, "reason"));
  }
  if (!child(result.search, "best").is_null()) {
    context.note("the best: dtrain tune best" + option + " " + search +
                 "; all: dtrain tune result" + option + " " + search);
  }
  return exit_code_for_state(state);
}

}  // namespace dtrain::cli
