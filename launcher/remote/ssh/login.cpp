#include "launcher/remote/ssh/login.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <thread>

#include "launcher/core/address.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/ssh/blob.hpp"
#include "launcher/remote/ssh/connection.hpp"
#include "launcher/remote/ssh/reach.hpp"

namespace dtrain::ssh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a server may be silent before it says what it is, and in each step after that.
constexpr std::chrono::seconds kSilence{15};
constexpr int kMostProxyFailures = 4;
constexpr milliseconds kFirstPause{40};
constexpr milliseconds kLongestPause{1500};

// Ours in the order of speed (AES has instructions for it everywhere), less what is not allowed.
const std::vector<std::string> kCiphers = {"aes128-gcm@openssh.com",
                                           "aes256-gcm@openssh.com",
                                           "chacha20-poly1305@openssh.com",
                                           "aes128-ctr",
                                           "aes192-ctr",
                                           "aes256-ctr"};
const std::vector<std::string> kKex = {"curve25519-sha256",
                                       "curve25519-sha256@libssh.org",
                                       "ecdh-sha2-nistp256",
                                       "ecdh-sha2-nistp384",
                                       "ecdh-sha2-nistp521",
                                       "diffie-hellman-group18-sha512",
                                       "diffie-hellman-group16-sha512",
                                       "diffie-hellman-group-exchange-sha256",
                                       "diffie-hellman-group14-sha256"};
const std::vector<std::string> kMacs = {"hmac-sha2-256-etm@openssh.com",
                                        "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256",
                                        "hmac-sha2-512"};
const std::vector<std::string> kHostKeys = {"ssh-ed25519",         "ecdsa-sha2-nistp256",
                                            "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
                                            "rsa-sha2-512",        "rsa-sha2-256"};

std::vector<std::string> allowed(const std::vector<std::string>& ours,
                                 const std::vector<std::string>& configured, const char* what) {
  if (configured.empty()) return ours;
  std::vector<std::string> both;
  std::copy_if(ours.begin(), ours.end(), std::back_inserter(both), [&](const std::string& one) {
    return std::find(configured.begin(), configured.end(), one) != configured.end();
  });
  if (!both.empty()) return both;
  throw Error(ErrorCode::invalid, std::string("none of the ") + what +
                                      " that the ssh configuration allows is known here: " +
                                      printable(join(configured, ","), false));
}

