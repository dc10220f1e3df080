#include "agent/session/session.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>

#include "agent/head/setup.hpp"
#include "agent/session/agents.hpp"
#include "agent/session/host.hpp"
#include "agent/session/probe.hpp"
#include "agent/session/removal.hpp"
#include "agent/session/setup.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::session {
namespace {

using nlohmann::json;

// Somebody waits at the other end while another node's setup takes its hour.
constexpr std::chrono::hours kIdle{12};
constexpr std::chrono::hours kStaleUpload{1};

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// Half-sent binaries that a broken connection left beside ours.
void remove_stale_uploads(const fs::path& folder) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.')) continue;
    std::error_code gone;
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(gone);
    if (!gone && age > kStaleUpload) fs::remove(entry.path(), gone);
  }
}

// Of the file that runs, whatever its name leads to by now.
std::string own_sum() {
  return sum_open(open_file("/proc/self/exe", O_RDONLY).get()).sha256;
}

class Session {
 public:
  Session(const SessionOptions& options, UniqueFd in, UniqueFd out)
      : options_(options),
        in_(std::move(in)),
        out_(std::move(out)),
        stream_(in_.get(), out_.get()),
        host_(gather_host_facts()) {
    use_spare_base(host_, options_.program);
  }

  int run() {
    greet();
    while (auto message = stream_.read(kIdle)) {
      if (message->kind != FrameKind::text) {
        throw Error(ErrorCode::invalid, "bytes came that no request had announced");
      }
      answer(message->bytes);
    }
    return 0;
  }

 private:
  void greet() {
    wire::SessionHello hello;
    hello.agent_version = DTRAIN_VERSION;
    hello.agent = options_.program.string();
    hello.agent_sha256 = own_sum();
    for (const auto& [name, operation] : options_.streams) hello.features.push_back(name);
    hello.host = host_;
    hello.host.wall_ms = to_millis(std::chrono::system_clock::now());
    stream_.send(FrameKind::text, wire::dump(wire::session_to_json(hello)));
    if (options_.fresh) {
      // After the hello: it need not wait for the disk. The file is whole before anything is
      // started from it at a boot.
      const UniqueFd file = open_file("/proc/self/exe", O_RDONLY);
      ::fsync(file.get());
      fsync_folder(options_.program.parent_path());
      remove_stale_uploads(options_.program.parent_path());
    }
  }

  void answer(const std::string& text) {
    json reply;
    std::optional<std::string> bytes;
    try {
      const json request = wire::parse_json(text, "the request");
      const auto stream = options_.streams.find(wire::get_string(request, "op"));
      if (stream != options_.streams.end()) {
        // From here on the operation speaks for itself, of errors too.
        const NodePlace here = place();
        stream_.send(FrameKind::text, wire::dump(json{{"ok", json::object()}}));
        try {
          stream->second(here, request, stream_, host_);
        } catch (const Error& error) {
          if (error.code() == ErrorCode::unreachable || error.code() == ErrorCode::timeout) throw;
        }
        return;
      }
      reply = {{"ok", perform(wire::session_request_from_json(request), bytes)}};
    } catch (const Error& error) {
      reply = wire::error_to_json(error);
    } catch (const std::exception& error) {
      reply = wire::error_to_json(Error(ErrorCode::internal, error.what()));
    }
    stream_.send(FrameKind::text, wire::dump(reply));
    if (bytes) stream_.send(FrameKind::bytes, *bytes);
  }

  const NodePlace& place() const {
    if (!place_) throw Error(ErrorCode::conflict, "no node has been opened in this session");
    return *place_;
  }

  paths::NodeRoot root() const { return place().root(); }

  json perform(const wire::SessionRequest& request, std::optional<std::string>& bytes) {
    using wire::session_to_json;
    return std::visit(
        Overloaded{
            [&](const wire::FindClusters& r) { return session_to_json(find_clusters(r, host_)); },
            [&](const wire::OpenNode& r) {
              NodePlace opened = place_of(r, host_, options_.program);
              const wire::NodeFound found = open_node(opened, r);
              place_ = std::move(opened);
              return session_to_json(found);
            },
            [&](const wire::InitHead& r) {
              head::init_head(place().head(),
                              {place().cluster, r.name, r.provider, r.expected_nodes, r.wanted_port,
                               0, r.ranks_on_head, r.moves});
              return session_to_json(describe_head(place().head()));
            },
            [&](const wire::SignNode& r) {
              return session_to_json(
                  wire::Text{head::sign_node(place().head(), r.node, r.request)});
            },
            [&](const wire::RevokeNode& r) {
              head::shut_out(place().head(), r.node);
              return session_to_json(wire::Done{});
            },
            [&](const wire::ConfigureNode& r) {
              return session_to_json(configure_node(place(), r));
            },
            [&](const wire::StartSetup& r) {
              return session_to_json(start_setup(root(), options_.program, r));
            },
            [&](const wire::ReadSetup& r) {
              return session_to_json(read_setup(root(), r, in_.get(), bytes.emplace()));
            },
            [&](const wire::CancelSetup& r) {
              return session_to_json(cancel_setup(root(), r.list));
            },
            [&](const wire::StartAgents& r) {
              return session_to_json(start_agents(place(), r, host_));
            },
            [&](const wire::StopAgents& r) { return session_to_json(stop_agents(place(), r)); },
            [&](const wire::Survey& r) { return session_to_json(survey(place(), r)); },
            [&](const wire::RemoveFiles& r) {
              return session_to_json(remove_files(place(), r, host_));
            },
            [&](const wire::Persist& r) { return session_to_json(persist(place(), r.on, host_)); },
            [&](const wire::Probe& r) { return session_to_json(probe(root(), host_.home, r)); },
            [&](const wire::ReadLogs& r) { return session_to_json(read_logs(place(), r)); },
        },
        request);
  }

  const SessionOptions& options_;
  UniqueFd in_;
  UniqueFd out_;
  FramedStream stream_;
  wire::HostFacts host_;
  std::optional<NodePlace> place_;
};

}  // namespace

int session_main(const SessionOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  ::umask(077);
  // Nothing but our frames may come out of this: whatever else writes to stdout goes to stderr.
  UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10));
  UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10));
  if (!in || !out) throw Error(ErrorCode::usage, "a session speaks over stdin and stdout");
  const UniqueFd nothing = open_file("/dev/null", O_RDWR);
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  forget_login();
  Session session(options, std::move(in), std::move(out));
  try {
    return session.run();
  } catch (const Error& error) {
    // The other side is gone: nothing more to say, and nothing lost.
    if (error.code() == ErrorCode::unreachable) return 0;
    throw;
  }
}

}  // namespace dtrain::session
