#include "cli/colours.hpp"

#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

constexpr std::size_t kLongest = 64;  // bytes of a sequence; a longer one is shown

// Length of the SGR sequence at the front of `text`, 0 if there is none.
std::size_t sgr_length(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.substr(0, kLongest).find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

}  // namespace

std::string with_colours(std::string_view line, bool colors) {
  std::string out;
  bool coloured = false;
  std::size_t begin = 0;  // of what is not put out yet
  for (std::size_t at = line.find('\x1b'); at != std::string_view::npos;
       at = line.find('\x1b', at)) {
    const std::size_t length = sgr_length(line.substr(at));
    if (length == 0) {
      ++at;
      continue;
    }
    out += printable(line.substr(begin, at - begin), false);
    if (colors) out += line.substr(at, length);
    coloured = colors;
    at += length;
    begin = at;
  }
  out += printable(line.substr(begin), false);
  if (coloured) out += "\x1b[0m";
  return out;
}

}  // namespace dtrain::cli
