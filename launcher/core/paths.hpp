#pragma once

#include <cstdint>
#include <string>

#include "launcher/core/files.hpp"
#include "launcher/core/ids.hpp"

// Where everything is. One function makes each path; nobody joins these names by hand.
//
// The laptop's side, a cache that `up` can make again:
//   $XDG_STATE_HOME/dtrain/                  (default ~/.local/state/dtrain), 0700
//     current                                name of the cluster of the last `up`
//     sums                                   sums of files that were read once
//     clusters/NAME/                       a long name is cut, see short_name()
//       lock                                 held by up and down
//       cluster.json                         what is up: cluster id, provider, head, nodes
//       unnoted                              an `up` has begun on machines that are not in it yet
//       nodes/NODE/, head/                   provider local only: the roots
//
// A node's root, ~/.dtrain/CLUSTER_ID/NODE_ID/ (local: as above):
//   lock                                     held by the node agent, holds the boot id
//   identity/{key.pem,cert.pem,ca.pem}       the node's own key never leaves it
//   node.json                                cluster, node, head's address
//   login_env                                NAME=VALUE, each ended by NUL
//   node.log, watch.log
//   watch.json, watch.pid                    what watch keeps alive
//   marks.json                               what `up` notes of what it has put here
//   setup/LIST.{json,log}                    a list of setup commands: how it went, what it said
//   setup/LIST.plan.json, setup/LIST.lock    what is to run; held while it does
//   start, held                              of a head's own, in allocations of Slurm's
//   spot                                     is there on a spot instance of EC2
//   jobs/JOB/storage/…, checkpoints/…        where the node does not see the head's storage
//   content/                                 what workdirs and bundles are made of, by SHA-256
//   trash/                                   what is being deleted
//   jobs/JOB/workdir-N/                      attempt N's own copy of the workdir, if it was sent
//   jobs/JOB/attempt-N/
//     spec.json, secrets.json                what the supervisor was told
//     supervise.json                         its pid and start time
//     supervise.log, setup.log, stacks.jsonl
//     ranks/R.{out,err}, R.out.released, …   the supervisor is the only writer of the former
//     errors/R.json                          TORCHELASTIC_ERROR_FILE
//     hosts                                  launcher srun, node rank 0: each rank's Slurm node
//     exit.json                              how it ended; written once, last
//
// What file sync wrote on a machine for a cluster, ~/.dtrain/CLUSTER_ID/sync/ (local, and what
// `sync down` wrote: the laptop's sync/); in the home also where that is shared, as its files are.
// Its profiler/ is what `dtrain stack` has brought.
//
// The head's root:
//   ca/{key.pem,cert.pem}                    the cluster's own CA
//   identity/…                               as a node's
//   head.json, head.db, head.log
//   head.db-wal, head.db.backup, …           what lies beside it: agent/head/store/README.md
//   place, turn.json                         of one that moves: where it is, whose turn it is
//   clock.json                               how its machine's clock stood and jumped in this boot
//   secrets/JOB.json                         0600, gone at the job's end
//   nodes/NODE                               the list of those that are let in
//   joins/NODE.json                          a join credential, and who used it
//   content/                                 what was submitted, by SHA-256
//   storage/JOB/checkpoints/…                the default storage
//   mirror/JOB/attempt-N/NODE/R.out, …       logs of nodes on other machines
//
// Sockets, /tmp/dtrain-UID/HASH/, HASH of the root's path, because sun_path holds 108 bytes:
//   head.sock, JOB.N.ctl (supervisor), JOB.N.R (reports of rank R)
//   root                                     a link to the root, if that was there
// Where another user has made /tmp/dtrain-UID: /tmp/dtrain-UID.RANDOM/s/. ROOT/sockets is a link to
// it, wherever it is.
namespace dtrain::paths {

fs::path state_home();  // from XDG_STATE_HOME, else HOME; Error(invalid) without both
fs::path cluster_state(const std::string& cluster_name);
fs::path current_cluster();
fs::path file_sums();  // what is remembered of files that were hashed, of all clusters
fs::path sync_records(const fs::path& home, const ClusterId& cluster);

struct NodeRoot {
  fs::path root;

