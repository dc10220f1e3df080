#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::aws {

// An element of an answer; attributes, comments and namespaces are dropped.
struct Xml {
  std::string name;
  std::string text;  // of its own, whole
  std::vector<Xml> children;

  // By names with "/" between: "instanceState/name". The first of each; null: there is none.
  const Xml* find(std::string_view path) const;
  std::string at(std::string_view path) const;  // its text; empty: there is none
  // The children of what is there: EC2's lists are an element with an "item" for each.
  const std::vector<Xml>& list(std::string_view path) const;
};

// Throws Error(invalid) for what is no XML, has a DTD, or is nested deeper than 64 elements.
Xml parse_xml(std::string_view text);

}  // namespace dtrain::aws
