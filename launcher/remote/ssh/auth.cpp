#include "launcher/remote/ssh/auth.hpp"

#include <openssl/crypto.h>
#include <poll.h>

#include <algorithm>

#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/remote/ssh/key_agent.hpp"
#include "launcher/remote/ssh/keyring.hpp"

namespace dtrain::ssh {
namespace {

using std::chrono::steady_clock;

constexpr int kAnswerTries = 3;
constexpr std::chrono::seconds kAnswerLimit{30};

// One way to prove who we are: a key file, or a key of the agent.
struct Candidate {
  fs::path file;
  std::optional<AgentKey> held;

  std::string str() const {
    if (!held) return file.native();
    return "the agent's key " + printable(held->comment.substr(0, 100), false);
  }
};

class Login {
 public:
  Login(const Session& session, const Settings& settings, const SshOptions& options,
        Deadline& deadline)
      : session_(session), settings_(settings), options_(options), deadline_(deadline) {}

  void run() {
    if (settings_.public_key) {
      for (const Candidate& candidate : candidates()) {
        if (finished(try_key(candidate))) return;
        if (!allows(SSH_AUTH_METHOD_PUBLICKEY)) break;
      }
    }
    if (!asked_server_ &&
        finished(step([&] { return ssh_userauth_none(session_.get(), nullptr); }))) {
      return;
    }
    asked_server_ = true;
    if (allows(SSH_AUTH_METHOD_INTERACTIVE) && settings_.keyboard_interactive) {
      if (somebody("questions of the server") && keyboard_interactive()) return;
    }
    if (allows(SSH_AUTH_METHOD_PASSWORD) && settings_.password) {
      if (somebody("a password") && password()) return;
    }
    refuse();
  }

 private:
  bool allows(unsigned method) const {
    return (static_cast<unsigned>(ssh_userauth_list(session_.get(), nullptr)) & method) != 0;
  }

  bool somebody(const char* what) {
    if (options_.shared->anybody()) return true;
    notes_.push_back(std::string("nobody is here to answer ") + what);
    return false;
  }

  int step(const std::function<int()>& call) {
    return drive(session_, deadline_, steady_clock::now() + kAnswerLimit, SSH_AUTH_AGAIN,
                 "did not answer the login", call);
  }

  // Takes note of an answer; true when we are in.
  bool finished(int rc) {
    if (rc == SSH_AUTH_SUCCESS) return true;
    asked_server_ = true;
    if (rc == SSH_AUTH_PARTIAL) partial_ = true;
    if (rc == SSH_AUTH_ERROR) {
      const std::string said = ssh_get_error(session_.get());
      if (said.find("Socket error") != std::string::npos && tried_.empty()) throw Dropped{said};
      notes_.push_back("the server ended it: " + printable(said, false));
      refuse();
    }
    return false;
  }

  std::optional<std::string> ask(const std::string& prompt, bool echo) {
    std::chrono::milliseconds waited{0};
    auto answer = options_.shared->ask(prompt, echo, options_.stop, waited);
    deadline_.extend(waited);
    return answer;
  }

  std::vector<Candidate> candidates() {
    Keyring& keys = options_.shared->keys();
    std::vector<AgentKey> held;
    if (const UniqueFd agent = dial_unix(settings_.agent_socket)) held = agent_keys(agent.get());
    // What libssh cannot read would end its walk through the agent's keys.
    held.erase(std::remove_if(held.begin(), held.end(),
                              [](const AgentKey& key) {
                                return ssh_key_type_from_name(key.type.c_str()) ==
                                       SSH_KEYTYPE_UNKNOWN;
                              }),
               held.end());
    std::vector<Candidate> first, agents, files;
    const auto take_held = [&](const std::string& blob, std::vector<Candidate>& into,
                               const fs::path& file) {
      const auto found = std::find_if(held.begin(), held.end(), [&](const AgentKey& key) {
        return !blob.empty() && key.blob == blob;
      });
      if (found == held.end()) return false;
      into.push_back({file, std::move(*found)});
      held.erase(found);
      return true;
    };
    bool given = settings_.identity_given;
    for (const fs::path& file : settings_.identities) {
      const Keyring::Look look = keys.look(file);
      std::vector<Candidate>& into = given ? first : agents;
      // A certificate that belongs to the file and lies in the agent comes before the bare key.
      take_held(certificate_blob(file.native() + "-cert.pub"), into, file);
      if (!take_held(look.public_blob, into, file) && look.there) {
        (given ? first : files).push_back({file, std::nullopt});
      }
      if (given && !look.there && first.empty()) {
        throw Error(ErrorCode::invalid, "the private key cannot be read: " + look.trouble);
      }
      given = false;
    }
    for (const fs::path& file : settings_.certificates) {
      take_held(certificate_blob(file), agents, file);
    }
    if (!settings_.identities_only) {
      for (AgentKey& key : held) agents.push_back({{}, std::move(key)});
    }
    first.insert(first.end(), agents.begin(), agents.end());
    first.insert(first.end(), files.begin(), files.end());
    return first;
  }

