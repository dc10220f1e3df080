#include "launcher/remote/ssh/connection.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/pipe.hpp"
#include "launcher/core/text.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/remote/ssh/loop.hpp"

namespace dtrain {
namespace {

using ssh::Link;
using ssh::Loop;
using ssh::Settings;
using ssh::Target;

constexpr int kMostNested = 8;
constexpr int kSocketBuffer = 1 << 20;

// Our end is for the loop, the other for the caller.
std::array<UniqueFd, 2> socket_pair() {
  std::array<UniqueFd, 2> ends = make_socket_pair();
  for (const UniqueFd& end : ends) {
    ::setsockopt(end.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  }
  ::fcntl(ends[0].get(), F_SETFL, O_NONBLOCK);
  return ends;
}

class SshChannel final : public Channel {
 public:
  SshChannel(std::shared_ptr<Loop> loop, std::shared_ptr<Link> link, UniqueFd fd)
      : loop_(std::move(loop)), link_(std::move(link)), fd_(std::move(fd)) {}
  ~SshChannel() override {
    fd_.reset();
    loop_->abandon(link_);
  }

  int fd() const override { return fd_.get(); }
  std::string errors() override { return loop_->errors(*link_); }
  std::optional<int> wait(std::chrono::milliseconds limit) override {
    return loop_->wait(*link_, limit);
  }

 private:
  std::shared_ptr<Loop> loop_;
  std::shared_ptr<Link> link_;
  UniqueFd fd_;
};

std::string name_of(const Settings& settings) {
  std::string name = settings.user + "@" + settings.host;
  if (settings.hostname != settings.host || settings.port != 22) {
    name += " (" + host_and_port(settings.hostname, settings.port) + ")";
  }
  return name;
}

void warn_of(const Settings& settings, const SshOptions& options) {
  if (!options.warn) return;
  for (const std::string& warning : settings.warnings) options.warn(warning);
}

}  // namespace

std::string SshConnection::name() const {
  return name_of(settings_);
}

std::shared_ptr<SshConnection> SshConnection::make(Settings settings,
                                                   std::shared_ptr<SshConnection> via,
                                                   const SshOptions& options) {
  warn_of(settings, options);
  std::shared_ptr<SshConnection> made(new SshConnection(std::move(settings)));
  made->via_ = via;
  made->shared_ = options.shared;
  ssh::LoggedIn in = while_doing("connecting to " + made->name(),
                                 [&] { return ssh::log_in(made->settings_, via, options); });
  made->loop_ = std::make_shared<Loop>(std::move(in), made->name());
  made->loop_->start();
  return made;
}

namespace {

// Jumps in a row, each through the one before; the first may have a way of its own configured.
std::shared_ptr<SshConnection> reach_jumps(
    const std::vector<SshHost>& jumps, const SshOptions& options, int depth,
    const std::function<std::shared_ptr<SshConnection>(const SshHost&, int)>& first) {
  std::shared_ptr<SshConnection> via;
  std::string key = options.known_hosts.native() + "|" + options.config.native();
  for (const SshHost& jump : jumps) {
    key += " > " + jump.str() + "|" + jump.identity.native() + "|" + jump.proxy_command;
    via = options.shared->jump(key, [&] {
      return via ? SshConnection::connect_through(via, jump, options) : first(jump, depth + 1);
    });
  }
  return via;
}

}  // namespace

std::shared_ptr<SshConnection> SshConnection::connect(const SshHost& host,
                                                      const SshOptions& options) {
  SshOptions of_jumps = options;
  of_jumps.key_name.clear();
  const std::function<std::shared_ptr<SshConnection>(const SshHost&, int)> reach =
      [&](const SshHost& to, int depth) -> std::shared_ptr<SshConnection> {
    if (depth > kMostNested) {
      throw Error(ErrorCode::invalid, "the jump hosts of " + host.host + " lead in a circle");
    }
    Settings settings = ssh::resolve(to, options.config);
    if (depth == 0 && !options.key_name.empty()) settings.host_key_alias = options.key_name;
    std::shared_ptr<SshConnection> via;
    if (!settings.jumps.empty()) {
      // OpenSSH names the target itself as a jump in `Host *` rules: that is no jump.
      via = while_doing("reaching the jump host of " + to.host,
                        [&] { return reach_jumps(settings.jumps, of_jumps, depth, reach); });
    }
    return make(std::move(settings), via, options);
  };
  return reach(host, 0);
}

std::shared_ptr<SshConnection> SshConnection::connect_through(std::shared_ptr<SshConnection> jump,
                                                              const SshHost& host,
                                                              const SshOptions& options) {
  Settings settings = ssh::resolve(host, options.config);
  settings.jumps.clear();
  settings.proxy_command.clear();
  if (!options.key_name.empty()) settings.host_key_alias = options.key_name;
  return make(std::move(settings), std::move(jump), options);
}

SshConnection::~SshConnection() {
  close();
}

void SshConnection::close() {
  if (loop_) loop_->stop();
}

bool SshConnection::alive() const {
  return loop_->alive();
}

bool SshConnection::wait_ended(std::chrono::milliseconds limit) const {
  return loop_->wait_ended(limit);
}

std::unique_ptr<Channel> SshConnection::exec(const std::string& command, const SshExec& options) {
  auto [ours, theirs] = socket_pair();
  Target target;
  target.kind = Target::Kind::exec;
  target.text = command;
  target.marker = options.marker;
  target.errors_kept = options.errors_kept;
  auto link = loop_->join(std::move(target), std::move(ours));
  return std::make_unique<SshChannel>(loop_, std::move(link), std::move(theirs));
}

UniqueFd SshConnection::open_tcp(const std::string& host, int port,
                                 std::chrono::milliseconds limit) {
  ssh::check_host(host);
  ssh::check_port(port);
  auto [ours, theirs] = socket_pair();
  Target target;
  target.kind = Target::Kind::tcp;
  target.text = host;
  target.port = port;
  loop_->join(std::move(target), std::move(ours), limit);
  return std::move(theirs);
}

void SshConnection::serve_unix(const fs::path& local_path, const std::string& remote_path,
                               const std::string& bridge) {
  // Under another name first, so that nobody meets it before it is private and listens.
  fs::path bound = local_path.native() + ".new";
  if (!fits_socket(bound)) bound = local_path;
  UniqueFd listener = listen_unix(bound);
  if (bound != local_path && ::rename(bound.c_str(), local_path.c_str()) != 0) {
    throw errno_error("cannot listen at " + local_path.string(), errno);
  }
  Target target;
  target.kind = Target::Kind::unix_socket;
  target.text = remote_path;
  target.bridge = bridge;
  loop_->serve(std::move(listener), std::move(target), local_path);
}

}  // namespace dtrain
