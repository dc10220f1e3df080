#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Which of a job's metrics go when they are too many; pure.
namespace dtrain::head {

// The names in a report's metrics: reports of other names are another curve's. An accuracy that is
// reported once an epoch must not be lost among the losses of each step.
std::string names_of(const std::string& metrics);

// Told all rows of a job, the oldest first. Every second one of the longest curves goes, the newest
// stays: those of rank 0, or those of all other ranks together, whichever are more, so that rank 0,
// which is drawn, keeps half of the room however many ranks report.
class Thinning {
 public:
  struct Key {
    int attempt = 1;
    int rank = 0;
    std::uint64_t seq = 0;
  };
  void add(const Key& key, const std::string& metrics);
  std::vector<Key> dropped() const;  // a twelfth of the rows at least

 private:
  // By rank and a hash of the names, which are long where they are many; with how many rows.
  using Curves = std::map<std::pair<int, std::size_t>, std::size_t>;
  struct Row {
    Key key;
    Curves::const_iterator curve;
  };
  struct Side {
    Curves curves;
    std::vector<Row> rows;
  };
  Side first_;   // of rank 0
  Side others_;  // of all other ranks
};

}  // namespace dtrain::head
