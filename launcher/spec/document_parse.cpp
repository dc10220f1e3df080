#include "launcher/spec/document.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <streambuf>
#include <unordered_map>
#include <utility>

#include "launcher/core/text.hpp"
#include "launcher/spec/syntax.hpp"

namespace dtrain::spec {
namespace {

constexpr std::string_view kCoreTag = "tag:yaml.org,2002:";
constexpr std::string_view kByteOrder = "\xef\xbb\xbf";  // a mark that yaml-cpp does not count

Place place_of(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {mark.line + 1, mark.column + 1};
}

class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // get area only: never written
    setg(begin, begin, begin + text.size());
  }
};

}  // namespace

// Turns yaml-cpp's events into a Document. It counts before it keeps, so that nothing grows beyond
// the bounds, whatever the text is.
class DocumentBuilder : public YAML::EventHandler {
 public:
  DocumentBuilder(std::string_view text, Report& report) : text_(text), report_(report) {}

  Document take() {
    if (document_.root_ == nullptr) document_.root_ = &document_.nodes_.emplace_back();
    return std::move(document_);
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
      plain = tag == "tag:yaml.org,2002:int" || tag == "tag:yaml.org,2002:float" ||
              tag == "tag:yaml.org,2002:bool" || tag == "tag:yaml.org,2002:null";
      if (!plain && tag != "tag:yaml.org,2002:str") refuse_tag(mark, tag);
    }
    if (const std::size_t nul = value.find('\0'); nul != std::string::npos) {
      fail(mark, "a text contains a NUL character");
    }
    if (!plain) check_quotes(mark);
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
    std::unordered_map<std::string, std::size_t> seen;  // key: index among the node's entries
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

  // yaml-cpp takes the end of the file for the end of quotes.
  void check_quotes(const YAML::Mark& mark) {
    if (mark.is_null() || mark.pos < 0) return;
    const std::size_t at =
        static_cast<std::size_t>(mark.pos) + (text_.starts_with(kByteOrder) ? 3 : 0);
    if (at >= text_.size() || (text_[at] != '"' && text_[at] != '\'')) return;  // a block, or a tag
    if (closing_quote(text_, at) == std::string_view::npos) {
      fail(mark, "not YAML: the quote that opens here is never closed");
    }
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
    Node& node = document_.nodes_.emplace_back();
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
      document_.root_ = node;
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
    const auto [seen, is_new] = frame.seen.emplace(frame.key.key, parent.entries.size());
    if (!is_new) {
      Entry& before = parent.entries[seen->second];
      if (document_.repeated_.size() < Report::kMost) {
        document_.repeated_.push_back({key_path(), before.place, frame.key.place});
      }
      before.place = frame.key.place;
      before.value = node;
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
          if (frame.seen.emplace(entry.key, frame.node->entries.size()).second) {
            frame.node->entries.push_back(entry);
          }
        }
      }
    }
  }

  std::string_view text_;
  Report& report_;
  Document document_;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, const Node*> anchors_;
  std::size_t nodes_ = 0;
  std::size_t bytes_ = 0;
  int documents_ = 0;
};

namespace {

[[noreturn]] void refuse(Report& report, const Mistake& mistake) {
  report.problem({}, mistake.place, mistake.message, mistake.hint);
  report.finish();
  throw Error(ErrorCode::internal, mistake.message);  // not reached: finish() throws
}

}  // namespace

Document parse_document(std::string_view text, Report& report) {
  if (const auto mistake = mistake_in(text)) refuse(report, *mistake);
  DocumentBuilder builder(text, report);
  ViewBuffer buffer(text);
  std::istream in(&buffer);
  try {
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    refuse(report, explain_syntax(text, place_of(error.mark), error.msg));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // what yaml-cpp lets through of its own
    refuse(report, {{}, std::string("not YAML: ") + printable(error.what(), false), ""});
  }
  return builder.take();
}

}  // namespace dtrain::spec
