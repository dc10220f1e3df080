#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <mutex>
#include <stop_token>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/forward.hpp"
#include "cli/input_window.hpp"
#include "cli/jobs.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/no_signals.hpp"
#include "launcher/core/number.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using What = wire::ApiStream::What;

constexpr int kConnectionTries = 6;  // of one connection, while the way to the head comes back
constexpr std::chrono::milliseconds kFirstPause{200};

int port_in(const std::string& text, int least) {
  const int port = number_from<int>(text).value_or(-1);
  return port < least || port > 65535 ? -1 : port;
}

// A listener on our loopback: a node's port is nobody else's business.
UniqueFd listen_on(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw errno_error("cannot listen on port " + std::to_string(port), errno)
        .with_hint("another program has it: choose another LOCAL, or 0 for a free one");
  }
  return fd;
}

int port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw errno_error("the connection here is gone", errno);
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// Throws Error(not_found) for a node that the cluster does not have.
void check_nodes(const wire::ApiClient& client, const std::vector<Forward>& forwards) {
  std::vector<std::string> known;
  for (const Forward& forward : forwards) {
    if (forward.node.empty()) continue;
    if (known.empty()) {
      const nlohmann::json status = client.get("/v1/status");
      for (const nlohmann::json& node : child(status, "nodes")) {
        known.push_back(text_or(node, "node"));
      }
    }
    if (std::find(known.begin(), known.end(), forward.node) != known.end()) continue;
    constexpr std::size_t kNamed = 20;
    const bool many = known.size() > kNamed;
    const auto near = nearest(forward.node, known);
    if (many) known.resize(kNamed);
    throw Error(ErrorCode::not_found, "there is no node " + printable(forward.node, false))
        .with_hint(near ? "did you mean " + *near + "?"
                        : "the nodes are " + join(known, ", ") + (many ? ", …" : ""));
  }
}

// Whoever is at the other end must not take a connection that broke for one that has ended.
void reset(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  static_cast<void>(::connect(fd, &nobody, sizeof nobody));
}

// Both ways until either side has ended, or `over` can be read. Throws Error when the connection
// breaks.
void carry(wire::ApiStream& stream, int fd, int over) {
  InputWindow input(stream, fd);
  stream.watch(over);
  while (true) {
    const wire::ApiStream::Event event = stream.wait();
    if (event.what == What::input && event.fd == over) return;
    if (event.what == What::closed) throw Error(ErrorCode::unreachable, "the head went away");
    if (event.what == What::binary) send_all(fd, stream.data());
    if (event.what == What::input) input.read();
    if (event.what == What::text) {
      const nlohmann::json frame = wire::parse_json(stream.data(), "a frame of the head");
      if (text_or(frame, "type") == "credit") {
        input.credit(frame);
        continue;
      }
      if (frame.contains("error")) throw wire::error_from_json(frame);
      return;  // the program there has ended the connection
    }
  }
}

int run_forward(Context& context, const std::vector<std::string>& texts) {
  std::vector<Forward> forwards;
  for (const std::string& text : texts) forwards.push_back(parse_forward(text));
  if (forwards.empty()) {
    throw Error(ErrorCode::usage, "which port?").with_hint("dtrain forward 6006:NODE:6006");
  }
  const Forwarding forwarding(context, std::move(forwards));
  Signals signals({SIGINT, SIGTERM});
  for (const Forward& forward : forwarding.forwards()) {
    context.print("forwarding " + forward.text() + "\n");
  }
  context.note("Ctrl-C ends it");
  while (signals.wait(-1) == 0) {
  }
  return 0;
}

}  // namespace

std::string Forward::text() const {
  return "localhost:" + std::to_string(local) + " to " + (node.empty() ? "the head's node" : node) +
         ":" + std::to_string(port);
}

Forward parse_forward(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  Forward forward;
  bool good = parts.size() == 2 || parts.size() == 3;
  if (good) {
    forward.local = parts.size() == 3 ? port_in(parts[0], 0) : port_in(parts[1], 1);
    forward.node = parts[parts.size() - 2];
    forward.port = port_in(parts.back(), 1);
    good = forward.local >= 0 && forward.port > 0 && valid_name(forward.node);
  }
  if (!good) {
    throw Error(ErrorCode::usage, "a forward is LOCAL:NODE:PORT, not " + printable(text, false))
        .with_hint("dtrain forward 6006:NODE:6006; dtrain status lists the nodes");
  }
  return forward;
}

struct Forwarding::Impl {
  struct Carried {
    UniqueFd fd;
    std::thread thread;
    std::atomic<bool> done = false;
  };

  explicit Impl(const Context& to) : context(to) {}

  Context context;  // a copy, whose way to the head is these threads' alone
  std::mutex opening;
  std::vector<Forward> forwards;
  std::vector<UniqueFd> listeners;
  UniqueFd over{::eventfd(0, EFD_CLOEXEC)};
  std::stop_source ending;     // and of connections that are being made
  std::list<Carried> carried;  // the listening thread's, and after it the destructor's
  std::thread thread;

