#include "agent/head/turn.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "agent/node/facts.hpp"
#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/fields.hpp"

namespace dtrain::head {
namespace {

constexpr std::size_t kPastKept = 64;
constexpr std::chrono::milliseconds kLookAtLock{200};

// What keeps it ends too: this allocation is of no more use.
[[noreturn]] void end_at_once() {
  if (std::getenv("SLURM_JOB_ID") != nullptr) ::kill(::getppid(), SIGTERM);
  ::_exit(3);
}

std::optional<FileLock> try_lock(const paths::HeadRoot& root) {
  try {
    return FileLock::try_lock(root.lock());
  } catch (Error& error) {
    error.with_hint("its file system must take flock(2): Lustre with -o flock or localflock");
    throw;
  }
}

}  // namespace

void fields(wire::Is<Turn> auto& m, auto&& f) {
  f("generation", wire::within(m.generation, 0, INT64_MAX), "holder", m.holder, "begun",
    wire::or_default(m.begun), "ended", wire::or_default(m.ended), "past", m.past);
}

Turn read_turn(const paths::HeadRoot& root) {
  return while_doing("reading " + root.turn().string(), [&] {
    Turn turn;
    const auto text = read_file_if_there(root.turn());
    if (!text) return turn;
    wire::read(wire::parse_json(*text, "the file"), turn);
    return turn;
  });
}

std::string turn_holder() {
  const char* job = std::getenv("SLURM_JOB_ID");
  if (job == nullptr) return "boot " + boot_id();
  const char* start = std::getenv("DTRAIN_HEAD_START");
  return "Slurm job " + std::string(job) + (start != nullptr ? " of " + std::string(start) : "");
}

bool is_anothers(const Turn& turn, const std::string& holder) {
  return turn.generation > 0 && turn.holder != holder;
}

HeadTurn::HeadTurn(paths::HeadRoot root, std::string holder) : root_(std::move(root)) {
  turn_ = read_turn(root_);
  if (std::find(turn_.past.begin(), turn_.past.end(), holder) != turn_.past.end()) {
    throw Error(ErrorCode::conflict,
                holder + " is the head no more: " + turn_.holder + " has taken its place");
  }
  const bool is_other = is_anothers(turn_, holder);
  const bool may_live = !turn_.ended && (is_other || !turn_.begun);
  if (is_other) {
    turn_.past.push_back(turn_.holder);
    if (turn_.past.size() > kPastKept) turn_.past.erase(turn_.past.begin());
  }
  const std::string before = std::exchange(turn_.holder, std::move(holder));
  turn_.begun = !may_live;
  turn_.ended = false;
  ++turn_.generation;
  write();
  if (!may_live) return;
  log::warn("the head before this one did not end in order", {{"which", before}});
  for (auto left = kSafe; left.count() > 0; left -= kLook) {
    std::this_thread::sleep_for(std::min(left, kLook));
    if (!keep()) throw Error(ErrorCode::conflict, "another head has taken this one's place");
  }
  turn_.begun = true;
  write();
}

HeadTurn::~HeadTurn() {
  try {
    if (is_lost()) return;
    turn_.ended = true;
    // As little as can be between the look and the word; the next one looks too.
    const fs::path word = root_.turn().string() + ".end";
    write_file_atomic(word, text());
    if (is_lost()) {
      ::unlink(word.c_str());
      return;
    }
    if (::rename(word.c_str(), root_.turn().c_str()) != 0) {
      throw errno_error("cannot rename", errno);
    }
    fsync_folder(root_.root);
  } catch (const Error& error) {  // the next one waits
    log::warn("the end is not kept", {{"why", error.what()}});
  }
}

bool HeadTurn::is_over(const Turn& now) const {
  return now.generation > turn_.generation ||
         (now.generation == turn_.generation && now.holder != turn_.holder);
}

bool HeadTurn::is_lost() const {
  return is_over(read_turn(root_));
}

bool HeadTurn::keep() const {
  const Turn now = read_turn(root_);
  if (is_over(now)) return false;
  if (now.generation > 0 && now.generation < turn_.generation) {  // 0: the root is being removed
    log::warn("an older head has written that it is its turn", {{"which", now.holder}});
    write();
  }
  return true;
}

std::string HeadTurn::text() const {
  return wire::dump(wire::written(turn_)) + "\n";
}

void HeadTurn::write() const {
  write_file_atomic(root_.turn(), text());
}

TurnGuard::TurnGuard(const HeadTurn& turn)
    : thread_([&turn](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!wake.wait_for(lock, stop, HeadTurn::kLook, [&] { return stop.stop_requested(); })) {
          try {
            if (turn.keep()) continue;
          } catch (const Error& error) {  // who cannot read cannot write
            log::warn("whose turn it is cannot be known", {{"why", error.what()}});
            continue;
          }
          log::error("another head has taken this one's place");
          end_at_once();
        }
      }) {}

HeadHold::HeadHold(const paths::HeadRoot& root, bool moves, const std::string& holder) {
  const auto take = [&] {
    turn_ = std::make_unique<HeadTurn>(root, holder);
    guard_.emplace(*turn_);
  };
  lock_ = try_lock(root);
  if (!lock_) {
    log::info("another head holds this root's lock; waiting for its end",
              {{"lock", root.lock().string()},
               {"which", moves ? read_turn(root).holder : "of this machine"}});
  }
  if (!lock_ && !moves) lock_ = FileLock::wait(root.lock());
  while (!lock_) {
    if (!turn_ && is_anothers(read_turn(root), holder)) {
      take();
      log::info("this turn is taken; the lock of the one before goes with its process, or machine");
    }
    std::this_thread::sleep_for(kLookAtLock);
    lock_ = try_lock(root);
  }
  if (moves && !turn_) take();
}

void write_place(const paths::HeadRoot& root, int port) {
  std::string line = std::to_string(port);
  for (const wire::Interface& each : node::gather_interfaces()) {
    const std::string address = canonical_address(each.address);
    const bool is_for_others =
        is_numeric_address(address) && address.find('%') == std::string::npos;
    if (is_for_others) line += " " + address;
  }
  write_file_atomic(root.place(), line + "\n");
}

}  // namespace dtrain::head
