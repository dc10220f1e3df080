#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cli/render.hpp"
#include "launcher/cluster/progress.hpp"

namespace dtrain::cli {

// What many nodes do at once, on stderr: on a terminal one line a node, drawn over in place; else a
// plain line when a step is done. With `json`, each event is a line on stdout. Any thread.
class NodeLines {
 public:
  enum class Form : std::uint8_t { live, plain, json, none };
  NodeLines(Form form, const Terminal& terminal, const std::vector<NodeId>& nodes);
  ~NodeLines();  // leaves the last picture standing
  NodeLines(const NodeLines&) = delete;
  NodeLines& operator=(const NodeLines&) = delete;

  void show(const NodeProgress& progress);
  // A line of text above the picture, ended by '\n'.
  void say(const std::string& line);
  // Draws no more; what is there stays.
  void finish();

  // The picture for a terminal of so many columns and rows; pure, for tests. `now` is the time
  // since the beginning.
  std::string picture(std::size_t columns, std::size_t rows, std::chrono::milliseconds now) const;

 private:
  struct Line {
    NodeId node;
    NodeProgress last;
    bool begun = false;
    std::chrono::milliseconds since{0};  // of the step
    std::chrono::milliseconds end{0};    // of ready and failed
  };
  std::chrono::milliseconds now() const;
  Line& line_of(const NodeId& node);
  void draw();
  void erase();
  void tick();

  Form form_;
  Terminal terminal_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Line> lines_;
  std::size_t drawn_ = 0;  // lines of the picture that stand on the terminal
  bool over_ = false;
  std::thread ticker_;  // live: so that times go on
};

// live on a terminal that can erase, json with --json, none with -q, else plain.
class Context;
NodeLines::Form node_lines_form(const Context& context);

}  // namespace dtrain::cli
