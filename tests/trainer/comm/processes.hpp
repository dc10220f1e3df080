#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer/comm/group.hpp"

// Several ranks as forked processes of a test.
namespace dtrain::train::test {

// A small table of keys and values in memory that the forked processes share.
class SharedTable {
 public:
  SharedTable();
  ~SharedTable();
  SharedTable(const SharedTable&) = delete;
  SharedTable& operator=(const SharedTable&) = delete;

  // With this in front of every key. get() throws after ten seconds.
  comm::KeyValue keys(const std::string& prefix);

 private:
  struct Memory;
  Memory* memory_;
};

struct Ended {
  int code = 0;       // 128 + n for signal n
  std::string error;  // what the rank threw
};

// Forks `ranks` processes that run the body, each with a group of its own making, and waits for
// them. The body's exception becomes code 1 and the error.
struct Rank {
  int rank;
  int size;
  SharedTable& table;

  std::unique_ptr<comm::SharedGroup> join(const comm::SharedGroup::Options& options = {},
                                          const std::string& name = "g") const;
};
std::vector<Ended> fork_ranks(int ranks, const std::function<void(const Rank&)>& body);

// Throws with the text if the condition does not hold: CHECK does not work in a forked process.
void require(bool condition, const std::string& what);

}  // namespace dtrain::train::test