  static std::string certificate_blob(const fs::path& file) {
    const auto text = read_file_if_there(file, std::size_t{256} << 10);
    const auto words = text ? split(*text, ' ') : std::vector<std::string>{};
    return words.size() >= 2 ? words[1] : "";
  }

  int try_key(const Candidate& candidate) {
    if (candidate.held) return try_held(candidate);
    const Keyring::Look look = options_.shared->keys().look(candidate.file);
    if (look.encrypted && !look.public_blob.empty()) {
      // The passphrase is only asked for a key that the server would take.
      const OwnedKey half = public_half(look.public_blob);
      if (half) {
        const int rc =
            step([&] { return ssh_userauth_try_publickey(session_.get(), nullptr, half.get()); });
        if (rc != SSH_AUTH_SUCCESS) {
          tried_.push_back(candidate.str());
          return rc;
        }
      }
    }
    if (look.encrypted && !options_.shared->anybody()) {
      tried_.push_back(candidate.str() + " (it has a passphrase, and nobody is here to type it)");
      return SSH_AUTH_DENIED;
    }
    OwnedKey key;
    try {
      key = options_.shared->keys().unlock(
          candidate.file, [&](const std::string& prompt) { return ask(prompt, false); });
    } catch (const Error& error) {
      tried_.push_back(candidate.str() + " (" + error.message() + ")");
      return SSH_AUTH_DENIED;
    }
    if (!key) {
      tried_.push_back(candidate.str() + " (no right passphrase)");
      return SSH_AUTH_DENIED;
    }
    add_certificate(candidate.file, key.get());
    const int rc = step([&] { return ssh_userauth_publickey(session_.get(), nullptr, key.get()); });
    if (rc != SSH_AUTH_SUCCESS && rc != SSH_AUTH_ERROR) tried_.push_back(candidate.str());
    return rc;
  }

  int try_held(const Candidate& candidate) {
    UniqueFd agent = dial_unix(settings_.agent_socket);
    if (!agent) return SSH_AUTH_DENIED;
    AgentStandIn stand_in(std::move(agent), {*candidate.held});
    ssh_set_agent_socket(session_.get(), stand_in.fd());
    // It is not the session's to close, whatever becomes of the step.
    const std::shared_ptr<void> back(
        nullptr, [this](void*) { ssh_set_agent_socket(session_.get(), SSH_INVALID_SOCKET); });
    const int rc = step([&] { return ssh_userauth_agent(session_.get(), nullptr); });
    if (rc != SSH_AUTH_SUCCESS && rc != SSH_AUTH_ERROR) tried_.push_back(candidate.str());
    return rc;
  }

  static OwnedKey public_half(const std::string& blob) {
    for (const ssh_keytypes_e type : {SSH_KEYTYPE_ED25519, SSH_KEYTYPE_RSA, SSH_KEYTYPE_ECDSA_P256,
                                      SSH_KEYTYPE_ECDSA_P384, SSH_KEYTYPE_ECDSA_P521}) {
      ssh_key key = nullptr;
      if (ssh_pki_import_pubkey_base64(blob.c_str(), type, &key) != SSH_OK) continue;
      OwnedKey owned(key);
      // libssh believes the type that it is told: what it makes of the key must be the same again.
      if (public_blob(key) == blob) return owned;
    }
    return nullptr;
  }

  void add_certificate(const fs::path& file, ssh_key key) {
    std::vector<fs::path> places = settings_.certificates;
    places.push_back(file.native() + "-cert.pub");
    for (const fs::path& place : places) {
      if (!fs::exists(place)) continue;
      ssh_key certificate = nullptr;
      if (ssh_pki_import_cert_file(place.c_str(), &certificate) != SSH_OK) continue;
      const OwnedKey owned(certificate);
      if (ssh_key_cmp(certificate, key, SSH_KEY_CMP_PUBLIC) != 0) continue;
      if (ssh_pki_copy_cert_to_privkey(certificate, key) == SSH_OK) return;
    }
  }

