#include "launcher/remote/agent_session.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "launcher/core/clock.hpp"
#include "launcher/core/text.hpp"
#include "launcher/files/sha256.hpp"
#include "launcher/remote/bootstrap.hpp"
#include "launcher/wire/json.hpp"

namespace dtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kFollowWait = seconds(1);
constexpr milliseconds kFollowSilence = seconds(60);  // for an answer to a ReadSetup
constexpr milliseconds kSlow = seconds(60);           // what starts or ends processes
constexpr milliseconds kCapture = seconds(40);        // a login shell has 10 s, twice

}  // namespace

std::shared_ptr<const AgentBinary> AgentBinary::load(const fs::path& path) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const AgentBinary>> loaded;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const AgentBinary>& known = loaded[path.string()];
  if (!known) {
    auto binary = std::make_shared<AgentBinary>();
    binary->content = read_file(path, std::size_t{512} << 20);
    Sha256 sum;
    sum.add(binary->content);
    binary->sha256 = sum.hex();
    known = binary;
  }
  return known;
}

struct AgentSession::State {
  std::unique_ptr<Channel> channel;
  std::optional<FramedStream> stream;
  std::unique_ptr<Spread::Seat> seat;
  wire::SessionHello hello;
  AgentSessionOptions options;
  milliseconds ahead{0};
  bool sent = false;
  bool usable = true;
};

AgentSession::AgentSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
AgentSession::AgentSession(AgentSession&&) noexcept = default;
AgentSession& AgentSession::operator=(AgentSession&&) noexcept = default;
AgentSession::~AgentSession() = default;

AgentSession AgentSession::open(Transport& transport, std::shared_ptr<const AgentBinary> binary,
                                const AgentSessionOptions& options) {
  bool send_anyway = false;
  while (true) {
    auto state = std::make_unique<State>();
    state->options = options;
    Bootstrapped started = bootstrap(transport, *binary, options, send_anyway);
    state->channel = std::move(started.channel);
    state->sent = started.sent;
    state->seat = std::move(started.seat);
    state->stream.emplace(state->channel->fd(), state->channel->fd());
    std::optional<FramedStream::Message> message;
    std::string why;
    try {
      message = state->stream->read(options.open_limit);
      if (!message) why = "it ended at once";
    } catch (const Error& error) {
      // What a damaged program says, or that it says nothing, is no reason to give up yet.
      if (error.code() == ErrorCode::timeout) throw;
      why = error.message();
    }
    if (message) {
      state->hello = while_doing("reading the agent's first message", [&] {
        return wire::session_from_json<wire::SessionHello>(wire::parse_json(message->bytes, "it"));
      });
      const auto there = std::chrono::milliseconds(state->hello.host.wall_ms);
      state->ahead = there - milliseconds(to_millis(std::chrono::system_clock::now()));
      if (state->hello.agent_sha256 == binary->sha256) {
        if (state->hello.version == wire::kSessionVersion) return AgentSession(std::move(state));
        throw Error(ErrorCode::internal, "the agent speaks another version of the session");
      }
      if (started.sent) {
        throw Error(ErrorCode::failed,
                    "the agent there is not the file that was sent: its sum is " +
                        state->hello.agent_sha256.substr(0, 12) + "…, not " +
                        binary->sha256.substr(0, 12) + "…");
      }
    } else if (started.sent) {
      throw ended_early(*state->channel, "the agent does not run there: " + why);
    }
    send_anyway = true;
  }
}

const wire::SessionHello& AgentSession::hello() const {
  return state_->hello;
}
bool AgentSession::sent_binary() const {
  return state_->sent;
}
bool AgentSession::usable() const {
  return state_->usable;
}
std::chrono::milliseconds AgentSession::clock_ahead() const {
  return state_->ahead;
}
void AgentSession::give_up() {
  state_->usable = false;
}

FramedStream& AgentSession::begin(const std::string& operation) {
  ask({{"op", operation}}, state_->options.answer_limit);
  return *state_->stream;
}

nlohmann::json AgentSession::ask(const nlohmann::json& request, milliseconds limit) {
  if (!state_->usable) {
    throw Error(ErrorCode::unreachable, "the session with the machine has ended");
  }
  nlohmann::json reply;
  try {
    state_->stream->send(FrameKind::text, wire::dump(request), limit);
    const auto message = state_->stream->read(limit);
    if (!message) throw ended_early(*state_->channel, "the agent's session ended");
    if (message->kind != FrameKind::text) {
      throw Error(ErrorCode::invalid, "the agent answers with bytes that nobody asked for");
    }
    reply = wire::parse_json(message->bytes, "the agent's answer");
    if (!reply.is_object() || (!reply.contains("error") && !reply.contains("ok"))) {
      throw Error(ErrorCode::invalid, "the agent's answer is none");
    }
  } catch (const Error&) {
    state_->usable = false;
    throw;
  }
  if (reply.contains("error")) throw wire::error_from_json(reply);
  return reply["ok"];
}

