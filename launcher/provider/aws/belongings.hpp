#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/core/ids.hpp"
#include "launcher/provider/aws/client.hpp"
#include "launcher/provider/aws/prices.hpp"
#include "launcher/provider/provider.hpp"

// What clusters have in an account besides their instances: security groups, placement groups, key
// pairs, volumes that stay, and heads' roles. What dtrain has made of it carries the tag
// dtrain-cluster, or a path with the cluster's name, and goes with the cluster. All throw ApiError,
// or Error.
namespace dtrain::aws {

inline constexpr const char* kClusterTag = "dtrain-cluster";
inline constexpr std::size_t kMostName = 255;  // of what has a name in EC2

// What makes a thing of this kind the cluster's from its beginning on.
Form tagged(const char* kind, const std::string& cluster_name);
// Asks for those of one cluster, and of all.
Form of_cluster(const std::string& cluster_name);
Form of_any_cluster();
// The value of a thing's tag; empty: it has none.
std::string tag_of(const Xml& thing, const char* name);

// Sees that there is a key pair of this name: it is made of `public_line`, as authorized_keys has
// it, where there is none.
void ensure_key_pair(Client& client, const std::string& name, const std::string& cluster_name,
                     const std::string& public_line);

// What the cluster's placement group of a type and a strategy (cluster, spread or partition) is
// called: no other cluster's is, none of that name that was there before, say.
std::string placement_group_name(const ClusterId& cluster, const std::string& type,
                                 const std::string& strategy);
// Its name; it is made where there is none.
std::string ensure_placement_group(Client& client, const std::string& cluster_name,
                                   const ClusterId& cluster, const std::string& type,
                                   const std::string& strategy);

// Those that of_cluster() or of_any_cluster() asks for, none of them gone. Volumes that no machine
// has are kept, and say what they cost.
std::vector<Orphan> belongings(Client& client, const Form& filter, Prices& prices);
// Until no machine has volumes that `filter` asks for, as when it has just gone; kDetached at most.
// Gives those that one has still.
std::vector<Belonging> await_detached(Client& client, const Form& filter);
inline constexpr std::chrono::seconds kDetached{30};

// Deletes it, unless it is kept, as a key pair is by which another cluster launches; again for two
// minutes where that is in use, as by instances that have just gone. Where it stays its note says
// why.
void take_away(Client& client, Orphan& found);

}  // namespace dtrain::aws
