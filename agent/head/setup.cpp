#include "agent/head/setup.hpp"

#include "launcher/core/error.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

fs::path guest_list(const paths::HeadRoot& root) {
  return root.root / "nodes";
}

}  // namespace

HeadConfig read_head_config(const paths::HeadRoot& root) {
  return while_doing("reading " + root.config().string(), [&] {
    const nlohmann::json json = wire::parse_json(read_file(root.config()), "the file");
    HeadConfig config;
    config.cluster = ClusterId(wire::get_string(json, "cluster"));
    config.name = wire::get_string(json, "name");
    config.provider = wire::get_string(json, "provider");
    config.expected_nodes = static_cast<int>(wire::get_int(json, "expected_nodes", 1, 1000000));
    config.wanted_port = static_cast<int>(wire::get_int(json, "wanted_port", 0, 65535, 0));
    config.port = static_cast<int>(wire::get_int(json, "port", 0, 65535, 0));
    return config;
  });
}

void write_head_config(const paths::HeadRoot& root, const HeadConfig& config) {
  const nlohmann::json json = {
      {"cluster", config.cluster.str()},   {"name", config.name},
      {"provider", config.provider},       {"expected_nodes", config.expected_nodes},
      {"wanted_port", config.wanted_port}, {"port", config.port}};
  write_file_atomic(root.config(), json.dump(2) + "\n");
}

void init_head(const paths::HeadRoot& root, const HeadConfig& config) {
  make_folders(root.root);
  make_folders(guest_list(root));
  HeadConfig kept = config;
  if (fs::exists(root.config())) kept.port = read_head_config(root).port;
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

std::string sign_node(const paths::HeadRoot& root, const NodeId& node,
                      const std::string& request_pem) {
  const wire::CertifiedKey ca{read_file(root.ca() / "key.pem"), read_file(root.ca() / "cert.pem")};
  const wire::PeerName name{read_head_config(root).cluster, wire::PeerName::Role::node, node};
  const std::string certificate =
      wire::sign_request(ca, request_pem, name, std::chrono::system_clock::now());
  write_file_atomic(guest_list(root) / node.str(), "");
  return certificate + ca.certificate_pem;
}

void turn_away(const paths::HeadRoot& root, const NodeId& node) {
  if (!valid_name(node.str())) throw Error(ErrorCode::invalid, "that is no node's name");
  remove_tree(guest_list(root) / node.str());
}

bool is_let_in(const paths::HeadRoot& root, const NodeId& node) {
  return valid_name(node.str()) && fs::exists(guest_list(root) / node.str());
}

}  // namespace dtrain::head