Session prepare(const Settings& settings, const KnownKeys& known) {
  Session session = make_session();
  set_option(session, SSH_OPTIONS_HOST, settings.hostname);
  set_option(session, SSH_OPTIONS_PORT, settings.port);
  set_option(session, SSH_OPTIONS_USER, settings.user);
  // Host keys and identities are ours to look up, not libssh's.
  set_option(session, SSH_OPTIONS_KNOWNHOSTS, "/dev/null");
  set_option(session, SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null");
  set_option(session, SSH_OPTIONS_NODELAY, 1);
  set_option(session, SSH_OPTIONS_GSSAPI_AUTH, 0);
  const std::string ciphers = join(allowed(kCiphers, settings.ciphers, "ciphers"), ",");
  set_option(session, SSH_OPTIONS_CIPHERS_C_S, ciphers);
  set_option(session, SSH_OPTIONS_CIPHERS_S_C, ciphers);
  // Not asked where a cipher checks itself, so a list without ours need not fail.
  std::vector<std::string> macs = kMacs;
  try {
    macs = allowed(kMacs, settings.macs, "MACs");
  } catch (const Error&) {
    if (ciphers.find("gcm") == std::string::npos && ciphers.find("chacha") == std::string::npos) {
      throw;
    }
  }
  set_option(session, SSH_OPTIONS_HMAC_C_S, join(macs, ","));
  set_option(session, SSH_OPTIONS_HMAC_S_C, join(macs, ","));
  set_option(session, SSH_OPTIONS_KEY_EXCHANGE,
             join(allowed(kKex, settings.kex, "key exchanges"), ","));
  set_option(
      session, SSH_OPTIONS_HOSTKEYS,
      join(order_algorithms(allowed(kHostKeys, settings.host_key_algorithms, "host key algorithms"),
                            known),
           ","));
  ssh_set_blocking(session.get(), 0);
  return session;
}

// Waits for the server's first words without taking them.
void await_banner(int fd, const Deadline& deadline, Carrier& carrier) {
  const auto until = steady_clock::now() + kSilence;
  while (true) {
    std::array<char, 64> first{};
    const ssize_t got = ::recv(fd, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
    const std::string_view text(first.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      const std::string said = carrier.proxy_said();
      throw Dropped{said.empty() ? "it closed the connection before it said anything"
                                 : "the proxy command said: " + said};
    }
    if (text.rfind("Exceeded MaxStartups", 0) == 0) throw Dropped{"Exceeded MaxStartups"};
    if (text.rfind("Not allowed at this time", 0) == 0) {
      throw Error(ErrorCode::denied,
                  "the server turns this machine away for now "
                  "(PerSourcePenalties): it said 'Not allowed at this time'");
    }
    if (got > 0) return;
    deadline.check_stop();
    if (deadline.passed() || steady_clock::now() >= until) {
      std::string said = carrier.proxy_said();
      if (!said.empty()) said = "; the proxy command said: " + said;
      throw Error(ErrorCode::timeout,
                  "the server accepted the connection, and then said nothing" + said)
          .with_hint("its sshd may be stopped or overloaded, or the port is not sshd's");
    }
    pollfd waiting{fd, POLLIN, 0};
    ::poll(&waiting, 1, deadline.slice(until));
  }
}

HostKey server_key(const Session& session) {
  ssh_key key = nullptr;
  if (ssh_get_server_publickey(session.get(), &key) != SSH_OK) {
    throw Error(ErrorCode::unreachable, "the server has no host key that can be read");
  }
  const Key owned(key);
  HostKey found;
  found.blob = public_blob(key);
  const std::string bytes = decode_base64(found.blob);
  if (const auto type = BlobReader(bytes).text()) found.type = *type;
  return found;
}

LoggedIn log_in_once(const Settings& settings, const std::shared_ptr<SshConnection>& via,
                     const SshOptions& options, Deadline& deadline) {
  LoggedIn in;
  UniqueFd fd;
  if (via) {
    in.carrier.via = via;
    fd = via->open_tcp(settings.hostname, settings.port, deadline.left());
    ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  } else if (!settings.proxy_command.empty()) {
    fd = start_proxy(settings, in.carrier);
  } else {
    fd = connect_tcp(settings, deadline);
  }
  await_banner(fd.get(), deadline, in.carrier);

  const std::string name = settings.key_name();
  const KnownKeys users = known_keys(settings.known_hosts, name);
  const KnownKeys pinned =
      options.known_hosts.empty() ? KnownKeys{} : known_keys({options.known_hosts}, name);
  in.session = prepare(settings, users.keys.empty() ? pinned : users);
  const int number = fd.release();  // the session closes it from here on
  if (ssh_options_set(in.session.get(), SSH_OPTIONS_FD, &number) != SSH_OK) {
    fd.reset(number);
    throw Error(ErrorCode::internal, "libssh refuses a socket");
  }
  const int rc = drive(in.session, deadline, steady_clock::now() + kSilence, SSH_AGAIN,
                       "did not exchange keys", [&] { return ssh_connect(in.session.get()); });
  if (rc != SSH_OK) {
    const std::string said = ssh_get_error(in.session.get());
    if (said.find("Socket error") != std::string::npos) {
      throw Dropped{"it closed the connection in the middle of the key exchange"};
    }
    throw Error(ErrorCode::unreachable, "no connection was agreed on: " + printable(said, false));
  }
  check_host_key(server_key(in.session), settings, users, pinned, options, deadline);
  authenticate(in.session, settings, options, deadline);
  return in;
}

void pause(int tries, const Deadline& deadline) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const auto longest =
      std::min<milliseconds>(kLongestPause, kFirstPause * (1 << std::min(tries, 8)));
  const auto until = steady_clock::now() + milliseconds(std::uniform_int_distribution<long>(
                                               longest.count() / 2, longest.count())(random));
  while (steady_clock::now() < until && !deadline.passed()) {
    deadline.check_stop();
    std::this_thread::sleep_for(milliseconds(std::min(deadline.slice(until), 50)));
  }
}

}  // namespace

