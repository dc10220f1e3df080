#include "agent/head/server/api.hpp"
#include "agent/head/server/api_impl.hpp"
#include "launcher/core/error.hpp"

// The routes about what is kept and what goes.
namespace dtrain::head {

using nlohmann::json;

asio::awaitable<json> Api::settings(json body) {
  const StorageSpec wanted = storage_spec_from_json(body);
  const bool changed = wanted != parts_.engine.storage();
  if (changed) {
    std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
      keep([&](HeadConfig& config) { config.storage = wanted; }, std::move(done));
    };
    co_await answer_of(std::move(start));
    parts_.engine.set_storage(wanted);
  }
  json answer = to_json(wanted);
  answer["changed"] = changed;
  answer["warnings"] = parts_.engine.warnings();
  co_return answer;
}

asio::awaitable<json> Api::pulled(JobId job, json body) {
  std::set<int> numbers;
  const json& list = wire::member(body, "checkpoints");
  if (!list.is_array()) throw Error(ErrorCode::invalid, "\"checkpoints\" is no list");
  for (const json& number : list) {
    if (!number.is_number_unsigned() || number > INT32_MAX) {
      throw Error(ErrorCode::invalid, "\"checkpoints\" holds what is no number of one");
    }
    numbers.insert(number.get<int>());
  }
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.engine.pulled(job, numbers, std::move(done));
  };
  json answered = co_await answer_of(std::move(start));
  co_return answered;
}

asio::awaitable<json> Api::prune(bool dry_run) {
  std::function<void(Engine::Answer)> start = [&](Engine::Answer done) {
    parts_.prunes.prune(dry_run, std::move(done));
  };
  json answered = co_await answer_of(std::move(start));
  co_return answered;
}

asio::awaitable<Api::Response> Api::answer_storage(Request request) {
  if (request.path == "/v1/settings") {
    json answered = co_await settings(request.body());
    co_return Response{200, std::move(answered)};
  }
  if (request.path == "/v1/prune") {
    json answered = co_await prune(wire::get_bool(request.body(), "dry_run", false));
    co_return Response{200, std::move(answered)};
  }
  throw Error(ErrorCode::not_found, "no such route: " + request.method + " " + request.path);
}

}  // namespace dtrain::head
