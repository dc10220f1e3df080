#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/clock.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"

// Join credentials: each lets one machine that nobody logs in to become one node. What is shown is
// a certificate of role `join`; whether it counts stands here, by the head's clock.
namespace dtrain::head {

// joins/NODE.json, kept for as long as the node is of the cluster, and after it for as long as a
// certificate that it was given may last: so long nobody else has its name.
struct JoinRecord {
  NodeId node;
  std::string type;        // what the machine is to be; empty: not said
  std::string credential;  // the fingerprint of its certificate
  std::chrono::seconds valid_for{};
  WallTime issued;
  std::optional<WallTime> begins;  // absent: its machine does not run yet
  // Once a machine has asked: the fingerprint of its key, which alone is answered from then on; its
  // random name, to tell it from others; what it was given.
  std::string key;
  std::string incarnation;
  std::string certificates;
  bool made =
      false;  // the head has asked for its machine, which is gone when its agents have ended
  std::optional<WallTime> revoked;  // a used one that was taken back

  bool used() const noexcept { return !key.empty(); }
};

enum class JoinState : std::uint8_t { waiting, valid, expired, used, revoked };
const char* to_string(JoinState state) noexcept;
JoinState state_of(const JoinRecord& record, WallTime now);

// Whether what was shown, by its certificate's fingerprint, counts now. Error(denied) says why not,
// Error(conflict) that it will later; a record that there is not is one that was taken back.
void check_credential(const JoinRecord* record, const NodeId& node, const std::string& shown,
                      WallTime now);

// A certificate of the node counts from its newest credential on: a machine that was stopped comes
// again under its name, and what another has of it from before is worth nothing.
bool counts_for(const JoinRecord& record, WallTime certified);

// Absent: there is no file. Throws Error for one that cannot be read.
std::optional<JoinRecord> read_join(const paths::HeadRoot& root, const NodeId& node);
std::vector<JoinRecord> read_joins(const paths::HeadRoot& root);
void write_join(const paths::HeadRoot& root, const JoinRecord& record);
void remove_join(const paths::HeadRoot& root, const NodeId& node);  // none there is fine

}  // namespace dtrain::head
