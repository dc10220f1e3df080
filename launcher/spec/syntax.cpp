#include "launcher/spec/syntax.hpp"

#include <yaml-cpp/exceptions.h>

#include <algorithm>
#include <array>

#include "launcher/core/text.hpp"
#include "launcher/spec/document.hpp"

namespace dtrain::spec {
namespace {

// yaml-cpp's messages name its inner states; these say what a person did.
struct Reworded {
  const char* theirs;
  const char* ours;
  const char* hint;
};
const std::array<Reworded, 14> kReworded{{
    {YAML::ErrorMsg::END_OF_MAP, "a key was expected here",
     "look at the indentation: the keys of one mapping stand in one column"},
    {YAML::ErrorMsg::END_OF_SEQ, "a list item ('- ') was expected here",
     "look at the indentation: the dashes of one list stand in one column"},
    {YAML::ErrorMsg::END_OF_MAP_FLOW,
     "a '}' is missing: this '{' is never closed, or a ',' between "
     "two of its entries is missing",
     ""},
    {YAML::ErrorMsg::END_OF_SEQ_FLOW,
     "a ']' is missing: this '[' is never closed, or a ',' between "
     "two of its items is missing",
     ""},
    {YAML::ErrorMsg::MAP_VALUE, "a ':' is not possible here",
     "put quotes around a text that contains ': '"},
    {YAML::ErrorMsg::MAP_KEY, "a key is not possible here", ""},
    {YAML::ErrorMsg::BLOCK_ENTRY, "a list item ('- ') is not possible here", ""},
    {YAML::ErrorMsg::FLOW_END, "this bracket closes nothing", ""},
    {YAML::ErrorMsg::TAB_IN_INDENTATION, "a tab in the indentation", "indent with spaces"},
    {YAML::ErrorMsg::EOF_IN_SCALAR, "the file ends within quotes", ""},
    {YAML::ErrorMsg::DOC_IN_SCALAR, "'---' or '...' within quotes", ""},
    {YAML::ErrorMsg::UNKNOWN_ANCHOR, "this alias (*name) has no anchor (&name) before it",
     "put quotes around a text that begins with *"},
    {YAML::ErrorMsg::UNKNOWN_TOKEN, "no value can begin with this character",
     "put quotes around a text that begins with @, `, % or |"},
    {YAML::ErrorMsg::CHAR_IN_ALIAS, "a character that a name after * cannot have",
     "put quotes around a text that begins with *"},
}};

bool name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// One line, and where its text begins.
struct Line {
  std::string_view text;
  std::size_t offset = 0;  // of the line
  std::size_t indent = 0;  // bytes before its text
  bool blank = false;      // nothing, or a comment
};

Line line_at(std::string_view text, std::size_t offset) {
  Line line;
  line.offset = offset;
  line.text = text.substr(offset, std::min(text.find('\n', offset), text.size()) - offset);
  line.indent = std::min(line.text.find_first_not_of(" \t\r"), line.text.size());
  line.blank = line.indent == line.text.size() || line.text[line.indent] == '#';
  return line;
}

// Line `number`, counted from 1; the last one if there are fewer.
Line line_number(std::string_view text, int number) {
  std::size_t offset = 0;
  for (; number > 1; --number) {
    const std::size_t end = text.find('\n', offset);
    if (end == std::string_view::npos) break;
    offset = end + 1;
  }
  return line_at(text, offset);
}

std::optional<Line> line_above(std::string_view text, const Line& line) {
  if (line.offset < 1) return std::nullopt;
  const std::size_t end = line.offset - 1;
  const std::size_t before = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
  return line_at(text, before == std::string_view::npos ? 0 : before + 1);
}

// Quotes that open in an earlier line than the one in which they close, or never close: the last
// before `end`. Near enough for a guess: block texts (|, >) are passed over, tags are not known.
struct Quotes {
  std::size_t open = 0;
  std::size_t close = 0;  // npos: never
};

// A line whose value is a block text: "key: |", "- >-".
bool opens_block(std::string_view line) {
  const std::size_t comment = line.find(" #");
  if (comment != std::string_view::npos) line = line.substr(0, comment);
  const std::size_t end = line.find_last_not_of(" \t\r+-0123456789");
  return end != std::string_view::npos && end > 0 && (line[end] == '|' || line[end] == '>') &&
         line[end - 1] == ' ';
}

std::optional<Quotes> wide_quotes(std::string_view text, std::size_t end) {
  std::optional<Quotes> wide;
  std::size_t at = 0;
  while (at < end) {
    const Line line = line_at(text, at);
    const std::size_t line_end = at + line.text.size();
    std::size_t next = line_end + 1;
    bool starts = true;  // a value may begin here
    for (std::size_t i = at + line.indent; i < line_end && !line.blank; ++i) {
      const char c = text[i];
      if (c == '#' && text[i - (i > at ? 1 : 0)] == ' ') break;
      if (starts && (c == '"' || c == '\'')) {
        const std::size_t close = closing_quote(text, i);
        if (close == std::string_view::npos) return Quotes{i, close};
        if (close > line_end) {
          wide = Quotes{i, close};
          next = line_at(text, close).offset;  // the rest of that line is a line of its own
          break;
        }
        i = close;
      }
      const bool ends_key =
          (c == ':' || c == '-' || c == '?') && i + 1 < line_end && text[i + 1] == ' ';
      if (ends_key || c == '[' || c == '{' || c == ',') {
        starts = true;
      } else if (c != ' ') {
        starts = false;
      }
    }
    if (!line.blank && opens_block(line.text)) {
      while (next < end) {
        const Line inner = line_at(text, next);
        if (!inner.blank && inner.indent <= line.indent) break;
        next += inner.text.size() + 1;
      }
    }
    at = next;
  }
  return wide;
}

// A ':' that cannot be a key's: most often the slip is in the line above.
std::optional<Mistake> explain_colon(std::string_view text, const Line& here, Place place) {
  const std::string_view before =
      here.text.substr(0, std::min(here.text.size(), static_cast<std::size_t>(place.column) - 1));
  if (before.find(": ") != std::string_view::npos) return std::nullopt;  // two in one line
  constexpr int kFar = 100;                                              // lines
  std::optional<Line> line = line_above(text, here);
  for (int up = 1; line && up < kFar; ++up, line = line_above(text, *line)) {
    if (line->blank) continue;
    std::size_t start = line->indent;
    while (line->text.substr(start).starts_with("- ")) start += 2;
    const std::string_view value = line->text.substr(start);
    if (const auto spaced = with_space_after_colon(value)) {
      return Mistake{{place.line - up, static_cast<int>(start + value.find(':')) + 1},
                     "not YAML: a key and its value need a space between",
                     "put a space after the colon: " + *spaced};
    }
    if (value.find(": ") != std::string_view::npos && here.indent > start) {
      return Mistake{{place.line, static_cast<int>(here.indent) + 1},
                     "not YAML: this line stands deeper than line " +
                         std::to_string(place.line - up) + ", which has a value already",
                     "the keys of one mapping stand in one column"};
    }
    if (value.find(':') != std::string_view::npos) break;
  }
  return std::nullopt;
}

}  // namespace

Place place_at(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = start == std::string_view::npos ? offset : offset - start - 1;
  return {static_cast<int>(lines) + 1, static_cast<int>(column) + 1};
}

std::size_t closing_quote(std::string_view text, std::size_t open) {
  const char quote = text[open];
  for (std::size_t i = open + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != quote) return i;
      ++i;  // '' is a quote within
    }
  }
  return std::string_view::npos;
}

