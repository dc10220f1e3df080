#include "agent/node/mirror.hpp"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <tuple>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/kept_log.hpp"
#include "launcher/core/log.hpp"

namespace dtrain::node {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kPause = 100ms;      // between looks while little is written
constexpr auto kShortPause = 10ms;  // while somebody waits for the end

bool is_lasting(const std::string& file) {
  return file != "supervise.log";  // which goes on after the attempt's end
}

fs::path path_of(const paths::AttemptRoot& root, const std::string& file) {
  if (file == "setup.log") return root.setup_log();
  if (file == "supervise.log") return root.log();
  if (file == "stacks.jsonl") return root.stacks();
  return root.ranks() / file;
}

// The logs that there are. Throws Error when that cannot be seen.
std::vector<std::string> names_of(const paths::AttemptRoot& root) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const char* name : wire::kAttemptLogs) {
    if (fs::exists(path_of(root, name), failed)) names.emplace_back(name);
  }
  for (const fs::path& file : entries_of(root.ranks())) {
    std::string name = file.filename().string();
    if (wire::is_log_file(name)) names.push_back(std::move(name));
  }
  return names;
}

// Empty at the end of the file, and when there is none. Throws Error for every other reason.
KeptBytes read_from(const fs::path& path, std::uint64_t offset, std::size_t most) {
  UniqueFd fd;
  try {
    fd = open_file(path, O_RDONLY | O_NOFOLLOW);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return {offset, {}};
    throw;
  }
  return read_kept(fd.get(), path, offset, most);
}

}  // namespace

struct Mirror::Look {
  struct Piece {
    Key key;
    std::string file;
    std::uint64_t offset = 0;
    KeptBytes read;
  };
  int connection = 0;
  std::size_t room = 0;  // bytes that may be read
  std::map<Key, paths::AttemptRoot> roots;
  std::vector<Piece> pieces;  // of the files that are open, in the order to be read; then filled
  std::map<Key, std::size_t> open_files;
  std::set<Key> draining;
  // Found:
  std::set<Key> failed;
  std::map<Key, std::vector<std::string>> names;
  std::set<Key> with_more;  // not all of it was read
  std::string trouble;      // why something could not be read

  void run() {
    for (const auto& each : roots) {
      attempt(each.first, [&] { names[each.first] = names_of(each.second); });
    }
    for (Piece& piece : pieces) {
      const std::size_t most = std::min(room, wire::kBulkFrame);
      if (most > 0) {
        attempt(piece.key, [&] {
          piece.read = read_from(path_of(roots.at(piece.key), piece.file), piece.offset, most);
        });
      }
      room -= piece.read.bytes.size();
      if (piece.read.bytes.size() == most) with_more.insert(piece.key);
    }
  }

  // What cannot be read now is not at its end: it is tried again.
  template <typename Read>
  void attempt(const Key& key, const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      trouble = error.what();
      failed.insert(key);
    }
  }
};

Mirror::Mirror(asio::any_io_executor executor, paths::NodeRoot root, Send send)
    : executor_(std::move(executor)),
      root_(std::move(root)),
      send_(std::move(send)),
      timer_(executor_) {
  // Ranks come first: the reading takes what they leave.
  reader_.add([] {
    const sched_param none{};
    ::sched_setscheduler(0, SCHED_IDLE, &none);
  });
}

Mirror::~Mirror() {
  alive_.reset();
}

void Mirror::enable(bool wanted, bool with_stacks) {
  wanted_ = wanted;
  with_stacks_ = with_stacks;
  settle_drains();
  if (wanted_) wake(0ms);
}

void Mirror::connected(bool is_open) {
  connected_ = is_open;
  ++connection_;
  refused_.clear();
  for (auto& [key, attempt] : attempts_) {
    attempt.refused = false;
    for (auto& [name, file] : attempt.files) file = File{};
    for (Drain& drain : attempt.drains) drain.scanned = false;
  }
  if (is_open) wake(0ms);
}

void Mirror::follow(const Key& key) {
  attempts_.try_emplace(key);
  wake(0ms);
}

