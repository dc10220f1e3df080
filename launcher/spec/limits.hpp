#pragma once

#include <cstddef>
#include <cstdint>

// The ranges of both specifications, in one place: validate(), the readers and the JSON Schemas
// all take them from here.
namespace dtrain::limits {

inline constexpr std::size_t kNameLength = 40;  // so that NAME-xxxxxx fits wherever a name fits
inline constexpr int kNodes = 10'000;
inline constexpr std::size_t kNodeTypes = 1'000;
inline constexpr int kLocalNodes = 1'000;
inline constexpr int kProcsPerNode = 4'096;
inline constexpr int kRestarts = 1'000'000;
inline constexpr int kSpares = 64;
inline constexpr std::int64_t kBackoffSeconds = 3'600;  // the longest, too
inline constexpr int kPriority = 1'000'000;             // and its negative
inline constexpr int kKept = 1'000'000;
inline constexpr int kCpus = 1'000'000;
inline constexpr int kGpus = 1'024;
inline constexpr std::uint64_t kMemory = std::uint64_t{1} << 60;  // bytes
// What is kept of each of a rank's two streams: not less, for it is released in steps of 1 MiB
// and what reads the end of a log must find it; and where nothing is said.
inline constexpr std::uint64_t kLeastLog = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kLog = std::uint64_t{1} << 30;
inline constexpr int kRetentionDays = 36'500;
inline constexpr std::int64_t kGraceSeconds = 86'400;
inline constexpr std::int64_t kTimeoutSeconds = 10LL * 365 * 86'400;
inline constexpr int kPort = 65'535;
inline constexpr double kLeastCost = 0.01;         // dollars an hour
inline constexpr double kLeastIdleMinutes = 0.01;  // until a cluster goes down by itself

inline constexpr std::size_t kPathLength = 4'095;               // PATH_MAX, less its NUL
inline constexpr std::size_t kArgumentLength = 128 * 1024 - 1;  // the kernel's MAX_ARG_STRLEN
inline constexpr std::size_t kArgumentsLength =
    std::size_t{1024} * 1024;  // of all arguments, or all of env
inline constexpr std::size_t kArguments = 10'000;
inline constexpr std::size_t kVariables = 1'000;
inline constexpr std::size_t kScriptLength = std::size_t{1024} * 1024;
inline constexpr std::size_t kMetricNameLength = 128;
inline constexpr std::size_t kDependencies = 1'000;

}  // namespace dtrain::limits
