#include "agent/session/bridge.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "launcher/core/error.hpp"
#include "launcher/core/join_streams.hpp"
#include "launcher/core/unix_socket.hpp"

namespace dtrain::session {

int bridge_main(const paths::HeadRoot& root) {
  ::signal(SIGPIPE, SIG_IGN);
  const fs::path socket = paths::head_socket(root.root);
  int error = 0;
  const UniqueFd head = dial_unix(socket, &error);
  if (!head) {
    throw Error(ErrorCode::unreachable,
                "the head does not listen at " + socket.string() + ": " + std::strerror(error));
  }
  return join_streams({STDIN_FILENO, STDOUT_FILENO}, head.get()) ? 0 : 1;
}

}  // namespace dtrain::session
