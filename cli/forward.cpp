#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <list>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/forward.hpp"
#include "cli/input_window.hpp"
#include "cli/jobs.hpp"
#include "cli/signals.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::cli {
namespace {

using What = wire::ApiStream::What;

constexpr int kTries = 6;  // of one connection, while the way to the head comes back
constexpr std::chrono::milliseconds kFirstPause{200};

int port_in(const std::string& text, int least) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port < least || port > 65535) {
    return -1;
  }
  return port;
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

// Both ways until either side has ended.
void carry(wire::ApiStream& stream, int fd) {
  InputWindow input(stream, fd);
  while (true) {
    const wire::ApiStream::Event event = stream.wait();
    if (event.what == What::closed) return;
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

// All forwards of one command: threads that carry connections, over one way to the head.
class Forwarder {
 public:
  explicit Forwarder(Context& context) : context_(context) {}

  ~Forwarder() {
    {
      const std::lock_guard lock(mutex_);
      for (Carried& each : carried_) ::shutdown(each.fd.get(), SHUT_RDWR);
    }
    for (Carried& each : carried_) each.thread.join();
  }

  void accept(int listener, const Forward& forward) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) return;
    const std::lock_guard lock(mutex_);
    reap();
    carried_.emplace_back();
    Carried& mine = carried_.back();
    mine.fd = std::move(fd);
    mine.thread = std::thread([this, &mine, forward] {
      try {
        wire::ApiStream stream = open(forward);
        carry(stream, mine.fd.get());
      } catch (const std::exception& error) {
        context_.note(forward.text() + ": " + error.what());
      }
      ::shutdown(mine.fd.get(), SHUT_RDWR);
      mine.done = true;
    });
  }

 private:
  struct Carried {
    UniqueFd fd;
    std::thread thread;
    std::atomic<bool> done = false;
  };

  void reap() {
    for (auto it = carried_.begin(); it != carried_.end();) {
      if (!it->done) {
        ++it;
        continue;
      }
      it->thread.join();
      it = carried_.erase(it);
    }
  }

  // A head that was started again, or an SSH connection that broke, is met anew.
  wire::ApiStream open(const Forward& forward) {
    const std::string target = "/v1/forward?node=" + wire::percent_encode(forward.node) +
                               "&port=" + std::to_string(forward.port);
    std::chrono::milliseconds pause = kFirstPause;
    for (int attempt = 1;; ++attempt) {
      try {
        const std::lock_guard lock(opening_);
        return (attempt == 1 ? context_.client() : context_.new_client()).open(target);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unreachable || attempt == kTries) throw;
      }
      std::this_thread::sleep_for(pause);
      pause *= 2;
    }
  }

  Context& context_;
  std::mutex mutex_;
  std::mutex opening_;
  std::list<Carried> carried_;
};

int run_forward(Context& context, const std::vector<std::string>& texts) {
  if (context.globals.json) throw Error(ErrorCode::usage, "forward knows no --json");
  std::vector<Forward> forwards;
  for (const std::string& text : texts) forwards.push_back(parse_forward(text));
  if (forwards.empty()) {
    throw Error(ErrorCode::usage, "which port?").with_hint("dtrain forward 6006:NODE:6006");
  }
  return forward_until_stopped(context, forwards);
}

}  // namespace

std::string Forward::text() const {
  return "localhost:" + std::to_string(local) + " to " + node + ":" + std::to_string(port);
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

int forward_until_stopped(Context& context, std::vector<Forward> forwards) {
  context.client();  // the login, before anything is promised
  Signals signals({SIGINT, SIGTERM});
  Forwarder forwarder(context);
  std::vector<UniqueFd> listeners;
  std::vector<pollfd> polled;
  for (Forward& forward : forwards) {
    listeners.push_back(listen_on(forward.local));
    forward.local = port_of(listeners.back().get());
    polled.push_back({listeners.back().get(), POLLIN, 0});
    context.print("forwarding " + forward.text() + "\n");
  }
  context.note("Ctrl-C ends it");
  polled.push_back({signals.fd(), POLLIN, 0});
  while (true) {
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      throw errno_error("cannot wait for connections", errno);
    }
    if (polled.back().revents != 0) return 0;
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      if (polled[i].revents != 0) forwarder.accept(polled[i].fd, forwards[i]);
    }
  }
}

Verb add_forward(CLI::App& root) {
  auto texts = std::make_shared<std::vector<std::string>>();
  CLI::App* app = add_verb(root, "forward", "Bring ports of nodes to this machine",
                           "  dtrain forward 6006:node-1:6006          TensorBoard on node-1\n"
                           "  dtrain forward 8080:node-0:80 0:node-2:22  several; 0: a free one\n"
                           "It lasts until Ctrl-C, and goes on when a connection was lost.\n");
  app->add_option("forward", *texts, "LOCAL:NODE:PORT; again for more")
      ->type_name("LOCAL:NODE:PORT...");
  return {app, [texts](Context& context) { return run_forward(context, *texts); }, std::nullopt};
}

}  // namespace dtrain::cli
