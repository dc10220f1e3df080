#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <boost/describe/enum.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"
#include "launcher/provider/machine.hpp"
#include "launcher/wire/machines.hpp"

// What the head tells dtrain-scaler, and hears from it, as texts of a FramedStream over its stdin
// and stdout. First comes a ScalerBegin; then one task after the other, each of which is answered
// by outcomes, and at its end by one that names no machine.
namespace dtrain {

struct ScalerBegin {
  std::string cluster_name;
  fs::path notes;  // a folder of the cluster's that outlives both
  wire::WantedMachines wanted;
};

// Machines of one type, as Request.
struct ScalerRequest {
  std::string type;
  ClusterId cluster;
  std::string launch;
  std::vector<NodeId> nodes;
  std::map<std::string, std::string> scripts;  // by node: what its machine runs when it starts
};

struct ScalerTask {
  enum class Kind : std::uint8_t { list, create, release, stop, start };
  BOOST_DESCRIBE_NESTED_ENUM(Kind, list, create, release, stop, start)
  Kind kind = Kind::list;
  std::vector<ScalerRequest> requests;              // with create
  std::vector<Machine> machines;                    // with release, stop and start
  std::map<std::string, std::string> scripts = {};  // with start, as in ScalerRequest
};

struct ScalerOutcome {
  std::optional<Machine> machine;  // absent: the task is over; an error is of all that it has left
  std::optional<Error> error;
};

// Error(invalid) names what is wrong with a text.
std::string to_text(const ScalerBegin& begin);
std::string to_text(const ScalerTask& task);
std::string to_text(const ScalerOutcome& outcome);
ScalerBegin scaler_begin_from(const std::string& text);
ScalerTask scaler_task_from(const std::string& text);
ScalerOutcome scaler_outcome_from(const std::string& text);

// Of one task, so that it is no longer than a frame may be.
inline constexpr std::size_t kMostScripts = 1000;

}  // namespace dtrain
