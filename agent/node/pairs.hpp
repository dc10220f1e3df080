#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "launcher/core/ids.hpp"
#include "launcher/core/paths.hpp"
#include "launcher/wire/node.hpp"

// This node's part of a pair test: a port that is open for it alone, and dialling the others'. All
// on the executor's thread.
namespace dtrain::node {

class Pairs {
 public:
  // `send` passes an answer on to the head.
  Pairs(boost::asio::any_io_executor executor, fs::path identity, ClusterId cluster,
        std::function<void(wire::NodeMessage)> send);
  ~Pairs();

  // Answered by PairOpened.
  void open(const wire::OpenPair& request);
  void close(const wire::ClosePair& request);
  // The head is gone: what is open closes.
  void close_all();
  // Answered by PairResult, within the request's limit.
  void dial(const wire::DialPairs& request);

 private:
  struct Opened;
  boost::asio::any_io_executor executor_;
  fs::path identity_;
  ClusterId cluster_;
  std::function<void(wire::NodeMessage)> send_;
  std::map<std::string, std::unique_ptr<Opened>> opened_;  // by test
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace dtrain::node
