#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/link/content_exchange.hpp"
#include "launcher/files/store.hpp"
#include "launcher/spec/job_spec.hpp"

namespace dtrain::link {

// What a store gives of some content: what its trees name, the trees themselves, and nothing else.
// One thread's; what it returns may outlive it, and not the store.
class ContentSources {
 public:
  // `damaged` is thrown for what the store should have, and has not.
  ContentSources(const ContentStore& store, Error damaged)
      : store_(store), damaged_(std::move(damaged)) {}

  // Throws Error for a tree that is not there. Trees are read once for those that fetch them
  // together.
  Source of(const JobContent& content);

 private:
  using Sums = std::map<std::string, std::uint64_t>;  // to sizes
  std::shared_ptr<const Sums> sums_of(const std::string& tree);

  const ContentStore& store_;
  Error damaged_;
  std::map<std::string, std::weak_ptr<const Sums>> sums_;  // by tree
};

}  // namespace dtrain::link