std::optional<std::string> with_space_after_colon(std::string_view text) {
  constexpr std::size_t kShort = 60;  // more would not help
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon > kShort) return std::nullopt;
  if (!std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(colon), name_letter)) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(colon + 1, text.find('\n', colon) - colon - 1);
  while (rest.ends_with('\r') || rest.ends_with(' ')) rest.remove_suffix(1);
  if (rest.empty() || rest.front() == ' ' || rest.front() == '/' || rest.size() > kShort) {
    return std::nullopt;
  }
  return std::string(text.substr(0, colon)) + ": " + printable(rest, false);
}

// yaml-cpp looks ahead for the end of each bracket before it says
// anything, at some 200 bytes of memory a token: so brackets are counted first.
std::optional<Mistake> mistake_in(std::string_view text) {
  if (text.size() > kMaxText) {
    return Mistake{{}, "the file is larger than " + human_bytes(kMaxText), ""};
  }
  std::size_t marks = 0;
  std::size_t open = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F) {
      return Mistake{place_at(text, i),
                     c == '\0' ? "a NUL character" : "a control character: " + printable({&c, 1}),
                     c == '\0' ? "is this a text file, and UTF-8?" : ""};
    }
    switch (c) {
      case '[':
      case '{':
        ++open;
        ++marks;
        break;
      case ']':
      case '}':
        if (open > 0) --open;
        ++marks;
        break;
      case ',':
      case '&':
      case '*':
      case '!':
        ++marks;
        break;
      default:
        break;
    }
    if (open > 10 * kMaxLevels) return Mistake{place_at(text, i), "brackets nested too deep", ""};
    if (marks > kMaxMarks) {
      return Mistake{
          place_at(text, i),
          "more than " + std::to_string(kMaxMarks) + " of the characters [ ] { } , & * !", ""};
    }
  }
  if (!is_utf8(text)) {
    std::size_t good = 0;
    std::size_t line = 1;
    while (good < text.size()) {  // a line that is not UTF-8 is place enough
      const std::size_t end = std::min(text.find('\n', good), text.size() - 1) + 1;
      if (!is_utf8(text.substr(good, end - good))) break;
      good = end;
      ++line;
    }
    return Mistake{{static_cast<int>(line), 1}, "this line is not UTF-8", ""};
  }
  return std::nullopt;
}

