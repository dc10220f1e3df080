#include "launcher/provider/aws/config.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>
#include <vector>

#include "launcher/core/text.hpp"

namespace dtrain::aws {
namespace {

constexpr std::size_t kMostFile = std::size_t{4} << 20U;
constexpr std::string_view kSpace = " \t\r\f\v";

class IniReader {
 public:
  explicit IniReader(const std::string& file) : file_(file) {}

  std::map<std::string, Section> read(std::string_view text) {
    for (const std::string& line : split(text, '\n')) {
      ++number_;
      take(line);
    }
    for (auto& [name, section] : sections_) {
      for (const auto& [key, setting] : defaults_.settings) section.settings.emplace(key, setting);
      unfold(section);
    }
    return std::move(sections_);
  }

 private:
  void take(std::string_view line) {
    const std::string said = trimmed(line);
    if (said.empty() || said.front() == '#' || said.front() == ';') return;
    const std::size_t indent = line.find_first_not_of(kSpace);
    if (setting_ != nullptr && indent > indent_) {
      setting_->text += "\n" + said;
      return;
    }
    indent_ = indent;
    setting_ = nullptr;
    if (said.front() == '[') return begin(said);
    const std::size_t end = said.find_first_of("=:");
    if (section_ == nullptr || end == std::string::npos || end == 0) {
      throw wrong(section_ == nullptr ? "a line outside of any [section]"
                                      : "a line without a \"=\"");
    }
    const std::string name = lower_case(trimmed(said.substr(0, end)));
    const auto [at, fresh] =
        section_->settings.emplace(name, Setting{trimmed(said.substr(end + 1)), here()});
    if (!fresh) throw wrong(printable(name, false) + " stands twice in " + section_name_);
    setting_ = &at->second;
  }

  void begin(std::string_view said) {
    const std::size_t end = said.find(']');
    if (end == std::string_view::npos || end == 1) throw wrong("a section without an end");
    const std::string name(said.substr(1, end - 1));
    section_name_ = "[" + printable(name, false) + "]";
    if (name == "DEFAULT") {  // configparser's: for all sections
      section_ = &defaults_;
      return;
    }
    const auto [at, fresh] = sections_.emplace(name, Section{here(), {}});
    if (!fresh) throw wrong(section_name_ + " stands twice");
    section_ = &at->second;
  }

  // A value that begins with its second line.
  static void unfold(Section& section) {
    std::map<std::string, Setting> within;
    for (const auto& [name, setting] : section.settings) {
      if (!setting.text.starts_with('\n')) continue;
      for (const std::string& line : split(setting.text, '\n')) {
        const std::size_t end = line.find('=');
        if (end == std::string::npos) continue;
        within.emplace(name + "." + trimmed(line.substr(0, end)),
                       Setting{trimmed(line.substr(end + 1)), setting.location});
      }
    }
    section.settings.merge(within);
  }

  Location here() const { return {file_, number_, 0}; }
  Error wrong(const std::string& what) const {
    return Error(ErrorCode::invalid, "this is no file of AWS's: " + what).at(here());
  }

