#include "launcher/remote/local.hpp"

#include "launcher/core/capture.hpp"
#include "launcher/core/cluster_processes.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/core/process.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/text.hpp"
#include "launcher/remote/piped_child.hpp"

namespace dtrain {
namespace {

constexpr std::size_t kErrorsKept = std::size_t{16} << 10;

class LocalChannel final : public Channel {
 public:
  explicit LocalChannel(const std::vector<std::string>& argv) : child_(argv, false, kErrorsKept) {}

  int fd() const override { return child_.stdio.get(); }
  std::string errors() override { return child_.errors(); }
  std::optional<int> wait(std::chrono::milliseconds limit) override {
    const std::optional<ProcessExit> exit = child_.wait(limit);
    return exit ? std::optional(exit->shell_code()) : std::nullopt;
  }

 private:
  PipedChild child_;
};

}  // namespace

std::unique_ptr<Channel> LocalTransport::open(const std::vector<std::string>& argv) {
  return std::make_unique<LocalChannel>(argv);
}

Captured LocalTransport::run(const std::vector<std::string>& argv, std::string_view input,
                             std::chrono::milliseconds deadline) {
  SpawnOptions options;
  options.argv = argv;
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
  std::erase_if(options.env, is_mark);  // `up` may be typed in a shell of another cluster's node
  options.workdir = "/";  // a cluster must not keep the folder busy in which `up` was typed
  options.new_session = true;
  spawn(options);
}

fs::path LocalTransport::head_socket(const HeadPlace& head) {
  return paths::head_socket(head.root);
}

}  // namespace dtrain
