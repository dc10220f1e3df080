#include "agent/head/setup.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "agent/head/joins.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/unique_fd.hpp"
#include "launcher/wire/fields.hpp"
#include "launcher/wire/identity.hpp"

namespace dtrain {

template <>
inline constexpr auto wire::kReader<StorageSpec> = storage_spec_from_json;
template <>
inline constexpr auto wire::kReader<wire::NodeTypes> = wire::node_types_from_json;

}  // namespace dtrain

namespace dtrain::head {

void fields(wire::Is<HeadConfig> auto& m, auto&& f) {
  using wire::or_default;
  f("cluster", wire::any_id(m.cluster), "name", m.name, "provider", m.provider, "expected_nodes",
    wire::within(m.expected_nodes, 1, 1000000), "wanted_port",
    or_default(m.wanted_port, {0, 65535}), "port", or_default(m.port, {0, 65535}), "ranks_on_head",
    or_default(m.ranks_on_head), "moves", or_default(m.moves), "storage", or_default(m.storage),
    "node_types", or_default(m.node_types));
}

namespace {

// On all addresses of the family, or the machine has none of that.
bool is_free(int family, int port) {
  const UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return true;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);  // in vain with IPv4
  sockaddr_storage address{};
  address.ss_family = static_cast<sa_family_t>(family);
  // The port stands at the same place in both.
  reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(static_cast<std::uint16_t>(port));
  const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return errno == EADDRNOTAVAIL;
  }
  return ::listen(fd.get(), 1) == 0;
}

// 0: none is free, which the head itself will say.
int first_free_port() {
  for (int port = kFirstPort; port <= kLastPort; ++port) {
    if (is_free(AF_INET6, port) && is_free(AF_INET, port)) return port;
  }
  return 0;
}

}  // namespace

HeadConfig read_head_config(const paths::HeadRoot& root) {
  return while_doing("reading " + root.config().string(), [&] {
    HeadConfig config;
    wire::read(wire::parse_json(read_file(root.config()), "the file"), config);
    return config;
  });
}

void write_head_config(const paths::HeadRoot& root, const HeadConfig& config) {
  write_file_atomic(root.config(), wire::written(config).dump(2) + "\n");
}

void init_head(const paths::HeadRoot& root, const HeadConfig& config) {
  make_folders(root.root);
  make_folders(root.nodes());
  HeadConfig kept = config;
  if (fs::exists(root.config())) {
    const HeadConfig before = read_head_config(root);
    kept.port = before.port;
    kept.storage = before.storage;
    kept.node_types = before.node_types;
  }
  if (kept.wanted_port != 0) {
    kept.port = kept.wanted_port;
  } else if (kept.port == 0 && !kept.is_local()) {
    kept.port = first_free_port();
  }
  if (!fs::exists(root.ca() / "cert.pem")) {
    const WallTime now = std::chrono::system_clock::now();
    const wire::CertifiedKey ca = wire::make_ca(config.cluster, now);
    const wire::PeerName name{config.cluster, wire::PeerName::Role::head, NodeId("head")};
    const std::string key = wire::make_key();
    const std::string certificate =
        wire::sign_request(ca, wire::make_request(key, name), name, now);
    wire::save_identity(root.identity(), key, certificate, ca.certificate_pem);
    make_folders(root.ca());
    write_file_atomic(root.ca() / "key.pem", ca.key_pem, 0600);
    write_file_atomic(root.ca() / "cert.pem", ca.certificate_pem, 0600);
  }
  write_head_config(root, kept);
}

namespace {

wire::CertifiedKey read_ca(const paths::HeadRoot& root) {
  return {read_file(root.ca() / "key.pem"), read_file(root.ca() / "cert.pem")};
}

}  // namespace

