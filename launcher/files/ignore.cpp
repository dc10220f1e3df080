#include "launcher/files/ignore.hpp"

#include <algorithm>
#include <array>

namespace dtrain {
namespace {

// What one element of a pattern matches. Elements are compared with a text by `Matcher` below.
class Matcher {
 public:
  Matcher(std::string_view pattern, std::string_view text, bool path)
      : pattern_(pattern), text_(text), path_(path) {}

  bool run() {
    // With at most one star each position is tried once anyway.
    std::size_t stars = 0;
    for (const char c : pattern_) stars += c == '*' ? 1 : 0;
    if (stars > 1) tried_.assign((pattern_.size() + 1) * (text_.size() + 1), false);
    return match(0, 0);
  }

 private:
  bool match(std::size_t p, std::size_t t);
  bool star(std::size_t p, std::size_t t);
  // A bracket at p ('[' itself): whether it matches c; p is moved behind it. A bracket without an
  // end matches nothing at all.
  bool bracket(std::size_t& p, char c, bool& matches) const;

  // True when this pair was looked at before, and so without success.
  bool seen(std::size_t p, std::size_t t) {
    if (tried_.empty()) return false;
    std::vector<bool>::reference tried = tried_[p * (text_.size() + 1) + t];
    if (tried) return true;
    tried = true;
    return false;
  }

  std::string_view pattern_;
  std::string_view text_;
  bool path_;
  std::vector<bool> tried_;
};

bool in_class(std::string_view name, unsigned char c) {
  const bool upper = c >= 'A' && c <= 'Z';
  const bool lower = c >= 'a' && c <= 'z';
  const bool digit = c >= '0' && c <= '9';
  const bool print = c >= 0x20 && c < 0x7f;
  if (name == "alnum") return upper || lower || digit;
  if (name == "alpha") return upper || lower;
  if (name == "blank") return c == ' ' || c == '\t';
  if (name == "cntrl") return c < 0x20 || c == 0x7f;
  if (name == "digit") return digit;
  if (name == "graph") return print && c != ' ';
  if (name == "lower") return lower;
  if (name == "print") return print;
  if (name == "punct") return print && c != ' ' && !upper && !lower && !digit;
  if (name == "space") return c == ' ' || (c >= '\t' && c <= '\r');
  if (name == "upper") return upper;
  if (name == "xdigit") return digit || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
  return false;
}

bool known_class(std::string_view name) {
  constexpr std::array<std::string_view, 12> kNames{"alnum", "alpha", "blank", "cntrl",
                                                    "digit", "graph", "lower", "print",
                                                    "punct", "space", "upper", "xdigit"};
  for (const std::string_view each : kNames) {
    if (each == name) return true;
  }
  return false;
}

bool Matcher::bracket(std::size_t& p, char c, bool& matches) const {
  const std::size_t size = pattern_.size();
  const auto byte = static_cast<unsigned char>(c);
  ++p;
  bool negated = false;
  if (p < size && (pattern_[p] == '!' || pattern_[p] == '^')) {
    negated = true;
    ++p;
  }
  bool found = false;
  bool first = true;
  bool can_begin_range = false;  // what came before is a single character
  unsigned char before = 0;
  while (true) {
    if (p >= size) return false;
    char now = pattern_[p];
    if (now == ']' && !first) break;
    first = false;
    if (now == '-' && can_begin_range && p + 1 < size && pattern_[p + 1] != ']') {
      ++p;
      if (pattern_[p] == '\\' && ++p >= size) return false;
      const auto end = static_cast<unsigned char>(pattern_[p]);
      if (byte >= before && byte <= end) found = true;
      can_begin_range = false;
      ++p;
      continue;
    }
    if (now == '[' && p + 1 < size && pattern_[p + 1] == ':') {
      const std::size_t close = pattern_.find(']', p + 2);
      if (close == std::string_view::npos) return false;
      if (close > p + 2 && pattern_[close - 1] == ':') {
        const std::string_view name = pattern_.substr(p + 2, close - p - 3);
        if (!known_class(name)) return false;
        if (in_class(name, byte)) found = true;
        can_begin_range = false;
        p = close + 1;
        continue;
      }
    }
    if (now == '\\') {
      if (++p >= size) return false;
      now = pattern_[p];
    }
    before = static_cast<unsigned char>(now);
    if (before == byte) found = true;
    can_begin_range = true;
    ++p;
  }
  ++p;
  matches = found != negated && !(path_ && c == '/');
  return true;
}

bool Matcher::star(std::size_t p, std::size_t t) {
  std::size_t end = p;
  while (end < pattern_.size() && pattern_[end] == '*') ++end;
  bool slashes = !path_;
  if (path_ && end - p > 1) {
    const bool left = p == 0 || pattern_[p - 1] == '/';
    const bool right =
        end == pattern_.size() || pattern_[end] == '/' || pattern_.substr(end).starts_with("\\/");
    if (left && right) {
      // Between slashes it may also stand for no folder at all.
      if (end < pattern_.size() && pattern_[end] == '/' && match(end + 1, t)) return true;
      slashes = true;
    }
  }
  for (std::size_t at = t; at <= text_.size(); ++at) {
    if (match(end, at)) return true;
    if (at < text_.size() && text_[at] == '/' && !slashes) return false;
  }
  return false;
}

bool Matcher::match(std::size_t p, std::size_t t) {
  while (p < pattern_.size()) {
    const char c = pattern_[p];
    if (c == '*') return !seen(p, t) && star(p, t);
    if (t >= text_.size()) return false;
    switch (c) {
      case '?':
        if (path_ && text_[t] == '/') return false;
        ++p;
        break;
      case '[': {
        bool matches = false;
        if (!bracket(p, text_[t], matches) || !matches) return false;
        break;
      }
      case '\\':
        if (++p >= pattern_.size()) return false;
        [[fallthrough]];
      default:
        if (pattern_[p] != text_[t]) return false;
        ++p;
    }
    ++t;
  }
  return t == text_.size();
}

// git compares what stands before the first wild card by itself, so that "**" right behind it
// counts as one at the beginning of a pattern.
bool path_match(std::string_view pattern, std::string_view path) {
  const std::size_t plain = std::min(pattern.find_first_of("*?[\\"), pattern.size());
  return path.starts_with(pattern.substr(0, plain)) &&
         wild_match(pattern.substr(plain), path.substr(plain), true);
}

// Without unescaped spaces at the end.
std::string_view without_trailing_spaces(std::string_view line) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == ' ') continue;
    if (line[i] == '\\') {
      if (++i >= line.size()) return line;
    }
    end = i + 1;
  }
  return line.substr(0, end);
}

}  // namespace

