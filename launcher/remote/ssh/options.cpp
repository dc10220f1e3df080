#include "launcher/remote/ssh/options.hpp"

#include "launcher/remote/ssh/connection.hpp"
#include "launcher/remote/ssh/keyring.hpp"

namespace dtrain {
namespace {

using std::chrono::steady_clock;

std::chrono::milliseconds since(steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - start);
}

}  // namespace

SshShared::SshShared(std::shared_ptr<Prompter> prompter, LoginGate::Limits limits)
    : gate_(limits), keys_(std::make_unique<ssh::Keyring>()), prompter_(std::move(prompter)) {}

SshShared::~SshShared() = default;

std::optional<std::string> SshShared::ask(const std::string& prompt, bool echo,
                                          const std::stop_token& stop,
                                          std::chrono::milliseconds& waited) {
  if (!prompter_) return std::nullopt;
  const auto start = steady_clock::now();
  const std::lock_guard guard(asking_);
  auto answer = prompter_->ask(prompt, echo, stop);
  waited = since(start);
  return answer;
}

bool SshShared::confirm(const std::string& text, const std::stop_token& stop,
                        std::chrono::milliseconds& waited) {
  if (!prompter_) return false;
  const auto start = steady_clock::now();
  const std::lock_guard guard(asking_);
  const bool yes = prompter_->confirm(text, stop);
  waited = since(start);
  return yes;
}

std::shared_ptr<SshConnection> SshShared::jump(
    const std::string& key, const std::function<std::shared_ptr<SshConnection>()>& make) {
  std::shared_ptr<Jump> jump;
  {
    const std::lock_guard guard(jumps_mutex_);
    std::shared_ptr<Jump>& found = jumps_[key];
    if (!found) found = std::make_shared<Jump>();
    jump = found;
  }
  const std::lock_guard guard(jump->making);
  if (auto there = jump->connection.lock(); there && there->alive()) return there;
  // A failure that others have just waited for is theirs too: a dead jump costs one deadline.
  if (jump->failure && steady_clock::now() - jump->failed < std::chrono::seconds(1)) {
    throw Error(*jump->failure);
  }
  try {
    auto made = make();
    jump->connection = made;
    jump->failure.reset();
    return made;
  } catch (const Error& error) {
    jump->failure = error;
    jump->failed = steady_clock::now();
    throw;
  }
}

}  // namespace dtrain
