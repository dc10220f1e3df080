#include "tests/agent/supervise/driver.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include <doctest/doctest.h>

#include "agent/supervise/group.hpp"
#include "agent/supervise/record.hpp"
#include "launcher/core/process_exit.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/unix_socket.hpp"
#include "launcher/wire/json.hpp"
#include "tests/support/patience.hpp"

namespace dtrain::testing {

void wait_until(const char* what, const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) FAIL("in vain waited for: ", what);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::optional<std::string> LineReader::next(std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  while (true) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) FAIL("no line came in time");
    pollfd polled{fd_, POLLIN, 0};
    ::poll(&polled, 1, static_cast<int>(left.count()));
    std::array<char, 65536> bytes;
    const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) buffer_.append(bytes.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return std::nullopt;
  }
}

const std::string& cluster_of_tests() {
  static const std::string id = "test-" + random_hex(3);
  return id;
}

Driver::Driver() {
  node.root = folder_ / "node";
  spec.cluster = ClusterId(cluster_of_tests());
  spec.job = JobId("job-abcdef");
  spec.job_name = "job";
  spec.node = NodeId("node-0");
  spec.token = random_hex(16);
  spec.node_ips = {"127.0.0.1"};
  spec.master_addr = "127.0.0.1";
  spec.workdir = (folder_ / "work").string();
  spec.storage_path = (folder_ / "storage").string();
  spec.stop_grace = std::chrono::seconds(10);
  spec.command = {"true"};
  root = paths::attempt(node, spec.job, spec.attempt);
  fs::create_directories(spec.workdir);
}

Driver::~Driver() {
  if (pid_ != 0) kill_supervisor();
  if (fs::exists(group() / "cgroup.type")) {
    supervise::clean_group(group(), spec, std::chrono::seconds(5));
  }
  sweep("DTRAIN_ATTEMPT_TOKEN", spec.token, std::chrono::seconds(5));
  remove_tree(paths::socket_folder(node.root));
}

void Driver::shell(const std::string& line, int nproc) {
  spec.command = {line};
  spec.shell = true;
  spec.nproc = nproc;
  spec.world_size = nproc;
}

void Driver::start() {
  make_folders(root.root);
  if (!login_env.empty()) write_file_atomic(node.login_env(), login_env);
  write_file_atomic(root.spec(), wire::dump(wire::to_json(spec)));
  if (!secrets.empty()) write_file_atomic(root.secrets(), wire::dump(nlohmann::json(secrets)));
  SpawnOptions options;
  options.argv = {SUPERVISE_PROCESS, node.root.string(), spec.job.str(),
                  std::to_string(spec.attempt), std::to_string(linger_ms)};
  options.env = env;
  options.new_session = true;
  pid_ = spawn(options);
}

void Driver::connect() {
  lines_.reset();
  wait_until("the supervisor's socket", [this] {
    connection_ = connect_unix(paths::supervisor_socket(node.root, spec.job, spec.attempt));
    return connection_.has_value();
  });
  lines_.emplace(connection_->get());
  const auto line = lines_->next();
  REQUIRE(line.has_value());
  const nlohmann::json hello = nlohmann::json::parse(*line);
  CHECK(hello["type"] == "hello");
  CHECK(hello["version"] == wire::kSuperviseVersion);
  CHECK(hello["job"] == spec.job.str());
  CHECK(hello["attempt"] == spec.attempt);
  CHECK(hello["pid"] == pid_);
}

void Driver::start_and_connect() {
  start();
  connect();
}

wire::AttemptEvent Driver::next() {
  const auto line = lines_->next();
  REQUIRE_MESSAGE(line.has_value(), "the supervisor closed the connection");
  auto event = wire::attempt_event_from_json(nlohmann::json::parse(*line));
  seen.push_back(event);
  return event;
}

void Driver::send(const wire::AttemptCommand& command) {
  send_raw(wire::dump(wire::to_json(command)) + "\n");
}

void Driver::send_raw(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t sent = ::send(connection_->get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      pollfd polled{connection_->get(), POLLOUT, 0};
      ::poll(&polled, 1, 1000);
    } else {
      return;  // it has hung up, which the caller looks at
    }
  }
}

void Driver::ack(std::uint64_t seq, std::optional<nlohmann::json> answer) {
  send(wire::EventAck{seq, std::move(answer)});
}

wire::NodeFinished Driver::finish() {
  const auto finished = until<wire::NodeFinished>();
  ack(seen.back().seq);
  CHECK(wait_exit() == 0);
  CHECK(carriers().empty());
  CHECK_FALSE(fs::exists(group() / "cgroup.type"));
  CHECK_FALSE(fs::exists(paths::supervisor_socket(node.root, spec.job, spec.attempt)));
  return finished;
}

bool Driver::closed_by_peer() {
  while (lines_->next()) {
  }
  return true;
}

int Driver::wait_exit() {
  std::optional<ProcessExit> exit;
  wait_until("the supervisor's end", [&] {
    exit = try_wait(pid_);
    return exit.has_value();
  });
  pid_ = 0;
  return exit->shell_code();
}

void Driver::kill_supervisor() {
  ::kill(pid_, SIGKILL);
  wait(pid_);
  pid_ = 0;
}

UniqueFd Driver::report_connection(int rank) {
  const fs::path path = paths::report_socket(node.root, spec.job, spec.attempt, rank);
  std::optional<UniqueFd> fd;
  wait_until("a report socket", [&] {
    fd = connect_unix(path);
    return fd.has_value();
  });
  // A rank's end of it blocks.
  ::fcntl(fd->get(), F_SETFL, 0);
  return std::move(*fd);
}

std::string Driver::out(int rank) const {
  return read_file(root.out(rank));
}
std::string Driver::err(int rank) const {
  return read_file(root.err(rank));
}

std::string Driver::wait_for_line(const std::string& name) const {
  std::string content;
  wait_until(name.c_str(), [&] {
    content = read_file_if_there(file(name)).value_or("");
    return !content.empty() && content.back() == '\n';
  });
  content.pop_back();
  return content;
}

fs::path Driver::group() const {
  const auto record = supervise::read_supervisor(root);
  return record ? record->cgroup : "";
}

std::vector<pid_t> Driver::carriers() const {
  return find_by_environment("DTRAIN_ATTEMPT_TOKEN", spec.token);
}

}  // namespace dtrain::testing
