#include "agent/node/spot.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variable_is.hpp"

using namespace dtrain;
using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;
using dtrain::testing::TemporaryFolder;
using node::Metadata;
using node::SpotNotice;
using node::SpotWatch;

namespace {

constexpr const char* kLifeCycle = "GET /latest/meta-data/instance-life-cycle";
constexpr const char* kAction = "GET /latest/meta-data/spot/instance-action";
constexpr const char* kToken = "PUT /latest/api/token";
constexpr const char* kNotice = R"({"action":"terminate","time":"2017-09-18T08:22:00Z"})";

// A metadata service on loopback.
class MetadataService {
 public:
  explicit MetadataService(asio::io_context& context) : acceptor_(context, tcp::v4()) {
    acceptor_.bind({asio::ip::address_v4::loopback(), 0});
  }
  // Before that connections are refused.
  void open() {
    acceptor_.listen();
    asio::co_spawn(
        acceptor_.get_executor(), [this] { return serve(); }, asio::detached);
  }

  std::map<std::string, std::string> says;  // by "GET /PATH"; what it has not is 404
  std::vector<std::string> asked;
  int token = 1;           // the one that counts
  bool is_silent = false;  // it takes requests and answers none
  std::string no_token;    // "403 Forbidden"

  int count(const std::string& what) const {
    return static_cast<int>(std::count(asked.begin(), asked.end(), what));
  }
  node::MetadataOptions options() const {
    return {"http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()) + "/", 20s};
  }
  void close() { acceptor_.close(); }

 private:
  asio::awaitable<void> serve() {
    while (acceptor_.is_open()) {
      tcp::socket socket = co_await acceptor_.async_accept(asio::use_awaitable);
      std::string request;
      co_await asio::async_read_until(socket, asio::dynamic_buffer(request), "\r\n\r\n",
                                      asio::use_awaitable);
      asked.push_back(request.substr(0, request.find(" HTTP/")));
      if (is_silent) {
        held_.push_back(std::move(socket));
        continue;
      }
      const std::string text = answer(asked.back(), request);
      co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
    }
  }

  std::string answer(const std::string& what, const std::string& request) const {
    const std::string mine = "token-" + std::to_string(token);
    if (what == kToken) {
      CHECK(request.find("X-aws-ec2-metadata-token-ttl-seconds: 21600\r\n") != std::string::npos);
      return no_token.empty() ? with("200 OK", mine) : with(no_token, "");
    }
    if (request.find("X-aws-ec2-metadata-token: " + mine + "\r\n") == std::string::npos) {
      return with("401 Unauthorized", "");
    }
    const auto found = says.find(what);
    return found == says.end() ? with("404 Not Found", "no") : with("200 OK", found->second);
  }
  static std::string with(const std::string& status, const std::string& body) {
    return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }

  tcp::acceptor acceptor_;
  std::vector<tcp::socket> held_;
};

struct Instance {
  asio::io_context context;
  TemporaryFolder folder;
  paths::NodeRoot root{folder.path()};
  MetadataService service{context};
  SpotWatch::Options options{service.options(), 2ms, 8ms};
  std::vector<SpotNotice> notices;
  std::optional<SpotWatch> watch;

