#pragma once

#include <string>
#include <string_view>

namespace dtrain::cli {

// A line of a rank's for a terminal: colours and other attributes of text (SGR, ESC [ … m) pass,
// and end with the line; all else that would drive the terminal is shown and not obeyed. Without
// `colors` they are left out.
std::string with_colours(std::string_view line, bool colors);

}  // namespace dtrain::cli
