#pragma once

#include <boost/asio/steady_timer.hpp>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "agent/head/server/log_files.hpp"
#include "agent/head/server/log_server.hpp"
#include "agent/head/server/news_queue.hpp"

// One follower of a job: LogServer's inside, for its sources only.
namespace dtrain::head {

inline constexpr int kNoRank = -1;

// One stream of one rank of one attempt, or what its setup wrote on a node, as far as it has been
// sent.
struct FollowerTail {
  int attempt;
  int rank;  // kNoRank: the setup's
  NodeId node;
  bool error_stream;
  fs::path path;
  LogFiles::FilePtr file;  // while it is kept open
  bool begun = false;      // the file was there
  std::uint64_t offset = 0;
};

// What the engine knows, taken in one go on its thread.
struct FollowerSnapshot {
  nlohmann::json summary;
  int newest_attempt = 0;
  bool may_write = true;
  std::vector<Engine::LogSource> sources;
  std::vector<FollowerTail> setups;                 // nothing of them is sent yet
  nlohmann::json events = nlohmann::json::array();  // those that were asked for
};

// Lives on the log thread while its connection does. What it holds for a reader that stands still
// is bounded: some frames on the connection, and a NewsQueue.
class LogServer::Follower : public std::enable_shared_from_this<LogServer::Follower> {
 public:
  Follower(LogServer& server, JobId job, FollowQuery query);

  // Any thread.
  void hear(nlohmann::json frame);
  boost::asio::awaitable<void> run(boost::asio::local::stream_protocol::socket socket,
                                   std::string request);

 private:
  boost::asio::awaitable<void> watch_peer();
  boost::asio::awaitable<void> ask(bool events);
  static FollowerSnapshot snapshot(const std::shared_ptr<Follower>& self);
  boost::asio::awaitable<void> follow();
  boost::asio::awaitable<void> send_news();
  boost::asio::awaitable<bool> send_logs();
  boost::asio::awaitable<void> pause();

  void read_start(const std::string& frame);
  void check_choice(bool over);
  void send(const nlohmann::json& frame);
  void send_state();
  void send_piece(FollowerTail& tail, std::string bytes);
  void send_end();
  void send_events();
  void send_event(nlohmann::json event);
  void send_cuts();
  void open_tails();
  void open_setups();
  std::string read(FollowerTail& tail);
  bool is_old(const FollowerTail& tail) const { return tail.attempt < now_.newest_attempt; }
  bool ranks_write() const { return query_.logs && now_.summary.value("state", "") == "running"; }

  friend class LogServer;
  LogServer& server_;
  JobId job_;
  FollowQuery query_;
  wire::FrameStreamPtr stream_;
  boost::asio::steady_timer wake_;
  NewsQueue news_;
  FollowerSnapshot now_;  // the newest one
  std::exception_ptr ask_failed_;
  bool answered_ = false;
  bool stale_ = false;           // a state was heard that now_ does not know yet
  std::int64_t last_event_ = 0;  // that was sent
  std::vector<FollowerTail> tails_;
  using Stream = std::tuple<int, int, bool>;  // attempt, rank, stderr
  std::set<Stream> known_;                    // those in tails_
  std::set<std::pair<int, NodeId>> known_setups_;
  std::map<Stream, std::uint64_t> start_;  // where the client wants them to begin
  int start_attempt_ = 0;                  // and from which attempt on; 0: it did not say
  int first_attempt_ = 1;
  bool listening_ = false;  // engine's thread
  bool choice_checked_ = false;
  bool first_pass_ = true;
  bool look_back_ = true;  // at attempts before the newest, whose last bytes may still come
  bool gone_ = false;
};

}  // namespace dtrain::head
