#include "agent/head/engine/impl.hpp"
#include "launcher/core/log.hpp"
#include "launcher/core/text.hpp"

// What a job's followers hear of its log_limit: once that the oldest output goes, and once that it
// cannot.
namespace dtrain::head {
namespace {

constexpr std::string_view kReleases = "log_limit: ";
constexpr std::string_view kCannot = "log_limit cannot be held ";

}  // namespace

void Engine::Impl::logs_released(const std::string& where, const JobId& id,
                                 const std::string& error) {
  Job* job = find(id);
  if (job == nullptr || job->spec.kept_log() == 0) return;
  bool& told = error.empty() ? job->releases_told : job->grows_told;
  if (std::exchange(told, true)) return;
  std::string text =
      error.empty() ? std::string(kReleases) + "of what a rank writes the newest " +
                          human_bytes(job->spec.kept_log()) +
                          " are kept, of stdout and of stderr each; older output goes from now on. "
                          "`log_limit` of the job YAML is how much, 0 keeps all"
                    : std::string(kCannot) + "on " + where + ", whose logs grow: " + error;
  // A head before this one may have said it.
  work<bool>(
      history,
      [store = store.get(), id, begin = error.empty() ? kReleases : kCannot] {
        try {
          for (const EventRow& row : store->events(id)) {
            if (row.message.starts_with(begin)) return true;
          }
        } catch (const std::exception& failed) {
          log::warn("not known whether a log_limit was told of", {{"why", failed.what()}});
        }
        return false;
      },
      [this, id, text = std::move(text)](bool said) {
        Job* still = find(id);
        if (said || still == nullptr) return;
        Tx tx;
        note(tx, *still, EventLevel::warning, text);
        commit(*still, std::move(tx), Urgency::soon);
      });
}

void Engine::logs_released(const std::string& where, const JobId& job, const std::string& error) {
  impl_->logs_released(where, job, error);
}

std::uint64_t Engine::log_limit(const JobId& id) const {
  const Job* job = impl_->find(id);
  return job == nullptr ? 0 : job->spec.kept_log();
}

}  // namespace dtrain::head
