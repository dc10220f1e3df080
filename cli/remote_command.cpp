#include "cli/remote_command.hpp"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/colours.hpp"
#include "cli/command_words.hpp"
#include "cli/input_window.hpp"
#include "cli/jobs.hpp"
#include "cli/lines.hpp"
#include "cli/log_printer.hpp"
#include "cli/screen.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using What = wire::ApiStream::What;

// The terminal passes every key on while this lives.
class RawTerminal {
 public:
  RawTerminal() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    ::cfmakeraw(&raw);
    active_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
  }
  ~RawTerminal() {
    if (active_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_{};
  bool active_ = false;
};

struct WindowSize {
  int rows = 24;
  int columns = 80;
};

WindowSize window_size() {
  winsize size{};
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return {size.ws_row, size.ws_col};
  }
  return {};
}

class RemoteRun {
 public:
  RemoteRun(const Context& context, const RemoteCommand& command)
      : context_(context),
        command_(command),
        signals_{SIGINT, SIGTERM, SIGHUP, SIGWINCH},
        screen_(context.terminal, false, &signals_) {}

  RemoteEnd run();

 private:
  using Key = std::pair<std::string, bool>;  // node, stderr
  struct Source {
    LineAssembler lines;
    std::string prefix;
    std::string open;  // with --json: what may be the beginning of a character
  };

  std::optional<wire::ApiStream> open();
  nlohmann::json opening() const;
  void signal(wire::ApiStream& stream, int number);
  void output(const nlohmann::json& header, std::string_view bytes);
  void event(const Key& key, std::string_view bytes);
  void finish_events(const Key& key);
  void ended(const nlohmann::json& frame);
  void finish();

  const Context& context_;
  const RemoteCommand& command_;
  Signals signals_;
  Screen screen_;
  std::map<Key, Source> sources_;
  std::optional<nlohmann::json> header_;
  bool one_ = true;  // one node: our stdin is its stdin, and no prefix
  int interrupts_ = 0;
  int left_by_ = 0;  // the signal that made us leave
  int code_ = 0;
};

nlohmann::json RemoteRun::opening() const {
  const WindowSize size = window_size();
  const char* term = std::getenv("TERM");
  nlohmann::json nodes = command_.nodes;
  if (command_.nodes.empty()) nodes = command_.all ? "all" : "head";
  return {{"command", command_.command},
          {"shell", command_.shell},
          {"nodes", nodes},
          {"tty", command_.tty},
          {"rows", size.rows},
          {"cols", size.columns},
          {"term", term != nullptr && *term != '\0' ? term : "dumb"},
          {"workdir", command_.workdir}};
}

void RemoteRun::signal(wire::ApiStream& stream, int number) {
  if (number == 0) return;
  if (number == SIGWINCH) {
    if (!command_.tty) return;
    const WindowSize size = window_size();
    const nlohmann::json frame = {{"type", "resize"}, {"rows", size.rows}, {"cols", size.columns}};
    stream.send_text(frame.dump());
    return;
  }
  // The first Ctrl-C is for the command, unless our reader has stopped; the second for us.
  if (number == SIGINT && ++interrupts_ == 1) {
    stream.send_text(R"({"type":"signal","signal":"INT"})");
    return;
  }
  left_by_ = number;
}

void RemoteRun::output(const nlohmann::json& header, std::string_view bytes) {
  const std::string node = text_or(header, "node");
  const bool err = text_or(header, "stream") == "err";
  if (context_.globals.json) {
    // Frames end anywhere: a character's bytes may come in two of them.
    std::string& open = sources_[{node, err}].open;
    open += bytes;
    const std::string_view whole = whole_characters(open);
    event({node, err}, whole);
    open.erase(0, whole.size());
    return;
  }
  if (one_) {
    if (err) {
      screen_.err(bytes);
    } else {
      screen_.out(bytes);
    }
    return;
  }
  Source& source = sources_[{node, err}];
  const bool terminal = err ? screen_.terminal().err : screen_.terminal().out;
  if (source.prefix.empty()) source.prefix = "[" + node + "] ";
  source.lines.feed(bytes, [&](std::string_view line, bool) {
    std::string text = source.prefix;
    const bool color = err ? screen_.terminal().color_err : screen_.terminal().color_out;
    text += terminal ? with_colours(after_returns(line), color) : std::string(line);
    text += '\n';
    if (err) {
      screen_.err(text);
    } else {
      screen_.out(text);
    }
  });
}

