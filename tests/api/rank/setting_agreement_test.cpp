// Settings of ranks are compared by key, whatever keys the libraries of others know.
#include "api/rank/setting_agreement.h"

#include <gmock/gmock.h>

#include "config/config.h"
#include "support/refusal.h"

namespace smp {
namespace setting_agreement_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

base::ResolvedConfig settings(int microbatches) {
  base::ConfigInput input;
  input.code.microbatches = microbatches;
  return base::resolve_config(input);
}

/// What a rank with `own` settings says of another whose text is `change` of that of `other`.
std::string said_of(const base::ResolvedConfig& own, const base::ResolvedConfig& other,
                    const std::function<std::string(std::string)>& change) {
  std::vector<std::string> texts;  // what the other rank gives, in order of calls
  const GatherTexts listen = [&](const std::string& text) {
    texts.push_back(text);
    return std::vector<std::string>{text, text + "?"};
  };
  EXPECT_THROW(require_same_settings(listen, other), UsageError);
  std::size_t call = 0;
  const GatherTexts gather = [&](const std::string& text) {
    const bool last = call + 1 == texts.size();
    const auto& theirs = texts.at(call++);
    return std::vector<std::string>{text, last ? change(theirs) : theirs};
  };
  return refusal<UsageError>([&] { require_same_settings(gather, own); });
}

TEST(SettingAgreement, NamesWhatDiffersAndNothingElse) {
  const auto same = [](std::string text) { return text; };
  EXPECT_THAT(said_of(settings(4), settings(8), same),
              AllOf(HasSubstr("rank 0 has microbatches = 4"),
                    HasSubstr("rank 1 has microbatches = 8"), Not(HasSubstr("pipeline ="))));
}

TEST(SettingAgreement, NamesWhatOneLibraryDoesNotKnow) {
  const auto without_first = [](std::string text) {
    for (int line = 0; line < 3; ++line) text.erase(0, text.find('\n') + 1);
    return text;
  };
  EXPECT_THAT(said_of(settings(4), settings(8), without_first),
              AllOf(HasSubstr("rank 1 does not know"), HasSubstr("rank 1 has microbatches = 8"),
                    Not(HasSubstr("pipeline ="))));
}

}  // namespace setting_agreement_test
}  // namespace smp
