#include "agent/session/join.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "agent/node/config.hpp"
#include "agent/session/agents.hpp"
#include "agent/session/host.hpp"
#include "agent/session/place.hpp"
#include "agent/session/removal.hpp"
#include "launcher/core/clock.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"
#include "launcher/wire/requests.hpp"

namespace dtrain::session {
namespace {

namespace asio = boost::asio;
using nlohmann::json;
using namespace std::chrono_literals;

constexpr auto kDialFor = 10s;
constexpr auto kTryFor = 2min;
constexpr auto kTryContainedFor = 15min;                     // more than MachineKeeper::kJoinLimit
constexpr std::chrono::milliseconds kFirstTryAgain = 100ms;  // and each later one twice as late
constexpr std::chrono::milliseconds kLastTryAgain = 2s;
constexpr auto kClockTold = 60s;  // as `up` has them
constexpr auto kClockLimit = 24h;
constexpr std::int64_t kGraceMs = 10000;

struct Granted {
  std::string certificates;
  std::vector<std::string> addresses;  // the one that answered first
  std::chrono::milliseconds ahead{0};  // this machine's clock, of the head's
};

// Absent while the head cannot say. Error(denied) when it says no.
std::optional<Granted> granted(const wire::HttpReply& reply) {
  if (reply.status >= 500) return std::nullopt;
  if (reply.status != 200) {
    throw Error(
        ErrorCode::denied,
        "the head refuses: " + printable(reply.body.substr(0, reply.body.find('\n')), false));
  }
  const json answer = wire::parse_json(reply.body, "the head's answer");
  Granted grant;
  grant.certificates = wire::get_string(answer, "certificates");
  grant.ahead = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now() - parse_rfc3339(wire::get_string(answer, "time")));
  return grant;
}

asio::awaitable<Granted> ask(JoinOptions options, wire::PeerName name, std::string body) {
  const auto tls = wire::tls_context(options.credential, wire::PeerName::Role::node);
  const auto limit = tried_for(options);
  const auto begun = std::chrono::steady_clock::now();
  bool has_told = false;
  asio::steady_timer pause(co_await asio::this_coro::executor);
  std::chrono::milliseconds again = kFirstTryAgain;
  while (true) {
    std::optional<Error> trouble;
    if (auto place = node::told_place(options.place)) {
      options.addresses = std::move(place->addresses);
      options.port = place->port;
    }
    for (const std::string& address : options.addresses) {
      std::optional<Granted> grant;
      try {
        const wire::HttpReply reply = co_await wire::post_tls(
            address, static_cast<std::uint16_t>(options.port), tls, wire::PeerName::Role::head,
            name.cluster, "/v1/join/request", body, kDialFor);
        grant = granted(reply);
        if (!grant) trouble = Error(ErrorCode::unreachable, "the head says: " + reply.body);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unreachable && error.code() != ErrorCode::timeout) throw;
        trouble = error;
      }
      if (!grant) continue;
      grant->addresses = {address};
      for (const std::string& other : options.addresses) {
        if (std::find(grant->addresses.begin(), grant->addresses.end(), other) ==
            grant->addresses.end()) {
          grant->addresses.push_back(other);
        }
      }
      co_return *grant;
    }
    if (!trouble) throw Error(ErrorCode::usage, "no address of the head was given");
    const auto tried = std::chrono::steady_clock::now() - begun;
    if (limit && tried >= *limit) {
      throw trouble->with_hint(
          "certificates do not count where the clock is off; this machine's says " +
          rfc3339(std::chrono::system_clock::now()));
    }
    if (tried >= kTryFor && !std::exchange(has_told, true)) {
      std::cerr << "dtrain: the head does not answer yet, and is tried on: " << trouble->what()
                << std::endl;
    }
    pause.expires_after(again);
    again = std::min(2 * again, kLastTryAgain);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

Granted ask_head(const JoinOptions& options, const wire::PeerName& name,
                 const std::string& request) {
  const json body{{"request", request}, {"incarnation", random_hex(16)}};
  asio::io_context context(1);
  std::optional<Granted> grant;
  std::exception_ptr failure;
  asio::co_spawn(context, ask(options, name, wire::dump(body)),
                 [&](const std::exception_ptr& failed, Granted answer) {
                   failure = failed;
                   if (!failed) grant = std::move(answer);
                 });
  context.run();
  if (failure) std::rethrow_exception(failure);
  return std::move(*grant);
}

// Its clock may be off by an hour or two: certificates begin two days back.
void check_clock(std::chrono::milliseconds ahead) {
  const auto off = std::chrono::abs(ahead);
  const std::string text = "this machine's clock is " + human_duration(off) +
                           (ahead.count() > 0 ? " ahead of" : " behind") + " the head's";
  if (off > kClockLimit) {
    throw Error(ErrorCode::failed, text)
        .with_hint("set it (timedatectl set-ntp true) and join again: certificates depend on it");
  }
  if (off > kClockTold) std::cerr << "dtrain: " << text << "\n";
}

void remove_all(const NodePlace& place, const wire::HostFacts& host) {
  const wire::RemoveReport removed = remove_files(place, {false, false}, host);
  if (removed.left.empty()) return;
  throw Error(ErrorCode::failed, "still there: " + dtrain::join(removed.left, ", "));
}

// A node whose agents may be started.
struct Joined {
  NodePlace place;
  wire::HostFacts host;
  bool changed = false;  // since they were started before
};

Joined join_cluster(const JoinOptions& options) {
  const wire::PeerName name = wire::certified_name(read_file(options.credential / "cert.pem"));
  if (name.role != wire::PeerName::Role::join) {
    throw Error(ErrorCode::invalid, name.uri() + " is no join credential");
  }
  wire::HostFacts host = gather_host_facts();
  use_spare_base(host, options.program);
  const wire::OpenNode wanted{name.cluster, name.node, "", true, false, {}};
  const NodePlace place = place_of(wanted, host, options.program);
  const wire::NodeFound found = open_node(place, wanted);
  const Granted grant = ask_head(options, name, found.request);
  check_clock(grant.ahead);
  wire::ConfigureNode parts;
  parts.certificates = grant.certificates;
  json head{{"addresses", grant.addresses}, {"port", options.port}};
  if (!options.place.empty()) head["place"] = options.place;
  parts.node_config = json{{"cluster", name.cluster.str()},
                           {"node", name.node.str()},
                           {"address", ""},  // by which it reaches the head
                           {"head", head}}
                          .dump(2) +
                      "\n";
  parts.capture_environment = !found.environment;
  const wire::Configured configured = configure_node(place, parts);
  if (!configured.warning.empty()) std::cerr << "dtrain: " << configured.warning << "\n";
  return {place, std::move(host), !configured.changed.empty()};
}

void say_joined(const NodePlace& place) {
  std::cout << "this machine joins " << place.cluster << " as " << place.node << "; its log is "
            << place.root().log().string() << std::endl;
}

void start(const JoinOptions& options) {
  const Joined joined = join_cluster(options);
  const wire::AgentsStarted started =
      start_agents(joined.place, {false, joined.changed}, joined.host);
  if (!started.warning.empty()) std::cerr << "dtrain: " << started.warning << "\n";
  say_joined(joined.place);
}

int contain(const JoinOptions& options) {
  std::error_code none;
  const auto joined = [&] {
    const std::shared_ptr<void> used(nullptr,
                                     [&](void*) { fs::remove_all(options.credential, none); });
    return join_cluster(options);
  }();
  // Of a machine that was stopped before it had cleaned up: it is of the cluster again.
  fs::remove(joined.place.root().removed(), none);
  write_watch(joined.place);
  say_joined(joined.place);
  const int status = options.contained(joined.place.watch());
  if (fs::exists(joined.place.root().removed(), none)) remove_all(joined.place, joined.host);
  return status;
}

void leave_cluster(const paths::NodeRoot& root, const fs::path& program) {
  const node::NodeConfig config = node::read_node_config(root);
  const wire::HostFacts host = gather_host_facts();
  const NodePlace place{config.cluster, config.node, root.root.parent_path().parent_path(),
                        host.home, program};
  if (place.root().root != root.root) {
    throw Error(ErrorCode::invalid, root.root.string() + " is not where a node's files are");
  }
  const wire::StopReport stopped = stop_agents(place, {false, kGraceMs});
  if (!stopped.left.empty()) {
    throw Error(ErrorCode::failed, stopped.left.front().what + " " +
                                       std::to_string(stopped.left.front().pid) + " does not end");
  }
  remove_all(place, host);
}

template <typename Work>
int exit_code_of(const Work& work) {
  ::signal(SIGPIPE, SIG_IGN);
  ::umask(077);
  try {
    return work();
  } catch (const std::exception& thrown) {
    const Error error = as_defect(thrown);
    std::cerr << "dtrain: " << error.what() << "\n";
    if (!error.hint().empty()) std::cerr << "dtrain: " << error.hint() << "\n";
    return 1;
  }
}

}  // namespace

std::optional<std::chrono::milliseconds> tried_for(const JoinOptions& options) {
  if (!options.contained) return kTryFor;
  if (!options.place.empty()) return std::nullopt;
  return kTryContainedFor;
}

int join_main(const JoinOptions& options) {
  return exit_code_of([&] {
    forget_login();
    if (options.contained) return contain(options);
    start(options);
    return 0;
  });
}

int leave_main(const paths::NodeRoot& root, const fs::path& program) {
  return exit_code_of([&] {
    leave_cluster(root, program);
    return 0;
  });
}

}  // namespace dtrain::session
