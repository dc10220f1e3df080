#pragma once

#include <string>

#include "launcher/cluster/up_way.hpp"

// Where a cluster's head is: its machine, its user there and the folder. An `up` that is led
// elsewhere finds no head, makes another, and forgets the first one, which runs on.
namespace dtrain {

// Pure. What in `now` leads to another place than `was` does, in words; empty: nothing does. What
// is said in another way may be the same place: a host's alias, say.
std::string another_place(const ClusterSpec& was, const ClusterSpec& now);

// Throws Error(conflict) where an `up` has reached a head that is there still, and this one would
// make another. With machines that nobody makes it is looked at where it was; one that cannot be
// reached any more is in nobody's way.
void refuse_second_head(const UpRun& run);

}  // namespace dtrain
