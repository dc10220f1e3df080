#pragma once

#include <functional>

#include "agent/session/place.hpp"
#include "launcher/core/framed.hpp"

namespace dtrain::session {

// An operation that has frames of its own, by its name: it was asked for by `request`, speaks over
// the stream, and leaves it between two messages. It answers nothing itself.
using StreamOperation = std::function<void(const NodePlace& place, const nlohmann::json& request,
                                           FramedStream& stream, const wire::HostFacts& host)>;

struct SessionOptions {
  fs::path program;    // this agent, as it is to be started again
  bool fresh = false;  // it has just been put here: it is written to disk for good
  std::map<std::string, StreamOperation> streams;
};

// Speaks over stdin and stdout until the other side ends: `dtrain-agent session`. Reads one request
// after the other; each is answered before the next is read. Returns the exit code.
int session_main(const SessionOptions& options);

}  // namespace dtrain::session
