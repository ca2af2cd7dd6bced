#include "base/json_text.h"

#include <set>
#include <string>
#include <vector>

#include "dfa/error.h"

namespace dfa {
namespace {

constexpr int kMostDepth = 64;

// Told of each step of the parser; keeps the keys of the objects that are open.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    if (depth > kMostDepth) {
      throw InvalidArgument("nested deeper than 64, the most that is accepted");
    }
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && !open_.back().insert(value.get<std::string>()).second) {
      throw InvalidArgument("the key '" + value.get<std::string>().substr(0, 64) +
                            "' is there twice in one object");
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw InvalidArgument("not JSON: it is empty");
  }
  if (text.find('\0') != std::string_view::npos) {  // which the library takes for the end
    throw InvalidArgument("not JSON: it has a byte of zero");
  }
  Watch watch;
  try {
    return Json::parse(text, [&watch](int depth, Json::parse_event_t event, Json& value) {
      return watch(depth, event, value);
    });
  } catch (const Json::exception& error) {
    throw InvalidArgument(std::string("not JSON: ") + error.what());
  }
}

}  // namespace dfa
