#include "agent/node/preparing.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <utility>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/process.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain::node {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kLongestWord = std::size_t{1} << 20;  // bytes

}  // namespace

Preparing::Preparing(const asio::any_io_executor& executor, paths::NodeRoot root,
                     std::string program, Relay& relay, Say say)
    : root_(std::move(root)),
      program_(std::move(program)),
      relay_(relay),
      say_(std::move(say)),
      out_(executor) {}

Preparing::~Preparing() {
  end();
}

void Preparing::end() const {
  if (pid_ > 0) ::kill(pid_, SIGTERM);
}

std::string Preparing::prepared() const {
  return read_file_if_there(root_.prepared()).value_or("");
}

std::set<std::string> Preparing::trees() const {
  std::set<std::string> trees;
  for (const auto* each : {&now_, &next_}) {
    if (*each) trees.insert((*each)->preparation.tree);
  }
  trees.erase("");
  return trees;
}

void Preparing::begin(const wire::PrepareNode& wanted) {
  if (now_ && now_->key == wanted.key && !given_up_) {
    next_.reset();
    return say_(last_);
  }
  if (now_) {
    next_ = wanted;
    say_(wire::Preparing{wanted.key, "wait", "for the end of an earlier one", false, {}});
    // What it has begun is gone on with, or undone, by the next one.
    if (!given_up_) end();
    given_up_ = true;
    return;
  }
  now_ = wanted;
  start();
}

void Preparing::start() {
  last_ = {now_->key, "start", "", false, {}};
  try {
    write_file_atomic(root_.preparation(),
                      wire::dump(wire::to_json(wire::HeadMessage(*now_))) + "\n");
    const bool is_clean = !fs::exists(root_.setup()) && !fs::exists(root_.unpacked());
    if (now_->preparation.empty() && is_clean) {
      write_file_atomic(root_.prepared_again(), now_->preparation.again);
      write_file_atomic(root_.prepared(), now_->key);
      last_.done = true;
      return over();
    }
    say_(last_);
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw errno_error("cannot make a pipe", errno);
    UniqueFd ours(ends[0]);
    const UniqueFd theirs(ends[1]);
    SpawnOptions options;
    options.argv = {program_, "prepare", "--root", root_.root.string()};
    options.workdir = "/";
    options.stdout_fd = theirs.get();
    options.stderr_fd = STDERR_FILENO;
    options.death_signal = SIGTERM;
    pid_ = spawn(options);
    out_.assign(ours.release());
  } catch (const std::exception& error) {
    end();
    last_.done = true;
    last_.error = as_defect(error);
    return over();
  }
  read();
}

void Preparing::read() {
  asio::async_read_until(out_, asio::dynamic_buffer(read_, kLongestWord), '\n',
                         [this](boost::system::error_code failed, std::size_t size) {
                           if (failed == asio::error::operation_aborted) return;
                           if (failed) {
                             if (failed != asio::error::eof) end();
                             return over();
                           }
                           const std::string line = read_.substr(0, size);
                           read_.erase(0, size);
                           heard(line);
                           read();
                         });
}

void Preparing::heard(const std::string& line) {
  try {
    const auto message = wire::node_message_from_json(wire::parse_json(line, "its process's word"));
    if (const auto* news = std::get_if<wire::Preparing>(&message)) last_ = *news;
    if (std::exchange(last_.wanted, false)) return give_on();
    if (!last_.done) say_(last_);  // the last word counts once the process has ended
  } catch (const Error& error) {
    log::warn("not understood while the node is prepared", {{"why", error.what()}});
  }
}

void Preparing::give_on() {
  wire::ContentOffer offer;
  offer.preparation = now_->key;
  JobContent content;
  content.workdir_tree = now_->preparation.tree;
  relay_.offer(offer, content);
}

// Its zombie is the agent's to reap, as any other.
void Preparing::over() {
  boost::system::error_code ignored;
  out_.close(ignored);
  read_.clear();
  pid_ = -1;
  if (!last_.done) {
    last_.done = true;
    last_.error = Error(ErrorCode::failed, "the process that prepares it ended without a word");
  }
  if (!std::exchange(given_up_, false)) say_(last_);
  now_ = std::exchange(next_, std::nullopt);
  if (now_) start();
}

}  // namespace dtrain::node
