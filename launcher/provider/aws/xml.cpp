#include "launcher/provider/aws/xml.hpp"

#include <expat.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <new>

#include "launcher/core/error.hpp"

namespace dtrain::aws {
namespace {

constexpr std::size_t kDeepest = 64;
constexpr std::size_t kPart = std::size_t{1} << 20U;

struct FreeParser {
  void operator()(XML_Parser parser) const noexcept { ::XML_ParserFree(parser); }
};

// What is open, the outermost first; nothing is thrown through expat.
struct Building {
  XML_Parser parser = nullptr;
  Xml root;  // its only child is the document's
  std::vector<Xml*> open{&root};
  const char* refused = nullptr;

  template <typename Step>
  void guard(Step step) noexcept {
    if (refused != nullptr) return;
    try {
      step();
    } catch (...) {
      refuse("memory is short");
    }
  }
  void refuse(const char* why) {
    refused = why;
    ::XML_StopParser(parser, XML_FALSE);
  }
};

void on_begin(void* to, const char* name, const char**) noexcept {
  Building& building = *static_cast<Building*>(to);
  building.guard([&] {
    if (building.open.size() > kDeepest) return building.refuse("nested too deep");
    Xml& child = building.open.back()->children.emplace_back();
    const char* colon = std::find(name, name + std::char_traits<char>::length(name), ':');
    child.name = *colon == ':' ? colon + 1 : name;
    building.open.push_back(&child);
  });
}

void on_end(void* to, const char*) noexcept {
  Building& building = *static_cast<Building*>(to);
  building.guard([&] { building.open.pop_back(); });
}

void on_text(void* to, const char* text, int size) noexcept {
  Building& building = *static_cast<Building*>(to);
  building.guard([&] { building.open.back()->text.append(text, static_cast<std::size_t>(size)); });
}

void on_dtd(void* to, const char*, const char*, const char*, int) noexcept {
  Building& building = *static_cast<Building*>(to);
  building.guard([&] { building.refuse("it has a DTD"); });
}

// Between elements there is only the layout.
void drop_layout(Xml& element) {
  if (!element.children.empty()) element.text.clear();
  for (Xml& child : element.children) drop_layout(child);
}

}  // namespace

const Xml* Xml::find(std::string_view path) const {
  const Xml* here = this;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view wanted = path.substr(0, end);
    const auto found = std::find_if(here->children.begin(), here->children.end(),
                                    [&](const Xml& child) { return child.name == wanted; });
    if (found == here->children.end()) return nullptr;
    here = &*found;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return here;
}

std::string Xml::at(std::string_view path) const {
  const Xml* found = find(path);
  return found == nullptr ? "" : found->text;
}

const std::vector<Xml>& Xml::list(std::string_view path) const {
  static const std::vector<Xml> none;
  const Xml* found = find(path);
  return found == nullptr ? none : found->children;
}

Xml parse_xml(std::string_view text) {
  const std::unique_ptr<std::remove_pointer_t<XML_Parser>, FreeParser> parser(
      ::XML_ParserCreate(nullptr));
  if (parser == nullptr) throw std::bad_alloc();
  Building building;
  building.parser = parser.get();
  ::XML_SetUserData(parser.get(), &building);
  ::XML_SetElementHandler(parser.get(), on_begin, on_end);
  ::XML_SetCharacterDataHandler(parser.get(), on_text);
  ::XML_SetStartDoctypeDeclHandler(parser.get(), on_dtd);
  bool last = false;
  while (!last) {
    const std::string_view part = text.substr(0, kPart);
    text.remove_prefix(part.size());
    last = text.empty();
    if (::XML_Parse(parser.get(), part.data(), static_cast<int>(part.size()), last ? 1 : 0) !=
        XML_STATUS_OK) {
      const char* why = building.refused != nullptr
                            ? building.refused
                            : ::XML_ErrorString(::XML_GetErrorCode(parser.get()));
      throw Error(ErrorCode::invalid, "no XML that is understood: line " +
                                          std::to_string(::XML_GetCurrentLineNumber(parser.get())) +
                                          ": " + why);
    }
  }
  Xml document = std::move(building.root.children.front());
  drop_layout(document);
  return document;
}

}  // namespace dtrain::aws
