#include "agent/head/setup.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "agent/node/config.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/identity.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
using dtrain::testing::TemporaryFolder;

namespace {

const ClusterId kSetupCluster("lab-abcdef");
const NodeId kSetupNode("node-1");

struct House {
  TemporaryFolder folder;
  paths::HeadRoot head{folder.path() / "head"};
  paths::NodeRoot node{folder.path() / "node-1"};

  House() { head::init_head(head, {kSetupCluster, "lab", "ssh", 2, 0, 0}); }
  void let_in() {
    const std::string request = node::init_node(node, kSetupCluster, kSetupNode);
    node::install_identity(node, head::sign_node(head, kSetupNode, request));
  }
  std::string certificate(const fs::path& identity) const {
    return read_file(identity / "cert.pem");
  }
};

}  // namespace

TEST_CASE("the port is known before the head runs, where others must be told it") {
  const House house;
  const int port = head::read_head_config(house.head).port;
  CHECK(port >= head::kFirstPort);
  CHECK(port <= head::kLastPort);
  // It stays what it was; one that is wished for counts.
  head::init_head(house.head, {kSetupCluster, "lab", "ssh", 3, 0, 0});
  CHECK(head::read_head_config(house.head).port == port);
  head::init_head(house.head, {kSetupCluster, "lab", "ssh", 3, 40000, 0});
  CHECK(head::read_head_config(house.head).port == 40000);
}

TEST_CASE("what an up has told the running head stays when the next one begins") {
  const House house;
  head::HeadConfig told = head::read_head_config(house.head);
  told.storage.retention_days = 7;
  told.node_types.types.push_back({.name = "gpu", .cpus = 0, .resources = {{"license", 1}}});
  told.node_types.nodes["node-1"] = "gpu";
  head::write_head_config(house.head, told);
  head::init_head(house.head, {kSetupCluster, "lab", "ssh", 3, 0, 0});
  const head::HeadConfig kept = head::read_head_config(house.head);
  CHECK(kept.storage == told.storage);
  CHECK(kept.node_types == told.node_types);
  CHECK(kept.expected_nodes == 3);
}

TEST_CASE("a port that somebody has for either family is passed over") {
  for (const int family : {AF_INET, AF_INET6}) {
    const UniqueFd holder(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!holder) continue;  // a machine without IPv6
    const int on = 1;
    ::setsockopt(holder.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    const int first = head::read_head_config(House().head).port;
    sockaddr_storage address{};
    address.ss_family = static_cast<sa_family_t>(family);
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(static_cast<std::uint16_t>(first));
    const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (::bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) continue;
    REQUIRE(::listen(holder.get(), 1) == 0);
    CHECK(head::read_head_config(House().head).port != first);
  }
}

TEST_CASE("certificates are renewed at half of their life, with clocks an hour off") {
  House house;
  house.let_in();
  const WallTime now = std::chrono::system_clock::now();
  const auto half = wire::kCertificateLife / 2;
  const std::string before = house.certificate(house.head.identity());
  CHECK_FALSE(head::renew_head(house.head, now));
  CHECK_FALSE(head::renew_head(house.head, now + half - 2h));
  CHECK(house.certificate(house.head.identity()) == before);
  for (const auto off : {-1h, 0h, 1h}) {
    CAPTURE(off.count());
    CHECK(wire::renewal_due(before, now + half + 2h + off));
    // A new one made by a clock that is an hour off is good at once, and for long.
    const std::string pems = head::sign_again(
        house.head, kSetupNode,
        wire::make_request(wire::make_key(),
                           {kSetupCluster, wire::PeerName::Role::node, kSetupNode}),
        now + off);
    CHECK_FALSE(wire::renewal_due(pems, now));
    CHECK(wire::expires(pems) > now + wire::kCertificateLife - 2h);
  }
  CHECK(head::renew_head(house.head, now + half + 1h));
  CHECK(house.certificate(house.head.identity()) != before);
  CHECK_FALSE(head::renew_head(house.head, now + half + 1h));
}

TEST_CASE("a node renews with a key of its own, all in one step") {
  House house;
  house.let_in();
  const std::string before = house.certificate(house.node.identity());
  const std::string key = wire::make_key();
  const std::string request =
      wire::make_request(key, {kSetupCluster, wire::PeerName::Role::node, kSetupNode});
  const std::string pems =
      head::sign_again(house.head, kSetupNode, request, std::chrono::system_clock::now());
  // For another key: what is there stays.
  CHECK_THROWS_AS(node::renew_identity(house.node, wire::make_key(), pems), Error);
  CHECK(house.certificate(house.node.identity()) == before);
  node::renew_identity(house.node, key, pems);
  CHECK(house.certificate(house.node.identity()) != before);
  CHECK(read_file(house.node.identity() / "key.pem") == key);
}

TEST_CASE("a node that has left gets nothing, and nobody gets another's name") {
  House house;
  house.let_in();
  CHECK(head::is_let_in(house.head, kSetupNode));
  const auto now = std::chrono::system_clock::now();
  const auto ask = [&](wire::PeerName name) { return wire::make_request(wire::make_key(), name); };
  const wire::PeerName other{kSetupCluster, wire::PeerName::Role::node, NodeId("node-2")};
  const wire::PeerName head_name{kSetupCluster, wire::PeerName::Role::head, NodeId("head")};
  CHECK_THROWS_AS(head::sign_again(house.head, kSetupNode, ask(other), now), Error);
  CHECK_THROWS_AS(head::sign_again(house.head, kSetupNode, ask(head_name), now), Error);
  CHECK_THROWS_AS(head::sign_node(house.head, kSetupNode, ask(head_name)), Error);
  head::shut_out(house.head, kSetupNode);
  head::shut_out(house.head, kSetupNode);  // again is fine
  CHECK_FALSE(head::is_let_in(house.head, kSetupNode));
  CHECK_THROWS_AS(
      head::sign_again(house.head, kSetupNode,
                       ask({kSetupCluster, wire::PeerName::Role::node, kSetupNode}), now),
      Error);
  CHECK_FALSE(head::is_let_in(house.head, NodeId("../head.json")));
}
