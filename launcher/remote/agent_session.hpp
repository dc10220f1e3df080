#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/core/error.hpp"
#include "launcher/core/files.hpp"
#include "launcher/core/framed.hpp"
#include "launcher/remote/transport.hpp"
#include "launcher/wire/session.hpp"

// Our end of `dtrain-agent session`: the one program through which `up` and `down` do all that is
// to be done on a machine. Opening it also puts the agent there where it is missing.
namespace dtrain {

class Spread;

// The agent as it is on this machine: read and summed once, then shared by all sessions. Immutable.
struct AgentBinary {
  std::string content;
  std::string sha256;

  // Throws Error when it cannot be read. The same object again for a path that has been loaded.
  static std::shared_ptr<const AgentBinary> load(const fs::path& path);
};

struct AgentSessionOptions {
  std::chrono::milliseconds open_limit{30000};    // until the agent's hello, sending aside
  std::chrono::milliseconds send_silence{30000};  // the machine takes nothing of the agent for that
  std::chrono::milliseconds answer_limit{30000};  // of operations that do not take long
  // Where many hosts want the agent: they give it to each other. And this one's name there.
  std::shared_ptr<Spread> spread;
  std::string name;
};

// How far a setup list was followed, to go on from there over another session.
struct SetupProgress {
  std::string run;
  std::int64_t offset = 0;  // bytes of output that were handed on
};

// One program on one machine, over one channel. Used by one thread. After an Error other
// than what the agent answers (unreachable, timeout, invalid), usable() is false: open another;
// nothing on the machine is lost by it, for what takes long runs there by itself.
class AgentSession {
 public:
  // Throws Error(unreachable or timeout) when the machine does not answer as it should, with the
  // last lines that it said; Error(conflict) for a system or architecture that the agent is not
  // built for, before a byte of it is sent; Error(exhausted) for a full disk there.
  static AgentSession open(Transport& transport, std::shared_ptr<const AgentBinary> binary,
                           const AgentSessionOptions& options = {});
  AgentSession(AgentSession&&) noexcept;
  AgentSession& operator=(AgentSession&&) noexcept;
  ~AgentSession();

  const wire::SessionHello& hello() const;
  bool sent_binary() const;  // it was not there, or damaged
  bool usable() const;
  // How far the machine's wall clock is ahead of this one's, to half a round trip.
  std::chrono::milliseconds clock_ahead() const;

  // Each throws what the agent answers, as the agent said it, or the errors above. What they mean
  // stands with the messages in launcher/wire/session.hpp.
  wire::FoundClusters find_clusters(const wire::FindClusters& which);
  wire::NodeFound open_node(const wire::OpenNode& which);
  wire::HeadFound init_head(const wire::InitHead& head);
  std::string sign(const NodeId& node, const std::string& request);
  void revoke(const NodeId& node);
  wire::Configured configure(const wire::ConfigureNode& parts);

  wire::SetupStatus start_setup(const wire::StartSetup& list);
  // Starts the list, or goes on with the run that `progress` names, and hands on its output until
  // it is over. `on_output` is called with each piece, and about once a second with nothing; when
  // it gives false, following ends, and the run goes on. Every byte is handed on once, whatever
  // number of sessions one `progress` is used with. No limit of time: a setup takes what it takes.
  wire::SetupStatus run_setup(const wire::StartSetup& list, SetupProgress& progress,
                              const std::function<bool(std::string_view)>& on_output);
  wire::SetupStatus cancel_setup(const std::string& list);

  wire::AgentsStarted start_agents(const wire::StartAgents& which);
  wire::StopReport stop_agents(const wire::StopAgents& which);
  wire::SurveyReport survey(const wire::Survey& which);
  wire::RemoveReport remove_files(const wire::RemoveFiles& which);
  wire::PersistReport persist(bool on);
  wire::ProbeResult probe(const wire::Probe& probe);
  wire::LogTails read_logs(const wire::ReadLogs& which);

  // Begins an operation that has frames of its own (hello().features names those that this agent
  // has) and gives the stream to speak over; the caller leaves it between two messages. Error
  // (invalid) where the agent has no such operation.
  FramedStream& begin(const std::string& operation);
  // When what was begun broke the stream: the session is of no more use.
  void give_up();

 private:
  struct State;
  explicit AgentSession(std::unique_ptr<State> state);
  nlohmann::json ask(const nlohmann::json& request, std::chrono::milliseconds limit);
  template <typename Answer>
  Answer ask_for(const wire::SessionRequest& request, std::chrono::milliseconds limit);

  std::unique_ptr<State> state_;
};

}  // namespace dtrain
