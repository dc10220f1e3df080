#pragma once

#include <string>
#include <thread>
#include <vector>

#include "launcher/core/unique_fd.hpp"

// ssh-agent's side (draft-miller-ssh-agent). libssh offers a server all keys of an agent in the
// agent's order, which sshd cuts off after six: so it talks to a stand-in that shows the chosen
// ones only and passes what they sign to the real agent.
namespace dtrain::ssh {

struct AgentKey {
  std::string type;
  std::string blob;  // base64
  std::string comment;

  bool certificate() const { return type.find("-cert-v01@") != std::string::npos; }
};

// What it holds; at most 2 s. Empty when it does not answer.
std::vector<AgentKey> agent_keys(int agent);

// Serves `shown` until it is destroyed, on a thread of its own.
class AgentStandIn {
 public:
  AgentStandIn(UniqueFd agent, std::vector<AgentKey> shown);
  ~AgentStandIn();
  AgentStandIn(const AgentStandIn&) = delete;
  AgentStandIn& operator=(const AgentStandIn&) = delete;

  // The end for libssh; closed with this object.
  int fd() const { return theirs_.get(); }

 private:
  void serve();

  UniqueFd agent_;
  std::vector<AgentKey> shown_;
  UniqueFd ours_;
  UniqueFd theirs_;
  std::thread thread_;
};

// The pure half: the keys in an agent's answer.
std::vector<AgentKey> parse_identities(std::string_view answer);

}  // namespace dtrain::ssh