  const std::string& file_;
  int number_ = 0;
  std::size_t indent_ = 0;
  std::map<std::string, Section> sections_;
  Section defaults_;
  Section* section_ = nullptr;
  std::string section_name_;
  Setting* setting_ = nullptr;
};

// The NAME of `kind NAME`, `kind "NAME"`; absent: another one's.
std::optional<std::string> name_in(const std::string& section, std::string_view kind) {
  if (!section.starts_with(kind)) return std::nullopt;
  try {
    std::vector<std::string> words = shell_words(section);
    if (words.size() == 2 && words[0] == kind) return std::move(words[1]);
  } catch (const Error&) {  // as botocore: it is none
  }
  return std::nullopt;
}

const Section* find_in(const std::map<std::string, Section>& sections, const std::string& name) {
  const auto found = sections.find(name);
  return found == sections.end() ? nullptr : &found->second;
}

}  // namespace

Variables process_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

const Setting* Section::find(const std::string& name) const {
  const auto found = settings.find(name);
  return found == settings.end() ? nullptr : &found->second;
}

std::map<std::string, Section> parse_ini(std::string_view text, const std::string& file) {
  return IniReader(file).read(text);
}

Config::Config(Variables variables) : variables_(std::move(variables)) {
  config_file_ = path(variable("AWS_CONFIG_FILE").value_or("~/.aws/config")).string();
  credentials_file_ =
      path(variable("AWS_SHARED_CREDENTIALS_FILE").value_or("~/.aws/credentials")).string();
  const auto read = [](const std::string& file) {
    const auto text = read_file_if_there(file, kMostFile);
    return text ? parse_ini(*text, file) : std::map<std::string, Section>();
  };
  for (auto& [name, section] : read(config_file_)) {
    if (name == "default") {
      config_.insert_or_assign(name, std::move(section));
    } else if (const auto profile = name_in(name, "profile")) {
      config_.emplace(*profile, std::move(section));
    } else if (const auto session = name_in(name, "sso-session")) {
      sso_sessions_.emplace(*session, std::move(section));
    } else if (const auto services = name_in(name, "services")) {
      services_.emplace(*services, std::move(section));
    }
  }
  credentials_ = read(credentials_file_);
  merged_ = credentials_;
  for (const auto& [name, section] : config_) {
    Section& both = merged_.emplace(name, section).first->second;
    both.settings.insert(section.settings.begin(), section.settings.end());
  }
  const auto named =
      variable("AWS_DEFAULT_PROFILE") ? variable("AWS_DEFAULT_PROFILE") : variable("AWS_PROFILE");
  profile_ = named.value_or("default");
  if (named && find_profile(profile_) == nullptr) {
    throw Error(ErrorCode::not_found, "the AWS profile " + printable(profile_, false) +
                                          ", which AWS_PROFILE names, is neither in " +
                                          printable_path(config_file_) + " nor in " +
                                          printable_path(credentials_file_));
  }
}

fs::path Config::home() const {
  return variable("HOME").value_or("/");
}

fs::path Config::path(const std::string& text) const {
  if (text == "~") return home();
  return text.starts_with("~/") ? home() / text.substr(2) : fs::path(text);
}

const Section* Config::find_profile(const std::string& name) const {
  return find_in(merged_, name);
}

const Section* Config::in_credentials_file(const std::string& name) const {
  return find_in(credentials_, name);
}

const Section* Config::in_config_file(const std::string& name) const {
  return find_in(config_, name);
}

const Section* Config::find_sso_session(const std::string& name) const {
  return find_in(sso_sessions_, name);
}

const Setting* Config::setting(const std::string& name) const {
  const Section* profile = find_profile(profile_);
  return profile == nullptr ? nullptr : profile->find(name);
}

std::optional<std::string> Config::setting(const char* variable_name,
                                           const std::string& name) const {
  if (auto value = variable(variable_name)) return value;
  const Setting* found = setting(name);
  return found == nullptr ? std::nullopt : std::optional(found->text);
}

std::optional<std::string> Config::endpoint(const std::string& service) const {
  const auto ignored = setting("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",  //
                               "ignore_configured_endpoint_urls");
  if (ignored && lower_case(*ignored) == "true") return std::nullopt;
  std::string capitals = service;
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (auto url = variable("AWS_ENDPOINT_URL_" + capitals)) return url;
  if (auto url = variable("AWS_ENDPOINT_URL")) return url;
  if (const Setting* named = setting("services")) {
    const Section* services = find_in(services_, named->text);
    if (services == nullptr) {
      throw Error(ErrorCode::invalid, "there is no section [services " +
                                          printable(named->text, false) + "], which profile " +
                                          printable(profile_, false) + " names")
          .at(named->location);
    }
    if (const Setting* url = services->find(service + ".endpoint_url")) return url->text;
  }
  const Setting* url = setting("endpoint_url");
  return url == nullptr ? std::nullopt : std::optional(url->text);
}

std::optional<std::string> Config::region() const {
  if (auto region = variable("AWS_REGION")) return region;
  return setting("AWS_DEFAULT_REGION", "region");
}

std::string Config::ca_bundle() const {
  if (auto file = setting("AWS_CA_BUNDLE", "ca_bundle")) return path(*file).string();
  return variable("REQUESTS_CA_BUNDLE").value_or("");
}

std::vector<std::string> shell_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      const char next = i + 1 < text.size() ? text[i + 1] : '\0';
      if (c == quote) {
        quote = '\0';
      } else if (c == '\\' && quote == '"' && (next == '"' || next == '\\')) {
        word += text[++i];
      } else {
        word += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      begun = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      word += text[++i];
      begun = true;
    } else if (kSpace.find(c) != std::string_view::npos || c == '\n') {
      if (begun) words.push_back(std::exchange(word, {}));
      begun = false;
    } else {
      word += c;
      begun = true;
    }
  }
  if (quote != '\0') throw Error(ErrorCode::invalid, "its quotes do not end");
  if (begun) words.push_back(word);
  return words;
}

}  // namespace dtrain::aws
