// What an SSH host's names, configuration and files may hold: nothing that is accepted can be an
// option or a shell word, and what is quoted for a login shell holds nothing that shells differ in.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/command.hpp"
#include "launcher/remote/ssh/key_agent.hpp"
#include "launcher/remote/ssh/keyring.hpp"
#include "launcher/remote/ssh/known_hosts.hpp"
#include "launcher/remote/ssh/settings.hpp"

namespace {

using namespace dtrain;

void must(bool fine) {
  if (!fine) std::abort();
}

bool harmless(const std::string& word) {
  return !word.empty() && word.front() != '-' &&
         word.find_first_of(" \t\r\n'\"\\$`;|&<>(){}[]*?!#~=,/^") == std::string::npos &&
         word.find('\0') == std::string::npos;
}

// What sh reads from a word in single quotes with '\'' in it.
std::string unquote(std::string_view quoted) {
  std::string text;
  bool inside = false;
  for (std::size_t i = 0; i < quoted.size(); ++i) {
    if (quoted[i] == '\'') {
      inside = !inside;
    } else if (!inside && quoted[i] == '\\') {
      text += quoted[++i];
    } else {
      must(inside ||
           std::string_view(" \t\n$`\"&|;<>()*?[]#~!{}").find(quoted[i]) == std::string_view::npos);
      text += quoted[i];
    }
  }
  must(!inside);
  return text;
}

// What printf %b makes of it.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    must(text.size() > i + 4 && text[i + 1] == '0');
    out += static_cast<char>(std::strtol(std::string(text.substr(i + 2, 3)).c_str(), nullptr, 8));
    i += 4;
  }
  return out;
}

void quoting(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return;
  must(unquote(shell_quote(text)) == text);
  const std::string line = ssh::shell_command(text);
  const std::string_view begin = "exec /bin/sh -c '";
  must(line.rfind(begin, 0) == 0 && line.back() == '\'');
  std::string_view inner = std::string_view(line).substr(begin.size());
  inner.remove_suffix(1);
  must(inner.find_first_of("'!\n\r`") == std::string_view::npos);
  const std::string_view coded = "eval \"$(printf %b \"";
  if (inner.rfind(coded, 0) == 0) {
    inner.remove_prefix(coded.size());
    must(inner.substr(inner.size() - 3) == "\")\"");
    inner.remove_suffix(3);
    must(inner.find_first_of("'!\"$`%\n") == std::string_view::npos);
    must(unescape(inner) == text);
  } else {
    must(inner == text);
  }
}

void settings(std::string_view text) {
  SshHost host;
  host.host = "host";
  try {
    const ssh::Settings read = ssh::settings_from(text, host);
    must(harmless(read.hostname) && harmless(read.user));
    must(read.port >= 1 && read.port <= 65535);
    for (const SshHost& jump : read.jumps) must(harmless(jump.host));
  } catch (const Error& error) {
    must(error.code() == ErrorCode::invalid && error.message().size() < 2000);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  quoting(text);
  settings(text);
  try {
    const SshHost host = ssh::parse_host(text);
    must(harmless(host.host) && (host.user.empty() || harmless(host.user)));
    ssh::check(host);
  } catch (const Error& error) {
    must(error.code() == ErrorCode::invalid);
  }
  ssh::KnownKeys known;
  ssh::read_known_hosts(text, "host", "file", known);
  for (const ssh::KnownKey& key : known.keys) ssh::fingerprint(key.key);
  ssh::parse_identities(text);
  ssh::read_openssh_key(text);
  const std::string marker = "marker";
  ssh::MarkerFilter filter(marker);
  must(filter.feed(text) <= size);
  return 0;
}
