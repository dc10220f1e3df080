#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"

// What a user of AWS's own tools has set: their variables, ~/.aws/config and ~/.aws/credentials, as
// botocore reads them.
namespace dtrain::aws {

// An environment variable; absent where it is unset or empty.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;
Variables process_variables();

struct Setting {
  std::string text;
  Location location;
};

// One section of an INI file, names in small letters. A value of indented lines is a mapping:
// "ec2.endpoint_url" is the name of one within.
struct Section {
  Location location;
  std::map<std::string, Setting> settings;

  const Setting* find(const std::string& name) const;  // null: it is not there
};

// Sections by name. As Python's configparser: "=" or ":", whole lines of comments, values that go
// on in indented lines. Throws Error(invalid) at the line; no value is in its text.
std::map<std::string, Section> parse_ini(std::string_view text, const std::string& file);

// Read once. Immutable, and thread-safe as its variables are.
class Config {
 public:
  // Reads the files that there are. Throws Error(invalid, denied, io); not_found where the profile
  // that a variable names is in none of them.
  explicit Config(Variables variables);

  std::optional<std::string> variable(const std::string& name) const { return variables_(name); }
  fs::path home() const;
  // "~" at its front is the home folder.
  fs::path path(const std::string& text) const;

  const std::string& profile() const { return profile_; }
  // What both files say of it, the credentials file's first; null: neither does.
  const Section* find_profile(const std::string& name) const;
  const Section* in_credentials_file(const std::string& name) const;
  const Section* in_config_file(const std::string& name) const;
  const Section* find_sso_session(const std::string& name) const;

  // Of the active profile; null: it does not say.
  const Setting* setting(const std::string& name) const;
  // The variable, else the profile's setting.
  std::optional<std::string> setting(const char* variable, const std::string& name) const;
  // AWS_ENDPOINT_URL_EC2 of "ec2", AWS_ENDPOINT_URL, the profile's `services`, its endpoint_url.
  std::optional<std::string> endpoint(const std::string& service) const;
  // AWS_REGION, AWS_DEFAULT_REGION, the profile's.
  std::optional<std::string> region() const;
  // AWS_CA_BUNDLE, the profile's, REQUESTS_CA_BUNDLE; empty: none.
  std::string ca_bundle() const;

  const std::string& config_file() const { return config_file_; }
  const std::string& credentials_file() const { return credentials_file_; }

 private:
  Variables variables_;
  std::string config_file_;
  std::string credentials_file_;
  std::string profile_;
  std::map<std::string, Section> config_;       // profiles by name
  std::map<std::string, Section> credentials_;  // likewise
  std::map<std::string, Section> merged_;
  std::map<std::string, Section> sso_sessions_;
  std::map<std::string, Section> services_;
};

// As a POSIX shell reads words, without its expansions. Throws Error(invalid) for quotes that do
// not end; nothing of the text is in it.
std::vector<std::string> shell_words(std::string_view text);

}  // namespace dtrain::aws