void RemoteRun::event(const Key& key, std::string_view bytes) {
  if (bytes.empty()) return;
  nlohmann::json event = {
      {"type", "output"}, {"node", key.first}, {"stream", key.second ? "err" : "out"}};
  set_text(event, bytes);
  screen_.out(wire::dump(event) + "\n");
}

// What never became a whole character.
void RemoteRun::finish_events(const Key& key) {
  const auto found = sources_.find(key);
  if (found != sources_.end()) event(key, std::exchange(found->second.open, {}));
}

void RemoteRun::ended(const nlohmann::json& frame) {
  const std::string node = text_or(frame, "node");
  if (context_.globals.json) {
    finish_events({node, false});
    finish_events({node, true});
    screen_.out(wire::dump(frame) + "\n");
  }
  if (frame.contains("error") && frame["error"].is_object()) {
    code_ = std::max(code_, kOwnTrouble);
    if (!context_.globals.json) {
      const Error error = wire::error_from_json(frame);
      screen_.err("dtrain: " + node + ": " + printable(error.message(), false) + "\n");
      const std::string& word = command_.command.empty() ? "" : command_.command.front();
      if (!command_.shell && command_.command.size() == 1 && is_shell_line(word)) {
        screen_.err("  try: dtrain exec " + shell_quote(word) +
                    " (a line for the shell is one argument without --)\n");
      }
    }
    return;
  }
  const auto code = static_cast<int>(number_or(frame, "exit_code", kOwnTrouble));
  code_ = std::max(code_, code);
  if (!one_ && code != 0 && !context_.globals.json && !context_.globals.quiet) {
    screen_.err("dtrain: " + node + ": exit code " + std::to_string(code) + "\n");
  }
}

void RemoteRun::finish() {
  for (auto& [key, source] : sources_) {
    finish_events(key);
    source.lines.finish([this, &from = source, err = key.second](std::string_view line, bool) {
      const std::string text = from.prefix + printable(line, false) + "\n";
      if (err) {
        screen_.err(text);
      } else {
        screen_.out(text);
      }
    });
  }
  screen_.flush();
}

// Absent when a signal came first.
std::optional<wire::ApiStream> RemoteRun::open() {
  const StopOnSignal stop(signals_);
  try {
    return context_.client(stop.token()).open("/v1/exec");
  } catch (const Error&) {
    left_by_ = signals_.next_ending();
    if (left_by_ == 0) throw;
    return std::nullopt;
  }
}

RemoteEnd RemoteRun::run() {
  std::optional<wire::ApiStream> opened = open();
  if (!opened) return {128 + left_by_, false};
  wire::ApiStream& stream = *opened;
  one_ = command_.nodes.size() <= 1 && !command_.all;
  stream.send_text(wire::dump(opening()));
  std::optional<RawTerminal> raw;
  if (command_.tty && ::isatty(STDIN_FILENO) == 1) raw.emplace();
  stream.watch(signals_.fd());
  std::optional<InputWindow> input;
  if (one_) input.emplace(stream, STDIN_FILENO);
  while (left_by_ == 0) {
    if (!stream.ready()) screen_.flush();
    const wire::ApiStream::Event event = stream.wait();
    switch (event.what) {
      case What::text: {
        const nlohmann::json frame = wire::parse_json(stream.data(), "a frame of the head");
        const std::string type = text_or(frame, "type");
        if (type == "end") {
          finish();
          return {code_, true};
        }
        if (type == "output") header_ = frame;
        if (type == "credit" && input) input->credit(frame);
        if (type == "exit") ended(frame);
        if (type.empty() && frame.contains("error")) throw wire::error_from_json(frame);
        break;
      }
      case What::binary:
        if (header_) output(*header_, stream.data());
        header_.reset();
        break;
      case What::input:
        if (event.fd == STDIN_FILENO) {
          input->read();
        } else {
          signal(stream, signals_.next());
        }
        break;
      case What::closed:
        finish();
        throw Error(ErrorCode::unreachable, "the head went away before the command ended");
      case What::timeout:
        break;
    }
  }
  ::raise(left_by_);  // for the screen: what a reader does not take now is dropped
  finish();
  return {128 + left_by_, false};
}

}  // namespace

RemoteEnd run_remote(const Context& context, const RemoteCommand& command) {
  std::vector<std::string> words = command.command;
  words.push_back(command.workdir);
  for (const std::string& word : words) {
    if (is_utf8(word)) continue;
    throw Error(ErrorCode::invalid, "the word " + printable(word, false) + " is not UTF-8");
  }
  try {
    return RemoteRun(context, command).run();
  } catch (const Interrupted& left) {
    return {128 + left.signal, false};
  }
}

}  // namespace dtrain::cli