void Mirror::drain(const Key& key, std::chrono::milliseconds limit,
                   std::function<void(bool whole)> done) {
  if (!wanted_) {
    done(true);
    return;
  }
  attempts_[key].drains.push_back({std::move(done), Clock::now() + limit, false});
  wake(0ms);
}

std::map<std::string, std::uint64_t> Mirror::taken(const Key& key) const {
  std::map<std::string, std::uint64_t> found;
  const auto attempt = attempts_.find(key);
  if (attempt == attempts_.end()) return found;
  for (const auto& [name, file] : attempt->second.files) found[name] = file.taken;
  return found;
}

void Mirror::forget(const JobId& job) {
  std::erase_if(attempts_, [&](const auto& entry) { return entry.first.first == job; });
  std::erase_if(refused_, [&](const Key& key) { return key.first == job; });
}

std::size_t Mirror::in_flight() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, attempt] : attempts_) {
    for (const auto& [name, file] : attempt.files) bytes += file.sent - file.taken;
  }
  return static_cast<std::size_t>(bytes);
}

void Mirror::wake(std::chrono::milliseconds after) {
  if (!wanted_ || attempts_.empty()) return;
  if (looking_) {
    again_ = again_ || after == 0ms;
    return;
  }
  timer_.expires_after(after);
  timer_.async_wait([this, guard = std::weak_ptr<int>(alive_)](boost::system::error_code stopped) {
    if (!stopped && guard.lock()) read_on();
  });
}

void Mirror::read_on() {
  if (looking_ || !wanted_) return;
  settle_drains();
  if (attempts_.empty()) return;
  if (!connected_) {
    wake(kPause);  // for the limits of those who wait
    return;
  }
  looking_ = true;
  again_ = false;
  auto look = std::make_shared<Look>();
  look->connection = connection_;
  const std::size_t on_the_way = in_flight();
  look->room = on_the_way < wire::kLogWindow ? wire::kLogWindow - on_the_way : 0;
  for (const auto& [key, attempt] : attempts_) {
    if (attempt.refused) continue;
    look->roots[key] = paths::attempt(root_, key.first, key.second);
    if (!attempt.drains.empty()) look->draining.insert(key);
    for (const auto& [name, file] : attempt.files) {
      if (!file.open) continue;
      look->pieces.push_back({key, name, file.sent, {}});
      ++look->open_files[key];
    }
  }
  // Behind the one that was read last, so that one that never ends leaves room for the others.
  const auto next = std::find_if(look->pieces.begin(), look->pieces.end(), [&](const auto& piece) {
    return std::tie(piece.key, piece.file) > std::tie(last_.first, last_.second);
  });
  std::rotate(look->pieces.begin(), next, look->pieces.end());
  reader_.add([this, look, executor = executor_, guard = std::weak_ptr<int>(alive_)] {
    look->run();
    asio::post(executor, [this, look, guard] {
      if (guard.lock()) send_read(std::move(*look));
    });
  });
}

