#include "launcher/remote/local.hpp"

#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/text.hpp"

namespace dtrain {

Captured LocalTransport::run(const std::vector<std::string>& argv, std::string_view input,
                             std::chrono::milliseconds deadline) {
  SpawnOptions options;
  options.argv = argv;
  options.env = current_environment();
  Captured captured = capture(options, input, deadline);
  if (captured.timed_out) {
    throw Error(ErrorCode::timeout,
                shell_join(argv) + " did not end within " + human_duration(deadline));
  }
  return captured;
}

void LocalTransport::put(std::string_view content, const fs::path& path, mode_t mode) {
  make_folders(path.parent_path());
  write_file_atomic(path, content, mode);
}

void LocalTransport::start_detached(const std::vector<std::string>& argv) {
  SpawnOptions options;
  options.argv = argv;
  options.env = current_environment();
  options.workdir = "/";  // a cluster must not keep the folder busy in which `up` was typed
  options.new_session = true;
  spawn(options);
}

fs::path LocalTransport::head_socket(const fs::path& head_root) {
  return paths::head_socket(head_root);
}

}  // namespace dtrain