  explicit Instance(bool open = true) {
    if (open) service.open();
  }
  SpotWatch& begin() {
    start();
    watch->begin();
    return *watch;
  }
  SpotWatch& start() {
    watch.emplace(context.get_executor(), root, options,
                  [this](const SpotNotice& notice) { notices.push_back(notice); });
    return *watch;
  }
  template <typename Condition>
  void until(Condition is_so) {
    const auto limit = std::chrono::steady_clock::now() + dtrain::testing::kPatience;
    while (!is_so() && std::chrono::steady_clock::now() < limit) context.run_one_for(100ms);
    REQUIRE(is_so());
  }
  // Until it asks no more: its wait would be over.
  bool rests() {
    const std::size_t before = service.asked.size();
    context.run_for(50ms);
    return service.asked.size() == before;
  }
  std::optional<SpotNotice> standing() {
    std::optional<SpotNotice> notice;
    bool done = false;
    asio::co_spawn(context, watch->standing(),
                   [&](const std::exception_ptr& failed, std::optional<SpotNotice> found) {
                     CHECK_FALSE(failed);
                     notice = std::move(found);
                     done = true;
                   });
    until([&] { return done; });
    return notice;
  }
};

}  // namespace

TEST_CASE("a spot instance hears that it is taken back") {
  Instance instance;
  instance.service.says[kLifeCycle] = "spot";
  instance.begin();
  instance.until([&] { return instance.service.count(kAction) > 2; });
  CHECK(instance.notices.empty());
  CHECK(instance.service.count(kToken) == 1);
  CHECK(instance.service.count(kLifeCycle) == 1);
  CHECK(fs::exists(instance.root.spot()));
  SUBCASE("") {}
  SUBCASE("with a token that has expired meanwhile") {
    instance.service.token = 2;
  }
  SUBCASE("after what cannot be understood") {
    for (const char* garbage :
         {"", "no", "[]", R"({"action":"terminate"})", R"({"action":"terminate","time":"soon"})",
          R"({"action":7,"time":"2017-09-18T08:22:00Z"})"}) {
      CAPTURE(garbage);
      instance.service.says[kAction] = garbage;
      const int before = instance.service.count(kAction);
      instance.until([&] { return instance.service.count(kAction) > before + 1; });
      CHECK(instance.notices.empty());
    }
  }
  SUBCASE("after it gave no tokens for a while") {
    instance.service.token = 2;
    instance.service.no_token = "503 Service Unavailable";
    instance.until([&] { return instance.service.count(kToken) > 2; });
    CHECK(instance.notices.empty());
    instance.service.no_token.clear();
  }
  instance.service.says[kAction] = kNotice;
  instance.until([&] { return !instance.notices.empty(); });
  CHECK(instance.notices[0].reason() == "its spot instance is taken back at 08:22:00Z (terminate)");
  CHECK(instance.rests());
  CHECK(instance.notices.size() == 1);
  instance.watch->begin();
  CHECK(instance.rests());
}

TEST_CASE("what is no spot instance is not asked again") {
  Instance instance;
  SUBCASE("on demand") {
    instance.service.says[kLifeCycle] = "on-demand";
  }
  SUBCASE("where the service does not know that") {}
  write_file_atomic(instance.root.spot(), "");  // of a root that came from elsewhere
  instance.service.says[kAction] = kNotice;
  instance.begin();
  instance.until([&] { return instance.service.count(kLifeCycle) == 1; });
  CHECK(instance.rests());
  CHECK(instance.service.count(kAction) == 0);
  CHECK(instance.notices.empty());
  CHECK_FALSE(fs::exists(instance.root.spot()));
  CHECK_FALSE(instance.standing());
}

TEST_CASE("a service that does not answer is asked again, ever less often") {
  Instance instance(false);
  instance.service.says[kLifeCycle] = "spot";
  instance.service.says[kAction] = kNotice;
  SUBCASE("nobody is there") {
    instance.begin();
    instance.context.run_for(50ms);
    instance.service.open();
  }
  SUBCASE("it takes requests and is silent") {
    instance.service.open();
    instance.service.is_silent = true;
    instance.options.metadata.limit = 20ms;
    const auto begun = std::chrono::steady_clock::now();
    instance.begin();
    instance.until([&] { return instance.service.asked.size() == 4; });
    // Three limits, and 2, 4 and 8 ms.
    CHECK(std::chrono::steady_clock::now() - begun >= 74ms);
    instance.service.is_silent = false;
  }
  instance.until([&] { return !instance.notices.empty(); });
}

TEST_CASE("before it joins") {
  Instance instance;
  instance.service.says[kLifeCycle] = "spot";
  instance.service.says[kAction] = kNotice;
  instance.start();
  SUBCASE("nobody is asked where no agent has found that it is a spot instance") {
    CHECK_FALSE(instance.standing());
    CHECK(instance.service.asked.empty());
  }
  SUBCASE("an agent knows from the one before it") {
    write_file_atomic(instance.root.spot(), "");
    const auto notice = instance.standing();
    REQUIRE(notice);
    CHECK(notice->action == "terminate");
    instance.service.says.erase(kAction);
    CHECK_FALSE(instance.standing());
    // It may join if nobody says otherwise.
    instance.service.close();
    CHECK_FALSE(instance.standing());
  }
}

TEST_CASE("how long a notice leaves") {
  const SpotNotice notice = node::read_spot_notice(kNotice);
  CHECK(notice.time == parse_rfc3339("2017-09-18T08:22:00.000Z"));
  CHECK(notice.left(notice.time - 60s) == 55s);
  CHECK(notice.left(notice.time - 60s - 300us) == 55s);
  // A clock that is off.
  CHECK(notice.left(notice.time - 1h) == 115s);
  CHECK(notice.left(notice.time + 1h) == 5s);
}

TEST_CASE("where the metadata service is") {
  const char* const kName = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
  {
    const dtrain::testing::VariableIs variable(kName, std::nullopt);
    CHECK(node::metadata_options().endpoint == "http://169.254.169.254");
    CHECK(node::metadata_options().limit == 2s);
  }
  {
    const dtrain::testing::VariableIs variable(kName, "http://[::1]:1338/");
    CHECK(node::metadata_options().endpoint == "http://[::1]:1338/");
  }
  Instance instance;
  for (const char* wrong : {"", "169.254.169.254", "https://127.0.0.1", "http://localhost",
                            "http://127.0.0.1:x", "http://127.0.0.1:70000"}) {
    CAPTURE(wrong);
    Metadata metadata(instance.context.get_executor(), {wrong, 1s});
    std::string failure;
    asio::co_spawn(instance.context, metadata.get("latest"),
                   [&](const std::exception_ptr& failed, const Metadata::Answer&) {
                     try {
                       std::rethrow_exception(failed);
                     } catch (const Error& error) {
                       failure = error.what();
                     }
                   });
    instance.until([&] { return !failure.empty(); });
    CHECK(failure.starts_with("the metadata service is at http://ADDRESS"));
  }
}