void check_host_key(const HostKey& key, const Settings& settings, const KnownKeys& users,
                    const KnownKeys& pinned, const SshOptions& options, Deadline& deadline) {
  const std::string name = settings.key_name();
  const std::string print = key.type + " " + fingerprint(key);
  for (const KnownKeys* known : {&users, &pinned}) {
    switch (judge(*known, key)) {
      case KeyVerdict::known:
        return;
      case KeyVerdict::unknown:
        break;
      case KeyVerdict::revoked: {
        const auto line =
            std::find_if(known->revoked.begin(), known->revoked.end(),
                         [&](const KnownKey& entry) { return entry.key.blob == key.blob; });
        throw Error(ErrorCode::denied, "the host key of " + name + " is revoked (" +
                                           Location{line->file, line->line, 0}.str() +
                                           "): " + print);
      }
      case KeyVerdict::changed: {
        // The one of the same kind is the one to compare with.
        auto expected =
            std::find_if(known->keys.begin(), known->keys.end(),
                         [&](const KnownKey& entry) { return entry.key.type == key.type; });
        if (expected == known->keys.end()) expected = known->keys.begin();
        throw Error(ErrorCode::denied, "the host key of " + name + " has changed: expected " +
                                           expected->key.type + " " + fingerprint(expected->key) +
                                           " (" +
                                           Location{expected->file, expected->line, 0}.str() +
                                           "), but the server has " + print)
            .with_hint(
                "another machine may answer in its place: nothing was sent to it. If you "
                "know why the key changed: ssh-keygen -R '" +
                name + "' -f " + shell_quote(expected->file.native()));
      }
    }
  }
  std::string note;
  if (!users.authorities.empty()) {
    note = " (" + Location{users.authorities[0].file, users.authorities[0].line, 0}.str() +
           " names an authority for it, but certificates of hosts cannot be checked here)";
  }
  const bool accept = options.accept_new || settings.unknown_key == UnknownKey::accept;
  if (!accept) {
    bool yes = false;
    if (settings.unknown_key == UnknownKey::ask && options.shared->anybody()) {
      std::string at = settings.host;
      if (settings.hostname != settings.host || settings.port != 22) {
        at += " (" + settings.hostname + " port " + std::to_string(settings.port) + ")";
      }
      milliseconds waited{0};
      yes = options.shared->confirm(
          "The host key of " + at + " is not known" + note + ":\n  " + print + "\nIs it right?",
          options.stop, waited);
      deadline.extend(waited);
    }
    if (!yes) {
      throw Error(ErrorCode::denied,
                  "the host key of " + name + " is not known" + note + ": " + print)
          .with_hint(
              "compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there, "
              "and accept it with --accept-new-host-keys");
    }
  }
  if (!options.known_hosts.empty()) pin(options.known_hosts, name, key);
}

LoggedIn log_in(const Settings& settings, const std::shared_ptr<SshConnection>& via,
                const SshOptions& options) {
  Deadline deadline(options.deadline, options.stop);
  const std::string server = (via                              ? via->name() + " > "
                              : settings.proxy_command.empty() ? ""
                                                               : "proxy > ") +
                             host_and_port(settings.hostname, settings.port);
  const auto begun = steady_clock::now();
  const auto refused_until = begun + options.refused_for;
  int drops = 0;
  int tries = 0;
  // How the last try that is worth another ended.
  std::optional<Error> last;
  const auto give_up = [&] {
    if (drops == 0) return *last;
    return Error(ErrorCode::unreachable, "the server dropped " + std::to_string(drops) +
                                             (drops == 1 ? " login: " : " logins: ") +
                                             last->message());
  };
  const auto tell = [&](const std::string& why) {
    if (options.on_try) options.on_try({why, tries, begun, deadline.until()});
  };
  tell("no answer from " + server);
  for (;; ++tries) {
    if (tries > 0) tell(last->message());
    try {
      LoginGate::Pass pass =
          options.shared->gate().enter(server, deadline.until(), deadline.stop());
      try {
        LoggedIn in = log_in_once(settings, via, options, deadline);
        pass.passed();
        return in;
      } catch (const Dropped& dropped) {
        pass.dropped();
        last = Error(ErrorCode::unreachable, dropped.how);
        ++drops;
        const bool is_proxy = !settings.proxy_command.empty();
        if (is_proxy && !options.is_patient && drops >= kMostProxyFailures) throw give_up();
      } catch (const Refused& refused) {
        last = Error(ErrorCode::unreachable, "cannot connect: " + refused.how);
        if (!options.is_patient && steady_clock::now() >= refused_until) throw give_up();
      }
    } catch (const Error& error) {
      const bool is_timeout = error.code() == ErrorCode::timeout;
      // The deadline found us in one of several tries: why there were several says more.
      if (is_timeout && last && (deadline.passed() || !options.is_patient)) throw give_up();
      if (!options.is_patient || (!is_timeout && error.code() != ErrorCode::unreachable)) throw;
      last = error;
    }
    pause(tries, deadline);
    if (deadline.passed()) throw give_up();
  }
}

}  // namespace dtrain::ssh
