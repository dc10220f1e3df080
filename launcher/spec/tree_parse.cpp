#include "launcher/spec/tree.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <istream>
#include <streambuf>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "launcher/core/text.hpp"

namespace dtrain::spec {
namespace {

constexpr std::string_view kCoreTag = "tag:yaml.org,2002:";

bool any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

Place place_of(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {mark.line + 1, mark.column + 1};
}

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

class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // get area only: never written
    setg(begin, begin, begin + text.size());
  }
};

}  // namespace

// Turns yaml-cpp's events into a Tree. It counts before it keeps, so that nothing grows beyond the
// bounds, whatever the text is.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(Report& report) : report_(report) {}

  Tree take() {
    if (tree_.root_ == nullptr) tree_.root_ = &tree_.nodes_.emplace_back();
    return std::move(tree_);
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail(mark, "a second document ('---') begins here; a file has one");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (awaits_key()) fail(mark, "a key is empty");
    Node& node = make(mark, Node::Kind::null);
    // An empty value's mark is that of what follows it, which may be lines below.
    if (!frames_.empty() && frames_.back().has_key) node.place = frames_.back().key.place;
    place(&node, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (awaits_key()) fail(mark, "an alias cannot be a key");
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "this alias stands within its own anchor");
    const Node& node = *found->second;
    count(mark, node.nodes, node.bytes, node.levels);
    place(&node, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    bool plain = tag == "?";
    if (!plain && tag != "!" && !tag.empty()) {
      plain = any_of(tag, {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float",
                           "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"});
      if (!plain && tag != "tag:yaml.org,2002:str") refuse_tag(mark, tag);
    }
    if (const std::size_t nul = value.find('\0'); nul != std::string::npos) {
      fail(mark, "a text contains a NUL character");
    }
    if (awaits_key()) {
      if (anchor != 0) fail(mark, "an anchor on a key is not understood");
      if (value.size() > kMaxKey) fail(mark, "a key is longer than " + human_bytes(kMaxKey));
      count(mark, 1, value.size(), 1);
      frames_.back().key = {value, place_of(mark), nullptr};
      frames_.back().merge = plain && value == "<<";
      frames_.back().has_key = true;
      return;
    }
    Node& node = make(mark, Node::Kind::scalar, value.size());
    node.text = value;
    node.plain = plain;
    place(&node, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    start(mark, tag, anchor, Node::Kind::sequence);
  }
  void OnSequenceEnd() override { finish(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    start(mark, tag, anchor, Node::Kind::mapping);
  }
  void OnMapEnd() override {
    merge();
    finish();
  }

 private:
  struct Frame {
    Node* node;
    YAML::anchor_t anchor;
    bool has_key = false;
    bool merge = false;
    Entry key;
    std::unordered_set<std::string> seen;
    std::vector<std::pair<Place, const Node*>> merges;
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message,
                         const std::string& hint = {}) {
    report_.problem({}, place_of(mark), message, hint);
    report_.finish();
    throw Error(ErrorCode::internal, message);  // not reached: finish() throws
  }

  [[noreturn]] void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    fail(mark, "the tag " + shown(tag) + " is not understood",
         "put quotes around a text that begins with !");
  }

  bool awaits_key() const {
    return !frames_.empty() && frames_.back().node->kind == Node::Kind::mapping &&
           !frames_.back().has_key;
  }

  void count(const YAML::Mark& mark, std::size_t nodes, std::size_t bytes, std::size_t levels) {
    nodes_ += nodes;
    bytes_ += bytes;
    if (frames_.size() + levels > kMaxLevels) {
      fail(mark, "nested more than " + std::to_string(kMaxLevels) + " levels deep");
    }
    if (nodes_ > kMaxNodes) {
      fail(mark, "more than " + std::to_string(kMaxNodes) + " values, those of aliases counted");
    }
    if (bytes_ > kMaxBytes) {
      fail(mark, "more than " + human_bytes(kMaxBytes) + " of text, that of aliases counted");
    }
  }

  Node& make(const YAML::Mark& mark, Node::Kind kind, std::size_t bytes = 0) {
    count(mark, 1, bytes, 1);
    Node& node = tree_.nodes_.emplace_back();
    node.kind = kind;
    node.place = place_of(mark);
    node.bytes = bytes;
    return node;
  }

  void start(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
             Node::Kind kind) {
    if (!tag.empty() && tag != "?" && tag != "!" && tag != std::string(kCoreTag) + "map" &&
        tag != std::string(kCoreTag) + "seq") {
      refuse_tag(mark, tag);
    }
    if (awaits_key()) {
      fail(mark, "a key must be a text", "put quotes around a text that begins with { or [");
    }
    Node& node = make(mark, kind);
    frames_.push_back(Frame{&node, anchor, false, false, {}, {}, {}});
  }

  void finish() {
    Node* node = frames_.back().node;
    const YAML::anchor_t anchor = frames_.back().anchor;
    frames_.pop_back();
    place(node, anchor);
  }

  // Puts a finished value where it belongs.
  void place(const Node* node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = node;
    if (frames_.empty()) {
      tree_.root_ = node;
      return;
    }
    Frame& frame = frames_.back();
    Node& parent = *frame.node;
    parent.nodes += node->nodes;
    parent.bytes += node->bytes;
    parent.levels = std::max(parent.levels, node->levels + 1);
    if (parent.kind == Node::Kind::sequence) {
      parent.items.push_back(node);
      return;
    }
    frame.has_key = false;
    parent.nodes += 1;
    parent.bytes += frame.key.key.size();
    if (frame.merge) {
      frame.merges.emplace_back(frame.key.place, node);
      return;
    }
    if (!frame.seen.insert(frame.key.key).second) {
      report_.problem(key_path(), frame.key.place, "is there twice in this mapping");
      return;
    }
    parent.entries.push_back({std::move(frame.key.key), frame.key.place, node});
  }

  Path key_path() const {
    Path path;
    for (const Frame& frame : frames_) {
      if (frame.node->kind == Node::Kind::mapping) {
        path.push_back(frame.key.key);
      } else {
        path.push_back("[" + std::to_string(frame.node->items.size()) + "]");
      }
    }
    return path;
  }

  // `<<: *base` or `<<: [*a, *b]`: keys that are not there yet, the first one wins.
  void merge() {
    Frame& frame = frames_.back();
    for (const auto& [where, value] : frame.merges) {
      std::vector<const Node*> bases;
      if (value->kind == Node::Kind::sequence) {
        bases = value->items;
      } else {
        bases.push_back(value);
      }
      for (const Node* base : bases) {
        if (base->kind != Node::Kind::mapping) {
          report_.problem({"<<"}, where, "must be a mapping, or a list of mappings");
          continue;
        }
        for (const Entry& entry : base->entries) {
          if (frame.seen.insert(entry.key).second) frame.node->entries.push_back(entry);
        }
      }
    }
  }

  Report& report_;
  Tree tree_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, const Node*> anchors_;
  std::size_t nodes_ = 0;
  std::size_t bytes_ = 0;
  int documents_ = 0;
};

namespace {

Place place_at(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t start = before.rfind('\n');
  const std::size_t column = start == std::string_view::npos ? offset : offset - start - 1;
  return {static_cast<int>(lines) + 1, static_cast<int>(column) + 1};
}

std::string_view line_of(std::string_view text, const YAML::Mark& mark) {
  if (mark.is_null() || mark.pos < 0 || static_cast<std::size_t>(mark.pos) > text.size()) return {};
  const auto at = static_cast<std::size_t>(mark.pos);
  const std::size_t before = text.substr(0, at).rfind('\n');
  const std::size_t start = before == std::string_view::npos ? 0 : before + 1;
  return text.substr(start, std::min(text.find('\n', at), text.size()) - start);
}

[[noreturn]] void refuse(Report& report, Place place, const std::string& message,
                         const std::string& hint = {}) {
  report.problem({}, place, message, hint);
  report.finish();
  throw Error(ErrorCode::internal, message);  // not reached: finish() throws
}

// What can be told without parsing. yaml-cpp looks ahead for the end of each bracket before it says
// anything, at some 200 bytes of memory a token: so brackets are counted first.
void check_text(std::string_view text, Report& report) {
  if (text.size() > kMaxText) {
    refuse(report, {}, "the file is larger than " + human_bytes(kMaxText));
  }
  std::size_t marks = 0;
  std::size_t open = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t' && c != '\n' && c != '\r') || byte == 0x7F) {
      refuse(report, place_at(text, i),
             c == '\0' ? "a NUL character" : "a control character: " + printable({&c, 1}),
             c == '\0' ? "is this a text file, and UTF-8?" : "");
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
    if (open > 10 * kMaxLevels) refuse(report, place_at(text, i), "brackets nested too deep");
    if (marks > kMaxMarks) {
      refuse(report, place_at(text, i),
             "more than " + std::to_string(kMaxMarks) + " of the characters [ ] { } , & * !");
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
    refuse(report, {static_cast<int>(line), 1}, "this line is not UTF-8");
  }
}

}  // namespace

Tree parse_tree(std::string_view text, Report& report) {
  check_text(text, report);
  TreeBuilder builder(report);
  ViewBuffer buffer(text);
  std::istream in(&buffer);
  try {
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    std::string message = error.msg;
    std::string hint;
    for (const Reworded& entry : kReworded) {
      if (message == entry.theirs) {
        message = entry.ours;
        hint = entry.hint;
        break;
      }
    }
    if (line_of(text, error.mark).find("${") != std::string_view::npos) {
      hint = "within { } and [ ], put quotes around a text that contains ${…}";
    }
    refuse(report, place_of(error.mark), "not YAML: " + printable(message, false), hint);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // what yaml-cpp lets through of its own
    refuse(report, {}, std::string("not YAML: ") + printable(error.what(), false));
  }
  return builder.take();
}

}  // namespace dtrain::spec
