#include "launcher/wire/client.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include <nlohmann/json.hpp>

#include "launcher/core/error.hpp"
#include "launcher/core/unix_socket.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace dtrain;

namespace {

// It lets connections in, and says nothing.
struct SilentHead {
  testing::TemporaryFolder folder;
  UniqueFd listener = listen_unix(folder / "s");
  wire::ApiClient client{folder / "s", "lab"};
};

std::string why(const std::function<void()>& request) {
  try {
    request();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::timeout);
    return error.message();
  }
  return "answered";
}

}  // namespace

TEST_CASE("client: a head that says nothing is waited for no longer than is wanted") {
  const auto get = [](const wire::ApiClient& client) { client.get("/v1/status"); };
  const auto open = [](const wire::ApiClient& client) { client.open("/v1/exec"); };
  for (const std::function<void(const wire::ApiClient&)>& request : {std::function(get), {open}}) {
    const SilentHead head;
    std::stop_source stop;
    const wire::ApiClient stopped = head.client.stopped_by(stop.get_token());
    const std::jthread other([&] {
      pollfd come{head.listener.get(), POLLIN, 0};
      CHECK(::poll(&come, 1, static_cast<int>(testing::kPatience.count()) * 1000) == 1);
      const UniqueFd asking(::accept(head.listener.get(), nullptr, nullptr));
      char byte = 0;
      CHECK(::recv(asking.get(), &byte, 1, MSG_PEEK) == 1);
      stop.request_stop();
      while (::recv(asking.get(), &byte, 1, 0) == 1) {  // until it hangs up
      }
    });
    CHECK(why([&] { request(stopped); }) == "the head of cluster lab was not waited for");
    // Nor the next one.
    CHECK(why([&] { request(stopped); }) == "the head of cluster lab was not waited for");
  }
  const SilentHead head;
  CHECK(why([&] { head.client.get("/v1/status", std::chrono::milliseconds(1)); }) ==
        "the head of cluster lab took longer than 0 s to answer");
}

TEST_CASE("client: an answer that is too large is no broken connection") {
  const SilentHead head;
  const std::jthread other([&] {
    pollfd come{head.listener.get(), POLLIN, 0};
    CHECK(::poll(&come, 1, static_cast<int>(testing::kPatience.count()) * 1000) == 1);
    const UniqueFd asking(::accept(head.listener.get(), nullptr, nullptr));
    const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 67108865\r\n\r\n";
    CHECK(::send(asking.get(), answer.data(), answer.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(answer.size()));
    char byte = 0;
    while (::recv(asking.get(), &byte, 1, 0) == 1) {  // until it hangs up
    }
  });
  try {
    head.client.get("/v1/jobs");
    FAIL("answered");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::exhausted);
    CHECK(error.message() == "what the head of cluster lab answers is over 64 MiB");
  }
}
