#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launcher/core/paths.hpp"
#include "launcher/core/worker.hpp"
#include "launcher/wire/node.hpp"

// Copies the logs of this node's attempts to the head, when the head is another machine: by offset,
// under credit, a little at a time. What is sent is read from the files, so nothing is kept here
// but offsets, and after any break the head says where to go on. All on the executor's thread; the
// files are read on a thread of its own.
namespace dtrain::node {

class Mirror {
 public:
  using Key = std::pair<JobId, int>;
  using Send = std::function<void(const wire::BulkMessage&, std::string bytes)>;

  Mirror(boost::asio::any_io_executor executor, paths::NodeRoot root, Send send);
  ~Mirror();

  // The head wants copies, or not: as its Welcome says; of stacks too, or an older head does not
  // know them.
  void enable(bool wanted, bool with_stacks = true);
  // The bulk connection is newly open, or gone.
  void connected(bool is_open);
  // The logs of this attempt are copied from now on.
  void follow(const Key& key);
  // Calls `done` once the head has all that the attempt's ranks and setup wrote until now; at once
  // when it wants no copies, at the latest after `limit`, and then with `whole` false: what it has
  // not taken stays here. Then nothing more will be written, and the attempt is followed no longer.
  void drain(const Key& key, std::chrono::milliseconds limit, std::function<void(bool whole)> done);
  bool wanted() const { return wanted_; }
  // How much of each log of the attempt the head has, as far as it has said over this connection.
  std::map<std::string, std::uint64_t> taken(const Key& key) const;
  // The head has no record of it: that an attempt's end waits for nothing then is not that it has
  // its logs.
  bool refused(const Key& key) const { return refused_.contains(key); }
  bool follows(const Key& key) const { return attempts_.contains(key); }
  void forget(const JobId& job);
  // LogFrom, LogTaken and LogRefused.
  void message(const wire::BulkMessage& message);

 private:
  struct File {
    bool asked = false;  // LogOpen is sent
    bool open = false;   // the head has said where to begin
    std::uint64_t sent = 0;
    std::uint64_t taken = 0;
  };
  struct Drain {
    std::function<void(bool whole)> done;
    std::chrono::steady_clock::time_point until;
    bool scanned = false;  // a look at the files that began after drain() has found nothing more
  };
  struct Attempt {
    std::map<std::string, File> files;
    std::vector<Drain> drains;
    bool refused = false;
  };
  struct Look;  // what the thread is to read, and what it found

  void wake(std::chrono::milliseconds after);
  void read_on();
  void send_read(Look look);
  void settle_drains();
  std::size_t in_flight() const;

  boost::asio::any_io_executor executor_;
  paths::NodeRoot root_;
  Send send_;
  boost::asio::steady_timer timer_;
  std::map<Key, Attempt> attempts_;
  std::set<Key> refused_;
  bool wanted_ = false;
  bool with_stacks_ = true;
  bool connected_ = false;
  bool looking_ = false;
  bool again_ = false;                                  // as soon as the look under way is over
  bool trouble_said_ = false;                           // about logs that cannot be read
  std::pair<Key, std::string> last_{{JobId{}, 0}, {}};  // the file that was read last
  int connection_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker reader_;
};

}  // namespace dtrain::node