std::string sign_new(const paths::HeadRoot& root, const NodeId& node,
                     const std::string& request_pem, WallTime now) {
  const wire::CertifiedKey ca = read_ca(root);
  const wire::PeerName name{read_head_config(root).cluster, wire::PeerName::Role::node, node};
  const auto join = read_join(root, node);  // a clock that was put back makes none of before
  const WallTime then = join ? std::max(now, join->issued) : now;
  return wire::sign_request(ca, request_pem, name, then) + ca.certificate_pem;
}

std::string sign_node(const paths::HeadRoot& root, const NodeId& node,
                      const std::string& request_pem) {
  const WallTime now = std::chrono::system_clock::now();
  const auto join = read_join(root, node);
  if (join && join->revoked && state_of(*join, now) != JoinState::expired) {
    throw Error(ErrorCode::conflict, node.str() +
                                         " was the name of a machine that joined by itself, whose "
                                         "certificate may not be over yet")
        .with_hint("give the host another name");
  }
  if (join && !join->revoked) {
    throw Error(ErrorCode::conflict, node.str() + " is the name of a machine that joins by itself")
        .with_hint(
            "give the host another name, or take that one back: dtrain join-command "
            "--revoke " +
            node.str());
  }
  std::string certificates = sign_new(root, node, request_pem, now);
  let_in(root, node);
  return certificates;
}

wire::CertifiedKey join_credential(const paths::HeadRoot& root, const NodeId& node, WallTime now) {
  const wire::PeerName name{read_head_config(root).cluster, wire::PeerName::Role::join, node};
  const std::string key = wire::make_key();
  return {key, wire::sign_request(read_ca(root), wire::make_request(key, name), name, now)};
}

void let_in(const paths::HeadRoot& root, const NodeId& node) {
  write_file_atomic(root.nodes() / node.str(), "");
}

std::string sign_again(const paths::HeadRoot& root, const NodeId& node,
                       const std::string& request_pem, WallTime now) {
  if (!is_let_in(root, node)) throw Error(ErrorCode::denied, node.str() + " is not let in");
  return sign_new(root, node, request_pem, now);
}

bool renew_head(const paths::HeadRoot& root, WallTime now) {
  if (!wire::renewal_due(read_file(root.identity() / "cert.pem"), now)) return false;
  const wire::CertifiedKey ca = read_ca(root);
  const wire::PeerName name{read_head_config(root).cluster, wire::PeerName::Role::head,
                            NodeId("head")};
  const std::string key = wire::make_key();
  wire::replace_identity(root.identity(), key,
                         wire::sign_request(ca, wire::make_request(key, name), name, now),
                         ca.certificate_pem);
  return true;
}

void shut_out(const paths::HeadRoot& root, const NodeId& node) {
  if (!valid_name(node.str())) return;
  // First: nobody is let in again by it. Whoever was given a certificate may show it later still.
  const auto join = read_join(root, node);
  if (join && join->used()) {
    JoinRecord revoked = *join;
    revoked.revoked = std::chrono::system_clock::now();
    write_join(root, revoked);
  } else {
    remove_join(root, node);
  }
  const fs::path listed = root.nodes() / node.str();
  const bool was_listed = fs::exists(listed);
  try {
    std::error_code failed;
    fs::remove(listed, failed);
    if (failed) throw Error(ErrorCode::io, "cannot take " + node.str() + " off the list of nodes");
    fsync_folder(root.nodes());
  } catch (const Error&) {
    if (was_listed) write_file_atomic(listed, "");  // who may come back is still let in
    if (join) write_join(root, *join);
    throw;
  }
}

bool is_let_in(const paths::HeadRoot& root, const NodeId& node) {
  if (!valid_name(node.str())) return false;
  const fs::path listed = root.nodes() / node.str();
  std::error_code unseen;
  const bool is_listed = fs::exists(listed, unseen);
  if (unseen) {
    throw Error(ErrorCode::io, "cannot look at " + listed.string() + ": " + unseen.message());
  }
  return is_listed;
}

}  // namespace dtrain::head
