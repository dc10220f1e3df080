#include "agent/head/turn.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "agent/node/facts.hpp"
#include "launcher/core/address.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process_table.hpp"
#include "launcher/core/text.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::head {
namespace {

constexpr std::size_t kPastKept = 64;

// What keeps it ends too: this allocation is of no more use.
[[noreturn]] void end_at_once() {
  if (std::getenv("SLURM_JOB_ID") != nullptr) ::kill(::getppid(), SIGTERM);
  ::_exit(3);
}

}  // namespace

Turn read_turn(const paths::HeadRoot& root) {
  return while_doing("reading " + root.turn().string(), [&] {
    Turn turn;
    const auto text = read_file_if_there(root.turn());
    if (!text) return turn;
    const nlohmann::json json = wire::parse_json(*text, "the file");
    turn.generation = wire::get_int(json, "generation", 0, INT64_MAX);
    turn.holder = wire::get_string(json, "holder");
    turn.ended = wire::get_bool(json, "ended", false);
    turn.past = wire::get_strings(json, "past");
    return turn;
  });
}

std::string turn_holder() {
  const char* job = std::getenv("SLURM_JOB_ID");
  return job != nullptr ? "Slurm job " + std::string(job) : "boot " + boot_id();
}

HeadTurn::HeadTurn(paths::HeadRoot root, std::string holder) : root_(std::move(root)) {
  turn_ = read_turn(root_);
  if (std::find(turn_.past.begin(), turn_.past.end(), holder) != turn_.past.end()) {
    throw Error(ErrorCode::conflict,
                holder + " is the head no more: " + turn_.holder + " has taken its place");
  }
  const bool is_other = turn_.generation > 0 && turn_.holder != holder;
  const bool may_live = is_other && !turn_.ended;
  if (is_other) {
    turn_.past.push_back(turn_.holder);
    if (turn_.past.size() > kPastKept) turn_.past.erase(turn_.past.begin());
  }
  const std::string before = std::exchange(turn_.holder, std::move(holder));
  turn_.ended = false;
  ++turn_.generation;
  write();
  if (!may_live) return;
  log::warn("the head before this one did not end in order", {{"which", before}});
  std::this_thread::sleep_for(kSafe);
  if (is_lost()) throw Error(ErrorCode::conflict, "another head has taken this one's place");
}

HeadTurn::~HeadTurn() {
  try {
    if (is_lost()) return;
    turn_.ended = true;
    write();
  } catch (const Error& error) {  // the next one waits
    log::warn("the end is not kept", {{"why", error.what()}});
  }
}

bool HeadTurn::is_lost() const {
  return read_turn(root_).generation > turn_.generation;
}

void HeadTurn::write() const {
  const nlohmann::json json{{"generation", turn_.generation},
                            {"holder", turn_.holder},
                            {"ended", turn_.ended},
                            {"past", turn_.past}};
  write_file_atomic(root_.turn(), wire::dump(json) + "\n");
}

TurnGuard::TurnGuard(const HeadTurn& turn)
    : thread_([&turn](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!wake.wait_for(lock, stop, HeadTurn::kLook, [&] { return stop.stop_requested(); })) {
          try {
            if (!turn.is_lost()) continue;
          } catch (const Error& error) {  // who cannot read cannot write
            log::warn("whose turn it is cannot be read", {{"why", error.what()}});
            continue;
          }
          log::error("another head has taken this one's place");
          end_at_once();
        }
      }) {}

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
