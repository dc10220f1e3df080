#include "launcher/wire/identity.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "launcher/core/error.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;
using namespace dtrain::wire;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1767323045);
const ClusterId kCluster{"lab-abcdef"};
const PeerName kNode{kCluster, PeerName::Role::node, NodeId("node-0")};

}  // namespace

TEST_CASE("names in certificates are read strictly") {
  CHECK(PeerName::parse(kNode.uri()) == kNode);
  for (const char* wrong : {"", "dtrain://lab-abcdef/node", "dtrain://lab-abcdef/admin/node-0",
                            "https://lab-abcdef/node/node-0", "dtrain://lab/node/..",
                            "dtrain://a b/node/node-0", "dtrain://lab-abcdef/node/node-0/x"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(PeerName::parse(wrong), Error);
  }
}

TEST_CASE("a request is signed for exactly the name that was meant") {
  const CertifiedKey ca = make_ca(kCluster, kNow);
  const std::string key = make_key();
  const std::string request = make_request(key, kNode);
  CHECK(requested_name(request) == kNode);
  const std::string certificate = sign_request(ca, request, kNode, kNow);
  CHECK(expires(certificate) == kNow + kCertificateLife);

  PeerName other = kNode;
  other.node = NodeId("node-1");
  CHECK_THROWS_AS(sign_request(ca, request, other, kNow), Error);
  other = kNode;
  other.role = PeerName::Role::head;
  CHECK_THROWS_AS(sign_request(ca, request, other, kNow), Error);
}

TEST_CASE("certificates and keys are told apart by their sums") {
  const CertifiedKey ca = make_ca(kCluster, kNow);
  const std::string key = make_key();
  const std::string request = make_request(key, kNode);
  const std::string certificate = sign_request(ca, request, kNode, kNow);
  CHECK(certified_name(certificate) == kNode);
  CHECK_THROWS_AS(certified_name(ca.certificate_pem), Error);
  CHECK(fingerprint(certificate) == fingerprint(certificate + ca.certificate_pem));
  CHECK(fingerprint(certificate) != fingerprint(sign_request(ca, request, kNode, kNow)));
  // Whatever the request says, it is the key that counts.
  PeerName other = kNode;
  other.role = PeerName::Role::join;
  CHECK(key_fingerprint(request) == key_fingerprint(make_request(key, other)));
  CHECK(key_fingerprint(request) != key_fingerprint(make_request(make_key(), kNode)));
}

TEST_CASE("a request that was tampered with is refused") {
  std::string request = make_request(make_key(), kNode);
  const std::size_t middle = request.size() / 2;
  request[middle] = request[middle] == 'A' ? 'B' : 'A';
  CHECK_THROWS_AS(requested_name(request), Error);
  CHECK_THROWS_AS(requested_name(""), Error);
  CHECK_THROWS_AS(requested_name("-----BEGIN CERTIFICATE REQUEST-----\n"), Error);
}

TEST_CASE("the identity's folder keeps the key to its owner") {
  const testing::TemporaryFolder folder;
  const CertifiedKey ca = make_ca(kCluster, kNow);
  const std::string key = make_key();
  const std::string certificate = sign_request(ca, make_request(key, kNode), kNode, kNow);
  save_identity(folder.path() / "identity", key, certificate, ca.certificate_pem);
  struct stat status {};
  REQUIRE(::stat((folder.path() / "identity/key.pem").c_str(), &status) == 0);
  CHECK((status.st_mode & 077) == 0);
  CHECK(tls_context(folder.path() / "identity", PeerName::Role::node) != nullptr);
  CHECK_THROWS_AS(tls_context(folder.path() / "missing", PeerName::Role::node), Error);
}
