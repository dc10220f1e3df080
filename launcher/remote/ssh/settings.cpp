#include "launcher/remote/ssh/settings.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/handles.hpp"
#include "launcher/remote/ssh/name_service.hpp"

namespace dtrain::ssh {
namespace {

constexpr std::chrono::seconds kAskingLimit{30};  // many at once on a busy machine

const Person& user() {
  static const Person who = person(::getuid());
  return who;
}

// A path as a configuration has it: "~/x", tokens, ${VARIABLE}.
fs::path expand_path(std::string_view text, const Settings& settings) {
  std::string plain;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = text.substr(i, 2) == "${" ? text.find('}', i) : std::string_view::npos;
    if (end != std::string_view::npos) {
      const char* value = std::getenv(std::string(text.substr(i + 2, end - i - 2)).c_str());
      if (value != nullptr) plain += value;
      i = end + 1;
    } else {
      plain += text[i++];
    }
  }
  std::string expanded = expand_tokens(plain, settings);
  if (expanded == "~" || expanded.substr(0, 2) == "~/") expanded.replace(0, 1, user().home);
  return expanded;
}

// Names of files in one line: by blanks, with double quotes around one that has some.
std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> found;
  std::size_t i = 0;
  while (i < line.size()) {
    if (line[i] == ' ' || line[i] == '\t') {
      ++i;
      continue;
    }
    const char until = line[i] == '"' ? '"' : ' ';
    if (until == '"') ++i;
    const std::size_t end = std::min(line.find(until, i), line.size());
    found.emplace_back(line.substr(i, end - i));
    i = end + (until == '"' ? 1 : 0);
  }
  return found;
}

bool truth(std::string_view value) {
  return value == "yes" || value == "true";
}

struct Raw {  // values that can only be expanded when host, port and user are known
  std::vector<std::string> identities, certificates, user_files, global_files;
  std::string agent = "SSH_AUTH_SOCK";
  std::string proxy_command, proxy_jump;
};

void take(std::string_view key, std::string_view value, Settings& settings, Raw& raw) {
  const auto list = [&] {
    return value == "none" ? std::vector<std::string>{} : split(value, ',');
  };
  if (key == "hostname") {
    settings.hostname = value;
  } else if (key == "user") {
    settings.user = value;
  } else if (key == "port") {
    settings.port = number_from<int>(value).value_or(0);
  } else if (key == "identityfile") {
    if (value != "none") raw.identities.emplace_back(value);
  } else if (key == "certificatefile") {
    if (value != "none") raw.certificates.emplace_back(value);
  } else if (key == "identitiesonly") {
    settings.identities_only = truth(value);
  } else if (key == "identityagent") {
    raw.agent = value;
  } else if (key == "proxycommand") {
    if (value != "none") raw.proxy_command = value;
  } else if (key == "proxyjump") {
    if (value != "none") raw.proxy_jump = value;
  } else if (key == "hostkeyalias") {
    settings.host_key_alias = value;
  } else if (key == "userknownhostsfile") {
    raw.user_files = words(value);
  } else if (key == "globalknownhostsfile") {
    raw.global_files = words(value);
  } else if (key == "stricthostkeychecking") {
    if (truth(value)) settings.unknown_key = UnknownKey::refuse;
    if (value == "accept-new" || value == "no" || value == "off" || value == "false") {
      settings.unknown_key = UnknownKey::accept;
    }
  } else if (key == "ciphers") {
    settings.ciphers = list();
  } else if (key == "kexalgorithms") {
    settings.kex = list();
  } else if (key == "macs") {
    settings.macs = list();
  } else if (key == "hostkeyalgorithms") {
    settings.host_key_algorithms = list();
  } else if (key == "addressfamily") {
    settings.address_family = value == "inet" ? AF_INET : value == "inet6" ? AF_INET6 : AF_UNSPEC;
  } else if (key == "bindaddress") {
    settings.bind_address = value;
  } else if (key == "connecttimeout") {
    if (const auto seconds = number_from<int>(value); seconds && *seconds > 0) {
      settings.connect_timeout = std::chrono::seconds(*seconds);
    }
  } else if (key == "pubkeyauthentication") {
    settings.public_key = value != "no" && value != "false";
  } else if (key == "kbdinteractiveauthentication") {
    settings.keyboard_interactive = truth(value);
  } else if (key == "passwordauthentication") {
    settings.password = truth(value);
  }
}

