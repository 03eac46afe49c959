// base/forked_child.h: what a child that this process forks, and that runs on without exec, does
// not keep. A worker that reads data, say, may outlive the rank that forked it: the ranks that
// watch that one must see it end all the same.
#pragma once

namespace smp::base {

/// Remembers which process an object was made in. A forked child has a copy of it that it must not
/// use, or end, as if it were the one of its parent: what that would send belongs to the parent.
class MadeHere {
 public:
  MadeHere() noexcept;
  /// True in the process that made the object; false in a child that was forked since, and in the
  /// child's own. As cheap as reading a number.
  bool is_here() const noexcept;

 private:
  int forks_;  // that lie behind this process
};

/// Makes `file` a descriptor of this process alone: it is closed in every child that is forked from
/// now on, so that whoever is at the other end sees this process end. Any thread.
void keep_from_children(int file);
/// Closes a descriptor that was given to keep_from_children(). Does nothing in a forked child,
/// where it is closed already and its number may be another file's. Any thread.
void close_own(int file) noexcept;

}  // namespace smp::base
