#include "agent/head/joins.hpp"

#include <array>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/wire/identity.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

constexpr std::int64_t kLongest = std::int64_t{10} * 365 * 24 * 3600;  // seconds

JoinRecord record_from(const std::string& text) {
  const nlohmann::json json = wire::parse_json(text, "the file");
  JoinRecord record;
  record.node = NodeId(wire::get_string(json, "node"));
  record.type = wire::get_string(json, "type", "");
  record.credential = wire::get_string(json, "credential");
  record.valid_for = std::chrono::seconds(wire::get_int(json, "valid_s", 1, kLongest));
  record.issued = parse_rfc3339(wire::get_string(json, "issued"));
  const std::string begins = wire::get_string(json, "begins", "");
  if (!begins.empty()) record.begins = parse_rfc3339(begins);
  record.key = wire::get_string(json, "key", "");
  record.incarnation = wire::get_string(json, "incarnation", "");
  record.certificates = wire::get_string(json, "certificates", "");
  record.made = wire::get_bool(json, "made", false);
  const std::string revoked = wire::get_string(json, "revoked", "");
  if (!revoked.empty()) record.revoked = parse_rfc3339(revoked);
  if (record.certificates.empty()) record.key.clear();  // nobody has been answered yet
  return record;
}

}  // namespace

const char* to_string(JoinState state) noexcept {
  static constexpr std::array kNames{"waiting", "valid", "expired", "used", "revoked"};
  return kNames[static_cast<std::size_t>(state)];
}

JoinState state_of(const JoinRecord& record, WallTime now) {
  if (record.revoked) {
    return now < *record.revoked + wire::kCertificateLife ? JoinState::revoked : JoinState::expired;
  }
  if (record.used()) return JoinState::used;
  if (!record.begins || now < *record.begins) return JoinState::waiting;
  return now < *record.begins + record.valid_for ? JoinState::valid : JoinState::expired;
}

void check_credential(const JoinRecord* record, const NodeId& node, const std::string& shown,
                      WallTime now) {
  const auto refuse = [&](const std::string& why, ErrorCode code = ErrorCode::denied) {
    return Error(code, "the join credential of " + node.str() + " " + why)
        .with_hint("`dtrain join-command` makes another");
  };
  if (record == nullptr || record->revoked || record->credential != shown)
    throw refuse("was taken back");
  if (!record->begins || now < *record->begins)
    throw refuse("is not valid yet", ErrorCode::conflict);
  const WallTime end = *record->begins + record->valid_for;
  if (now >= end) throw refuse("expired at " + rfc3339(end) + " by the head's clock");
}

bool counts_for(const JoinRecord& record, WallTime certified) {
  return certified >= std::chrono::floor<std::chrono::seconds>(record.issued);
}

std::optional<JoinRecord> read_join(const paths::HeadRoot& root, const NodeId& node) {
  const fs::path file = root.join(node);
  if (!fs::exists(file)) return std::nullopt;
  return while_doing("reading " + file.string(), [&] { return record_from(read_file(file)); });
}

std::vector<JoinRecord> read_joins(const paths::HeadRoot& root) {
  std::vector<JoinRecord> records;
  if (!fs::exists(root.joins())) return records;
  for (const auto& entry : fs::directory_iterator(root.joins())) {
    if (entry.path().extension() != ".json") continue;  // half written
    if (auto record = read_join(root, NodeId(entry.path().stem().string()))) {
      records.push_back(std::move(*record));
    }
  }
  return records;
}

void write_join(const paths::HeadRoot& root, const JoinRecord& record) {
  nlohmann::json json{{"node", record.node.str()},
                      {"type", record.type},
                      {"credential", record.credential},
                      {"valid_s", record.valid_for.count()},
                      {"issued", rfc3339(record.issued)}};
  if (record.made) json["made"] = true;
  if (record.begins) json["begins"] = rfc3339(*record.begins);
  if (record.used()) {
    json["key"] = record.key;
    json["incarnation"] = record.incarnation;
    json["certificates"] = record.certificates;
    if (record.revoked) json["revoked"] = rfc3339(*record.revoked);
  }
  make_folders(root.joins());
  write_file_atomic(root.join(record.node), json.dump(2) + "\n");
}

void remove_join(const paths::HeadRoot& root, const NodeId& node) {
  std::error_code failed;
  if (!fs::remove(root.join(node), failed)) {
    if (failed) throw Error(ErrorCode::io, "cannot remove the join credential of " + node.str());
    return;
  }
  fsync_folder(root.joins());
}

}  // namespace dtrain::head