  fs::path lock() const { return root / "lock"; }
  fs::path identity() const { return root / "identity"; }
  fs::path config() const { return root / "node.json"; }
  fs::path login_env() const { return root / "login_env"; }
  fs::path log() const { return root / "node.log"; }
  fs::path jobs() const { return root / "jobs"; }
  fs::path marks() const { return root / "marks.json"; }
  // Of a node that joined by itself: what the head wants of its machine, who is at it, the key of
  // what was done last, and the files on their way to their places.
  fs::path preparation() const { return root / "preparation.json"; }
  fs::path preparation_lock() const { return root / "preparation.lock"; }
  fs::path prepared() const { return root / "prepared"; }
  fs::path prepared_again() const { return root / "prepared_again"; }
  fs::path unpacked() const { return root / "unpacked"; }
  // Of a contained one: its head has told it to go, and whoever keeps it is to remove all.
  fs::path removed() const { return root / "removed"; }
  // There is such a file: its machine is a spot instance of EC2.
  fs::path spot() const { return root / "spot"; }
  // Of one whose agents are a Slurm job's own program (launcher/provider/slurm/head_chain): what
  // that runs; and, while it is there, that what has ended is not the job's end: with a word in it
  // the next is to start now.
  fs::path start() const { return root / "start"; }
  fs::path held() const { return root / "held"; }
  fs::path setup() const { return root / "setup"; }
  fs::path setup_status(const std::string& list) const { return setup() / (list + ".json"); }
  fs::path setup_log(const std::string& list) const { return setup() / (list + ".log"); }
  fs::path setup_plan(const std::string& list) const { return setup() / (list + ".plan.json"); }
  fs::path setup_lock(const std::string& list) const { return setup() / (list + ".lock"); }
  // For a node that does not see the head's storage: where its ranks write their shards, and the
  // checkpoint that they resume from.
  fs::path storage(const JobId& job) const { return jobs() / job.str() / "storage"; }
  fs::path checkpoint(const JobId& job, int number) const {
    return jobs() / job.str() / "checkpoints" / ("checkpoint_" + std::to_string(number));
  }
  fs::path content() const { return root / "content"; }
  fs::path trash() const { return root / "trash"; }
  fs::path workdir(const JobId& job, int attempt) const {
    return jobs() / job.str() / ("workdir-" + std::to_string(attempt));
  }
};

struct WatchRoot {
  fs::path root;

  fs::path config() const { return root / "watch.json"; }
  fs::path pid() const { return root / "watch.pid"; }
  fs::path lock() const { return root / "watch.lock"; }
  fs::path log() const { return root / "watch.log"; }
};

struct HeadRoot {
  fs::path root;

  fs::path ca() const { return root / "ca"; }
  fs::path identity() const { return root / "identity"; }
  fs::path config() const { return root / "head.json"; }
  fs::path database() const { return root / "head.db"; }
  fs::path log() const { return root / "head.log"; }
  fs::path clock() const { return root / "clock.json"; }
  fs::path lock() const { return root / "lock"; }
  fs::path nodes() const { return root / "nodes"; }
  fs::path joins() const { return root / "joins"; }
  fs::path preparation() const { return root / "preparation.json"; }
  fs::path machines() const { return root / "machines.json"; }
  fs::path costs() const { return root / "costs.json"; }
  fs::path idle() const { return root / "idle.json"; }       // since when nothing has happened
  fs::path asked_for() const { return root / "asked_for"; }  // dtrain-scaler's notes
  // Of one that moves from machine to machine: where it is now, "PORT ADDRESS…", and whose turn it
  // is to be it.
  fs::path place() const { return root / "place"; }
  fs::path turn() const { return root / "turn.json"; }
  fs::path join(const NodeId& node) const { return joins() / (node.str() + ".json"); }
  fs::path content() const { return root / "content"; }
  fs::path secrets(const JobId& job) const { return root / "secrets" / (job.str() + ".json"); }
  fs::path storage() const { return root / "storage"; }
  fs::path storage(const JobId& job) const { return storage() / job.str(); }
  fs::path mirror() const { return root / "mirror"; }
  fs::path mirror(const JobId& job) const { return mirror() / job.str(); }
  fs::path mirror(const JobId& job, int attempt, const NodeId& node) const {
    return mirror(job) / ("attempt-" + std::to_string(attempt)) / node.str();
  }
};

struct AttemptRoot {
  fs::path root;

  fs::path spec() const { return root / "spec.json"; }
  fs::path secrets() const { return root / "secrets.json"; }
  fs::path supervisor() const { return root / "supervise.json"; }
  fs::path log() const { return root / "supervise.log"; }
  fs::path setup_log() const { return root / "setup.log"; }
  fs::path stacks() const { return root / "stacks.jsonl"; }
  fs::path ranks() const { return root / "ranks"; }
  fs::path out(int rank) const { return ranks() / (std::to_string(rank) + ".out"); }
  fs::path err(int rank) const { return ranks() / (std::to_string(rank) + ".err"); }
  fs::path errors() const { return root / "errors"; }
  fs::path error_file(int rank) const { return errors() / (std::to_string(rank) + ".json"); }
  fs::path hosts() const { return root / "hosts"; }
  fs::path exit() const { return root / "exit.json"; }
};

AttemptRoot attempt(const NodeRoot& node, const JobId& job, int attempt);

// Makes the folder of the root's sockets, and the one above it, when missing. A root that is not
// there has one all the same, which nobody else finds where the name is another user's.
fs::path socket_folder(const fs::path& root);
// Where that is, nothing made.
fs::path socket_folder_name(const fs::path& root);
// What holds the folders of all of this user's roots: /tmp/dtrain-UID.
fs::path socket_folders();
// In a folder of sockets: leads to the root that it is of.
fs::path root_link(const fs::path& sockets);
fs::path head_socket(const fs::path& head_root);
// Where another machine has the socket of the head with this absolute root: by the link, since its
// /tmp may have a folder of somebody else by our name. It may be too long for sun_path; then, and
// where an older agent has made no link, the bridge finds the socket. Makes nothing.
fs::path head_socket_of(const fs::path& head_root);
fs::path supervisor_socket(const fs::path& node_root, const JobId& job, int attempt);
fs::path report_socket(const fs::path& node_root, const JobId& job, int attempt, int rank);

}  // namespace dtrain::paths
