# What Doxygen reads instead of a header, line for line.

# "// smp/step.h: one step" at the top describes the file.
1,/^#pragma once/{
  1s|^// (smp/[^:]*): |/// @header{\1} |
  2,$s|^//( \|$)|///\1|
}
# A page with a section, "docs/design.md#order", names no symbol.
s|\.md#|.md\\#|g
# Doxygen 1.9 takes a specialised variable for a comment's symbol that is missing.
/^template <>$/{
  N
  s|^template <>\ninline constexpr bool draws_random_v<.*|\n|
}
