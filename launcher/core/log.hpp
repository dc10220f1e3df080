#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/core/clock.hpp"

// The log of head, node, supervise and watch: one line an event, logfmt, to stderr or a file:
//   2026-01-02T03:04:05.678Z level=info role=head msg="node ready" node=node-0
// Thread-safe. Values are quoted when they need it; control characters are escaped.
namespace dtrain::log {

enum class Level : int { debug, info, warn, error };

using Field = std::pair<std::string_view, std::string>;
using Fields = std::vector<Field>;

// `role` stands in every line. `path` empty: stderr. A file is appended to and rotated at 8 MiB,
// one old one kept (PATH.1). Call once, before threads start. DTRAIN_LOG_LEVEL (debug, info, warn,
// error) sets the level; default info.
void open(std::string role, const std::string& path);

void write(Level level, std::string_view message, const Fields& fields = {});
inline void debug(std::string_view m, const Fields& f = {}) {
  write(Level::debug, m, f);
}
inline void info(std::string_view m, const Fields& f = {}) {
  write(Level::info, m, f);
}
inline void warn(std::string_view m, const Fields& f = {}) {
  write(Level::warn, m, f);
}
inline void error(std::string_view m, const Fields& f = {}) {
  write(Level::error, m, f);
}

// One line without its newline.
std::string format(Level level, WallTime time, std::string_view role, std::string_view message,
                   const Fields& fields);

}  // namespace dtrain::log
