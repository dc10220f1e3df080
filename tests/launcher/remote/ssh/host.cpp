#include "launcher/remote/ssh/host.hpp"

#include <doctest/doctest.h>

#include "launcher/core/error.hpp"

using namespace dtrain;

TEST_CASE("parse_host: all that people write") {
  SshHost host = ssh::parse_host("ann@gpu-1.example.org:2222");
  CHECK(host.user == "ann");
  CHECK(host.host == "gpu-1.example.org");
  CHECK(host.port == 2222);
  CHECK(host.str() == "ann@gpu-1.example.org:2222");
  host = ssh::parse_host("ssh://ann@[2001:db8::1]:22/");
  CHECK(host.host == "2001:db8::1");
  CHECK(host.port == 22);
  CHECK(host.str() == "ann@[2001:db8::1]:22");
  host = ssh::parse_host("2001:db8::1");
  CHECK(host.host == "2001:db8::1");
  CHECK_FALSE(host.port);
  host = ssh::parse_host("ann@example.org@gate");
  CHECK(host.user == "ann@example.org");
  CHECK(host.host == "gate");
  host = ssh::parse_host("[fe80::1%eth0]");
  CHECK(host.host == "fe80::1%eth0");
}

TEST_CASE("parse_host: what is none") {
  for (const char* text : {"",        "@h",   "u@",     "h:",     "h:0",
                           "h:65536", "h:2x", "[::1",   "[::1]x", "-oProxyCommand=x",
                           "u@-h",    "-u@h", "h h",    "h;id",   "h$(id)",
                           "h`id`",   "h'",   "h\"",    "h\\",    "h\n",
                           "h/x",     "h|x",  "u;id@h", "h#",     "h*",
                           "h?",      "~h",   "h!"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(ssh::parse_host(text), Error);
  }
  CHECK_THROWS_AS(ssh::parse_host(std::string(300, 'a')), Error);
  CHECK_THROWS_AS(ssh::parse_host(std::string("h\0x", 3)), Error);
}

TEST_CASE("parse_jumps: several, none, too many") {
  const auto jumps = ssh::parse_jumps("a,ann@b:2222");
  REQUIRE(jumps.size() == 2);
  CHECK(jumps[0].host == "a");
  CHECK(jumps[1].str() == "ann@b:2222");
  CHECK(ssh::parse_jumps("none").empty());
  CHECK(ssh::parse_jumps("").empty());
  CHECK_THROWS_AS(ssh::parse_jumps("a,"), Error);
  CHECK_THROWS_AS(ssh::parse_jumps("a,b,c,d,e,f,g,h,i"), Error);
}

TEST_CASE("check: jumps are looked at too, and what is no name for control characters") {
  SshHost host;
  host.host = "a";
  host.proxy_command = "nc -X connect %h %p";
  host.jumps = {ssh::parse_host("b")};
  ssh::check(host);
  host.jumps[0].host = "-b";
  CHECK_THROWS_AS(ssh::check(host), Error);
  host.jumps.clear();
  host.proxy_command += "\n";
  CHECK_THROWS_AS(ssh::check(host), Error);
}