bool wild_match(std::string_view pattern, std::string_view text, bool path) {
  return Matcher(pattern, text, path).run();
}

IgnoreList::IgnoreList(std::string_view text, std::string base) : base_(std::move(base)) {
  if (!base_.empty()) base_ += '/';
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with('#')) add(without_trailing_spaces(line.substr(0, line.find('\0'))));
  }
}

IgnoreList::IgnoreList(const std::vector<std::string>& lines, std::string base)
    : base_(std::move(base)) {
  if (!base_.empty()) base_ += '/';
  for (const std::string& line : lines) add(line);
}

void IgnoreList::add(std::string_view line) {
  Pattern pattern;
  if (line.starts_with('!')) {
    pattern.negated = true;
    line.remove_prefix(1);
  }
  if (line.ends_with('/')) {
    pattern.folders_only = true;
    line.remove_suffix(1);
  }
  pattern.name_only = line.find('/') == std::string_view::npos;
  if (line.starts_with('/')) line.remove_prefix(1);
  if (line.empty()) return;
  pattern.text = line;
  patterns_.push_back(std::move(pattern));
}

IgnoreList::Verdict IgnoreList::judge(std::string_view path, bool folder) const {
  if (!path.starts_with(base_) || path.size() == base_.size()) return Verdict::none;
  path.remove_prefix(base_.size());
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (auto pattern = patterns_.rbegin(); pattern != patterns_.rend(); ++pattern) {
    if (pattern->folders_only && !folder) continue;
    const bool matches = pattern->name_only ? wild_match(pattern->text, name, false)
                                            : path_match(pattern->text, path);
    if (matches) return pattern->negated ? Verdict::in : Verdict::out;
  }
  return Verdict::none;
}

bool IgnoreRules::ignores(std::string_view path, bool folder) const {
  IgnoreList::Verdict verdict = above_.judge(path, folder);
  for (auto list = lists_.rbegin(); verdict == IgnoreList::Verdict::none && list != lists_.rend();
       ++list) {
    verdict = list->judge(path, folder);
  }
  return verdict == IgnoreList::Verdict::out;
}

}  // namespace dtrain
