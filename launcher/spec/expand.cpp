#include "launcher/spec/expand.hpp"

#include <filesystem>
#include <optional>
#include <system_error>

#include "launcher/core/text.hpp"
#include "launcher/spec/checks.hpp"
#include "launcher/spec/document.hpp"

namespace dtrain::spec {
namespace {

std::string clean(const std::filesystem::path& path) {
  std::string text = path.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace

Expander::Expander(const Environment& environment, const std::string& file)
    : environment_(environment) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  file_ = clean((error ? std::filesystem::path("/") : here) / file);
  folder_ = std::filesystem::path(file_).parent_path().string();
}

std::string Expander::expand(std::string_view text) {
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t dollar = text.find('$', at);
    out += text.substr(at, dollar - at);
    if (dollar == std::string_view::npos) break;
    const char next = dollar + 1 < text.size() ? text[dollar + 1] : '\0';
    if (next != '{') {
      out += '$';
      at = dollar + (next == '$' ? 2 : 1);
      continue;
    }
    const std::size_t end = text.find('}', dollar);
    if (end == std::string_view::npos) {
      throw Error(ErrorCode::invalid, "${ without its }").with_hint("write $$ for a dollar");
    }
    const std::string name(text.substr(dollar + 2, end - dollar - 2));
    if (!valid_environment_name(name)) {
      throw Error(ErrorCode::invalid,
                  "${" + shown(name).substr(1, shown(name).size() - 2) + "} is not ${NAME}")
          .with_hint("only a variable's name can stand there; write $$ for a dollar");
    }
    const std::optional<std::string> value = environment_(name);
    if (!value) {
      throw Error(ErrorCode::invalid, "the environment variable " + name + " is not set")
          .with_hint("export " + name + "=…, or write $${" + name + "} for the text itself");
    }
    if (value->find('\0') != std::string::npos || !is_utf8(*value)) {
      throw Error(ErrorCode::invalid, "the environment variable " + name + " is not UTF-8 text");
    }
    out += *value;
    grown_ += value->size();
    if (grown_ > kMaxBytes) {
      throw Error(ErrorCode::invalid, "the variables of this file are longer than 16 MiB in all");
    }
    at = end + 1;
  }
  return out;
}

std::string Expander::path(const std::string& text) const {
  if (text == "~" || text.starts_with("~/")) {
    const std::optional<std::string> home = environment_("HOME");
    if (!home || home->empty() || home->front() != '/') {
      throw Error(ErrorCode::invalid, "~ is not known: the environment variable HOME is not set");
    }
    return clean(std::filesystem::path(*home + text.substr(1)));
  }
  return clean(std::filesystem::path(folder_) / text);
}

}  // namespace dtrain::spec