std::string agent_socket(const std::string& configured, const Settings& settings) {
  if (configured == "none" || configured.empty()) return {};
  std::string variable;
  if (configured == "SSH_AUTH_SOCK") {
    variable = configured;
  } else if (configured.front() == '$' && configured.substr(0, 2) != "${") {
    variable = configured.substr(1);
  } else {
    return expand_path(configured, settings);
  }
  const char* socket = std::getenv(variable.c_str());
  return socket != nullptr ? socket : "";
}

Settings finish(Settings settings, const Raw& raw, const SshHost& host) {
  settings.host = host.host;
  if (host.port) settings.port = *host.port;
  if (!host.user.empty()) settings.user = host.user;
  if (settings.hostname.empty()) settings.hostname = host.host;
  if (settings.user.empty()) settings.user = user().name;
  check_host(settings.hostname);
  check_user(settings.user);
  check_port(settings.port);
  if (!settings.host_key_alias.empty()) check_host(settings.host_key_alias);

  if (!host.identity.empty()) {
    settings.identities.push_back(expand_path(host.identity.native(), settings));
    settings.identity_given = true;
  }
  for (const std::string& file : raw.identities) {
    fs::path path = expand_path(file, settings);
    if (std::find(settings.identities.begin(), settings.identities.end(), path) ==
        settings.identities.end()) {
      settings.identities.push_back(std::move(path));
    }
  }
  for (const std::string& file : raw.certificates) {
    settings.certificates.push_back(expand_path(file, settings));
  }
  for (const auto* files : {&raw.user_files, &raw.global_files}) {
    for (const std::string& file : *files) {
      if (file != "none") settings.known_hosts.push_back(expand_path(file, settings));
    }
  }
  settings.agent_socket = agent_socket(raw.agent, settings);
  // What the caller names wins over the configuration, a jump over a command.
  if (!host.jumps.empty()) {
    settings.jumps = host.jumps;
  } else if (!host.proxy_command.empty()) {
    settings.proxy_command =
        host.proxy_command == "none" ? "" : expand_tokens(host.proxy_command, settings);
  } else if (!raw.proxy_jump.empty()) {
    settings.jumps = parse_jumps(raw.proxy_jump);
  } else if (!raw.proxy_command.empty()) {
    settings.proxy_command = expand_tokens(raw.proxy_command, settings);
  }
  return settings;
}

// No SSH client here: libssh reads the configuration as far as it can.
Settings by_libssh(const SshHost& host, const fs::path& config) {
  const Session session = make_session();
  set_option(session, SSH_OPTIONS_HOST, host.host);
  if (!host.user.empty()) set_option(session, SSH_OPTIONS_USER, host.user);
  if (ssh_options_parse_config(session.get(), config.empty() ? nullptr : config.c_str()) !=
      SSH_OK) {
    throw Error(ErrorCode::invalid, std::string("the configuration of ssh cannot be read: ") +
                                        printable(ssh_get_error(session.get()), false));
  }
  const auto get = [&](ssh_options_e option) {
    char* value = nullptr;
    std::string text;
    if (ssh_options_get(session.get(), option, &value) == SSH_OK && value != nullptr) text = value;
    ssh_string_free_char(value);
    return text;
  };
  Settings settings;
  Raw raw;
  settings.hostname = get(SSH_OPTIONS_HOST);
  settings.user = get(SSH_OPTIONS_USER);
  unsigned port = 0;
  ssh_options_get_port(session.get(), &port);
  settings.port = port == 0 ? 22 : static_cast<int>(port);
  raw.proxy_command = get(SSH_OPTIONS_PROXYCOMMAND);
  const std::string identity = get(SSH_OPTIONS_IDENTITY);
  if (!identity.empty()) raw.identities.push_back(identity);
  for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa"}) {
    raw.identities.push_back(std::string("~/.ssh/") + name);
  }
  raw.user_files = {"~/.ssh/known_hosts", "~/.ssh/known_hosts2"};
  raw.global_files = {"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"};
  settings.warnings.push_back(
      "there is no ssh client here, so ~/.ssh/config is read in part only: IdentitiesOnly, "
      "HostKeyAlias, CertificateFile and some Match lines count for nothing");
  return finish(std::move(settings), raw, host);
}

}  // namespace

