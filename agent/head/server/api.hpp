#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <span>
#include <string>

#include <sys/types.h>

#include "agent/head/engine/engine.hpp"
#include "agent/head/machines/idle.hpp"
#include "agent/head/machines/keeper.hpp"
#include "agent/head/machines/succession.hpp"
#include "agent/head/server/config_file.hpp"
#include "agent/head/server/content_server.hpp"
#include "agent/head/server/doctor.hpp"
#include "agent/head/server/exec_hub.hpp"
#include "agent/head/server/file_server.hpp"
#include "agent/head/server/joins.hpp"
#include "agent/head/server/log_server.hpp"
#include "agent/head/server/node_connections.hpp"
#include "agent/head/server/node_door.hpp"
#include "agent/head/server/preparations.hpp"
#include "agent/head/server/prunes.hpp"
#include "agent/head/server/sessions.hpp"
#include "agent/head/server/setup_asks.hpp"

// The head's API (docs/api.md) on its unix socket. All on the io_context's thread.
namespace dtrain::head {

class Api {
 public:
  struct Parts {
    Engine& engine;
    ConfigFile& config;
    NodeDoor& door;
    NodeConnections& nodes;
    LogServer& logs;
    FileServer& files;
    ExecHub& execs;
    ContentServer& contents;
    SetupAsks& setups;
    Prunes& prunes;
    Doctor& doctor;
    Joins& joins;
    Preparations& preparations;
    MachineKeeper& machines;
    Sessions& sessions;
    IdleWatch& idle;
    const Succession* succession = nullptr;  // of a head that moves
  };
  // `ended` is called once a shutdown has been answered.
  Api(boost::asio::io_context& context, fs::path socket, Parts parts, std::function<void()> ended);
  ~Api();

  void serve();

 private:
  struct Request;
  struct Response;
  struct Route;
  struct StreamRoute;
  using Socket = boost::asio::local::stream_protocol::socket;

  void open_door();
  // A cleaner of /tmp may take the socket away: it is made again.
  boost::asio::awaitable<void> keep_door();
  boost::asio::awaitable<void> accept_loop();
  boost::asio::awaitable<void> converse(Socket socket);
  boost::asio::awaitable<Response> answer(Request request);
  static std::span<const Route> routes();
  static std::span<const StreamRoute> stream_routes();
  boost::asio::awaitable<nlohmann::json> node_types(nlohmann::json body);
  boost::asio::awaitable<nlohmann::json> settings(nlohmann::json body);
  boost::asio::awaitable<nlohmann::json> expect_nodes(nlohmann::json body);
  // A change of head.json: answered with {} once it is durable.
  void keep(const std::function<void(HeadConfig&)>& change, Engine::Answer done);
  boost::asio::awaitable<nlohmann::json> submit_search(nlohmann::json body);
  boost::asio::awaitable<nlohmann::json> missing_for(JobSpec spec, bool wait);
  boost::asio::awaitable<nlohmann::json> submit(nlohmann::json body);
  boost::asio::awaitable<nlohmann::json> shut_down();
  // What `serve` throws as Error ends it: "`what` ended".
  void serve_stream(Socket socket, const Request& request, const char* what,
                    std::function<boost::asio::awaitable<void>(wire::FrameStreamPtr)> serve);
  // Takes the socket when the request is one for another server; true if it did. `behind` are bytes
  // that came after it.
  bool hand_over(Socket& socket, const Request& request, const std::string& behind);

  boost::asio::io_context& context_;
  fs::path socket_path_;
  FileOf socket_file_;  // as it was bound
  Parts parts_;
  std::function<void()> ended_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
};

}  // namespace dtrain::head
