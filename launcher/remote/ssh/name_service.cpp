#include "launcher/remote/ssh/name_service.hpp"

#include <netdb.h>
#include <nss.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "launcher/core/capture.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/text.hpp"

namespace dtrain::ssh {
namespace {

constexpr std::chrono::seconds kGetentLimit{10};

// Before main(), so that no thread has asked for a name yet.
[[maybe_unused]] const int kChosen =
    ::__nss_configure_lookup("hosts", "files dns") + ::__nss_configure_lookup("passwd", "files");

// What the machine's own program knows; empty when nothing, or when there is no such program.
// Throws Error(timeout, failed) when it cannot tell.
std::string getent(const std::string& database, const std::string& key,
                   std::chrono::milliseconds limit) {
  constexpr int kNotFound = 2;  // getent(1)
  SpawnOptions options;
  options.argv = {"getent", database, "--", key};
  Captured captured;
  try {
    captured = capture(std::move(options), {}, limit);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return "";
    throw;
  }
  if (captured.exit.ok()) return captured.out;
  if (captured.exit.code == kNotFound) return "";
  const std::string what = "`getent " + database + " " + printable(key, false) + "`";
  if (captured.timed_out) {
    throw Error(ErrorCode::timeout, what + " did not end within " + human_duration(limit));
  }
  const std::string said = captured.err.substr(0, captured.err.find('\n'));
  throw Error(ErrorCode::failed, what + " ended with " + captured.exit.str() +
                                     (said.empty() ? "" : ": " + printable(said, false)));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

// As getaddrinfo() returns; appends to `found`.
int ask(const std::string& name, int port, int family, int flags, std::vector<Address>& found) {
  addrinfo wanted{};
  wanted.ai_family = family;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &wanted, &list);
  if (rc != 0) return rc;
  const std::unique_ptr<addrinfo, FreeAddresses> owner(list);
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Address& address = found.emplace_back();
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  return 0;
}

}  // namespace

std::string Address::str() const {
  std::array<char, NI_MAXHOST> name{};
  ::getnameinfo(get(), size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  return name.data();
}

std::vector<Address> look_up(const std::string& name, int port, int family,
                             std::chrono::milliseconds limit) {
  std::vector<Address> found;
  int rc = ask(name, port, family, AI_ADDRCONFIG, found);
  if (rc == EAI_ADDRFAMILY || rc == EAI_NONAME) {  // loopback alone counts as no address
    rc = ask(name, port, family, 0, found);
  }
  const int error = errno;
  if (rc == 0) return found;
  std::string why = rc == EAI_SYSTEM ? std::strerror(error) : ::gai_strerror(rc);
  std::string known;
  try {
    known = getent("ahosts", name, std::min<std::chrono::milliseconds>(limit, kGetentLimit));
  } catch (const Error& trouble) {
    why += std::string("; ") + trouble.what();
  }
  // Lines of "ADDRESS  STREAM|DGRAM|RAW  [NAME]", of both families.
  for (const std::string& line : split(known, '\n')) {
    const std::size_t end = line.find(' ');
    if (end == std::string::npos || line.find(" STREAM") == std::string::npos) continue;
    ask(line.substr(0, end), port, family, AI_NUMERICHOST, found);
  }
  if (found.empty()) {
    throw Error(ErrorCode::unreachable, "the name " + name + " has no address: " + why);
  }
  return found;
}

Person person(uid_t uid) {
  Person who;
  std::array<char, 16384> buffer{};
  passwd entry{};
  passwd* known = nullptr;
  ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &known);  // from several threads
  if (known != nullptr) {
    who = {known->pw_name, known->pw_dir};
  } else {
    const auto fields = split(getent("passwd", std::to_string(uid), kGetentLimit), ':');
    if (fields.size() >= 7) who = {fields[0], fields[5]};
  }
  if (who.name.empty()) who.name = std::to_string(uid);
  if (who.home.empty() || who.home.front() != '/') {
    const char* variable = std::getenv("HOME");
    who.home = variable != nullptr ? variable : "/";
  }
  return who;
}

}  // namespace dtrain::ssh