Mistake explain_syntax(std::string_view text, Place place, std::string_view message) {
  Mistake mistake{place, std::string(message), ""};
  for (const Reworded& entry : kReworded) {
    if (message == entry.theirs) {
      mistake.message = entry.ours;
      mistake.hint = entry.hint;
      break;
    }
  }
  mistake.message = "not YAML: " + printable(mistake.message, false);
  if (place.line < 1) return mistake;
  const Line here = line_number(text, place.line);
  const std::size_t tab = here.text.substr(0, here.indent).find('\t');
  if (tab != std::string_view::npos && !here.blank) {
    return {{place.line, static_cast<int>(tab) + 1},
            "not YAML: a tab in the indentation",
            "indent with spaces"};
  }
  const std::size_t at =
      std::min(here.offset + static_cast<std::size_t>(place.column), text.size());
  if (const auto quotes = wide_quotes(text, at)) {
    const Place open = place_at(text, quotes->open);
    if (quotes->close == std::string_view::npos) {
      return {open, "not YAML: the quote that opens here is never closed", ""};
    }
    if (quotes->close >= here.offset) {
      return {open,
              "not YAML: the quote that opens here is closed only in line " +
                  std::to_string(place_at(text, quotes->close).line) + ", where a text begins",
              "put the closing quote at the end of its line"};
    }
  }
  if (message == YAML::ErrorMsg::MAP_VALUE || message == YAML::ErrorMsg::END_OF_MAP) {
    if (auto better = explain_colon(text, here, place)) return *better;
  }
  if (here.text.find("${") != std::string_view::npos) {
    mistake.hint = "within { } and [ ], put quotes around a text that contains ${…}";
  }
  return mistake;
}

}  // namespace dtrain::spec
