#include "launcher/remote/ssh/key_agent.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "launcher/remote/ssh/blob.hpp"
#include "launcher/remote/ssh/keyring.hpp"

using namespace dtrain;
using namespace dtrain::ssh;

namespace {

std::string key_blob(const std::string& type, const std::string& rest) {
  std::string blob;
  put_text(blob, type);
  put_text(blob, rest);
  return blob;
}

std::string message(const std::string& body) {
  std::string whole;
  put_text(whole, body);
  return whole;
}

std::string ask(int fd, const std::string& body) {
  const std::string whole = message(body);
  REQUIRE(::send(fd, whole.data(), whole.size(), 0) == static_cast<ssize_t>(whole.size()));
  std::array<char, 4> head{};
  REQUIRE(::recv(fd, head.data(), head.size(), MSG_WAITALL) == 4);
  std::string answer(*BlobReader({head.data(), 4}).number(), '\0');
  REQUIRE(::recv(fd, answer.data(), answer.size(), MSG_WAITALL) ==
          static_cast<ssize_t>(answer.size()));
  return answer;
}

}  // namespace

TEST_CASE("identities: an agent's answer, and ones that lie") {
  std::string answer(1, 12);
  put_number(answer, 2);
  put_text(answer, key_blob("ssh-ed25519", "one"));
  put_text(answer, "comment");
  put_text(answer, key_blob("ssh-ed25519-cert-v01@openssh.com", "two"));
  put_text(answer, "");
  const auto keys = parse_identities(answer);
  REQUIRE(keys.size() == 2);
  CHECK(keys[0].type == "ssh-ed25519");
  CHECK(keys[0].comment == "comment");
  CHECK(decode_base64(keys[0].blob) == key_blob("ssh-ed25519", "one"));
  CHECK_FALSE(keys[0].certificate());
  CHECK(keys[1].certificate());
  for (std::size_t size = 0; size < answer.size(); ++size) {
    CHECK(parse_identities(std::string_view(answer).substr(0, size)).size() < 2);
  }
  answer[1] = '\x7f';
  CHECK(parse_identities(answer).size() == 2);
  answer[0] = 5;
  CHECK(parse_identities(answer).empty());
}

TEST_CASE("stand-in: shows the chosen keys, signs by them alone, refuses the rest") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  UniqueFd real(ends[1]);
  const std::string chosen = key_blob("ssh-ed25519", "chosen");
  const std::string hidden = key_blob("ssh-ed25519", "hidden");
  std::string signature(1, 14);
  put_text(signature, "signature");
  std::thread agent([&] {
    std::array<char, 4096> buffer{};
    while (::recv(real.get(), buffer.data(), buffer.size(), 0) > 0) {
      const std::string whole = message(signature);
      [[maybe_unused]] const ssize_t n = ::send(real.get(), whole.data(), whole.size(), 0);
    }
  });
  {
    const AgentStandIn stand_in(UniqueFd{ends[0]},
                                {{"ssh-ed25519", encode_base64(chosen), "mine"}});
    const auto shown = parse_identities(ask(stand_in.fd(), std::string(1, 11)));
    REQUIRE(shown.size() == 1);
    CHECK(shown[0].comment == "mine");
    std::string request(1, 13);
    put_text(request, chosen);
    put_text(request, "data");
    put_number(request, 0);
    CHECK(ask(stand_in.fd(), request) == signature);
    request = std::string(1, 13);
    put_text(request, hidden);
    put_text(request, "data");
    CHECK(ask(stand_in.fd(), request) == std::string(1, 5));
    CHECK(ask(stand_in.fd(), std::string(1, 19)) == std::string(1, 5));  // remove all keys
  }
  agent.join();
}

TEST_CASE("key file: what it says in the clear") {
  std::string bytes("openssh-key-v1\0", 15);
  put_text(bytes, "aes256-ctr");
  put_text(bytes, "bcrypt");
  put_text(bytes, "options");
  put_number(bytes, 1);
  put_text(bytes, "public");
  put_text(bytes, "secret");
  const std::string file = "-----BEGIN OPENSSH PRIVATE KEY-----\n" + encode_base64(bytes) +
                           "\n-----END OPENSSH PRIVATE KEY-----\n";
  const auto read = read_openssh_key(file);
  REQUIRE(read);
  CHECK(read->encrypted);
  CHECK(read->public_blob == encode_base64("public"));
  CHECK_FALSE(read_openssh_key("-----BEGIN OPENSSH PRIVATE KEY-----\n"));
  CHECK_FALSE(read_openssh_key("-----BEGIN RSA PRIVATE KEY-----\nxx"));
}
