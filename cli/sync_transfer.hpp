#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/context.hpp"
#include "launcher/core/error.hpp"
#include "launcher/core/framed.hpp"
#include "launcher/files/sync.hpp"
#include "launcher/wire/client.hpp"

// The transfers of one `dtrain sync`: how they run, what is seen of them, what is told at the end.
namespace dtrain::cli {

// One node's. Its thread writes, the main thread draws.
struct Transfer {
  std::string node;
  std::atomic<int> phase{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> bytes_total{0};
  std::atomic<std::uint64_t> files{0};
  std::atomic<std::uint64_t> files_total{0};
  std::atomic<bool> done{false};
  std::optional<SyncOutcome> outcome;
  std::optional<Error> error;

  void watch(const SyncProgress& progress) {
    phase = static_cast<int>(progress.phase);
    if (progress.phase != SyncPhase::sending) return;
    bytes = progress.bytes;
    bytes_total = progress.bytes_total;
    files = progress.files;
    files_total = progress.files_total;
  }
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// Where records of what syncs wrote on this machine are.
fs::path sync_state_here();

// The other end of a transfer, for a node: its agent, found by its environment. Nodes of a `local`
// cluster are this machine.
std::vector<std::string> sync_command(bool local, const std::string& node);

// One: `command` is the other end, run on the node by way of the head; `body` speaks with it. Never
// throws: what fails is in `transfer`.
void run_transfer(const wire::ApiClient& client, const std::vector<std::string>& command,
                  Transfer& transfer, const std::function<SyncOutcome(FramedStream&)>& body);

// `body` for all, at most eight side by side; draws meanwhile.
void run_transfers(const Context& context, Transfers& transfers,
                   const std::function<void(Transfer&)>& body);

// Says what each did, or failed in. Gives the exit code.
int report_transfers(const Context& context, const Transfers& transfers, bool dry_run, bool down);

}  // namespace dtrain::cli
