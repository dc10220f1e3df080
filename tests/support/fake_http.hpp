#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "launcher/core/error.hpp"
#include "launcher/provider/http.hpp"

namespace dtrain::testing {

// The web as a test says: what it asks is kept, and answered in turn. One thread at a time.
class FakeHttp final : public Http {
 public:
  using Answer = std::function<HttpAnswer(const HttpRequest&)>;

  std::vector<HttpRequest> asked;
  std::deque<Answer> answers;  // each once
  Answer otherwise;            // when there are no more of them

  void says(int status, std::string body, HttpFields fields = {}) {
    answers.emplace_back([=](const HttpRequest&) { return HttpAnswer{status, fields, body}; });
  }
  void fails(ErrorCode code) {
    answers.emplace_back([=](const HttpRequest&) -> HttpAnswer { throw Error(code, "it fails"); });
  }

  HttpAnswer send(const HttpRequest& request, const std::stop_token&) override {
    asked.push_back(request);
    if (answers.empty()) {
      if (otherwise) return otherwise(request);
      throw Error(ErrorCode::internal, "the test has no answer left");
    }
    const Answer next = std::move(answers.front());
    answers.pop_front();
    return next(request);
  }
};

}  // namespace dtrain::testing
