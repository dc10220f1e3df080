#include "cli/stack_tree.hpp"

#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "cli/jobs.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::cli {
namespace {

struct Branch {
  std::string frame;
  std::set<int> ranks;
  std::size_t count = 0;  // of stacks
  std::size_t ended = 0;  // of stacks whose innermost frame this is
  std::vector<std::unique_ptr<Branch>> inner;
};

void add(Branch& root, const RankStack& stack) {
  Branch* at = &root;
  const auto visit = [&](Branch& branch) {
    branch.ranks.insert(stack.rank);
    ++branch.count;
  };
  visit(*at);
  for (const std::string& frame : stack.frames) {
    const auto found = std::find_if(at->inner.begin(), at->inner.end(),
                                    [&](const auto& each) { return each->frame == frame; });
    if (found != at->inner.end()) {
      at = found->get();
    } else {
      at->inner.push_back(std::make_unique<Branch>());
      at = at->inner.back().get();
      at->frame = frame;
    }
    visit(*at);
  }
  ++at->ended;
}

void write(Branch& branch, const std::string& indent, std::string& text) {
  Branch* at = &branch;
  // Frames of which nothing but the file is known come in rows.
  int times = 1;
  while (true) {
    Branch* next = at->inner.size() == 1 && at->ended == 0 ? at->inner.front().get() : nullptr;
    if (next != nullptr && next->frame == at->frame && at->frame.starts_with("?")) {
      ++times;
    } else {
      text +=
          indent + at->frame + (times > 1 ? ", " + std::to_string(times) + " times" : "") + "\n";
      times = 1;
    }
    if (next == nullptr) break;
    at = next;
  }
  std::stable_sort(at->inner.begin(), at->inner.end(),
                   [](const auto& a, const auto& b) { return a->count > b->count; });
  for (const auto& each : at->inner) {
    text += indent + "  " + ranks_in_words(each->ranks) + ":\n";
    write(*each, indent + "    ", text);
  }
}

}  // namespace

std::string stack_tree(const std::vector<RankStack>& stacks) {
  Branch root;
  for (const RankStack& stack : stacks) add(root, stack);
  std::stable_sort(root.inner.begin(), root.inner.end(),
                   [](const auto& a, const auto& b) { return a->count > b->count; });
  std::string text;
  for (const auto& each : root.inner) {
    text += ranks_in_words(each->ranks) + ":\n";
    write(*each, "  ", text);
  }
  return text;
}

std::string ranks_in_words(const std::set<int>& ranks) {
  std::vector<std::string> parts;
  for (auto each = ranks.begin(); each != ranks.end();) {
    const int first = *each;
    int last = first;
    while (++each != ranks.end() && *each == last + 1) last = *each;
    parts.push_back(first == last ? std::to_string(first)
                                  : std::to_string(first) + "-" + std::to_string(last));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(parts, ", ");
}

namespace {

// Behind the bracket that closes the one at `begin`; npos where none does.
std::size_t behind(const std::string& text, std::size_t begin, char open, char close) {
  int depth = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (text[i] == open) ++depth;
    if (text[i] == close && --depth == 0) return i + 1;
  }
  return std::string::npos;
}

}  // namespace

std::string short_function(const std::string& demangled) {
  static const std::string kAnonymous = "(anonymous namespace)";
  // Its brackets are no pairs.
  if (demangled.find("operator") != std::string::npos) return demangled;
  std::string name;
  std::size_t i = 0;
  while (i < demangled.size()) {
    const char c = demangled[i];
    if (demangled.compare(i, kAnonymous.size(), kAnonymous) == 0) {
      name += kAnonymous;
      i += kAnonymous.size();
    } else if (c == '(') {  // parameters: what comes behind them is inside of the function
      i = behind(demangled, i, '(', ')');
      if (i == std::string::npos || demangled.compare(i, 2, "::") != 0) break;
    } else if (c == '<' || c == '{') {
      const std::size_t end = behind(demangled, i, c, c == '<' ? '>' : '}');
      if (end == std::string::npos) return demangled;
      name += c == '<' ? "<…>" : "{lambda}";
      i = end;
    } else {
      if (c == ' ') {
        name.clear();  // that was the type that it gives
      } else {
        name += c;
      }
      ++i;
    }
  }
  return name.empty() ? demangled : name;
}

std::string frame_in_words(const nlohmann::json& frame) {
  const std::string function = text_or(frame, "function");
  const std::string library = text_or(frame, "library");
  const std::string file = fs::path(text_or(frame, "file")).filename().string();
  std::string text = printable(function.empty() ? "?" : short_function(function), false);
  std::vector<std::string> where;
  if (!library.empty()) where.push_back(printable(library, false));
  if (!file.empty()) {
    where.push_back(printable(file, false) + ":" + std::to_string(number_or(frame, "line")));
  }
  return where.empty() ? text : text + " (" + join(where, ", ") + ")";
}

}  // namespace dtrain::cli
