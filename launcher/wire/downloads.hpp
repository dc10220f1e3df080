#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/wire/client.hpp"

namespace dtrain::wire {

// Files of the head, one after the other over one connection. What is asked for next travels ahead
// of the answers, so that small files do not cost a way there and back each; what is ahead is
// bounded in bytes. Blocking, for one thread.
class Downloads {
 public:
  using Sink = std::function<void(std::string_view)>;
  // So many bytes are not there any more, before those that come next.
  using Gap = std::function<void(std::uint64_t bytes)>;

  // `cluster` is for messages only.
  Downloads(fs::path socket, std::string cluster,
            std::chrono::milliseconds silence_limit = ApiClient::kLimit);
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;

  // The bytes of `target` from `offset` on are wanted, behind those asked for before. Nothing is
  // sent before take().
  void ask(std::string target, std::uint64_t offset);
  std::size_t asked() const noexcept { return asked_.size(); }

  // Gives the sink the bytes of what was asked for first; then it is not asked for any more. What
  // the sink throws ends all. Throws the head's own Error about this one; the others go on. Throws
  // Error(unreachable) when the connection breaks, Error(timeout) when nothing comes for the limit:
  // what the sink got was right, and the next take() goes on behind it over a new connection.
  void take(const Sink& sink, const Gap& gap);

 private:
  struct Connection;
  struct Asked {
    std::string target;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;  // of the request that was sent on this connection; 0: none was
  };
  void send_requests();
  std::optional<Error> receive(const Sink& sink,
                               const Gap& gap);  // the refusal, if the head refuses
  void disconnect();
  void drop_first();

  fs::path socket_;
  std::string cluster_;
  std::chrono::milliseconds silence_limit_;
  std::unique_ptr<Connection> connection_;
  std::deque<Asked> asked_;
  std::size_t sent_ = 0;         // of these, those whose requests were sent
  std::size_t bytes_ahead_ = 0;  // of those requests
  bool one_at_a_time_ = false;   // an older head closes the connection after each file
};

}  // namespace dtrain::wire
