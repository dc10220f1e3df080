#include "cli/node_lines.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using std::chrono::milliseconds;
using State = NodeProgress::State;

constexpr milliseconds kFrame{100};

std::size_t terminal_rows() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
  return 24;
}

Color color_of(State state) {
  switch (state) {
    case State::at_work:
    case State::waiting:
    case State::done:
      return Color::none;
    case State::ready:
      return Color::green;
    case State::failed:
      return Color::red;
  }
  return Color::none;
}

}  // namespace

NodeLines::Form node_lines_form(const Context& context) {
  if (context.globals.quiet) return NodeLines::Form::none;
  if (context.globals.json) return NodeLines::Form::json;
  if (context.terminal.err && !context.terminal.dumb) return NodeLines::Form::live;
  return NodeLines::Form::plain;
}

NodeLines::NodeLines(Form form, const Terminal& terminal, const std::vector<NodeId>& nodes)
    : form_(form), terminal_(terminal) {
  for (const NodeId& node : nodes) line_of(node);
  if (form_ == Form::live) ticker_ = std::thread([this] { tick(); });
}

NodeLines::~NodeLines() {
  finish();
}

milliseconds NodeLines::now() const {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin_);
}

NodeLines::Line& NodeLines::line_of(const NodeId& node) {
  for (Line& line : lines_) {
    if (line.node == node) return line;
  }
  Line line;
  line.node = node;
  lines_.push_back(std::move(line));
  return lines_.back();
}

void NodeLines::show(const NodeProgress& progress) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  Line& line = line_of(progress.node);
  const bool another = !line.begun || line.last.step != progress.step;
  if (another) line.since = now();
  if (progress.state == State::ready || progress.state == State::failed) line.end = now();
  line.begun = true;
  line.last = progress;
  switch (form_) {
    case Form::none:
      return;
    case Form::json:
      write_shown(STDOUT_FILENO,
                  wire::dump({{"type", "progress"},
                              {"node", progress.node.str()},
                              {"step", progress.step},
                              {"state", to_string(progress.state)},
                              {"text", progress.text},
                              {"took_s", static_cast<double>(progress.took.count()) / 1000.0}}) +
                      "\n");
      return;
    case Form::plain: {
      if (progress.state == State::at_work) return;
      std::string text = "dtrain: " + progress.node.str() + ": " + progress.step;
      if (progress.state == State::failed) text += " failed";
      if (!progress.text.empty()) text += ": " + progress.text;
      if (progress.took > milliseconds(0)) text += " (" + human_duration(progress.took) + ")";
      write_shown(STDERR_FILENO, printable(text, true) + "\n");
      return;
    }
    case Form::live:
      changed_.notify_one();
      return;
  }
}

void NodeLines::say(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (form_ == Form::json || form_ == Form::none) return;
  if (form_ == Form::live) erase();
  write_shown(STDERR_FILENO, line);
  if (form_ == Form::live && !over_) draw();
}

void NodeLines::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    over_ = true;
    if (form_ == Form::live) {
      erase();
      draw();
    }
  }
  changed_.notify_one();
  if (ticker_.joinable()) ticker_.join();
}

void NodeLines::tick() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    erase();
    draw();
    // At most so many pictures a second, and at least as many while times run.
    changed_.wait_for(lock, kFrame, [&] { return over_; });
  }
}

std::string NodeLines::picture(std::size_t columns, std::size_t rows, milliseconds at) const {
  std::size_t width = 4;
  for (const Line& line : lines_) width = std::max(width, display_width(line.node.str()));
  width = std::min<std::size_t>(width, 32);
  // Too many for the screen: those that are ready go first, then a count of them.
  std::vector<const Line*> shown;
  for (const Line& line : lines_) shown.push_back(&line);
  std::size_t hidden = 0;
  if (rows > 2 && shown.size() > rows - 1) {
    std::stable_sort(shown.begin(), shown.end(), [](const Line* a, const Line* b) {
      const auto order = [](const Line& line) {
        return line.last.state == State::failed ? 0 : line.last.state == State::ready ? 2 : 1;
      };
      return order(*a) < order(*b);
    });
    hidden = shown.size() - (rows - 2);
    shown.resize(rows - 2);
  }
  std::string text;
  for (const Line* line : shown) {
    std::string name = fit(line->node.str(), width);
    name.append(width - std::min(width, display_width(name)), ' ');
    std::string row = name + "  ";
    Color color = Color::dim;
    if (!line->begun) {
      row += "waiting";
    } else {
      color = color_of(line->last.state);
      const bool over = line->last.state == State::ready || line->last.state == State::failed;
      std::string step = line->last.state == State::ready ? "ready" : line->last.step;
      step.append(step.size() < 9 ? 9 - step.size() : 0, ' ');
      const milliseconds time = over ? line->end : at - line->since;
      std::string clock = human_duration(std::max(time, milliseconds(0)));
      clock.insert(0, clock.size() < 7 ? 7 - clock.size() : 0, ' ');
      row += step + " " + clock;
      if (!line->last.text.empty()) row += "  " + printable(line->last.text, false);
    }
    text += paint(fit(row, columns - 1), color, terminal_.color_err) + "\n";
  }
  if (hidden > 0) {
    text +=
        paint("and " + std::to_string(hidden) + " more", Color::dim, terminal_.color_err) + "\n";
  }
  return text;
}

void NodeLines::draw() {
  const std::string text = picture(terminal_columns(), terminal_rows(), now());
  drawn_ = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  write_shown(STDERR_FILENO, text);
}

void NodeLines::erase() {
  if (drawn_ == 0) return;
  write_shown(STDERR_FILENO, "\x1b[" + std::to_string(drawn_) + "A\x1b[J");
  drawn_ = 0;
}

}  // namespace dtrain::cli