  bool keyboard_interactive() {
    const std::string who = settings_.user + "@" + settings_.host;
    for (int round = 0; round < kAnswerTries; ++round) {
      int rc = step([&] { return ssh_userauth_kbdint(session_.get(), nullptr, nullptr); });
      bool first = true;
      while (rc == SSH_AUTH_INFO) {
        if (!answer_questions(who, first)) {
          tried_.emplace_back("keyboard-interactive (no answer was given)");
          return false;
        }
        first = false;
        rc = step([&] { return ssh_userauth_kbdint(session_.get(), nullptr, nullptr); });
      }
      if (finished(rc)) return true;
      if (!allows(SSH_AUTH_METHOD_INTERACTIVE)) break;
    }
    tried_.emplace_back("keyboard-interactive");
    return false;
  }

  bool answer_questions(const std::string& who, bool first) {
    const int count = ssh_userauth_kbdint_getnprompts(session_.get());
    std::string before;
    if (first) {
      for (const char* text : {ssh_userauth_kbdint_getname(session_.get()),
                               ssh_userauth_kbdint_getinstruction(session_.get())}) {
        if (text != nullptr && text[0] != '\0') before += printable(text) + "\n";
      }
    }
    for (int i = 0; i < count; ++i) {
      char echo = 0;
      const char* prompt =
          ssh_userauth_kbdint_getprompt(session_.get(), static_cast<unsigned>(i), &echo);
      auto answer =
          ask(before + who + ": " + printable(prompt != nullptr ? prompt : "", false), echo != 0);
      before.clear();
      if (!answer) return false;
      ssh_userauth_kbdint_setanswer(session_.get(), static_cast<unsigned>(i), answer->c_str());
      OPENSSL_cleanse(answer->data(), answer->size());
    }
    return true;
  }

  bool password() {
    for (int round = 0; round < kAnswerTries; ++round) {
      auto answer = ask("Password of " + settings_.user + "@" + settings_.host + ": ", false);
      if (!answer) break;
      const int rc =
          step([&] { return ssh_userauth_password(session_.get(), nullptr, answer->c_str()); });
      OPENSSL_cleanse(answer->data(), answer->size());
      if (finished(rc)) return true;
      if (!allows(SSH_AUTH_METHOD_PASSWORD)) break;
    }
    tried_.emplace_back("a password");
    return false;
  }

  [[noreturn]] void refuse() {
    std::string text = "the login as " + settings_.user + " was refused: ";
    text += tried_.empty() ? "there is no key to try" : "tried " + join(tried_, ", ");
    if (partial_) text += "; a part was accepted, and more is asked";
    std::vector<std::string> methods;
    const auto accepted = static_cast<unsigned>(ssh_userauth_list(session_.get(), nullptr));
    if ((accepted & SSH_AUTH_METHOD_PUBLICKEY) != 0) methods.emplace_back("publickey");
    if ((accepted & SSH_AUTH_METHOD_INTERACTIVE) != 0) methods.emplace_back("keyboard-interactive");
    if ((accepted & SSH_AUTH_METHOD_PASSWORD) != 0) methods.emplace_back("password");
    if ((accepted & SSH_AUTH_METHOD_GSSAPI_MIC) != 0) methods.emplace_back("gssapi");
    if (!methods.empty()) text += "; the server accepts " + join(methods, ", ");
    if (!notes_.empty()) text += "; " + join(notes_, "; ");
    throw Error(ErrorCode::denied, text)
        .with_hint("name the key by auth.ssh_private_key, load it with ssh-add, or try: ssh " +
                   settings_.user + "@" + settings_.host);
  }

  const Session& session_;
  const Settings& settings_;
  const SshOptions& options_;
  Deadline& deadline_;
  std::vector<std::string> tried_;
  std::vector<std::string> notes_;
  bool asked_server_ = false;
  bool partial_ = false;
};

}  // namespace

int drive(const Session& session, const Deadline& deadline, steady_clock::time_point until,
          int again, const char* what, const std::function<int()>& step) {
  while (true) {
    const int rc = step();
    if (rc != again) return rc;
    // libssh itself would wait on a connection that the server has ended.
    if (!ssh_is_connected(session.get())) return SSH_ERROR;
    deadline.check_stop();
    if (deadline.passed() || steady_clock::now() >= until) {
      throw Error(ErrorCode::timeout,
                  std::string("the server accepted the connection, but ") + what + " in time");
    }
    const int flags = ssh_get_poll_flags(session.get());
    pollfd waiting{ssh_get_fd(session.get()), POLLIN, 0};
    if ((flags & SSH_WRITE_PENDING) != 0) waiting.events |= POLLOUT;
    ::poll(&waiting, 1, deadline.slice(until));
  }
}

void authenticate(const Session& session, const Settings& settings, const SshOptions& options,
                  Deadline& deadline) {
  Login(session, settings, options, deadline).run();
}

}  // namespace dtrain::ssh