template <typename Answer>
Answer AgentSession::ask_for(const wire::SessionRequest& request, milliseconds limit) {
  return wire::session_from_json<Answer>(ask(wire::to_json(request), limit));
}

wire::FoundClusters AgentSession::find_clusters(const wire::FindClusters& which) {
  return ask_for<wire::FoundClusters>(which, state_->options.answer_limit);
}
wire::NodeFound AgentSession::open_node(const wire::OpenNode& which) {
  return ask_for<wire::NodeFound>(which, state_->options.answer_limit);
}
wire::HeadFound AgentSession::init_head(const wire::InitHead& head) {
  return ask_for<wire::HeadFound>(head, state_->options.answer_limit);
}
std::string AgentSession::sign(const NodeId& node, const std::string& request) {
  return ask_for<wire::Text>(wire::SignNode{node, request}, state_->options.answer_limit).text;
}
void AgentSession::revoke(const NodeId& node) {
  ask_for<wire::Done>(wire::RevokeNode{node}, state_->options.answer_limit);
}
wire::Configured AgentSession::configure(const wire::ConfigureNode& parts) {
  return ask_for<wire::Configured>(
      parts, std::max(state_->options.answer_limit, parts.capture_environment ? kCapture : kSlow));
}

wire::SetupStatus AgentSession::start_setup(const wire::StartSetup& list) {
  return ask_for<wire::SetupStatus>(list, state_->options.answer_limit);
}

wire::SetupStatus AgentSession::run_setup(const wire::StartSetup& list, SetupProgress& progress,
                                          const std::function<bool(std::string_view)>& on_output) {
  if (progress.run.empty()) {
    wire::SetupStatus started = start_setup(list);
    // Nothing to do; or nothing that was begun by this call, which then is over as well.
    if (started.state != wire::SetupState::running) return started;
    progress.run = started.run;
    progress.offset = 0;
  }
  while (true) {
    wire::ReadSetup read;
    read.list = list.list;
    read.run = progress.run;
    read.offset = progress.offset;
    read.wait_ms = kFollowWait.count();
    auto output = ask_for<wire::SetupOutput>(read, kFollowSilence);
    std::optional<FramedStream::Message> bytes;
    try {
      bytes = state_->stream->read(kFollowSilence);
      if (!bytes) throw ended_early(*state_->channel, "the agent's session ended");
      if (bytes->kind != FrameKind::bytes ||
          bytes->bytes.size() != static_cast<std::size_t>(output.bytes)) {
        throw Error(ErrorCode::invalid, "the agent announced other bytes than it sent");
      }
    } catch (const Error&) {
      state_->usable = false;
      throw;
    }
    progress.offset = output.offset;
    if (!on_output(bytes->bytes)) return output.status;
    if (bytes->bytes.empty() && output.status.state != wire::SetupState::running) {
      return output.status;
    }
  }
}

wire::SetupStatus AgentSession::cancel_setup(const std::string& list) {
  return ask_for<wire::SetupStatus>(wire::CancelSetup{list}, kSlow);
}

wire::AgentsStarted AgentSession::start_agents(const wire::StartAgents& which) {
  return ask_for<wire::AgentsStarted>(which, kSlow);
}
wire::StopReport AgentSession::stop_agents(const wire::StopAgents& which) {
  return ask_for<wire::StopReport>(which, kSlow + milliseconds(which.grace_ms));
}
wire::SurveyReport AgentSession::survey(const wire::Survey& which) {
  return ask_for<wire::SurveyReport>(which, kSlow);
}
wire::RemoveReport AgentSession::remove_files(const wire::RemoveFiles& which) {
  return ask_for<wire::RemoveReport>(which, 5 * kSlow);  // a root may hold a million files
}
wire::PersistReport AgentSession::persist(bool on) {
  return ask_for<wire::PersistReport>(wire::Persist{on}, kSlow);
}
wire::ProbeResult AgentSession::probe(const wire::Probe& probe) {
  return ask_for<wire::ProbeResult>(probe, kSlow + 2 * milliseconds(probe.limit_ms));
}
wire::LogTails AgentSession::read_logs(const wire::ReadLogs& which) {
  return ask_for<wire::LogTails>(which, state_->options.answer_limit);
}

}  // namespace dtrain