std::string Settings::key_name() const {
  if (!host_key_alias.empty()) return host_key_alias;
  std::string name = hostname;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return port == 22 ? name : "[" + name + "]:" + std::to_string(port);
}

std::string expand_tokens(std::string_view text, const Settings& settings) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const char token = ++i < text.size() ? text[i] : '\0';
    switch (token) {
      case '%':
        out += '%';
        break;
      case 'h':
        out += settings.hostname;
        break;
      case 'p':
        out += std::to_string(settings.port);
        break;
      case 'r':
        out += settings.user;
        break;
      case 'n':
        out += settings.host;
        break;
      case 'k':
        out += settings.host_key_alias.empty() ? settings.host : settings.host_key_alias;
        break;
      case 'u':
        out += user().name;
        break;
      case 'i':
        out += std::to_string(::getuid());
        break;
      case 'd':
        out += user().home;
        break;
      case 'l':
      case 'L': {
        std::string name(256, '\0');
        ::gethostname(name.data(), name.size() - 1);
        name.resize(name.find('\0'));
        if (token == 'L') name.resize(std::min(name.find('.'), name.size()));
        check_host(name);
        out += name;
        break;
      }
      default:
        throw Error(ErrorCode::invalid, "%" + printable(text.substr(i, 1), false) +
                                            " is not known, in '" +
                                            printable(text.substr(0, 200), false) + "'");
    }
  }
  return out;
}

Settings settings_from(std::string_view printed, const SshHost& host) {
  Settings settings;
  Raw raw;
  for (const std::string& line : split(printed, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank == std::string::npos) continue;
    std::string key = line.substr(0, blank);
    std::transform(key.begin(), key.end(), key.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    take(key, std::string_view(line).substr(blank + 1), settings, raw);
  }
  return finish(std::move(settings), raw, host);
}

Settings resolve(const SshHost& host, const fs::path& config) {
  check(host);
  SpawnOptions options;
  options.argv = {"ssh", "-G"};
  if (!config.empty()) options.argv.insert(options.argv.end(), {"-F", config.native()});
  if (host.port) options.argv.insert(options.argv.end(), {"-p", std::to_string(*host.port)});
  if (!host.user.empty()) options.argv.insert(options.argv.end(), {"-l", host.user});
  options.argv.insert(options.argv.end(), {"--", host.host});
  Captured asked;
  try {
    asked = capture(options, {}, kAskingLimit);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return by_libssh(host, config);
    throw;
  }
  if (asked.timed_out) {
    throw Error(ErrorCode::timeout,
                "ssh -G " + host.host + " did not end within " + human_duration(kAskingLimit))
        .with_hint("a `Match exec` in your ssh configuration may hang");
  }
  if (!asked.exit.ok()) {
    throw Error(ErrorCode::invalid, "ssh cannot make sense of " + host.host + ": " +
                                        printable(join(split(asked.err, '\n'), " "), false))
        .with_hint("try: ssh -G " + host.host);
  }
  return while_doing("reading the ssh configuration of " + host.host,
                     [&] { return settings_from(asked.out, host); });
}

}  // namespace dtrain::ssh