  void run() {
    std::vector<pollfd> polled{{over.get(), POLLIN, 0}};
    for (const UniqueFd& listener : listeners) polled.push_back({listener.get(), POLLIN, 0});
    while (true) {
      if (::poll(polled.data(), polled.size(), -1) < 0) continue;
      if (polled[0].revents != 0) return;
      for (std::size_t i = 0; i < forwards.size(); ++i) {
        if (polled[i + 1].revents != 0) accept(polled[i + 1].fd, forwards[i]);
      }
    }
  }

  void accept(int listener, const Forward& forward) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) {
      is_over_within(kFirstPause);  // of descriptors there may be more in a while
      return;
    }
    reap();
    carried.emplace_back();
    Carried& mine = carried.back();
    mine.fd = std::move(fd);
    const auto serve = [this, &mine, forward] {
      try {
        wire::ApiStream stream = open(forward);
        carry(stream, mine.fd.get(), over.get());
      } catch (const std::exception& error) {
        if (!ending.stop_requested()) context.note(forward.text() + ": " + error.what());
        reset(mine.fd.get());
      }
      ::shutdown(mine.fd.get(), SHUT_RDWR);
      mine.done = true;
    };
    try {
      mine.thread = std::thread(serve);
    } catch (const std::system_error& error) {
      context.note(forward.text() + ": no thread for a connection: " + error.what());
      reset(mine.fd.get());
      carried.pop_back();
    }
  }

  void reap() {
    for (auto it = carried.begin(); it != carried.end();) {
      if (!it->done) {
        ++it;
        continue;
      }
      it->thread.join();
      it = carried.erase(it);
    }
  }

  bool is_over_within(std::chrono::milliseconds pause) const {
    pollfd end{over.get(), POLLIN, 0};
    return ::poll(&end, 1, static_cast<int>(pause.count())) > 0;
  }

  // A head that was started again, or an SSH connection that broke, is met anew.
  wire::ApiStream open(const Forward& forward) {
    std::string target = "/v1/forward?port=" + std::to_string(forward.port);
    if (!forward.node.empty()) target += "&node=" + wire::percent_encode(forward.node);
    std::chrono::milliseconds pause = kFirstPause;
    for (int attempt = 1;; ++attempt) {
      try {
        const std::lock_guard lock(opening);
        const std::stop_token stop = ending.get_token();
        return (attempt == 1 ? context.client(stop) : context.new_client(stop)).open(target);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unreachable || attempt == kConnectionTries) throw;
        if (is_over_within(pause)) throw;
      }
      pause *= 2;
    }
  }
};

Forwarding::Forwarding(const Context& context, std::vector<Forward> forwards) {
  check_nodes(context.client(), forwards);  // and the login, before anything is promised
  impl_ = std::make_unique<Impl>(context);
  Impl& my = *impl_;
  for (Forward& forward : forwards) {
    my.listeners.push_back(listen_on(forward.local));
    forward.local = port_of(my.listeners.back().get());
  }
  my.forwards = std::move(forwards);
  const NoSignals none;  // nor in the threads of connections
  my.thread = std::thread([&my] { my.run(); });
}

Forwarding::~Forwarding() {
  ::eventfd_write(impl_->over.get(), 1);
  impl_->ending.request_stop();
  impl_->thread.join();
  for (Impl::Carried& each : impl_->carried) {
    ::shutdown(each.fd.get(), SHUT_RDWR);
    each.thread.join();
  }
}

const std::vector<Forward>& Forwarding::forwards() const {
  return impl_->forwards;
}

void add_port_forward(CLI::App& app, std::vector<int>& ports) {
  app.add_option("-p,--port-forward", ports,
                 "Bring this port of the head's node here meanwhile; again for more")
      ->type_name("PORT")
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 65535));
}

std::unique_ptr<Forwarding> forward_ports(const Context& context, const std::vector<int>& ports) {
  if (ports.empty()) return nullptr;
  std::vector<Forward> forwards;
  for (const int port : ports) forwards.push_back({port, "", port});
  auto forwarding = std::make_unique<Forwarding>(context, std::move(forwards));
  for (const Forward& each : forwarding->forwards()) context.note("forwarding " + each.text());
  return forwarding;
}

Verb add_forward(CLI::App& root) {
  auto texts = std::make_shared<std::vector<std::string>>();
  CLI::App* app = add_verb(root, "forward", "Bring ports of nodes to this machine",
                           "  dtrain forward 6006:node-1:6006          TensorBoard on node-1\n"
                           "  dtrain forward 8080:node-0:80 0:node-2:22  several; 0: a free one\n"
                           "It lasts until Ctrl-C, and goes on when a connection was lost.\n");
  app->add_option("forward", *texts, "LOCAL:NODE:PORT; again for more")
      ->type_name("LOCAL:NODE:PORT...");
  return {app, [texts](Context& context) { return run_forward(context, *texts); }, std::nullopt,
          false};
}

}  // namespace dtrain::cli
