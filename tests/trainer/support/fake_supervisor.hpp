#pragma once

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/core/files.hpp"

namespace dtrain::train::test {

inline sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

// The other end of a report socket, driven by the test's own thread.
class FakeSupervisor {
 public:
  explicit FakeSupervisor(const std::filesystem::path& path)
      : listener_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_un address = address_of(path);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
            0);
    REQUIRE(::listen(listener_.get(), 8) == 0);
  }

  void accept() {
    buffer_.clear();
    connection_ = FileDescriptor(::accept(listener_.get(), nullptr, nullptr));
    REQUIRE(connection_.valid());
  }
  void hang_up() { connection_.reset(); }

  // The next line; the connection is accepted if there is none. Null at its end.
  nlohmann::json read_line() {
    if (!connection_.valid()) accept();
    for (;;) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        const nlohmann::json line = nlohmann::json::parse(buffer_.substr(0, end));
        buffer_.erase(0, end + 1);
        return line;
      }
      char piece[4096];
      const ssize_t got = ::read(connection_.get(), piece, sizeof piece);
      if (got <= 0) return nullptr;
      buffer_.append(piece, static_cast<std::size_t>(got));
    }
  }

  // The next line that is no heartbeat: these come on a connection of their own.
  nlohmann::json read_report() {
    for (;;) {
      nlohmann::json line = read_line();
      if (line["type"] != "heartbeat") return line;
      hang_up();
    }
  }

  void answer(const std::string& text) {
    const std::string line = text + "\n";
    REQUIRE(::send(connection_.get(), line.data(), line.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(line.size()));
  }

 private:
  FileDescriptor listener_;
  FileDescriptor connection_;
  std::string buffer_;
};

}  // namespace dtrain::train::test
