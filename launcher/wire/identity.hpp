#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "launcher/core/clock.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"

namespace boost::asio::ssl {
class context;
}
struct ssl_st;

// Who is who in a cluster: keys, certificates, and what each end of a TLS connection demands of the
// other. X.509 by OpenSSL; ECDSA on P-256; TLS 1.3 only. Every certificate comes from the cluster's
// own CA, whose key is made on the head and never leaves it.
namespace dtrain::wire {

// What a certificate says of its owner: a URI in its subject alternative name,
// dtrain://CLUSTER/ROLE/NODE.
struct PeerName {
  enum class Role : std::uint8_t {
    head,
    node,
    join,  // a machine that is to become the node, and may do nothing but ask for it
  };
  ClusterId cluster;
  Role role = Role::node;
  NodeId node;

  std::string uri() const;
  static PeerName parse(const std::string& uri);  // Error(denied)
  bool operator==(const PeerName&) const = default;
};

struct CertifiedKey {
  std::string key_pem;
  std::string certificate_pem;
};

// 30 days; renewed at half of that. notBefore lies 48 h back, for clocks that are off.
inline constexpr std::chrono::hours kCertificateLife{24 * 30};
inline constexpr std::chrono::hours kClockTolerance{48};

std::string make_key();  // PEM, PKCS #8
CertifiedKey make_ca(const ClusterId& cluster, WallTime now);
// A PKCS #10 request for `name`, signed by its key.
std::string make_request(const std::string& key_pem, const PeerName& name);
// The name that a request asks for, its signature checked. Error(denied) when it is not whole.
PeerName requested_name(const std::string& request_pem);
// Signs a request for exactly `name`; a request for another name is Error(denied).
std::string sign_request(const CertifiedKey& ca, const std::string& request_pem,
                         const PeerName& name, WallTime now);
WallTime expires(const std::string& certificate_pem);
// Whose it says it is. Error(denied) when it names none.
PeerName certified_name(const std::string& certificate_pem);

// SHA-256 in hexadecimal, of a certificate as it is sent, and of the public key of a request.
std::string fingerprint(const std::string& certificate_pem);
std::string key_fingerprint(const std::string& request_pem);

// An identity's folder: key.pem (0600), cert.pem, ca.pem.
void save_identity(const fs::path& folder, const std::string& key_pem,
                   const std::string& certificate_pem, const std::string& ca_pem);

// The same in place of one that is there, in one step: whoever reads the folder finds the old or
// the new one. Error(denied) when the certificate is not for the key.
void replace_identity(const fs::path& folder, const std::string& key_pem,
                      const std::string& certificate_pem, const std::string& ca_pem);

// A context for one end: TLS 1.3, our certificate, the peer's demanded and checked against the CA.
// Throws Error with the folder when a file is missing or wrong.
std::shared_ptr<boost::asio::ssl::context> tls_context(const fs::path& identity_folder,
                                                       PeerName::Role our_role);

// The same for a node that meets another node: either may be the one that listens.
std::shared_ptr<boost::asio::ssl::context> tls_pair_context(const fs::path& identity_folder);

// Half of its life is over: it is to be renewed.
bool renewal_due(const std::string& certificate_pem, WallTime now);

// After the handshake: the peer's name, and its certificate's fingerprint. Error(denied) when the
// certificate names none.
PeerName peer_name(ssl_st* tls);
std::string peer_fingerprint(ssl_st* tls);
WallTime peer_certified(ssl_st* tls);  // when its certificate was made, to the second

}  // namespace dtrain::wire
