#include "launcher/remote/ssh/settings.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using ssh::Settings;

namespace {

SshHost named(const std::string& name) {
  SshHost host;
  host.host = name;
  return host;
}

const char* kPrinted =
    "host gpu\n"
    "user ann\n"
    "hostname gpu-1.example.org\n"
    "port 2222\n"
    "addressfamily inet\n"
    "identitiesonly yes\n"
    "identityagent none\n"
    "stricthostkeychecking accept-new\n"
    "kbdinteractiveauthentication no\n"
    "ciphers aes256-ctr,aes128-ctr\n"
    "identityfile ~/.ssh/%h_%r\n"
    "identityfile /keys/${DTRAIN_TEST_KEY}\n"
    "certificatefile /keys/cert.pub\n"
    "hostkeyalias the-gpu\n"
    "connecttimeout 7\n"
    "globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2\n"
    "userknownhostsfile \"/with blank/known\" /other\n"
    "proxyjump ann@gate:2200,inner\n";

}  // namespace

TEST_CASE("settings_from: what ssh -G prints") {
  ::setenv("DTRAIN_TEST_KEY", "id_x", 1);
  const Settings settings = ssh::settings_from(kPrinted, named("gpu"));
  CHECK(settings.host == "gpu");
  CHECK(settings.hostname == "gpu-1.example.org");
  CHECK(settings.user == "ann");
  CHECK(settings.port == 2222);
  CHECK(settings.address_family == AF_INET);
  CHECK(settings.identities_only);
  CHECK(settings.agent_socket.empty());
  CHECK(settings.unknown_key == ssh::UnknownKey::accept);
  CHECK_FALSE(settings.keyboard_interactive);
  CHECK(settings.password);
  CHECK(settings.ciphers == std::vector<std::string>{"aes256-ctr", "aes128-ctr"});
  REQUIRE(settings.identities.size() == 2);
  CHECK(settings.identities[0].is_absolute());
  CHECK(settings.identities[0].filename() == "gpu-1.example.org_ann");
  CHECK(settings.identities[1] == "/keys/id_x");
  CHECK(settings.certificates == std::vector<fs::path>{"/keys/cert.pub"});
  CHECK(settings.connect_timeout == std::chrono::seconds(7));
  CHECK(settings.known_hosts == std::vector<fs::path>{"/with blank/known", "/other",
                                                      "/etc/ssh/ssh_known_hosts",
                                                      "/etc/ssh/ssh_known_hosts2"});
  REQUIRE(settings.jumps.size() == 2);
  CHECK(settings.jumps[0].str() == "ann@gate:2200");
  CHECK(settings.jumps[1].str() == "inner");
  CHECK(settings.key_name() == "the-gpu");
}

TEST_CASE("settings_from: what the caller names wins") {
  SshHost host = named("gpu");
  host.user = "bob";
  host.port = 22;
  host.identity = "/keys/given";
  host.proxy_command = "nc %h %p # %r %n %%";
  const Settings settings = ssh::settings_from(kPrinted, host);
  CHECK(settings.user == "bob");
  CHECK(settings.port == 22);
  CHECK(settings.identity_given);
  CHECK(settings.identities[0] == "/keys/given");
  CHECK(settings.identities.size() == 3);
  CHECK(settings.proxy_command == "nc gpu-1.example.org 22 # bob gpu %");
  CHECK(settings.jumps.empty());
  host.proxy_command.clear();
  host.jumps = {named("own")};
  CHECK(ssh::settings_from(kPrinted, host).jumps[0].host == "own");
}

TEST_CASE("settings_from: a configured name is checked as a written one") {
  CHECK_THROWS_AS(ssh::settings_from("hostname a;id\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("hostname -oX\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("user $(id)\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("port 0\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("proxyjump a;id\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("proxycommand nc %z\n", named("a")), Error);
  CHECK_THROWS_AS(ssh::settings_from("proxycommand nc %\n", named("a")), Error);
  const Settings none = ssh::settings_from("", named("A.example"));
  CHECK(none.hostname == "A.example");
  CHECK(none.key_name() == "a.example");  // as known_hosts has it
}

TEST_CASE("resolve: by ssh -G with a configuration of our own") {
  const testing::TemporaryFolder folder;
  const fs::path config = folder / "config";
  write_file_atomic(config,
                    "Host gpu\n  HostName 127.0.0.9\n  Port 2022\n  User ann\n"
                    "Match originalhost deep user bob\n  HostName 127.0.0.8\n");
  const Settings settings = ssh::resolve(named("gpu"), config);
  CHECK(settings.hostname == "127.0.0.9");
  CHECK(settings.port == 2022);
  CHECK(settings.user == "ann");
  CHECK(settings.key_name() == "[127.0.0.9]:2022");
  SshHost deep = named("deep");
  deep.user = "bob";
  CHECK(ssh::resolve(deep, config).hostname == "127.0.0.8");
  deep.port = 5;
  CHECK(ssh::resolve(deep, config).port == 5);
  CHECK(ssh::resolve(named("other"), config).hostname == "other");
  CHECK_THROWS_AS(ssh::resolve(named("-G"), config), Error);
  write_file_atomic(config, "NoSuchOption yes\n");
  try {
    ssh::resolve(named("gpu"), config);
    FAIL("ssh took it");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid);
    CHECK(std::string(error.what()).find("nosuchoption") != std::string::npos);
  }
}

TEST_CASE("resolve: without an ssh client, with a warning") {
  const testing::TemporaryFolder folder;
  const fs::path config = folder / "config";
  write_file_atomic(config, "Host gpu\n  HostName 127.0.0.9\n  Port 2022\n  User ann\n");
  const char* path = ::getenv("PATH");
  const std::string before = path != nullptr ? path : "";
  ::setenv("PATH", folder.path().c_str(), 1);
  const Settings settings = ssh::resolve(named("gpu"), config);
  ::setenv("PATH", before.c_str(), 1);
  CHECK(settings.hostname == "127.0.0.9");
  CHECK(settings.port == 2022);
  CHECK(settings.user == "ann");
  CHECK(settings.warnings.size() == 1);
  CHECK_FALSE(settings.known_hosts.empty());
}
