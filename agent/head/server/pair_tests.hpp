#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "agent/head/engine/engine.hpp"
#include "launcher/wire/node.hpp"

// Whether the nodes of an attempt reach each other, tried before its ranks start: each opens a port
// for the test, each is told where the others' are. All on the io_context's thread.
namespace dtrain::head {

class PairTests {
 public:
  using Tell = std::function<void(const NodeId&, const wire::HeadMessage&)>;
  using Result =
      std::function<void(const JobId&, int attempt, const std::vector<Nodes::BrokenPair>&)>;
  PairTests(boost::asio::io_context& context, Tell tell, Result result);
  ~PairTests();

  void start(const JobId& job, int attempt, std::vector<Nodes::PairMember> members);
  void opened(const NodeId& node, const wire::PairOpened& message);
  void dialled(const NodeId& node, const wire::PairResult& message);
  // Tests that it is part of are dropped, without a result.
  void gone(const NodeId& node);

  // For `status -v`: [{"node", "port", "purpose"}…], the ports that are open now.
  nlohmann::json open_ports() const;

 private:
  struct Test;
  void dial(Test& test);
  void finish(const std::string& name);
  void give_up_after(Test& test, std::chrono::seconds time);
  void give_up(const std::string& name);
  void close(const Test& test);
  Test* find(const std::string& name);

  boost::asio::io_context& context_;
  Tell tell_;
  Result result_;
  std::map<std::string, std::unique_ptr<Test>> tests_;
};

// Which of `count` members dial which: every other one while that is little, else the next in a
// ring, and the first (where rank 0 is), both ways. Pure.
std::vector<std::vector<std::size_t>> who_dials_whom(std::size_t count);

}  // namespace dtrain::head