void Mirror::send_read(Look look) {
  looking_ = false;
  if (look.connection != connection_ || !connected_) {
    wake(0ms);
    return;
  }
  for (const auto& [key, names] : look.names) {
    const auto attempt = attempts_.find(key);
    if (attempt == attempts_.end()) continue;
    for (const std::string& name : names) {
      if (name == "stacks.jsonl" && !with_stacks_) continue;
      File& file = attempt->second.files[name];
      if (file.asked) continue;
      file.asked = true;
      send_(wire::LogOpen{{key.first, key.second, name}}, {});
    }
  }
  std::set<Key> moved;
  for (Look::Piece& piece : look.pieces) {
    std::string& bytes = piece.read.bytes;
    if (bytes.empty()) continue;
    moved.insert(piece.key);
    last_ = {piece.key, piece.file};
    const auto attempt = attempts_.find(piece.key);
    if (attempt == attempts_.end()) continue;
    File& file = attempt->second.files[piece.file];
    if (!file.open || file.sent != piece.offset) continue;  // the head has said otherwise meanwhile
    wire::LogData data{{piece.key.first, piece.key.second, piece.file}, file.sent, bytes.size()};
    if (piece.read.offset > file.sent) {
      // The head has lost what is no longer here either.
      data.released = true;
      data.offset = file.sent = file.taken = piece.read.offset;
    }
    file.sent += bytes.size();
    send_(data, std::move(bytes));
  }
  if (look.trouble.empty()) {
    trouble_said_ = false;
  } else if (!std::exchange(trouble_said_, true)) {
    log::warn("logs cannot be read; trying again", {{"why", look.trouble}});
  }
  for (const Key& key : look.draining) {
    const auto attempt = attempts_.find(key);
    if (look.failed.contains(key) || attempt == attempts_.end() || look.with_more.contains(key) ||
        moved.contains(key)) {
      continue;
    }
    const bool all_open = std::all_of(attempt->second.files.begin(), attempt->second.files.end(),
                                      [](const auto& entry) { return entry.second.open; });
    // A file that was not open yet when the thread looked was not read.
    const bool all_read = look.open_files[key] == attempt->second.files.size();
    for (Drain& drain : attempt->second.drains) drain.scanned = all_open && all_read;
  }
  settle_drains();
  const bool hurry = std::any_of(attempts_.begin(), attempts_.end(),
                                 [](const auto& entry) { return !entry.second.drains.empty(); });
  const bool room = in_flight() < wire::kLogWindow;
  if (again_ || (!look.with_more.empty() && room)) {
    wake(0ms);
  } else {
    wake(hurry ? std::chrono::milliseconds(kShortPause) : std::chrono::milliseconds(kPause));
  }
}

void Mirror::settle_drains() {
  std::vector<std::pair<std::function<void(bool)>, bool>> over;
  for (auto at = attempts_.begin(); at != attempts_.end();) {
    Attempt& attempt = at->second;
    const bool taken =
        std::all_of(attempt.files.begin(), attempt.files.end(), [](const auto& entry) {
          return !is_lasting(entry.first) || entry.second.taken == entry.second.sent;
        });
    bool ended = false;
    std::erase_if(attempt.drains, [&](Drain& drain) {
      const bool whole = !wanted_ || attempt.refused || (drain.scanned && taken && connected_);
      if (!whole && Clock::now() < drain.until) return false;
      if (!whole) {
        log::warn("the head has not taken all logs of an attempt in time",
                  {{"job", at->first.first.str()}});
      }
      ended = true;
      over.emplace_back(std::move(drain.done), whole);
      return true;
    });
    at = ended && attempt.drains.empty() ? attempts_.erase(at) : std::next(at);
  }
  for (const auto& [done, whole] : over) done(whole);
}

void Mirror::message(const wire::BulkMessage& message) {
  const auto find = [&](const wire::LogName& log) -> Attempt* {
    const auto found = attempts_.find({log.job, log.attempt});
    return found == attempts_.end() ? nullptr : &found->second;
  };
  if (const auto* from = std::get_if<wire::LogFrom>(&message)) {
    Attempt* attempt = find(from->log);
    if (attempt == nullptr) return;
    File& file = attempt->files[from->log.file];
    file.asked = file.open = true;
    file.sent = file.taken = from->offset;
    for (Drain& drain : attempt->drains) drain.scanned = false;
  } else if (const auto* taken = std::get_if<wire::LogTaken>(&message)) {
    Attempt* attempt = find(taken->log);
    if (attempt == nullptr) return;
    File& file = attempt->files[taken->log.file];
    file.taken = std::clamp(taken->offset, file.taken, file.sent);
    settle_drains();
  } else if (const auto* refused = std::get_if<wire::LogRefused>(&message)) {
    Attempt* attempt = find(refused->log);
    if (attempt == nullptr) return;
    attempt->refused = true;
    refused_.insert({refused->log.job, refused->log.attempt});
    settle_drains();
  }
  wake(0ms);
}

}  // namespace dtrain::node
